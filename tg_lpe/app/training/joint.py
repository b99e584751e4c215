"""Supervised training of a model together with its encoder."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, InMemoryDataset

from tg_lpe.app.training.build import hash_seed, task_for
from tg_lpe.app.training.config import Precision, TrainConfig, default_config
from tg_lpe.app.training.loop import TrainingLoop, count_parameters, run_in_folder
from tg_lpe.app.training.metrics import METRICS
from tg_lpe.app.training.outputs import write_outputs
from tg_lpe.app.training.processes import Parts, join
from tg_lpe.app.training.run_folder import RunFolder, describe_model
from tg_lpe.app.training.state import copy_state
from tg_lpe.app.training.tasks import Regression, Task
from tg_lpe.arguments import check_flags, check_type, checked_device
from tg_lpe.checkpoints.checkpoint import module_dtype
from tg_lpe.checkpoints.files import read_object
from tg_lpe.data import GraphSplits
from tg_lpe.data.storage import whole
from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.precompute import call_on, reads_edge_weight, store_precomputed
from tg_lpe.models.base import Model
from tg_lpe.nn import parallel

RELABELLING = 2
"""Mixed into the seed that renumbers the nodes of test graphs."""

FIT = 3
"""Mixed into the seed of an encoder's random draws in its ``fit``."""


def train(
    model: Model,
    splits: GraphSplits,
    task: Task | None = None,
    config: TrainConfig | None = None,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    device: str | torch.device = "cpu",
    progress: bool = True,
) -> dict[str, Any]:
    """Train a model on your own graphs; this needs neither RDKit nor ogb::

        splits = GraphSplits.of(train_graphs, val_graphs, test_graphs)  # Data with y, or PyG datasets
        task = task_for(splits)
        model = build_model(splits.spec, task, GramTransformer(num_edge_types=4), hidden_channels=64)
        result = train(model, splits, task, TrainConfig(epochs=20), folder="runs/mine")

    A regression task made by :func:`~tg_lpe.app.training.task_for` standardises the labels, so the raw outputs of
    the model are standardised, too; ``task.predict`` converts them to the scale of the labels.

    Args:
        model: a :class:`~tg_lpe.models.Model` such as a :class:`~tg_lpe.GraphTransformer`, with or without an encoder.
            It is moved to ``device`` and trained in place; at the end it has the weights of the epoch with the best
            validation figure.
        splits: the data.
        task: what to predict; chosen by :func:`~tg_lpe.app.training.task_for` if absent.
        config: settings of the loop, :func:`default_config` if absent.
        folder: where to write the run, for ``resume`` and ``tg-lpe report``; nothing is written if absent.
        resume: whether to continue the run in the folder.
        device: where to train; under ``torchrun``, ``"cuda"`` gives each process a GPU.
        progress: whether to show a progress bar.

    Returns:
        The result, as in ``result.json``. Its entries are

        - ``test_<metric>`` for each figure of the task, ``val_<metric>`` and ``best_epoch``
        - ``test_<metric>_relabelled``: the test figure after the nodes of each test graph are renumbered at random
        - ``test_<metric>_columns`` if there are several label columns: the figure of each column by name
        - ``test_<metric>_constant`` and ``val_<metric>_constant`` for regression: those of the median training label
        - ``<part>_num_labels``, ``<part>_num_missing`` and ``<part>_undefined_columns`` for the parts ``val`` and
          ``test``; the last one, present if not empty, names the columns that the average of the metric leaves out
        - numbers of parameters and graphs, and the precision

    Raises:
        TypeError: if an argument is of another class, or ``folder`` is set and one of the model's is not JSON-able.
        ValueError: if the model or the labels do not fit the task (:meth:`Task.check_model`,
            :meth:`Task.check_labels`), the model has no parameter to train, the folder holds another run, training
            diverges, ``device`` is unusable, a flag is no bool, or ``resume`` is set without a folder.
    """
    if not hasattr(model, "reads_graph_attr"):  # torch.compile's modules have the attributes of the model inside
        allowed = "a tg_lpe.models.Model or a subclass of your own, such as GraphTransformer(encoder=...)"
        raise TypeError(f"train takes {allowed}, got a {type(model).__name__}")
    check_type("splits", splits, GraphSplits, ", which GraphSplits.of makes")
    task = task_for(splits) if task is None else task
    config = default_config(splits) if config is None else config
    check_type("task", task, Task, ", which task_for makes")
    check_type("config", config, TrainConfig)
    check_flags(resume=resume, progress=progress)
    device = join(checked_device("device", device))
    check_training(model, splits, task)
    # The folder records the resolved precision, so that a run is not resumed in another one.
    requested, config = config.precision, replace(config, precision=resolved_precision(config.precision, device))
    if folder is None and resume:
        raise ValueError("resume=True is for the run in a folder: folder is missing")
    if folder is None:
        return JointTraining(config, model, splits, task, None, device, progress).fit()
    run, model, loop = RunFolder(folder), model.to(device), config.to_dict()
    if requested == "auto" and run.config.exists() and run.result.exists():  # a complete run is only read
        loop["precision"] = read_object(run.config).get("loop", {}).get("precision")
    settings = {**describe_model(model), "task": task.to_dict(), "loop": loop, "data": splits.describe()}
    make = partial(JointTraining, config, model, splits, task, run, device, progress)
    return run_in_folder(make, run, "train", settings, resume, model)


