"""The interface that all models share: :class:`Model`."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tg_lpe.checkpoints.checkpoint import CheckpointMixin, described_arguments
from tg_lpe.data.spec import DataSpec
from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.registry import ENCODERS
from tg_lpe.models.options import Options
from tg_lpe.nn._util import reset_parts

FIXED = frozenset({"encoder", "pe_channels", "out_channels", "level", *DataSpec().to_dict()})
"""Constructor arguments that follow from the data, the task and the encoder."""


class Model(CheckpointMixin, nn.Module, ABC):
    """Base class of networks that predict a row for each graph or each node.

    Training, prediction, reports and the command line only use this interface, so they work with any subclass. A
    subclass implements :meth:`forward`. Its constructor takes JSON-able arguments. The following have a fixed meaning;
    a model has those that it needs:

    - ``out_channels`` (required): number of predictions in a row;
    - ``num_node_types`` or ``in_channels``, ``num_edge_types`` or ``edge_dim``, ``graph_dim``: sizes of the features,
      see :class:`~tg_lpe.data.DataSpec`;
    - ``encoder``: an :class:`~tg_lpe.Encoder`, its class and arguments, or ``None``;
    - ``level``: ``"graph"`` or ``"node"``, the unit of a prediction. A model without it predicts graphs, unless
      ``"readout"`` in :attr:`options` has a ``level``.

    All other arguments are options: ``tg-lpe train --model CLASS --model.OPTION VALUE``.
    :func:`tg_lpe.models.register` registers the class by name. It can then be trained, saved, loaded and reported like
    any other model.

    The submodules ``encoder``, ``pe_embedding`` and ``edge_pe_embedding`` (maps of the encoding) can have their own
    learning rates.

    Attributes:
        encoder: the encoder, or ``None``. Its precomputed tensors are stored with the data and passed to
            :meth:`forward`.
        level: the unit of a prediction, ``"graph"`` or ``"node"``.
        reads_edge_weight: whether :meth:`forward` receives the ``edge_weight`` of the data.
        reads_graph_attr: whether :meth:`forward` receives the ``graph_attr`` of the data, as a keyword.
        has_penalty: whether training calls :meth:`forward` with ``return_penalty=True``, which then returns predictions
            and a term of the loss.
        head: names of task-specific submodules, which :meth:`start_from` does not copy.
        options: constructor arguments that are mappings, with their options.
    """

    encoder: Encoder | None
    level: str = "graph"
    reads_edge_weight: bool = True
    reads_graph_attr: bool = False
    has_penalty: bool = False
    head: ClassVar[tuple[str, ...]] = ("readout",)
    options: ClassVar[Mapping[str, type[Options]]] = {}
    _modules_in_config = ("encoder",)
    _is_model = True

    def __init__(self) -> None:
        super().__init__()
        self.encoder = None  # a class attribute would hide the submodule

    @abstractmethod
    def forward(
        self,
        x: Tensor | None,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        edge_weight: Tensor | None = None,
        *,
        precomputed: Mapping[str, Tensor] | None = None,
        num_nodes: int | None = None,
        num_graphs: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Predict one row per graph or node.

        Args:
            x: node types int64 ``[num_nodes]`` or ``[num_nodes, columns]``, or features ``[num_nodes, in_channels]``.
            edge_index: int64 ``[2, num_edges]``.
            edge_attr: edge types int64 ``[num_edges]`` or ``[num_edges, columns]``, or features
                ``[num_edges, edge_dim]``.
            batch: graph of each node, int64 ``[num_nodes]``, sorted; ``None`` for a single graph.
            edge_weight: edge weights ``[num_edges]``.
            precomputed: result of the encoder's :meth:`~tg_lpe.Encoder.precompute` for this batch; computed if absent.
            num_nodes: number of nodes; inferred from the other arguments if absent.
            num_graphs: number of graphs; inferred from ``batch`` if absent.
            generator: generator of the encoder's random numbers in training; without it, they are always the same.

        Returns:
            Predictions ``[num_graphs, out_channels]``, or ``[num_nodes, out_channels]`` if the model predicts nodes.

        Raises:
            ValueError: if a graph or a feature is invalid. Prediction then repeats the batch graph by graph.
        """

    @classmethod
    def training_defaults(cls, level: str) -> dict[str, Any]:
        """Return defaults of ``tg-lpe train`` that differ from the constructor's defaults.

        Args:
            level: the unit of a prediction, ``"graph"`` or ``"node"``.
        """
        return {}

    @classmethod
    def arguments_for(cls, level: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return constructor arguments for a task: ``arguments``, with ``level`` added unless they have one.

        Args:
            level: the unit of a prediction, ``"graph"`` or ``"node"``.
            arguments: the other arguments.

        Raises:
            ValueError: if the model only predicts graphs and ``level`` is ``"node"``.
        """
        if "readout" in cls.options:
            readout = cls.options["readout"].mapping_of("readout", arguments.get("readout"))
            return {**arguments, "readout": {"level": level, **readout}}
        if "level" in inspect.signature(cls).parameters:
            return {"level": level, **arguments}
        if level != "graph":
            raise ValueError(f"{cls.__name__} predicts graphs, the task has level={level!r}")
        return dict(arguments)

    @classmethod
    def merge_arguments(cls, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``given`` with missing arguments, and missing keys of mappings, taken from ``defaults``.

        The defaults of ``NAME_options`` are ignored if ``given`` has another ``NAME``, which has other options.
        """
        merged = {**defaults, **given}
        for name, value in defaults.items():
            chooser = name.removesuffix("_options")
            if name in cls.options:
                options = cls.options[name]
                merged[name] = {**options.mapping_of(name, value), **options.mapping_of(name, given.get(name))}
            elif chooser != name and chooser in given and given[chooser] != defaults.get(chooser):
                merged[name] = given.get(name)
            elif isinstance(value, Mapping) and isinstance(given.get(name), Mapping):
                merged[name] = {**value, **given[name]}
        return merged

    def start_from(self, other: Model, *, fresh: Sequence[str] = ()) -> None:
        """Copy the weights and running statistics of a trained model, except those of the :attr:`head`.

        The last linear map of the head is set to zero, so the first predictions are 0, the mean of scaled labels.
        Train the head at a larger learning rate than the rest, such as ``TrainConfig(lr=1e-4, head_lr=1e-3)``.

        Args:
            other: a model of this class; it is not changed.
            fresh: names of further submodules that are not copied, such as ``("node_embedding", "edge_embedding")`` if
                the data have other node and edge types.

        Raises:
            ValueError: if ``other`` has another class or number of heads, or a copied weight has another name or shape;
                this model is then unchanged.
        """
        self._check_fresh(fresh)
        if type(other) is not type(self):
            raise ValueError(f"a {type(self).__name__} cannot start from a {type(other).__name__}")
        heads = [described_arguments(model).get("heads") for model in (self, other)]  # no shape shows them
        if heads[0] != heads[1]:
            raise ValueError(f"the weights do not fit: heads is {heads[0]} here and {heads[1]} there")
        self.copy_weights(other, (*self.head, *fresh))
        parts = dict(self.named_children())
        last = [parts[name] for name in self.head if name in parts]
        maps = [module for part in last for module in part.modules() if isinstance(module, nn.Linear)]
        for parameter in maps[-1].parameters() if maps else ():
            nn.init.zeros_(parameter)

    def _check_fresh(self, fresh: Sequence[str]) -> None:
        """Check that the names are those of submodules."""
        if isinstance(fresh, str):
            raise TypeError(f"fresh must be a sequence of names, got the string {fresh!r}")
        parts = [name for name, _ in self.named_children()]
        if unknown := [name for name in fresh if name not in parts]:
            raise ValueError(f"fresh must be names of submodules, some of {parts}, got {unknown}")

    def copy_weights(self, other: nn.Module, left_out: tuple[str, ...] = ()) -> None:
        """Copy parameters and buffers of another module.

        Args:
            other: the module; it is not changed.
            left_out: names of submodules that are not copied.

        Raises:
            ValueError: if a name or shape differs; nothing is copied then.
        """
        prefixes = tuple(f"{name}." for name in left_out)
        targets, sources = (
            {name: value for name, value in module.state_dict().items() if not name.startswith(prefixes)}
            for module in (self, other)
        )
        for name in (*targets, *sources):
            here, there = (list(part[name].shape) if name in part else "absent" for part in (targets, sources))
            if here != there:
                raise ValueError(f"the weights do not fit: {name} is {here} here and {there} there")
        with torch.no_grad():
            for name, value in targets.items():
                value.copy_(sources[name])

    def reset_parameters(self) -> None:
        """Draw all weights again from torch's global generator.

        Raises:
            NotImplementedError: if this module or a submodule has parameters but no ``reset_parameters``.
        """
        reset_parts(self)

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> str | None:
        """Write a checkpoint folder, see :meth:`CheckpointMixin.save_pretrained`.

        Raises:
            ValueError: if the encoder's class is not registered.
            TypeError: if a constructor's argument is not JSON-able.
        """
        encoder = self.encoder
        name = type(encoder).__name__
        if encoder is not None and name not in ENCODERS:
            raise ValueError(
                f"the encoder's class {name} is not registered, so no program could load this model; write "
                f"@tg_lpe.encoders.register before the class, or call tg_lpe.encoders.register({name})"
            )
        return super().save_pretrained(save_directory, **kwargs)
