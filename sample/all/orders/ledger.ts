/**
 * Records which orders are charged. It stands for the database of a shop, and protects itself as a database
 * should. A lock keeps two charges apart. But a process that was paused may continue after it has lost its
 * lock, and write late. So each order has one row, which is written once, with the fence of the lock. A late
 * write changes nothing. A row that is written repeatedly would compare fences:
 * `UPDATE ... WHERE fence < $fence`.
 */
export abstract class Ledger {
  /** Returns the fence of the charge, or undefined where the order was not charged. */
  abstract find(orderId: string): Promise<string | undefined>;

  /**
   * Records the charge unless there is one. Returns the fence of the recorded charge, which differs if this
   * call came late.
   */
  abstract record(orderId: string, fence: string): Promise<string>;
}
