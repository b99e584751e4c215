"""Settings of the loop: invalid values and their messages, and the settings that a run folder stores."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers import refusals

from tg_lpe.app.training.config import KernelPretrainConfig, LoopConfig, PretrainConfig, TrainConfig

test_refused_settings_of_loops = refusals(
    LoopConfig,
    ({"epochs": 0}, "epochs"),
    ({"batch_size": "64"}, "batch_size"),
    ({"seed": -1}, "seed"),
    ({"lr": 0.0}, "lr"),
    ({"clip": -1.0}, "clip"),
    ({"warmup": 1.0}, "warmup"),
    ({"warmup": 0.0}, "warmup"),
    ({"clip_jointly": "false"}, "clip_jointly"),
    ({"patience": -1}, "patience"),
    ({"min_lr": 0.0}, "min_lr"),
    ({"schedule": "cosine"}, "schedule"),
    ({"schedule": "plateau", "lr": 5e-7}, "schedule="),
)
test_refused_settings_of_trainings = refusals(
    TrainConfig,
    ({"precision": "float16"}, "precision"),
    ({"encoder_lr": -1}, "encoder_lr"),
    ({"head_lr": -1}, "head_lr"),
    ({"weight_decay": -0.1}, "weight_decay"),
    ({"recalibrate": 1}, "recalibrate"),
)
test_refused_settings_of_eigenvectors = refusals(PretrainConfig, ({"num_eigenvectors": 0}, "num_eigenvectors"))
test_refused_settings_of_kernels = refusals(
    KernelPretrainConfig,
    ({"kernels": ()}, "kernels"),
    ({"kernels": ("heat", "heat")}, "kernels"),
    ({"kernels": "heat"}, "kernels"),
    ({"kernels": None}, "kernels"),
    ({"kernels": [["heat"]]}, "kernels"),
    ({"kernels": ["sine"]}, "kernels"),
    ({"read_features": "no"}, "read_features"),
)


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
