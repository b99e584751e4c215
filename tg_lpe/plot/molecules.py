"""A molecule, drawn once for each channel of an encoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tg_lpe.encoders.base import Encoder
from tg_lpe.plot.picture import Channel, Picture, channels_of, check_encoder_to_draw, colour

if TYPE_CHECKING:
    from tg_lpe.datasets.molecules import AtomVocabulary

PANEL = (300, 220)
TITLE, BAR = 26, 24
"""Pixels: a drawing; above it the title, and below it a bar for the atoms and one for the bonds."""

TEXT, RADIUS = 14, 0.38
"""Height of letters in pixels, and radius of the disc behind an atom, in RDKit's units."""


def molecule(
    smiles: str,
    encoder: Encoder,
    *,
    vocabulary: AtomVocabulary | None = None,
    canonical: bool = False,
    channels: Sequence[int] | None = None,
    columns: int = 3,
) -> Picture:
    """Draw a molecule once for each channel: atoms, and bonds where the encoder encodes edges, have its colours.

    Colours run from blue (negative) over light grey (zero) to orange (positive), with a scale for each drawing: the
    bars below it say what the ends stand for.

    Args:
        smiles: the molecule.
        encoder: any encoder, such as ``load_encoder("gram-k8")`` or the ``encoder`` of a model.
        vocabulary: atom types by number, for an encoder that reads them, such as ``zoo.load(...).reader.vocabulary``.
        canonical: whether rings are kekulised as in canonical SMILES, for an encoder that was trained so.
        channels: numbers of channels, from 0; the first six if absent.
        columns: drawings in a row.

    Raises:
        TypeError: if ``encoder`` is no encoder.
        ValueError: if the SMILES cannot be read, the encoder has no such channel, or it reads atom types and nothing
            says which number means which.
        ModuleNotFoundError: if RDKit is not installed.
    """
    from tg_lpe.datasets.molecules import AtomVocabulary, _molecule, smiles_to_data

    check_encoder_to_draw(encoder)
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    if vocabulary is None:
        if "x" in encoder.reads:
            raise ValueError(
                f"this {type(encoder).__name__} reads atom types: vocabulary must say which number means which type"
            )
        try:
            types = _molecule.graph(_molecule.parse(smiles), canonical).atom_types
        except ValueError as error:
            raise ValueError(f"unusable SMILES {smiles!r}: {error}") from error
        vocabulary = AtomVocabulary.from_counts(Counter(types))
    data = smiles_to_data(smiles, vocabulary, canonical)
    shown = channels_of(encoder, data.edge_index, data.num_nodes, data.x, data.edge_attr, None, channels)
    drawn = _molecule.parse(smiles)
    from rdkit.Chem.Draw import rdMolDraw2D

    def svg() -> str:
        return str(_draw(rdMolDraw2D.MolDraw2DSVG, drawn, data.edge_index, shown, columns, 1))

    def png() -> bytes:
        return bytes(_draw(rdMolDraw2D.MolDraw2DCairo, drawn, data.edge_index, shown, columns, 2))

    return Picture(svg(), tuple(channel.number for channel in shown), png)


def _draw(drawer_class: Any, drawn: Any, edge_index: Tensor, shown: list[Channel], columns: int, scale: int) -> Any:
    """The picture as RDKit's drawer returns it, ``scale`` times as large in pixels."""
    from rdkit.Chem.Draw import rdMolDraw2D

    columns = min(columns, len(shown))
    height = PANEL[1] + TITLE + BAR * max(len(channel.limits) for channel in shown)
    rows = -(-len(shown) // columns)
    drawer = drawer_class(PANEL[0] * columns * scale, height * rows * scale, PANEL[0] * scale, PANEL[1] * scale)
    options = drawer.drawOptions()
    options.useBWAtomPalette()
    options.padding = 0.08
    options.includeMetadata = False
    drawer.ClearDrawing()  # here, as RDKit's own would leave the first row of titles transparent
    options.clearBackground = False
    for place, channel in enumerate(shown):
        left, top = place % columns * PANEL[0], place // columns * height
        atoms = {} if channel.node is None else _colours(channel.node.tolist(), channel.limits["nodes"])
        bonds: dict[int, Any] = {}
        if channel.edge is not None:
            for (tail, head), value in zip(edge_index.t().tolist(), channel.edge.tolist(), strict=True):
                bonds[drawn.GetBondBetweenAtoms(tail, head).GetIdx()] = colour(value, channel.limits["edges"])
        drawer.SetOffset(left * scale, (top + TITLE) * scale)
        rdMolDraw2D.PrepareAndDrawMolecule(
            drawer,
            drawn,
            highlightAtoms=list(atoms),
            highlightBonds=list(bonds),
            highlightAtomColors=atoms,
            highlightBondColors=bonds,
            highlightAtomRadii=dict.fromkeys(atoms, RADIUS),
        )
        drawer.SetOffset(0, 0)
        _text(drawer, f"channel {channel.number}", left + PANEL[0] / 2, top + TITLE / 2, scale)
        for number, (what, largest) in enumerate(channel.limits.items()):
            middle = top + TITLE + PANEL[1] + (number + 0.3) * BAR
            _bar(drawer, {"nodes": "atoms", "edges": "bonds"}[what], largest, left, middle, scale)
    drawer.FinishDrawing()
    return drawer.GetDrawingText()


def _colours(values: list[float], largest: float) -> dict[int, Any]:
    return {number: colour(value, largest) for number, value in enumerate(values)}


def _text(drawer: Any, text: str, x: float, y: float, scale: int) -> None:
    from rdkit.Geometry import Point2D

    drawer.SetFontSize(TEXT * scale)
    drawer.SetColour((0.0, 0.0, 0.0))
    drawer.DrawString(text, Point2D(x * scale, y * scale), rawCoords=True)


def _bar(drawer: Any, what: str, largest: float, left: float, middle: float, scale: int) -> None:
    """A bar of colours with the values of its ends."""
    from rdkit.Geometry import Point2D

    start, width, steps = left + 120, 110, 55
    for step in range(steps):
        drawer.SetColour(colour((2 * step + 1) / steps - 1, 1.0))
        x = start + width * step / steps  # each over the rest of the former, so that there are no gaps
        corners = (Point2D(x * scale, (middle - 6) * scale), Point2D((start + width) * scale, (middle + 6) * scale))
        drawer.DrawRect(*corners, rawCoords=True)
    _text(drawer, what, left + 38, middle, scale)
    _text(drawer, f"{-largest:.2g}", start - 28, middle, scale)
    _text(drawer, f"{largest:.2g}", start + width + 26, middle, scale)
