/** Which identities are meant: these, or those for which it returns true. */
export type Meant = readonly string[] | ((identity: string) => boolean);

/** What is remembered of identities in this process. At the bound it forgets what has been remembered for longest. */
export class Remembered<Value> extends Map<string, Value> {
  constructor(private readonly most = 10_000) {
    super();
  }

  override set(identity: string, value: Value): this {
    if (this.size >= this.most) this.delete(this.keys().next().value as string);
    return super.set(identity, value);
  }

  forget(meant: Meant): void {
    const identities = typeof meant === 'function' ? [...this.keys()].filter(meant) : meant;
    for (const identity of identities) this.delete(identity);
  }
}
