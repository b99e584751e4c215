"""Helpers of modules: reset weights, switch autocast off, bound memory; the feed-forward net of attention layers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from tg_lpe.graph.graph import Graph
from tg_lpe.graph.progress import Progress
from tg_lpe.ops.operator import checkpointed, is_exporting

CHUNK = 2**27
"""Most hidden values of a perceptron that are in memory at once: 512 MiB."""


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
        lacking = "no method reset_parameters(), which would draw them"
        raise NotImplementedError(f"{type(module).__name__} has the parameters {parameters} but {lacking}")
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


def in_chunks(run: Callable[..., Tensor], width: int, *inputs: Tensor, dim: int = 0) -> Tensor:
    """Apply a function to some rows of its inputs at a time, and again in the backward pass, which bounds memory.

    Args:
        run: the function.
        width: number of hidden values of a row.
        inputs: its arguments.
        dim: the dimension of their rows. The results are joined if it is 0, and else added.
    """
    count, at_once = inputs[0].size(dim), max(1, CHUNK // max(width, 1))
    if is_exporting() or count <= at_once:
        return run(*inputs)
    results = list[Tensor]()
    with Progress(-(-count // at_once)) as progress:
        for chunk in zip(*(x.split(at_once, dim) for x in inputs), strict=True):
            results.append(checkpointed(run, *chunk))
            results = results if dim == 0 else [functools.reduce(torch.add, results)]
            progress.update()
    return torch.cat(results)


def feed_forward(channels: int, dropout: float) -> nn.Sequential:
    """Return a net with one hidden layer of twice the width, with ReLU and dropout."""
    return nn.Sequential(
        nn.Linear(channels, 2 * channels), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * channels, channels)
    )
