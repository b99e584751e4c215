"""Use a trained model: it knows its task, the names of its predictions, and how it reads molecules."""

from __future__ import annotations

import json
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from tqdm import tqdm

from tg_lpe.app.prediction.inputs import (
    check_collection,
    check_graph,
    extra_rows,
    is_missing,
    is_molecule,
    number_of,
    strings,
)
from tg_lpe.app.prediction.intervals import Intervals
from tg_lpe.app.prediction.predictions import Outside, Predictions, Refusal, averaged, joined, with_ends
from tg_lpe.app.ranges import MoleculeRanges
from tg_lpe.app.training.outputs import Outputs, class_names, output_columns, read_outputs
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.tasks import Regression, Task
from tg_lpe.app.training.units import units_text
from tg_lpe.arguments import ArgumentError, check_choice, check_count, check_form, check_shares, check_type
from tg_lpe.checkpoints.checkpoint import DATA, DESCRIPTION, CheckpointMixin
from tg_lpe.checkpoints.files import write_json
from tg_lpe.data.storage import GraphChunk, in_halves, iterate_chunks
from tg_lpe.encoders.precompute import reads_edge_weight
from tg_lpe.models import Model

if TYPE_CHECKING:
    from tg_lpe.app.molecules import MoleculeReader
    from tg_lpe.app.molecules.reader import MoleculeBatch

BATCH_SIZE = 256
"""Largest number of graphs in a batch. On a CPU, larger batches of molecules exceed the caches and are slower."""

MAX_PAIRS = 2**22
"""Largest number of node pairs in a batch, because some encoders hold a matrix of each graph."""

SHOWN = 5
PENALISED_LOGP = "penalised logP: logP - SA - long rings, each in standard deviations of the data set, no unit"
"""Unit of the computed label."""

ATTRIBUTES = ("x", "edge_attr", "edge_weight", "graph_attr")
"""Attributes that a model may read."""


