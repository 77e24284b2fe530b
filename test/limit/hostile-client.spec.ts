import 'reflect-metadata';
import { randomInt } from 'node:crypto';
import { Logger } from '@nestjs/common';
import { attackAll, Targets } from '../support/hostile-client/attack.js';
import { freshRedis } from '../support/redis.js';

Logger.overrideLogger(false);
// The handlers that throw are logged by Nest's own filter.
beforeEach(() => jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {}));

const SEED = Number(process.env.SYNCGUARD_SEED ?? randomInt(2 ** 31));
const COMPOSITIONS = 300;

describe('hostile clients', () => {
  it(`have no more guesses judged than the limit says, in ${COMPOSITIONS} compositions (seed ${SEED})`, async () => {
    const targets = new Targets(await freshRedis());
    try {
      const { ran, violations, covered } = await attackAll(targets, SEED, COMPOSITIONS);
      console.log(
        `hostile clients: ${ran} compositions, ${violations.length} violations, ${covered}, seed ${SEED} (SYNCGUARD_SEED repeats it)`,
      );
      expect(violations).toEqual([]);
    } finally {
      await targets.close();
    }
  });
});
