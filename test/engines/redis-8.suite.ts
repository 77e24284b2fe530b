import { describeOnProgram } from './on-program.js';

describeOnProgram('redis-8');
