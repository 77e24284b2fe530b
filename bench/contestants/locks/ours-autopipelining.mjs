import { autoPipelining } from '../_app.mjs';
import { ours } from './_ours.mjs';

export default { ...ours('nestjs-syncguard, autopipelining', autoPipelining), role: 'variant' };
