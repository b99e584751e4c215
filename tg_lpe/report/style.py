"""The page's style sheet."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --paper: #fff; --quiet: #5b6670; --line: #d8dde2; --tint: #f4f6f8;
  --mark: #e8f2f9; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e3e7ea; --paper: #16191c; --quiet: #9aa5ae; --line: #363d44; --tint: #1f2428; --mark: #1b2f3d; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Roboto, Helvetica,
  "DejaVu Sans", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0; padding-top: .75rem; border-top: 1px solid var(--line);
  overflow-wrap: anywhere; }
h3 { font-size: .95rem; margin: 1.1rem 0 .25rem; }
header p, h2 + p { margin-top: .25rem; }
a { color: inherit; }
code { font: .875em/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); }
.verdict { font-size: 1.05rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { padding: .5rem .6rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { white-space: normal; vertical-align: bottom; background: var(--tint); font-weight: 600;
  color: var(--quiet); }
th:first-child { position: sticky; left: 0; background: var(--paper); white-space: normal; min-width: 8.5rem; }
@media (min-width: 60rem) { th:first-child { min-width: 13rem; } }
thead th:first-child { background: var(--tint); }
tbody th { font-weight: 500; }
.best > * { font-weight: 700; }
.best > th, .best > td { background: var(--mark); }
.unfinished > td { color: var(--quiet); font-style: italic; }
.badge { display: inline-block; padding: 0 .4em; border: 1px solid currentColor; border-radius: 1em; font-size: .7rem;
  font-weight: 500; }
.swatch { display: inline-block; width: .7em; height: .7em; margin-right: .5em; border-radius: 50%;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.notes { margin: .75rem 0 0; padding-left: 1.1rem; font-size: .875rem; color: var(--quiet); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem 2rem;
  margin-top: 1.25rem; }
figure { margin: 0; max-width: 36rem; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { font-family: inherit !important; }
figure.wide { max-width: 60rem; margin-bottom: 1.5rem; }
figure.wide svg { min-width: 38rem; }
.scroll.plain { border: 0; }
figcaption { font-size: .8125rem; color: var(--quiet); }
details.run { border: 1px solid var(--line); border-radius: 6px; margin-top: .75rem; padding: .6rem .9rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
details:target { border-color: currentColor; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); gap: .3rem 1.5rem;
  margin: 0; font-size: .875rem; }
dt { color: var(--quiet); font-size: .8125rem; }
dd { margin: 0; overflow-wrap: anywhere; }
ol { font-size: .8125rem; }
footer { margin-top: 2.5rem; font-size: .8125rem; }
@media print {
  :root { font-size: 75%; }
  body { font-size: 1rem; }
  main { max-width: none; padding: 0; }
  .scroll { overflow: visible; border: 0; }
  table { font-size: 7pt; }
  th, td { padding: .2rem .3rem; white-space: normal; }
  th:first-child { min-width: 0; }
  .figures { grid-template-columns: 1fr 1fr; }
  tr, details { break-inside: avoid; }
}
"""
