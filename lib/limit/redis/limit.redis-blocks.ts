import { type Page, pageOf, type ResolvedPageOptions } from '../../core/page.js';
import { unlessForeign } from '../../redis/redis.errors.js';
import type { ScriptRunner } from '../../script/script-runner.js';
import { escapeGlob, walk } from '../../script/walk.js';
import type { BlockedPage, CallOptions } from '../limit.backend.js';
import type { BlockedKey, BlockTag } from '../limit.types.js';
import { isKeyTag, isNamed } from '../whose.js';
import { blockedScript } from './blocked.scripts.js';
import { unblockScript } from './limit.scripts.js';

const MOST_ITEMS = 1_000;
/** The name of a key that a block may stand in. */
const NAME = /:(?:block|fixed):\{([\w-]{16})\}$/;

type KeysOf<Script extends { readonly keys: readonly string[] }> = Record<Script['keys'][number], string>;
/** A block, and the tag in the names of its keys. */
type Found = [keyTag: string, item: BlockedKey];

/** What an operator sees of the blocks on Redis, and ends of them. They are looked up when he asks. */
export class RedisBlocks {
  constructor(
    private readonly runner: ScriptRunner,
    private readonly prefix: string,
    private readonly keysUnder: (keyTag: string) => KeysOf<typeof unblockScript>,
  ) {}

  async blocked({ policy, ...page }: BlockedPage): Promise<Page<BlockedKey>> {
    const { found, cursor } = await this.#walk(page);
    const items = found.map(([, item]) => item).filter((item) => isNamed(item.policy, policy));
    return pageOf(items, cursor);
  }

  /** The hash of a key does not lead to the names of its Redis keys. So all blocks are walked over. */
  async unblockTagged({ tag, policy }: BlockTag, options: CallOptions): Promise<number> {
    const { signal } = options;
    let cursor: string | undefined;
    let unblocked = 0;
    do {
      const page = isKeyTag(tag)
        ? { found: await this.#blocksUnder([tag], signal), cursor: undefined }
        : await this.#walk({ cursor, limit: MOST_ITEMS, signal });
      const meant = page.found.filter(
        ([keyTag, item]) => (item.tag === tag || keyTag === tag) && isNamed(item.policy, policy),
      );
      const ended = meant.map(([keyTag]) =>
        this.runner.run(unblockScript, this.keysUnder(keyTag), { shortWindowMs: 0 }, options),
      );
      unblocked += (await Promise.all(ended)).filter(({ blocked }) => blocked).length;
      ({ cursor } = page);
    } while (cursor !== undefined);
    return unblocked;
  }

  /** Finds blocks page by page. Fixed windows are walked over too, as their blocks stand in them. */
  async #walk(page: ResolvedPageOptions): Promise<{ found: Found[]; cursor: string | undefined }> {
    const pattern = `${escapeGlob(this.prefix)}/abuse_limiter:[bf]*:{*}`;
    const { names, cursor } = await walk(this.runner, pattern, page);
    const tags = names.flatMap((name) => NAME.exec(name)?.[1] ?? []);
    return { found: await this.#blocksUnder(new Set(tags), page.signal), cursor };
  }

  async #blocksUnder(keyTags: Iterable<string>, signal: AbortSignal | undefined): Promise<Found[]> {
    const found = Array.from(keyTags, async (keyTag): Promise<Found[]> => {
      const block = await this.runner
        .run(blockedScript, this.keysUnder(keyTag), {}, { signal })
        .catch(unlessForeign);
      return block ? [[keyTag, { tag: keyTag, ...block }]] : [];
    });
    return (await Promise.all(found)).flat();
  }
}
