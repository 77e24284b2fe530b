/**
 * Node ends a process on an uncaught exception and on a promise that is rejected while nobody listens; so a spec file
 * in which that happens fails. Jest sees to it (with `waitForUnhandledRejections`), but forgives a promise that is
 * handled after all, a turn too late for Node. Here that fails as well.
 */

// Within jest `process` is a copy that hears no such event; the timers are the real ones, and lead to the real one.
const RealFunction = setImmediate.constructor as new (body: string) => () => NodeJS.Process;
const realProcess = new RealFunction('return process')();

const handledLate: Promise<unknown>[] = [];
const note = (promise: Promise<unknown>): number => handledLate.push(promise);

async function failOnHandledLate(): Promise<void> {
  for (const promise of handledLate.splice(0)) {
    const cause: unknown = await promise.catch((reason: unknown) => reason);
    throw new Error('A promise was rejected while nobody listened, and handled too late', { cause });
  }
}

realProcess.on('rejectionHandled', note);
afterEach(failOnHandledLate);
afterAll(async () => {
  realProcess.off('rejectionHandled', note);
  await failOnHandledLate();
});
