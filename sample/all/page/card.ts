/** One feature on the page, with the ways to try it. */
export interface Card {
  /** Unique on the page, lower-case letters. */
  id: string;
  title: string;
  /** The endpoint as a title, such as `POST /orders/:id/pay`. */
  route: string;
  /** Paragraphs of plain text. */
  text: string[];
  /** Inputs. `type` is the type in HTML, default `text`. */
  fields: { name: string; label: string; value: string; type?: string }[];
  buttons: { name: string; label: string }[];
  /** The name of an additional element, which the card's script fills. */
  panel?: string;
  /** Shell lines. `{origin}` and fields by `{name}` (percent-encoded) are filled in. */
  commands: { does: string; line: string }[];
  /**
   * The JavaScript of the buttons. It may call the functions of `setUp` in page.script.ts: `on(button, run)`, `onClick(element, run)`,
   * `changed(field, run)`, `send(requests, show)`, `value(field)`, `fill(field, value)` and the `panel`. It
   * may also call `call(request)`, which shows nothing, and `element(tag, className, text)`.
   */
  script: string;
}
