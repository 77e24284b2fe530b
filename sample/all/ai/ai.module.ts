import { Module } from '@nestjs/common';
import { AiController } from './ai.controller.js';
import { AiService } from './ai.service.js';
import { FakeModel } from './fake-model.js';

@Module({ controllers: [AiController], providers: [AiService, FakeModel] })
export class AiModule {}
