"""Run folders of release 0.1, read as today's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tg_lpe.hub.layouts import RUNS_OF_RELEASE_0_1
from tg_lpe.report.values import mapping_in

_GRAM_PROBES = ("auto", "identity", "rademacher")
_ENCODER_NAMES = {"num_filters", "encoder_layers", "num_squarings", "basis", "conductances", "ground", "end_features"}
_ENCODER_NAMES |= {"pe", "pe_dim", "edge_pe", "probes", "k", "encoder"}
_MODEL_NAMES = {"channels", "heads", "num_layers", "readout", "pooling", "attention", "pe_norm"}
_BEFORE = {"edge_pe": False, "pe_norm": False, "pe_lr": None, "attention": "edge", "pooling": "mean"}
"""Settings that were fixed in the first trainings, whose configurations do not hold them."""


def upgrade_run(config: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a ``config.json`` in layout 2, as far as layout 1 tells it.

    Args:
        config: the content of the file; one that is in layout 2, or in no known one, is returned as it is.
    """
    if "layout" in config:
        return dict(config)
    command = next((name for name in RUNS_OF_RELEASE_0_1 if name in config), None)
    if command is None or not isinstance(config[command], dict):
        return dict(config)
    settings = dict(config[command])
    parts = {"train": _training, "pretrain": _eigenvectors, "pretrain-kernels": _kernels}[command](settings)
    return {"layout": 1, "command": command, **parts, **{k: v for k, v in config.items() if k != command}}


def _training(settings: Mapping[str, Any]) -> dict[str, Any]:
    settings = {**_BEFORE, **settings}
    renamed = {"channels": "hidden_channels"}
    return {
        "encoder": _encoder(settings),
        "pretrained": settings.get("encoder"),
        "model": {renamed.get(name, name): value for name, value in settings.items() if name in _MODEL_NAMES},
        "task": {"name": "regression", "level": "graph", "num_targets": 1, "metric": "mae", "loss_function": "l1"},
        "loop": {n: value for n, value in settings.items() if n not in _MODEL_NAMES | _ENCODER_NAMES},
    }


def _encoder(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The encoder that ``--pe`` and its companions meant."""
    pe, width = settings.get("pe", "linear-transformer"), settings.get("pe_dim")
    edges = {} if settings["edge_pe"] else {"edge_out_channels": 0}
    if pe == "none":
        return None
    if pe == "laplacian":
        return {"class": "LaplacianEigenvectors", "k": width or 6, **edges}
    if pe == "random-walk":
        return {"class": "RandomWalk", "steps": width or 16, **edges}
    if pe != "linear-transformer":
        return {"class": str(pe)}
    if settings.get("probes") not in _GRAM_PROBES:
        return {
            "class": "LinearTransformer",
            "k": settings.get("k", 8),
            "out_channels": width or 6,
            **_probes(settings),
        }
    renamed = {"encoder_layers": "num_layers"}
    names = ("num_filters", "encoder_layers", "num_squarings", "basis", "ground", "end_features")
    return {
        "class": "GramTransformer",
        "out_channels": width,
        "edge_out_channels": width if settings["edge_pe"] else 0,
        **_probes(settings),
        **{renamed.get(name, name): settings[name] for name in names if name in settings},
        "learned_conductances": settings.get("conductances", "learned") == "learned",
    }


def _probes(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"probes": settings["probes"]} if "probes" in settings else {}


def _eigenvectors(settings: Mapping[str, Any]) -> dict[str, Any]:
    own = ("k", "num_blocks", "num_loops", "probes", "update_incidence")
    encoder = {name: settings[name] for name in own if name in settings}
    width = settings.get("num_eigenvectors")
    loop = {name: value for name, value in settings.items() if name not in own}
    return {"encoder": {"class": "LinearTransformer", "out_channels": width, **encoder}, "loop": loop}


def _kernels(settings: Mapping[str, Any]) -> dict[str, Any]:
    own = ("num_filters", "num_layers", "num_squarings", "basis")
    probes = "identity" if settings.get("num_squarings") else "auto"
    encoder = {name: settings[name] for name in own if name in settings}
    renamed = {"features": "read_features"}
    loop = {renamed.get(name, name): value for name, value in settings.items() if name not in own}
    return {"encoder": {"class": "GramTransformer", "probes": probes, **encoder}, "loop": loop}


def target_of(data: Mapping[str, Any]) -> list[Any]:
    """What the labels were: their columns, or what they were computed as."""
    target = mapping_in(data, "target")
    if not target:  # release 0.1: labels were computed unless the files had a column y
        return ["solubility", None] if data.get("normalization") is not None else ["y"]
    computed = target.get("computed")
    return [computed, None] if computed is not None else list(target.get("columns") or [])
