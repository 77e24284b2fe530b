import type { Card } from './card.js';

/** Returns the script of the browser: the shared part, and the part of each card. */
export const pageScript = (cards: readonly Card[]): string =>
  [
    SHARED,
    ...cards.map(
      ({ id, script }) =>
        `setUp('${id}', ({ on, onClick, changed, send, value, fill, panel }) => {${script}});`,
    ),
  ].join('\n');

// Answers of the server are added to the page as text and never as HTML.
const SHARED = String.raw`
'use strict';

function setUp(id, describe) {
  const section = document.getElementById(id);
  const summary = section.querySelector('.summary');
  const list = section.querySelector('.answers');
  const input = (name) => section.querySelector('input[name="' + name + '"]');
  let startMs = 0;
  let busy = false;

  // Runs when the button is pressed; what it gives is said below the buttons.
  function on(name, run) {
    onClick(section.querySelector('button[name="' + name + '"]'), run);
  }

  function onClick(button, run) {
    button.addEventListener('click', async () => {
      if (busy) return;
      setBusy(true);
      list.replaceChildren();
      summary.textContent = 'Waiting for the answer …';
      startMs = performance.now();
      try {
        summary.textContent = (await run()) ?? '';
      } catch (error) {
        summary.textContent = 'This page has failed: ' + error.message;
      }
      setBusy(false);
    });
  }

  // Runs when the visitor has changed a field.
  function changed(name, run) {
    input(name).addEventListener('change', run);
  }

  // The button keeps the focus, which a disabled one would lose.
  function setBusy(now) {
    busy = now;
    for (const button of section.querySelectorAll('form button')) button.setAttribute('aria-disabled', now);
  }

  // Sends all at once, each with a row of its own: { method, path, body?, headers?, label? }. Of an answer the row shows
  // the properties named in 'show', or all of it. Gives [{ status, body, headers, ms }].
  async function send(requests, show) {
    const rows = requests.map((request) => addRow(list, request.label));
    const sending = requests.map(async (request, index) => {
      const answer = await call(request);
      rows[index].finish(answer, show);
      return answer;
    });
    const all = Promise.all(sending);
    drawWhile(all, list, startMs);
    return all;
  }

  function fill(name, text) {
    input(name).value = text;
    fillCommands();
  }

  function fillCommands() {
    for (const code of section.querySelectorAll('[data-line]'))
      code.textContent = code.dataset.line.replace(/\{(\w+)\}/g, (placeholder, name) =>
        name === 'origin' ? location.origin : input(name) ? encodeURIComponent(input(name).value) : placeholder);
  }

  section.querySelector('form').addEventListener('submit', (event) => event.preventDefault());
  section.addEventListener('input', fillCommands);
  for (const button of section.querySelectorAll('.copy')) button.addEventListener('click', () => copy(button));
  fillCommands();
  describe({ on, onClick, changed, send, value: (name) => input(name).value, fill, panel: section.querySelector('.panel') });
}

async function call({ method, path, body, headers }) {
  const sentMs = performance.now();
  const init = { method, cache: 'no-store', headers };
  if (body !== undefined)
    Object.assign(init, { body: JSON.stringify(body), headers: { ...headers, 'Content-Type': 'application/json' } });
  try {
    const response = await fetch(path, init);
    const text = await response.text();
    return { status: response.status, headers: response.headers, body: parse(text), ms: performance.now() - sentMs };
  } catch {
    return { status: 0, headers: new Headers(), body: { message: 'No answer: is the app still running?' }, ms: performance.now() - sentMs };
  }
}

function parse(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return { message: text.slice(0, 500) };
  }
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text ?? '';
  return made;
}

function addRow(list, label) {
  const item = element('li', 'waiting');
  const status = element('span', 'status', '···');
  const facts = element('span', 'facts', label ?? 'waiting');
  const track = element('span', 'track');
  const bar = element('span', 'bar');
  const ms = element('span', 'ms');
  track.append(bar);
  item.append(status, facts, track, ms);
  list.append(item);
  item.sentMs = performance.now();
  item.bar = bar;
  item.ms = ms;
  return {
    finish(answer, show) {
      item.tookMs = answer.ms;
      item.className = 'answer s' + Math.floor(answer.status / 100) + (answer.status === 201 ? ' created' : '');
      status.textContent = answer.status || 'none';
      facts.replaceChildren(...(label ? [element('b', '', label)] : []), ...factsOf(answer.body, show));
    },
  };
}

function factsOf(body, show) {
  const shown = (show ?? []).filter((name) => name in Object(body));
  if (shown.length === 0) return [element('span', 'text', body.message ?? JSON.stringify(body))];
  return shown.map((name) => {
    const fact = element('span', 'fact');
    fact.append(element('i', '', name), ' ' + textOf(body[name]));
    return fact;
  });
}

const textOf = (fact) =>
  fact === Object(fact) ? Object.entries(fact).map(([name, value]) => name + ' ' + value).join(', ') : String(fact);

// A bar begins when its request was sent and grows until the answer is there, all on one scale.
function drawWhile(sending, list, startMs) {
  let over = false;
  sending.finally(() => { over = true; });
  const draw = () => {
    const now = performance.now();
    const rows = [...list.children];
    const scaleMs = Math.max(500, ...rows.map((row) => row.sentMs - startMs + (row.tookMs ?? now - row.sentMs)));
    for (const row of rows) {
      const tookMs = row.tookMs ?? now - row.sentMs;
      row.bar.style.left = ((row.sentMs - startMs) / scaleMs) * 100 + '%';
      row.bar.style.width = (tookMs / scaleMs) * 100 + '%';
      row.ms.textContent = Math.round(tookMs) + ' ms';
    }
    if (!over) requestAnimationFrame(draw);
  };
  draw();
  sending.then(draw);
}

async function copy(button) {
  const code = button.closest('figure').querySelector('code');
  const label = button.firstChild;
  let said = 'Copied';
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    // Only pages of localhost and of https may write to the clipboard: the visitor does it.
    getSelection().selectAllChildren(code);
    said = 'Selected';
  }
  label.textContent = said;
  document.getElementById('said').textContent = said;
  setTimeout(() => {
    label.textContent = 'Copy';
    document.getElementById('said').textContent = '';
  }, 1500);
}
`;
