"""Load the encoders that options name, with their readers of molecules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from tg_lpe.app.cli.options import chosen_encoder
from tg_lpe.checkpoints.checkpoint import Checkpoint
from tg_lpe.encoders.registry import load_encoder

if TYPE_CHECKING:
    from tg_lpe.app.molecules import AtomVocabulary, MoleculeReader


def encoder_to_train(args: Namespace) -> dict[str, Any] | Checkpoint | None:
    """Return the choice of ``--encoder`` or ``--pretrained`` for a training; refuse a trained model."""
    chosen = chosen_encoder(args)
    if not isinstance(chosen, str):
        return chosen
    checkpoint = Checkpoint.open(chosen)
    if checkpoint.is_model:
        hint = f": use --start {chosen}" if "start" in args else ""
        raise ValueError(f"--pretrained takes an encoder, but {chosen} is a trained model{hint}")
    return checkpoint.encoder


def reader_of(checkpoint: Checkpoint) -> MoleculeReader:
    """Return a reader of molecules as in the encoder's training, from its card or the run folder around it."""
    from tg_lpe.app.molecules import MoleculeReader

    for _, data in checkpoint.descriptions:
        if (vocabulary := vocabulary_of(data)) is not None:
            return MoleculeReader(vocabulary, bool(data.get("repair_radicals")), checkpoint.is_canonical)
    card, *_, config = (file for file, _ in checkpoint.descriptions)
    fault = f"encoder {checkpoint.name} reads atom types, but neither {card} nor {config} says how they are numbered"
    raise ValueError(f"{fault}; name the encoder in the run folder of its training, or one that reads no atom types")


def vocabulary_for(checkpoint: Checkpoint, features: str) -> AtomVocabulary | None:
    """Return the atom types that a pretrained encoder reads, by number; ``None`` if it reads none.

    Raises:
        ValueError: if the encoder was trained with other ``features``.
    """
    reads = load_encoder(checkpoint).reads & {"x", "edge_attr"}
    if not reads:
        return None
    trained = next((data for _, data in checkpoint.descriptions if data.get("bond_types") is not None), {})
    if trained and (before := features_of(trained)) != features:
        raise ValueError(f"encoder {checkpoint.name} was trained with --features {before}, got --features {features}")
    return reader_of(checkpoint).vocabulary if "x" in reads and features == "types" else None


def vocabulary_of(data: Mapping[str, Any]) -> AtomVocabulary | None:
    """Return the atom types by number that a run or a card describes; ``None`` if it describes none."""
    from tg_lpe.app.molecules import AtomVocabulary

    return AtomVocabulary(tuple(data["atom_types"])) if data.get("atom_types") else None


def features_of(data: Mapping[str, Any]) -> str | None:
    """Return the ``--features`` that a run or a card describes; ``None`` if it describes none."""
    bond_types = data.get("bond_types")
    return None if bond_types is None else "types" if bond_types else "ogb"
