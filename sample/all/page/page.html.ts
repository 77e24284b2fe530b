import { createHash } from 'node:crypto';
import type { Card } from './card.js';
import { cards } from './cards.js';
import { pageScript } from './page.script.js';
import { STYLE } from './page.style.js';

const SCRIPT = pageScript(cards);
// Outside of the template, where a formatter may add spaces: the policy allows exactly these bytes.
const SCRIPT_TAG = `<script>${SCRIPT}</script>`;
const STYLE_TAG = `<style>${STYLE}</style>`;

const ICON = `data:image/svg+xml,${encodeURIComponent(
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path fill="#2f6f8f" d="M8 1 2 3.5V8c0 3.5 2.5 5.8 6 7 3.5-1.2 6-3.5 6-7V3.5z"/></svg>',
)}`;

const hashOf = (text: string): string => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;

/** Only the scripts and styles of this file may run or load. */
export const CONTENT_SECURITY_POLICY = [
  "default-src 'none'",
  `script-src ${hashOf(SCRIPT)}`,
  `style-src ${hashOf(STYLE)}`,
  "connect-src 'self'",
  'img-src data:',
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

/** @param origin - the address as the visitor sees it, such as `http://localhost:3000` */
export const renderPage = (origin: string): string =>
  /* HTML */ `<!doctype html>
    <html lang="en">
      <head>
        <meta charset="utf-8" />
        <meta name="viewport" content="width=device-width, initial-scale=1" />
        <meta name="color-scheme" content="light dark" />
        <title>nestjs-syncguard sample</title>
        <link rel="icon" href="${ICON}" />
        ${STYLE_TAG}
      </head>
      <body>
        <header>
          <h1>nestjs-syncguard <span>sample app</span></h1>
          <p>
            A Nest app whose requests keep out of each other's way, in one process or in many on one Redis.
            Each card is an endpoint: press a button, or paste a line into a terminal, and watch how the
            answers come in.
          </p>
        </header>
        <main>${cards.map((card) => renderCard(card, origin)).join('')}</main>
        <p id="said" class="unseen" role="status"></p>
        <noscript><p>The buttons need JavaScript; the lines for the terminal do not.</p></noscript>
        ${SCRIPT_TAG}
      </body>
    </html> `;

const renderCard = (card: Card, origin: string): string => /* HTML */ `
  <section id="${card.id}" aria-labelledby="${card.id}-title">
    <p class="route"><code>${escape(card.route)}</code></p>
    <h2 id="${card.id}-title">${escape(card.title)}</h2>
    ${card.text.map((paragraph) => `<p>${escape(paragraph)}</p>`).join('')}
    <form>
      ${card.fields.map((field) => renderField(field)).join('')}
      <div class="buttons">
        ${card.buttons.map(({ name, label }) => `<button type="button" name="${name}">${escape(label)}</button>`).join('')}
      </div>
    </form>
    <p class="summary" role="status"></p>
    ${card.panel ? `<div class="panel" role="group" aria-label="${escape(card.panel)}"></div>` : ''}
    <ol class="answers" aria-label="Answers"></ol>
    <h3>In a terminal</h3>
    ${card.commands.map((command) => renderCommand(command, card, origin)).join('')}
  </section>
`;

const renderField = ({ name, label, value, type = 'text' }: Card['fields'][number]): string => /* HTML */ `
  <label>
    ${escape(label)}
    <input name="${name}" type="${type}" value="${escape(value)}" autocomplete="off" spellcheck="false" />
  </label>
`;

function renderCommand({ does, line }: Card['commands'][number], { fields }: Card, origin: string): string {
  const values = new Map([['origin', origin], ...fields.map(({ name, value }) => [name, value] as const)]);
  const filled = line.replace(/\{(\w+)\}/g, (placeholder, name: string) => values.get(name) ?? placeholder);
  return /* HTML */ `
    <figure class="command">
      <figcaption>
        ${escape(does)}
        <button type="button" class="copy">Copy<span class="unseen">: ${escape(does)}</span></button>
      </figcaption>
      <pre tabindex="0"><code data-line="${escape(line)}">${escape(filled)}</code></pre>
    </figure>
  `;
}

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

const escape = (text: string): string => text.replace(/[&<>"']/g, (character) => ENTITIES[character] ?? '');
