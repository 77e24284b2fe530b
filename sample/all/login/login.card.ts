import type { Card } from '../page/card.js';

export const loginCard: Card = {
  id: 'login',
  title: 'Stop guessed passwords',
  route: 'POST /login',
  text: [
    'Only failures count, by account and address together. The fifth wrong password in a minute is answered 429. For a minute this account is then blocked from this address, even with the right password. A call after exactly Retry-After is allowed. The second block takes two minutes.',
    'The right password is: correct. It resets the failures before it, so a user who mistypes is not locked out. Other accounts are not blocked.',
  ],
  fields: [{ name: 'email', label: 'E-mail', value: 'ann@example.org', type: 'email' }],
  buttons: [
    { name: 'five', label: 'Five wrong ones in a row' },
    { name: 'wrong', label: 'A wrong password' },
    { name: 'right', label: 'The right one' },
    { name: 'next', label: 'Take another account' },
  ],
  panel: 'When this account is let in again',
  commands: [
    {
      does: 'Five wrong passwords: 401 401 401 401 429',
      line: `for i in 1 2 3 4 5; do curl -s -o /dev/null -w '%{http_code} ' {origin}/login -H 'Content-Type: application/json' -d '{"email":"mallory@example.org","password":"guess"}'; done`,
    },
    {
      does: 'The right one',
      line: `curl -i {origin}/login -H 'Content-Type: application/json' -d '{"email":"bob@example.org","password":"correct"}'`,
    },
  ],
  script: `
    const attempt = (password) => ({ method: 'POST', path: '/login', body: { email: value('email'), password } });
    const show = ['welcome'];
    // Seconds tick for the eye alone; read aloud is the start, the half of a minute, and the end.
    const countdown = element('p', 'countdown');
    const spoken = element('span', 'unseen');
    countdown.setAttribute('aria-hidden', 'true');
    spoken.setAttribute('role', 'status');
    panel.append(countdown, spoken);
    let timer;

    function countDown(account, totalSecs) {
      clearInterval(timer);
      const endsMs = Date.now() + totalSecs * 1000;
      const text = element('span', '');
      const seconds = element('b', '');
      const track = element('span', 'meter');
      const bar = element('span', 'spent');
      track.append(bar);
      countdown.replaceChildren(element('span', 'name', account), text, seconds, track);
      let spokenSecs = Infinity;
      const tick = () => {
        const leftMs = Math.max(0, endsMs - Date.now());
        const leftSecs = Math.ceil(leftMs / 1000);
        bar.style.width = (leftMs / (totalSecs * 1000)) * 100 + '%';
        text.textContent = leftSecs > 0 ? 'is let in again in' : 'may';
        seconds.textContent = leftSecs > 0 ? leftSecs + ' s' : 'try again';
        if (leftSecs > 0 && spokenSecs - leftSecs < 30) return;
        spokenSecs = leftSecs;
        spoken.textContent = account + (leftSecs > 0 ? ' is let in again in ' + leftSecs + ' seconds.' : ' may try again.');
        if (leftSecs === 0) clearInterval(timer);
      };
      timer = setInterval(tick, 200);
      tick();
    }

    async function tryOne(password) {
      const account = value('email');
      const [answer] = await send([attempt(password)], show);
      const retryAfter = Number(answer.headers.get('Retry-After'));
      if (answer.status === 429) countDown(account, retryAfter);
      return answer;
    }
    const said = ({ status, body }) =>
      status === 200 ? 'Let in.'
      : status === 401 ? 'Wrong, and counted.'
      : status === 429 ? 'Blocked.'
      : body.message;

    on('wrong', async () => said(await tryOne('guess')));
    on('right', async () => said(await tryOne('correct')));
    on('five', async () => {
      const statuses = [];
      while (statuses.length < 5) statuses.push((await tryOne('guess')).status || 'none');
      return statuses.join(', ') + '.';
    });
    on('next', () => {
      fill('email', Math.random().toString(36).slice(2, 8) + '@example.org');
      return 'This is a new account without failures.';
    });
  `,
};
