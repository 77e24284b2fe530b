import 'reflect-metadata';
import { PassThrough, Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { Controller, Get, type INestApplication, Injectable, Logger, StreamableFile } from '@nestjs/common';
import { LockService, SyncGuardModule, WithLock } from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { listen } from '../support/adapters.js';

Logger.overrideLogger(['error', 'warn']);

const TTL_MS = 1_200;

@Injectable()
class Files {
  source = new PassThrough();

  @WithLock('export', { ttlMs: TTL_MS })
  async open(): Promise<StreamableFile> {
    return new StreamableFile(this.source);
  }
}

@Controller()
class Routes {
  constructor(private readonly files: Files) {}

  @WithLock('export', { ttlMs: TTL_MS })
  @Get('file')
  async file(): Promise<StreamableFile> {
    return new StreamableFile(this.files.source);
  }

  @WithLock('export', { ttlMs: TTL_MS })
  @Get('bytes')
  async bytes(): Promise<StreamableFile> {
    return new StreamableFile(Buffer.from('bytes'));
  }
}

describe.each(['express', 'fastify'] as const)('a lock on a StreamableFile, on %s', (adapter) => {
  let app: INestApplication;
  let url = '';
  let files: Files;
  beforeEach(async () => {
    ({ app, url } = await listen(adapter, {
      imports: [SyncGuardModule.forRoot()],
      controllers: [Routes],
      providers: [Files],
    }));
    files = app.get(Files);
  });
  afterEach(() => app.close());

  const isLocked = (): Promise<boolean> => app.get(LockService).isLocked({ key: 'export' });
  const released = (): Promise<void> => eventually(async () => expect(await isLocked()).toBe(false));

  it('lasts until the download is over, also beyond its TTL', async () => {
    files.source.write('one ');
    const response = await fetch(`${url}/file`);
    expect(await isLocked()).toBe(true);
    await sleep(2 * TTL_MS);
    expect(await isLocked()).toBe(true);
    files.source.end('two');
    expect(await response.text()).toBe('one two');
    await released();
  });

  it('ends when the client leaves', async () => {
    files.source.write('one ');
    const controller = new AbortController();
    const response = await fetch(`${url}/file`, { signal: controller.signal });
    expect(await isLocked()).toBe(true);
    controller.abort();
    await response.text().catch(() => {});
    await released();
  });

  it('ends when the stream fails', async () => {
    files.source.write('one ');
    const response = await fetch(`${url}/file`);
    files.source.destroy(new Error('disk'));
    await response.text().catch(() => {});
    await released();
  });

  it('lets a small file pass as it was', async () => {
    const response = await fetch(`${url}/bytes`);
    expect([response.status, await response.text()]).toEqual([200, 'bytes']);
    await released();
  });

  it('is left after its TTL if nobody reads, and who comes then gets an error', async () => {
    const file = await files.open();
    expect(await isLocked()).toBe(true);
    await released();
    expect(files.source.destroyed).toBe(true);
    const late = file.getStream()[Symbol.asyncIterator]();
    await expect(late.next()).rejects.toThrow(/Nobody read this file within 1200 ms/);
  });

  it.each<[string, (stream: Readable) => Promise<string>]>([
    [
      'an iterator',
      async (stream) => {
        let text = '';
        for await (const chunk of stream) text += String(chunk);
        return text;
      },
    ],
    [
      'a listener',
      (stream) =>
        new Promise((resolve) => {
          let text = '';
          stream.on('data', (chunk) => (text += String(chunk))).on('end', () => resolve(text));
        }),
    ],
  ])('is held for a reader in the app: %s', async (_, read) => {
    const reading = read((await files.open()).getStream());
    await sleep(2 * TTL_MS);
    expect(await isLocked()).toBe(true);
    files.source.end('all');
    expect(await reading).toBe('all');
    await released();
  });
});
