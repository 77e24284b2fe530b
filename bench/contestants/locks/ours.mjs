import { ours } from './_ours.mjs';

export default ours('nestjs-syncguard');
