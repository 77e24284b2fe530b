import { openApp, syncguard } from '../_app.mjs';

export default {
  name: 'nestjs-syncguard',
  role: 'ours',
  async open() {
    const once = (await openApp()).get(syncguard.OnceService);
    const call = async (key, body) => (await once.run(body, { key })).value;
    return { run: call, replay: call };
  },
};
