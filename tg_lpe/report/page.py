"""The comparison as one self-contained page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tg_lpe.hub.files import replacing
from tg_lpe.report.figures import Curve, Score, curves_svg, scores_svg
from tg_lpe.report.groups import Group, Variant, compare
from tg_lpe.report.learned import learned_pictures
from tg_lpe.report.runs import Run, read_run
from tg_lpe.report.style import STYLE
from tg_lpe.report.table import constant_row, notes_on, row_of, verdict_on
from tg_lpe.report.values import DASH, counted, figure_text, first_of, mapping_in, value_text

_SKIPPED_SHOWN = 1000


def write_report(paths: Sequence[str | Path], out: str | Path = "report.html") -> Path:
    """Write the comparison of run folders as one self-contained page.

    Args:
        paths: run folders; one named twice counts once.
        out: the page.

    Returns:
        The page's path.

    Raises:
        TypeError: if ``paths`` is one path.
        ValueError: if there is no run, or a folder holds none.
        ModuleNotFoundError: if matplotlib is not installed.
    """
    if isinstance(paths, str | Path):
        raise TypeError(f"paths must be a sequence of run folders such as [{str(paths)!r}], got one path")
    runs = [read_run(path) for path in {Path(path).resolve(): path for path in paths}.values()]
    if not runs:
        raise ValueError("a report needs at least one run folder")
    page = _page(runs)
    with replacing(Path(out)) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return Path(out)


def _page(runs: Sequence[Run]) -> str:
    groups = compare(runs)
    places = {id(run): f"run-{number}" for number, run in enumerate(runs, 1)}
    unfinished = sum(not run.finished for run in runs)
    summary = f"{counted(len(runs), 'run')} on {counted(len({group.source for group in groups}), 'data set')}"
    if unfinished:
        summary += f", {unfinished} unfinished"
    training = any(group.kind == "train" for group in groups)
    title = "Positional encodings compared" if training else "Pretraining of positional encodings"
    sections = "\n".join(_section(group, places) for group in groups)
    learned = "\n".join(part for group in groups for variant in group.variants if (part := _learned(group, variant)))
    learned = learned.replace("<details", "<details open", 1)  # the others are folded away
    listed: dict[str, str] = {}
    details = "\n".join(_details(run, places[id(run)], listed) for run in runs)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1><p class="quiet">{escape(summary)}</p></header>
{sections}
{f"<section><h2>What was learned</h2>{learned}</section>" if learned else ""}
<section>
<h2>Runs</h2>
{details}
</section>
<footer class="quiet">Written by <code>tg-lpe report</code> from the run folders alone.</footer>
</main>
</body>
</html>
"""


def _section(group: Group, places: Mapping[int, str]) -> str:
    """One data set: outcome, table, pictures."""
    title = group.title
    rows = [row_of(group, variant) for variant in group.variants]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in rows[0])
    body = "\n".join(_table_row(group, variant, row, places) for variant, row in zip(group.variants, rows, strict=True))
    if (constant := constant_row(group)) is not None:
        body += "\n" + _constant_row(constant)
    verdict = verdict_on(group)
    notes = "".join(f"<li>{_code(note)}</li>" for note in notes_on(group))
    pictures = "\n".join(
        f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" for svg, caption in _pictures(group)
    )
    return f"""<section>
<h2>{escape(title)}</h2>
<p class="quiet">{escape(group.sizes or "sizes not known")}</p>
{f'<p class="verdict">{escape(verdict)}</p>' if verdict else ""}
<div class="scroll" tabindex="0" role="region" aria-label="{escape(f"comparison, {title}")}">
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>
{f'<ul class="notes">{notes}</ul>' if notes else ""}
<div class="figures">
{pictures}
</div>
</section>"""


def _table_row(group: Group, variant: Variant, row: Mapping[str, str], places: Mapping[int, str]) -> str:
    name, *cells = row.values()
    kind = "best" if variant is group.best else "" if variant.finished else "unfinished"
    links = dict(zip(variant.seeds, (places[id(run)] for run in variant.runs), strict=True))
    seeds = ", ".join(f'<a href="#{place}">{escape(seed)}</a>' for seed, place in links.items())
    extreme = "highest" if group.larger_is_better else "lowest"
    mark = f' <span class="badge">{extreme}</span>' if kind == "best" else ""
    swatch = f'<span class="swatch" style="background:{variant.color}"></span>'
    columns = [seeds if column == "seeds" else escape(cell) for column, cell in zip(list(row)[1:], cells, strict=True)]
    return (
        f'<tr class="{kind}"><th scope="row">{swatch}{escape(name)}{mark}</th>'
        + "".join(f"<td>{cell}</td>" for cell in columns)
        + "</tr>"
    )


