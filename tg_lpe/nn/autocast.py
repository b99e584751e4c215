"""Methods of encoders that run in the precision of the weights, whatever autocast says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from tg_lpe.graph.graph import Graph

F = TypeVar("F", bound=Callable[..., Any])


def without_autocast(method: F) -> F:
    """A method ``(graph, ...)`` of a module, with autocast off while it runs.

    bfloat16 has eight significant bits: too few for a dozen products in a row, or for differences of eigenvalues.
    """

    @functools.wraps(method)
    def run(module: Any, graph: Graph, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled(graph.device.type):
            return method(module, graph, *args, **kwargs)
        with torch.autocast(graph.device.type, enabled=False):
            return method(module, graph, *args, **kwargs)

    return cast(F, run)
