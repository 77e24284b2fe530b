import { ApolloDriver, type ApolloDriverConfig } from '@nestjs/apollo';
import type { ModuleMetadata } from '@nestjs/common';
import { GraphQLModule } from '@nestjs/graphql';
import { type Client, createClient } from 'graphql-ws';
import { WebSocket } from 'ws';
import { type HttpApp, listen } from '../../support/adapters.js';

/** What GraphQL answers: over HTTP to an operation, over a socket to each item of a subscription. */
export interface GraphQLAnswer {
  readonly data?: Readonly<Record<string, unknown>> | null;
  readonly errors?: readonly {
    readonly message: string;
    readonly path?: readonly (string | number)[];
    readonly extensions?: Readonly<Record<string, unknown>>;
  }[];
}

export interface GraphQLApp extends HttpApp {
  /** Runs a query or a mutation over HTTP. */
  query(
    text: string,
    options?: { variables?: object; headers?: Record<string, string> },
  ): Promise<GraphQLAnswer>;
  /** Opens a subscription on a socket of its own; leaving the loop ends it. */
  subscribe(text: string, variables?: Record<string, unknown>): AsyncIterableIterator<GraphQLAnswer>;
  close(): Promise<void>;
}

/**
 * Apollo with the schema of the given resolvers.
 *
 * @example
 * const app = await graphqlApp('fastify', { imports: [SyncGuardModule.forRoot()], providers: [OrdersResolver] });
 * const { data } = await app.query('mutation { pay(id: "7") }');
 */
export async function graphqlApp(
  adapter: 'express' | 'fastify',
  metadata: ModuleMetadata,
  config: Partial<ApolloDriverConfig> = {},
): Promise<GraphQLApp> {
  const graphql = GraphQLModule.forRoot<ApolloDriverConfig>({
    driver: ApolloDriver,
    autoSchemaFile: true,
    subscriptions: { 'graphql-ws': true },
    includeStacktraceInErrorResponses: false,
    ...config,
  });
  const { app, url } = await listen(adapter, {
    ...metadata,
    imports: [...(metadata.imports ?? []), graphql],
  });
  const subscribers: Client[] = [];
  return {
    app,
    url,
    async query(query, { variables, headers } = {}) {
      const response = await fetch(`${url}/graphql`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...headers },
        body: JSON.stringify({ query, variables }),
      });
      return (await response.json()) as GraphQLAnswer;
    },
    subscribe(query, variables) {
      const client = createClient({
        url: `${url.replace('http', 'ws')}/graphql`,
        webSocketImpl: WebSocket,
        retryAttempts: 0,
      });
      subscribers.push(client);
      return client.iterate({ query, variables }) as AsyncIterableIterator<GraphQLAnswer>;
    },
    async close() {
      for (const client of subscribers) await client.dispose();
      await app.close();
    },
  };
}
