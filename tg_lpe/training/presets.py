"""Presets: defaults of the options of ``tg-lpe train`` and ``tg-lpe pretrain`` for a published experiment, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Chosen = Mapping[str, Any] | str | None
"""An encoder as :func:`tg_lpe.training.build_model` takes it."""

LINEAR_TRANSFORMER = {
    "k": 8,
    "num_blocks": 3,
    "num_loops": 3,
    "probes": "learned",
    "update_incidence": True,
    "degree_scaling": True,
    "independent_scaling": True,
    "diagonal": True,
    "normalize": True,
}


def paper(command: str, source: str, chosen: Chosen) -> dict[str, Any]:
    """Table 2 of `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, section 14.3.

    Where the text is silent, the options are those of the published runs; the documentation's page on Table 2 lists
    them. Widths and epochs are ZINC's, except for QM9.

    Args:
        command: ``"train"`` or ``"pretrain"``.
        source: what the data is.
        chosen: the encoder.

    Returns:
        Options by name; ``encoder`` has arguments of the chosen class.
    """
    width, epochs = (3, 1000) if source == "qm9" else (6, 2000)
    name = chosen["class"] if isinstance(chosen, Mapping) else None
    arguments: dict[str, Any] = {}
    if name == "LinearTransformer":
        arguments = LINEAR_TRANSFORMER if command == "pretrain" else {**LINEAR_TRANSFORMER, "out_channels": width}
    elif name == "LaplacianEigenvectors":
        arguments = {"k": width, "normalization": "sym", "which": "bottom"}
    options: dict[str, Any] = {"clip": 10.0, "encoder": arguments}
    if command == "pretrain":
        return {**options, "eigenvectors": width, "epochs": 120, "batch_size": 400, "lr": 1e-2}
    return {
        **options,
        "epochs": epochs,
        "batch_size": 200,
        "lr": 1e-3,
        "encoder_lr": 1e-2,
        "schedule": "decay",
        "clip_jointly": True,
        "weight_decay": 0.0,
        "precision": "float32",
        "edge_encoding": chosen is None,  # no encoder has none to leave out
        "model.hidden_channels": 128,
        "model.heads": 8,
        "model.num_layers": 4,
        "model.readout": "paper",
        "model.pooling": "mean",
        "model.pe_norm": "unit",
    }


PRESETS: dict[str, Callable[[str, str, Chosen], dict[str, Any]]] = {"paper": paper}
"""Functions of the command, the source of the data and the encoder."""

DEFAULT_ENCODER = "LinearTransformer"
"""The encoder of every preset, where none is chosen."""
