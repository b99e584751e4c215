"""Helpers of modules: reset weights, switch autocast off, sign-invariant forms of encodings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from tg_lpe.graph.graph import Graph


def reset_all(module: nn.Module) -> None:
    """Draw all weights of a module again from torch's global generator, as its constructor does.

    A module with ``reset_parameters`` resets itself. Otherwise its submodules are reset in the order in which they were
    assigned.

    Raises:
        NotImplementedError: if a module has its own parameters but no ``reset_parameters``.
    """
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
    else:
        reset_parts(module)


def reset_parts(module: nn.Module) -> None:
    """Call :func:`reset_all` on the submodules of a module, and then its method ``_reset_parameters``, if it has one.

    Raises:
        NotImplementedError: if the module has its own parameters and no such method.
    """
    parameters = [name for name, parameter in module.named_parameters(recurse=False) if parameter is not None]
    reset = getattr(module, "_reset_parameters", None)  # the name in torch's attention and transformer
    if parameters and not callable(reset):
        raise NotImplementedError(
            f"{type(module).__name__} has the parameters {parameters} but no method reset_parameters(), which would "
            "draw them"
        )
    for part in module.children():
        reset_all(part)
    if callable(reset):
        reset()


class Resettable(nn.Module):
    """Module that :func:`reset_parts` resets; a method ``_reset_parameters`` draws parameters of its own."""

    def reset_parameters(self) -> None:
        """Draw the weights again and reset running statistics."""
        reset_parts(self)


F = TypeVar("F", bound=Callable[..., Any])


def without_autocast(method: F) -> F:
    """Decorate a method ``(graph, ...)`` of a module to run with autocast off.

    bfloat16 has eight significant bits, too few for a dozen successive products or for differences of eigenvalues.
    """

    @functools.wraps(method)
    def run(module: Any, graph: Graph, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled(graph.device.type):
            return method(module, graph, *args, **kwargs)
        with torch.autocast(graph.device.type, enabled=False):
            return method(module, graph, *args, **kwargs)

    return cast(F, run)


def pair_forms(pe: Tensor, edge_index: Tensor) -> Tensor:
    """Compute ``|phi_i - phi_j|`` and ``phi_i * phi_j`` for each edge, independent of the sign of each column.

    `Rethinking Graph Transformers with Spectral Attention <https://arxiv.org/abs/2106.03893>`_, eqs. (7)-(8).

    Args:
        pe: encoding of the nodes, ``[num_nodes, k]``.
        edge_index: int64 ``[2, num_edges]``.

    Returns:
        ``[num_edges, 2 k]``.
    """
    i, j = pe[edge_index[0]], pe[edge_index[1]]
    return torch.cat([(i - j).abs(), i * j], dim=1)
