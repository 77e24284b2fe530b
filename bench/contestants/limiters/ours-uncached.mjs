import { ours } from './_ours.mjs';

export default ours('nestjs-syncguard, no deny cache', 'variant', { denyCacheMs: 0 });
