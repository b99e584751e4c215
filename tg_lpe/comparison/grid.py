"""Train every encoding with every seed, in one process or several, and go on with what was stopped."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import InMemoryDataset

from tg_lpe.arguments import check_count, check_flags, check_seed, check_type
from tg_lpe.checkpoints.checkpoint import Checkpoint
from tg_lpe.checkpoints.files import save_tensors
from tg_lpe.comparison.candidates import Candidate, candidates_of
from tg_lpe.comparison.data import splits_of
from tg_lpe.comparison.progress import shown_progress
from tg_lpe.comparison.table import FIGURES, Comparison
from tg_lpe.data import GraphSplits
from tg_lpe.data.batches import batch_loader
from tg_lpe.data.splits import Level
from tg_lpe.data.storage import node_slices, whole
from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.precompute import call_on, store_precomputed
from tg_lpe.encoders.registry import ENCODERS, register
from tg_lpe.models import Model
from tg_lpe.training import JointTraining, TrainConfig, build_model, check_training, figures_by_part, task_for
from tg_lpe.training.loop import run_in_folder
from tg_lpe.training.run_folder import FolderInUseError, RunFolder, describe_model
from tg_lpe.training.tasks import Task

MODEL: dict[str, Any] = {"hidden_channels": 64}
"""Arguments of the model that differ from its defaults where the data are small and the rows many."""

SEEDS = (0, 1, 2)

ONE_GRAPH = TrainConfig(epochs=300, lr=3e-3)
"""Budget on one graph, whose epoch is a single step: more of them, and larger ones."""

QUICK = {"epochs": 3, "steps": 15, "graphs": 300, "hidden_channels": 32}
"""Bounds of the budget under ``quick``."""

TIMED, LONG = 100, 5.0
"""Test graphs whose encoding is timed, at most, and seconds after which it is not timed again."""

_LOGGER = logging.getLogger("tg_lpe.comparison")


class Cell(NamedTuple):
    """One training: the name of an encoding, and a seed."""

    name: str
    seed: int

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class Grid:
    """All trainings of a comparison; their run folders are ``out/NAME-sSEED``."""

    splits: GraphSplits
    task: Task
    candidates: Mapping[str, Candidate]
    model: Mapping[str, Any]
    config: TrainConfig
    seeds: tuple[int, ...]
    out: Path
    device: str
    source: str

    @property
    def cells(self) -> list[Cell]:
        """All trainings, seed after seed: the table is of use before the last seed is done."""
        return [Cell(name, seed) for seed in self.seeds for name in self.candidates]

    def folder(self, cell: Cell) -> RunFolder:
        """Return the run folder of a training; it is made by the training."""
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in cell.name)
        return RunFolder(self.out / f"{safe}-s{cell.seed}")

    def is_complete(self, cell: Cell) -> bool:
        """Tell whether a training is done and measured."""
        folder = self.folder(cell)
        return folder.result.exists() and (folder.path / FIGURES).exists()

    def build(self, cell: Cell) -> Model:
        """Make the model of a training, with its initial weights."""
        candidate = self.candidates[cell.name]
        encoder = candidate.encoder
        encoder = copy.deepcopy(encoder) if isinstance(encoder, Encoder) else encoder
        options = {"seed": cell.seed, "edge_encoding": candidate.edge_encoding, **self.model, **(candidate.model or {})}
        return build_model(self.splits.spec, self.task, encoder, **options)

    def config_of(self, cell: Cell) -> TrainConfig:
        """Return the budget of a training."""
        rate = self.candidates[cell.name].encoder_lr
        return replace(self.config, seed=cell.seed, encoder_lr=self.config.encoder_lr if rate is None else rate)

    @cached_property
    def data(self) -> dict[str, Any]:
        """Describe the data as run folders do."""
        return {"source": self.source, **self.splits.describe()}

    def settings(self, cell: Cell, model: Model) -> dict[str, Any]:
        """Return what decides the result of a training, as its folder holds it."""
        return {
            **describe_model(model),
            "pretrained": self.candidates[cell.name].pretrained,
            "task": self.task.to_dict(),
            "loop": self.config_of(cell).to_dict(),
            "data": self.data,
        }

    def run(self, cell: Cell) -> None:
        """Train, or go on, and measure."""
        folder, model = self.folder(cell), self.build(cell).to(self.device)
        config, settings = self.config_of(cell), self.settings(cell, model)

        def make() -> JointTraining:
            return JointTraining(config, model, self.splits, self.task, folder, self.device, progress=False)

        result = run_in_folder(make, folder, "train", settings, resume=True, model=model)
        figures, seconds = self.measure(model, result["precision"])
        save_tensors(folder.path / FIGURES, {"figures": figures}, {"encode_seconds": seconds})

    @torch.no_grad()
    def measure(self, model: Model, precision: str) -> tuple[Tensor, float]:
        """Return the test figure of each graph, or node of a single graph, and the seconds of encoding a graph."""
        model.eval()
        dataset, kind = self.splits.test, torch.device(self.device).type
        loader = batch_loader(store_precomputed(model.encoder, dataset), 4 * self.config.batch_size)
        with torch.autocast(kind, torch.bfloat16, enabled=precision == "bfloat16"):
            outputs = [call_on(model, batch.to(self.device)).float().cpu() for batch in loader]
        part = None
        if self.task.level == "node" and len(dataset) > 1:
            part = torch.arange(len(dataset)).repeat_interleave(node_slices(dataset).diff())
        figures = figures_by_part(self.task, torch.cat(outputs), self.splits.labels("test"), part)
        sample = whole(self.splits.test[:TIMED])
        return figures, seconds_a_graph(model.encoder, sample, self.config.batch_size, self.device)

    def check(self) -> None:
        """Try each encoding that is still to be trained on two test graphs; an error names it, before any training."""
        known = getattr(self.splits, "vocabulary", None)
        sample: InMemoryDataset = whole(self.splits.test[:2])
        for name, candidate in self.candidates.items():
            if all(self.is_complete(Cell(name, seed)) for seed in self.seeds):
                continue
            try:
                if isinstance(candidate.encoder, Checkpoint) and known is not None:
                    _check_types(candidate.encoder, list(known))
                model = self.build(Cell(name, self.seeds[0])).eval()
                check_training(model, self.splits, self.task)
                if model.encoder is not None and model.encoder.is_fitted:
                    with torch.no_grad():
                        call_on(model, next(iter(batch_loader(store_precomputed(model.encoder, sample), 2))))
            except Exception as error:
                raise ValueError(f"encoding {name!r} cannot be used here: {error}") from error

    def check_folders(self) -> None:
        """Raise ``ValueError`` if a run folder holds a training with other settings."""
        for cell in self.cells:
            folder = self.folder(cell)
            if folder.config.exists():
                try:
                    folder.start("train", self.settings(cell, self.build(cell)), resume=True)
                except FolderInUseError:
                    continue
                finally:
                    folder.release()


def compare(
    data: Any,
    encodings: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    target: str | Sequence[str] | None = None,
    level: Level | None = None,
    task: Task | str | None = None,
    model: Mapping[str, Any] | None = None,
    config: TrainConfig | None = None,
    seeds: Sequence[int] = SEEDS,
    split_seed: int = 0,
    out: str | Path = "runs/compare",
    source: str | None = None,
    processes: int = 1,
    device: str = "cpu",
    quick: bool = False,
    collect: bool = False,
    progress: bool = True,
) -> Comparison:
    """Train one model with each of several encodings, with one budget, and compare them on the test set::

        tg_lpe.compare("mine.csv", target="y")
        tg_lpe.compare(dataset, ["none", "walks", MyEncoder], out="runs/mine")

    What is complete in ``out`` is not trained again, and what was stopped goes on: call it again with the same
    arguments. Several processes, or several calls at once, share the work. The results are written there as
    ``comparison.json``, ``comparison.csv`` and, with matplotlib, ``comparison.html``.

    Args:
        data, target, level: as :func:`~tg_lpe.comparison.data.splits_of` takes them: splits, a dataset or a sequence of
            graphs, one graph with labels of its nodes, or the path of a table of molecules.
        encodings: the rows, see :func:`candidates_of`; :data:`ENCODINGS` if absent.
        task: what to predict, or its name; found from the labels if absent.
        model: ``"model"``, a class or its name, and arguments, as :func:`~tg_lpe.training.build_model` takes them. By
            default a :class:`~tg_lpe.GraphTransformer` of 64 channels.
        config: the budget, by default that of :func:`default_config`; its ``seed`` plays no part.
        seeds: of the trainings, which all have the same split.
        split_seed: of the split, if it is drawn.
        out: folder of the run folders and the results.
        source: what the table calls the data.
        processes: how many train at once, each with its share of the threads. More than one import the caller's main
            module again, so a script needs ``if __name__ == "__main__":``.
        device: where to train.
        quick: whether to see that all works: at most 3 epochs (15 on a single graph) with 32 channels, 300 training
            graphs, the first seed.
        collect: whether to train nothing, and to write the table of what is complete, also while another call trains.
        progress: whether to show what is done and when it will end.

    Returns:
        The table, with all figures.

    Raises:
        TypeError: if an argument is of another class.
        ValueError: if an argument is out of range, an encoding does not work on the data, or ``out`` holds trainings
            with other settings. A training that fails for another reason, such as divergence, is named in a warning
            and is missing in the table; its error is raised if none is complete.
    """
    check_count("processes", processes)
    check_flags(quick=quick, collect=collect, progress=progress)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be different integers, at least one, got {seeds!r}")
    for seed in (*seeds, split_seed):
        check_seed(seed)
    splits = splits_of(data, target, level, split_seed)
    config = default_config(splits) if config is None else config
    check_type("config", config, TrainConfig)
    if source is None:
        source = str(data) if isinstance(data, str | Path) else "unnamed data"
    options = {**MODEL, **(model or {})} if "model" not in (model or {}) else dict(model or {})
    if quick:
        config = replace(config, epochs=min(config.epochs, QUICK["epochs" if len(splits.train) > 1 else "steps"]))
        seeds = seeds[:1]
        if "hidden_channels" in options:
            options["hidden_channels"] = min(options["hidden_channels"], QUICK["hidden_channels"])
        if len(splits.train) > QUICK["graphs"]:
            splits = replace(splits, train=whole(splits.train[: QUICK["graphs"]]))
    if not isinstance(task, Task):
        task = task_for(splits, task)
    candidates, folder = candidates_of(encodings), Path(out)
    grid = Grid(splits, task, candidates, options, config, tuple(seeds), folder, device, source)
    if len({grid.folder(cell).path for cell in grid.cells}) < len(grid.cells):
        raise ValueError(
            f"the names {', '.join(grid.candidates)} need folders of their own: let them differ by letters"
        )
    failures: dict[Cell, Exception] = {}
    if not collect:
        grid.check()
    grid.check_folders()
    if not collect:
        with shown_progress(grid, progress):
            failures = _run(grid, processes)
    comparison = Comparison.of(grid)
    if not comparison.rows:
        raise next(iter(failures.values()), ValueError(f"no training in {folder} is complete"))
    comparison.save(folder)
    return comparison


@torch.no_grad()
def seconds_a_graph(encoder: Encoder | None, graphs: InMemoryDataset, batch_size: int, device: str) -> float:
    """Return the seconds of encoding a graph, batched already: the least of three times, of fewer if they are long."""
    times = list[float]()
    while encoder is not None and len(times) < 3 and sum(times) < LONG:
        start = time.perf_counter()
        dataset = store_precomputed(encoder, graphs)
        seconds = time.perf_counter() - start
        for batch in batch_loader(dataset, batch_size):
            batch, start = batch.to(device), time.perf_counter()
            call_on(encoder, batch).node.cpu()  # waits for the device
            seconds += time.perf_counter() - start
        times.append(seconds)
    return min(times, default=0.0) / len(graphs)


def default_config(splits: GraphSplits) -> TrainConfig:
    """Return a budget of 20 epochs at a rate of 0.001, or on a single graph of 300 steps at 0.003."""
    return TrainConfig() if len(splits.train) > 1 else ONE_GRAPH


def _run(grid: Grid, processes: int) -> dict[Cell, Exception]:
    """Train all cells; return those that failed in this process with their errors."""
    threads = max(1, torch.get_num_threads() // processes)
    classes = [cls for cls in ENCODERS.values() if not cls.__module__.startswith("tg_lpe.")]
    start: Callable[..., Any] = multiprocessing.get_context("spawn").Process
    others = [start(target=_work, args=(grid, classes, threads), daemon=True) for _ in range(processes - 1)]
    with _threads(threads if others else None):
        try:
            for other in others:
                other.start()
            failures = _run_cells(grid)
            for other in others:
                other.join()
        finally:
            for other in others:
                if other.is_alive():
                    other.terminate()
    return failures


def _work(grid: Grid, classes: Sequence[type[Encoder]], threads: int) -> None:
    """Train what no other process trains, in a process of its own."""
    torch.set_num_threads(threads)
    for cls in classes:
        if cls.__name__ not in ENCODERS:
            register(cls)
    logging.basicConfig(format="%(message)s")
    try:
        _run_cells(grid)
    except KeyboardInterrupt:
        return


def _run_cells(grid: Grid) -> dict[Cell, Exception]:
    """Train cell after cell what is not complete and in no other process's hands."""
    failures: dict[Cell, Exception] = {}
    parent, has_run = multiprocessing.parent_process(), True
    while has_run:  # again: what another process held may have been stopped there
        has_run = False
        for cell in grid.cells:
            if parent is not None and not parent.is_alive():
                return failures
            if cell in failures or grid.is_complete(cell):
                continue
            try:
                grid.run(cell)
            except FolderInUseError:
                continue
            except Exception as error:
                failures[cell] = error
                _LOGGER.warning("%s failed: %s", cell, error)
            has_run = True
    return failures


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Compute with that many threads for a while; ``None`` leaves the number as it is."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_types(encoder: Checkpoint, known: Sequence[str]) -> None:
    """Raise ``ValueError`` if a pretrained encoder numbers atom types otherwise than the data."""
    types = next((data["atom_types"] for _, data in encoder.descriptions if data.get("atom_types")), None)
    if encoder.module.reads & {"x"} and types is not None and list(types) != known:
        raise ValueError(
            f"{encoder.name} reads atom types, numbered {', '.join(types)}, and those of the data are "
            f"{', '.join(known)}: choose an encoder that reads none, or pretrain one on the data"
        )
