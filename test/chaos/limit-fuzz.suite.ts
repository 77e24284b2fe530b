import { randomInt } from 'node:crypto';
import { Logger } from '@nestjs/common';
import { fuzzBodies } from '../support/limit-fuzz.js';

Logger.overrideLogger(false);

const SEED = Number(process.env.SYNCGUARD_SEED ?? randomInt(2 ** 31));
const CLIENTS = Number(process.env.FUZZ_CLIENTS ?? 50_000);

describe.each(['express', 'fastify'] as const)('bodies that nobody expects, on %s', (adapter) => {
  it(`count, whatever they are, of ${CLIENTS} clients (seed ${SEED})`, async () => {
    const { clients, bodies, requests, refusedByParser } = await fuzzBodies(adapter, SEED, CLIENTS);
    console.log(
      `fuzz of limits on ${adapter}: ${bodies} bodies of ${clients} clients, ${requests} requests, ${refusedByParser} more bodies refused by the parser, seed ${SEED} (SYNCGUARD_SEED repeats it)`,
    );
    expect(clients).toBe(CLIENTS);
    // A client sends 2.5 bodies on average.
    expect(bodies).toBeGreaterThan(2 * CLIENTS);
  }, 3_600_000);
});
