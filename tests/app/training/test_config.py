"""Settings of the loop: invalid values and their messages, and the settings that a run folder stores."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tg_lpe.app.training.config import KernelPretrainConfig, LoopConfig, PretrainConfig, TrainConfig


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (LoopConfig, {"epochs": 0}, "epochs must"),
        (LoopConfig, {"epochs": 2.5}, "epochs must be an integer"),
        (LoopConfig, {"epochs": True}, "epochs must be an integer"),
        (LoopConfig, {"batch_size": "64"}, "batch_size must be an integer"),
        (LoopConfig, {"seed": 1.5}, "seed must be an integer"),
        (LoopConfig, {"seed": -1}, "seed must be an integer"),
        (LoopConfig, {"batch_size": -3}, "batch_size must"),
        (LoopConfig, {"lr": 0.0}, "lr must"),
        (LoopConfig, {"lr": float("nan")}, "lr must"),
        (LoopConfig, {"clip": -1.0}, "clip must"),
        (LoopConfig, {"warmup": 1.0}, "warmup must"),
        (LoopConfig, {"warmup": 0.0}, "warmup must"),
        (LoopConfig, {"warmup": "0.1"}, "warmup must .* got '0.1'"),
        (LoopConfig, {"clip_jointly": "false"}, "clip_jointly must be True or False, got 'false'"),
        (LoopConfig, {"patience": -1}, "patience must"),
        (LoopConfig, {"min_lr": 0.0}, "min_lr must"),
        (LoopConfig, {"schedule": "cosine"}, "schedule must"),
        (TrainConfig, {"precision": "float16"}, "precision must"),
        (TrainConfig, {"encoder_lr": -1}, "encoder_lr must"),
        (TrainConfig, {"encoder_lr": float("nan")}, "encoder_lr must"),
        (TrainConfig, {"head_lr": -1}, "head_lr must"),
        (TrainConfig, {"weight_decay": -0.1}, "weight_decay must"),
        (TrainConfig, {"epochs": 0}, "epochs must"),
        (TrainConfig, {"recalibrate": 1}, "recalibrate must"),
        (TrainConfig, {"recalibrate": -1}, "recalibrate must"),
        (TrainConfig, {"recalibrate": 0.5}, "recalibrate must"),
        (PretrainConfig, {"num_eigenvectors": 0}, "num_eigenvectors must"),
        (KernelPretrainConfig, {"kernels": ()}, "kernels must"),
        (KernelPretrainConfig, {"kernels": ("heat", "heat")}, "each once"),
        (KernelPretrainConfig, {"kernels": "heat"}, "kernels must .* got 'heat'"),
        (KernelPretrainConfig, {"kernels": None}, "kernels must .* got None"),
        (KernelPretrainConfig, {"kernels": [["heat"]]}, "kernels must .* got \\[\\['heat'\\]\\]"),
        (KernelPretrainConfig, {"kernels": ["sine"]}, "kernels must .* got \\['sine'\\]"),
        (KernelPretrainConfig, {"read_features": "no"}, "read_features must be True or False, got 'no'"),
    ],
)
def test_what_is_refused(kind: type[LoopConfig], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**settings)


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(),
        TrainConfig(lr=3e-4, seed=7, head_lr=1e-2, precision="float32", recalibrate=100),
        PretrainConfig(num_eigenvectors=3, clip=2.5),
        KernelPretrainConfig(kernels=("resistance",), read_features=True),
        TrainConfig(lr=np.float32(1e-3), head_lr=np.float32(1e-2), warmup=np.float64(0.25)),
    ],
    ids=["defaults", "train", "eigenvectors", "kernels", "numpy"],
)
def test_round_trip_through_json(config: LoopConfig) -> None:
    values = json.loads(json.dumps(config.to_dict()))
    assert type(config)(**values) == config
    assert config != type(config)(**{**values, "seed": config.seed + 1})


def test_a_plateau_below_its_smallest_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="schedule="):
        LoopConfig(schedule="plateau", lr=5e-7)
