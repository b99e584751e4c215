"""Colours, the channels to draw, and a picture that notebooks show and files hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path

import torch
from torch import Tensor

from tg_lpe.encoders.base import Encoder, Encoding
from tg_lpe.graph.graph import Graph
from tg_lpe.hub.files import replacing

NEGATIVE, MIDDLE, POSITIVE = (0.27, 0.55, 0.83), (0.93, 0.93, 0.93), (0.93, 0.50, 0.22)
"""Blue, light grey and orange: told apart by people with any colour vision, and black text is legible on all."""

DEFAULT_CHANNELS = 6
"""Channels that are drawn where none are named, at most."""

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Picture:
    """A picture that a notebook shows.

    Attributes:
        svg: the picture as SVG.
        channels: which channels it shows.
    """

    svg: str = field(repr=False)
    channels: tuple[int, ...]
    _draw_png: Callable[[], bytes] = field(repr=False)

    @property
    def png(self) -> bytes:
        """The picture as PNG."""
        return self._draw_png()

    def save(self, path: str | Path) -> Path:
        """Write the picture, under a temporary name that is renamed.

        Args:
            path: ends in ``.svg`` or ``.png``.

        Raises:
            ValueError: if it ends otherwise.
        """
        path = Path(path)
        if path.suffix not in (".svg", ".png"):
            raise ValueError(f"a picture's name must end in .svg or .png, got {path}")
        with replacing(path) as temporary:
            temporary.write_bytes(self.png if path.suffix == ".png" else self.svg.encode())
        return path

    def _repr_png_(self) -> bytes:
        return self.png


@dataclass(frozen=True)
class Channel:
    """The values of one channel at the nodes and at the directed edges, ``None`` where it has none."""

    number: int
    node: Tensor | None
    edge: Tensor | None

    @property
    def limits(self) -> dict[str, float]:
        """Return the value at the ends of the colours, for ``"nodes"`` and ``"edges"`` where they have values."""
        parts = {"nodes": self.node, "edges": self.edge}
        return {name: limit(values) for name, values in parts.items() if values is not None}


def channels_of(
    encoder: Encoder,
    edge_index: Tensor,
    num_nodes: int,
    x: Tensor | None,
    edge_attr: Tensor | None,
    edge_weight: Tensor | None,
    chosen: Sequence[int] | None,
) -> list[Channel]:
    """The channels to draw.

    Args:
        encoder: the encoder.
        edge_index, num_nodes, x, edge_attr, edge_weight: the graph.
        chosen: numbers of channels, from 0; the first six if absent.

    Raises:
        ValueError: if the encoder has no such channel.
    """
    width = max(encoder.out_channels, encoder.edge_out_channels)
    chosen = range(min(width, DEFAULT_CHANNELS)) if chosen is None else [*chosen]
    if not chosen or any(not isinstance(number, Integral) or not 0 <= number < width for number in chosen):
        raise ValueError(f"channels must be numbers in 0..{width - 1}, as the encoder has {width}, got {list(chosen)}")
    with torch.no_grad():
        weight = edge_weight if "edge_weight" in encoder.reads else None
        graph = Graph(edge_index, num_nodes, edge_weight=weight)
        encoding: Encoding = encoder.encode(graph, x, edge_attr)
    return [Channel(int(number), _column(encoding.node, number), _column(encoding.edge, number)) for number in chosen]


def check_encoder_to_draw(encoder: object) -> None:
    """Refuse what is no encoder.

    Raises:
        TypeError: with where encoders come from.
    """
    if not isinstance(encoder, Encoder):
        got = repr(encoder) if isinstance(encoder, str) else type(encoder).__name__
        raise TypeError(f"encoder must be an Encoder, such as load_encoder('gram-k8') or model.encoder, got {got}")


def _column(values: Tensor | None, number: int) -> Tensor | None:
    if values is None or number >= values.size(1) or not values.size(0):
        return None
    return values[:, number].detach().double().cpu()


def limit(values: Tensor) -> float:
    """The largest magnitude of finite values; 1 where all are zero."""
    finite = values[values.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return largest if largest > 0 else 1.0


def colour(value: float, largest: float) -> Colour:
    """The colour of a value between ``-largest`` and ``largest``; zero is light grey."""
    share = max(-1.0, min(1.0, value / largest)) if value == value else 0.0
    end = POSITIVE if share > 0 else NEGATIVE
    return tuple(m + abs(share) * (e - m) for m, e in zip(MIDDLE, end, strict=True))  # type: ignore[return-value]
