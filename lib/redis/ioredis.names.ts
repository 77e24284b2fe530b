// The names of ioredis' options, of versions 5 and 6. A test compares them with its types.

// Of a node and of a Cluster as a whole.
const OF_BOTH = [
  'autoPipeliningIgnoredCommands',
  'enableAutoPipelining',
  'enableReadyCheck',
  'keyPrefix',
  'lazyConnect',
  'natMap',
  'scripts',
  'showFriendlyErrorStack',
];

/** Options of a node of a Cluster (`redisOptions`). Those of its address, and a few others, are not among them. */
export const NODE_OPTIONS: readonly string[] = [
  ...OF_BOTH,
  'Connector',
  'autoResendUnfulfilledCommands',
  'autoResubscribe',
  'blockingTimeout',
  'blockingTimeoutGrace',
  'clientInfoTag',
  'commandQueue',
  'commandTimeout',
  'connectTimeout',
  'connectionName',
  'db',
  'disableClientInfo',
  'disconnectTimeout',
  'enableTLSForSentinelMode',
  'failoverDetector',
  'family',
  'keepAlive',
  'maxLoadingRetryTime',
  'maxRetriesPerRequest',
  'monitor',
  'name',
  'noDelay',
  'offlineQueue',
  'password',
  'preferredSlaves',
  'protocol',
  'reconnectOnError',
  'replyMapping',
  'role',
  'sentinelCommandTimeout',
  'sentinelMaxConnections',
  'sentinelPassword',
  'sentinelReconnectStrategy',
  'sentinelRetryStrategy',
  'sentinelTLS',
  'sentinelUsername',
  'socketTimeout',
  'stringNumbers',
  'tls',
  'updateSentinels',
  'username',
];

/** Options of a connection to one server, or to a primary behind Sentinels. */
export const SERVER_OPTIONS: readonly string[] = [
  ...NODE_OPTIONS,
  'enableOfflineQueue',
  'himportFieldsets',
  'host',
  'path',
  'port',
  'readOnly',
  'retryStrategy',
  'sentinels',
];

/** Options of a Cluster as a whole. */
export const CLUSTER_OPTIONS: readonly string[] = [
  ...OF_BOTH,
  'clusterNodeRetryStrategy',
  'clusterRetryStrategy',
  'dnsLookup',
  'enableOfflineQueue',
  'himportFieldsets',
  'maxRedirections',
  'redisOptions',
  'resolveSrv',
  'retryDelayOnClusterDown',
  'retryDelayOnFailover',
  'retryDelayOnMoved',
  'retryDelayOnTryAgain',
  'scaleReads',
  'shardedSubscribers',
  'slotsRefreshInterval',
  'slotsRefreshTimeout',
  'useSRVRecords',
];

/** Options of the address of one Sentinel. */
export const SENTINEL_OPTIONS: readonly string[] = ['family', 'host', 'port'];
