import { burnScript } from './burn.script.js';
import { createScript } from './create.script.js';
import { peekScript, statusScript } from './read.scripts.js';
import { confirmScript, releaseScript } from './settle.scripts.js';
import { viewScript } from './view.script.js';

export const secretScripts = [
  createScript,
  viewScript,
  peekScript,
  burnScript,
  statusScript,
  confirmScript,
  releaseScript,
];
