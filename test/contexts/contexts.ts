import {
  applyDecorators,
  Controller,
  createParamDecorator,
  type ExecutionContext,
  Get,
  type INestApplicationContext,
  Injectable,
  type ModuleMetadata,
  Param,
  Scope,
  type Type,
  UseFilters,
} from '@nestjs/common';
import { EventEmitter2, EventEmitterModule, OnEvent } from '@nestjs/event-emitter';
import { Args, Field, Mutation, ObjectType, Parent, Query, ResolveField, Resolver } from '@nestjs/graphql';
import { EventPattern, MessagePattern, Payload } from '@nestjs/microservices';
import { Cron, Interval, ScheduleModule, SchedulerRegistry } from '@nestjs/schedule';
import { Test } from '@nestjs/testing';
import { MessageBody, SubscribeMessage, WebSocketGateway } from '@nestjs/websockets';
import { type SyncGuardError, SyncGuardExceptionFilter } from 'nestjs-syncguard';
import { listen } from '../support/adapters.js';
import { graphqlApp } from './apps/graphql-app.js';
import { hybridApp } from './apps/hybrid-app.js';
import { NEST_VERSION } from './apps/nest-version.js';
import type { Reply } from './apps/reply.js';
import { rpcApp } from './apps/rpc-app.js';
import { socketApp, type SocketKind } from './apps/socket-app.js';
import { type JobName, jobsUnder, Work } from './jobs.js';

/** What an edge says of a refusal, in whatever way. */
export interface Refusal {
  readonly statusCode: number;
  readonly code: string;
  readonly message: unknown;
  readonly context: unknown;
}

export interface RunningApp {
  readonly app: INestApplicationContext;
  /** Calls a job from outside; undefined where nobody is answered. */
  call(job: JobName): Promise<Reply | undefined>;
  close(): Promise<void>;
}

/** The table's note on calls that are denied, and nobody is told. */
export const UNANSWERED = 'yes (4)';

/** A place in Nest where methods are called from: a row of the table in docs/contexts.md. */
export interface Cell {
  readonly context: string;
  readonly adapter: string;
  /** The key that the decorator makes of what Nest hands to the method. */
  readonly key: string;
  /** What the table says of `@WithLock` and `@WithBudget`. */
  readonly guarded: 'yes' | `yes (${number})`;
  /** What it says of `@RateLimit`, which applies where Nest asks guards. */
  readonly limited: 'yes' | `yes (${number})` | typeof UNANSWERED | 'no';
  /** Nobody is told what came of a call. */
  readonly silent?: true;
  /** What whoever called is told of a refusal; undefined where nobody is. */
  readonly refused: (refusal: Refusal) => Reply | undefined;
  start(imports: NonNullable<ModuleMetadata['imports']>): Promise<RunningApp>;
}

type Imports = NonNullable<ModuleMetadata['imports']>;
const byMessage = {
  key: 'job:7',
  guarded: 'yes' as const,
  limited: 'yes' as const,
  refused: (refusal: Refusal) => ({ exception: { status: 'error', ...refusal } }),
};
const silent = {
  key: 'job:none',
  guarded: 'yes' as const,
  limited: 'no' as const,
  silent: true as const,
  refused: () => undefined,
};

type Behaviour = Pick<Cell, 'key' | 'guarded' | 'limited' | 'silent' | 'refused' | 'start'>;
type Server = 'express' | 'fastify';
const perRequest = { scope: Scope.REQUEST };

const routes = (onClass: ClassDecorator): Type<unknown> =>
  jobsUnder({ onClass, onMethod: (name) => Get(`${name}/:id`), onParameter: () => Param('id') });

const controller = (adapter: Server, Routes = routes(Controller())): Behaviour => ({
  key: 'job:7',
  guarded: 'yes',
  limited: 'yes',
  refused: (refusal) => ({ exception: { status: refusal.statusCode, ...refusal } }),
  async start(imports) {
    const { app, url } = await listen(adapter, { imports, controllers: [Routes], providers: [Work] });
    return { app, call: (job) => get(`${url}/${job}/7`), close: () => app.close() };
  },
});

async function get(url: string): Promise<Reply> {
  const response = await fetch(url);
  if (response.ok) return { answer: await response.text() };
  return { exception: { status: response.status, ...((await response.json()) as object) } };
}

@ObjectType()
class Job {
  @Field() id!: string;
}

@Resolver()
class JobResolver {
  @Query(() => Job)
  job(@Args('id') id: string): Job {
    return { id };
  }
}

const id = (): ParameterDecorator => Args('id', { type: () => String });
const queries = (onClass: ClassDecorator): Type<unknown> =>
  jobsUnder({ onClass, onMethod: (name) => Query(() => String, { name }), onParameter: id });
const mutations = (onClass: ClassDecorator): Type<unknown> =>
  jobsUnder({ onClass, onMethod: (name) => Mutation(() => String, { name }), onParameter: id });
