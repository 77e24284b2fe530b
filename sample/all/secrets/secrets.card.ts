import type { Card } from '../page/card.js';

export const secretsCard: Card = {
  id: 'secrets',
  title: 'Send a secret that burns',
  route: 'POST /secrets · POST /secrets/:id/reveal',
  text: [
    'Make a secret, and send its link to a reader. Looking at the link costs nothing, so the preview of a chat burns nothing. Opening it costs a view, and the last view deletes the text in the same step.',
    'Open it from five readers at once. As many readers get the text as views are left, and the others get 410. Redis stores the text encrypted, and the key is not in Redis.',
  ],
  fields: [
    { name: 'text', label: 'Secret', value: 'The door code is 4711' },
    { name: 'views', label: 'Views', value: '2', type: 'number' },
    { name: 'seconds', label: 'Seconds', value: '300', type: 'number' },
    { name: 'id', label: 'Id in the link', value: '' },
  ],
  buttons: [
    { name: 'make', label: 'Make it' },
    { name: 'look', label: 'Look at the link' },
    { name: 'open', label: 'Open it' },
    { name: 'five', label: 'Open it five times at once' },
  ],
  commands: [
    {
      does: 'Make one',
      line: `curl -i -X POST {origin}/secrets -H 'Content-Type: application/json' -d '{"text":"The door code is 4711","views":2,"ttlMs":300000}'`,
    },
    { does: 'Look (burns nothing)', line: 'curl -i {origin}/secrets/{id}' },
    { does: 'Open', line: 'curl -i -X POST {origin}/secrets/{id}/reveal' },
  ],
  script: `
    const path = () => '/secrets/' + encodeURIComponent(value('id'));
    const reveal = () => ({ method: 'POST', path: path() + '/reveal' });
    const none = 'There is no secret yet. Make one first.';
    const show = ['text', 'viewsRemaining', 'burned'];

    on('make', async () => {
      const body = { text: value('text'), views: Number(value('views')), ttlMs: Number(value('seconds')) * 1000 };
      const [answer] = await send([{ method: 'POST', path: '/secrets', body }], ['url']);
      if (answer.status !== 201) return 'Not made.';
      fill('id', answer.body.id);
      return 'Made. Its link opens in any browser, and burns nothing until its reader presses a button.';
    });
    on('look', async () => {
      if (!value('id')) return none;
      const [{ status, body }] = await send([{ method: 'GET', path: path() }], ['viewsRemaining']);
      return status === 200 ? 'It is there, and looking has cost nothing.' : 'It is gone: ' + body.message;
    });
    on('open', async () => {
      if (!value('id')) return none;
      const [{ status, body }] = await send([reveal()], show);
      if (status !== 200) return 'Nothing to open: ' + body.message;
      return body.burned ? 'That was the last view, so the secret is burned.' : 'Opened.';
    });
    on('five', async () => {
      if (!value('id')) return none;
      const answers = await send(Array.from({ length: 5 }, reveal), show);
      return answers.filter(({ status }) => status === 200).length + ' of 5 got the text.';
    });

    // The visitor has followed the link of a secret.
    const [, linked] = /^\\/secrets\\/([\\w-]+)$/.exec(location.pathname) ?? [];
    if (linked) {
      fill('id', linked);
      document.getElementById('secrets').scrollIntoView();
    }
  `,
};
