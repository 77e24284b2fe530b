import { type DynamicModule, Module } from '@nestjs/common';
import { OperationsController } from './operations.controller.js';
import { OperatorPassword } from './operator.guard.js';

@Module({ controllers: [OperationsController] })
export class OperationsModule {
  static with({ password }: { password: string }): DynamicModule {
    const useFactory = (): OperatorPassword => new OperatorPassword(password);
    return { module: OperationsModule, providers: [{ provide: OperatorPassword, useFactory }] };
  }
}
