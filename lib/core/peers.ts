import type { CallOptions } from './validate.js';

/** The other processes of an app, which can be asked. Questions and answers are values that JSON can say. */
export interface Peers {
  /** Asks all of them. Returns the answers that come within 300 ms. */
  ask(question: unknown, options?: CallOptions): Promise<readonly unknown[]>;
  /** Answers questions of others, or only hears them. */
  answerBy(answer: (question: unknown) => unknown): void;
}
