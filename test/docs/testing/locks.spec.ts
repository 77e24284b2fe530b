// locks.spec.ts
import { Injectable } from '@nestjs/common';
import { Test, type TestingModule } from '@nestjs/testing';
import { Lock, type LockContext, WithLock } from 'nestjs-syncguard';
import { SyncGuardTesting, SyncGuardTestingModule } from 'nestjs-syncguard/testing';

@Injectable()
class Importer {
  readonly imported: string[] = [];

  @WithLock('import:{0}', { timeoutMs: 0 })
  async run(shop: string, pages: AsyncIterable<string>, @Lock() lock?: LockContext): Promise<void> {
    for await (const page of pages) {
      lock?.assertHeld();
      this.imported.push(`${shop}/${page}`);
    }
  }
}

async function* pages(): AsyncGenerator<string> {
  yield 'one';
  yield 'two';
}

describe('Importer', () => {
  let module: TestingModule;
  let testing: SyncGuardTesting;
  let importer: Importer;

  beforeEach(async () => {
    module = await Test.createTestingModule({
      imports: [SyncGuardTestingModule.forRoot()],
      providers: [Importer],
    }).compile();
    testing = module.get(SyncGuardTesting);
    importer = module.get(Importer);
  });

  afterEach(() => module.close());

  it('skips a shop that another process imports', async () => {
    testing.contend('import:acme');
    await expect(importer.run('acme', pages())).rejects.toMatchObject({ code: 'AcquisitionTimeout' });
    await importer.run('other', pages());

    testing.restore();
    await importer.run('acme', pages());
    expect(importer.imported).toEqual(['other/one', 'other/two', 'acme/one', 'acme/two']);
  });

  it('writes nothing more once it has lost its lock', async () => {
    async function* pagesOfALongImport(): AsyncGenerator<string> {
      yield 'one';
      await testing.lose('import:acme');
      yield 'two';
    }
    const run = importer.run('acme', pagesOfALongImport());
    await expect(run).rejects.toMatchObject({ code: 'LockLost' });
    expect(importer.imported).toEqual(['acme/one']);
  });

  it('does not run without Redis', async () => {
    testing.makeUnreachable();
    await expect(importer.run('acme', pages())).rejects.toMatchObject({ code: 'ServiceUnavailable' });
    expect(importer.imported).toEqual([]);
  });

  it('runs on an instance made by new', async () => {
    const own = testing.bind(new Importer());
    await own.run('acme', pages());
    expect(own.imported).toEqual(['acme/one', 'acme/two']);
  });
});
