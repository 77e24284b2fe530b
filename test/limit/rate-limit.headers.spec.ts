import { resolvePolicy } from '../../lib/limit/limit.policy.js';
import type { ResponseLike } from '../../lib/limit/route/limited-call.js';
import { rateLimitHeaders, setHeader } from '../../lib/limit/route/rate-limit.headers.js';

describe('rateLimitHeaders', () => {
  const policy = resolvePolicy({ name: 'a "b" \\c', limit: 5, windowMs: 1_500 });
  const decision = { allowed: true, shortCount: 2, longCount: 2, remaining: 3, resetMs: 1_001 } as const;

  it('quotes names as structured fields ask for, and rounds up', () => {
    expect(rateLimitHeaders(['draft-10'], [{ policy, decision }])).toEqual([
      ['RateLimit-Policy', '"a \\"b\\" \\\\c";q=5;w=2'],
      ['RateLimit', '"a \\"b\\" \\\\c";r=3;t=2'],
    ]);
  });

  it('has no headers where nobody was asked', () => {
    expect(rateLimitHeaders(['draft-10', 'legacy'], [])).toEqual([]);
  });

  it('speaks in the old ones of the limit that leaves least', () => {
    const other = resolvePolicy({ name: 'other', limit: 100, windowMs: 60_000 });
    expect(
      rateLimitHeaders(
        ['legacy'],
        [
          { policy: other, decision: { ...decision, remaining: 98 } },
          { policy, decision },
        ],
      ),
    ).toEqual([
      ['X-RateLimit-Limit', '5'],
      ['X-RateLimit-Remaining', '3'],
      ['X-RateLimit-Reset', '2'],
    ]);
  });
});

describe('setHeader', () => {
  const set = jest.fn<void, [string, string]>();
  const setOn = (response: object): unknown[][] => {
    set.mockClear();
    setHeader(response as ResponseLike, 'A', '1');
    return set.mock.calls;
  };

  it('sets it by what the response has: `header` of an adapter before `setHeader` of Node.js', () => {
    expect(setOn({ header: set, setHeader: fail })).toEqual([['A', '1']]);
    expect(setOn({ setHeader: set })).toEqual([['A', '1']]);
  });

  it('sets nothing on a response that was sent, and on what a context of GraphQL calls a response', () => {
    expect(setOn({ header: set, headersSent: true })).toEqual([]);
    expect(setOn({ header: set, raw: { headersSent: true } })).toEqual([]);
    expect(setOn({})).toEqual([]);
  });
});

const fail = (): never => {
  throw new Error('It was asked.');
};
