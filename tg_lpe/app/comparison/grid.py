"""Train every encoding with every seed, and resume interrupted trainings."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import InMemoryDataset
from tqdm import tqdm

from tg_lpe.app.comparison.candidates import Candidate, candidates_of
from tg_lpe.app.comparison.table import FIGURES, Comparison
from tg_lpe.app.datasets.splits import splits_of
from tg_lpe.app.report.format import figure_text
from tg_lpe.app.training import (
    JointTraining,
    TrainConfig,
    build_model,
    check_training,
    default_config,
    figures_by_part,
    task_for,
)
from tg_lpe.app.training.batches import batch_loader
from tg_lpe.app.training.loop import run_in_folder
from tg_lpe.app.training.metrics import METRICS
from tg_lpe.app.training.run_folder import FolderInUseError, RunFolder, describe_model
from tg_lpe.app.training.tasks import Task
from tg_lpe.arguments import (
    check_count,
    check_flags,
    check_folder,
    check_options,
    check_seed,
    check_type,
    checked_device,
)
from tg_lpe.checkpoints.checkpoint import Checkpoint
from tg_lpe.checkpoints.files import read_object, save_tensors, subfolder
from tg_lpe.data import GraphSplits
from tg_lpe.data.storage import node_slices, whole
from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.precompute import call_on, store_precomputed
from tg_lpe.models import Model
from tg_lpe.models.registry import model_class

MODEL: dict[str, Any] = {"hidden_channels": 64}
"""Model arguments of a comparison: a smaller model than the default, since there are many trainings."""

SEEDS = (0, 1, 2)

QUICK = {"epochs": 3, "steps": 15, "graphs": 300, "hidden_channels": 32}
"""Limits of the budget with ``quick``."""

TIMED, LONG = 100, 5.0
"""Largest number of test graphs to time the encoding on, and seconds after which the timing is not repeated."""

_LOGGER = logging.getLogger("tg_lpe.app.comparison")


class Cell(NamedTuple):
    """One training of a comparison: an encoding and a seed."""

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
        """All trainings, seed by seed, so that the table is useful before the last seed is complete."""
        return [Cell(name, seed) for seed in self.seeds for name in self.candidates]

    def folder(self, cell: Cell) -> RunFolder:
        """Return the run folder of a training, which may not exist yet."""
        safe_name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in cell.name)
        return RunFolder(subfolder(self.out, f"{safe_name}-s{cell.seed}"))

    def is_complete(self, cell: Cell) -> bool:
        """Return whether a training is complete and measured."""
        folder = self.folder(cell)
        return folder.result.exists() and (folder.path / FIGURES).exists()

    def build(self, cell: Cell, dataset: InMemoryDataset | None = None) -> Model:
        """Make the model of a training, with its initial weights, which may depend on the training graphs."""
        candidate = self.candidates[cell.name]
        # Both may hold modules, which a training changes; build_model itself copies the encoder of a checkpoint.
        encoder = candidate.encoder if isinstance(candidate.encoder, Checkpoint) else copy.deepcopy(candidate.encoder)
        options = copy.deepcopy({**self.model, **(candidate.model or {})})
        options = {"seed": cell.seed, "edge_encoding": candidate.edge_encoding, "dataset": dataset, **options}
        return build_model(self.splits.spec, self.task, encoder, **options)

    def config_of(self, cell: Cell) -> TrainConfig:
        """Return the settings of a training's loop."""
        rate = self.candidates[cell.name].encoder_lr
        return replace(self.config, seed=cell.seed, encoder_lr=self.config.encoder_lr if rate is None else rate)

    @cached_property
    def data(self) -> dict[str, Any]:
        """Description of the data, as in run folders."""
        return {"source": self.source, **self.splits.describe()}

    def settings(self, cell: Cell, model: Model) -> dict[str, Any]:
        """Return everything that decides the result of a training, as in ``config.json``."""
        return {
            **describe_model(model),
            "pretrained": self.candidates[cell.name].pretrained,
            "task": self.task.to_dict(),
            "loop": self.config_of(cell).to_dict(),
            "data": self.data,
        }

    def run(self, cell: Cell) -> None:
        """Train or resume a training, then measure it."""
        folder, model = self.folder(cell), self.build(cell, self.splits.train).to(self.device)
        config, settings = self.config_of(cell), self.settings(cell, model)

        def make() -> JointTraining:
            return JointTraining(config, model, self.splits, self.task, folder, self.device, progress=False)

        result = run_in_folder(make, folder, "train", settings, resume=True, model=model)
        figures, seconds = self.measure(model, result["precision"])
        save_tensors(folder.path / FIGURES, {"figures": figures}, {"encode_seconds": seconds})

    @torch.no_grad()
    def measure(self, model: Model, precision: str) -> tuple[Tensor, float]:
        """Return the test figure of each graph, or of each node of a single graph, and the encoding time of a graph."""
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
        """Try each incomplete encoding on two test graphs; raise ``ValueError`` with its name if it fails."""
        sample: InMemoryDataset = whole(self.splits.test[:2])
        for name, candidate in self.candidates.items():
            if all(self.is_complete(Cell(name, seed)) for seed in self.seeds):
                continue
            try:
                encoder, vocabulary = candidate.encoder, getattr(self.splits, "vocabulary", None)
                if isinstance(encoder, Checkpoint) and vocabulary is not None and encoder.module.reads & {"x"}:
                    types = [data["atom_types"] for _, data in encoder.descriptions if data.get("atom_types")]
                    if types and types[0] != list(vocabulary):
                        orders = f"{', '.join(types[0])}, and the data have {', '.join(vocabulary)}"
                        raise ValueError(f"{encoder.name} numbers the atom types {orders}: pretrain it on the data")
                model = self.build(Cell(name, self.seeds[0])).eval()
                check_training(model, self.splits, self.task)
                if model.encoder is not None and model.encoder.is_fitted:
                    with torch.no_grad():
                        call_on(model, next(iter(batch_loader(store_precomputed(model.encoder, sample), 2))))
            except Exception as error:
                raise ValueError(f"encoding {name!r} cannot be used here: {error}") from error

    def check_folders(self) -> None:
        """Raise ``ValueError`` if two trainings share a folder, or one holds a training with other settings."""
        if len({self.folder(cell).path for cell in self.cells}) < len(self.cells):
            names = ", ".join(self.candidates)
            raise ValueError(f"the names {names} must give different folder names: use different letters or digits")
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
    task: Task | str | None = None,
    model: Mapping[str, Any] | None = None,
    config: TrainConfig | None = None,
    seeds: Sequence[int] = SEEDS,
    out: str | Path = "runs/compare",
    source: str | None = None,
    device: str = "cpu",
    quick: bool = False,
    collect: bool = False,
    progress: bool = True,
) -> Comparison:
    """Train a model with each of several encodings, under the same settings, and compare them on the test set::

        tg_lpe.compare(dataset, ["none", "walks", MyEncoder], out="runs/mine")

    A repeated call with the same arguments skips complete trainings and resumes interrupted ones. Simultaneous calls
    share the work. The results are written to ``out``: ``comparison.json`` and, with matplotlib, ``comparison.html``.

    A training that fails is logged as a warning and left out; its error is raised if no training is complete.

    Args:
        data: splits, such as those of :func:`~tg_lpe.app.molecules.load_molecules`; or a dataset or sequence of graphs,
            or one graph with labels of its nodes, see :func:`~tg_lpe.app.datasets.splits.splits_of`.
        encodings: the rows: names such as ``"walks"``, encoder classes or encoders, or a mapping from names of your
            choice to these, see :func:`candidates_of`; :data:`ENCODINGS` if absent.
        task: the task or its name; chosen from the labels if absent.
        model: ``"model"``, a class or its name, and further arguments of :func:`~tg_lpe.app.training.build_model`; by
            default, a :class:`~tg_lpe.GraphTransformer` with 64 channels.
        config: settings of the trainings, :func:`~tg_lpe.app.training.default_config` if absent; its ``seed`` is
            ignored.
        seeds: seeds of the trainings. All of them have the same split.
        out: folder of the run folders and the results.
        source: name of the data in the table.
        device: where to train.
        quick: whether to only try out the comparison, with at most 3 epochs (15 for a single graph), 32 channels, 300
            training graphs and the first seed.
        collect: whether to train nothing and write the table of the complete trainings, even while another call trains.
        progress: whether to show progress and the remaining time.

    Raises:
        TypeError: if an argument is of another class.
        ValueError: if an argument is out of range, an encoding does not work on the data, or ``out`` holds trainings
            with other settings.
    """
    check_folder("out", out)
    check_flags(quick=quick, collect=collect, progress=progress)
    checked_device("device", device)
    if not isinstance(seeds, Iterable) or not (seeds := tuple(seeds)) or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be different integers, at least one, got {seeds!r}")
    for seed in seeds:
        check_seed(seed)
    splits = splits_of(data)
    config = default_config(splits) if config is None else config
    check_type("config", config, TrainConfig)
    task = task if isinstance(task, Task) else task_for(splits, task)
    rows, options, source = candidates_of(encodings), _options(model), source or "unnamed data"
    grid = Grid(splits, task, rows, options, config, seeds, Path(out), device, source)
    grid = _quick(grid) if quick else grid
    if not collect:
        grid.check()
    grid.check_folders()
    failures = {} if collect else _run(grid, progress)
    comparison = Comparison.of(grid)
    if not comparison.rows:
        raise next(iter(failures.values()), ValueError(f"no training in {out} is complete"))
    comparison.save(out)
    return comparison


