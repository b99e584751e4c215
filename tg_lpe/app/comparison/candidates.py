"""Encodings of a comparison: by name, from a file, or your own."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tg_lpe.app.training.run_folder import checkpoint_label
from tg_lpe.arguments import check_flags, check_options, check_positive
from tg_lpe.checkpoints import zoo
from tg_lpe.checkpoints.checkpoint import Checkpoint
from tg_lpe.checkpoints.files import read_yaml
from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.registry import ENCODERS, register

FILES = (".yaml", ".yml")
KEYS = ("encoder", "pretrained", "encoder_lr", "edge_encoding", "model")


@dataclass(frozen=True)
class Candidate:
    """One row of a comparison: an encoding, and how the trainings use it.

    Args:
        encoder: the encoder, as in :func:`~tg_lpe.app.training.build_model`: ``None``; a dictionary with ``"class"``
            and arguments; an object; or a pretrained encoder by name, folder or open checkpoint. Each training gets a
            copy.
        encoder_lr: peak learning rate of the encoder, 0 to keep its weights; that of the budget if absent.
        edge_encoding: whether the model uses the edge encoding, if there is one.
        model: model arguments that only this row needs. For example, an encoding of node pairs needs an attention that
            reads it: ``{"attention": "pairs"}``.

    Raises:
        ValueError: if an option is out of range.
    """

    encoder: Encoder | Mapping[str, Any] | str | Path | Checkpoint | None = None
    encoder_lr: float | None = None
    edge_encoding: bool = True
    model: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_flags(edge_encoding=self.edge_encoding)
        check_options("model", self.model)
        if self.encoder_lr is not None:
            check_positive("encoder_lr", self.encoder_lr, or_zero=True)

    @property
    def pretrained(self) -> str | None:
        """Name or folder of the encoder's checkpoint; ``None`` if it is not pretrained."""
        if isinstance(self.encoder, Checkpoint):
            return self.encoder.name
        return str(self.encoder) if isinstance(self.encoder, str | Path) else None


WALKS = {"class": "RandomWalk", "steps": 16}

ENCODINGS: dict[str, Candidate] = {
    "none": Candidate(),
    "eigenvectors": Candidate({"class": "LaplacianEigenvectors", "k": 6}),
    "walks": Candidate(WALKS),
    "whitened-walks": Candidate({"class": "Whitened", "encoder": WALKS}),
    "gram-k16": Candidate("gram-k16", encoder_lr=0, edge_encoding=False),
    "universal-k32": Candidate("universal-k32", encoder_lr=0, edge_encoding=False),
    "positions": Candidate({"class": "Positions", "k": 8}),
    "GramTransformer": Candidate({"class": "GramTransformer", "out_channels": 16, "edge_out_channels": 8}),
}
"""Default rows of a comparison."""


def candidates_of(encodings: Mapping[str, Any] | Sequence[Any] | None = None) -> dict[str, Candidate]:
    """Return the rows of a comparison by name.

    Args:
        encodings: a sequence of entries, or a mapping from names of your choice to entries; all of :data:`ENCODINGS` if
            absent. An entry is

            - a name in :data:`ENCODINGS`;
            - an encoder class or its name, such as ``"HeatKernel"``, for its default arguments; an encoder; or a
              dictionary with ``"class"`` and arguments;
            - the name or folder of a pretrained encoder, which is frozen;
            - a YAML file with ``encoder`` (``class`` and arguments) or ``pretrained``, and optionally ``encoder_lr``,
              ``edge_encoding`` and ``model``, as for ``tg-lpe train --config``;
            - a :class:`Candidate`.

    Raises:
        TypeError: if an entry is of another kind.
        ValueError: if an entry is unknown, a file has another format, two entries have one name, or there are none.
    """
    if encodings is None:
        return dict(ENCODINGS)
    if isinstance(encodings, str) or not isinstance(encodings, Mapping | Sequence):
        raise TypeError(f"encodings must be a sequence or a mapping from names, got {encodings!r}")
    if isinstance(encodings, Mapping):
        candidates = {str(name): _candidate(entry) for name, entry in encodings.items()}
    else:
        candidates = {}
        for entry in encodings:
            candidate = _candidate(entry)
            name = _name(entry, candidate)
            if name in candidates:
                raise ValueError(f"two encodings are called {name!r}: name them, as in encodings={{'first': ..., ...}}")
            candidates[name] = candidate
    if not candidates:
        raise ValueError("encodings must have at least one entry, got none")
    return candidates


def _candidate(entry: Any) -> Candidate:
    if isinstance(entry, Candidate):
        return entry
    if isinstance(entry, type) and issubclass(entry, Encoder):
        return Candidate({"class": register(entry).__name__})
    if isinstance(entry, Encoder):
        register(type(entry))
        return Candidate(entry)
    if entry is None or isinstance(entry, Mapping | Checkpoint):
        return Candidate(entry)
    if not isinstance(entry, str | Path):
        raise TypeError(f"an encoding must be a name, a file, a class, an encoder or a Candidate, got {entry!r}")
    text = str(entry)
    if text in ENCODINGS:
        return ENCODINGS[text]
    if text.endswith(FILES):
        content = read_yaml(Path(text))
        if not isinstance(content, dict) or not set(content) <= set(KEYS) or len({*KEYS[:2]} & set(content)) != 1:
            raise ValueError(f"{text} must hold encoder or pretrained, and optionally {KEYS[2:]}; got {content!r}")
        encoder = content.pop("encoder", None)
        if "pretrained" in content:
            encoder = _encoder_in(str(content.pop("pretrained")))
        elif isinstance(encoder, str):
            encoder = None if encoder == "none" else {"class": encoder}
        return Candidate(encoder, **content)
    if text in ENCODERS:
        return Candidate({"class": text})
    if text not in zoo.names() and not Path(text).is_dir():
        near = difflib.get_close_matches(text, [*ENCODINGS, *ENCODERS, *zoo.names()], n=1)
        names = f"{', '.join(ENCODINGS)}; a class: {', '.join(ENCODERS)}; a checkpoint of tg-lpe zoo, or its folder"
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"an encoding is one of {names}; or a file {' or '.join(FILES)}; got {text!r}{hint}")
    return Candidate(_encoder_in(text), encoder_lr=0)


def _encoder_in(name: str) -> Checkpoint:
    checkpoint = Checkpoint.open(name)
    if checkpoint.is_model:
        raise ValueError(f"an encoding must be an encoder, but {name} is a trained model")
    return checkpoint.encoder


def _name(entry: Any, candidate: Candidate) -> str:
    """Return the default name of an entry."""
    if isinstance(entry, str | Path) and (str(entry) in ENCODINGS or str(entry).endswith(FILES)):
        return Path(entry).stem if str(entry).endswith(FILES) else str(entry)
    if candidate.pretrained is not None:
        return checkpoint_label(candidate.pretrained)
    if candidate.encoder is None:
        return "none"
    if isinstance(candidate.encoder, Mapping):
        return str(candidate.encoder.get("class"))
    return type(candidate.encoder).__name__
