import { finished, type Readable } from 'node:stream';
import { SyncGuardError } from './syncguard.errors.js';

/** Nest's StreamableFile, by shape: an app may hold two copies of it. */
export interface StreamedFile {
  getStream(): Readable;
  getHeaders(): object;
}

export const isStreamedFile = (value: unknown): value is StreamedFile =>
  typeof (value as StreamedFile | null | undefined)?.getStream === 'function' &&
  typeof (value as StreamedFile).getHeaders === 'function';

/**
 * Hands a file to the caller while the body stays under its guard until the stream has closed: it was sent, it failed,
 * or its reader has left. A file that nobody reads never closes: after `patienceMs` without a first read the guard is
 * left, and the stream fails whoever comes later.
 */
export function handOverFile(
  file: StreamedFile,
  give: (file: StreamedFile) => void,
  patienceMs: number,
): Promise<StreamedFile> {
  return new Promise((end) => {
    const stream = file.getStream();
    const giveUp = setTimeout(() => {
      stream.destroy(notRead(patienceMs));
      end(file);
    }, patienceMs).unref();
    onFirstRead(stream, () => {
      clearTimeout(giveUp);
    });
    // How it ended is for its reader to know. What `finished` listens to keeps an error that nobody hears from being uncaught.
    finished(stream, () => {
      clearTimeout(giveUp);
      end(file);
    });
    give(file);
  });
}

/** Pipes, pipelines, iterators and listeners all call `read()`, whose first call alone is looked at. */
function onFirstRead(stream: Readable, listener: () => void): void {
  const own = Object.getOwnPropertyDescriptor(stream, 'read');
  const read = stream.read.bind(stream);
  stream.read = (size) => {
    if (own) Object.defineProperty(stream, 'read', own);
    else Reflect.deleteProperty(stream, 'read');
    listener();
    return read(size) as unknown;
  };
}

const notRead = (patienceMs: number): SyncGuardError =>
  new SyncGuardError({
    code: 'InvalidArgument',
    message: `Nobody read this file within ${patienceMs} ms, so its guard was left.`,
    hint: 'Return it from the handler at once, or read it under the guard.',
  });
