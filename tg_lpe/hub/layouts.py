"""What the ``config.json`` of a folder is of, and configurations of earlier releases, read as today's.

Layout 1 (release 0.1) did not name the class and had other names for some arguments; layout 2 says ``"class"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

RUNS_OF_RELEASE_0_1 = ("pretrain", "pretrain-kernels", "train")
"""Entries of the configuration of a run of release 0.1, one for each of its commands."""

_GRAM_PROBES = ("auto", "identity", "rademacher")
_RENAMED = {
    "GramTransformer": {"edge_channels": "edge_out_channels", "edge_in_channels": "edge_dim"},
    "GraphTransformer": {"channels": "hidden_channels", "edge_channels": "edge_dim"},
    "LinearTransformer": {},
}


class Kind(Enum):
    """What a folder with a ``config.json`` holds."""

    CHECKPOINT = "a checkpoint"
    TRAINING = "the run folder of a training"
    PRETRAINING = "the run folder of a pretraining, with its encoder in the folder encoder"
    EARLIER_RUN = "the run folder of release 0.1"


def kind_of(config: Mapping[str, Any]) -> Kind:
    """Which of them, by the content of the file."""
    if "class" in config:
        return Kind.CHECKPOINT
    if "command" in config:
        return Kind.TRAINING if config["command"] == "train" else Kind.PRETRAINING
    return Kind.CHECKPOINT if config.keys().isdisjoint(RUNS_OF_RELEASE_0_1) else Kind.EARLIER_RUN


def upgrade(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration in today's layout.

    Args:
        config: the content of a ``config.json``, or of its entry ``encoder``; it is not changed.

    Returns:
        The configuration with ``"class"``, if it has none and its class can be told from its arguments; otherwise as it
        is.
    """
    if "class" in config:
        return config
    if "probes" in config and "num_node_types" in config:
        name = "GramTransformer" if config["probes"] in _GRAM_PROBES else "LinearTransformer"
    elif "heads" in config and "pooling" in config:
        name = "GraphTransformer"
    else:
        return config
    renamed = {_RENAMED[name].get(key, key): value for key, value in config.items()}
    if isinstance(renamed.get("encoder"), dict):
        renamed["encoder"] = upgrade(renamed["encoder"])
    return {"class": name, **renamed}
