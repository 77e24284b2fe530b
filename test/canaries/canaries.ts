import type { Random } from '../chaos/random.js';

/** Where a canary may be seen. */
export type Sink = 'logs' | 'errors' | 'inspect' | 'events' | 'http' | 'server';

export interface Canary {
  /** What is searched: letters and digits only, so that it survives encodings. */
  readonly mark: string;
  readonly place: string;
  readonly mayBeIn: readonly Sink[];
}

/** What private texts look like: each has a mark in it. */
const FORMS: readonly ((mark: string) => string)[] = [
  (mark) => mark,
  (mark) => `${mark}@example.org`,
  (mark) => `correct horse ${mark} staple`,
  (mark) => `{"password":"${mark}"}`,
  (mark) => `redis://:${mark}@10.0.0.1:6379`,
  (mark) => `${mark}'"\\ %41 \u00e4 \u{1f426}`,
  (mark) => `receipt.${'a'.repeat(22)}.${mark.slice(0, 22)}`,
  (mark) => `${mark}${'x'.repeat(80)}`,
];

/** Puts a canary into each place, and finds those that were seen where they should not be. */
export class Aviary {
  readonly #canaries: Canary[] = [];

  constructor(private readonly random: Random) {}

  /** A text for a place, in a random form. */
  text(place: string, ...mayBeIn: Sink[]): string {
    return this.random.pick(FORMS)(this.mark(place, ...mayBeIn));
  }

  /** The mark alone, for places that take letters and digits only. */
  mark(place: string, ...mayBeIn: Sink[]): string {
    const digits = () => this.random.between(0, 0xffffff).toString(36).padStart(5, '0');
    const mark = `cnry${digits()}${digits()}${digits()}0`;
    this.#canaries.push({ mark, place, mayBeIn });
    return mark;
  }

  /** A text that something else has made, such as a receipt. */
  keep<Text extends string>(place: string, text: Text): Text {
    this.#canaries.push({ mark: text, place, mayBeIn: [] });
    return text;
  }

  /** Says each canary that is in the text of a sink and should not be, with what stands around it. */
  seen(sink: Sink, text: string): string[] {
    return this.#canaries
      .filter(({ mayBeIn }) => !mayBeIn.includes(sink))
      .flatMap(({ mark, place }) =>
        [mark, Buffer.from(mark).toString('hex'), spacedHex(mark), Buffer.from(mark).toString('base64url')]
          .map((form) => text.indexOf(form))
          .filter((at) => at >= 0)
          .map((at) => `${place}: in ${sink}: ...${text.slice(Math.max(0, at - 120), at + 60)}...`),
      );
  }
}

/** As `util.inspect` shows a Buffer. */
const spacedHex = (text: string): string =>
  Buffer.from(text)
    .toString('hex')
    .replace(/..(?=.)/g, '$& ');
