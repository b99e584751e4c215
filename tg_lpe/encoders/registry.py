"""The encoders by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tg_lpe.encoders.gram_transformer import GRAM_PROBES, GramTransformer
from tg_lpe.encoders.linear_transformer import LinearTransformer
from tg_lpe.hub.checkpoints import read_config


def load_encoder(name_or_dir: str | Path) -> LinearTransformer | GramTransformer:
    """A pretrained encoder of whichever class it is.

    Args:
        name_or_dir: as :meth:`LinearTransformer.from_pretrained <tg_lpe.LinearTransformer.from_pretrained>`.

    Raises:
        ValueError: as there.
    """
    config = read_config(name_or_dir)
    if "num_node_types" not in config or "probes" not in config:
        raise ValueError(f"checkpoint {name_or_dir} holds no encoder, but {sorted(config)}")
    return _class_of(config).from_pretrained(name_or_dir)


def make_encoder(config: dict[str, Any]) -> LinearTransformer | GramTransformer:
    """An encoder with fresh weights.

    Args:
        config: its constructor's arguments; ``probes`` tells the class.

    Raises:
        ValueError: if an argument is out of range or unknown.
    """
    try:
        return _class_of(config)(**config)
    except TypeError as error:
        raise ValueError(f"these are no arguments of an encoder: {error}") from error


def _class_of(config: dict[str, Any]) -> type[LinearTransformer] | type[GramTransformer]:
    return GramTransformer if config.get("probes", "random") in GRAM_PROBES else LinearTransformer
