"""A PyTorch Geometric transform as an encoder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric import transforms
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

from tg_lpe.arguments import check_count, check_options, check_seed
from tg_lpe.checkpoints.checkpoint import CheckpointMixin
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.graph import Graph

PROBE_NODES = 64
"""Nodes of the ring on which a transform shows how many columns it writes."""


@register
class FromTransform(NodeEdgeEncoder):
    """Encode nodes by what a PyTorch Geometric transform writes at them: every such transform is an encoding.

    The transform sees each graph of a batch by itself: its edges in both directions, each once and sorted, its edge
    weights if it has some, its number of nodes, and no features. It runs once for a data set, beforehand. Random
    numbers that it draws, such as the signs of ``AddLaplacianEigenvectorPE``, come from ``seed``, for each graph anew,
    and stay as they are; the global generators of torch and NumPy are left alone. What it draws elsewhere differs from
    call to call, as the start of SciPy's iteration on graphs of 100 nodes or more does. The encoding is defined up to
    what the transform's is, and is no better: ``AddRandomWalkPE`` misreads edge weights, and
    ``AddLaplacianEigenvectorPE`` fails on graphs of at most ``k`` nodes; :class:`~tg_lpe.encoders.RandomWalk` and
    :class:`~tg_lpe.encoders.LaplacianEigenvectors` do neither.

    Args:
        transform: the name of a class in ``torch_geometric.transforms``, which checkpoints, configuration files and the
            command line can say; or a transform, which they cannot, so that a checkpoint of it is refused.
        attr_name: the attribute that it writes; if absent, its own ``attr_name`` or ``"x"``.
        options: arguments of the class that is named.
        out_channels: the number of columns; if absent, those that it writes for a ring of 64 nodes.
        seed: of its random numbers.

    Raises:
        TypeError: if ``transform`` is neither a name nor callable.
        ValueError: if no transform has that name or takes these ``options``, it does not write ``attr_name`` at each
            node of the ring, or an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import FromTransform
        >>> encoder = FromTransform("AddRandomWalkPE", options={"walk_length": 4})
        >>> encoder(None, torch.tensor([[0, 1, 2], [1, 2, 0]])).node.shape
        torch.Size([3, 4])
    """

    def __init__(
        self,
        transform: str | Callable[[Data], Data] = "LocalDegreeProfile",
        attr_name: str | None = None,
        options: Mapping[str, Any] | None = None,
        out_channels: int | None = None,
        seed: int = 0,
    ) -> None:
        check_options("options", options)
        check_seed(seed)
        apply = _made(transform, options or {}) if isinstance(transform, str) else transform
        if not callable(apply):
            raise TypeError(f"transform must be a name or a transform, got {transform!r}")
        if apply is transform and options:
            raise ValueError(f"options are those of a transform that is named, got {options!r} for {transform!r}")
        written = attr_name or getattr(apply, "attr_name", None) or "x"
        if out_channels is None:
            ring = torch.arange(PROBE_NODES)
            edges = torch.stack([ring, ring.roll(1)])
            out_channels = _values(apply, written, Graph(edges), seed, " (give out_channels, if it is right)").size(1)
        check_count("out_channels", out_channels)
        super().__init__(out_channels, 0, None)
        self._writer, self._written = apply, written
        self.transform, self.attr_name, self.seed = transform, attr_name, seed
        self.options = dict(options) if options is not None else None
        if apply is transform:
            self._not_jsonable = {"transform": _told(apply)}
        told = f"{_told(apply)} {self.options} {written} {seed}"
        self.name = f"from_transform_{hashlib.sha256(told.encode()).hexdigest()[:12]}"

    def config_dict(self) -> dict[str, Any]:
        """The class and :meth:`arguments`.

        Raises:
            TypeError: if ``transform`` is no name.
        """
        return CheckpointMixin.config_dict(self) if self._not_jsonable else super().config_dict()

    def extra_repr(self) -> str:
        """The constructor's arguments; a transform with its attributes, which PyTorch Geometric does not show."""
        told = super().extra_repr()
        return told.replace(repr(self.transform), _told(self._writer), 1) if self._not_jsonable else told

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Return what the transform writes at nodes; nothing at edges.

        Raises:
            ValueError: if the transform fails on a graph, or does not write ``out_channels`` columns at its nodes.
        """
        node = _values(self._writer, self._written, graph, self.seed)
        if node.size(1) != self.out_channels and node.numel():
            raise ValueError(
                f"{_told(self._writer)} must write out_channels={self.out_channels} columns, got {node.size(1)}"
            )
        return node.view(graph.num_nodes, self.out_channels), node.new_zeros(graph.num_edges, 0)


def _made(name: str, options: Mapping[str, Any]) -> Callable[[Data], Data]:
    """Make the transform of a name; only of a name in PyTorch Geometric, so that no checkpoint imports code."""
    cls = getattr(transforms, name) if name in transforms.__all__ else None
    if cls is None:
        close = ", ".join(other for other in transforms.__all__ if other.startswith("Add") and "PE" in other)
        raise ValueError(
            f"transform must be the name of a class in torch_geometric.transforms, such as {close}, or in Python a "
            f"transform; got {name!r}"
        )
    try:
        made: Callable[[Data], Data] = cls(**options)
    except TypeError as error:
        raise ValueError(f"options={dict(options)!r} are no arguments of {name}: {error}") from error
    return made


def _values(apply: Callable[[Data], Data], attr_name: str, graph: Graph, seed: int, hint: str = "") -> Tensor:
    """Return what a transform writes at the nodes of each graph, one after the other, ``[num_nodes, num_columns]``."""
    rows, ptr, edge_ptr = [], graph.ptr.tolist(), graph.edge_ptr.tolist()
    for number, (first, last) in enumerate(pairwise(ptr)):
        own = slice(edge_ptr[number], edge_ptr[number + 1])
        ends = torch.stack([graph.tail[own], graph.head[own]]) - first
        weight = graph.conductance
        if weight is not None:
            weight = weight[own].to(torch.get_default_dtype()).repeat(2)
        index, weight = coalesce(torch.cat([ends, ends.flip(0)], 1), weight, last - first)
        data = Data(edge_index=index, num_nodes=last - first)
        if weight is not None:
            data.edge_weight = weight
        if last == first:
            continue
        try:
            with _seeded(seed):
                values = apply(data).get(attr_name)
        except Exception as error:
            raise ValueError(
                f"the transform {_told(apply)} failed on graph {number} of {last - first} nodes{hint}: {error}"
            ) from error
        if not isinstance(values, Tensor) or values.dim() not in (1, 2) or values.size(0) != last - first:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"the transform {_told(apply)} must write attr_name={attr_name!r} with a row for each of the "
                f"{last - first} nodes of graph {number}, got {got}"
            )
        rows.append(values.reshape(last - first, -1))
    return torch.cat(rows) if rows else torch.zeros(0, 0, device=graph.device)


def _told(transform: Any) -> str:
    """Show a transform with its attributes."""
    attributes = getattr(transform, "__dict__", {})
    if not isinstance(transform, transforms.BaseTransform):
        return repr(transform)
    return f"{type(transform).__name__}({', '.join(f'{name}={value!r}' for name, value in attributes.items())})"


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, from which transforms draw, for a while, and leave them as they were."""
    state = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002
