/** Keys of users that are near to names of ours, or that are hard to name: each has its line in names.txt. */
export const ODD_KEYS: readonly string[] = [
  'order:42',
  'a',
  ' ',
  'with space',
  'Gr\u00f6\u00dfe', // NFC
  'Gro\u0308\u00dfe', // the same in NFD
  '日本語',
  '🔒',
  'line\nbreak',
  '\u0000',
  'x'.repeat(512),
  '日'.repeat(170),
  'id',
  'id:',
  'id:42',
  'id:abcdefghijklmnopqrstu', // 21 characters
  'id:abcdefghijklmnopqrstuv', // 22, as a lockId has
  'id:abcdefghijklmnopqrstuvw', // 23
  'id:abcdefghijklmnopqrst/v',
  'fence',
  'fence:',
  'fence:x',
  'fence:syncguard:order:42',
  'syncguard:order:42',
  'queue:order:42',
  '/queue:order:42',
  'released:abcdefghijklmnopqrstuv',
  ':',
  '::a:',
  'a/b',
  'http://example.org/a?b=c&d=%20',
  '{user:7}:cart',
  '{user:7}',
  'a{b',
  'a}b',
  '{}',
  '{}a{b}',
  '{{a}}',
  '*',
  'a|b;c,d=e ~',
  '"quoted" and \\',
];
