import type { CallOptions } from '../core/validate.js';
import { type LockRecord, toLockInfo, toRawLockInfo } from './lock.record.js';
import type { LockInfo, LookupOptions, RawLockInfo } from './lock.types.js';
import { validateCall, validateKey, validateLockId, validateLookup } from './lock.validate.js';

/** A lock is found by one of its keys or by its id. */
export type Wanted = { readonly key: string } | { readonly lockId: string };

/** The part of the port that describes locks. It is the same in every backend that can find a record. */
export abstract class LockLookups {
  /** Returns the record of a live lock. */
  protected abstract find(wanted: Wanted, signal: AbortSignal | undefined): Promise<LockRecord | null>;

  async lookup(options: LookupOptions): Promise<LockInfo | null> {
    const record = await this.find(validateLookup(options), options.signal);
    return record && toLockInfo(record);
  }

  async getByKeyRaw(key: string, options: CallOptions = {}): Promise<RawLockInfo | null> {
    const record = await this.find({ key: validateKey(key) }, validateCall(options).signal);
    return record && toRawLockInfo(record);
  }

  async getByIdRaw(lockId: string, options: CallOptions = {}): Promise<RawLockInfo | null> {
    const record = await this.find({ lockId: validateLockId(lockId) }, validateCall(options).signal);
    return record && toRawLockInfo(record);
  }
}
