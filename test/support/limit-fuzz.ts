import 'reflect-metadata';
import { Body, Controller, HttpCode, Post, UnauthorizedException } from '@nestjs/common';
import fc from 'fast-check';
import { days, presets, RateLimit, SyncGuardModule } from 'nestjs-syncguard';
import { listen } from './adapters.js';

/** So many failures the presets let in of one address and account. */
const OF_ACCOUNT = 5;
/** And so many of one address, here. The presets say 50, which would take more requests a run. */
const OF_ADDRESS = 9;

const withFewer = (policies: readonly (typeof presets.login)[number][]): object[] =>
  policies.map((policy) =>
    policy.keyBy === 'ip' ? { ...policy, temp: { ...policy.temp, threshold: OF_ADDRESS } } : policy,
  );

let judged = 0;

function refuse(): never {
  judged++;
  throw new UnauthorizedException();
}

@Controller()
class Judges {
  @RateLimit('login')
  @Post('login')
  login(@Body() _body: unknown): void {
    refuse();
  }

  @RateLimit('otp')
  @Post('otp')
  otp(@Body() _body: unknown): void {
    refuse();
  }

  /** Says whether the parser takes a body. What it refuses reaches no limit, and judges no guess. */
  @HttpCode(200)
  @Post('parse')
  parse(@Body() _body: unknown): string {
    return 'taken';
  }
}

/** What a client sends, and how many of it are judged. */
export interface Sent {
  readonly type: 'application/json' | 'application/x-www-form-urlencoded';
  readonly text: string;
  /** Whether it surely names an account, or something in its place, so that it has a count of its own or of that. */
  readonly isCounted: boolean;
}

const NOISE = ['\u200b', '\u00ad', '\u0301', '\u3164', '\ufeff', '\0', ' ', '\ud800', '\udc00', '\u{e0001}'];
const TEXTS = [
  ':null:',
  '/undefined/',
  '[object Object]',
  '__proto__',
  'constructor',
  'a:b/c{d}',
  '%00',
  'ann@x.org',
];

/** Any units, with and without lone surrogates, and with what no one sees. */
const anyText = fc.oneof(
  fc
    .array(fc.integer({ max: 0xffff, min: 0 }), { maxLength: 20 })
    .map((units) => String.fromCharCode(...units)),
  fc.array(fc.constantFrom(...NOISE, ...TEXTS, 'é', 'ａ'), { maxLength: 8 }).map((pieces) => pieces.join('')),
  fc.constantFrom(...TEXTS),
  fc
    .tuple(fc.constantFrom(...NOISE, 'é'), fc.integer({ min: 1_000, max: 9_000 }))
    .map(([unit, n]) => unit.repeat(n)),
);

const scalar = fc.oneof(
  anyText,
  fc.boolean(),
  fc.integer(),
  fc.double(),
  fc.constantFrom(null, '', 0, -0, 1e21, 2 ** 53),
);

const nested = fc
  .tuple(
    fc.constantFrom(['[', ']'], ['{"a":', '}'], ['{"__proto__":', '}']),
    fc.integer({ min: 1, max: 9_000 }),
  )
  .map(([[open = '', close = ''], depth]) => `${open.repeat(depth)}"ann"${close.repeat(depth)}`);

/** A value as it stands in JSON. */
const jsonValue = fc.oneof(
  scalar.map((value) => JSON.stringify(value)),
  fc.constantFrom(...TEXTS, ...TEXTS.map((text) => `x${text}`)).map((value) => JSON.stringify(value)),
  fc.array(scalar, { maxLength: 4 }).map((value) => JSON.stringify(value)),
  fc.jsonValue({ maxDepth: 4 }).map((value) => JSON.stringify(value)),
  fc
    .dictionary(fc.oneof(anyText, fc.constantFrom(...TEXTS, 'in', 'length')), scalar, { maxKeys: 4 })
    .map((value) => JSON.stringify(value)),
  nested,
  fc.constantFrom(
    '1e400',
    '-0',
    '1E2',
    '"\\ud800"',
    '"\\u0000"',
    '{"toString":1}',
    '{"toJSON":null}',
    '[[]]',
    '[null]',
  ),
);

/** A text with a letter or digit counts as that, and all lists and objects count as one. The rest may be no account at all. */
function isCounted(value: unknown): boolean {
  const only: unknown = Array.isArray(value) && value.length === 1 ? value[0] : value;
  if (typeof only === 'string') return /[a-z0-9]/i.test(only);
  return only === null ? Array.isArray(value) : only !== undefined;
}

const jsonBody = fc
  .oneof(
    { weight: 8, arbitrary: jsonValue.map((value) => `{"email":${value}}`) },
    { weight: 2, arbitrary: fc.tuple(jsonValue, jsonValue).map(([a, b]) => `{"email":${a},"email":${b}}`) },
    { weight: 1, arbitrary: jsonValue.map((value) => `{"__proto__":{"email":${value}}}`) },
    { weight: 1, arbitrary: jsonValue },
  )
  .map((text): Sent => {
    const body = JSON.parse(text) as { email?: unknown } | null;
    const email = typeof body === 'object' && body && Object.hasOwn(body, 'email') ? body.email : undefined;
    return { type: 'application/json', text, isCounted: isCounted(email) };
  });

