"""Pictures: every atom, bond, node and edge has the colour of its value; layouts against distances in the graph."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from helpers import corner_cases, few, graphs, refusals
from hypothesis import given
from torch_geometric.data import Data

from tg_lpe import GramTransformer, plot, zoo
from tg_lpe.encoders import Encoder, LaplacianEigenvectors, RandomWalk, load_encoder

SVG = "{http://www.w3.org/2000/svg}"
PNG = b"\x89PNG\r\n\x1a\n"
CAFFEINE = "CN1C=NC2=C1C(=O)N(C(=O)N2C)C"
WALK = RandomWalk(steps=3)
RING = Data(edge_index=torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]]), num_nodes=3)


def assert_colour(shown: str, value: float, largest: float) -> None:
    """Check that ``#RRGGBB`` lies between grey, for zero, and the colour of the sign."""
    end = plot.POSITIVE if value > 0 else plot.NEGATIVE
    for place, (middle, extreme) in enumerate(zip(plot.MIDDLE, end, strict=True)):
        expected = 255 * (middle + abs(value / largest) * (extreme - middle))
        assert abs(int(shown[1 + 2 * place : 3 + 2 * place], 16) - expected) <= 2, (shown, value, largest)


def test_the_background_is_white_everywhere() -> None:
    """Otherwise black titles would be invisible on dark pages."""
    pytest.importorskip("rdkit")
    image = pytest.importorskip("PIL.Image")
    picture = plot.molecule("CCO", RandomWalk(steps=4), channels=[0, 1], columns=1)
    assert image.open(io.BytesIO(picture.png)).convert("RGBA").getextrema()[3] == (255, 255)
    box = next(part for part in ET.fromstring(picture.svg).iter(f"{SVG}rect") if "#FFFFFF" in part.get("style", ""))
    assert float(box.get("y", "nan")) == 0.0


@pytest.mark.parametrize("encoder", [RandomWalk(steps=4), LaplacianEigenvectors(k=4)], ids=["positive", "signed"])
def test_atoms_and_bonds_have_the_colours_of_their_values(encoder: Encoder) -> None:
    pytest.importorskip("rdkit")
    from tg_lpe.app.molecules import AtomVocabulary, smiles_to_data

    svg = plot.molecule(CAFFEINE, encoder, channels=[3]).svg
    data = smiles_to_data(CAFFEINE, AtomVocabulary(("C", "N", "O")))
    encoding = encoder(None, data.edge_index, num_nodes=data.num_nodes)
    node = encoding.node[:, 3]
    fills = dict(re.findall(r"<ellipse[^>]* class='atom-(\d+)' *style='fill:(#[0-9A-F]{6})", svg))
    assert sorted(map(int, fills)) == list(range(data.num_nodes))
    for number, value in enumerate(node.tolist()):
        assert_colour(fills[str(number)], value, float(node.abs().max()))
    if encoding.edge is not None:
        (u, v), value = sorted(data.edge_index[:, 0].tolist()), float(encoding.edge[0, 3])
        line = re.search(rf"class='bond-\d+ atom-{u} atom-{v}'[^>]*?style='[^']*?(#[0-9A-F]{{6}})", svg)
        assert line is not None
        assert_colour(line[1], value, float(encoding.edge[:, 3].abs().max()))


@pytest.mark.parametrize("smiles", ["C", CAFFEINE, "CC(=O)[O-].C[NH3+]", "c1ccccc1"])
@pytest.mark.parametrize("name", ["gram-k8", "positions-k16", "gram-zinc"])
def test_every_molecule_is_drawn(smiles: str, name: str, tmp_path: Path) -> None:
    """Nodes alone, nodes and edges, an encoder that reads atom types; one atom, several components."""
    pytest.importorskip("rdkit")
    vocabulary = zoo.load("transformer-zinc").reader.vocabulary if name == "gram-zinc" else None
    picture = plot.molecule(smiles, load_encoder(name), vocabulary=vocabulary, channels=[0, 2, 5, 7])
    assert picture.channels == (0, 2, 5, 7) and picture._repr_png_().startswith(PNG)
    ET.fromstring(picture.svg)
    assert picture.save(tmp_path / "a.svg").read_text() == picture.svg
    assert picture.save(tmp_path / "a.png").read_bytes().startswith(PNG)
    with pytest.raises(ValueError, match=r"\.svg or \.png"):
        picture.save(tmp_path / "a.pdf")


NOT_ENCODERS = (("gram-k8", "encoder.*'gram-k8'"), (3, "encoder.*int"), (None, "encoder.*NoneType"))
test_refused_molecules = pytest.mark.skipif(find_spec("rdkit") is None, reason="RDKit draws molecules")(
    refusals(
        lambda smiles="CCO", encoder=WALK, **options: plot.molecule(smiles, encoder, **options),
        *(({"channels": channels}, r"channels.*0\.\.2") for channels in ([3], [-1], [], ["0"])),
        (("C1CC",), "C1CC"),
        (("CCO", GramTransformer(num_node_types=3)), "vocabulary"),
        ((["CCO"],), TypeError, "one string, got list"),
        (("CCO", 3), TypeError, "encoder"),
    )
)
test_refused_graphs = refusals(
    lambda data=RING, encoder=WALK, **options: plot.graph(data, encoder, **options),
    ((Data(edge_index=torch.zeros(2, 0, dtype=torch.int64), num_nodes=0),), "no nodes"),
    ({"positions": torch.zeros(2, 2)}, "positions"),
    ((Data(edge_index=RING.edge_index, num_nodes=1001),), "1001"),
    ({"positions": [[0.0, 1.0]]}, TypeError, "must be"),
    ({"channels": 0}, TypeError, "must be"),
    ({"columns": 0}, "columns must"),
    (("CCO",), TypeError, "Data"),
    *(((RING, wrong), TypeError, named) for wrong, named in NOT_ENCODERS),
)


@pytest.mark.parametrize("encoder", [RandomWalk(steps=2), LaplacianEigenvectors(k=2)], ids=repr)
def test_every_graph_is_drawn(encoder: Encoder) -> None:
    pytest.importorskip("matplotlib")
    for case in corner_cases():
        if case.num_nodes:
            data = Data(edge_index=case.both_ways()[0], num_nodes=case.num_nodes)
            picture = plot.graph(data, encoder, channels=[1])
            ET.fromstring(picture.svg)
            assert picture.png.startswith(PNG)


@few
@given(graph=graphs(min_nodes=1))
def test_layouts_are_finite_and_distinct(graph) -> None:  # type: ignore[no-untyped-def]
    at = plot.stress_layout(graph.edge_index(), graph.num_nodes)
    assert at.shape == (graph.num_nodes, 2) and bool(at.isfinite().all())
    assert float((torch.cdist(at, at) + torch.eye(graph.num_nodes) * 9).min()) > 0.05
