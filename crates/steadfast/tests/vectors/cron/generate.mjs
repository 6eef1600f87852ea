// Writes croner.tsv and cron-parser.tsv: what these two say to each line of cases.tsv.
//
// With a copy of cases.tsv, in an empty directory: npm install croner@11.0.0 cron-parser@5.10.4 && node generate.mjs

import { readFileSync, writeFileSync } from "node:fs";
import { Cron } from "croner";
import { CronExpressionParser } from "cron-parser";

function croner(expression, timezone, after) {
  const cron = new Cron(expression, { timezone });
  const ticks = [];
  for (let tick = cron.nextRun(after); tick && ticks.length < 5; tick = cron.nextRun(tick)) ticks.push(tick);
  return ticks;
}

function cronParser(expression, tz, after) {
  const ticks = CronExpressionParser.parse(expression, { currentDate: after, tz });
  return Array.from({ length: 5 }, () => ticks.next().toDate());
}

const cases = readFileSync("cases.tsv", "utf8").trimEnd().split("\n");
for (const [name, ask] of Object.entries({ croner: croner, "cron-parser": cronParser })) {
  const lines = cases.map((line) => {
    const [expression, zone, after] = line.split("\t");
    let ticks = [];
    try {
      ticks = ask(expression, zone, new Date(after));
    } catch {
      // It refuses the expression, or finds nothing.
    }
    return `${line}\t${ticks.map((tick) => tick.toISOString().replace(".000Z", "Z")).join(",") || "-"}\n`;
  });
  writeFileSync(`${name}.tsv`, lines.join(""));
}
