// Installs what is measured: the peers from the lockfile, and the package as it would be published.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

const BENCH = resolve(import.meta.dirname, '..');
const run = (cwd, command, ...args) =>
  execFileSync(command, args, { cwd, stdio: ['ignore', 'pipe', 'inherit'], encoding: 'utf8' });

export const PACKAGE = 'nestjs-syncguard';
export const BESIDE = `${PACKAGE}-beside`;

export function installPeers() {
  if (!existsSync(join(BENCH, 'node_modules', 'ioredis'))) run(BENCH, 'npm', 'ci', '--silent');
}

/** Calls `use` with a folder that has another version: the folder that is named, or one made for a commit. */
export async function treeOf(root, folderOrCommit, use) {
  if (existsSync(folderOrCommit)) return use(resolve(folderOrCommit));
  const folder = mkdtempSync(join(tmpdir(), 'syncguard-tree-'));
  const tree = join(folder, 'tree');
  run(root, 'git', 'worktree', 'add', '--quiet', '--detach', tree, folderOrCommit);
  try {
    symlinkSync(join(root, 'node_modules'), join(tree, 'node_modules'));
    await use(tree);
  } finally {
    run(root, 'git', 'worktree', 'remove', '--force', tree);
    rmSync(folder, { recursive: true });
  }
}

/** Packs the tree and unpacks it among the peers, so that it loads the same Nest and the same ioredis as they do. */
export function installPackage(tree, name, { build }) {
  const target = join(BENCH, 'node_modules', name);
  if (!build && existsSync(target)) return;
  console.error(`building ${name} from ${tree}`);
  run(tree, 'npm', 'run', '-s', 'build');
  const folder = mkdtempSync(join(tmpdir(), 'syncguard-bench-'));
  run(tree, 'npm', 'pack', '--silent', '--ignore-scripts', '--pack-destination', folder);
  rmSync(target, { recursive: true, force: true });
  mkdirSync(target);
  run(folder, 'sh', '-c', `tar xzf *.tgz --strip-components=1 -C '${target}'`);
  rmSync(folder, { recursive: true });
}
