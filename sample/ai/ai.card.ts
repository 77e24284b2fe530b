import type { Card } from '../page/card.js';

export const aiCard: Card = {
  id: 'ai',
  title: 'Cap what a language model costs',
  route: 'POST /ai/complete · GET /ai/budget',
  text: [
    'Each request is paid by the user, their team (ada and bob: research, eve: sales, all others: guests) and the org, each by the day and by the month. The most that it can cost is reserved in all six before the model runs; what it did cost, about 60% of that, is spent after it, and the rest goes back.',
    'Ask five times at once: as many run as there is room for together, and the others get 429 with the time to wait. Ask for 4,000 tokens: that is more than a user has in a whole day, so waiting is of no use: 402.',
  ],
  fields: [
    { name: 'user', label: 'User', value: 'ada' },
    { name: 'prompt', label: 'Prompt', value: 'Why is the sky blue?' },
    { name: 'maxTokens', label: 'Tokens, at most', value: '800', type: 'number' },
  ],
  buttons: [
    { name: 'five', label: 'Ask five times at once' },
    { name: 'one', label: 'Ask once' },
    { name: 'next', label: 'Be another user' },
  ],
  panel: 'Budgets',
  commands: [
    {
      does: 'Ask',
      line: `curl -i {origin}/ai/complete -H 'Content-Type: application/json' -d '{"user":"{user}","prompt":"Why is the sky blue?","maxTokens":800}'`,
    },
    { does: 'What is left', line: `curl -s '{origin}/ai/budget?user={user}'` },
  ],
  script: `
    const number = (amount) => amount.toLocaleString('en');
    const date = (ms) => new Date(ms).toLocaleDateString('en-GB', { day: 'numeric', month: 'short', timeZone: 'UTC' });
    const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

    const meters = element('div', 'meters');
    const legend = element('p', 'legend');
    for (const [name, text] of [['spent', 'spent'], ['reserved', 'reserved while running'], ['', 'left']]) {
      const key = element('span', '');
      key.append(element('i', 'key ' + name), text);
      legend.append(key);
    }

    const barOf = (name, share) => {
      const bar = element('span', name);
      bar.style.width = share * 100 + '%';
      return bar;
    };

    function lineOf(...parts) {
      const line = element('div', 'line');
      line.append(...parts);
      return line;
    }

    function meterOf({ scope, period, window, limit, committed, reserved, available }) {
      const made = element('div', 'budget');
      const meter = element('div', 'meter');
      meter.setAttribute('aria-hidden', 'true');
      meter.append(barOf('spent', committed / limit), barOf('reserved', reserved / limit));
      made.append(
        lineOf(
          element('span', 'name', scope.replace(':', ' ') + ', ' + period.every),
          element('span', 'dim', number(limit) + ' until ' + date(window.endMs)),
        ),
        meter,
        lineOf(
          element('span', 'dim', number(committed) + ' spent' + (reserved ? ', ' + number(reserved) + ' reserved' : '')),
          element('b', '', number(available) + ' left'),
        ),
      );
      return made;
    }

    async function draw() {
      const user = value('user');
      const { status, body } = await call({ method: 'GET', path: '/ai/budget?user=' + encodeURIComponent(user) });
      if (user !== value('user')) return; // somebody else by now, who has an answer of their own
      if (status !== 200) return panel.replaceChildren(element('p', 'legend', body.message));
      meters.replaceChildren(...body.budget.map(meterOf));
      panel.replaceChildren(legend, meters);
    }

    async function drawUntil(asking) {
      let over = false;
      asking.finally(() => { over = true; });
      while (!over) await Promise.all([draw(), pause(100)]);
      await draw();
    }

    // Which limit, and when it resets; a limit of requests has no violations.
    const whyNot = ({ context, message }) =>
      context?.violations
        ? 'Over budget: ' + context.violations.map(reasonOf).join('; ') + '.'
        : message;
    const reasonOf = ({ scope, period: { every }, limit, requested, resetAtMs }) =>
      'the ' + scope + ' has ' + number(limit) + ' a ' + every +
      (requested > limit ? ', which waiting does not change' : ', anew on ' + date(resetAtMs) + ' at 00:00 UTC');

    async function ask(count) {
      const body = { user: value('user'), prompt: value('prompt'), maxTokens: Number(value('maxTokens')) };
      const asking = send(Array.from({ length: count }, () => ({ method: 'POST', path: '/ai/complete', body })), ['text', 'usage']);
      const [answers] = await Promise.all([asking, drawUntil(asking)]);
      const refused = answers.filter(({ status }) => status !== 200);
      const answered = count - refused.length + ' of ' + count + ' answered. ';
      return refused.length === 0 ? answered : answered + whyNot(refused[0].body);
    }
    on('five', () => ask(5));
    on('one', () => ask(1));
    on('next', async () => {
      const users = ['ada', 'bob', 'eve'];
      fill('user', users[(users.indexOf(value('user')) + 1) % users.length]);
      await draw();
      return 'Now it is ' + value('user') + ' who asks.';
    });
    changed('user', draw);
    draw();
  `,
};
