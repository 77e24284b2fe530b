export const STYLE = /* CSS */ `
  :root {
    color-scheme: light dark;
    --ground: #f7f7f5; --card: #ffffff; --line: #dfdfda; --text: #1f2328; --dim: #5c646d; --code: #f1f2ef;
    --accent: #1f6382; --accent-text: #ffffff;
    --created: #1a7f4b; --good: #4a7a94; --refused: #96610a; --broken: #b3372f; --waiting: #b9bec4;
  }
  @media (prefers-color-scheme: dark) {
    :root {
      --ground: #14171a; --card: #1b1f23; --line: #30363c; --text: #e4e7ea; --dim: #9aa3ac; --code: #23282d;
      --accent: #7ab8d6; --accent-text: #10222c;
      --created: #4cc38a; --good: #86b4cc; --refused: #e0ab4f; --broken: #f0847b; --waiting: #4d555d;
    }
  }
  * { box-sizing: border-box; }
  body {
    margin: 0 auto; padding: 2.5rem 1rem 4rem; max-width: 46rem;
    background: var(--ground); color: var(--text);
    font: 1rem/1.6 system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif;
  }
  h1 { margin: 0 0 0.5rem; font-size: 1.6rem; line-height: 1.25; letter-spacing: -0.01em; }
  h1 span { color: var(--dim); font-weight: 400; }
  h2 { margin: 0.25rem 0 0.5rem; font-size: 1.2rem; line-height: 1.3; }
  h3 { margin: 1.5rem 0 0.5rem; font-size: 0.85rem; font-weight: 600; color: var(--dim); }
  p { margin: 0 0 0.75rem; }
  header p { color: var(--dim); }
  code, pre, .status, .ms, .facts { font: 0.85rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
  section {
    margin-top: 1.5rem; padding: 1.25rem 1.5rem 1.5rem;
    background: var(--card); border: 1px solid var(--line); border-radius: 0.5rem;
  }
  .route { margin: 0; color: var(--dim); }
  form { margin-top: 1rem; display: flex; flex-wrap: wrap; gap: 0.75rem; align-items: end; }
  label { display: grid; gap: 0.2rem; font-size: 0.85rem; color: var(--dim); }
  input {
    width: 9rem; height: 2.5rem; padding: 0 0.65rem; font: inherit; font-size: 1rem; color: var(--text);
    background: var(--ground); border: 1px solid var(--line); border-radius: 0.35rem;
  }
  input[type='email'], input[name='prompt'], input[name='reason'] { width: 15rem; }
  .buttons { display: flex; flex-wrap: wrap; gap: 0.5rem; }
  button {
    min-height: 2.5rem; padding: 0 0.9rem; font: inherit; font-size: 0.95rem; cursor: pointer;
    color: var(--accent); background: transparent; border: 1px solid var(--accent); border-radius: 0.35rem;
  }
  .buttons button:first-child { color: var(--accent-text); background: var(--accent); font-weight: 600; }
  button[aria-disabled='true'] { opacity: 0.55; cursor: progress; }
  :focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }

  .summary { margin: 1rem 0 0.25rem; font-weight: 600; }
  .summary:empty { margin: 0; }
  .answers {
    list-style: none; margin: 0; padding: 0;
    display: grid; grid-template-columns: 2.5rem auto minmax(5rem, 1fr) 4.5rem; column-gap: 0.9rem;
  }
  .answers li {
    display: grid; grid-column: 1 / -1; grid-template-columns: subgrid; align-items: center;
    padding: 0.4rem 0; border-top: 1px solid var(--line);
  }
  .status { font-weight: 700; color: var(--tone, var(--dim)); }
  .facts { display: flex; flex-wrap: wrap; gap: 0 0.9rem; overflow-wrap: anywhere; min-width: 0; }
  .fact { white-space: nowrap; }
  .fact i { font-style: normal; color: var(--dim); }
  .track { position: relative; height: 0.5rem; border-radius: 0.25rem; background: var(--code); overflow: hidden; }
  .bar { position: absolute; inset: 0 auto 0 0; min-width: 3px; border-radius: 0.25rem; background: var(--tone, var(--waiting)); }
  .ms { text-align: right; color: var(--dim); font-variant-numeric: tabular-nums; white-space: nowrap; }
  .waiting .facts { color: var(--dim); }
  .s2 { --tone: var(--good); }
  .created { --tone: var(--created); }
  .s4 { --tone: var(--refused); }
  .s5, .s0 { --tone: var(--broken); }

  .panel { font-size: 0.85rem; }
  .panel .name { font-weight: 600; overflow-wrap: anywhere; }
  .panel b { font-variant-numeric: tabular-nums; }
  .meter { display: flex; width: 100%; height: 0.6rem; border-radius: 0.3rem; background: var(--code); overflow: hidden; }
  .spent { background: var(--good); }
  .reserved { background: repeating-linear-gradient(-45deg, var(--good) 0 2px, transparent 2px 5px); }

  .countdown { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0.25rem 0.4rem; margin: 1rem 0; }
  .countdown:empty { display: none; }
  .countdown .spent { background: var(--refused); }

  .legend { display: flex; flex-wrap: wrap; gap: 0 1rem; margin: 1rem 0 0.6rem; color: var(--dim); }
  .legend .key { display: inline-block; width: 1.2rem; height: 0.6rem; margin-right: 0.4rem; border: 1px solid var(--line); border-radius: 0.2rem; }
  .meters { display: grid; grid-template-columns: 1fr 1fr; gap: 0.9rem 1.5rem; margin-bottom: 1rem; }
  .budget { min-width: 0; }
  .line { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 0.75rem; }
  .line .dim { color: var(--dim); font-variant-numeric: tabular-nums; }

  .found { margin: 0; padding: 0; list-style: none; }
  .found li { display: flex; flex-wrap: wrap; align-items: center; gap: 0.25rem 0.75rem; padding: 0.5rem 0; border-top: 1px solid var(--line); }
  .found .facts { flex: 1 1 12rem; }

  .command { margin: 0 0 0.75rem; }
  figcaption {
    display: flex; justify-content: space-between; align-items: end; gap: 1rem;
    font-size: 0.85rem; color: var(--dim);
  }
  pre {
    margin: 0.2rem 0 0; padding: 0.6rem 0.75rem; white-space: pre-wrap; overflow-wrap: anywhere;
    background: var(--code); border-radius: 0.35rem;
  }
  .copy { flex: none; min-height: 1.6rem; padding: 0 0.5rem; font-size: 0.8rem; border-color: transparent; }
  .copy:hover { border-color: var(--accent); }
  .unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }

  @media (max-width: 36rem) {
    body { padding-top: 1.5rem; }
    section { padding: 1rem; }
    form, label, form input[name] { width: 100%; }
    .buttons { width: 100%; }
    .buttons button { flex: 1 1 auto; }
    .answers { grid-template-columns: 2.25rem 1fr auto; column-gap: 0.6rem; }
    .answers li { row-gap: 0.3rem; padding: 0.5rem 0; }
    pre { padding: 0.6rem; font-size: 0.78rem; }
    pre code { font-size: inherit; }
    .fact { white-space: normal; }
    .meters { grid-template-columns: 1fr; }
    .track { grid-row: 2; grid-column: 1 / -1; height: 0.3rem; }
  }
  @media (prefers-reduced-motion: no-preference) {
    button { transition: background 0.15s, border-color 0.15s; }
  }
`;
