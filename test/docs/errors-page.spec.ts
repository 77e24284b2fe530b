import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import * as root from 'nestjs-syncguard';
import * as compat from 'nestjs-syncguard/compat';
import * as core from 'nestjs-syncguard/core';
import ts from 'typescript';
import { errorsPage } from '../../tools/docs-tables.cjs';
import { isIn, literalsOf, namesInFirstCells, sources } from './sources.js';

const page = readFileSync(join(__dirname, '../../docs/errors.md'), 'utf8');
const section = (title: string): string =>
  new RegExp(`^## ${title}\n(.*?)(?=^## |$(?![^]))`, 'ms').exec(page)?.[1] ?? '';

/** The codes of every type that is named so, and of every class that extends SyncGuardError<'...'>. */
const errorCodes = sources.flatMap((source) =>
  source.statements.flatMap((statement) => {
    if (
      ts.isTypeAliasDeclaration(statement) &&
      /(Fault|Boot|Error|Result|Attempts)Code$/.test(statement.name.text)
    )
      return literalsOf(statement.type);
    if (ts.isClassDeclaration(statement))
      return (statement.heritageClauses ?? []).flatMap(({ types }) =>
        types.flatMap(({ typeArguments = [] }) => typeArguments.flatMap(literalsOf)),
      );
    return [];
  }),
);

/** What lines of the log begin with. */
const warned = sources
  .flatMap(
    isIn((node): node is ts.LiteralLikeNode => ts.isStringLiteralLike(node) || ts.isTemplateHead(node)),
  )
  .map((node) => /^([A-Z][A-Z\d]*(?:_[A-Z\d]+)+): /.exec(node.text)?.[1])
  .filter((code) => code !== undefined);

const isBootCode = (code: string): boolean => /^[A-Z\d_]+$/.test(code);
const sorted = (codes: Iterable<string>): string[] => [...new Set(codes)].sort();

describe('docs/errors.md', () => {
  it('has the table of codes that `npm run docs:tables` writes from the types and the filter', () => {
    expect(page).toBe(errorsPage(page));
  });

  it('has every class of errors that an entry exports', () => {
    const classes = Object.entries({ ...root, ...core, ...compat })
      .filter(([, value]) => typeof value === 'function' && value.prototype instanceof Error)
      .map(([name]) => name);
    expect(classes.length).toBeGreaterThan(8);
    expect(sorted(namesInFirstCells(section('Classes')))).toEqual(sorted(classes));
  });

  it('has every code of every error', () => {
    const codes = errorCodes.filter((code) => !isBootCode(code));
    expect(codes).toContain('ServiceUnavailable');
    expect(
      sorted([
        ...namesInFirstCells(section('Codes')),
        ...namesInFirstCells(section('Replies that cannot be read')),
      ]),
    ).toEqual(sorted(codes));
  });

  it('has every code of the boot, thrown or warned of', () => {
    expect(warned).toContain('REDIS_EVICTION');
    expect(sorted(namesInFirstCells(section('Boot codes')))).toEqual(
      sorted([...errorCodes.filter(isBootCode), ...warned]),
    );
  });
});
