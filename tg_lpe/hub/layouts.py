"""Tell which kind of folder a ``config.json`` describes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any


class Kind(Enum):
    """Kinds of folders with a ``config.json``."""

    CHECKPOINT = "a checkpoint"
    TRAINING = "the run folder of a training"
    PRETRAINING = "the run folder of a pretraining, with its encoder in the folder encoder"


def kind_of(config: Mapping[str, Any]) -> Kind:
    """Return which of them, by the content of the file."""
    if "class" in config or "command" not in config:
        return Kind.CHECKPOINT
    return Kind.TRAINING if config["command"] == "train" else Kind.PRETRAINING
