import { describeOnProgram } from './on-program.js';

describeOnProgram('valkey-8');
