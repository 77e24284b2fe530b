import { defineScript, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';
import type { ClaimReply, Kept } from '../once.backend.js';
import { TURN_MS } from '../once.times.js';
import { LIVE, RECORD, SAVE, WAITERS } from './once.fragments.js';

const FORMS = ['value', 'http', 'error', 'none'] as const;

/**
 * once-claim: Lets a call run, gives it the result of an earlier one, or tells why it has neither.
 * KEYS: record
 * ARGV: onceKey, claimNonce, claimPrint, leaseMs, keepMs, afterCrash, waiter, callProcess, waitMs
 * Reply: 'claimed' with attempt and fence; 'done' with attempt, at, form and result; 'busy' with the ms until the call may
 *   run and those since the other began; 'mismatch' or 'unknown'
 * Atomic: of any number of calls one runs, and none while or after another one has.
 */
export const claimScript = defineScript({
  name: 'once-claim',
  keys: ['record'],
  args: [
    ...['onceKey', 'claimNonce', 'claimPrint', 'leaseMs', 'keepMs', 'afterCrash'],
    ...['waiter', 'callProcess', 'waitMs'],
  ] as const,
  binary: true,
  alone: true,
  lua: /* lua */ `${NOW_MS}${RECORD}${LIVE}${SAVE}${WAITERS}
if not once then
  once = {fence = 0, attempt = 0, crash = afterCrash, print = claimPrint, form = 'none', key = onceKey,
    keyBytes = #onceKey, result = '', waiters = '-'}
elseif once.key ~= onceKey then
  return redis.error_reply('SYNCGUARD_FOREIGN the record is of another key')
elseif once.state == 'running' and once.nonce == claimNonce then
  return {'claimed', tonumber(once.attempt), once.fence}
elseif once.print ~= claimPrint then
  return {'mismatch'}
elseif once.state == 'done' then
  return {'done', tonumber(once.attempt), tonumber(once.at), once.form, once.result}
elseif once.state == 'running' and not isLive and once.crash == 'refuse' then
  return {'unknown'}
else
  local list = waiting()
  local place = #list + 1
  for i, each in ipairs(list) do if each.id == waiter then place = i end end
  local mine = list[place]
  local turnMs = tonumber(once.at)
  if not isLive then turnMs = turnMs + (place - 1) * ${TURN_MS} end
  if nowMs < turnMs then
    if tonumber(waitMs) > 0 and not mine then
      local entry = waiter .. ':' .. callProcess .. ':' .. nowMs + waitMs .. ','
      once.waiters = (#list > 0 and once.waiters or '') .. entry
      save()
    end
    return {'busy', turnMs - nowMs, nowMs - once.started}
  end
  local others = {}
  for _, each in ipairs(list) do if each ~= mine then others[#others + 1] = each.entry end end
  once.waiters = #others > 0 and table.concat(others) or '-'
end

local clock = time[1] * 10000 + math.floor(time[2] / 100)
once.state, once.nonce, once.attempt = 'running', claimNonce, once.attempt + 1
once.fence = string.format('%015.0f', math.max(once.fence + 1, clock))
once.started, once.at, once.keep = nowMs, nowMs + leaseMs, keepMs
save()
return {'claimed', once.attempt, once.fence}`,
  decode(reply): ClaimReply {
    if (!Array.isArray(reply)) return unexpectedReply('once-claim', reply);
    const [status, first, second, form, result] = reply as [unknown, number, unknown, unknown, unknown];
    switch (String(status)) {
      case 'claimed':
        return { status: 'claimed', attempt: first, fence: String(second) };
      case 'done':
        if (!Buffer.isBuffer(result)) break;
        return { status: 'done', attempt: first, atMs: second as number, kept: keptOf(String(form), result) };
      case 'busy':
        return { status: 'busy', remainingMs: first, ranForMs: second as number };
      case 'mismatch':
        return { status: 'mismatch' };
      case 'unknown':
        return { status: 'unknown' };
      default:
    }
    return unexpectedReply('once-claim', reply);
  },
});

const keptOf = (form: string, bytes: Buffer): Kept => ({
  form: FORMS.find((each) => each === form) ?? unexpectedReply('once-claim', form),
  bytes,
});
