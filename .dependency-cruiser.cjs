// The arrows of the code: who may import whom. Any other import, and every cycle, fails `npm run check:arch`.
// test/package/architecture.spec.ts shows that each rule finds what it forbids.

const FEATURES = '(lock|limit|counter|budget|secret|once)';
/** Every room of lib/, and the rooms below it that it may import. */
const BELOW = {
  core: [],
  redis: ['core'],
  script: ['redis', 'core'],
  telemetry: ['core'],
  transport: ['core'],
  method: ['core'],
  [FEATURES]: ['script', 'redis', 'method', 'transport', 'telemetry', 'core'],
  assembly: [FEATURES, 'script', 'redis', 'telemetry', 'core'],
  module: ['assembly', FEATURES, 'redis', 'transport', 'telemetry', 'core'],
  testing: ['module', 'assembly', FEATURES, 'redis', 'telemetry', 'core'],
};
const NEST = '(^|/)node_modules/(@nestjs|rxjs|reflect-metadata)/';

const rule = (name, comment, from, to) => ({ name, comment, severity: 'error', from, to });

const lookDown = Object.entries(BELOW).map(([room, below]) =>
  rule(
    room === FEATURES ? 'features-look-down' : `${room}-looks-down`,
    'A room imports itself and the rooms below it.',
    { path: `^lib/${room}/` },
    { path: '^lib/', pathNot: `^lib/(${[room === FEATURES ? '$1' : room, ...below].join('|')})/` },
  ),
);

/** @type {import('dependency-cruiser').IConfiguration} */
module.exports = {
  forbidden: [
    rule('no-cycles', 'What two modules need of each other belongs in a third.', {}, { circular: true }),
    {
      ...rule(
        'no-folder-cycles',
        'Two folders that import each other are one room with two doors.',
        { path: '^lib/' },
        { circular: true },
      ),
      scope: 'folder',
    },
    rule('no-dead-imports', 'The import leads nowhere.', {}, { couldNotResolve: true }),
    ...lookDown,
    rule(
      'entries-on-top',
      'The root of lib/ has the entries only. Nothing imports them.',
      { path: '^lib/' },
      { path: '^lib/[^/]+$' },
    ),
    rule(
      'policy-sees-the-port',
      'What a feature does sees its port, and never, on any path, how the port is implemented.',
      { path: `^lib/${FEATURES}/`, pathNot: `^lib/${FEATURES}/(redis|memory)/` },
      { path: ['^lib/(redis|script)/', `^lib/${FEATURES}/(redis|memory)/`], reachable: true },
    ),
    rule(
      'memory-without-redis',
      'A memory backend needs nothing that is there for Redis.',
      { path: `^lib/${FEATURES}/memory/` },
      { path: ['^lib/(redis|script)/', `^lib/${FEATURES}/redis/`], reachable: true },
    ),
    rule(
      'limits-without-routes',
      'The limiter works without the guard. The guard stands on it.',
      { path: '^lib/limit/(?!route/)' },
      { path: '^lib/limit/route/' },
    ),
    rule(
      'ioredis-as-a-type',
      'Which ioredis is loaded is for the user to say: only redis.connect.ts makes a client.',
      { path: '^lib/', pathNot: '^lib/redis/redis[.]connect[.]ts$' },
      { path: '(^|/)node_modules/ioredis/', dependencyTypesNot: ['type-only'] },
    ),
    rule(
      'backends-without-nest',
      'Ports, backends, scripts and connections work in programs without Nest: they reach it not even through a type.',
      {
        path: ['[.]backend[.]ts$', '^lib/(core|script|redis|telemetry)/', `^lib/${FEATURES}/(redis|memory)/`],
      },
      { path: NEST, reachable: true },
    ),
    rule(
      'entries-without-nest',
      'The entries ./core and ./compat load where Nest is not installed: nothing that they reach imports it, not even as a type.',
      { path: '^lib/(core|compat)[.]ts$' },
      { path: NEST, reachable: true },
    ),
    rule(
      'peers-only',
      'What is published needs its peers, Node and nothing else.',
      { path: '^lib/' },
      {
        path: ['^(sample|test|bench|tools)/', '(^|/)node_modules/'],
        pathNot:
          '(^|/)node_modules/(@nestjs/(common|core|websockets|microservices)|@opentelemetry/api|ioredis|reflect-metadata|rxjs)/',
      },
    ),
    rule(
      'optional-packages-late',
      'Only context-exceptions.ts needs packages that an app may not have: when a call came by them.',
      { path: '^lib/', pathNot: '^lib/transport/context-exceptions[.]ts$' },
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
      'opentelemetry-by-its-entry',
      'Only who imports ./opentelemetry needs @opentelemetry/api: nothing else reaches it, not even by a type.',
      { path: '^lib/', pathNot: '^lib/(opentelemetry[.]ts|telemetry/(opentelemetry|otel[.].*)[.]ts)$' },
      { path: '(^|/)node_modules/@opentelemetry/', reachable: true },
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
