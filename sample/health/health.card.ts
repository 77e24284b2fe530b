import type { Card } from '../page/card.js';

export const healthCard: Card = {
  id: 'health',
  title: 'See whether Redis answers',
  route: 'GET /health',
  text: [
    'Tells which backend the app runs on. When it is Redis, stop the server and ask again: 503, and payments are refused with 503 instead of running unguarded.',
  ],
  fields: [],
  buttons: [{ name: 'ask', label: 'Ask' }],
  commands: [{ does: 'Status and details', line: 'curl -i {origin}/health' }],
  script: `
    on('ask', async () => {
      const [{ body }] = await send([{ method: 'GET', path: '/health' }]);
      return 'Status: ' + body.status + '.';
    });
  `,
};
