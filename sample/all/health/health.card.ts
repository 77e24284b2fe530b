import type { Card } from '../page/card.js';

export const healthCard: Card = {
  id: 'health',
  title: 'See whether Redis answers',
  route: 'GET /health',
  text: [
    'Shows the backend of the app. If it is Redis, stop the server and ask again. The answer is 503 then. Payments are refused with 503 too, because they cannot run without their lock.',
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
