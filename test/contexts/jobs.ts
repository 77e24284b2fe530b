import {
  applyDecorators,
  type CallHandler,
  type CanActivate,
  type ExecutionContext,
  Injectable,
  type NestInterceptor,
  SetMetadata,
  type Type,
  UseGuards,
  UseInterceptors,
} from '@nestjs/common';
import { Reflector } from '@nestjs/core';
import {
  currentLock,
  Lock,
  type LockContext,
  minutes,
  RateLimit,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Observable } from 'rxjs';

/** What the jobs do: it notes who is inside, and keeps them there while it is told to. */
@Injectable()
export class Work {
  inside = 0;
  /** Most that were inside at a time. */
  most = 0;
  readonly done: { key: string | undefined; fence: string }[] = [];
  /** The jobs that a guard and an interceptor beside our decorator were asked for. */
  readonly asked = { guard: new Set<string>(), interceptor: new Set<string>() };
  #opened: Promise<void> | undefined;

  /** Keeps inside those who are there and those who come, until the returned function is called. */
  keepInside(): () => void {
    let open = (): void => {};
    this.#opened = new Promise((resolve) => (open = resolve));
    return open;
  }

  async run(lock?: LockContext): Promise<string> {
    this.most = Math.max(this.most, ++this.inside);
    await this.#opened;
    await sleep(1);
    this.inside--;
    const fence = lock?.fence ?? '';
    this.done.push({ key: currentLock()?.key, fence });
    return fence;
  }
}

/** Stands beside our decorator: notes what it is asked for, by the metadata of the method. */
@Injectable()
class Noting implements CanActivate, NestInterceptor {
  constructor(
    private readonly work: Work,
    private readonly reflector: Reflector,
  ) {}

  canActivate(context: ExecutionContext): boolean {
    this.work.asked.guard.add(this.nameOf(context));
    return true;
  }

  intercept(context: ExecutionContext, next: CallHandler<unknown>): Observable<unknown> {
    this.work.asked.interceptor.add(this.nameOf(context));
    return next.handle();
  }

  private nameOf(context: ExecutionContext): string {
    if (currentLock()) throw new Error('The lock is of the method alone.');
    return this.reflector.get<string>(NAME, context.getHandler());
  }
}
const NAME = 'name of a job';

/** How a class is told to be a controller, a resolver, ...: by the decorators of Nest's that it stands under. */
export interface NestDecorators {
  readonly onClass: ClassDecorator;
  readonly onMethod: (name: JobName) => MethodDecorator;
  readonly onParameter?: () => ParameterDecorator;
}

export type JobName =
  'lockAbove' | 'lockBelow' | 'tryLock' | 'budgetAbove' | 'budgetBelow' | 'limitAbove' | 'limitBelow';

/** The scope that pays for the jobs. */
export const TEAM = 'team';
const budget = {
  scopes: () => [TEAM],
  estimate: () => 60,
  actual: () => 7,
};
const twice = { limit: 2, windowMs: minutes(1), keyBy: () => 'anybody' };

/** What a job is about: an id, or where Nest gives no more the object that a field belongs to. */
type About = string | { readonly id: string };
const keyOf = (job: About = 'none'): string => `job:${typeof job === 'string' ? job : job.id}`;
const nothing = (): ParameterDecorator => () => {};

/** The same methods in any context: our decorator above Nest's own, and below. */
export function jobsUnder({
  onClass,
  onMethod: nests,
  onParameter = nothing,
}: NestDecorators): Type<unknown> {
  const onMethod = (name: JobName): MethodDecorator =>
    applyDecorators(nests(name), SetMetadata(NAME, name), UseGuards(Noting), UseInterceptors(Noting));

  @onClass
  class Jobs {
    constructor(private readonly work: Work) {}

    @WithLock(keyOf)
    @onMethod('lockAbove')
    async lockAbove(@onParameter() _job?: About, @Lock() lock?: LockContext): Promise<string> {
      return this.work.run(lock);
    }

    @onMethod('lockBelow')
    @WithLock(keyOf)
    async lockBelow(@onParameter() _job?: About, @Lock() lock?: LockContext): Promise<string> {
      return this.work.run(lock);
    }

    @onMethod('tryLock')
    @WithLock(keyOf, { timeoutMs: 0 })
    async tryLock(@onParameter() _job?: About, @Lock() lock?: LockContext): Promise<string> {
      return this.work.run(lock);
    }

    @WithBudget(budget)
    @onMethod('budgetAbove')
    async budgetAbove(@onParameter() _job?: About): Promise<string> {
      return this.work.run();
    }

    @onMethod('budgetBelow')
    @WithBudget(budget)
    async budgetBelow(@onParameter() _job?: About): Promise<string> {
      return this.work.run();
    }

    @RateLimit({ ...twice, name: 'above' })
    @onMethod('limitAbove')
    async limitAbove(@onParameter() _job?: About): Promise<string> {
      return this.work.run();
    }

    @onMethod('limitBelow')
    @RateLimit({ ...twice, name: 'below' })
    async limitBelow(@onParameter() _job?: About): Promise<string> {
      return this.work.run();
    }
  }
  return Jobs;
}