class Predictor:
    """Predict from SMILES or graphs. :func:`load` makes a predictor from a checkpoint or a run folder.

    With several models, which :func:`load_many` loads, ``values`` are the means of the models' values or probabilities,
    and ``spread`` is the standard deviation over the models (divisor ``num_models - 1``); it shows how far they agree,
    but is no error bar. A molecule that one of the models refuses is refused, and one that is outside for one of them
    is outside. Each model reads SMILES with its own atom types.

    Args:
        model: a :class:`~tg_lpe.models.Model`, such as a :class:`~tg_lpe.GraphTransformer`, in evaluation mode. It is
            neither copied nor changed.
        task: what the model predicts; if absent, its raw outputs are returned.
        data: description of the training data by ``splits.describe()``: names of the targets, and for SMILES the atom
            and bond types.

    Attributes:
        others: the predictors of further models; empty for a single model.

    Raises:
        TypeError: if ``model`` or ``task`` has another type.
        ValueError: if the model is in training mode, or does not fit the task, or ``data`` has another form.

    Example:
        >>> from tg_lpe import zoo
        >>> predictor = zoo.load("transformer-zinc12k")
        >>> predictor.predict(["CC(=O)Nc1ccc(O)cc1", "c1ccccc1"]).values.shape
        torch.Size([2, 1])
    """

    def __init__(self, model: Model, task: Task | None = None, data: Mapping[str, Any] | None = None) -> None:
        check_type("model", model, nn.Module, "; tg_lpe.app.prediction.load takes a name or a folder")
        if model.training:
            raise ValueError("the model is in training mode, where dropout and batch norm differ: call model.eval()")
        if task is not None:
            check_type("task", task, Task, ", which tg_lpe.app.training.make_task makes")
            task.check_model(model)
        self.model, self.task = model, task
        self.run: RunFolder | None = None
        self.others: tuple[Predictor, ...] = ()
        data = {} if data is None else data
        check_form("data", data, DATA)
        self.data = {name: value for name, value in data.items() if name in DATA and value is not None}

    @cached_property
    def reader(self) -> MoleculeReader:
        """The reader of SMILES with the model's atom types; raises ``ValueError`` if the model does not name them."""
        from tg_lpe.app.molecules import MoleculeReader

        try:
            return MoleculeReader.of(self.data)
        except ValueError as error:
            raise ValueError(f"this model cannot read SMILES: {error}") from error

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the predicted columns: ``LABEL``, or ``LABEL_CLASS`` for the probability of a class."""
        out_channels = self.model.config_dict()["out_channels"] if self.task is None else self.task.out_channels
        return output_columns(self.task, self._target, int(out_channels))

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes if each class has a column; else empty."""
        return class_names(self.task, self._target)

    @property
    def units(self) -> tuple[str, ...]:
        """The unit of each of :attr:`columns`, such as ``"Hartree"``; empty if unknown."""
        is_regression = self.task is not None and self.task.name == "regression"
        return tuple(self._target.get("units") or ()) if is_regression else ()

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """Names of the columns that the model reads in addition to SMILES, such as a temperature."""
        return tuple(self.data.get("extra_columns") or ())

    @property
    def spread_columns(self) -> tuple[str, ...]:
        """Names of the spread of each of :attr:`columns`; empty for a single model."""
        return with_ends(self.columns, "_spread") if self.others else ()

    def intervals(self, coverage: float) -> Intervals:
        """Calibrate intervals on the validation predictions in the model's run folder.

        Args:
            coverage: share of labels that the intervals should hold, between 0 and 1, such as 0.9.

        Raises:
            ValueError: if ``coverage`` is out of range, the task is no regression, a model was not loaded from a run
                folder with predictions, or several models were validated on different rows.
        """
        check_shares(or_zero=False, coverage=coverage)
        if not isinstance(self.task, Regression):
            kind = "a model without a task" if self.task is None else f"the task {self.task.name}"
            raise ArgumentError("{coverage} is for regression, got " + kind, coverage=coverage)
        return Intervals.of(self._run_outputs("val"), self._run_outputs("test"), coverage)

    def _run_outputs(self, part: str) -> list[Outputs]:
        """Read the predictions of each model's run for its validation or test set."""
        outputs: list[Outputs] = []
        for one in self._all:
            if one.run is None or one.task is None:
                message = "coverage needs the validation predictions in a run folder: load the model from its run"
                raise ValueError(message)
            path = {"val": one.run.val_predictions, "test": one.run.test_predictions}[part]
            if not path.is_file():
                raise ValueError(f"coverage needs {path}, which earlier versions did not write: train again")
            outputs.append(read_outputs(path, one.task, one._target))
            is_same = outputs[-1].rows == outputs[0].rows and outputs[-1].smiles == outputs[0].smiles
            if not is_same or not torch.allclose(outputs[-1].labels, outputs[0].labels, equal_nan=True):
                hint = "tg-lpe train --seeds 0 1 2 trains on one split"
                raise ValueError(f"coverage needs models trained on one split, but {path} has other rows: {hint}")
        return outputs

    @property
    def _target(self) -> dict[str, Any]:
        return self.data.get("target") or {}

    @cached_property
    def ranges(self) -> MoleculeRanges | None:
        """Ranges of sizes, atom types and labels in the training set; ``None`` if unknown."""
        ranges = self.data.get("ranges")
        return None if ranges is None else MoleculeRanges.from_dict(ranges)

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        source, types = Path(str(self.data.get("source", "its data set"))).name, self.data.get("atom_types")
        inputs = "graphs (Data)"
        if self.data.get("ranges") or self.data.get("bond_types") is not None:
            features = f"{len(types)} atom types" if types else "ogb's features"
            inputs = f"SMILES, RDKit molecules, or graphs (Data) with {features}"
        meaning = "raw outputs of the model"
        if self.task is not None:
            is_regression = self.task.name == "regression"
            unit = units_text(self.columns, self.units) if self.units else self._target.get("unit")
            unit = unit or (PENALISED_LOGP if self._target.get("computed") else None)
            unit = unit or (f"in the units of the labels in {source}" if is_regression else "probabilities")
            meaning = f"{self.task.name} of {self._level}s, {unit}"
        text = f"Predictor of {', '.join(self.columns)}: {meaning}\n  from: {inputs}"
        text += f"\n  by: {type(self.model).__name__}, {size:,} parameters"
        if self.ranges is not None:
            text += f"\n  trained on: {self.data.get('num_train', 0):,} molecules of {source}, {self.ranges}"
        return "\n".join([text, *map(repr, self.others)])

    def predict(
        self,
        graphs: Sequence[str] | Sequence[Data] | Any,
        *,
        on_error: str = "raise",
        extra: Mapping[str, Sequence[Any]] | Any = None,
        batch_size: int = BATCH_SIZE,
        num_workers: int | None = None,
        progress: bool = False,
        coverage: float | None = None,
    ) -> Predictions:
        """Predict for molecules or graphs in batches of bounded memory; batching changes results only by rounding.

        Args:
            graphs: SMILES strings, such as a column of a table; RDKit molecules, which are converted to canonical
                SMILES; ``Data`` objects as in training, with atom and bond types by number; or a PyG dataset.
                ``edge_weight`` is read if the model's encoder reads it.
            on_error: what to do if a graph is refused, because its SMILES is missing or cannot be read, or it does not
                fit the model: ``"raise"`` an error, or set its row to ``"nan"`` and list it in ``refused``.
            extra: the :attr:`extra_columns` of the model for SMILES: a dictionary or table with a number for each
                molecule. Graphs hold them in ``graph_attr``, after RDKit's descriptors if the model reads those.
            batch_size: largest number of graphs in a batch.
            num_workers: further processes that read SMILES; ``None`` to choose.
            progress: whether to show a progress bar.
            coverage: share of labels that the intervals ``low`` to ``high`` should hold, see :meth:`intervals`; no
                intervals if absent.

        Warns:
            UserWarning: once, if graphs differ from those that the model was trained on; ``outside`` lists them.

        Raises:
            TypeError: if ``graphs`` is no list, or an element is neither a molecule nor the ``Data`` of one graph.
            ValueError: if ``on_error="raise"`` and a graph is refused, an option is out of range, or the model was not
                trained on molecules and gets SMILES.
            ModuleNotFoundError: if ``graphs`` are SMILES and RDKit is not installed.
        """
        check_choice("on_error", on_error, ("raise", "nan"))
        check_collection(graphs)
        intervals = None if coverage is None else self.intervals(coverage)
        index = None
        # Iterate: graphs[0] of a pandas.Series need not be its first row.
        first = next((graph for graph in graphs if not is_missing(graph)), None) if len(graphs) else graphs
        if first is None or is_molecule(first):
            index = getattr(graphs, "index", None)
            graphs = strings(graphs)
            rows = extra_rows(extra, self.extra_columns, len(graphs))
            parts = self._of_strings(graphs, rows, batch_size, num_workers)
        elif len(graphs) and extra is not None:
            raise ValueError(f"extra={extra!r:.80} is for SMILES, got graphs")
        else:
            if len(graphs):
                check_graph(first)
            parts = self._of_graphs(graphs, batch_size)
        empty = torch.zeros(0, len(self.columns))
        done = [self._made(empty, graph=None if self._level == "graph" else empty[:, 0].long())]
        done = [replace(done[0], spread=empty if self.others else None)]
        # Close the generator if an error ends the loop: its worker processes would outlive the traceback otherwise.
        with (
            closing(parts),
            tqdm(total=len(graphs), desc="predicting", unit="graph", disable=None if progress else True) as bar,
        ):
            for part in parts:
                if part.refused and on_error == "raise":
                    hidden = len(part.refused) - SHOWN
                    rest = f"; and {hidden} more of this batch" * (hidden > 0)
                    named = "; ".join(map(str, part.refused[:SHOWN]))
                    raise ValueError(f"no prediction for {named}{rest} (on_error='nan' predicts the others)")
                done.append(part)
                bar.update(part.num_graphs)
        predictions = joined(done)
        if outside := predictions.outside:
            warnings.warn(
                f"{len(outside):,} of {len(graphs):,} graphs differ from those that the model was trained on, so "
                f"their predictions may be far off: {outside[0]}; .outside lists them all",
                stacklevel=2,
            )
        index = None if callable(index) else index  # list.index is a method
        return replace(predictions, index=index).within(intervals)

    def _of_strings(
        self,
        smiles: Sequence[str | None],
        extra: Sequence[Sequence[Any]] | None,
        batch_size: int,
        num_workers: int | None,
    ) -> Generator[Predictions, None, None]:
        """Yield the predictions for batches of strings; models with equal readers share the reading."""
        if self._level != "graph":
            raise ValueError(f"this model predicts {self._level}s and takes graphs (Data), not SMILES")
        reads = {
            one.reader: one.reader.read(smiles, batch_size=batch_size, num_workers=num_workers) for one in self._all
        }
        start = 0
        with ExitStack() as stack:  # a read that an error leaves open keeps its processes
            for read in reads.values():
                stack.enter_context(closing(read))
            for batches in zip(*reads.values(), strict=True):
                batch_of = dict(zip(reads, batches, strict=True))
                stop = start + len(batches[0].smiles)
                rows = () if extra is None else extra[start:stop]
                yield averaged([one._of_molecules(batch_of[one.reader], start, batch_size, rows) for one in self._all])
                start = stop

    def _of_molecules(
        self, batch: MoleculeBatch, start: int, batch_size: int, extra: Sequence[Sequence[Any]]
    ) -> Predictions:
        """Predict with the first model alone."""
        usable = [index for index, reason in enumerate(batch.reasons) if reason is None]
        reasons = {index: reason for index, reason in enumerate(batch.reasons) if reason is not None}
        values = torch.full((len(batch.smiles), len(self.columns)), torch.nan)
        graphs, wrong = batch.graphs, dict[int, str]()
        if self.extra_columns:
            numbers = torch.tensor([[number_of(cell) for cell in extra[index]] for index in usable])
            numbers = numbers.reshape(len(usable), len(self.extra_columns))
            graphs = graphs.with_columns(numbers)
            for row, column in (~numbers.isfinite()).nonzero().tolist():
                cell, name = extra[usable[row]][column], self.extra_columns[column]
                wrong.setdefault(usable[row], f"{cell!r} in column {name!r} must be a number")
        parts = [self._of_chunk(chunk, first) for first, chunk in _chunks(graphs, batch_size)]
        values[usable] = torch.cat([values[:0], *(part.values for part in parts)])
        reasons |= {usable[refusal.index]: refusal.reason for part in parts for refusal in part.refused} | wrong
        differences = {usable[graph.index]: graph.reason for part in parts for graph in part.outside}
        names = [repr(text) for text in batch.smiles]
        refused = [Refusal(start + i, names[i], reasons[i]) for i in sorted(reasons)]
        outside = [Outside(start + i, names[i], differences[i]) for i in sorted(differences)]
        return self._made(values, len(batch.smiles), refused, outside)

    def _of_graphs(self, graphs: Any, batch_size: int) -> Generator[Predictions, None, None]:
        check_count("batch_size", batch_size)
        if len({tuple(one.data.get("atom_types") or ()) for one in self._all}) > 1:
            raise ValueError("the models number atom types differently, so graphs do not fit all of them: pass SMILES")
        for start, chunk in _chunks(graphs, batch_size):
            yield averaged([one._of_chunk(chunk, start) for one in self._all])

    def _of_chunk(self, chunk: GraphChunk, start: int) -> Predictions:
        """Predict with the first model alone."""
        values: list[Tensor] = []
        refused: list[Refusal] = []
        outside: list[Outside] = []

        def run(first: int, stop: int) -> tuple[GraphChunk, Tensor]:
            part = chunk.part(first, stop)
            return part, self._run(part)

        for first, result in in_halves(run, 0, chunk.num_graphs):
            if isinstance(result, str):
                graph = chunk.part(first, first + 1)
                num_rows = {"node": graph.num_nodes, "edge": graph.edge_index.size(1)}.get(self._level, 1)
                values.append(torch.full((num_rows, len(self.columns)), torch.nan))
                refused.append(Refusal(start + first, "graph", result))
            else:
                part, rows = result
                values.append(rows)
                if self.ranges is None or self._level != "graph":
                    continue
                reasons = self.ranges.outside(part)
                if self.task is not None and self.task.name == "regression":
                    labels = self.ranges.outside_labels(rows, self.columns)
                    reasons = [of_graph + of_label for of_graph, of_label in zip(reasons, labels, strict=True)]
                outside += [Outside(start + first + i, "graph", "; ".join(why)) for i, why in enumerate(reasons) if why]
        owner = None
        if self._level in ("node", "edge"):
            is_node = self._level == "node"
            counts = torch.bincount(chunk.batch, minlength=chunk.num_graphs) if is_node else chunk.edge_ptr.diff()
            owner = start + torch.arange(chunk.num_graphs).repeat_interleave(counts.cpu())
        return self._made(torch.cat(values), chunk.num_graphs, refused, outside, owner)

    def _made(
        self,
        values: Tensor,
        num_graphs: int = 0,
        refused: Iterable[Refusal] = (),
        outside: Iterable[Outside] = (),
        graph: Tensor | None = None,
    ) -> Predictions:
        return Predictions(
            values,
            self.columns,
            tuple(refused),
            self.classes,
            tuple(outside),
            units=self.units,
            num_graphs=num_graphs,
            graph=graph,
        )

    @property
    def _all(self) -> tuple[Predictor, ...]:
        return (self, *self.others)

    @property
    def _level(self) -> str:
        return self.task.level if self.task is not None else self.model.level

    def _run(self, chunk: GraphChunk) -> Tensor:
        if (error := chunk.misplaced()) is not None:
            raise ValueError(error[1])
        device = next(self.model.parameters()).device
        attributes = {name: values.to(device) for name, values in chunk.attributes.items()}
        options = {"graph_attr": attributes.get("graph_attr")} if self.model.reads_graph_attr else {}
        with torch.inference_mode():
            out = self.model(
                attributes.get("x"),
                chunk.edge_index.to(device),
                attributes.get("edge_attr"),
                chunk.batch.to(device),
                attributes.get("edge_weight") if reads_edge_weight(self.model) else None,
                num_nodes=chunk.num_nodes,
                num_graphs=chunk.num_graphs,
                **options,
            )
            return (out if self.task is None else self.task.predict(out)).float().cpu()

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint for :func:`load`: the model, and ``card.json`` with its task and training data.

        Raises:
            TypeError: if there are several models, the model is no ``tg_lpe.models.Model``, or an argument of its
                constructor, the task or the data is not JSON-able.
            ValueError: if the model could not be loaded again, because its submodules were replaced, pruned or
                parametrised.
        """
        if self.others:
            raise TypeError("several models are saved one by one; load the folders with load_many([...])")
        if not isinstance(self.model, CheckpointMixin):
            raise TypeError(f"a {type(self.model).__name__} cannot be saved; a tg_lpe.models.Model can")
        task = None if self.task is None else self.task.to_dict()
        card = {"class": type(self.model).__name__, "task": task, "data": self.data}
        json.dumps(card)  # fails before the model is written: without its card it would give raw outputs
        self.model.save_pretrained(folder)
        write_json(Path(folder) / DESCRIPTION, card)


def _chunks(graphs: Any, batch_size: int) -> Iterator[tuple[int, GraphChunk]]:
    """Iterate over chunks of graphs, each after the number of its first graph."""
    start = 0
    # Predictor._run checks edges, so that a graph with invalid edges is refused without the others of its chunk.
    for chunk in iterate_chunks(graphs, batch_size, ATTRIBUTES, MAX_PAIRS, check_edges=False):
        yield start, chunk
        start += chunk.num_graphs
