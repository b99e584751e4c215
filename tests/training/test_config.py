"""Settings: what is refused, with what message, and what a run folder keeps of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tg_lpe.training.config import LoopConfig, PretrainConfig, TrainConfig


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (LoopConfig, {"epochs": 0}, "epochs must be at least 1, got 0"),
        (LoopConfig, {"batch_size": -3}, "batch_size must be at least 1, got -3"),
        (LoopConfig, {"halve_every": 0}, "halve_every must be at least 1, got 0"),
        (LoopConfig, {"lr": 0.0}, "lr must be positive and finite, got 0.0"),
        (LoopConfig, {"lr": float("nan")}, "lr must be positive and finite, got nan"),
        (LoopConfig, {"clip": -1.0}, "clip must be positive and finite, got -1.0"),
        (LoopConfig, {"warmup": 1.0}, "warmup must lie between 0 and 1, got 1.0"),
        (LoopConfig, {"schedule": "cosine"}, r"schedule must be one of \('one-cycle', .*got 'cosine'"),
        (TrainConfig, {"precision": "float16"}, "precision must be one of .*got 'float16'"),
        (TrainConfig, {"pe": "gpse"}, r"pe must be one of \('none', 'laplacian', .*got 'gpse'"),
        (TrainConfig, {"probes": "ones"}, "probes must be one of .*got 'ones'"),
        (TrainConfig, {"conductances": "free"}, r"conductances must be one of \('learned', 'fixed'\), got 'free'"),
        (TrainConfig, {"num_filters": 0}, "num_filters must be at least 1, got 0"),
        (TrainConfig, {"encoder_layers": -1}, "encoder_layers must be at least 1, got -1"),
        (TrainConfig, {"pe_dim": 0}, "pe_dim must be at least 1, got 0"),
        (TrainConfig, {"encoder_lr": 0}, "encoder_lr must be positive and finite, got 0"),
        (TrainConfig, {"epochs": 0}, "epochs must be at least 1"),
        (PretrainConfig, {"num_eigenvectors": 0}, "num_eigenvectors must be at least 1, got 0"),
        (PretrainConfig, {"num_loops": 0}, "num_loops must be at least 1, got 0"),
        (PretrainConfig, {"probes": "ones"}, "probes must be one of .*got 'ones'"),
    ],
)
def test_what_is_refused(kind: type[LoopConfig], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**settings)


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(),
        TrainConfig(pe="laplacian", encoder="somewhere", lr=3e-4, seed=7),
        TrainConfig(probes="rademacher", pe_dim=5, edge_pe=False, pe_norm=True, num_filters=2, encoder_layers=3),
        TrainConfig(num_squarings=2, basis="chebyshev", conductances="fixed", ground=False, pooling="sum"),
        PretrainConfig(probes="learned", update_incidence=True, clip=2.5),
    ],
    ids=["defaults", "train", "gram", "gram with squarings", "pretrain"],
)
def test_round_trip_through_json(config: LoopConfig) -> None:
    values = json.loads(json.dumps(config.to_dict()))
    assert type(config).from_dict(values) == config
    assert type(config).from_dict({}) == type(config)()
    assert config != type(config).from_dict({**values, "seed": config.seed + 1})


def test_unknown_settings_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"unknown settings \['learning_rate', 'zeal'\]; known are \[.*'batch_size', .*'lr'"
    ):
        TrainConfig.from_dict({"zeal": 1, "learning_rate": 2, "lr": 1e-3})


@pytest.mark.parametrize(
    ("settings", "width"),
    [
        ({}, None),
        ({"pe_dim": 5}, 5),
        ({"probes": "auto"}, None),
        ({"probes": "features"}, 6),
        ({"probes": "features", "pe_dim": 3}, 3),
        ({"pe": "laplacian"}, 6),
        ({"pe": "random-walk"}, 16),
        ({"pe": "random-walk", "pe_dim": 4}, 4),
        ({"pe": "none"}, None),
        ({"pe": "none", "pe_dim": 4}, None),
    ],
    ids=str,
)
def test_width(settings: dict[str, Any], width: int | None) -> None:
    assert TrainConfig(**settings).width == width


def test_settings_of_earlier_runs_can_be_read() -> None:
    """They name neither edges nor filters, and always a width and probes."""
    config = TrainConfig.from_dict({"pe": "linear-transformer", "pe_dim": 6, "probes": "features", "k": 8, "lr": 0.1})
    assert (config.width, config.uses_gram, config.lr) == (6, False, 0.1)
    assert TrainConfig().uses_gram and not TrainConfig(pe="laplacian").uses_gram
