"""Pictures of what an encoder has learned, before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tg_lpe.encoders.base import LearnedTable
from tg_lpe.encoders.registry import make_encoder
from tg_lpe.hub.files import load_tensors
from tg_lpe.report.figures import BLUE, GREY, INK, as_svg, blank_figure, log_scale
from tg_lpe.report.runs import Run
from tg_lpe.training.run_folder import RunFolder

MAX_TYPES, MAX_PANELS = 30, 8
"""Types and columns that are drawn of a table, at most."""

_PREFIX = "encoder."
_NAMES = {"x": ("atom_types", "node"), "edge_attr": ("bond_types", "edge")}
_NEVER = "NONE"
"""A bond type that no molecule has; it keeps the published numbering."""


def learned_pictures(run: Run, description: str) -> list[tuple[str, str]]:
    """Pictures of the tables of :meth:`Encoder.learned <tg_lpe.Encoder.learned>`, with their captions.

    Args:
        run: the run; its folder holds the weights.
        description: what stands for it where the picture is not seen.

    Returns:
        ``(<svg> element, caption)`` of each table; none if the run is unfinished, or its encoder has
        nothing to tell, was kept as it was, or has a class that is not known here.
    """
    if run.settings.get("encoder_lr") == 0:
        return []
    folder = RunFolder(run.path)
    after = _tables(run, load_tensors(folder.model)[0]) if run.finished and folder.model.is_file() else []
    if not after:
        return []
    initial = load_tensors(folder.initial)[0] if folder.initial.is_file() else None
    before = [None] * len(after) if initial is None else _tables(run, initial)
    pictures = []
    for old, new in zip(before, after, strict=True):
        what = f"{new.title[0].upper()}{new.title[1:]}"
        draw = _responses if new.over == "eigenvalue" else _dumbbells
        start = (
            "" if old is None else " Grey: before training" + (", the pretrained encoder." if run.pretrained else ".")
        )
        svg = draw(run, old, new, f"{description}: {new.title}")
        if new.over == "eigenvalue":
            what += " to the eigenvalues of each filter's Laplacian, one line for each channel"
        else:
            what += ", by filter"
        pictures.append((svg, f"{what}. Blue: after training.{start}{_left_out(run, new)}"))
    return pictures


def _tables(run: Run, weights: Mapping[str, Tensor]) -> list[LearnedTable]:
    """Return the tables of a run's encoder for some weights, its own or its model's."""
    if run.encoder is None:
        return []
    own = {name.removeprefix(_PREFIX): value for name, value in weights.items() if name.startswith(_PREFIX)}
    try:
        encoder = make_encoder(run.encoder)
        encoder.load_state_dict(own or weights)
    except (ValueError, RuntimeError):  # a class that is not imported here, or other arguments
        return []
    return encoder.learned()


def _type_names(run: Run, table: LearnedTable) -> list[str]:
    entry, what = _NAMES[table.over]
    names = run.data.get(entry)
    if isinstance(names, list) and len(names) == table.rows.numel():
        return [str(name) for name in names]
    return [f"all {what}s"] if table.rows.numel() == 1 else [f"{what} type {number}" for number in table.rows.tolist()]


def _shown_types(run: Run, table: LearnedTable) -> list[tuple[int, str]]:
    """Rows to draw and their names."""
    return [(row, name) for row, name in enumerate(_type_names(run, table)) if name != _NEVER][:MAX_TYPES]


def _left_out(run: Run, table: LearnedTable) -> str:
    """Name the rows of a table that are not drawn, for the caption."""
    note = ""
    if table.over != "eigenvalue" and len(_shown_types(run, table)) == MAX_TYPES < len(_type_names(run, table)):
        note += f" The first {MAX_TYPES} of {len(_type_names(run, table))} types."
    if len(table.columns) > MAX_PANELS:
        note += f" The first {MAX_PANELS} of {len(table.columns)} filters."
    return note


def _dumbbells(run: Run, before: LearnedTable | None, after: LearnedTable, description: str) -> str:
    """For each column a panel with a row for each type: a circle before, a dot after training."""
    types = _shown_types(run, after)
    columns = after.columns[:MAX_PANELS]
    with blank_figure(1.4 + 2.0 * len(columns), 1.0 + 0.22 * len(types)) as figure:
        panels = figure.subplots(1, len(columns), sharex=True, sharey=True, squeeze=False)[0]
        rows = [row for row, _ in types]
        for number, (axes, name) in enumerate(zip(panels, columns, strict=True)):
            new = after.values[rows, number].tolist()
            if before is not None:
                old = before.values[rows, number].tolist()
                axes.hlines(range(len(rows)), old, new, color=GREY, linewidth=1.2)
                axes.plot(old, range(len(rows)), "o", color=GREY, markersize=5, fillstyle="none")
            axes.plot(new, range(len(rows)), "o", color=BLUE, markersize=5)
            axes.grid(color=INK, alpha=0.12)
            axes.set_axisbelow(True)
            axes.set_title(name, fontsize=10)
        first = panels[0]
        drawn = [table.values[rows] for table in (before, after) if table is not None]
        log_scale(first, [float(v) for values in drawn for v in (values.min(), values.max())], "x", max_ticks=4)
        first.set_yticks(range(len(types)), [label for _, label in types])
        first.set_ylim(len(types) - 0.4, -0.6)
        figure.supxlabel(after.title, fontsize=10)
        return as_svg(figure, description)


def _responses(run: Run, before: LearnedTable | None, after: LearnedTable, description: str) -> str:
    """For each column a panel with a line for each channel over the eigenvalues."""
    columns = after.columns[:MAX_PANELS]
    with blank_figure(0.8 + 2.15 * len(columns), 2.6) as figure:
        panels: Sequence[Any] = figure.subplots(1, len(columns), sharex=True, sharey=True, squeeze=False)[0]
        for number, (axes, name) in enumerate(zip(panels, columns, strict=True)):
            if before is not None:
                axes.plot(before.rows, before.values[:, number], color=GREY, linewidth=0.9, alpha=0.8)
            axes.plot(after.rows, after.values[:, number], color=BLUE, linewidth=1.3, alpha=0.8)
            axes.grid(color=INK, alpha=0.12)
            axes.set_title(name, fontsize=10)
        panels[0].set_ylabel("response")
        figure.supxlabel("eigenvalue", fontsize=10)
        return as_svg(figure, description)
