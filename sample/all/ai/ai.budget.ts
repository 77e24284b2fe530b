import type { BudgetLimit } from 'nestjs-syncguard';

const day = { every: 'day' } as const;
const month = { every: 'month' } as const;

/** Limits in tokens for each user, each team and the whole org. Days and months end at 00:00 UTC. */
export const aiLimits: BudgetLimit[] = [
  { scope: 'user', period: day, limit: 3_000 },
  { scope: 'user', period: month, limit: 20_000 },
  { scope: 'team', period: day, limit: 6_000 },
  { scope: 'team', period: month, limit: 60_000 },
  { scope: 'org', period: day, limit: 12_000 },
  { scope: 'org', period: month, limit: 200_000 },
];

/** Stands for a table in a database. */
const TEAMS: ReadonlyMap<string, string> = new Map([
  ['ada', 'research'],
  ['bob', 'research'],
  ['eve', 'sales'],
]);

/** Returns the scopes that pay for a request of the user. All three must have room. */
export const scopesOf = (user: string): string[] => [
  `user:${user}`,
  `team:${TEAMS.get(user) ?? 'guests'}`,
  'org',
];