const formName = fc.constantFrom(
  'email',
  'email',
  'email[]',
  'email[a]',
  'email[0]',
  'email[__proto__]',
  'email[a][b][c][d][e][f][g]',
  '__proto__[email]',
  'x',
);
const formBody = fc
  .array(fc.tuple(formName, fc.oneof(anyText, fc.constant('ann@x.org'))), { minLength: 1, maxLength: 30 })
  .map((fields): Sent => {
    const text = fields
      .map(([name, value]) => `${name}=${encodeURIComponent(value.toWellFormed())}`)
      .join('&');
    const texts = fields.filter(([name]) => name === 'email').map(([, value]) => value);
    // Where brackets mean something, only the adapter knows what they make.
    const isPlain = fields.every(([name]) => name === 'email' || name === 'x');
    return {
      type: 'application/x-www-form-urlencoded',
      text,
      isCounted: isPlain && (texts.length > 1 || isCounted(texts[0])),
    };
  });

const anyBody = fc.oneof({ weight: 3, arbitrary: jsonBody }, { weight: 1, arbitrary: formBody });

/** One client: the body that it repeats, and others that it sends in between. */
const anyClient = fc.record({
  preset: fc.constantFrom('login', 'otp'),
  body: anyBody,
  others: fc.array(anyBody, { maxLength: 3 }),
});

export interface Fuzz {
  readonly clients: number;
  /** Bodies that the parser has taken, each of which has met a limit at least once. */
  readonly bodies: number;
  readonly requests: number;
  readonly refusedByParser: number;
}

/**
 * Sends bodies that nobody expects to routes whose handler refuses all. Each client has an address of its own. Whatever it
 * sends, all that is judged counts for its address, what names the same account counts together, and no answer is an
 * error that counts nowhere.
 */
export async function fuzzBodies(
  adapter: 'express' | 'fastify',
  seed: number,
  clients: number,
): Promise<Fuzz> {
  const limits = { login: withFewer(presets.login), otp: withFewer(presets.otp as never) } as never;
  const module = SyncGuardModule.forRoot({ limits, limit: { address: 'headers.x-address' } });
  const { app, url } = await listen(adapter, { imports: [module], controllers: [Judges] });
  const startMs = Date.now();
  let [skippedMs, ran, bodies, requests, refusedByParser] = [0, 0, 0, 0, 0];
  // It stands still otherwise: a process that is held up for a minute would let windows pass.
  const clock = jest.spyOn(Date, 'now').mockImplementation(() => startMs + skippedMs);

  const run = async ({
    preset,
    body,
    others,
  }: {
    preset: string;
    body: Sent;
    others: Sent[];
  }): Promise<void> => {
    ran++;
    skippedMs += days(3); // What other clients have counted under the same account has passed.
    judged = 0;
    const address = `10.${(ran >> 16) & 255}.${(ran >> 8) & 255}.${ran & 255}`;
    const send = async (path: string, { type, text }: Sent): Promise<number> => {
      requests++;
      const headers = { 'content-type': type, 'x-address': address };
      const answer = await fetch(`${url}/${path}`, { method: 'POST', headers, body: text });
      await answer.arrayBuffer();
      return answer.status;
    };
    const isTaken = async (each: Sent): Promise<boolean> => {
      const isIt = (await send('parse', each)) === 200;
      if (isIt) bodies++;
      else refusedByParser++;
      return isIt;
    };
    const guess = async (each: Sent): Promise<number> => {
      const before = judged;
      const status = await send(preset, each);
      if (status !== 401 && status !== 429) throw new Error(`${status} for ${each.type} ${each.text}`);
      if (status === 401 && judged === before) throw new Error('a guess was refused that nobody has judged');
      return status;
    };

    if (await isTaken(body)) {
      for (let i = 0; i < OF_ACCOUNT + 2; i++) await guess(body);
      if (body.isCounted && judged !== OF_ACCOUNT) throw new Error(`${judged} of one account were judged`);
    }
    for (const each of others) if (await isTaken(each)) await guess(each);
    let last = 0;
    for (let i = 0; i <= OF_ADDRESS && last !== 429; i++) {
      last = await guess({
        type: 'application/json',
        text: `{"email":"v${ran}-${i}@x.org"}`,
        isCounted: true,
      });
    }
    if (judged !== OF_ADDRESS) throw new Error(`${judged} of one address were judged`);
  };

  try {
    await fc.assert(fc.asyncProperty(anyClient, run), { seed, numRuns: clients });
  } finally {
    clock.mockRestore();
    await app.close();
  }
  return { clients: ran, bodies, requests, refusedByParser };
}
