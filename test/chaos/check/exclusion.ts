import { type Facts, type Finding, groupBy, type Section } from './facts.js';

/** Two under one lock at once, and fences that do not rise. */
export function checkExclusion(facts: Facts): Finding {
  const finding: Finding = { violations: [], excused: [] };
  for (const [key, sections] of groupBy(facts.sections, ({ on }) => on))
    checkKey(key, sections, facts, finding);
  return finding;
}

function checkKey(key: string, sections: readonly Section[], facts: Facts, finding: Finding): void {
  let open: Section[] = [];
  let highest: Section | undefined;
  for (const section of sections) {
    for (const ended of open.filter(({ heldUntilMs }) => heldUntilMs <= section.atMs))
      if (!highest || ended.fence > highest.fence) highest = ended;
    open = open.filter(({ heldUntilMs }) => heldUntilMs > section.atMs);
    for (const other of open) {
      const excused = facts.isExcused(other.atMs, section.atMs);
      (excused ? finding.excused : finding.violations).push(describeDouble(key, other, section));
    }
    if (highest && section.fence <= highest.fence) {
      // A grant may be lost on its way to its body, which begins with an old fence then. One that was asked for
      // after the other was seen is higher, whatever was lost between.
      const excused = section.askedMs < highest.atMs && facts.isExcused(section.askedMs, section.atMs);
      (excused ? finding.excused : finding.violations).push(
        `The fence of ${key} fell from ${highest.fence} to ${section.fence}.`,
      );
    }
    open.push(section);
  }
}

const describeDouble = (key: string, first: Section, second: Section): string => {
  const ms = Math.min(first.heldUntilMs, second.heldUntilMs) - second.atMs;
  return (
    `Two under ${key} for ${ms.toFixed(1)} ms: worker ${first.worker} by ${first.fence}, ` +
    `worker ${second.worker} by ${second.fence}${first.fence === second.fence ? ' (EQUAL FENCES)' : ''}.`
  );
};
