/** What a hostile client can vary, and what it may meet. Each composition takes one of each. */
export const AXES = {
  transport: ['http1', 'keep-alive', 'pipelined', 'http2'],
  behaviour: [
    'reads all',
    'reads nothing',
    'hangs up before',
    'hangs up while',
    'hangs up after',
    'cancels',
    'half-closes',
    'trickles its body',
  ],
  judge: ['guard', 'false', 'pipe', 'handler', 'error', 'response', 'interceptor', 'filter', 'own'],
  adapter: ['express', 'fastify'],
  backend: ['memory', 'redis', 'slow redis'],
  pause: ['none', 'before the limit', 'in the judge', 'a lapse'],
  between: ['nothing', 'a success elsewhere'],
  spelling: ['as it is', 'capitals', 'full width', 'circled', 'accents', 'invisible', 'blanks'],
  // Values that name no account have one count for all, which is soon full. So most clients send a text, or a list of one.
  form: ['text', 'text', 'text', 'list of one', 'list of one', 'list in a list', 'object', 'twice in a form'],
  path: ['one', 'several'],
} as const;

export type Composition = { readonly [Axis in keyof typeof AXES]: (typeof AXES)[Axis][number] };

/** mulberry32: a seed repeats the run. */
export function randomFrom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return Math.floor((((t ^ (t >>> 14)) >>> 0) / 2 ** 32) * below);
  };
}

export function compose(random: (below: number) => number): Composition {
  for (;;) {
    const picked = Object.fromEntries(
      Object.entries(AXES).map(([axis, values]) => [axis, values[random(values.length)]]),
    ) as Composition;
    if (isPossible(picked)) return picked;
  }
}

/** Express 5 does not run on HTTP/2. Only streams are cancelled, and only sockets half-closed. */
function isPossible({ transport, adapter, behaviour }: Composition): boolean {
  if (transport === 'http2') return adapter === 'fastify' && behaviour !== 'half-closes';
  return behaviour !== 'cancels';
}

/** Counts the pairs of values that the compositions have had, of all that are possible. */
export class CoveredPairs {
  readonly #seen = new Set<string>();

  add(composition: Composition): void {
    for (const pair of pairsOf(composition)) this.#seen.add(pair);
  }

  get text(): string {
    const random = randomFrom(1);
    const possible = new Set(Array.from({ length: 20_000 }, () => pairsOf(compose(random))).flat());
    return `${this.#seen.size} of ${possible.size} pairs`;
  }
}

function pairsOf(composition: Composition): string[] {
  const values = Object.entries(composition).map(([axis, value]) => `${axis}: ${value}`);
  return values.flatMap((one, i) => values.slice(i + 1).map((other) => `${one}, ${other}`));
}