const fields = (onClass: ClassDecorator): Type<unknown> =>
  jobsUnder({ onClass, onMethod: (name) => ResolveField(name, () => String), onParameter: () => Parent() });

const resolver = (adapter: Server, Jobs: Type<unknown>, operation: (job: JobName) => string): Behaviour => ({
  key: 'job:7',
  guarded: 'yes',
  limited: 'yes',
  refused: ({ message, ...extensions }) => ({ exception: { message, extensions } }),
  async start(imports) {
    const { app, query, close } = await graphqlApp(
      adapter,
      { imports, providers: [Jobs, JobResolver, Work] },
      { fieldResolverEnhancers: ['guards', 'interceptors', 'filters'] },
    );
    return {
      app,
      close,
      async call(job) {
        const { data, errors: [error] = [] } = await query(operation(job));
        if (error) return { exception: { message: error.message, extensions: error.extensions } };
        const value = data?.[job] ?? (data?.['job'] as Record<string, unknown> | undefined)?.[job];
        return { answer: value };
      },
    };
  },
});

const query = (adapter: Server, onClass: ClassDecorator = Resolver()): Behaviour =>
  resolver(adapter, queries(onClass), (job) => `{ ${job}(id: "7") }`);
const mutation = (adapter: Server): Behaviour =>
  resolver(adapter, mutations(Resolver()), (job) => `mutation { ${job}(id: "7") }`);
const field = (adapter: Server): Behaviour => ({
  ...resolver(adapter, fields(Resolver(() => Job)), (job) => `{ job(id: "7") { ${job} } }`),
  guarded: 'yes (1)',
  limited: 'yes (1)',
});

const gateway = (kind: SocketKind, ...onClass: ClassDecorator[]): Behaviour => ({
  ...byMessage,
  guarded: 'yes (3)',
  // Nest 11 tells clients of ws of no exception. A lock's and a budget's are told by our filter.
  limited: kind === 'ws' && NEST_VERSION === 11 ? UNANSWERED : 'yes',
  async start(imports) {
    const Gateway = jobsUnder({
      onClass: applyDecorators(WebSocketGateway(), UseFilters(SyncGuardExceptionFilter), ...onClass),
      onMethod: (name) => SubscribeMessage(name),
      onParameter: () => MessageBody(),
    });
    const { app, send, close } = await socketApp(kind, { imports, providers: [Gateway, Work] });
    return { app, call: (job) => send(job, '7'), close };
  },
});

const messages = (onClass: ClassDecorator): Behaviour => ({
  ...byMessage,
  async start(imports) {
    const Messages = jobsUnder({
      onClass,
      onMethod: (name) => MessagePattern(name),
      onParameter: () => Payload(),
    });
    const { app, send, close } = await rpcApp({ imports, controllers: [Messages], providers: [Work] });
    return { app, call: (job) => send(job, '7'), close };
  },
});

const events = (onClass: ClassDecorator): Behaviour => ({
  ...silent,
  key: 'job:7',
  limited: 'yes',
  async start(imports) {
    const Events = jobsUnder({
      onClass,
      onMethod: (name) => EventPattern(name) as MethodDecorator,
      onParameter: () => Payload(),
    });
    const { app, emit, close } = await rpcApp({ imports, controllers: [Events], providers: [Work] });
    return { app, call: (job) => emit(job, '7').then(() => undefined), close };
  },
});

/** What the path of a request says, or a message. */
const JobId = createParamDecorator((_: unknown, context: ExecutionContext) =>
  context.getType() === 'http'
    ? context.switchToHttp().getRequest<{ params: { id: string } }>().params.id
    : context.switchToRpc().getData<string>(),
);
const RoutesAndMessages = jobsUnder({
  onClass: Controller(),
  onMethod: (name) => applyDecorators(Get(`${name}/:id`), MessagePattern(name)),
  onParameter: () => JobId(),
});

/** Called for a lock by HTTP and by message in turn, and for the rest by message. */
const hybrid = (adapter: Server): Behaviour => ({
  ...byMessage,
  async start(imports) {
    const metadata = { imports, controllers: [RoutesAndMessages], providers: [Work] };
    const { app, url, rpc, close } = await hybridApp(adapter, 'ws', metadata);
    let byHttp = false;
    return {
      app,
      close,
      call(job) {
        byHttp = job.startsWith('lock') && !byHttp;
        return byHttp ? get(`${url}/${job}/7`) : rpc.send(job, '7');
      },
    };
  },
});

const Provider = jobsUnder({ onClass: Injectable(), onMethod: () => () => {} });

const CalledByCode: Behaviour = {
  key: 'job:7',
  guarded: 'yes',
  limited: 'no',
  refused: ({ code }) => ({ exception: { code } }),
  async start(imports) {
    const app = await Test.createTestingModule({ imports, providers: [Provider, Work] }).compile();
    await app.init();
    const jobs = app.get<Record<JobName, (id: string) => Promise<string>>>(Provider);
    return {
      app,
      close: () => app.close(),
      call: (job) =>
        jobs[job]('7').then(
          (answer) => ({ answer }),
          ({ code }: SyncGuardError) => ({ exception: { code } }),
        ),
    };
  },
};

