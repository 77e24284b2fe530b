// ship.ts
import type { FenceGuard, LockContext } from 'nestjs-syncguard';
import type { Pool } from 'pg';

type Fence = Pick<LockContext, 'fence' | 'lockId'>;

/** On Redis the FenceGuard compares and writes in one step. `set.key` gets no `keyPrefix`. */
export async function shipOnRedis(fences: FenceGuard, id: string, state: string, lock: Fence) {
  const [resource, set] = [`order:${id}`, { key: `order:${id}`, value: state }];
  return (await fences.apply({ resource, fence: lock.fence, lockId: lock.lockId, set })).ok;
}

/** In SQL the WHERE of an UPDATE does. */
export async function shipInSql(db: Pool, id: string, state: string, lock: Fence) {
  const { rowCount } = await db.query(
    `UPDATE orders SET state = $1, last_fence = $2, last_lock_id = $3
     WHERE id = $4 AND (last_fence < $2 OR (last_fence = $2 AND last_lock_id = $3))`,
    [state, lock.fence, lock.lockId, id],
  );
  return rowCount === 1;
}
