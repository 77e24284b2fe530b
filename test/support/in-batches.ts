import { isNativeError } from 'node:util/types';
import { batchArgs, batchOf } from '../../lib/script/batch.js';
import type { Script, ScriptArg } from '../../lib/script/define-script.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';

/** Inside this `describe` every call runs by the batched form of its script, even if it is alone in its turn. */
export function describeInBatches(name: string, tests: () => void): void {
  describe(name, () => {
    beforeAll(() => {
      const { command: send } = ScriptRunner.prototype;
      const inBatch = async (runner: ScriptRunner, script: Script, keysAndArgs: readonly ScriptArg[]) => {
        const args = batchArgs([{ script, keysAndArgs }]);
        const [reply] = (await send.call(runner, batchOf(script), args)) as [unknown];
        if (isNativeError(reply)) throw reply;
        return reply;
      };
      jest.spyOn(ScriptRunner.prototype, 'command').mockImplementation(function (
        this: ScriptRunner,
        lua,
        args,
      ) {
        return lua.numberOfKeys === undefined
          ? send.call(this, lua, args)
          : inBatch(this, lua as Script, args);
      });
    });
    afterAll(() => jest.restoreAllMocks());
    tests();
  });
}
