"""Settings of the training loop. A run folder records them next to its data, encoder, model and task."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, Literal, get_args, get_type_hints

from tg_lpe.app.training.kernels import KERNELS
from tg_lpe.arguments import (
    check_choice,
    check_count,
    check_counts,
    check_flags,
    check_positive,
    check_seed,
    check_shares,
)
from tg_lpe.data import GraphSplits

Schedule = Literal["one-cycle", "decay", "plateau", "constant"]
Precision = Literal["auto", "float32", "bfloat16"]

READ_BY: dict[str, Schedule] = {"warmup": "one-cycle", "patience": "plateau", "min_lr": "plateau"}
"""Settings that only one schedule reads, with that schedule."""


@dataclass(frozen=True)
class LoopConfig:
    """Settings of the training loop.

    Args:
        epochs: passes over the training set.
        batch_size: graphs per step, over all processes together.
        lr: peak learning rate of AdamW.
        schedule: course of the learning rate.

            - "one-cycle" rises to lr and then falls.
            - "decay" falls exponentially from lr to 2^-2.5 lr, as in `Graph Transformers Dream of Electric Flow
              <https://arxiv.org/abs/2410.16699>`_.
            - "plateau" halves it when the validation loss has not fallen for more than patience epochs, and ends the
              training below min_lr.
        warmup: share of the steps in which "one-cycle" rises.
        patience: epochs without a lower validation loss before "plateau" halves the learning rate.
        min_lr: "plateau" ends the training when the halved lr is below this.
        clip: largest gradient norm of each group of parameters. The model and the encoder are one group each; so is
            the read-out if head_lr is set.
        clip_jointly: whether clip bounds the norm of all gradients together instead.
        seed: seed of initial weights, order of the data and random draws.
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
        kinds = get_type_hints(type(self))
        for name, value in asdict(self).items():
            kind = kinds[name]
            if kind is bool:
                check_flags(**{name: value})
            # lr=1 and numbers of NumPy become floats: run folders of equal settings are equal, and hold JSON.
            if float in (kind, *get_args(kind)) and isinstance(value, Real) and not isinstance(value, bool):
                object.__setattr__(self, name, float(value))
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_counts(epochs=self.epochs, batch_size=self.batch_size)
        check_count("patience", self.patience, least=0)
        check_seed(self.seed)
        for name, value in (("lr", self.lr), ("min_lr", self.min_lr), ("clip", self.clip), ("warmup", self.warmup)):
            check_positive(name, value)
        check_shares(warmup=self.warmup)
        if self.schedule == "plateau" and self.lr < self.min_lr:
            raise ValueError(f"schedule='plateau' needs lr of at least min_lr={self.min_lr}, got lr={self.lr}")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a JSON-able dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class TrainConfig(LoopConfig):
    """Settings for training a model.

    The settings of :class:`LoopConfig` apply too.

    Args:
        lr: peak learning rate of the model.
        encoder_lr: peak learning rate of the encoder; 0 leaves its parameters unchanged.
        head_lr: peak learning rate of the model's read-out; lr if absent. Set it when fine-tuning: trained weights
            need a small lr, and the new read-out needs a larger one.
        weight_decay: weight decay of the model; the encoder's weights are not decayed.
        precision: "auto" is bfloat16 autocast where the hardware multiplies bfloat16 natively, else float32.
        recalibrate: number of training graphs from which the statistics of batch norms are computed again before each
            evaluation; they are also saved with the weights. 0 keeps the running statistics. If training, validation
            and test nodes are in one graph, its statistics are always computed again.

    Example:
        >>> from tg_lpe.app.training import TrainConfig
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
        check_positive("encoder_lr", self.encoder_lr, or_zero=True)
        check_positive("weight_decay", self.weight_decay, or_zero=True)
        if self.recalibrate:  # one graph has no statistics
            check_count("recalibrate", self.recalibrate, least=2)


ONE_GRAPH = TrainConfig(epochs=300, lr=3e-3)
"""Budget for one graph: an epoch is a single step, so there are more epochs and a larger learning rate."""


def default_config(splits: GraphSplits) -> TrainConfig:
    """Return settings with 20 epochs and lr 0.001, or for a single graph 300 epochs and lr 0.003."""
    return TrainConfig() if len(splits.train) > 1 else ONE_GRAPH


@dataclass(frozen=True)
class PretrainConfig(LoopConfig):
    """Settings for pretraining on eigenvectors.

    Args:
        num_eigenvectors: number of eigenvectors to learn: the first non-trivial ones of the symmetric-normalised
            Laplacian. The encoding has as many channels.
    """

    epochs: int = 10
    lr: float = 1e-2
    num_eigenvectors: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("num_eigenvectors", self.num_eigenvectors)


@dataclass(frozen=True)
class KernelPretrainConfig(LoopConfig):
    """Settings for pretraining on kernels of the Laplacian.

    Args:
        kernels: names of the kernels to learn, from :data:`~tg_lpe.app.training.kernels.KERNELS`. The encoding has as
            many channels as they have together.
        read_features: whether the encoder reads node and edge features. The kernels do not depend on features, but
            the encoder can learn from them in later training.
    """

    epochs: int = 10
    lr: float = 3e-2
    kernels: tuple[str, ...] = ("heat", "resistance")
    read_features: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        kernels = tuple(self.kernels) if isinstance(self.kernels, list | tuple) else ()
        if not kernels or any(kernels.count(name) > 1 or name not in tuple(KERNELS) for name in kernels):
            raise ValueError(f"kernels must be some of {tuple(KERNELS)}, each once, got {self.kernels!r}")
        object.__setattr__(self, "kernels", kernels)  # JSON has lists only
