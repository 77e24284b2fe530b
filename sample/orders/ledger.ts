/**
 * Which orders are charged. It stands for a shop's database, and guards itself as one would: a lock keeps two
 * charges apart, but a process that stood still may go on, and write under a lock that it has lost by then. So
 * an order has one row, written once, with the fence of the lock; whoever comes late changes nothing. A row that
 * is written again and again would compare: `UPDATE ... WHERE fence < $fence`.
 */
export abstract class Ledger {
  /** The fence that the order was charged under; undefined when it was not charged. */
  abstract find(orderId: string): Promise<string | undefined>;

  /** Writes the charge down unless there is one. Gives the fence that stands then: another one if we came late. */
  abstract record(orderId: string, fence: string): Promise<string>;
}
