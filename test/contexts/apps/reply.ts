/** What came back for a message: the handler's answer, or what the client was told went wrong. */
export type Reply = { readonly answer: unknown } | { readonly exception: unknown };
