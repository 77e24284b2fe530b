import 'reflect-metadata';
import { Query, Resolver, Subscription } from '@nestjs/graphql';
import {
  BudgetService,
  Lock,
  type LockContext,
  LockService,
  minutes,
  RateLimit,
  SyncGuardModule,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { type GraphQLAnswer, type GraphQLApp, graphqlApp } from './apps/graphql-app.js';
import { SUBSCRIPTIONS } from './contexts.js';
import { Work } from './jobs.js';

type Item = { readonly tokens: number } & Readonly<Record<string, unknown>>;
type Feed = AsyncGenerator<Item, void, undefined>;

const budget = { scopes: () => ['team'], estimate: () => 60, actual: ({ tokens }: Item) => tokens };
const twice = { limit: 2, windowMs: minutes(1) };

@Resolver()
class Feeds {
  constructor(private readonly work: Work) {}

  @Query(() => String)
  ping(): string {
    return 'pong';
  }

  @WithLock('feed')
  @Subscription(() => String)
  async *lockAbove(@Lock() lock?: LockContext): Feed {
    yield* this.items('lockAbove', lock);
  }

  @Subscription(() => String)
  @WithLock('feed')
  async *lockBelow(@Lock() lock?: LockContext): Feed {
    yield* this.items('lockBelow', lock);
  }

  @Subscription(() => String)
  @WithLock('feed', { timeoutMs: 0 })
  async *tryLock(@Lock() lock?: LockContext): Feed {
    yield* this.items('tryLock', lock);
  }

  @WithBudget(budget)
  @Subscription(() => String)
  async *budgetAbove(): Feed {
    yield* this.items('budgetAbove');
  }

  @Subscription(() => String)
  @WithBudget(budget)
  async *budgetBelow(): Feed {
    yield* this.items('budgetBelow');
  }

  @RateLimit({ ...twice, name: 'above' })
  @Subscription(() => String)
  async *limitAbove(): Feed {
    yield* this.items('limitAbove');
  }

  @Subscription(() => String)
  @RateLimit({ ...twice, name: 'below' })
  async *limitBelow(): Feed {
    yield* this.items('limitBelow');
  }

  private async *items(name: string, lock?: LockContext): Feed {
    yield { [name]: 'first', tokens: 1 };
    await this.work.run(lock);
    yield { [name]: 'second', tokens: 7 };
  }
}

async function rest(answers: AsyncIterable<GraphQLAnswer>): Promise<GraphQLAnswer[]> {
  const collected: GraphQLAnswer[] = [];
  for await (const answer of answers) collected.push(answer);
  return collected;
}

describe.each(SUBSCRIPTIONS)('$context · $adapter', ({ server }) => {
  let app: GraphQLApp;
  let work: Work;
  let locks: LockService;
  let budgets: BudgetService;
  beforeAll(async () => {
    app = await graphqlApp(server, {
      imports: [
        SyncGuardModule.forRoot({
          lock: { retryDelayMs: 5 },
          budget: { limits: [{ scope: 'team', period: 'lifetime', limit: 100 }] },
        }),
      ],
      providers: [Feeds, Work],
    });
    work = app.app.get(Work);
    locks = app.app.get(LockService);
    budgets = app.app.get(BudgetService);
  });
  afterAll(() => app.close());
  beforeEach(() => {
    work.most = work.done.length = 0;
  });

  const subscribe = (feed: string) => app.subscribe(`subscription { ${feed} }`);
  const isLocked = (): Promise<boolean> => locks.isLocked({ key: 'feed' });
  const spent = async (): Promise<number[]> => {
    const [balance] = await budgets.balance({ scope: 'team' });
    return [Number(balance?.committed), Number(balance?.reserved)];
  };

  describe.each(['lockAbove', 'lockBelow'])('@WithLock: %s', (feed) => {
    it('holds the lock from the first item to the end; the next subscriber waits for it', async () => {
      const letOut = work.keepInside();
      const first = subscribe(feed);
      expect((await first.next()).value).toEqual({ data: { [feed]: 'first' } });
      const second = rest(subscribe(feed));
      await expect(subscribe('tryLock').next()).rejects.toBeDefined();
      expect(await isLocked()).toBe(true);

      letOut();
      expect(await rest(first)).toEqual([{ data: { [feed]: 'second' } }]);
      expect(await second).toHaveLength(2);
      expect(work.most).toBe(1);
      const [one, other] = work.done;
      expect([one?.key, other?.key]).toEqual(['feed', 'feed']);
      expect(String(other?.fence) > String(one?.fence)).toBe(true);
      await eventually(async () => expect(await isLocked()).toBe(false));
    });

    it('gives the lock back when the subscriber leaves', async () => {
      for await (const { data } of subscribe(feed)) {
        expect(data).toEqual({ [feed]: 'first' });
        break;
      }
      await eventually(async () => expect(await isLocked()).toBe(false));
    });
  });

  it('@WithLock tells who cannot wait by an error without code: no filter sees a stream that fails', async () => {
    const lock = await locks.acquire({ key: 'feed', ttlMs: 10_000 });
    await expect(subscribe('tryLock').next()).rejects.toEqual([
      { message: expect.stringMatching(/^Somebody else holds the lock/) as unknown },
    ]);
    if (lock.ok) await lock.release();
    expect(await rest(subscribe('tryLock'))).toHaveLength(2);
  });

  describe.each(['budgetAbove', 'budgetBelow'])('@WithBudget: %s', (feed) => {
    it('reserves while it runs, refuses what has no room, and settles once, by the last item', async () => {
      const [before = 0] = await spent();
      const letOut = work.keepInside();
      const answers = subscribe(feed);
      await answers.next();
      expect(await spent()).toEqual([before, 60]);
      await expect(subscribe(feed).next()).rejects.toEqual([
        { message: expect.stringMatching(/^The request exceeds the budget: team in all/) as unknown },
      ]);
      letOut();
      await rest(answers);
      await eventually(async () => expect(await spent()).toEqual([before + 7, 0]));
    });
  });

  it.each(['limitAbove', 'limitBelow'])('@RateLimit: %s denies the third of two', async (feed) => {
    for (let i = 0; i < 2; i++) expect(await rest(subscribe(feed))).toHaveLength(2);
    expect(await rest(subscribe(feed))).toMatchObject([
      {
        errors: [
          {
            extensions: {
              statusCode: 429,
              code: 'RateLimited',
              context: {
                retryAfter: expect.any(Number) as unknown,
                retryAtMs: expect.any(Number) as unknown,
              },
            },
          },
        ],
      },
    ]);
    expect(work.done).toHaveLength(2);
  });
});
