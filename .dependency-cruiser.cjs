// The arrows of the code: who may import whom. Any other import, and every cycle, fails `npm run check:arch`.
// test/package/architecture.spec.ts shows that each rule finds what it forbids.

const SCRIPTS = '[.](scripts|fragments)[.]ts$';

const rule = (name, comment, from, to) => ({ name, comment, severity: 'error', from, to });

/** @type {import('dependency-cruiser').IConfiguration} */
module.exports = {
  forbidden: [
    rule('no-cycles', 'What two modules need of each other belongs in a third.', {}, { circular: true }),
    rule('no-dead-imports', 'The import leads nowhere.', {}, { couldNotResolve: true }),
    rule(
      'features-apart',
      'The features never import each other: what two of them need moves down.',
      { path: '^lib/(lock|limit|budget|secret)/' },
      { path: '^lib/(lock|limit|budget|secret)/', pathNot: '^lib/$1/' },
    ),
    rule(
      'policy-sees-the-port',
      'Services, decorators, guards and interceptors see a port, never, on any path, how it is carried out.',
      { path: '^lib/.*[.](service|decorator|guard|interceptor)[.]ts$' },
      { path: ['^lib/(redis|script|backend)/', '[.](redis|memory)-backend[.]ts$', SCRIPTS], reachable: true },
    ),
    rule(
      'memory-without-redis',
      'A memory backend needs nothing that is there for Redis.',
      { path: '[.]memory-backend[.]ts$' },
      { path: ['^lib/(redis|script)/', '[.]redis-backend[.]ts$', SCRIPTS], reachable: true },
    ),
    rule(
      'ioredis-as-a-type',
      'Which ioredis is loaded is for the user to say: only redis.connect.ts makes a client.',
      { path: '^lib/', pathNot: '^lib/redis/redis[.]connect[.]ts$' },
      { path: '(^|/)node_modules/ioredis/', dependencyTypesNot: ['type-only'] },
    ),
    rule(
      'backends-without-nest',
      'Backends, scripts and connections work in programs without Nest.',
      { path: ['[.](redis-|memory-)?backend[.]ts$', SCRIPTS, '^lib/(script|redis)/'] },
      { path: '(^|/)node_modules/@nestjs/' },
    ),
    rule(
      'entries-without-nest',
      'The entries ./core and ./compat load where Nest is not installed: nothing that they reach imports it, not even as a type.',
      { path: '^lib/(core|compat)[.]ts$' },
      { path: '(^|/)node_modules/(@nestjs|rxjs|reflect-metadata)/', reachable: true },
    ),
    rule(
      'downward-only',
      'script/ stands on redis/, and knows neither features nor what assembles them.',
      { path: '^lib/(script|redis)/' },
      { path: ['^lib/(?!(script|redis)/).+/', '^lib/(index|syncguard[.](module|options|health))'] },
    ),
    rule(
      'redis-at-the-bottom',
      'redis/ knows no scripts.',
      { path: '^lib/redis/' },
      { path: '^lib/script/' },
    ),
    rule(
      'features-below-assembly',
      'Features do not know how they are put together.',
      { path: '^lib/(lock|limit|budget|secret)/' },
      { path: ['^lib/backend/', '^lib/(index|syncguard[.](module|module-definition|health))[.]ts$'] },
    ),
    rule(
      'testing-on-top',
      'What runs in production knows nothing of the tools for tests.',
      { path: '^lib/(?!testing/)' },
      { path: '^lib/testing/' },
    ),
    rule(
      'peers-only',
      'What is published needs its peers, Node and nothing else.',
      { path: '^lib/' },
      {
        path: ['^(sample|test|bench|tools)/', '(^|/)node_modules/'],
        pathNot:
          '(^|/)node_modules/(@nestjs/(common|core|websockets|microservices)|ioredis|reflect-metadata|rxjs)/',
      },
    ),
    rule(
      'optional-packages-late',
      'Only rate-limit.exception.ts needs packages that an app may not have: when a call came by them.',
      { path: '^lib/', pathNot: '^lib/limit/rate-limit[.]exception[.]ts$' },
      { path: '(^|/)node_modules/@nestjs/(websockets|microservices|graphql)/' },
    ),
    rule(
      'optional-packages-lazy',
      'What is optional is imported when it is needed, never with the package.',
      { path: '^lib/' },
      {
        path: '(^|/)node_modules/@nestjs/(websockets|microservices)/',
        dependencyTypesNot: ['dynamic-import', 'type-only'],
      },
    ),
    rule(
      'sample-is-a-user',
      'The sample imports the package by its name, as users do.',
      { path: '^sample/' },
      { path: '^(lib|test|bench)/', dependencyTypesNot: ['aliased'] },
    ),
  ],
  options: {
    tsConfig: { fileName: 'tsconfig.json' },
    // Sees imports of types too, and tells them from the others.
    tsPreCompilationDeps: 'specify',
    doNotFollow: { path: '(^|/)node_modules/' },
    exclude: { path: '^(dist|sample/dist|test/package/apps)/' },
    enhancedResolveOptions: {
      extensions: ['.ts', '.js', '.json'],
      exportsFields: ['exports'],
      conditionNames: ['import', 'node', 'default'],
    },
  },
};
