// limits.ts
import { type LimitPolicies, presets } from 'nestjs-syncguard';

/** For `SyncGuardModule.forRoot({ limits })`. */
export const limits: LimitPolicies = {
  login: presets.login.map((policy) => ({
    ...policy,
    keyBy: [policy.keyBy].flat().map((part) => (part === 'body.email' ? 'body.username' : part)),
  })),
};
