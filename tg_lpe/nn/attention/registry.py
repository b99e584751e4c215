"""Attention layers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import nn

from tg_lpe.checkpoints.registry import Registry

L = TypeVar("L", bound=type[nn.Module])

ATTENTIONS = Registry("attention")
"""Every attention layer by the name that :class:`~tg_lpe.GraphTransformer` and the command line know it by."""


def register_attention(name: str) -> Callable[[L], L]:
    """Make a class of attention layers known by a name, as a decorator::

        @register_attention("mine")
        class MyLayer(nn.Module):
            def __init__(self, hidden_channels: int, heads: int, *, dropout: float = 0.0) -> None: ...

            def forward(self, h: Tensor, e: Tensor, graph: Graph) -> tuple[Tensor, Tensor]: ...

    A layer maps node features ``h``, ``[num_nodes, hidden_channels]``, and edge features ``e``,
    ``[num_edges, hidden_channels]``, to new ones of the same shapes; all that it needs of the graph is in
    :class:`~tg_lpe.graph.graph.Graph`. Its constructor takes ``hidden_channels``, ``heads`` and any options
    of its own, which are the model's ``attention_options``.
    If it has an argument ``update_edges``, that is ``False`` for the last layer, whose ``e`` is not used.

    Layers that share weights, or hand more than ``h`` and ``e`` from one to the next, have a method ``shared()`` that
    makes one module for all layers of a model, which asks its first. Called with the graph, that module returns the
    first state of a batch, and the layers are ``forward(h, e, graph, state)`` and return ``(h, e, state)``. If that
    module has an attribute ``has_penalty`` that is true, training adds the field ``penalty`` of the last layer's state,
    a scalar, to its loss. Where the state is a named tuple with a field ``needs_penalty``, that says whether anybody
    reads the penalty.

    A layer with an attribute ``reads_pe`` that is true is called with ``pe_distances`` as well, the squared distances
    of the positional encodings of the ends of each edge, ``[num_edges, 1]``.

    A layer with an attribute ``reads_pairs`` that is true is constructed with ``pair_channels`` as well, the width of
    the model's encoding of pairs, 0 for none. It has a method ``shared()``, whose module is called with the graph, that
    encoding, ``[num_pairs, pair_channels]`` in the order of ``graph.pairs`` or ``None``, and ``e``.

    Raises:
        ValueError: if another class has that name.
    """
    decorator: Callable[[L], L] = ATTENTIONS.register(name=name)
    return decorator


def make_attention(
    name: str,
    hidden_channels: int,
    heads: int,
    options: Mapping[str, Any],
    *,
    update_edges: bool = True,
    pair_channels: int = 0,
) -> nn.Module:
    """An attention layer with fresh weights.

    Args:
        name: a name in :data:`ATTENTIONS`.
        hidden_channels: width of node and edge features.
        heads: number of attention heads.
        options: arguments of the layer's constructor besides.
        update_edges: whether anybody reads the edge features that the layer returns.
        pair_channels: width of the encoding of pairs, for layers that read it.

    Raises:
        ValueError: if there is no such layer, or it has no such option, or refuses its value.
    """
    hints = {"update_edges": update_edges, "pair_channels": pair_channels}
    taken = check_arguments("attention", name, ATTENTIONS[name], options, tuple(hints))
    own = {hint: hints[hint] for hint in taken}
    layer: nn.Module = ATTENTIONS[name](hidden_channels, heads, **own, **options)
    return layer


def shared_of(layer: nn.Module) -> nn.Module | None:
    """Return what all layers of a model share with this one, with fresh weights; ``None`` if nothing."""
    if not callable(getattr(type(layer), "shared", None)):  # a submodule may have that name
        return None
    shared: nn.Module = layer.shared()  # type: ignore[operator, assignment]
    return shared


def check_arguments(
    what: str, name: str, cls: type[nn.Module], options: Mapping[str, Any], hints: Sequence[str] = ()
) -> list[str]:
    """Refuse options that a registered class does not have.

    Args:
        what: what the class is registered as, for messages.
        name: its name there.
        cls: the class.
        options: arguments of its constructor besides ``hidden_channels`` and ``heads``.
        hints: arguments that are no options, as the caller chooses them.

    Returns:
        Those of the hints that the class takes.
    """
    parameters = inspect.signature(cls).parameters
    taken = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    allowed = [option for option in taken if option not in ("hidden_channels", "heads", *hints)]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for option, value in options.items():
        if option not in allowed and (option in taken or not takes_all):
            raise ValueError(f"{what} {name!r} takes the options {allowed}, got {option}={value!r}")
    return [hint for hint in hints if hint in taken]
