import type { Card } from '../page/card.js';

export const ordersCard: Card = {
  id: 'orders',
  title: 'Charge an order once',
  route: 'POST /orders/:id/pay',
  text: [
    'Paying takes about 300 ms, under a lock on the order. Send five payments at once. One of them charges (201), and the others wait for it and find the order paid (200). A fence is a number that grows each time the lock is acquired. All five answers have the fence of the payment that charged.',
    'Send them again. Nothing is left to charge, so all of them answer 200.',
  ],
  fields: [{ name: 'order', label: 'Order', value: '7' }],
  buttons: [
    { name: 'five', label: 'Pay five times at once' },
    { name: 'one', label: 'Pay once' },
    { name: 'next', label: 'Take another order' },
  ],
  commands: [
    { does: 'One payment', line: 'curl -i -X POST {origin}/orders/{order}/pay' },
    {
      does: 'Five at once',
      line: "for i in 1 2 3 4 5; do curl -s -w ' %{http_code}\\n' -X POST {origin}/orders/{order}/pay & done; wait",
    },
    {
      does: 'Two processes that share a Redis charge once together: start each like this',
      line: 'REDIS_URL=redis://localhost:6379 PORT=3001 node sample/dist/all/main.js',
    },
  ],
  script: `
    const pay = () => ({ method: 'POST', path: '/orders/' + encodeURIComponent(value('order')) + '/pay' });
    const show = ['charged', 'fence'];

    async function payTimes(count) {
      const answers = await send(Array.from({ length: count }, pay), show);
      const charged = answers.filter(({ body }) => body.charged).length;
      return answers.length + (count === 1 ? ' answer, ' : ' answers, ') + charged + ' charged.';
    }
    on('five', () => payTimes(5));
    on('one', () => payTimes(1));
    on('next', () => {
      fill('order', Math.random().toString(36).slice(2, 8));
      return 'This is a new order, which is not paid yet.';
    });
  `,
};
