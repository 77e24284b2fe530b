// Every script of budgets, and nothing else. The list of all scripts has what is exported here.
export * from './adjust.scripts.js';
export * from './charge.script.js';
export * from './finalize.script.js';
export * from './hold.scripts.js';
export * from './read.scripts.js';
export * from './reaper.scripts.js';
export * from './repair.script.js';
export * from './reserve.script.js';
