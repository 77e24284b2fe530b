import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';

const IV_BYTES = 12;
const TAG_BYTES = 16;

/**
 * Encrypts secrets with keys that Redis never sees. Each key is derived from the app's own key and the id in
 * the link, and neither is stored. An attacker with Redis or a backup has neither of them. An attacker who
 * also has the app's key still lacks the links.
 *
 * The alternative is to encrypt in the reader's browser, with the key after the `#` of the link. Encrypting
 * here lets `curl` and any other client create and open a secret. The price is that the app sees the text. If
 * your readers do not trust the app, encrypt in the browser. The calls of SyncGuard stay the same.
 */
export class Sealer {
  /** @param appKey - 32 random bytes, the same in all processes of the app */
  constructor(private readonly appKey: Buffer) {}

  seal(id: string, text: string): Buffer {
    const iv = randomBytes(IV_BYTES);
    const cipher = createCipheriv('aes-256-gcm', this.#derive(id, 'key'), iv);
    const sealed = Buffer.concat([cipher.update(text, 'utf8'), cipher.final()]);
    return Buffer.concat([iv, cipher.getAuthTag(), sealed]);
  }

  /** @throws Error when the bytes are not the result of `seal` for this id */
  open(id: string, bytes: Buffer): string {
    const decipher = createDecipheriv('aes-256-gcm', this.#derive(id, 'key'), bytes.subarray(0, IV_BYTES));
    decipher.setAuthTag(bytes.subarray(IV_BYTES, IV_BYTES + TAG_BYTES));
    const sealed = bytes.subarray(IV_BYTES + TAG_BYTES);
    return Buffer.concat([decipher.update(sealed), decipher.final()]).toString('utf8');
  }

  /**
   * Returns the name under which the secret is stored. With another app key the name differs, so the secret
   * is not found, and no view is lost.
   */
  nameOf(id: string): string {
    return this.#derive(id, 'name').toString('base64url');
  }

  #derive(id: string, purpose: 'key' | 'name'): Buffer {
    return Buffer.from(hkdfSync('sha256', this.appKey, id, purpose, 32));
  }
}
