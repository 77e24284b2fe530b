import {
  Catch,
  Controller,
  type ExceptionFilter,
  Param,
  Post,
  UseFilters,
  VersioningType,
} from '@nestjs/common';
import { Once, onceKey, OnceService, SyncGuardModule } from 'nestjs-syncguard';
import { listen } from '../support/adapters.js';

let caught = 0;
@Catch()
class All implements ExceptionFilter {
  catch(): void {
    caught++;
  }
}

@Controller({ path: 'orders', version: '1' })
class Orders {
  @Post(':id/pay')
  @Once({ key: 'params.id' })
  @UseFilters(All)
  pay(@Param('id') id: string) {
    return { id };
  }
}

it.each(['express', 'fastify'] as const)(
  'the key of a route has its global prefix and its versions, and filters see no replay, on %s',
  async (adapter) => {
    const { app, url } = await listen(
      adapter,
      { imports: [SyncGuardModule.forRoot()], controllers: [Orders] },
      undefined,
      (each) =>
        each
          .useGlobalFilters(new All())
          .setGlobalPrefix('api')
          .enableVersioning({ type: VersioningType.URI }),
    );
    const pay = async () => (await fetch(`${url}/api/v1/orders/7/pay`, { method: 'POST' })).status;
    expect([await pay(), await pay(), caught]).toEqual([201, 201, 0]);
    const key = onceKey({ route: 'POST /api/v1/orders/:id/pay@1', key: '7' });
    expect(await app.get(OnceService).get(key)).toMatchObject({ state: 'done' });
    await app.close();
  },
);
