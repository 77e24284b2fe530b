import { Logger } from '@nestjs/common';
import type { Page } from '../core/page.js';
import { callOptions, type CallOptions, leavingAs } from '../core/validate.js';
import { type ByHand, byOf, type ForcedChange, tellForced } from '../telemetry/by-hand.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import { accountOf } from './accounts.js';
import type { Decisions } from './decisions.js';
import { keyOf, type LimitBackend, nameOf } from './limit.backend.js';
import { LimitError } from './limit.errors.js';
import type { BlockedKey, BlockedOptions, BlockTag } from './limit.types.js';
import { validateBlocked, validateBlockTag } from './limit.validate.js';
import { isTagged } from './whose.js';

const { checked, attributed } = leavingAs(LimitError.from);

/** What an operator asks and does. What these methods do is said at the service's methods. */
export class LimitOperators {
  readonly #logger = new Logger('SyncGuard');

  constructor(
    private readonly backend: LimitBackend,
    private readonly decisions: Decisions,
    private readonly emit: Emit | undefined,
  ) {}

  async blocked(options: BlockedOptions): Promise<Page<BlockedKey>> {
    const page = checked(() => validateBlocked(options));
    return attributed(this.backend.blocked(page));
  }

  async unblock(which: BlockTag, options: CallOptions & ByHand): Promise<{ unblocked: number }> {
    const [meant, { by, call }] = checked(() => [validateBlockTag(which), this.#checked(options)]);
    const unblocked = await this.#onAll(isTagged(meant), (backend) => [backend.unblockTagged(meant, call)]);
    this.#tell({ operation: 'unblock', keyHash: meant.tag, policy: meant.policy, by });
    return { unblocked };
  }

  async lift(accounts: readonly string[], options: CallOptions & ByHand): Promise<{ lifted: number }> {
    const { by, call } = checked(() => this.#checked(options));
    const isMeant = (identity: string): boolean => accounts.includes(accountOf(identity) ?? '');
    const lifted = await this.#onAll(isMeant, (backend) =>
      accounts.map((account) => backend.lift(account, call)),
    );
    this.tellForced('lift', accounts[0] as string, by);
    return { lifted };
  }

  tellForced(operation: ForcedChange['operation'], identity: string, by: string | undefined): void {
    this.#tell({ operation, key: keyOf(identity), policy: nameOf(identity), by });
  }

  #checked(options: CallOptions & ByHand) {
    const { signal, ...who } = callOptions(options, ['by']);
    return { by: byOf(who), call: this.decisions.callOptions(signal) };
  }

  /** The next decision may come from the backend, the fallback or the deny cache. So all three change. Returns a sum. */
  async #onAll(
    isMeant: (identity: string) => boolean,
    operate: (backend: LimitBackend) => Promise<number>[],
  ): Promise<number> {
    try {
      const changed = await this.decisions.outage.onAll(isMeant, operate);
      return changed.reduce((sum, each) => sum + each, 0);
    } finally {
      this.decisions.denyCache.forget(isMeant);
    }
  }

  #tell(change: Omit<ForcedChange, 'feature'>): void {
    tellForced({ feature: 'limit', ...change }, (line) => this.#logger.warn(line), this.emit);
  }
}
