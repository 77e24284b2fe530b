import { type Facts, type Finding, groupBy, type OnceBody, type Operation } from './facts.js';

/** What a call may come to beside an answer. `Declined` is thrown by bodies. */
const REFUSALS: ReadonlySet<string> = new Set([
  ...['OnceInProgress', 'OncePayloadMismatch', 'OutcomeUnknown', 'OnceLost', 'Declined'],
  ...['ServiceUnavailable', 'NetworkTimeout'],
]);

/** Calls that are answered once: no body beside another one or after a kept result, and one answer for all. */
export function checkAnswers(facts: Facts): Finding {
  const finding: Finding = { violations: [], excused: [] };
  const calls = facts.operations.filter(({ call }) => call.op === 'once');
  const bodies = groupBy(facts.bodies, ({ on }) => on);
  for (const [key, all] of groupBy(calls, ({ call }) => call.on))
    new KeyCheck(key, all, bodies.get(key) ?? [], facts, finding).run();
  return finding;
}

/** The check of one key. */
class KeyCheck {
  readonly #byFence: readonly OnceBody[];

  constructor(
    private readonly key: string,
    private readonly calls: readonly Operation[],
    bodies: readonly OnceBody[],
    private readonly facts: Facts,
    private readonly finding: Finding,
  ) {
    const replayed = new Set(
      calls.flatMap(({ done }) => (done?.answer?.replayed ? [done.answer.value] : [])),
    );
    this.#byFence = bodies
      .map((body) => ({ ...body, isKept: body.isKept || replayed.has(body.value) }))
      .sort((a, b) => a.fence.localeCompare(b.fence));
  }

  run(): void {
    for (const [i, body] of this.#byFence.entries())
      for (const later of this.#byFence.slice(i + 1)) this.#checkPair(body, later);
    for (const body of this.#byFence)
      if (body.isLate)
        this.#found(`the body ${nameOf(body)} began without a lease`, body.claimedMs, body.atMs);
    for (const each of this.calls) this.#checkAnswer(each);
    this.#checkTimes();
  }

  /** @param later - the one with the higher fence */
  #checkPair(body: OnceBody, later: OnceBody): void {
    const found = (what: string): void =>
      this.#found(what, Math.min(body.claimedMs, later.claimedMs), Math.max(body.atMs, later.atMs));
    const names = `${nameOf(body)} and ${nameOf(later)}`;
    if (body.fence === later.fence) found(`the bodies ${names} have one fence`);
    if (body.attempt >= later.attempt) found(`the fence rises from ${names}, and the attempt does not`);
    if (later.atMs < body.atMs && later.atMs < body.claimedMs)
      found(`the fence falls from ${nameOf(later)} to ${nameOf(body)}`);
    if (later.atMs < body.heldUntilMs && body.atMs < later.heldUntilMs) found(`two bodies at once: ${names}`);
    if (body.isKept && later.isKept) found(`two results: ${names}`);
    if (body.isKept) found(`the body ${nameOf(later)} came after the kept result of ${nameOf(body)}`);
    // Only one that is known to have failed is followed by another one.
    if (this.key.startsWith('refuse') && !(body.failedMs !== undefined && body.failedMs <= later.atMs))
      found(`the body ${nameOf(later)} came after ${nameOf(body)}, whose outcome nobody knew`);
  }

  #checkAnswer({ call, done }: Operation): void {
    if (done?.error !== undefined && !REFUSALS.has(done.error))
      this.finding.violations.push(`${this.key}: a call ended by ${done.error}.`);
    if (done?.error === 'OutcomeUnknown' && !this.key.startsWith('refuse'))
      this.finding.violations.push(`${this.key}: OutcomeUnknown, where the next call is to run.`);
    if (!done?.answer) return;
    const { value, attempt } = done.answer;
    const body = this.#byFence.find((each) => each.value === value);
    if (!body) this.finding.violations.push(`${this.key}: an answer that no body has made: ${value}.`);
    else if (body.payload !== call.payload || body.attempt !== attempt)
      this.finding.violations.push(`${this.key}: an answer to another request, or of another attempt.`);
  }

  /** A result is kept once, so all that get it again are told the same time. */
  #checkTimes(): void {
    const times = new Map<string, number>();
    for (const { done } of this.calls) {
      if (!done?.answer?.replayed) continue;
      const { value, completedAtMs } = done.answer;
      if ((times.get(value) ?? completedAtMs) !== completedAtMs)
        this.#found('one result was kept at two times', this.calls[0]?.call.atMs ?? 0, done.atMs);
      times.set(value, completedAtMs);
    }
  }

  #found(what: string, fromMs: number, toMs: number): void {
    const { finding, facts } = this;
    (facts.isExcused(fromMs, toMs) ? finding.excused : finding.violations).push(`${this.key}: ${what}.`);
  }
}

const nameOf = ({ worker, n, attempt }: OnceBody): string => `${worker}:${n} (attempt ${attempt})`;
