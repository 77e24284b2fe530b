import { NEVER_MS, startClusterEngine, startSingleEngine } from '../support/engines/engine.js';
import { findProgram, type Program } from '../support/engines/programs.js';
import { describeContracts } from './contracts.js';

/** The contracts on another program than the machine's redis-server, where it can be had: one server, and a Cluster. */
export function describeOnProgram(name: Program): void {
  const program = findProgram(name);

  it(`${name} runs here, or it is said why not`, () => {
    if ('missing' in program) console.warn(`NOT TESTED: ${name} ${program.missing}`);
    expect('missing' in program ? program.missing : program.version).toMatch(
      /^8\.\d|cannot be unpacked|does not run/,
    );
  });

  if ('missing' in program) return;
  const { command, version } = program;
  describeContracts(`${name} (${version})`, () => startSingleEngine({ command }));
  describeContracts(`${name} (${version}), a Cluster`, () =>
    startClusterEngine({ command, nodeTimeoutMs: NEVER_MS, replicas: 0 }),
  );
}