def check_training(model: Model, splits: GraphSplits, task: Task) -> None:
    """Raise ``ValueError`` if the model, labels or weights do not fit the task, or the model expects ``pe=``."""
    task.check_model(model)
    task.check_labels(splits)
    _check_weights(splits, task)
    if model.reads_graph_attr and splits.spec.graph_dim is None:
        raise ValueError("the model was made with graph_dim and reads graph_attr, which the graphs do not have")
    expects = [name for name in ("pe", "edge_pe") if getattr(model, f"{name}_embedding", None) is not None]
    if expects and model.encoder is None:
        mismatch = f"the model was made with {expects[0]}_channels and expects {expects[0]}=, which train does not pass"
        raise ValueError(f"{mismatch}: give it the encoder, and encoder_lr=0 to keep the encoder as it is")


class JointTraining(TrainingLoop):
    """Train a model with its encoder: the loop behind :func:`train`, with the same arguments.

    The test set is evaluated only after training, with the weights that have the best validation figure.
    """

    config: TrainConfig

    def __init__(
        self,
        config: TrainConfig,
        model: Model,
        splits: GraphSplits,
        task: Task,
        folder: RunFolder | None = None,
        device: str | torch.device = "cpu",
        progress: bool = True,
    ) -> None:
        self.metric, self.larger_is_better = f"val_{task.metric}", METRICS[task.metric].direction == "max"
        model = model.to(checked_device("device", device))
        self.encoder = model.encoder
        parts = [part._data.edge_index for part in (splits.train, splits.val, splits.test) if len(part) == 1]
        same = len(parts) == 3 and torch.equal(parts[0], parts[1]) and torch.equal(parts[0], parts[2])
        self.is_one_graph = splits.target.level == "node" and same
        if self.encoder is not None and not self.encoder.is_fitted:
            draw = None if self.is_one_graph else torch.Generator().manual_seed(hash_seed(config.seed, FIT))
            self.encoder.fit(splits.train, generator=draw)
        if (embedding := getattr(model, "graph_embedding", None)) is not None:
            embedding.fit(splits.train._data.graph_attr)
        super().__init__(config, model, _optimizer(model, config), folder, progress)
        self.splits, self.task = splits, task
        with self._kept_encoder():
            self._encode_parts()
        self.label_figures = _label_figures(task, splits)
        weights = splits.train._data.get("graph_weight")
        self.weight_scale = None if weights is None else 1 / float(weights.double().mean())
        self.autocast_dtype = {"bfloat16": torch.bfloat16}.get(resolved_precision(config.precision, self.device))
        self._penalties: list[Tensor] = []
        if splits.spec.graph_dim is not None and not model.reads_graph_attr:
            unread = "graph_attr of the graphs is not read: the model was made without graph_dim; build_model sets it"
            warnings.warn(unread, stacklevel=2)
        weight = next((name for name in ("edge_weight", "weight") if name in splits.train._data), None)
        if weight is not None and not (weight == "edge_weight" and reads_edge_weight(model)):
            unread = f"{weight} of the graphs is not read by {self.encoder or 'a model without an encoder'}"
            warnings.warn(f"{unread}. Put conductances into edge_weight; attention reads edge_attr", stacklevel=2)

    def fit(self, resume: bool = False) -> dict[str, Any]:
        """Train as :meth:`TrainingLoop.fit`, with the encoder frozen if ``encoder_lr`` is 0."""
        with self._kept_encoder():
            return super().fit(resume)

    def _encode_parts(self) -> None:
        parts = self.splits.train, self.splits.val, self.splits.test
        self.train_set, self.val_set, self.test_set = (store_precomputed(self.encoder, part) for part in parts)

    def _restore(self) -> None:
        super()._restore()
        if self.encoder is not None and self.encoder.state_dict():
            self._encode_parts()  # by the encoder's weights in the checkpoint, if it is frozen

    @contextmanager
    def _kept_encoder(self) -> Iterator[None]:
        """Freeze the encoder in the context if ``encoder_lr`` is 0."""
        encoder = None if self.config.encoder_lr else self.encoder
        frozen = [] if encoder is None else [each for each in encoder.parameters() if each.requires_grad]
        try:
            for parameter in frozen:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_()

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return the task's loss of a training batch plus the penalty of the model's layers, if they have one."""
        if not self.model.has_penalty:
            return self._task_loss(self.predict(batch, generator), batch)
        out, penalty = self._call(batch, generator, return_penalty=True)
        penalty = parallel.mean(penalty.float(), batch.num_graphs)
        self._penalties.append(penalty.detach())
        return self._task_loss(out.float(), batch) + penalty

    def _task_loss(self, out: Tensor, batch: Batch) -> Tensor:
        """Return the task's loss; ``graph_weight`` is divided by its mean over the training set."""
        if self.weight_scale is None:
            return self.task.loss(*_of_all(out, batch))
        weight = parallel.gather(batch.graph_weight.to(out.dtype)) * self.weight_scale
        return self.task.loss(*_of_all(out, batch), weight=weight)

    def train_epoch(self) -> dict[str, Any]:
        """Train for an epoch; ``train_loss`` includes ``train_penalty``, the mean penalty of a step."""
        self._penalties = []
        row = super().train_epoch()
        if self._penalties:
            row["train_penalty"] = float(torch.stack(self._penalties).mean())
        return row

    @contextmanager
    def evaluated_weights(self) -> Iterator[None]:
        """Recompute the statistics of batch norms for the evaluation if ``recalibrate`` is set, and on one graph.

        On one graph an epoch is a single step, so the running statistics are those of weights of many epochs ago.
        """
        if not self.config.recalibrate and not self.is_one_graph:
            yield
            return
        before = copy_state(self.model)
        try:
            self._recalibrate()
            yield
        finally:
            self.model.load_state_dict(before)

    @torch.no_grad()
    def _recalibrate(self) -> None:
        """Set the statistics of batch norms to their mean over batches of randomly chosen training graphs."""
        encoders = [part for part in self.model.modules() if isinstance(part, Encoder)]
        frozen = {m for part in encoders if not any(p.requires_grad for p in part.parameters()) for m in part.modules()}
        modules = (module for module in self.model.modules() if module not in frozen)
        norms = [module for module in modules if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        if not norms:
            return
        momenta = [norm.momentum for norm in norms]
        self.model.eval()  # without dropout
        try:
            for norm in norms:
                norm.train()
                norm.reset_running_stats()
                norm.momentum = None  # all batches count equally
            # The first graphs of a sorted file are no sample, so draw some; the same at each evaluation.
            order = torch.randperm(len(self.train_set), generator=torch.Generator().manual_seed(self.config.seed))
            graphs = self.train_set[order[: self.config.recalibrate or None]]
            for batch, divided in Parts(graphs, 4 * self.config.batch_size):
                with divided:
                    self.predict(batch.to(self.device))
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum

    def validate(self) -> dict[str, Any]:
        """Return the task's metric and loss on the validation set, and a figure of each column if there are several."""
        figures = self.figures(self.val_set)
        first = {name: figures["columns"][name] for name in self.task.column_figures[:1] if "columns" in figures}
        return {
            self.metric: float(figures[self.task.metric]),
            "val_loss": figures["loss"],
            **_by_column("val", first, self.splits.target.columns),
        }

    def figures(self, dataset: InMemoryDataset) -> dict[str, Any]:
        """Return the figures of :meth:`Task.evaluate` and the ``loss`` with the current weights."""
        predictions, targets = self.outputs(dataset)
        return {**self.task.evaluate(predictions, targets), "loss": float(self.task.loss(predictions, targets))}

    def outputs(self, dataset: InMemoryDataset) -> tuple[Tensor, Tensor]:
        """Return outputs ``[num_rows, out_channels]`` and labels of a dataset; all processes get all rows."""
        self.model.eval()
        outputs, labels = [], []
        with torch.no_grad():
            for batch, divided in Parts(dataset, 4 * self.config.batch_size):
                batch = batch.to(self.device)
                with divided:
                    output, label = _of_all(self.predict(batch), batch)
                outputs.append(output)
                labels.append(label)
        return torch.cat(outputs), torch.cat(labels)

    def result(self) -> dict[str, Any]:
        """Return test figures and sizes; write the predictions for validation and test set into the run folder."""
        outputs = {"val": self.outputs(self.val_set), "test": self.outputs(self.test_set)}
        target, smiles = self.splits.target, self.splits.smiles
        if self.folder is not None:
            for part, path in (("val", self.folder.val_predictions), ("test", self.folder.test_predictions)):
                write_outputs(path, self.task, target.to_dict(), *outputs[part], smiles.get(part, ()))
        name, figures = self.task.metric, self.task.evaluate(*outputs["test"])
        dtype = module_dtype(self.model) or torch.float32
        if dtype != torch.float64:  # autocast does not change float64
            dtype = self.autocast_dtype or dtype
        return {
            **{f"test_{key}": figures[key] for key in self.task.figures},
            **_by_column("test", figures.get("columns", {}), target.columns),
            **self.label_figures,
            f"test_{name}_relabelled": self.relabelled_test_figure(),
            "encoder_parameters": 0 if self.encoder is None else count_parameters(self.encoder),
            "num_train": len(self.train_set),
            "num_val": len(self.val_set),
            "num_test": len(self.test_set),
            "precision": str(dtype).removeprefix("torch."),
        }

    def relabelled_test_figure(self) -> float:
        """Return the test figure after the nodes of each test graph are renumbered at random.

        The encoding is computed again. If it is equivariant, the figure changes only by rounding; eigenvectors may
        change in sign and basis.
        """
        generator = torch.Generator().manual_seed(hash_seed(self.config.seed, RELABELLING))
        relabelled = whole([_relabelled(graph, self.task.level, generator) for graph in self.splits.test])
        return float(self.figures(store_precomputed(self.encoder, relabelled))[self.task.metric])

    def predict(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        """Return the model's outputs ``[num_rows, out_channels]``.

        ``generator`` draws new signs and random probes. One graph keeps fixed ones, for its test nodes too.
        """
        out: Tensor = self._call(batch, generator)
        return out.float()

    def _call(self, batch: Batch, generator: torch.Generator | None, **options: bool) -> Any:
        with torch.autocast(self.device.type, self.autocast_dtype, enabled=self.autocast_dtype is not None):
            return call_on(self.model, batch, generator=None if self.is_one_graph else generator, **options)


def resolved_precision(precision: Precision, device: torch.device) -> Precision:
    """Resolve ``"auto"``: ``"bfloat16"`` if the device multiplies bfloat16 natively, else ``"float32"``."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    # Without these instructions a bfloat16 product on CPU is emulated, a hundred times slower than float32.
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if native else "float32"


def _check_weights(splits: GraphSplits, task: Task) -> None:
    """Raise ``ValueError`` if the training graphs have a ``graph_weight`` that the task cannot use."""
    weights = splits.train._data.get("graph_weight")
    if weights is None:
        return
    if task.level != "graph":
        raise ValueError(f"graph_weight weights whole graphs, and the task predicts labels of a {task.level}")
    if "weight" not in inspect.signature(task.loss).parameters:
        raise ValueError(f"the data has graph_weight, and the loss of the task {task.name!r} takes no weight=")
    if weights.shape != (len(splits.train),):
        raise ValueError(f"graph_weight must be one number per graph, got shape {list(weights.shape)} for all graphs")
    if not bool((weights >= 0).all() & weights.isfinite().all() & (weights > 0).any()):
        bounds = f"{float(weights.min()):g} to {float(weights.max()):g}"
        allowed = "finite and at least 0, and not 0 for all training graphs"
        raise ValueError(f"graph_weight must be {allowed}, got {bounds}; in a table it is the column weight_column")


def _of_all(out: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return outputs and labels of the whole batch; this process may hold only a part of it."""
    with torch.no_grad():
        labels = parallel.gather(batch.y)
    return parallel.gather(out), labels


def _label_figures(task: Task, splits: GraphSplits) -> dict[str, Any]:
    """Return counts of labels, and the figures of a constant prediction, the least that a model should beat."""
    counts: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    columns = splits.target.columns
    constant = task.constant(splits.labels("train")) if isinstance(task, Regression) else None
    for part in ("val", "test"):
        labels = splits.labels(part)
        missing = int(labels.isnan().sum())
        counts |= {f"{part}_num_labels": labels.numel() - missing, f"{part}_num_missing": missing}
        if undefined := task.undefined_columns(labels, task.metric):
            counts[f"{part}_undefined_columns"] = [columns[number] for number in undefined]
        if constant is None:
            continue
        scores = task.evaluate(constant.to(labels.dtype).expand(len(labels), -1), labels)
        figures |= {f"{part}_{name}_constant": scores[name] for name in task.figures}
        if part == "test":
            by_column = {f"{name}_constant": values for name, values in scores.get("columns", {}).items()}
            figures |= _by_column(part, by_column, columns)
    return figures | counts


def _by_column(part: str, figures: Mapping[str, Sequence[float | None]], columns: Sequence[str]) -> dict[str, Any]:
    """Return the figures of each column by its name."""
    return {f"{part}_{name}_columns": dict(zip(columns, values, strict=True)) for name, values in figures.items()}


def _relabelled(graph: Data, level: str, generator: torch.Generator) -> Data:
    """Copy what :meth:`JointTraining.predict` reads of a graph, with its nodes in random order and its edges sorted."""
    nodes = torch.rand(int(graph.num_nodes or 0), generator=generator, dtype=torch.float64).argsort()
    edge_index = nodes.argsort()[graph.edge_index]
    edges = (edge_index[0] * len(nodes) + edge_index[1]).argsort(stable=True)
    result = Data(edge_index=edge_index[:, edges], num_nodes=len(nodes))
    for name, rows in (("x", nodes), ("edge_attr", edges), ("edge_weight", edges), ("graph_attr", None), ("y", None)):
        if (value := graph.get(name)) is not None:
            rows = nodes if (name, level) == ("y", "node") else rows
            result[name] = value if rows is None else value[rows]
    return result


def _optimizer(model: Model, config: TrainConfig) -> torch.optim.AdamW:
    """Make AdamW with parameter groups for the model, for the encoder, and for the read-out if ``head_lr`` is set."""

    def parameters(*names: str) -> list[nn.Parameter]:  # of a compiled model, too
        modules = (getattr(model, name, None) for name in names)
        return [p for module in modules if module is not None for p in module.parameters() if p.requires_grad]

    encoder, maps = parameters("encoder"), parameters("pe_embedding", "edge_pe_embedding")
    head = [] if config.head_lr is None else parameters(*model.head)
    special = {*encoder, *maps, *head}
    # Keep this order, the maps of the encoding last: checkpoints number the moments by it.
    rest = [p for p in model.parameters() if p.requires_grad and p not in special] + maps
    parts = [(rest, config.lr, config.weight_decay), (head, config.head_lr, config.weight_decay)]
    if config.encoder_lr:
        parts.append((encoder, config.encoder_lr, 0.0))
    groups = [{"params": group, "peak_lr": lr, "weight_decay": decay} for group, lr, decay in parts if group]
    if not groups:
        frozen = "" if config.encoder_lr else " outside its encoder, which encoder_lr=0 keeps as it is"
        raise ValueError(f"the {type(model).__name__} has no parameter with requires_grad=True{frozen}")
    return torch.optim.AdamW(groups, lr=config.lr, fused=True)
