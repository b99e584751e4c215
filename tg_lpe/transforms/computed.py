"""What the transforms that compute a textbook quantity share."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tg_lpe.arguments import check_count, check_positive, check_seed
from tg_lpe.constructions.functions import MAX_LAYERS
from tg_lpe.graph.incidence import Incidence
from tg_lpe.graph.solvers import METHODS, check_method
from tg_lpe.transforms.base import Attribute, GraphTransform

LAYERS = "layers"
"""The method that runs the constructions of :mod:`tg_lpe.constructions`."""

__all__ = ["LAYERS", "MAX_LAYERS", "ComputedTransform"]


class ComputedTransform(GraphTransform):
    """A transform told by its arguments: PyG compares ``repr`` to detect a stale cache.

    Results are in PyTorch's default dtype.

    Args:
        method: one of ``"auto"``, ``"dense"``, ``"iterative"`` and ``"layers"``.
        edge_weight, reduce, hetero: as :class:`~tg_lpe.transforms.base.GraphTransform`.
        arguments: all others, which become attributes.

    Raises:
        ValueError: on an unknown ``method``, ``reduce`` or ``hetero``, or if ``seed``, ``tolerance`` or ``max_layers``
            among the arguments is out of range; on another than the default of the latter two with a ``method`` that
            does not read them.
    """

    def __init__(self, method: str, edge_weight: str | None, reduce: str, hetero: str, **arguments: Any) -> None:
        check_method(method, (*METHODS, LAYERS))
        if "seed" in arguments:
            check_seed(arguments["seed"])
        if "tolerance" in arguments:
            check_positive("tolerance", arguments["tolerance"])
        if "max_layers" in arguments:
            check_count("max_layers", arguments["max_layers"])
        defaults = inspect.signature(type(self)).parameters
        for name in ("tolerance", "max_layers"):
            if method == LAYERS or name not in arguments or name not in defaults:
                continue
            if arguments[name] != defaults[name].default:
                raise ValueError(
                    f"{name}={arguments[name]!r} would have no effect with method={method!r}: method='layers' reads it"
                )
        super().__init__(edge_weight, reduce, hetero)
        self.method = method
        self.__dict__.update(arguments)
        self._names = (*arguments, "edge_weight", "reduce", "hetero", "method")

    def compute(self, graph: Incidence, features: Mapping[str, Tensor]) -> list[Attribute]:
        """What :meth:`quantities` says, in PyTorch's default dtype."""
        if self.method == LAYERS and graph.conductance is not None:
            graph = graph.with_conductances(graph.conductance.double())
        dtype = torch.get_default_dtype()
        found = self.layers(graph) if self.method == LAYERS else self.quantities(graph)
        return [
            attribute._replace(values=attribute.values.to(dtype)) if attribute.values.is_floating_point() else attribute
            for attribute in found
        ]

    def quantities(self, graph: Incidence) -> list[Attribute]:
        """What to write, by the fastest exact way."""
        raise NotImplementedError

    def layers(self, graph: Incidence) -> list[Attribute]:
        """What to write, by the layers of the constructions."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._names)})"
