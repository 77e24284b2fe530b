import { setTimeout as sleep } from 'node:timers/promises';
import { Injectable } from '@nestjs/common';
import { Lock, type LockContext, WithLock } from 'nestjs-syncguard';
import { Ledger } from './ledger.js';

/** As long as a card takes: long enough to see the others wait. */
const CHARGE_MS = 300;

export interface Payment {
  orderId: string;
  /** Of the lock that the order was charged under: the same in every answer about the order. */
  fence: string;
  /** Whether this call has charged it. */
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

    await sleep(CHARGE_MS);
    lock!.assertHeld(); // the last moment to turn back: from here on somebody pays
    const fence = await this.ledger.record(orderId, lock!.fence);
    return { orderId, fence, charged: fence === lock!.fence };
  }
}
