import { describe } from '../core/validate.js';
import { invalidCall } from './lock.errors.js';

type Part = string | { readonly index: number; readonly path: readonly string[]; readonly source: string };

const PLACEHOLDER = /^(\d+)((?:\.[A-Za-z_$][\w$]*)*)$/;
const TOKEN = /\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+/g;

/**
 * Compiles a template like `'order:{0.id}'` into a function that returns the key of a call. `{0.id}` is the property `id`
 * of the first argument. `{{` and `}}` stand for braces.
 *
 * Values are encoded, so that ("a:b", "c") and ("a", "b:c") are different keys. A missing value is an error, so a call
 * never locks "undefined".
 *
 * @throws LockError InvalidArgument: at once for a malformed template, and by the returned function for a missing value
 */
export function compileKeyTemplate(template: string): (args: readonly unknown[]) => string {
  const parts = parse(template);
  return (args) =>
    parts
      .map((part) => (typeof part === 'string' ? part : encode(valueOf(part, args), part.source)))
      .join('');
}

function parse(template: string): Part[] {
  if (template === '') throw invalidCall('@WithLock(): the key template is empty.');
  const parts = [...template.matchAll(TOKEN)].map(([token, placeholder]) => {
    if (token === '{{' || token === '}}') return token.charAt(0);
    if (placeholder === undefined && !/[{}]/.test(token)) return token;
    const [, index, path] = PLACEHOLDER.exec(placeholder ?? '') ?? [];
    if (index === undefined || path === undefined)
      throw invalidCall(
        `@WithLock(): the key template "${template}" has a placeholder or brace that cannot be read: "${token}".`,
        'Write {0} for the first argument, {1.user.id} for a property; {{ and }} for braces.',
      );
    return { index: Number(index), path: path.split('.').slice(1), source: token };
  });
  refuseAmbiguous(parts, template);
  return parts;
}

// An encoded value can contain these characters: those that encodeURIComponent leaves as they are, and "%".
const MAY_STAND_IN_A_VALUE = /^[A-Za-z0-9\-_.!~*'()%]*$/;

/**
 * Requires a separator between two values: a character that no value can contain. With "-" ("a-b", "c") and ("a",
 * "b-c") would be the same key.
 */
function refuseAmbiguous(parts: readonly Part[], template: string): void {
  let between: string | undefined;
  for (const part of parts) {
    if (typeof part === 'string') between = between === undefined ? undefined : between + part;
    else if (between !== undefined && MAY_STAND_IN_A_VALUE.test(between))
      throw invalidCall(
        `@WithLock(): the key template "${template}" has no unambiguous separator between two values.`,
        'Put ":" or "/" between them. Values are encoded, so they never contain these.',
      );
    else between = '';
  }
}

function valueOf({ index, path }: Exclude<Part, string>, args: readonly unknown[]): unknown {
  let value: unknown = args[index];
  for (const property of path) value = (value as Record<string, unknown> | null | undefined)?.[property];
  return value;
}

function encode(value: unknown, source: string): string {
  const usable =
    (typeof value === 'string' && value !== '' && value.isWellFormed()) ||
    (typeof value === 'number' && Number.isFinite(value)) ||
    typeof value === 'bigint' ||
    typeof value === 'boolean';
  if (usable) return encodeURIComponent(String(value));
  throw invalidCall(
    `The part ${source} of the key is ${describe(value)}.`,
    'It must be a non-empty string, a finite number, a bigint or a boolean.',
  );
}
