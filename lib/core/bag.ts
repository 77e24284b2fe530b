/**
 * A set without an order, for what comes and goes with every call. Adding and deleting take constant time, as each item
 * knows its place, which is -1 while it is in none.
 *
 * It is an array and no `Set`: the tables that a busy one leaves behind refer to each other, so that what they held
 * outlives several collections. With 64 calls in flight that was measured to be a third of the CPU of a call.
 */
export class Bag<Item extends { place: number }> {
  readonly items: Item[] = [];

  add(item: Item): void {
    item.place = this.items.push(item) - 1;
  }

  /** The last item takes the place of the deleted one. */
  delete(item: Item): void {
    const { place } = item;
    if (place < 0) return;
    item.place = -1;
    const last = this.items.pop() as Item;
    if (last === item) return;
    this.items[place] = last;
    last.place = place;
  }
}
