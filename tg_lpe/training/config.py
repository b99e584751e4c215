"""What defines a training run. Everything here is written to the run folder and decides the result."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from tg_lpe.probes import PROBES

ENCODINGS = ("none", "laplacian", "random-walk", "linear-transformer")
SCHEDULES = ("one-cycle", "halving", "constant")
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
        pe_dim: its width: eigenvectors of ``laplacian``, steps of ``random-walk``, read-out of ``linear-transformer``.
        probes: starting vectors of the linear transformer: ``features``, ``random`` or ``learned``.
        k: width of the linear transformer.
        encoder: zoo name or folder of a pretrained linear transformer to start from; ``None`` for a fresh one.
        encoder_lr: peak learning rate of the linear transformer.
        weight_decay: of the graph transformer; the linear transformer's few scalars are never decayed.
        channels, heads, num_layers, readout: of :class:`~tg_lpe.GraphTransformer`.
        precision: ``auto`` is bfloat16 autocast where the hardware multiplies bfloat16 natively, else float32.
    """

    pe: str = "linear-transformer"
    pe_dim: int = 6
    probes: str = "features"
    k: int = 8
    encoder: str | None = None
    encoder_lr: float = 1e-2
    weight_decay: float = 1e-2
    channels: int = 128
    heads: int = 8
    num_layers: int = 4
    readout: str = "mlp"
    precision: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("pe", ENCODINGS)
        self._one_of("probes", PROBES)
        self._one_of("precision", PRECISIONS)
        self._at_least_one("pe_dim", "k")
        self._positive("encoder_lr")


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
