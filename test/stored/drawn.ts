import type crypto from 'node:crypto';

/** In place of random bytes, which come as base64url: numbered texts of 8 characters, or of 22 where ids have 16 bytes. */
let drawn = 0;

export const drawFrom = (number: number): void => void (drawn = number);

function draw(bytes: Buffer): Buffer {
  const size = bytes.length % 6 === 0 ? 6 : 16;
  for (let at = 0; at < bytes.length; at += size) {
    const number = String(++drawn);
    const text = size === 6 ? `id${number.padStart(6, '0')}` : `random${number.padStart(15, '0')}A`;
    Buffer.from(text, 'base64url').copy(bytes, at);
  }
  return bytes;
}

/** Numbers what was drawn anew, so that one more kind of record leaves the text of the others as it is. */
export function renumbered(text: string): string {
  const numbers = new Map<string, string>();
  return text.replace(/(?<=dom|id)(\d{15}(?=A)|\d{6}(?!\d))/g, (drawnAs) => {
    const number = numbers.get(drawnAs) ?? String(numbers.size + 1).padStart(drawnAs.length, '0');
    numbers.set(drawnAs, number);
    return number;
  });
}

/** From now on nothing is random. */
export function drawInOrder(): void {
  const real = jest.requireActual<typeof crypto>('node:crypto');
  jest.spyOn(real, 'randomBytes').mockImplementation((size: number) => draw(Buffer.alloc(size)));
  jest.spyOn(real, 'randomFillSync').mockImplementation((bytes) => draw(bytes as Buffer));
  jest
    .spyOn(real, 'randomUUID')
    .mockImplementation(() => `00000000-0000-4000-8000-${String(++drawn).padStart(12, '0')}`);
}
