// Who runs on which core, and on how much of it. Linux alone can say so.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { dirname, join } from 'node:path';

/** What a group of processes gets in each period, in microseconds: a short one, so that a pause is no longer than it must. */
const [QUOTA, PERIOD] = [5_000, 10_000];
const NAME = `syncguard-bench-${process.pid}`;
/** The group of this process, on half a core. */
const GROUP = process.env.BENCH_HALF;
const V1 = '/sys/fs/cgroup/cpu';
const V2 = '/sys/fs/cgroup';

/** Starts this program again on one core. Returns the code that it ends with. */
export function onCore(core, args, env) {
  const options = { stdio: 'inherit', env: { ...process.env, ...env } };
  const pinned = spawnSync('taskset', ['-c', core, process.execPath, ...args], options);
  if (!pinned.error) return pinned.status;
  console.error('taskset was not found, so nothing is pinned: latencies are not comparable.');
  return spawnSync(process.execPath, args, options).status;
}

/** Makes a control group of Linux (v1 or v2) whose processes get half of the time of a core together. */
export function makeHalf() {
  const isV1 = existsSync(join(V1, 'cpu.cfs_quota_us'));
  const group = join(isV1 ? V1 : V2, NAME);
  try {
    if (!isV1) writeFileSync(join(V2, 'cgroup.subtree_control'), '+cpu');
    mkdirSync(group);
    if (isV1) {
      writeFileSync(join(group, 'cpu.cfs_period_us'), String(PERIOD));
      writeFileSync(join(group, 'cpu.cfs_quota_us'), String(QUOTA));
    } else writeFileSync(join(group, 'cpu.max'), `${QUOTA} ${PERIOD}`);
  } catch (cause) {
    throw new Error(`--half needs a control group: root on Linux, and ${group} to be writable.`, { cause });
  }
  // What was killed may take a moment to leave it.
  process.once('exit', () => spawnSync('sh', ['-c', 'sleep 0.5; rmdir "$1"', 'sh', group]));
  return group;
}

/** This process and all that it starts are in the group from now on. */
export function enterHalf() {
  if (GROUP) writeFileSync(join(GROUP, 'cgroup.procs'), String(process.pid));
}

/** A command that is not under test, such as the server: on half a core it gets another core, and all of it. */
export function apart(command, args) {
  if (!GROUP) return [command, args];
  const other = String((Number(process.env.BENCH_CORE) + 1) % cpus().length);
  const script = 'echo $$ > "$1"; core=$2; shift 2; exec taskset -c "$core" "$@"';
  return ['sh', ['-c', script, 'apart', join(dirname(GROUP), 'cgroup.procs'), other, command, ...args]];
}
