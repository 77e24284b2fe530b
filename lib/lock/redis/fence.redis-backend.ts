import { clientKeyPrefix } from '../../redis/redis.client.js';
import { hashTag } from '../../redis/redis.keys.js';
import { slotOfKey, tagOfKey } from '../../redis/redis.slots.js';
import type { ScriptRunner } from '../../script/script-runner.js';
import { SyncGuardError } from '../../core/errors.js';
import type { CallOptions } from '../../core/validate.js';
import type { FenceBackend } from '../fence.backend.js';
import type { FencedWrite, FenceResult } from '../fence.types.js';
import { applyAndSetScript, applyFenceScript, getFencedScript } from './fence.scripts.js';

const TAG_LENGTH = 22;

export interface RedisFenceBackendConfig {
  readonly keyPrefix: string;
  /** In the slotted layout a key that is set must share its resource's slot, also where one server has all slots. */
  readonly keyLayout: 'spec' | 'slotted';
}

/** The last fences of resources on Redis. */
export class RedisFenceBackend implements FenceBackend {
  constructor(
    private readonly runner: ScriptRunner,
    private readonly config: RedisFenceBackendConfig,
  ) {}

  apply({ resource, fence, lockId, set, signal }: FencedWrite): Promise<FenceResult> {
    const guard = this.#guardOf(resource);
    if (!set) return this.runner.run(applyFenceScript, { guard }, { fence, lockId }, { signal });
    if (this.config.keyLayout === 'slotted') this.#expectOneSlot(guard, set.key);
    const keys = { guard, target: set.key };
    return this.runner.run(applyAndSetScript, keys, { fence, lockId, value: set.value }, { signal });
  }

  get(key: string, { signal }: CallOptions): Promise<string | null> {
    return this.runner.run(getFencedScript, { target: key }, {}, { signal });
  }

  /**
   * A key in the slot of the resource's own name, so that a value under that name can be written with it. A name that has braces and
   * no tag would name another slot here than alone.
   */
  #guardOf(resource: string): string {
    const tag = tagOfKey(resource) ?? (/[{}]/.test(resource) ? hashTag(resource, TAG_LENGTH) : resource);
    return `${this.config.keyPrefix}/fenced:{${tag}}:${hashTag(resource, TAG_LENGTH)}`;
  }

  #expectOneSlot(guard: string, key: string): void {
    const prefix = clientKeyPrefix(this.runner.client);
    if (slotOfKey(prefix + guard) === slotOfKey(prefix + key)) return;
    throw new SyncGuardError({
      code: 'InvalidArgument',
      message: 'In the slotted layout, which Clusters need, set.key must be in the slot of the resource.',
      hint: "Use one name for both, or put the same text in braces into both: resource '{order:7}' and key '{order:7}:state'.",
    });
  }
}
