import type { Card } from '../page/card.js';

export const aiCard: Card = {
  id: 'ai',
  title: 'Cap what a language model costs',
  route: 'POST /ai/complete · GET /ai/budget',
  text: [
    'The user, their team (ada and bob: research, eve: sales, all others: guests) and the org pay for each request, and each has a limit for the day and one for the month. The highest possible cost is reserved in all six before the model runs. Afterwards the actual cost, about 60% of that, is spent, and the rest becomes free.',
    'Ask five times at once. As many requests run as fit into the limits together, and the others get 429 with the time to wait. Ask for 4,000 tokens. A user has fewer in a whole day, so waiting does not help, and the answer is 402.',
  ],
  fields: [
    { name: 'user', label: 'User', value: 'ada' },
    { name: 'prompt', label: 'Prompt', value: 'Why is the sky blue?' },
    { name: 'maxTokens', label: 'Maximum tokens', value: '800', type: 'number' },
  ],
  buttons: [
    { name: 'five', label: 'Ask five times at once' },
    { name: 'one', label: 'Ask once' },
    { name: 'next', label: 'Switch to another user' },
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
      if (user !== value('user')) return; // The user has changed meanwhile, and has an answer of their own.
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
      (requested > limit ? ', so waiting does not help' : ', anew on ' + date(resetAtMs) + ' at 00:00 UTC');

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
      return 'The user is now ' + value('user') + '.';
    });
    changed('user', draw);
    draw();
  `,
};
