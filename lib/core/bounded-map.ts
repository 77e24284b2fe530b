/** A map of at most so many entries. A new one takes the place of the one that has stood there for longest. */
export class BoundedMap<Value> extends Map<string, Value> {
  constructor(private readonly most: number) {
    super();
  }

  override set(key: string, value: Value): this {
    if (this.size >= this.most && !this.has(key)) this.delete(this.keys().next().value as string);
    return super.set(key, value);
  }
}
