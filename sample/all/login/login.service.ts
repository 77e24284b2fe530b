import { Injectable } from '@nestjs/common';

export interface Credentials {
  email: string;
  password: string;
}

/** The password of every user. It stands for a table of users with salted hashes. */
const PASSWORD = 'correct';

@Injectable()
export class LoginService {
  isRight({ password }: Credentials): boolean {
    return password === PASSWORD;
  }
}
