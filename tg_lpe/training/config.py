"""Settings of a training, besides data, encoder, model and task. A run folder holds them; they decide the result."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from tg_lpe.arguments import check_choice, check_count, check_positive, check_seed
from tg_lpe.training.kernels import KERNELS

Schedule = Literal["one-cycle", "decay", "plateau", "constant"]
Precision = Literal["auto", "float32", "bfloat16"]

READ_BY: dict[str, Schedule] = {"warmup": "one-cycle", "patience": "plateau", "min_lr": "plateau"}
"""Settings that one schedule alone reads."""

T = TypeVar("T", bound="LoopConfig")


@dataclass(frozen=True)
class LoopConfig:
    """Settings of the training loop.

    Args:
        epochs: passes over the training set.
        batch_size: graphs per step, of all processes together.
        lr: peak learning rate of AdamW.
        schedule: of the learning rate; "decay" lets it fall continuously, whatever the number of epochs, by the factor
            of the whole training of `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_,
            2^-2.5; "plateau" halves it when the validation loss has not fallen for more than patience epochs, and ends
            the training below min_lr.
        warmup: share of the steps in which "one-cycle" rises.
        patience: epochs without a lower validation loss that "plateau" waits for.
        min_lr: "plateau" ends the training when lr, halved so often, is below this.
        clip: largest norm of the gradient of each group of parameters: the model's, the encoder's, and with a head_lr
            of its own the read-out's.
        clip_jointly: whether clip bounds the norm of all gradients together instead.
        seed: of initial weights, order of the data and random draws.
    """

    epochs: int = 20
    batch_size: int = 128
    lr: float = 1e-3
    schedule: Schedule = "one-cycle"
    warmup: float = 0.1
    patience: int = 25
    min_lr: float = 1e-6
    clip: float = 1.0
    clip_jointly: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if float in (kind, *get_args(kind)) and type(value := getattr(self, name)) is int:
                object.__setattr__(self, name, float(value))
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_count("epochs", self.epochs)
        check_count("batch_size", self.batch_size)
        check_count("patience", self.patience, least=0)
        check_seed(self.seed)
        for name in ("lr", "min_lr", "clip"):
            check_positive(name, getattr(self, name))
        if not 0 < self.warmup < 1:
            raise ValueError(f"warmup must lie between 0 and 1, got {self.warmup}")
        if self.schedule == "plateau" and self.lr < self.min_lr:
            raise ValueError(f"schedule='plateau' ends at min_lr={self.min_lr}, got lr={self.lr}, which is below it")

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls: type[T], values: dict[str, Any]) -> T:
        """Make the settings that :meth:`to_dict` described; unknown names are a ``ValueError``."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"unknown settings {unknown}; known are {sorted(known)}")
        return cls(**values)


@dataclass(frozen=True)
class TrainConfig(LoopConfig):
    """Settings of the training of a model: those of :class:`LoopConfig`, and of its parts.

    Args:
        lr: peak learning rate of the model.
        encoder_lr: peak learning rate of the encoder; 0 leaves its parameters as they are.
        head_lr: peak learning rate of the model's read-out; that of lr if absent. A model that starts from trained
            weights needs a small lr and has a read-out of fresh weights, which needs a larger one.
        weight_decay: of the model; the encoder's weights are not decayed.
        precision: "auto" is bfloat16 autocast where the hardware multiplies bfloat16 natively, else float32.
        recalibrate: number of training graphs, drawn by seed, over which the statistics of batch norms are taken anew
            before each evaluation, for it and for the weights that are kept; 0 for the running statistics.

    Example:
        >>> from tg_lpe.training import TrainConfig
        >>> config = TrainConfig(epochs=50, lr=1e-3, seed=1)
        >>> config.epochs, config.batch_size
        (50, 128)
    """

    encoder_lr: float = 1e-2
    head_lr: float | None = None
    weight_decay: float = 1e-2
    precision: Precision = "auto"
    recalibrate: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("precision", self.precision, get_args(Precision))
        if self.head_lr is not None:
            check_positive("head_lr", self.head_lr)
        for name in ("encoder_lr", "weight_decay"):
            check_positive(name, getattr(self, name), or_zero=True)
        if self.recalibrate:  # one graph has no statistics
            check_count("recalibrate", self.recalibrate, least=2)


@dataclass(frozen=True)
class PretrainConfig(LoopConfig):
    """Settings of the pretraining on eigenvectors.

    Args:
        num_eigenvectors: first non-trivial eigenvectors of the symmetric-normalised Laplacian to learn; the width of
            the encoding.
    """

    epochs: int = 10
    lr: float = 1e-2
    num_eigenvectors: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("num_eigenvectors", self.num_eigenvectors)


@dataclass(frozen=True)
class KernelPretrainConfig(LoopConfig):
    """Settings of the pretraining on kernels of the Laplacian.

    Args:
        kernels: what to learn, some of :data:`~tg_lpe.training.kernels.KERNELS`; their channels are the encoding's.
        read_features: whether the encoder reads node and edge features. The kernels do not depend on them; an encoder
            that reads them can learn from them later.
    """

    epochs: int = 10
    lr: float = 3e-2
    kernels: tuple[str, ...] = ("heat", "resistance")
    read_features: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "kernels", tuple(self.kernels))  # JSON has lists only
        if not self.kernels or not set(self.kernels) <= set(KERNELS) or len(set(self.kernels)) < len(self.kernels):
            raise ValueError(f"kernels must be some of {tuple(KERNELS)}, each once, got {self.kernels}")
