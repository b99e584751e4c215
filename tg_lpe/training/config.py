"""What defines a training run. Everything here is written to the run folder and decides the result."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from tg_lpe.encoders.gram_transformer import GRAM_PROBES
from tg_lpe.graph.spectral import KERNELS
from tg_lpe.models.graph_transformer import ATTENTIONS, POOLINGS, READOUTS
from tg_lpe.nn.probes import PROBES
from tg_lpe.ops.walks import BASES

ENCODINGS = ("none", "laplacian", "random-walk", "linear-transformer")
SCHEDULES = ("one-cycle", "halving", "constant")
WIDTHS = {"laplacian": 6, "random-walk": 16, "linear-transformer": 6}
"""Channels of each encoding where none are asked for; of Gram read-outs, all there are."""
ENCODER_PROBES = (*GRAM_PROBES, *PROBES)
CONDUCTANCES = ("learned", "fixed")
PRECISIONS = ("auto", "float32", "bfloat16")

T = TypeVar("T", bound="LoopConfig")


@dataclass(frozen=True)
class LoopConfig:
    """Settings of the training loop itself.

    Attributes:
        epochs, batch_size: passes over the training set, graphs per step.
        lr: peak AdamW learning rate.
        schedule: ``one-cycle``, ``halving`` (every ``halve_every`` epochs, the paper's) or ``constant``.
        warmup: share of the steps in which ``one-cycle`` rises.
        halve_every: epochs between two halvings; 800 for ZINC and 400 for QM9 in the paper.
        clip: largest norm of the gradient, of graph transformer and linear transformer separately.
        seed: decides initial weights, order of the data and random signs.
    """

    epochs: int = 20
    batch_size: int = 128
    lr: float = 1e-3
    schedule: str = "one-cycle"
    warmup: float = 0.1
    halve_every: int = 800
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._one_of("schedule", SCHEDULES)
        self._at_least_one("epochs", "batch_size", "halve_every")
        self._positive("lr", "clip")
        if not 0 < self.warmup < 1:
            raise ValueError(f"warmup must lie between 0 and 1, got {self.warmup}")

    def _one_of(self, name: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, name) not in allowed:
            raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")

    def _at_least_one(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def _positive(self, *names: str) -> None:
        for name in names:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able dictionary."""
        return asdict(self)

    @classmethod
    def from_dict(cls: type[T], values: dict[str, Any]) -> T:
        """The reverse of :meth:`to_dict`; unknown names are a ``ValueError``."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"unknown settings {unknown}; known are {sorted(known)}")
        return cls(**values)


@dataclass(frozen=True)
class TrainConfig(LoopConfig):
    """Settings of joint training. The defaults are those of the results in the README.

    Attributes:
        pe: positional encoding, one of :data:`ENCODINGS`.
        pe_dim: its width: eigenvectors of ``laplacian``, steps of ``random-walk``, read-out of ``linear-transformer``;
            ``None``: 6 eigenvectors, 16 steps, everything that Gram read-outs see.
        edge_pe: whether edges are encoded too: by the walk's or the filters' entries at them, and by the sign-invariant
            forms ``|phi_i - phi_j|`` and ``phi_i * phi_j`` of eigenvectors.
        pe_norm: whether the encoding is brought to variance one, channel by channel, before it enters the model.
        probes: of the linear transformer: ``identity``, ``rademacher`` or ``auto``, a
            :class:`~tg_lpe.GramTransformer`, or ``features``, ``random`` or ``learned``, a
            :class:`~tg_lpe.LinearTransformer`; a pretrained ``encoder`` brings its own.
        k: width of the latter.
        num_filters, encoder_layers, num_squarings, basis, conductances, ground: of the former; ``conductances`` are
            ``learned`` from bond types or ``fixed`` at one (with ``ground``, one per filter is learned all the same).
        encoder: zoo name or folder of a pretrained linear transformer to start from; ``None`` for a fresh one.
        encoder_lr: peak learning rate of the linear transformer.
        pe_lr: peak learning rate of the maps from the encoding into the graph transformer; ``lr`` if ``None``.
        weight_decay: of the graph transformer; the linear transformer's few scalars are never decayed.
        attention, channels, heads, num_layers, readout, pooling: of :class:`~tg_lpe.GraphTransformer`.
        precision: ``auto`` is bfloat16 autocast where the hardware multiplies bfloat16 natively, else float32.
    """

    pe: str = "linear-transformer"
    pe_dim: int | None = None
    edge_pe: bool = True
    pe_norm: bool = True
    probes: str = "identity"
    k: int = 8
    num_filters: int = 4
    encoder_layers: int = 16
    num_squarings: int = 0
    basis: str = "power"
    conductances: str = "learned"
    ground: bool = True
    end_features: bool = False
    encoder: str | None = None
    encoder_lr: float = 1e-2
    pe_lr: float | None = None
    weight_decay: float = 1e-2
    attention: str = "edge"
    channels: int = 128
    heads: int = 8
    num_layers: int = 4
    readout: str = "mlp"
    pooling: str = "both"
    precision: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("pe", ENCODINGS)
        self._one_of("probes", ENCODER_PROBES)
        self._one_of("precision", PRECISIONS)
        self._one_of("conductances", CONDUCTANCES)
        self._one_of("basis", tuple(BASES))
        self._one_of("attention", ATTENTIONS)
        self._one_of("pooling", POOLINGS)
        self._one_of("readout", READOUTS)
        self._at_least_one("k", "num_filters", "encoder_layers", *(("pe_dim",) if self.pe_dim is not None else ()))
        self._positive("encoder_lr", *(("pe_lr",) if self.pe_lr is not None else ()))

    @property
    def uses_gram(self) -> bool:
        """Whether the encoding is a :class:`~tg_lpe.GramTransformer`."""
        return self.pe == "linear-transformer" and self.probes in GRAM_PROBES

    @property
    def width(self) -> int | None:
        """Channels of the node encoding: ``pe_dim`` or its default."""
        if self.pe == "none":
            return None
        return self.pe_dim if self.pe_dim is not None or self.uses_gram else WIDTHS[self.pe]


@dataclass(frozen=True)
class PretrainConfig(LoopConfig):
    """Settings of eigenvector pretraining.

    Attributes:
        num_eigenvectors: first non-trivial eigenvectors of the normalised Laplacian to learn; the encoder's width.
        k, num_blocks, num_loops, update_incidence: of :class:`~tg_lpe.LinearTransformer`.
        probes: ``random`` (a new draw at every step), ``features`` (from node types) or ``learned``.
    """

    epochs: int = 10
    lr: float = 1e-2
    num_eigenvectors: int = 8
    k: int = 8
    num_blocks: int = 3
    num_loops: int = 3
    probes: str = "random"
    update_incidence: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("probes", PROBES)
        self._at_least_one("num_eigenvectors", "k", "num_blocks", "num_loops")


@dataclass(frozen=True)
class KernelPretrainConfig(LoopConfig):
    """Settings of the pretraining of Gram read-outs on kernels of the Laplacian.

    Attributes:
        kernels: what to learn, some of :data:`~tg_lpe.graph.spectral.KERNELS`, whose channels are the encoder's.
        num_filters, num_layers, num_squarings, basis: of :class:`~tg_lpe.GramTransformer`.
        features: whether conductances read bond and atom types, so that the encoder can go on to learn from them.
    """

    epochs: int = 10
    lr: float = 3e-2
    kernels: tuple[str, ...] = ("heat", "resistance")
    num_filters: int = 4
    num_layers: int = 16
    num_squarings: int = 0
    basis: str = "power"
    features: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "kernels", tuple(self.kernels))  # JSON knows lists only
        if not self.kernels or not set(self.kernels) <= set(KERNELS) or len(set(self.kernels)) < len(self.kernels):
            raise ValueError(f"kernels must be some of {tuple(KERNELS)}, each once, got {self.kernels}")
        self._one_of("basis", tuple(BASES))
        self._at_least_one("num_filters", "num_layers")
