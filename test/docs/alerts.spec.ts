import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { Logger } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { SyncGuardModule } from 'nestjs-syncguard';
import { instrument } from 'nestjs-syncguard/opentelemetry';
import { parse } from 'yaml';
import { doAll, LIMITS, startScraped } from '../telemetry/scraped.js';

const DOCS = resolve(__dirname, '../../docs');
const page = readFileSync(`${DOCS}/telemetry.md`, 'utf8');

interface Rule {
  alert: string;
  expr: string;
  for?: string;
  labels: { severity: string };
  annotations: { summary: string };
}
interface Panel {
  title: string;
  type: string;
  gridPos: { x: number; y: number; w: number; h: number };
  targets: { expr: string }[];
}

const yaml = /^```yaml\n(.*?)^```$/ms.exec(page)?.[1] ?? '';
const { groups } = parse(yaml, { strict: true }) as { groups: { name: string; rules: Rule[] }[] };
const rules = groups.flatMap((group) => group.rules);
const dashboard = JSON.parse(readFileSync(`${DOCS}/assets/grafana-dashboard.json`, 'utf8')) as {
  panels: Panel[];
  templating: { list: { name: string; query: string }[] };
};
const expressions = [
  ...rules.map(({ alert, expr }) => [alert, expr] as const),
  ...dashboard.panels.flatMap(({ title, targets }) => targets.map(({ expr }) => [title, expr] as const)),
];

/** The samples of a scrape in which each metric has something to tell. */
let samples: string[];
beforeAll(async () => {
  Logger.overrideLogger(false);
  const scraped = await startScraped();
  const telemetry = { onEvent: instrument({ meterProvider: scraped.meterProvider }) };
  const imports = [SyncGuardModule.forRoot({ ...LIMITS, telemetry })];
  const app = await Test.createTestingModule({ imports }).compile();
  await doAll(app);
  samples = [...(await scraped.scrape()).keys()];
  await app.close();
  await scraped.stop();
});

/** The names of an expression, without texts in quotes and what is no name of ours. */
const namesIn = (text: string): string[] => text.replace(/"[^"]*"/g, '').match(/syncguard_[a-z_]+/g) ?? [];

/** Whether brackets and quotes of an expression close in their order. */
function closes(expression: string): boolean {
  const open: string[] = [];
  for (const [mark] of expression.replace(/"[^"]*"/g, '').matchAll(/[()[\]{}"]/g))
    if ('([{'.includes(mark)) open.push(mark);
    else if (!['()', '[]', '{}'].includes(`${open.pop()}${mark}`)) return false;
  return open.length === 0;
}

it('five rules are well-formed, each with why and what to do', () => {
  expect(rules).toHaveLength(5);
  for (const { alert, expr, labels, annotations, ...rest } of rules) {
    expect(expr).toMatch(/ (==|>) [\d.]+\s*$/);
    expect(labels.severity).toMatch(/^(page|ticket)$/);
    expect(annotations.summary).toMatch(/\.$/);
    expect(Object.keys(rest).filter((key) => key !== 'for')).toEqual([]);
    expect(rest.for ?? '1m').toMatch(/^\d+[mh]$/);
    expect(page).toMatch(new RegExp(`^\\| \`${alert}\` \\| [^|]+\\. \\| [^|]+\\. \\|$`, 'm'));
    for (const [, label] of annotations.summary.matchAll(/\$labels\.(\w+)/g))
      expect(expr).toMatch(`${label}`);
  }
});

it('the dashboard has a panel for each metric, none over another, and one for policies in shadow', () => {
  const { panels, templating } = dashboard;
  const places = panels.map(({ gridPos: { x, y } }) => `${x} ${y}`);
  expect(new Set(places).size).toBe(panels.length);
  for (const { gridPos } of panels) expect(gridPos.x + gridPos.w).toBeLessThanOrEqual(24);
  const shown = panels.flatMap(({ targets }) => targets.flatMap(({ expr }) => namesIn(expr)));
  const all = samples.map((name) => name.replace(/\{.*|_(bucket|count|sum)\b.*/g, ''));
  for (const metric of new Set(all)) expect(shown.some((name) => name.startsWith(metric))).toBe(true);
  expect(panels.some(({ targets }) => targets.some(({ expr }) => expr.includes('"shadow_denied"')))).toBe(
    true,
  );
  expect(templating.list.map(({ name }) => name)).toEqual(['datasource', 'job']);
});

it.each(expressions)('%s asks for what a scrape has: %s', (_, expr) => {
  expect(closes(expr)).toBe(true);
  expect(namesIn(expr).length).toBeGreaterThan(0);
  for (const name of namesIn(expr))
    expect(samples.some((sample) => new RegExp(`(^|[{,])${name}($|[{=])`).test(sample))).toBe(true);
  for (const [, label, value] of expr.matchAll(/(syncguard_\w+|error_type)="(\w+)"/g))
    expect(samples.join('\n')).toContain(`${label}="${value}"`);
});

it('the names in the table of metrics are those of a scrape', () => {
  const names = [...page.matchAll(/^\| `syncguard\.[^|]*\| ([^|]*) \|/gm)].flatMap(([, cell = '']) =>
    namesIn(cell),
  );
  expect(names).toHaveLength(9);
  for (const name of names) expect(samples.some((sample) => sample.startsWith(name))).toBe(true);
});
