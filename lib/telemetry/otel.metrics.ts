import {
  type Attributes,
  type Meter,
  type MeterProvider,
  metrics,
  type ObservableResult,
} from '@opentelemetry/api';
import type { LimitEvent, LockEvent, OnceEvent, SpendingEvent, SyncGuardEvent } from './telemetry.types.js';

/** How many values an attribute may have. The names of policies and the types of scopes may come from anywhere. */
const MAX_VALUES = 100;
const REST = 'other';
/** Follows the name of a policy that is tried. */
const SHADOW = ' shadow';

const CALL_SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5];
const LOCK_SECONDS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300];

/** Events that tell more than a call of the backend does. The calls have events of their own. */
const TOLD_BESIDES = new Set([
  ...['lock lock', 'lock forced', 'limit forced', 'budget forced', 'once forced'],
  ...['budget expired', 'budget quarantined', 'budget cost', 'budget threshold', 'budget run'],
  ...['once lost', 'once uncertain', 'once run'],
]);

/** The faults that mean that Redis does not answer, unless this process was too busy to hear it. */
const OUTAGES = new Set(['ServiceUnavailable', 'NetworkTimeout']);

/** What the end of a call that is answered once counts as. A claim that is refused counts by its reason. */
const ONCE_RESULTS: { readonly [Type in OnceEvent['type']]?: string } = {
  complete: 'completed',
  fail: 'failed',
  withdraw: 'withdrawn',
  replay: 'replayed',
};

/** Turns events into metrics. */
export class OtelMetrics {
  readonly #given: MeterProvider | undefined;
  #provider: MeterProvider | undefined;
  #instruments!: ReturnType<typeof instrumentsOf>;
  readonly #state = new State();
  readonly #operation = bounded();
  readonly #errorType = bounded();
  readonly #policy = bounded();
  readonly #scopeType = bounded();
  readonly #onceResult = bounded();

  constructor(given: MeterProvider | undefined) {
    this.#given = given;
    this.#follow();
  }

  record(event: SyncGuardEvent): void {
    this.#follow();
    this.#call(event);
    switch (event.feature) {
      case 'lock':
        return this.#lock(event as LockEvent);
      case 'limit':
        return this.#limit(event as LimitEvent);
      case 'budget':
        return this.#budget(event as SpendingEvent);
      case 'once':
        return this.#once(event as OnceEvent);
      case 'secret':
        return;
    }
  }

  /** The API has no meter that goes over to a provider which is registered later, so the provider is looked up each time. */
  #follow(): void {
    const provider = this.#given ?? metrics.getMeterProvider();
    if (provider === this.#provider) return;
    this.#instruments = instrumentsOf(provider.getMeter('nestjs-syncguard'), this.#state);
    this.#provider = provider;
  }

  #call(event: SyncGuardEvent): void {
    const { feature, type, code, reason, durationMs } = event;
    const name = `${feature} ${type}`;
    if (TOLD_BESIDES.has(name) || code === 'InvalidArgument' || isFromThisProcess(event)) return;
    const isOutage = code !== undefined && OUTAGES.has(code);
    if (!isOutage) this.#state.isOutage = false;
    else if (reason !== 'loop') this.#state.isOutage = true;
    this.#instruments.calls.record(durationMs / 1_000, {
      'syncguard.operation': this.#operation(`${feature}.${type}`),
      ...this.#failed(code),
    });
  }

  #lock({ type, code, reason, durationMs, heldMs }: LockEvent): void {
    if (heldMs !== undefined && code === undefined) this.#instruments.held.record(heldMs / 1_000);
    if (type !== 'lock') return;
    if (reason === 'lost') this.#state.lost.add(1);
    else this.#instruments.waits.record(durationMs / 1_000, this.#failed(code));
  }

  /** A call that threw has no decision. Where the policy counts by itself then, it has an event of its own. */
  #limit({ type, result, code, policy = '' }: LimitEvent): void {
    if (type !== 'check' || code !== undefined) return;
    const isShadow = policy.endsWith(SHADOW);
    const name = isShadow ? policy.slice(0, -SHADOW.length) : policy;
    const decision = result === 'ok' ? 'allowed' : 'denied';
    this.#state.decisions.add(1, this.#policy(name), isShadow ? `shadow_${decision}` : decision);
  }

  #budget({ reason, spent, scopeTypes = [] }: SpendingEvent): void {
    for (const type of scopeTypes) {
      if (spent !== undefined) this.#state.spent.add(spent, this.#scopeType(type));
      else if (reason === 'exceeded') this.#state.refused.add(1, this.#scopeType(type));
    }
  }

  #once({ type, result, code, reason }: OnceEvent): void {
    if (code !== undefined) return;
    const end = ONCE_RESULTS[type];
    const name = type === 'claim' ? reason : end && (result === 'ok' ? end : 'lost');
    if (name !== undefined) this.#state.runs.add(1, this.#onceResult(name));
  }

  #failed(code: string | undefined): Attributes | undefined {
    return code === undefined ? undefined : { 'error.type': this.#errorType(code) };
  }
}

