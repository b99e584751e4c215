"""Registry of attention layers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from torch import nn

from tg_lpe.checkpoints.registry import Registry
from tg_lpe.nn._util import Resettable


class SharedState(Resettable):
    """Base class of the module that the layers of a model share, see :func:`register_attention`."""

    has_penalty: bool = False
    max_nodes: int | None = None


class AttentionLayer(Resettable):
    """Base class of attention layers, see :func:`register_attention`."""

    reads_pe: bool = False
    reads_pairs: bool = False

    def shared(self) -> SharedState | None:
        """Return the module that all layers of a model share, with new weights; ``None`` if they share nothing."""
        return None


L = TypeVar("L", bound=type[AttentionLayer])

ATTENTIONS = Registry("attention")
"""All registered attention layers by name, as in :class:`~tg_lpe.GraphTransformer` and on the command line."""


def register_attention(name: str) -> Callable[[L], L]:
    """Register a class of attention layers by name. Use it as a decorator::

        @register_attention("mine")
        class MyLayer(AttentionLayer):
            def __init__(self, hidden_channels: int, heads: int, *, dropout: float = 0.0) -> None: ...

            def forward(self, h: Tensor, e: Tensor, graph: Graph) -> tuple[Tensor, Tensor]: ...

    A layer maps node features ``h``, ``[num_nodes, hidden_channels]``, and edge features ``e``,
    ``[num_edges, hidden_channels]``, to new features of the same shapes. :class:`~tg_lpe.graph.graph.Graph` has all
    information about the graph. The constructor takes ``hidden_channels``, ``heads`` and options, which users set as
    the model's ``attention_options``. If it has an argument ``update_edges``, this is ``False`` for the last layer,
    whose ``e`` is not read.

    **Shared weights and state.** If layers share weights, or pass more than ``h`` and ``e`` to the next layer, the
    method ``shared()`` returns a :class:`SharedState`; the model calls that of the first layer. For each batch, it maps
    the graph to the initial state. The layers then have the form ``forward(h, e, graph, state)`` and return ``(h, e,
    state)``. With a true attribute ``has_penalty``, the state is a named tuple: training adds the last state's field
    ``penalty``, a scalar, to the loss, and the model sets the field ``needs_penalty`` to whether it does.

    **Distances of encodings.** A layer with a true attribute ``reads_pe`` also receives ``pe_distances``, the squared
    distances between the positional encodings of the ends of each edge, ``[num_edges, 1]``.

    **Pairs.** The constructor of a class with a true attribute ``reads_pairs`` also receives ``pair_channels``, the
    width of the model's encoding of pairs, 0 for none. Its :class:`SharedState` is called with the graph, this
    encoding, ``[num_pairs, pair_channels]`` in the order of ``graph.pairs`` or ``None``, and ``e``. The model refuses
    graphs of more than its ``max_nodes`` before it allocates memory for their pairs.

    Raises:
        ValueError: if another class has the same name.
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
) -> AttentionLayer:
    """Create an attention layer with new weights.

    Args:
        name: a name in :data:`ATTENTIONS`.
        hidden_channels: width of node and edge features.
        heads: number of attention heads.
        options: further arguments of the layer's constructor.
        update_edges: whether the edge features that the layer returns are read.
        pair_channels: width of the encoding of pairs, for layers that read it.

    Raises:
        ValueError: if the name or an option is unknown, or the value of an option is out of range.
    """
    hints = {"update_edges": update_edges, "pair_channels": pair_channels}
    accepted = check_arguments("attention", name, ATTENTIONS[name], options, hints)
    layer: AttentionLayer = ATTENTIONS[name](hidden_channels, heads, **accepted, **options)
    return layer


def check_arguments(
    what: str, name: str, cls: type[nn.Module], options: Mapping[str, Any], hints: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the ``hints`` that a registered class accepts; raise ``ValueError`` if it does not have an option.

    The caller sets hints; ``what`` is the name of the registry and ``name`` that of the class, for messages.
    """
    names, accepts_any = _arguments_of(cls)  # type: ignore[arg-type]  # a class is hashable
    for option, value in options.items():
        if option in ("hidden_channels", "heads", *hints) or not (accepts_any or option in names):
            allowed = [name for name in names if name not in ("hidden_channels", "heads", *hints)]
            raise ValueError(f"{what} {name!r} takes the options {allowed}, got {option}={value!r}")
    accepted = dict(hints)
    for hint in hints.keys() - names:
        del accepted[hint]
    return accepted


@cache
def _arguments_of(cls: type[nn.Module]) -> tuple[list[str], bool]:
    """Return the names of a constructor's arguments, and whether it accepts any others."""
    parameters = inspect.signature(cls).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)
