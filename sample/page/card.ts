/** One feature on the page: what to try, and the ways to try it. */
export interface Card {
  /** Unique on the page, lower-case letters. */
  id: string;
  title: string;
  /** The endpoint, as in the title of a reference: `POST /orders/:id/pay`. */
  route: string;
  /** Paragraphs of plain text. */
  text: string[];
  /** Inputs; `type` as in HTML, default `text`. */
  fields: { name: string; label: string; value: string; type?: string }[];
  buttons: { name: string; label: string }[];
  /** What the card shows besides answers, in a place that its script fills; this is the place's name. */
  panel?: string;
  /** Shell lines. `{origin}` and, percent-encoded, fields by `{name}` are filled in. */
  commands: { does: string; line: string }[];
  /**
   * What the buttons do, in the browser's JavaScript; see `setUp` in page.script.ts for what it may call:
   * `on(button, run)`, `changed(field, run)`, `send(requests, show)`, `value(field)`, `fill(field, value)` and
   * the `panel`; besides `call(request)`, which shows nothing, and `element(tag, className, text)`.
   */
  script: string;
}
