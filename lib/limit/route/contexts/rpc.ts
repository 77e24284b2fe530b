import type { ExecutionContext } from '@nestjs/common';
import { PATTERN } from '../../../transport/nest-metadata.js';
import { type LimitedCall, patternText } from '../limited-call.js';

/** Reads a message of a microservice. It has no address of a sender, so `keyBy` has to find a key in its data or context. */
export function messageCall(context: ExecutionContext): LimitedCall {
  const patterns = [Reflect.getMetadata(PATTERN, context.getHandler()) as unknown].flat();
  return {
    request: { headers: {}, body: context.switchToRpc().getData<unknown>() },
    route: `RPC ${patterns.map(patternText).join(',')}`,
  };
}
