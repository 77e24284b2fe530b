import { eventually } from '../../support/eventually.js';
import { stage } from './instances.js';

describe('docs/guides/third-party-api.md', () => {
  const on = stage();

  it('lets 4 calls out in a second, of two instances together, and the others wait', async () => {
    const { WeatherModule, WeatherApi } = await import('./third-party-api/weather.js');
    const first = (await on.start(WeatherModule)).app.get(WeatherApi);
    const second = (await on.start(WeatherModule)).app.get(WeatherApi);
    const asked = (): number => first.asked.length + second.asked.length;
    on.redis.clock.hold();
    const forecasts = Array.from({ length: 8 }, (_, i) => (i % 2 ? second : first).forecast(`city ${i}`));
    await eventually(() => expect(asked()).toBe(4));
    await expect(first.forecast('too late', 500)).rejects.toMatchObject({ status: 503 });
    expect(asked()).toBe(4);

    on.redis.clock.advance(1_000);
    expect(await Promise.all(forecasts)).toContain('It rains in city 7.');
    expect(asked()).toBe(8);
  });

  it('calls nobody without Redis', async () => {
    const { WeatherModule, WeatherApi } = await import('./third-party-api/weather.js');
    const api = (await on.start(WeatherModule)).app.get(WeatherApi);
    await on.redis.kill();
    await expect(api.forecast('Berlin')).rejects.toMatchObject({ name: 'LimitError' });
    expect(api.asked).toEqual([]);
  });
});
