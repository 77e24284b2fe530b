import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Servers beside the redis-server of the machine. */
export type Program = 'redis-8' | 'valkey-8';

/** How a server is started, for `command` of startRedisServer(); or why there is none. */
export type Found =
  { readonly command: readonly string[]; readonly version: string } | { readonly missing: string };

/** The Debian release that has both. */
const RELEASE = 'trixie';
const BINARIES: Record<Program, string> = { 'redis-8': 'redis-server', 'valkey-8': 'valkey-server' };
const FOLDER = join(tmpdir(), `syncguard-${RELEASE}`);
const LOADERS: Partial<Record<NodeJS.Architecture, string>> = {
  x64: 'lib64/ld-linux-x86-64.so.2',
  arm64: 'lib/ld-linux-aarch64.so.1',
};

/**
 * Unpacks the packages of a newer Debian, with every library that they need, into a folder: nothing is installed, and
 * nothing of the machine is changed. The mirror is the one that the machine has its own packages from. An empty list
 * of installed packages has apt bring libc along.
 */
const UNPACK = `
  set -e
  exec 9>${FOLDER}.lock && flock 9
  [ ! -e ${FOLDER}/done ] || exit 0
  rm -rf ${FOLDER} && mkdir -p ${FOLDER}/lists/partial ${FOLDER}/cache/archives/partial ${FOLDER}/root && cd ${FOLDER}
  mirror=$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(SITE)' 'Created-By: Packages' | sed -n 's/^Debian Debian //p' | head -1)
  [ -n "$mirror" ] || { echo 'apt has no source of Debian' >&2; exit 1; }
  keys=/usr/share/keyrings/debian-archive-keyring.gpg
  echo "deb [signed-by=$keys] $mirror ${RELEASE} main" >sources.list && : >status
  apt() {
    apt-get -qq -o Dir::Etc::SourceList=$PWD/sources.list -o Dir::Etc::SourceParts=- -o Dir::State::Lists=$PWD/lists \\
      -o Dir::State::Status=$PWD/status -o Dir::Cache=$PWD/cache -o APT::Sandbox::User=root "$@"
  }
  apt update && apt install --download-only --no-install-recommends -y redis-server valkey-server
  for package in cache/archives/*.deb; do dpkg -x "$package" root; done
  rm -rf cache lists && touch done
`;

/** Finds a server, and unpacks it first where that is possible (Debian). */
export function findProgram(name: Program): Found {
  const { status, stderr } = spawnSync('sh', ['-c', UNPACK], { encoding: 'utf8' });
  if (status !== 0) return { missing: `cannot be unpacked from Debian's packages: ${lastLine(stderr)}` };
  const command = commandOf(BINARIES[name]);
  const version = command && versionOf(command);
  return version
    ? { command, version }
    : { missing: `${BINARIES[name]} of Debian ${RELEASE} does not run here` };
}

/** By the dynamic loader that came with it: the libc of the machine is older. */
function commandOf(binary: string): readonly string[] | undefined {
  const root = join(FOLDER, 'root');
  const loader = LOADERS[process.arch];
  const path = loader && [loader, join('usr', loader)].map((each) => join(root, each)).find(existsSync);
  if (!path) return undefined;
  const libraries = ['usr/lib', 'lib'].flatMap((folder) => [
    join(root, folder, `${process.arch === 'x64' ? 'x86_64' : 'aarch64'}-linux-gnu`),
    join(root, folder),
  ]);
  return [path, '--library-path', libraries.join(':'), join(root, 'usr/bin', binary)];
}

function versionOf([program = '', ...args]: readonly string[]): string | undefined {
  const { stdout } = spawnSync(program, [...args, '--version'], { encoding: 'utf8' });
  return /v=([\d.]+)/.exec(stdout)?.[1];
}

const lastLine = (text: string): string => text.trim().split('\n').at(-1) ?? '';
