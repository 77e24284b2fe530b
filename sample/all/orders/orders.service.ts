import { setTimeout as sleep } from 'node:timers/promises';
import { Injectable } from '@nestjs/common';
import { Lock, type LockContext, WithLock } from 'nestjs-syncguard';
import { Ledger } from './ledger.js';

/** How long a charge takes. Long enough to see other calls wait. */
const CHARGE_MS = 300;
/** And of an order whose id begins with "slow", which stands for a provider that does not answer. */
const SLOW_MS = 120_000;

export interface Payment {
  orderId: string;
  /**
   * The fence of the lock under which the order was charged. It is the same in every answer about the order.
   */
  fence: string;
  /** True if this call has charged the order. */
  charged: boolean;
}

@Injectable()
export class OrdersService {
  constructor(private readonly ledger: Ledger) {}

  /** Charges an order that was not charged before. Calls for one order run one after the other. */
  @WithLock('order:{0}')
  async pay(orderId: string, @Lock() lock?: LockContext): Promise<Payment> {
    const chargedBefore = await this.ledger.find(orderId);
    if (chargedBefore) return { orderId, fence: chargedBefore, charged: false };

    const chargeMs = orderId.startsWith('slow') ? SLOW_MS : CHARGE_MS;
    // An operator may take the lock away, which ends the wait.
    await sleep(chargeMs, undefined, { signal: lock!.signal }).catch(() => {});
    lock!.assertHeld(); // This is the last point at which the charge can be stopped.
    const fence = await this.ledger.record(orderId, lock!.fence);
    return { orderId, fence, charged: fence === lock!.fence };
  }
}
