import { randomBytes } from 'node:crypto';
import { Injectable } from '@nestjs/common';
import { type NotShownReason, type PeekResult, SecretService } from 'nestjs-syncguard';
import { Sealer } from './sealer.js';

export interface NewSecret {
  text: string;
  views: number;
  ttlMs: number;
}

export type Revealed =
  | { ok: true; text: string; viewsRemaining: number | null; burned: boolean }
  | { ok: false; reason: NotShownReason };

@Injectable()
export class SecretsService {
  constructor(
    private readonly secrets: SecretService,
    private readonly sealer: Sealer,
  ) {}

  /** Returns the id for the link. */
  async create({ text, views, ttlMs }: NewSecret): Promise<string> {
    const id = randomBytes(16).toString('base64url');
    await this.secrets.create({
      id: this.sealer.nameOf(id),
      payload: this.sealer.seal(id, text),
      views,
      ttlMs,
    });
    return id;
  }

  /** Returns whether the secret is there, and how many views are left. Costs no view. */
  peek(id: string): Promise<PeekResult> {
    return this.secrets.peek(this.sealer.nameOf(id));
  }

  /** Returns the text. Costs a view. */
  async reveal(id: string): Promise<Revealed> {
    const secret = await this.secrets.view(this.sealer.nameOf(id));
    if (!secret.ok) return secret;
    const { payload, viewsRemaining, burned } = secret;
    return { ok: true, text: this.sealer.open(id, Buffer.from(payload)), viewsRemaining, burned };
  }
}
