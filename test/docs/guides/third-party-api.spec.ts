import { Module } from '@nestjs/common';
import { AbuseLimiterService, LockService, SyncGuardModule } from 'nestjs-syncguard';
import { eventually } from '../../support/eventually.js';
import { stage } from './instances.js';

describe('docs/guides/third-party-api.md', () => {
  const on = stage();

  it('lets 4 calls out in a window, of two instances together, and the others wait', async () => {
    const { WeatherModule, WeatherApi } = await import('./third-party-api/weather.js');
    const first = (await on.start(WeatherModule)).app.get(WeatherApi);
    const second = (await on.start(WeatherModule)).app.get(WeatherApi);
    const asked = (): number => first.asked.length + second.asked.length;
    on.redis.clock.hold();
    const forecasts = Array.from({ length: 8 }, (_, i) => (i % 2 ? second : first).forecast(`city ${i}`));
    await eventually(() => expect(asked()).toBe(4));
    await expect(first.forecast('too late', 500)).rejects.toMatchObject({ status: 503 });
    expect(asked()).toBe(4);

    on.redis.clock.advance(3_000);
    expect(await Promise.all(forecasts)).toContain('It rains in city 7.');
    expect(asked()).toBe(8);
  });

  it('lets calls out in the order of their arrival if they wait in a lock', async () => {
    const { WeatherModule, WeatherApi } = await import('./third-party-api/weather.js');
    const { app } = await on.start(WeatherModule);
    const api = app.get(WeatherApi);
    const locks = app.get(LockService);
    const forecast = async (city: string) => {
      await locks.lock(() => api.room(30_000), { key: 'weather', timeoutMs: 30_000 });
      api.asked.push(city);
    };
    on.redis.clock.hold();
    const cities = ['1', '2', '3', '4', '5'];
    const forecasts = cities.map(forecast);
    await eventually(() => expect(api.asked).toHaveLength(4));
    const checks = jest.spyOn(app.get(AbuseLimiterService), 'check');
    await eventually(() => expect(checks).toHaveBeenCalled()); // The fifth found no room, and asks on.
    on.redis.clock.advance(3_000);
    await Promise.all([...forecasts, forecast('late')]);
    expect(api.asked).toEqual([...cities, 'late']);
  });

  it('lets five calls that wait as they are told out in 0.4 s, at 10 a second', async () => {
    const { WeatherApi } = await import('./third-party-api/weather.js');
    const limits = { weather: { limit: 1, windowMs: 100 } };
    const imports = [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL, limits })];
    @Module({ imports, providers: [WeatherApi] })
    class FastModule {}
    const api = (await on.start(FastModule)).app.get(WeatherApi);
    const startMs = performance.now();
    for (let i = 0; i < 5; i++) await api.forecast(`city ${i}`);
    const tookMs = performance.now() - startMs;
    expect(tookMs).toBeGreaterThan(395);
    expect(tookMs).toBeLessThan(1_500); // In whole seconds it took 4 s.
  });

  it('calls nobody without Redis', async () => {
    const { WeatherModule, WeatherApi } = await import('./third-party-api/weather.js');
    const api = (await on.start(WeatherModule)).app.get(WeatherApi);
    await on.redis.kill();
    await expect(api.forecast('Berlin')).rejects.toMatchObject({ name: 'LimitError' });
    expect(api.asked).toEqual([]);
  });
});
