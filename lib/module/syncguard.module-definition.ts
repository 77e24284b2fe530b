import { ConfigurableModuleBuilder } from '@nestjs/common';
import type { SyncGuardOptions } from './syncguard.options.js';
import { SYNCGUARD_OPTIONS } from './syncguard.tokens.js';

export const { ConfigurableModuleClass } = new ConfigurableModuleBuilder<SyncGuardOptions>({
  optionsInjectionToken: SYNCGUARD_OPTIONS,
})
  .setClassMethodName('forRoot')
  .setFactoryMethodName('createSyncGuardOptions')
  .setExtras({ isGlobal: true }, (definition, { isGlobal }) => ({ ...definition, global: isGlobal }))
  .build();
