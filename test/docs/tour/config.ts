import { Injectable, Module } from '@nestjs/common';

/** Stands for the module of @nestjs/config, which this repository does not install. */
@Injectable()
export class ConfigService {
  getOrThrow(name: string): string {
    const value = process.env[name];
    if (value === undefined) throw new TypeError(`The configuration has no ${name}.`);
    return value;
  }
}

@Module({ providers: [ConfigService], exports: [ConfigService] })
export class ConfigModule {}
