import { finished, type Readable } from 'node:stream';
import { type Reader, tooLate } from './scope.js';

const HINT = 'Return the file from the handler at once, or read it inside the method.';

/** Nest's StreamableFile, recognised by its methods: an app may load two copies of the class. */
export interface StreamedFile {
  getStream(): Readable;
  getHeaders(): object;
}

export const isStreamedFile = (value: unknown): value is StreamedFile =>
  typeof (value as StreamedFile | null | undefined)?.getStream === 'function' &&
  typeof (value as StreamedFile).getHeaders === 'function';

/**
 * Hands a file to the caller and resolves when its stream has closed: it was sent, it failed, or its reader stopped.
 * The lock or the hold lasts until then. A file that nobody reads never closes. So after `patienceMs` without a first
 * read this resolves, and the stream fails for a later reader.
 */
export function handOverFile(file: StreamedFile, { onReady, patienceMs }: Reader): Promise<StreamedFile> {
  return new Promise((end) => {
    const stream = file.getStream();
    const giveUp = setTimeout(() => {
      stream.destroy(tooLate('read this file', patienceMs, HINT));
      end(file);
    }, patienceMs).unref();
    onFirstRead(stream, () => clearTimeout(giveUp));
    // The reader of the stream handles its error. `finished` listens too, so an error without a reader is not uncaught.
    finished(stream, () => {
      clearTimeout(giveUp);
      end(file);
    });
    onReady(file);
  });
}

/** Pipes, pipelines, iterators and listeners all call `read()`. Only the first call is of interest. */
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
