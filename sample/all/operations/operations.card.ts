import type { Card } from '../page/card.js';

export const operationsCard: Card = {
  id: 'operations',
  title: 'See what is stuck, and free it',
  route: 'GET /operations/locks · /blocked · /budgets · /once',
  text: [
    'What an operator has at night, behind a password: the app prints one as it starts, or has that of OPERATOR_PASSWORD. Pay an order that hangs, and look at what is held. The release wants the fence of the lock that you have seen. If another call has the lock meanwhile, it keeps it.',
    'The call that held it gets LockLost at once. Where a process hangs, its work may go on: only a resource that checks fences is safe from it.',
  ],
  fields: [
    { name: 'password', label: 'Password', value: '', type: 'password' },
    { name: 'by', label: 'You', value: 'ann' },
    { name: 'reason', label: 'Why', value: 'its process hangs' },
  ],
  buttons: [
    { name: 'locks', label: 'Locks' },
    { name: 'blocked', label: 'Who is blocked' },
    { name: 'budgets', label: 'Budgets' },
    { name: 'once', label: 'Unknown outcomes' },
    { name: 'hang', label: 'Pay an order that hangs' },
  ],
  panel: 'What was found',
  commands: [
    {
      does: 'What is held',
      line: `curl -s '{origin}/operations/locks?prefix=order:' -H "Authorization: Bearer $OPERATOR_PASSWORD"`,
    },
    {
      does: 'Who holds it, and who waits',
      line: `curl -s '{origin}/operations/lock?key=order:slow' -H "Authorization: Bearer $OPERATOR_PASSWORD"`,
    },
    {
      does: 'End it: FENCE is the one that you have seen',
      line: `curl -s {origin}/operations/locks/release -H "Authorization: Bearer $OPERATOR_PASSWORD" -H 'Content-Type: application/json' -d '{"key":"order:slow","fence":"FENCE","reason":"its process hangs","by":"ann"}'`,
    },
    {
      does: 'Who is blocked',
      line: `curl -s '{origin}/operations/blocked?policy=login' -H "Authorization: Bearer $OPERATOR_PASSWORD"`,
    },
    {
      does: 'What is spent, and what is running',
      line: `curl -s '{origin}/operations/budgets?root=default' -H "Authorization: Bearer $OPERATOR_PASSWORD"`,
    },
    {
      does: 'The calls of which nobody knows the end',
      line: `curl -s {origin}/operations/once -H "Authorization: Bearer $OPERATOR_PASSWORD"`,
    },
  ],
  script: `
    const ask = (method, path, body) => ({
      method,
      path: '/operations/' + path,
      body,
      headers: { Authorization: 'Bearer ' + value('password') },
    });
    const seconds = (ms) => Math.max(0, Math.round(ms / 1000)) + ' s';
    const found = element('ul', 'found');
    panel.append(found);

    // What was found, and for each of it the buttons that end it.
    function row(name, facts, buttons = []) {
      const item = element('li', '');
      const text = element('span', 'facts');
      text.append(element('b', '', name), ...facts.map((fact) => element('span', '', fact)));
      item.append(text);
      for (const [label, run] of buttons) {
        const button = element('button', '', label);
        button.type = 'button';
        onClick(button, run);
        item.append(button);
      }
      return item;
    }

    async function look(path, rowsOf) {
      const { status, body } = await call(ask('GET', path));
      if (status !== 200) return body.message;
      const rows = rowsOf(body);
      found.replaceChildren(...rows);
      return rows.length === 0 ? 'There is nothing.' : 'Found: ' + rows.length + '.';
    }
    const decide = async (path, body, show, again) => {
      const by = { by: value('by') };
      const [answer] = await send([ask('POST', path, { ...body, ...by })], show);
      if (answer.status === 200) await again();
      return answer.status !== 200 ? answer.body.message : (answer.body.released ?? answer.body.unblocked ?? answer.body.ok) ? 'Done.' : 'Nothing was changed.';
    };

    const locks = () => look('locks', ({ items }) => items.map(({ key, fence, acquiredAtMs, expiresAtMs, waiting }) =>
      row(key, [
        'fence ' + fence,
        'held for ' + seconds(Date.now() - acquiredAtMs),
        'lapses in ' + seconds(expiresAtMs - Date.now()) + ' unless renewed',
        waiting + ' waiting',
      ], [['Release', () => decide('locks/release', { key, fence, reason: value('reason') }, ['released', 'fence'], locks)]])));

    const budgets = () => look('budgets', ({ roots, balances, holds }) => [
      row('roots', [roots.join(', ') || 'none']),
      ...balances.items.map(({ scope, period, limit, committed, reserved, available }) =>
        row(scope, ['a ' + (period.every ?? 'lifetime'), committed + ' of ' + limit + ' spent', reserved + ' reserved', available + ' left'])),
      ...holds.map(({ id, amount, expiresAtMs }) =>
        row('hold ' + id, [amount + ' reserved', 'lapses in ' + seconds(expiresAtMs - Date.now())])),
    ]);

    const once = () => look('once', ({ items }) => items.map(({ key, attempt, startedAtMs }) =>
      row(key, ['attempt ' + attempt, 'began ' + new Date(startedAtMs).toISOString()], [
        ['It was not done', () => decide('once/forget', { key }, ['ok', 'reason'], once)],
      ])));

    const blocked = () =>
      look('blocked', ({ items }) => items.map(({ policy, tag, scope, endsAtMs }) =>
        row(policy ?? 'of no policy', ['tag ' + tag, scope, 'for ' + seconds(endsAtMs - Date.now())], [
          ['Unblock', () => decide('blocked/unblock', { tag, policy }, ['unblocked'], blocked)],
        ])));

    on('locks', locks);
    on('blocked', blocked);
    on('budgets', budgets);
    on('once', once);
    on('hang', async () => {
      void call({ method: 'POST', path: '/orders/slow/pay' });
      await new Promise((resolve) => setTimeout(resolve, 300));
      return 'The order "slow" is being paid, and its provider does not answer. ' + (await locks());
    });
  `,
};