def _options(model: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return model arguments with their defaults."""
    check_options("model", model)
    options = dict(model or {})
    if "model" not in options:
        return {**MODEL, **options}
    model_class(options["model"])  # raises
    return options


def _quick(grid: Grid) -> Grid:
    """Return the grid within the limits of :data:`QUICK`."""
    options, train = dict(grid.model), grid.splits.train
    if "hidden_channels" in options:
        check_count("hidden_channels", options["hidden_channels"])
        options["hidden_channels"] = min(options["hidden_channels"], QUICK["hidden_channels"])
    config = replace(grid.config, epochs=min(grid.config.epochs, QUICK["epochs" if len(train) > 1 else "steps"]))
    splits = grid.splits
    if len(train) > QUICK["graphs"]:
        splits = replace(splits, train=whole(train[: QUICK["graphs"]]))
    return replace(grid, splits=splits, config=config, seeds=grid.seeds[:1], model=options)


@torch.no_grad()
def seconds_a_graph(encoder: Encoder | None, graphs: InMemoryDataset, batch_size: int, device: str) -> float:
    """Measure the seconds to encode a graph, without batching time: the least of up to three measurements."""
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


def _run(grid: Grid, progress: bool) -> dict[Cell, Exception]:
    """Train the incomplete cells that no other process trains; return those that failed with their errors."""
    failures, total = dict[Cell, Exception](), len(grid.cells)
    complete = sum(map(grid.is_complete, grid.cells))
    if progress and complete:
        _LOGGER.info("%d of %d trainings are already complete", complete, total)
    hidden = None if progress else True
    with tqdm(total=total, initial=complete, unit="training", desc="comparing", disable=hidden) as bar:
        for cell in grid.cells:
            if grid.is_complete(cell):
                continue
            try:
                grid.run(cell)
            except FolderInUseError:
                continue
            except Exception as error:
                failures[cell] = error
                _LOGGER.warning("%s failed: %s", cell, error)
                continue
            bar.n = sum(map(grid.is_complete, grid.cells))
            bar.refresh()
            if progress:
                value = read_object(grid.folder(cell).result)[f"test_{grid.task.metric}"]
                title = METRICS[grid.task.metric].title
                _LOGGER.info("[%d/%d] %s: test %s %s", bar.n, total, cell, title, figure_text(value))
    return failures
