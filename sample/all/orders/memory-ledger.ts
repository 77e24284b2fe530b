import { Ledger } from './ledger.js';

const MAX_ORDERS = 10_000;

/** Keeps the 10,000 orders that were used last, in this process only. A real app uses a database. */
export class MemoryLedger extends Ledger {
  readonly #fences = new Map<string, string>();

  override find(orderId: string): Promise<string | undefined> {
    const fence = this.#fences.get(orderId);
    if (fence !== undefined) this.#keep(orderId, fence);
    return Promise.resolve(fence);
  }

  override record(orderId: string, fence: string): Promise<string> {
    const standing = this.#fences.get(orderId) ?? fence;
    this.#keep(orderId, standing);
    return Promise.resolve(standing);
  }

  /** Stores the order as the newest one, and removes the oldest one when there are too many. */
  #keep(orderId: string, fence: string): void {
    this.#fences.delete(orderId);
    this.#fences.set(orderId, fence);
    const [oldest] = this.#fences.keys();
    if (this.#fences.size > MAX_ORDERS && oldest !== undefined) this.#fences.delete(oldest);
  }
}
