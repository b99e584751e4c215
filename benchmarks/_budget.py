"""Collect the errors over the number of epochs from run folders.

    python benchmarks/_budget.py RUN [RUN ...] [--json FILE] [--keep]

RUN is a run folder of `tg-lpe train`, such as those of `python benchmarks/molecules.py zinc12k --rows budget`. Runs
with the same encoder and number of epochs are the seeds of one row; incomplete runs are left out. With --keep, the
file's other rows and seeds are kept.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from _runs import over_seeds

from tg_lpe import zoo
from tg_lpe.app.report.runs import Run, read_run
from tg_lpe.checkpoints.files import read_json, write_json

NAMES = {
    "LaplacianEigenvectors": "laplacian",
    "RandomWalk": "random-walk",
}
FIGURES = ("test_mae", "test_mae_relabelled", "val_mae")
FROZEN = 1e-9
"""Learning rate below which the encoder counts as frozen."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--json", metavar="FILE", help="(default: benchmarks/results/SET_budget.json)")
    parser.add_argument("--keep", action="store_true", help="keep the other rows and seeds of the file")
    args = parser.parse_args()
    runs = [run for run in map(read_run, args.runs) if run.finished]
    if not runs:
        sys.exit("none of these runs is complete")
    file = Path(args.json or f"benchmarks/results/{runs[0].source}_budget.json")
    rows = points(runs, read_json(file)["results"] if args.keep else [])
    write_json(file, {"set": runs[0].source, "results": rows})


def points(runs: list[Run], kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Collect mean, spread and values by seed of the errors for each encoder and number of epochs.

    Args:
        runs: complete runs.
        kept: points of earlier runs; their seeds are added, except those that are run again.

    Raises:
        ValueError: if runs differ in more than encoder, epochs and seed, or a seed occurs twice.
    """
    groups: dict[tuple[str, int], dict[int, dict[str, float]]] = defaultdict(dict)
    of_encoder: dict[str, Run] = {}
    for run in runs:
        if (run.source, _shared(run)) != (runs[0].source, _shared(runs[0])):
            raise ValueError(f"{run.path} and {runs[0].path} differ in more than encoder, epochs and seed")
        name = _name(run)
        first = of_encoder.setdefault(name, run)
        if (run.encoder, run.pretrained is None) != (first.encoder, first.pretrained is None):
            raise ValueError(f"{run.path} and {first.path} have the same encoder with other arguments")
        seeds, seed = groups[name, int(run.settings["epochs"])], int(run.settings["seed"])
        if seed in seeds:
            raise ValueError(f"{run.path} has the encoder, epochs and seed of another run")
        seeds[seed] = {figure: (run.result or {})[figure] for figure in FIGURES}
    for row in kept:
        for index, seed in enumerate(row["seeds"]):
            figures = {figure: row[f"{figure}_by_seed"][index] for figure in FIGURES}
            groups[row["row"], row["epochs"]].setdefault(seed, figures)
    return [_point(name, epochs, groups[name, epochs]) for name, epochs in sorted(groups)]


def _name(run: Run) -> str:
    if run.pretrained in zoo.names():
        return f"{run.pretrained}, frozen" if run.settings["encoder_lr"] < FROZEN else str(run.pretrained)
    return "none" if run.encoder is None else NAMES.get(run.encoder["class"], run.encoder["class"])


def _shared(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.settings.items() if name not in ("epochs", "seed", "encoder_lr")}


def _point(name: str, epochs: int, by_seed: dict[int, dict[str, float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"row": name, "epochs": epochs, "seeds": sorted(by_seed)}
    for figure in FIGURES:
        row |= over_seeds(figure, [by_seed[seed][figure] for seed in sorted(by_seed)])
    return row


if __name__ == "__main__":
    main()