/**
 * The sums of a counter. They are kept here and told when they are collected: to add to a counter of the API takes longer than
 * all that is done here. So what was counted before a provider was registered is not lost either.
 */
class Sums {
  readonly #names: readonly string[];
  readonly #sums = new Map<string, { sum: number; readonly attributes: Attributes }>();

  /** @param names - of the attributes. A counter without any begins with 0, so that its first step is seen. */
  constructor(...names: string[]) {
    this.#names = names;
    if (names.length === 0) this.add(0);
  }

  add(value: number, ...values: string[]): void {
    const id = values.join();
    const known = this.#sums.get(id);
    if (known) known.sum += value;
    else this.#sums.set(id, { sum: value, attributes: this.#attributesOf(values) });
  }

  readonly observe = (result: ObservableResult): void => {
    for (const { sum, attributes } of this.#sums.values()) result.observe(sum, attributes);
  };

  #attributesOf(values: readonly string[]): Attributes {
    return Object.fromEntries(this.#names.map((name, i) => [name, values[i]]));
  }
}

/** What is told when it is collected. */
class State {
  isOutage = false;
  readonly lost = new Sums();
  readonly decisions = new Sums('syncguard.limit.policy', 'syncguard.limit.result');
  readonly spent = new Sums('syncguard.budget.scope_type');
  readonly refused = new Sums('syncguard.budget.scope_type');
  readonly runs = new Sums('syncguard.once.result');
}

function instrumentsOf(meter: Meter, state: State) {
  const seconds = (name: string, description: string, explicitBucketBoundaries: number[]) =>
    meter.createHistogram(name, { unit: 's', description, advice: { explicitBucketBoundaries } });
  const counter = (name: string, { observe }: Sums, description: string) =>
    meter.createObservableCounter(name, { description }).addCallback(observe);
  meter
    .createObservableGauge('syncguard.outage', {
      description: '1 from a call that Redis did not answer until one that it answered, else 0.',
    })
    .addCallback((outage) => outage.observe(state.isOutage ? 1 : 0));
  counter('syncguard.lock.lost', state.lost, 'Locks that were lost while they were held.');
  counter('syncguard.limit.decisions', state.decisions, 'Calls that limits have decided about.');
  counter('syncguard.budget.spent', state.spent, 'What was spent.');
  counter('syncguard.budget.refused', state.refused, 'Calls that were refused since a limit had no room.');
  counter('syncguard.once.runs', state.runs, 'Calls that are answered once, by what became of them.');
  return {
    waits: seconds('syncguard.lock.wait.duration', 'How long calls have waited for a lock.', LOCK_SECONDS),
    held: seconds('syncguard.lock.held.duration', 'How long locks were held.', LOCK_SECONDS),
    calls: seconds('syncguard.redis.call.duration', 'How long the backend took to answer.', CALL_SECONDS),
  };
}

/** The deny cache, or the counts of this process while Redis is away. */
const isFromThisProcess = (event: SyncGuardEvent): boolean => 'fromDenyCache' in event || 'degraded' in event;

/** Returns a function that lets the first values through and calls all others by one name. */
function bounded(): (value: string) => string {
  const known = new Set<string>();
  return (value) => {
    if (known.has(value)) return value;
    if (known.size === MAX_VALUES) return REST;
    known.add(value);
    return value;
  };
}
