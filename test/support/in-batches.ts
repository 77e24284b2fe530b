import { isNativeError } from 'node:util/types';
import { batchOf } from '../../lib/script/batch.js';
import { ScriptCommands } from '../../lib/script/commands.js';
import type { Script, ScriptArg } from '../../lib/script/define-script.js';

/** Inside this `describe` every call runs by the batched form of its script, even if it is alone in its turn. */
export function describeInBatches(name: string, tests: () => void): void {
  describe(name, () => {
    beforeAll(() => {
      const { run } = ScriptCommands.prototype;
      const inBatch = async (commands: ScriptCommands, script: Script, keysAndArgs: readonly ScriptArg[]) => {
        const batch = batchOf(script);
        const [reply] = (await run.call(commands, batch, batch.argsOf([{ keysAndArgs }]))) as [unknown];
        if (isNativeError(reply)) throw reply;
        return reply;
      };
      jest.spyOn(ScriptCommands.prototype, 'run').mockImplementation(function (
        this: ScriptCommands,
        command,
        args,
      ) {
        return command.numberOfKeys === undefined
          ? run.call(this, command, args)
          : inBatch(this, command as Script, args);
      });
    });
    afterAll(() => jest.restoreAllMocks());
    tests();
  });
}
