"""Presets: option defaults of ``tg-lpe train`` and ``tg-lpe pretrain`` that reproduce a published experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tg_lpe.arguments import ArgumentError
from tg_lpe.checkpoints.files import read_yaml

Chosen = Mapping[str, Any] | str | None
"""An encoder as :func:`tg_lpe.app.training.build_model` takes it."""


def paper(command: str, source: str, chosen: Chosen) -> dict[str, Any]:
    """Return the options of Table 2 of `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_.

    Section 14.3 of the paper describes them. Options that the text does not mention are taken from the published runs;
    the documentation's page on Table 2 lists them. All data except QM9 get the widths and epochs of ZINC.
    """
    options, (width, epochs) = _published("paper"), (3, 1000) if source == "qm9-solubility" else (6, 2000)
    name = chosen["class"] if isinstance(chosen, Mapping) else None
    arguments = options.get(name or "", {})
    if name == "LaplacianEigenvectors":
        arguments["k"] = width
    if command == "pretrain":
        return {**options["all"], "encoder": arguments, "eigenvectors": width, **options["pretrain"]}
    if name == "LinearTransformer":
        arguments["out_channels"] = width
    edges = chosen is None  # False is refused without an encoder
    return {**options["all"], "encoder": arguments, "epochs": epochs, "edge_encoding": edges, **options["train"]}


def san(command: str, source: str, chosen: Chosen) -> dict[str, Any]:
    """Return the models of `Rethinking Graph Transformers with Spectral Attention <https://arxiv.org/abs/2106.03893>`_.

    They follow the published code with three exceptions: signs of eigenvectors are flipped at random, as in the paper;
    on MolHIV single bonds and missing edges have different features; and the embedding tables of MolHIV start from
    ``N(0, 1)`` instead of Xavier's smaller values. Another encoder replaces ``SpectralEncoder`` in the same model.
    """
    if command != "train":
        raise ArgumentError("{preset} is for training, got {}", command, preset="san")
    options = _published("san")
    if source not in options["sources"]:
        raise ArgumentError("{preset} is for {}, got {}", ", ".join(options["sources"]), source, preset="san")
    of_source = options["sources"][source]
    is_own = isinstance(chosen, Mapping) and chosen["class"] == "SpectralEncoder"
    return {
        "encoder": {**of_source["encoder"], **options["SpectralEncoder"]} if is_own else {},
        **options["train"],
        **of_source["loop"],
        **{f"model.{name}": value for name, value in of_source["model"].items()},
        "model.attention_options": of_source["attention_options"],
    }


def _published(preset: str) -> dict[str, Any]:
    return read_yaml(Path(__file__).with_name("presets.yaml"))[preset]  # type: ignore[no-any-return]


class Preset(NamedTuple):
    """Option defaults of a published experiment."""

    options: Callable[[str, str, Chosen], dict[str, Any]]
    """Function of the command, the source of the data and the encoder; returns the defaults."""
    encoder: str
    """Name of the default encoder."""


PRESETS = {"paper": Preset(paper, "LinearTransformer"), "san": Preset(san, "SpectralEncoder")}
"""Presets by name."""
