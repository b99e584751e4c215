"""The result of a comparison as a table, JSON and a page."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tg_lpe.app.report import Run, Spread, comparison_table, read_run, write_report
from tg_lpe.app.report.format import DASH, figure_text, signed
from tg_lpe.app.training.metrics import METRICS
from tg_lpe.app.training.paired import paired_difference
from tg_lpe.app.training.run_folder import environment
from tg_lpe.app.training.state import read_metrics
from tg_lpe.checkpoints.files import load_tensors, read_object, write_json

if TYPE_CHECKING:
    from tg_lpe.app.comparison.grid import Grid

SCHEMA = 1
"""Format version of ``comparison.json``, which docs/compare.md describes."""

FIGURES = "comparison.safetensors"
"""File in a run folder with the test figure of each part of the test set, and the encoding time of a graph."""

REFERENCES = ("none", "walks")
"""Rows with which all others are compared, if present."""

WITHOUT = ("R²", "Spearman", "epochs", "graphs/s", "time a run", "precision")
"""Columns of the page that do not fit into a terminal."""

_LOGGER = logging.getLogger("tg_lpe.app.comparison")


@dataclass(frozen=True)
class Comparison:
    """The result of :func:`~tg_lpe.compare`; ``print`` shows it as a table.

    Attributes:
        rows: a dictionary for each encoding with a complete training, in the order of the encodings.
        about: data, task, model, budget and machine.
        runs: the run folders of all trainings, complete or not.
    """

    rows: list[dict[str, Any]]
    about: dict[str, Any]
    runs: list[Run]

    @classmethod
    def of(cls, grid: Grid) -> Comparison:
        """Read the run folders of a comparison; the table leaves out incomplete trainings."""
        complete: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in grid.candidates}
        for cell in sorted(cell for cell in grid.cells if grid.is_complete(cell)):
            tensors, metadata = load_tensors(grid.folder(cell).path / FIGURES)
            result = read_object(grid.folder(cell).result)
            complete[cell.name][cell.seed] = {**tensors, **metadata, "result": result, "folder": grid.folder(cell)}
        rows = [_row(grid, name, complete) for name, seeds in complete.items() if seeds]
        model = {key: value.__name__ if isinstance(value, type) else value for key, value in grid.model.items()}
        budget = {key: value for key, value in grid.config.to_dict().items() if key != "seed"}
        about = {
            "schema": SCHEMA,
            "data": {"source": grid.source, **_sizes(grid.data)},
            "task": grid.task.to_dict(),
            "metric": grid.task.metric,
            "direction": METRICS[grid.task.metric].direction,
            "model": model,
            "budget": budget,
            "seeds": list(grid.seeds),
            "missing": {
                name: missing
                for name, seeds in complete.items()
                if (missing := [seed for seed in grid.seeds if seed not in seeds])
            },
            "machine": environment(),
        }
        cells_of = {row["name"]: _cells(row) for row in rows}
        runs = [
            replace(read_run(folder.path), title=cell.name, cells=cells_of.get(cell.name, {}))
            for cell in grid.cells
            if (folder := grid.folder(cell)).config.exists()
        ]
        return cls(rows, about, runs)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``comparison.json``."""
        return {**self.about, "rows": self.rows}

    def __str__(self) -> str:
        missing = [f"{name} ({', '.join(map(str, seeds))})" for name, seeds in self.about["missing"].items()]
        note = f"\n  - Missing trainings (seeds): {', '.join(missing)}." if missing else ""
        if "fingerprint" in self.about:
            metric = self.about["metric"]
            test = f"test {METRICS[metric].title} {figure_text(self.about['fingerprint'][metric])}"
            note += f"\n  - Boosted trees on counts of Morgan fragments, without a graph: {test}."
        return comparison_table(self.runs, without=WITHOUT) + note

    def __getitem__(self, name: str) -> dict[str, Any]:
        """Return the row of a name, or raise ``KeyError`` with the names of all rows."""
        rows = {row["name"]: row for row in self.rows}
        if name not in rows:
            raise KeyError(f"a row is one of {list(rows)}, got {name!r}")
        return rows[name]

    def save(self, folder: str | Path) -> None:
        """Write ``comparison.json`` and, with matplotlib, ``comparison.html``."""
        write_json(Path(folder, "comparison.json"), self.to_dict())
        try:
            write_report(self.runs, Path(folder, "comparison.html"))
        except ModuleNotFoundError as error:
            _LOGGER.warning("no page: %s", error)


def _row(grid: Grid, name: str, complete: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Make the row of an encoding from the complete trainings of all rows by seed."""
    candidate, metric, trainings = grid.candidates[name], grid.task.metric, complete[name].values()
    results, folders = [each["result"] for each in trainings], [each["folder"] for each in trainings]
    epochs = [line["seconds"] for folder in folders for line in read_metrics(folder.metrics)]
    return {
        "name": name,
        "encoder": read_object(folders[0].config)["encoder"],
        "pretrained": candidate.pretrained,
        "encoder_lr": candidate.encoder_lr,
        "edge_encoding": candidate.edge_encoding,
        "model": dict(candidate.model or {}),
        "seeds": list(complete[name]),
        "test": _spread([result[f"test_{metric}"] for result in results]),
        "validation": _spread([result[f"val_{metric}"] for result in results]),
        "relabelled": _spread([result[f"test_{metric}_relabelled"] for result in results]),
        "differences": {
            reference: _difference(complete[name], complete[reference], f"test_{metric}")
            for reference in REFERENCES
            if name != reference and set(complete.get(reference, ())) & set(complete[name])
        },
        "encode_seconds": statistics.median(each["encode_seconds"] for each in trainings),
        "epoch_seconds": statistics.median(epochs),
        "num_parameters": results[0]["num_parameters"],
        "encoder_parameters": results[0]["encoder_parameters"],
    }


def _difference(
    row: Mapping[int, Mapping[str, Any]], reference: Mapping[int, Mapping[str, Any]], figure: str
) -> dict[str, Any]:
    """Compare two rows over the seeds that both have."""
    seeds = [seed for seed in row if seed in reference]
    pair = paired_difference(*(torch.stack([side[seed]["figures"] for seed in seeds]) for side in (row, reference)))
    by_seed = [row[seed]["result"][figure] - reference[seed]["result"][figure] for seed in seeds]
    values = pair._replace(mean=statistics.fmean(by_seed), by_seed=tuple(by_seed))
    return {**values._asdict(), "error": pair.error, "seeds": seeds}


def _spread(values: Sequence[float]) -> dict[str, Any]:
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": std, "by_seed": list(values)}


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a row that only a comparison has, by column."""
    cells = {}
    for reference in REFERENCES:
        pair = row["differences"].get(reference)
        cells[f"against {reference}"] = DASH
        if pair is not None:  # as many decimals as show two digits of the standard error
            error = pair["error"]
            decimals = 4 if not error else max(0, 1 - math.floor(math.log10(error)))
            with_error = "" if error is None else f" ± {error:.{decimals}f}"
            cells[f"against {reference}"] = signed(pair["mean"], f".{decimals}f") + with_error
    relabelled = row["relabelled"]
    cells["after relabelling"] = str(Spread(relabelled["mean"], relabelled["std"], len(relabelled["by_seed"])))
    cells["encoding a graph"] = _short_time(row["encode_seconds"]) if row["encode_seconds"] else DASH
    cells["an epoch"] = _short_time(row["epoch_seconds"])
    return cells


def _short_time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _sizes(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a data description that identify the data."""
    return {name: described[name] for name in described if name.startswith("num_") or name in ("split", "digest")}
