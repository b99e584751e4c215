"""Trained models and encoders that options name, and the data that they were trained on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jsonargparse import Namespace

from tg_lpe.cli.options import chosen_encoder, encoder_label

if TYPE_CHECKING:
    from tg_lpe.datasets.molecules import AtomVocabulary, MoleculeReader
    from tg_lpe.encoders.base import Encoder


def fixed_encoder(args: Namespace) -> tuple[Encoder, str | None]:
    """The encoder that ``encode`` and ``show`` use as it is, and the name or folder of a pretrained one."""
    from tg_lpe.data import DataSpec
    from tg_lpe.training.build import start_encoder
    from tg_lpe.transforms.linear_transformer_pe import DEFAULT_ENCODER as DEFAULT

    chosen = chosen_encoder(args)
    if chosen is None:
        if args.encoder["class"] is not None:
            raise ValueError("--encoder none encodes nothing")
        chosen = DEFAULT
    if isinstance(chosen, str):
        return _trained_encoder(chosen), chosen
    encoder = cast("Encoder", start_encoder(chosen, DataSpec()))
    if any(True for _ in encoder.parameters()):
        raise ValueError(f"{encoder_label(chosen)} has weights to learn: name a checkpoint of one by --pretrained")
    return encoder, None


def encoder_to_train(args: Namespace) -> dict[str, Any] | str | None:
    """Return :func:`chosen_encoder`; in place of a pretraining's folder, the encoder in it.

    Raises:
        ValueError: if ``--pretrained`` names a trained model.
    """
    from tg_lpe.hub.checkpoints import CLASSES, read_config
    from tg_lpe.hub.layouts import Kind, kind_of

    chosen = chosen_encoder(args)
    if not isinstance(chosen, str):
        return chosen
    config = read_config(chosen)
    kind = kind_of(config)
    if kind is Kind.PRETRAINING:
        return str(Path(chosen, "encoder"))
    if kind is Kind.TRAINING or ("encoder" in config and config.get("class") in CLASSES):
        hint = f": say --start {chosen}" if "start" in args else ""
        raise ValueError(f"--pretrained takes an encoder, and {chosen} is a trained model{hint}")
    return chosen


def _trained_encoder(name: str) -> Encoder:
    """A pretrained encoder, or that of a trained model or of a run."""
    from tg_lpe.encoders.registry import ENCODERS, load_encoder
    from tg_lpe.hub.checkpoints import CLASSES, read_config
    from tg_lpe.hub.layouts import Kind, kind_of
    from tg_lpe.prediction import load

    config = read_config(name)
    kind = kind_of(config)
    if kind is Kind.PRETRAINING:
        return load_encoder(Path(name, "encoder"))
    if kind is not Kind.TRAINING and (config.get("class") in ENCODERS or config.get("class") not in CLASSES):
        return load_encoder(name)
    encoder: Encoder | None = load(name).model.encoder  # type: ignore[assignment]
    if encoder is None:
        raise ValueError(f"{name} holds a model without an encoder")
    return encoder


def reader_of(encoder: str) -> MoleculeReader:
    """How the molecules of an encoder that reads atom types were read, by its card or the run folder around it."""
    from tg_lpe.datasets.molecules import MoleculeReader

    descriptions = _descriptions_of(encoder)
    for _, data in descriptions:
        if (vocabulary := vocabulary_of(data)) is not None:
            return MoleculeReader(vocabulary, MoleculeReader.repairs(data), is_canonical(encoder))
    card, *_, config = (file for file, _ in descriptions)
    raise ValueError(
        f"encoder {encoder} reads atom types, and neither {card} nor {config} says which number is which type; name "
        "the encoder inside the run folder of its training, or one that reads no atom types"
    )


def vocabulary_for(chosen: Mapping[str, Any] | str | None, features: str) -> AtomVocabulary | None:
    """The atom types that a pretrained encoder knows by number; ``None`` if it reads none, or is not pretrained.

    Raises:
        ValueError: if it was trained on other features, or nothing says which atom types its numbers mean.
    """
    if not isinstance(chosen, str):
        return None
    from tg_lpe.encoders.registry import load_encoder

    reads = load_encoder(chosen).reads & {"x", "edge_attr"}
    if not reads:
        return None
    trained = next((data for _, data in _descriptions_of(chosen) if data.get("bond_types") is not None), {})
    if trained and (before := features_of(trained)) != features:
        raise ValueError(f"encoder {chosen} was trained with --features {before}, got --features {features}")
    return reader_of(chosen).vocabulary if "x" in reads and features == "types" else None


def is_canonical(encoder: str) -> bool:
    """Whether the card of an encoder, or the run folder around it, says that rings were kekulised canonically."""
    return any(data.get("canonical") is True for _, data in _descriptions_of(encoder))


def vocabulary_of(data: Mapping[str, Any]) -> AtomVocabulary | None:
    """The atom types by number of the molecules that a run or a card describes; ``None`` if it has none."""
    from tg_lpe.datasets.molecules import AtomVocabulary

    return AtomVocabulary(tuple(data["atom_types"])) if data.get("atom_types") else None


def features_of(data: Mapping[str, Any]) -> str | None:
    """The ``--features`` of the molecules that a run or a card describes; ``None`` if it describes none."""
    bond_types = data.get("bond_types")
    return None if bond_types is None else "types" if bond_types else "ogb"


def _descriptions_of(encoder: str) -> list[tuple[Path, Mapping[str, Any]]]:
    """The files that may describe the data that an encoder was trained on, and what they say of it."""
    from tg_lpe.hub.checkpoints import DESCRIPTION, find_folder
    from tg_lpe.hub.files import read_object
    from tg_lpe.training.run_folder import RunFolder

    folder = Path(encoder).resolve() if os.path.isdir(encoder) else find_folder(encoder)
    files = folder / DESCRIPTION, RunFolder(folder).config, RunFolder(folder.parent).config
    return [(file, read_object(file).get("data", {}) if file.is_file() else {}) for file in files]
