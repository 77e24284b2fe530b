// class-override.ts
import { Controller, Get } from '@nestjs/common';
import { RateLimit, seconds } from 'nestjs-syncguard';

@Controller('reports')
@RateLimit({ name: 'reports', limit: 2, windowMs: seconds(10) }) // in @nestjs/throttler a method's @Throttle replaces it
export class ReportsController {
  @Get('both')
  @RateLimit({ limit: 1, windowMs: seconds(10) }) // here they add up: 1 a route, and 2 for the class together
  both() {
    return [];
  }

  @Get('own')
  @RateLimit({ limit: 4, windowMs: seconds(10) }, { override: true }) // replaces that of the class, and `default`
  own() {
    return [];
  }
}
