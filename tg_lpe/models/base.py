"""The one contract of models: every one of them is a :class:`Model`."""

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
"""Arguments of a model's constructor that follow from its data, its task and its encoder."""


class Model(CheckpointMixin, nn.Module, ABC):
    """A network that predicts a row for each graph, or for each node.

    What training, prediction, reports and the command line ask of a model is here; they know no class of models.
    A subclass implements :meth:`forward`, and its constructor takes JSON-able arguments. These have a meaning
    that every caller knows; a model has those of them that it can use:

    - ``out_channels``, which all have: number of predictions in a row;
    - ``num_node_types`` or ``in_channels``, ``num_edge_types`` or ``edge_dim``, ``graph_dim``: sizes of the features,
      as :class:`~tg_lpe.data.DataSpec` describes the data;
    - ``encoder``: an :class:`~tg_lpe.Encoder`, or its class and arguments, or ``None``;
    - ``level``: ``"graph"`` or ``"node"``, what a row stands for; without it the model predicts graphs, unless
      ``"readout"`` in :attr:`options` has a ``level``.

    All others are options: ``tg-lpe train --model CLASS --model.OPTION VALUE``. :func:`tg_lpe.models.register` gives
    the class a name. Then it is trained, saved, loaded, reported and used for predictions as any other.

    Submodules ``pe_embedding`` and ``edge_pe_embedding``, maps of the encoding, may have a learning rate of their own.

    Attributes:
        encoder: a submodule or ``None``: it is trained at a learning rate of its own, and what it precomputes is stored
            with the data and handed to :meth:`forward`.
        level: what a row of predictions stands for, ``"graph"`` or ``"node"``.
        reads_edge_weight: whether :meth:`forward` is handed the ``edge_weight`` of data that has one.
        reads_graph_attr: whether :meth:`forward` is handed the ``graph_attr`` of data, as a keyword.
        has_penalty: whether training calls :meth:`forward` with ``return_penalty=True``, for a pair of predictions and
            a term of the loss.
        head: names of the submodules that belong to one task, which :meth:`start_from` does not take over.
        options: arguments of the constructor that are mappings, with their options.
    """

    encoder: Encoder | None
    level: str = "graph"
    reads_edge_weight: bool = True
    reads_graph_attr: bool = False
    has_penalty: bool = False
    head: ClassVar[tuple[str, ...]] = ("readout",)
    options: ClassVar[Mapping[str, type[Options]]] = {}
    _modules_in_config = ("encoder",)

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
            edge_attr: edge types or features, likewise.
            batch: graph of each node, int64 ``[num_nodes]``, sorted; ``None`` for a single graph.
            edge_weight: conductances ``[num_edges]``.
            precomputed: what the encoder's :meth:`~tg_lpe.Encoder.precompute` returned for this batch; computed if
                absent.
            num_nodes: number of nodes; found from the other arguments if absent.
            num_graphs: number of graphs; found from ``batch`` if absent.
            generator: in training, the source of the encoder's random draws; without it they are the same always.

        Returns:
            Predictions ``[num_graphs, out_channels]``, or ``[num_nodes, out_channels]`` of a model that predicts nodes.

        Raises:
            ValueError: if a graph or a feature does not fit; a batch is then predicted graph by graph.
        """

    @classmethod
    def training_defaults(cls, level: str) -> dict[str, Any]:
        """Arguments that ``tg-lpe train`` gives where the command says nothing and the constructor says otherwise.

        Args:
            level: what is predicted, ``"graph"`` or ``"node"``.
        """
        return {}

    @classmethod
    def arguments_for(cls, level: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments of the constructor for a task, with what it predicts among them unless they say it.

        Args:
            level: what is predicted, ``"graph"`` or ``"node"``.
            arguments: the others.

        Raises:
            ValueError: if the model predicts graphs alone and should predict nodes.
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
        """Return arguments of the constructor: those given, and defaults for the others, also inside mappings.

        The defaults of ``NAME_options`` are left out where another ``NAME`` is given, which has other options.
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
        """Take over the weights and running statistics of a trained model, all but those of the :attr:`head`.

        The last linear map of the head is set to zero: the first prediction is 0 for every graph, which of scaled
        labels is their mean. Train it at a larger rate than the rest, as ``TrainConfig(lr=1e-4, head_lr=1e-3)``.

        Args:
            other: a model of this class; it is not changed.
            fresh: names of further submodules that stay as they are and need not fit: ``("node_embedding",
                "edge_embedding")`` for data whose node and edge types are others than those ``other`` knows.

        Raises:
            ValueError: if it is of another class, has another number of heads, or weights that are taken over differ in
                name or shape; this model is then as it was.
        """
        self._check_fresh(fresh)
        if type(other) is not type(self):
            raise ValueError(f"a {type(self).__name__} cannot start from a {type(other).__name__}")
        heads = [described_arguments(model).get("heads") for model in (self, other)]  # no shape shows them
        if heads[0] != heads[1]:
            raise ValueError(f"the weights do not fit: heads is {heads[0]} here and {heads[1]} there")
        self.copy_weights(other, (*self.head, *fresh))
        self._start_head()

    def _start_head(self) -> None:
        """Set the last linear map of the head to zero."""
        parts = [part for name in self.head if (part := getattr(self, name, None)) is not None]
        maps = [module for part in parts for module in part.modules() if isinstance(module, nn.Linear)]
        for parameter in maps[-1].parameters() if maps else ():
            nn.init.zeros_(parameter)

    def _check_fresh(self, fresh: Sequence[str]) -> None:
        """Refuse names that are not those of submodules."""
        if isinstance(fresh, str):
            raise TypeError(f"fresh must be a sequence of names, got the string {fresh!r}")
        parts = [name for name, _ in self.named_children()]
        if unknown := [name for name in fresh if name not in parts]:
            raise ValueError(f"fresh must be names of submodules, some of {parts}, got {unknown}")

    def copy_weights(self, other: nn.Module, left_out: tuple[str, ...] = ()) -> None:
        """Copy parameters and buffers of another module.

        Args:
            other: the module; it is not changed.
            left_out: names of submodules that are not copied, and need not fit.

        Raises:
            ValueError: if the others differ in name or shape; nothing is copied then.
        """

        def kept(module: nn.Module) -> dict[str, Tensor]:
            prefixes = tuple(f"{name}." for name in left_out)
            return {name: value for name, value in module.state_dict().items() if not name.startswith(prefixes)}

        here, there = kept(self), kept(other)
        shapes = [{name: list(value.shape) for name, value in part.items()} for part in (here, there)]
        wrong = [
            f"{name} is {shapes[0].get(name, 'absent')} here and {shapes[1].get(name, 'absent')} there"
            for name in dict.fromkeys([*here, *there])
            if shapes[0].get(name) != shapes[1].get(name)
        ]
        if wrong:
            more = f", and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise ValueError(f"the weights do not fit: {', '.join(wrong[:5])}{more}")
        with torch.no_grad():
            for name, value in here.items():
                value.copy_(there[name])

    def reset_parameters(self) -> None:
        """Draw all weights anew, from torch's global generator.

        Raises:
            NotImplementedError: if this module or a part of it holds parameters and does not say how they are drawn.
        """
        reset_parts(self)

    def config_dict(self) -> dict[str, Any]:
        """The class and the constructor's arguments, those of the encoder included."""
        config = super().config_dict()
        if "encoder" in inspect.signature(type(self)).parameters:
            config["encoder"] = None if self.encoder is None else self.encoder.config_dict()
        return config

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> str | None:
        """Write a checkpoint folder, as :meth:`CheckpointMixin.save_pretrained`.

        Raises:
            ValueError: if the encoder's class is not registered, so that no program could load it.
            TypeError: if an argument of a constructor is not JSON-able.
        """
        encoder = self.encoder
        name = type(encoder).__name__
        if encoder is not None and name not in ENCODERS:
            raise ValueError(
                f"the encoder's class {name} is not registered, so no program could load this model; write "
                f"@tg_lpe.encoders.register before the class, or call tg_lpe.encoders.register({name})"
            )
        return super().save_pretrained(save_directory, **kwargs)