/** A provider whose jobs are started by something that waits for none and answers nobody. */
const startedBy =
  (
    module: Imports[number],
    onMethod: (name: JobName) => MethodDecorator,
    trigger: (app: INestApplicationContext, job: JobName) => void,
    onClass: ClassDecorator = Injectable(),
  ): Cell['start'] =>
  async (imports) => {
    const Jobs = jobsUnder({ onClass, onMethod });
    const app = await Test.createTestingModule({
      imports: [...imports, module],
      providers: [Jobs, Work],
    }).compile();
    await app.init();
    return {
      app,
      close: () => app.close(),
      async call(job) {
        trigger(app, job);
        return undefined;
      },
    };
  };

const onCron = startedBy(
  ScheduleModule.forRoot(),
  (name) => Cron('0 0 1 1 *', { name }),
  (app, job) => void app.get(SchedulerRegistry).getCronJob(job).fireOnTick(),
);
const NEVER_MS = 2 ** 31 - 1;
const onInterval = startedBy(
  ScheduleModule.forRoot(),
  (name) => Interval(name, NEVER_MS),
  // Node has no public way to let a timer fire before its time.
  (app, job) => {
    const timer: { _onTimeout(): void } = app.get(SchedulerRegistry).getInterval(job);
    timer._onTimeout();
  },
);
const onEvent = (onClass: ClassDecorator): Cell['start'] =>
  startedBy(
    EventEmitterModule.forRoot(),
    (name) => OnEvent(name),
    (app, job) => void app.get(EventEmitter2).emit(job, '7'),
    onClass,
  );

export const CELLS: readonly Cell[] = [
  { context: 'controller', adapter: 'Express', ...controller('express') },
  { context: 'controller', adapter: 'Fastify', ...controller('fastify') },
  { context: 'query', adapter: 'Apollo, Express', ...query('express') },
  { context: 'query', adapter: 'Apollo, Fastify', ...query('fastify') },
  { context: 'mutation', adapter: 'Apollo, Express', ...mutation('express') },
  { context: 'mutation', adapter: 'Apollo, Fastify', ...mutation('fastify') },
  { context: '`@ResolveField`', adapter: 'Apollo, Express', ...field('express') },
  { context: '`@ResolveField`', adapter: 'Apollo, Fastify', ...field('fastify') },
  { context: 'gateway', adapter: 'socket.io', ...gateway('socket.io') },
  { context: 'gateway', adapter: 'ws', ...gateway('ws') },
  { context: '`@MessagePattern`', adapter: 'TCP', ...messages(Controller()) },
  { context: '`@EventPattern`', adapter: 'TCP', ...events(Controller()) },
  { context: 'hybrid app', adapter: 'Express, TCP', ...hybrid('express') },
  { context: 'hybrid app', adapter: 'Fastify, TCP', ...hybrid('fastify') },
  { context: 'provider', adapter: '–', ...CalledByCode },
  { context: '`@OnEvent`', adapter: '–', ...silent, key: 'job:7', start: onEvent(Injectable()) },
  { context: '`@Cron`', adapter: '–', ...silent, start: onCron },
  { context: '`@Interval`', adapter: '–', ...silent, start: onInterval },
];

/** The same with an instance of the class for each call: where Nest makes them. */
export const REQUEST_SCOPED: readonly Cell[] = [
  {
    context: 'controller, request-scoped',
    adapter: 'Express',
    ...controller('express', routes(Controller(perRequest))),
  },
  {
    context: 'query, request-scoped',
    adapter: 'Apollo, Express',
    ...query('express', applyDecorators(Resolver(), Injectable(perRequest))),
  },
  {
    context: '`@MessagePattern`, request-scoped',
    adapter: 'TCP',
    ...messages(Controller(perRequest)),
  },
  { context: '`@EventPattern`, request-scoped', adapter: 'TCP', ...events(Controller(perRequest)) },
  ...(NEST_VERSION === 11
    ? []
    : [
        {
          context: 'gateway, request-scoped',
          adapter: 'socket.io',
          ...gateway('socket.io', Injectable(perRequest)),
        },
      ]),
  {
    context: '`@OnEvent`, request-scoped',
    adapter: '–',
    ...silent,
    key: 'job:7',
    start: onEvent(Injectable(perRequest)),
  },
];

/** Rows whose tests are in subscriptions.spec.ts: there a method is a stream. */
export const SUBSCRIPTIONS = [
  {
    context: 'subscription',
    adapter: 'Apollo, Express',
    server: 'express',
    guarded: 'yes (2)',
    limited: 'yes',
  },
  {
    context: 'subscription',
    adapter: 'Apollo, Fastify',
    server: 'fastify',
    guarded: 'yes (2)',
    limited: 'yes',
  },
] as const;
