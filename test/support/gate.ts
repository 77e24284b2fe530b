export interface Gate {
  readonly opened: Promise<void>;
  open(): void;
}

/** What a body waits for until the test lets it go on. */
export function gate(): Gate {
  let open!: () => void;
  const opened = new Promise<void>((resolve) => (open = resolve));
  return { opened, open };
}
