import { sharedStorage } from './frames.js';

/** What is read of a response of Node.js, or of its twin of HTTP/2, whose stream says whether it is full. */
export interface WatchedResponse {
  readonly writableNeedDrain?: boolean;
  readonly stream?: { readonly writableNeedDrain?: boolean };
  on(event: 'drain', listener: () => void): unknown;
  off(event: 'drain', listener: () => void): unknown;
}

const responses = sharedStorage<WatchedResponse>('syncguard:als:response');

/** Runs the handling of a request, in which `currentResponse()` returns its response. */
export const answering = <T>(response: WatchedResponse, handle: () => T): T =>
  responses.run(response, handle);

/** Returns the HTTP response that the running code answers. */
export const currentResponse = (): WatchedResponse | undefined => responses.getStore();

let isWanted = false;

/** Called where a method is decorated whose stream may need to know its response. */
export function wantResponses(): void {
  isWanted = true;
}

/** Returns whether anything in this process needs to know its response. */
export const areResponsesWanted = (): boolean => isWanted;