def _constant_row(row: Mapping[str, str]) -> str:
    name, *cells = map(escape, row.values())
    return f'<tr class="constant"><th scope="row">{name}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _pictures(group: Group) -> list[tuple[str, str]]:
    """Pictures of a data set with their captions."""
    training = group.kind == "train"
    figure = f"validation {group.figure_title}"
    curves = [
        Curve(
            v.label if v.finished else f"{v.label} (unfinished)",
            [run.curve(run.validation_key) for run in v.runs],
            v.color,
            dashed=not v.finished,
        )
        for v in group.variants
    ]
    several = " Thin: each seed, thick: their mean." if any(len(v.runs) > 1 for v in group.variants) else ""
    caption = f"V{figure[1:]} by epoch." + several
    pictures = [
        (curves_svg(curves, figure, f"{group.source}: {figure} by epoch", log=not group.larger_is_better), caption)
    ]
    done = [v for v in group.variants if v.finished and v.test is not None]
    if training and done:
        none = next((v for v in group.ranked if v.encoder is None), None)
        scores = [
            Score(v.label, [first_of(r.test_error, math.nan) for r in v.runs], str(v.test), v.color, v is group.best)
            for v in done
        ]
        best = "highest" if group.larger_is_better else "lowest"
        title = group.figure_title
        caption = f"Test {title} at the epoch of {best} validation {title}; {best} is best."
        if any(len(v.runs) > 1 for v in done):
            caption += " Dots: seeds, diamond: mean, bar: ± one standard deviation."
        if none is not None:
            caption += f" Upright strokes: {none.label}."
        reference = none.test.mean if none is not None and none.test is not None else None
        pictures.append(
            (scores_svg(scores, f"test {title}", reference, f"{group.source}: test {title} by encoding"), caption)
        )
    return [(svg, caption) for svg, caption in pictures if svg]


def _learned(group: Group, variant: Variant) -> str:
    """Draw what the encoder of a row has learned, by the run of its first seed; empty if there is nothing."""
    pictures = learned_pictures(variant.runs[0], variant.label)
    if not pictures:
        return ""
    seed = f", seed {variant.seeds[0]}" if len(variant.runs) > 1 else ""
    figures = "".join(
        f'<figure class="wide"><div class="scroll plain" tabindex="0">{svg}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for svg, caption in pictures
    )
    summary = f"<summary><b>{escape(f'{group.source}: {variant.label}{seed}')}</b></summary>"
    return f'<details class="run">{summary}{figures}</details>'


def _encoder_facts(run: Run) -> dict[str, Any]:
    """Class and arguments of the encoder, and where its weights came from."""
    came_from = {} if run.pretrained is None else {"pretrained": run.pretrained}
    return {**(run.encoder or {"class": "none"}), **came_from}


def _details(run: Run, place: str, listed: dict[str, str]) -> str:
    """Everything else about a run, folded away; ``listed`` remembers where skipped molecules were listed."""
    state = f"unfinished, {counted(run.epochs, 'epoch')}"
    if run.finished:
        state = "finished" if run.test_error is None else f"test {run.figure_title} {figure_text(run.test_error)}"
    environment = {name: value for name, value in run.environment.items() if name not in ("packages", "command")}
    parts = [
        f"<p><code>{escape(str(run.environment.get('command') or 'command not recorded'))}</code></p>",
        f'<p class="quiet">Folder: <code>{escape(str(run.path))}</code></p>',
        _facts("Result", run.result) if run.result is not None else "<p>No result yet.</p>",
        _facts("Encoder", _encoder_facts(run)),
        _facts("Task", run.task) if run.task else "",
        _facts("Settings", run.settings),
        _facts("Data", {name: value for name, value in run.data.items() if name != "skipped"}),
        _skipped(run, place, listed),
        _facts("Machine", environment),
        _facts("Versions", mapping_in(run.environment, "packages")),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        f'<details class="run" id="{place}"><summary><b>{escape(run.name)}</b> '
        f'<span class="quiet">{escape(state)}</span></summary>\n{body}\n</details>'
    )


def _facts(title: str, facts: Mapping[str, Any]) -> str:
    if not facts:
        return f"<h3>{title}</h3><p>{DASH}</p>"
    pairs = "".join(
        f"<div><dt>{escape(str(name))}</dt><dd>{escape(value_text(value))}</dd></div>" for name, value in facts.items()
    )
    return f"<h3>{title}</h3><dl>{pairs}</dl>"


def _skipped(run: Run, place: str, listed: dict[str, str]) -> str:
    skipped = run.data.get("skipped")
    if not isinstance(skipped, list):
        return "<p>Skipped molecules: not recorded.</p>"
    if not skipped:
        return "<p>No molecule was skipped.</p>"
    key = json.dumps(skipped)
    if key in listed:
        return f'<p>{counted(len(skipped), "molecule")} skipped, <a href="#{listed[key]}">the same as above</a>.</p>'
    listed[key] = place
    lines = "".join(f"<li><code>{escape(str(line))}</code></li>" for line in skipped[:_SKIPPED_SHOWN])
    rest = len(skipped) - _SKIPPED_SHOWN
    remainder = f"<p>and {rest:,} more, all in config.json of the run folder</p>" if rest > 0 else ""
    return (
        f"<details><summary>{counted(len(skipped), 'molecule')} skipped</summary><ol>{lines}</ol>{remainder}</details>"
    )


def _code(text: str) -> str:
    """Escaped, with what stands between backquotes as code."""
    return "".join(f"<code>{part}</code>" if odd % 2 else part for odd, part in enumerate(escape(text).split("`")))
