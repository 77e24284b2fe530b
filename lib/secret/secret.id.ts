import { createHash, randomBytes } from 'node:crypto';

const RECEIPT = /^receipt\.([\w-]{22})\.([\w-]{22})$/;

/** Returns 16 random bytes as 22 base64url characters. */
export const createId = (): string => randomBytes(16).toString('base64url');

/**
 * Returns the tag of an id or a viewId: 128 bits of its SHA-256. Tags replace ids in keys, records, receipts
 * and logs. So the backend never has an id, which would open the secret.
 */
export const tagOf = (id: string): string => createHash('sha256').update(id).digest('base64url').slice(0, 22);

/**
 * Returns a receipt. It names the secret by its tag and not by its id, and the proof keeps it from being
 * forged.
 */
export const formatReceipt = (tag: string, proof: string): string => `receipt.${tag}.${proof}`;

export interface Receipt {
  readonly tag: string;
  readonly proof: string;
}

export function parseReceipt(text: unknown): Receipt | undefined {
  const [, tag, proof] = (typeof text === 'string' && RECEIPT.exec(text)) || [];
  return tag && proof ? { tag, proof } : undefined;
}
