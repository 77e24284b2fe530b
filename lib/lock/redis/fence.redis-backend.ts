import { clientKeyPrefix } from '../../redis/redis.client.js';
import { hashTag } from '../../redis/redis.keys.js';
import { slotOfKey, tagOfKey } from '../../redis/redis.slots.js';
import type { ScriptRunner } from '../../script/script-runner.js';
import { SyncGuardError } from '../../core/errors.js';
import type { CallOptions } from '../../core/validate.js';
import type { FenceBackend, FencedWrite, FenceResult } from '../fence.backend.js';
import { applyAndSetScript, applyFenceScript, getFencedScript } from './fence.scripts.js';

const TAG_LENGTH = 22;

export interface RedisFenceBackendConfig {
  readonly keyPrefix: string;
  /** In the slotted layout a key that is set must share its resource's slot, also if one server has all slots. */
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
   * Returns the key of the last fence. It is in the slot of a key that is named like the resource, so that one script
   * can write both. A name with braces but without a tag would be in another slot within a longer key, so the tag is
   * its hash.
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
