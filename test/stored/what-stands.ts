import type { Redis } from 'ioredis';

const escaped = (char: string): string => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`;

/** Text in quotes, with escapes for what nobody would see, and `x{512}` for a long run of one character. */
export const inShort = (text: string): string =>
  `'${text.replace(/[\p{Cc}\p{M}]/gu, escaped).replace(/(.)\1{19,}/gu, (run, char: string) => `${char}{${run.length}}`)}'`;

/** Bytes that are no text are shown in hex. */
function shown(bytes: Buffer): string {
  const text = bytes.toString();
  return Buffer.from(text).equals(bytes) ? inShort(text) : `hex ${bytes.toString('hex')}`;
}

const pairsOf = (list: readonly Buffer[]): [Buffer, Buffer][] =>
  list.flatMap((first, i) => (i % 2 === 0 ? [[first, list[i + 1] as Buffer] as [Buffer, Buffer]] : []));

async function valueOf(redis: Redis, key: string, type: string): Promise<string[]> {
  switch (type) {
    case 'string':
      return [shown((await redis.getBuffer(key)) as Buffer)];
    case 'hash':
      return pairsOf((await redis.callBuffer('HGETALL', key)) as Buffer[])
        .map(([field, value]) => `${shown(field)}: ${shown(value)}`)
        .sort();
    case 'zset':
      return pairsOf(await redis.zrangeBuffer(key, '0', '-1', 'WITHSCORES')).map(
        ([member, score]) => `${String(score)}: ${shown(member)}`,
      );
    default:
      throw new Error(`A key of type ${type} is new: say here how it is shown.`);
  }
}

/** Every key on a server whose clock stands still: its name, type, TTL and value. Two runs of one thing give one text. */
export async function whatStands(redis: Redis): Promise<string> {
  const keys = (await redis.keys('*')).sort();
  const all = await Promise.all(
    keys.map(async (key) => {
      const [type, ttlMs] = [await redis.type(key), await redis.pttl(key)];
      const value = await valueOf(redis, key, type);
      const head = `${shown(Buffer.from(key))} ${type}, ${ttlMs < 0 ? 'for ever' : `${ttlMs} ms`}`;
      return [head, ...value.map((line) => `    ${line}`)].join('\n');
    }),
  );
  return all.join('\n');
}
