"""A PyTorch Geometric transform as an encoder."""

from __future__ import annotations

import copy
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
from tg_lpe.data.seeding import seeded
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import without_autocast

PROBE_NODES = 64
"""Nodes of the ring on which a transform is tried to count its columns."""


@register
class FromTransform(NodeEdgeEncoder):
    """Encode nodes by a PyTorch Geometric transform that writes a row for each node.

    The transform runs once for a data set, on each graph separately. It sees edges in both directions, coalesced and
    sorted, edge weights if there are any, the number of nodes, and no features.

    The global generators of torch and NumPy are set to ``seed`` for each graph and restored afterwards, so random signs
    of ``AddLaplacianEigenvectorPE`` are reproducible. Random numbers from other sources are not, such as the start
    vector of SciPy's iteration on graphs of 100 nodes or more.

    The encoding inherits the faults of the transform: ``AddRandomWalkPE`` misreads edge weights, and
    ``AddLaplacianEigenvectorPE`` fails on graphs of at most ``k`` nodes. :class:`~tg_lpe.encoders.RandomWalk` and
    :class:`~tg_lpe.encoders.LaplacianEigenvectors` have neither fault.

    Args:
        transform: name of a class in ``torch_geometric.transforms``; or a transform from ``Data`` to ``Data``, which
            checkpoints, configuration files and the command line cannot hold.
        attr_name: attribute that the transform writes; if absent, its own ``attr_name`` or ``"x"``.
        options: constructor arguments of the named class.
        out_channels: number of columns; if absent, found by calling the transform on a ring of 64 nodes.
        seed: seed of the transform's random numbers.

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
        transform: str | Callable[..., Any] = "LocalDegreeProfile",
        attr_name: str | None = None,
        options: Mapping[str, Any] | None = None,
        out_channels: int | None = None,
        seed: int = 0,
    ) -> None:
        check_options("options", options)
        for name, value in (options or {}).items():
            if type(value) is int:
                check_count(f"options[{name!r}]", value, least=-(10**5))
        check_seed(seed)
        instance = _make_transform(transform, options or {}) if isinstance(transform, str) else transform
        if not callable(instance):
            raise TypeError(f"transform must be a name or a transform, got {transform!r}")
        if instance is transform and options:
            raise ValueError(f"options need the name of a transform, got {options!r} for {transform!r}")
        attribute = attr_name or getattr(instance, "attr_name", None) or "x"
        if out_channels is None:
            with torch.device("cpu"):  # where the default is "meta", a transform cannot run
                ring = torch.arange(PROBE_NODES)
                graph = Graph(torch.stack([ring, ring.roll(1)]))
                out_channels = _values(instance, attribute, graph, seed).size(1)
        check_count("out_channels", out_channels)
        super().__init__(out_channels, 0, None)
        self._instance, self._attribute = instance, attribute
        self.transform, self.attr_name, self.seed = transform, attr_name, seed
        self.options = None if options is None else copy.deepcopy(dict(options))
        if instance is transform:
            self._not_jsonable = {"transform": _repr(instance)}
        description = f"{_repr(instance)} {self.options} {attribute} {seed}"
        self.name = f"from_transform_{hashlib.sha256(description.encode()).hexdigest()[:12]}"

    def config_dict(self) -> dict[str, Any]:
        """Return the class name and :meth:`arguments`, or raise ``TypeError`` if ``transform`` is not a name."""
        return CheckpointMixin.config_dict(self) if self._not_jsonable else super().config_dict()

    def extra_repr(self) -> str:
        """Show the constructor's arguments; a transform with its attributes, which PyTorch Geometric does not show."""
        text = super().extra_repr()
        return text.replace(repr(self.transform), _repr(self._instance), 1) if self._not_jsonable else text

    @without_autocast
    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Apply the transform to each graph, or raise ``ValueError`` if it fails on one; edges have no columns."""
        node = _values(self._instance, self._attribute, graph, self.seed, self.out_channels)
        return node.view(graph.num_nodes, self.out_channels), node.new_zeros(graph.num_edges, 0)


def _make_transform(name: str, options: Mapping[str, Any]) -> Callable[[Data], Data]:
    """Create a transform of PyTorch Geometric by name; other names are refused, as checkpoints must not import code."""
    cls = getattr(transforms, name) if name in transforms.__all__ else None
    if cls is None:
        examples = ", ".join(other for other in transforms.__all__ if other.startswith("Add") and "PE" in other)
        raise ValueError(
            f"transform must be the name of a class in torch_geometric.transforms, such as {examples}, or a transform "
            f"object, got {name!r}"
        )
    try:
        transform: Callable[[Data], Data] = cls(**options)
    except TypeError as error:
        raise ValueError(f"options={dict(options)!r} are not valid arguments of {name}: {error}") from error
    return transform


def _values(
    transform: Callable[[Data], Data], attr_name: str, graph: Graph, seed: int, width: int | None = None
) -> Tensor:
    """Return the rows that a transform writes for the nodes of each graph, ``[num_nodes, width]``, or of any width."""
    hint = " (give out_channels, if it is right)" if width is None else ""
    rows, ptr, edge_ptr, w = [], graph.ptr.tolist(), graph.edge_ptr.tolist(), graph.conductance
    for number, (first, last) in enumerate(pairwise(ptr)):
        size, edges = last - first, slice(edge_ptr[number], edge_ptr[number + 1])
        if not size:
            continue
        ends = torch.stack([graph.tail[edges], graph.head[edges]]) - first
        weight = None if w is None else w[edges].to(torch.get_default_dtype()).repeat(2)
        index, weight = coalesce(torch.cat([ends, ends.flip(0)], 1), weight, size)
        data = Data(edge_index=index, edge_weight=weight, num_nodes=size)
        try:
            with _seeded(seed, graph.device):
                values = transform(data).get(attr_name)
        except Exception as error:
            raise ValueError(
                f"the transform {_repr(transform)} failed on graph {number} of {size} nodes{hint}: {error}"
            ) from error
        if not isinstance(values, Tensor) or values.dim() not in (1, 2) or values.size(0) != size:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"the transform {_repr(transform)} must write attr_name={attr_name!r} with a row for each of the "
                f"{size} nodes of graph {number}, got {got}"
            )
        rows.append(values.reshape(size, -1))
        if width not in (None, rows[-1].size(1)):
            raise ValueError(
                f"{_repr(transform)} must write out_channels={width} columns, got {rows[-1].size(1)} on graph {number}"
            )
    return torch.cat(rows) if rows else torch.zeros(0, 0, device=graph.device)


def _repr(transform: Any) -> str:
    """Show a transform with its attributes."""
    if not isinstance(transform, transforms.BaseTransform):
        return repr(transform)
    return f"{type(transform).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(transform).items())})"


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Set torch's and NumPy's global generators to ``seed`` inside a ``with`` block, and restore them afterwards."""
    state = np.random.get_state()  # noqa: NPY002
    with seeded(seed, device):
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002
