// Prints the microseconds of CPU that it takes to load a file, in a process that has loaded Nest: `node loading.mjs <how> <file>`.
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const [how, file] = process.argv.slice(2);
const load = async (name) => (how === 'require' ? require(name) : import(name));

for (const name of ['reflect-metadata', 'rxjs', '@nestjs/common', '@nestjs/core']) await load(name);
const before = process.cpuUsage();
await load(file);
const { user, system } = process.cpuUsage(before);
console.log(user + system);
