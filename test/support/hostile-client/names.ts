import type { Composition } from './compose.js';

const shifted = (letter: string, by: number): string => String.fromCharCode(letter.charCodeAt(0) + by);

const LETTERS: Record<Composition['spelling'], (letter: string) => string> = {
  'as it is': (letter) => letter,
  capitals: (letter) => letter.toUpperCase(),
  'full width': (letter) => shifted(letter, 0xff41 - 0x61),
  circled: (letter) => shifted(letter, 0x24d0 - 0x61),
  accents: (letter) => `${letter}\u0301`,
  invisible: (letter) => `${letter}\u200b`,
  blanks: (letter) => `${letter} `,
};

/** Writes an account otherwise for each of 128 guesses: one bit of its number a letter of the domain. */
export function spell(email: string, spelling: Composition['spelling'], guess: number): string {
  const domain = email.indexOf('@') + 1;
  const write = LETTERS[spelling];
  return [...email]
    .map((letter, at) => (at >= domain && (guess >> (at - domain)) & 1 ? write(letter) : letter))
    .join('');
}

/** The value that a client sends in place of a text. Each guess has another one, where the form has room for it. */
export function valueOf(text: string, form: Composition['form'], guess: number): unknown {
  switch (form) {
    case 'text':
      return text;
    case 'list of one':
      return [text];
    case 'list in a list':
      return [[text, guess]];
    case 'object':
      return { in: [text, guess] };
    case 'twice in a form':
      return [text, `r${guess}`];
  }
}
