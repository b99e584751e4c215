"""Pictures: every atom, bond, node and edge has the colour of its value; layouts against distances in the graph."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import corner_cases, few, graphs
from hypothesis import given
from torch_geometric.data import Data

from tg_lpe import GramTransformer, plot, zoo
from tg_lpe.cli import main
from tg_lpe.encoders import Encoder, LaplacianEigenvectors, RandomWalk, load_encoder
from tg_lpe.plot.picture import MIDDLE, NEGATIVE, POSITIVE, Colour, colour

SVG = "{http://www.w3.org/2000/svg}"
PNG = b"\x89PNG\r\n\x1a\n"
CAFFEINE = "CN1C=NC2=C1C(=O)N(C(=O)N2C)C"


def test_colours_are_centred_at_zero() -> None:
    assert colour(0.0, 3.0) == MIDDLE and colour(float("nan"), 3.0) == MIDDLE
    assert colour(3.0, 3.0) == pytest.approx(POSITIVE) and colour(-3.0, 3.0) == pytest.approx(NEGATIVE)
    half = colour(1.5, 3.0)
    assert half == pytest.approx([(m + p) / 2 for m, p in zip(MIDDLE, POSITIVE, strict=True)])


def hexadecimal(rgb: Colour) -> str:
    return "#" + "".join(f"{int(part * 255):02X}" for part in rgb)


def distance(first: str, second: str) -> int:
    return max(abs(int(first[i : i + 2], 16) - int(second[i : i + 2], 16)) for i in (1, 3, 5))


def test_the_background_is_white_everywhere() -> None:
    """Black titles are not seen where the background is transparent and the page dark."""
    pytest.importorskip("rdkit")
    image = pytest.importorskip("PIL.Image")
    picture = plot.molecule("CCO", RandomWalk(steps=4), channels=[0, 1], columns=1)
    assert image.open(io.BytesIO(picture.png)).convert("RGBA").getextrema()[3] == (255, 255)
    box = next(part for part in ET.fromstring(picture.svg).iter(f"{SVG}rect") if "#FFFFFF" in part.get("style", ""))
    assert float(box.get("y", "nan")) == 0.0


def test_atoms_and_bonds_have_the_colours_of_their_values() -> None:
    pytest.importorskip("rdkit")
    from tg_lpe.datasets.molecules import AtomVocabulary, smiles_to_data

    encoder = RandomWalk(steps=4)
    picture = plot.molecule(CAFFEINE, encoder, channels=[3])
    data = smiles_to_data(CAFFEINE, AtomVocabulary(("C", "N", "O")))
    encoding = encoder(None, data.edge_index, num_nodes=data.num_nodes)
    node = encoding.node[:, 3]
    found: dict[int, str] = {}
    for element in ET.fromstring(picture.svg).iter():
        classes = re.findall(r"^atom-(\d+)$", element.get("class", ""))
        fill = re.search(r"fill:(#[0-9A-F]{6})", element.get("style", ""))
        if classes and fill and element.tag == f"{SVG}ellipse":
            found[int(classes[0])] = fill[1]
    assert sorted(found) == list(range(data.num_nodes))
    for number, shown in found.items():
        expected = hexadecimal(colour(float(node[number]), float(node.abs().max())))
        assert distance(shown, expected) <= 2, (number, shown, expected)
    assert encoding.edge is not None
    (u, v), value = data.edge_index[:, 0].tolist(), float(encoding.edge[0, 3])
    expected = hexadecimal(colour(value, float(encoding.edge[:, 3].abs().max())))
    lines = re.findall(
        rf"class='bond-\d+ atom-{min(u, v)} atom-{max(u, v)}'[^>]*style='[^']*?(#[0-9A-F]{{6}})", picture.svg
    )
    assert any(distance(shown, expected) <= 2 for shown in lines), (lines, expected)


@pytest.mark.parametrize("smiles", ["C", CAFFEINE, "CC(=O)[O-].[NH4+]", "c1ccccc1"])
@pytest.mark.parametrize("name", ["gram-k8", "eigen-k8", "gram-zinc"])
def test_every_molecule_is_drawn(smiles: str, name: str, tmp_path: Path) -> None:
    """Nodes alone, nodes and edges, an encoder that reads atom types; one atom, several components."""
    pytest.importorskip("rdkit")
    vocabulary = zoo.load("transformer-zinc").reader.vocabulary if name == "gram-zinc" else None
    if smiles.startswith("CC(=O)[O-]"):
        smiles = "CC(=O)[O-].C[NH3+]"
    picture = plot.molecule(smiles, load_encoder(name), vocabulary=vocabulary, channels=[0, 2, 5, 7])
    assert picture.channels == (0, 2, 5, 7) and picture._repr_png_().startswith(PNG)
    ET.fromstring(picture.svg)
    assert picture.save(tmp_path / "a.svg").read_text() == picture.svg
    assert picture.save(tmp_path / "a.png").read_bytes().startswith(PNG)
    with pytest.raises(ValueError, match=r"must end in .svg or .png"):
        picture.save(tmp_path / "a.pdf")


def test_refusals(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    walk = RandomWalk(steps=3)
    for channels in ([3], [-1], [], ["0"]):
        with pytest.raises(ValueError, match="channels must"):
            plot.molecule("CCO", walk, channels=channels)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unusable SMILES 'C1CC'"):
        plot.molecule("C1CC", walk)
    with pytest.raises(ValueError, match="vocabulary must say"):
        plot.molecule("CCO", GramTransformer(num_node_types=3))
    with pytest.raises(ValueError, match="columns must be at least 1"):
        plot.molecule("CCO", walk, columns=0)
    with pytest.raises(TypeError, match="a graph must be Data"):
        plot.graph("CCO", walk)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no nodes"):
        plot.graph(Data(edge_index=torch.zeros(2, 0, dtype=torch.int64), num_nodes=0), walk)


@pytest.mark.parametrize(
    "encoder", [RandomWalk(steps=2), LaplacianEigenvectors(k=2), load_encoder("heat-k8")], ids=repr
)
def test_every_graph_is_drawn(encoder: Encoder) -> None:
    pytest.importorskip("matplotlib")
    for graph in corner_cases():
        if graph.num_nodes:
            picture = plot.graph(
                Data(edge_index=graph.both_ways()[0], num_nodes=graph.num_nodes), encoder, channels=[1]
            )
            ET.fromstring(picture.svg)
            assert picture.png.startswith(PNG)


def test_a_graph_gives_the_same_file_again() -> None:
    pytest.importorskip("matplotlib")
    edges = torch.tensor(list(nx.barbell_graph(4, 2).edges)).T
    first, second = (plot.graph(Data(edge_index=edges, num_nodes=10), RandomWalk(steps=2)).svg for _ in range(2))
    assert first == second


@few
@given(graph=graphs(min_nodes=1))
def test_layouts_are_finite_and_distinct(graph) -> None:  # type: ignore[no-untyped-def]
    at = plot.stress_layout(graph.edge_index(), graph.num_nodes)
    assert at.shape == (graph.num_nodes, 2) and bool(at.isfinite().all())
    apart = torch.cdist(at, at) + torch.eye(graph.num_nodes) * 9
    assert float(apart.min()) > 0.05 if graph.num_nodes > 1 else True


@pytest.mark.parametrize(
    "graph", [nx.path_graph(7), nx.cycle_graph(8), nx.grid_2d_graph(4, 5)], ids=["path", "ring", "grid"]
)
def test_distances_of_the_layout_follow_those_in_the_graph(graph: nx.Graph) -> None:
    graph = nx.convert_node_labels_to_integers(graph)
    n = graph.number_of_nodes()
    at = plot.stress_layout(torch.tensor(list(graph.edges)).T, n)
    expected = torch.tensor(nx.floyd_warshall_numpy(graph))
    stress = ((torch.cdist(at, at) - expected) / expected.clamp(min=1)).square().sum() / (n * (n - 1))
    placed = nx.kamada_kawai_layout(graph)
    theirs = torch.tensor([placed[node].tolist() for node in range(n)])
    lengths = torch.cdist(theirs, theirs)
    lengths *= (lengths * expected / expected.clamp(min=1) ** 2).sum() / (
        lengths / expected.clamp(min=1)
    ).square().sum()
    reference = ((lengths - expected) / expected.clamp(min=1)).square().sum() / (n * (n - 1))
    assert float(stress) < 1.1 * float(reference) + 1e-3


def test_the_encoder_of_a_run_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rdkit")
    (tmp_path / "own.csv").write_text("smiles,y\n" + "".join(f"{'C' * n}O,{n}.5\n" for n in range(1, 12)))
    run, other = str(tmp_path / "run"), str(tmp_path / "none")
    train = ["train", str(tmp_path / "own.csv"), "--target", "y", "--epochs", "1", "--model.hidden_channels", "8"]
    train += ["--quiet", "--cache", str(tmp_path)]
    assert main([*train, "--encoder.out_channels", "3", "--encoder.num_layers", "2", "--out", run]) == 0
    assert main([*train, "--encoder", "none", "--out", other]) == 0
    zoo.load(run).save(tmp_path / "saved")
    pictures = []
    for number, name in enumerate((run, str(tmp_path / "saved"))):
        pictures.append(tmp_path / f"{number}.svg")
        assert main(["show", "CCO", "--encoder", name, "--channels", "2", "--out", str(pictures[-1])]) == 0
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    assert main(["show", "CCO", "--encoder", "transformer-zinc", "--channels", "0", "--out", str(pictures[0])]) == 0
    capsys.readouterr()
    assert main(["show", "CCO", "--encoder", other]) == 1
    assert f"{other} holds a model without an encoder" in capsys.readouterr().err


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rdkit")
    out = tmp_path / "a.png"
    common = ["show", "CCO", "--out", str(out)]
    assert main(common) == 0 and capsys.readouterr().out == f"CCO: {out}\n"
    for more in (
        ["--encoder", "heat-k8", "--channels", "7"],
        ["--pretrained", "gram-zinc"],
        ["--encoder", "LaplacianEigenvectors", "--encoder.k", "2"],
    ):
        assert main([*common, *more]) == 0 and out.read_bytes().startswith(PNG)
    for more, said in (
        (["--encoder", "GramTransformer"], "has weights to learn"),
        (["--encoder", "none"], "encodes nothing"),
        (["--channels", "16"], "channels must be numbers in 0..15"),
        (["--out", "a.pdf"], "--out must end in .svg or .png"),
    ):
        capsys.readouterr()
        assert main([*common, *more]) == 1
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


@pytest.mark.parametrize("wrong", ["gram-k8", 3, None])
def test_what_is_no_encoder(wrong: Any) -> None:
    ring = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3)
    got = repr(wrong) if isinstance(wrong, str) else type(wrong).__name__
    for draw in (lambda: plot.graph(ring, wrong), lambda: plot.molecule("CCO", wrong)):
        with pytest.raises(TypeError, match=rf"encoder must be an Encoder, such as .*, got {got}"):
            draw()


def test_channels_are_any_integers() -> None:
    ring = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3)
    assert plot.graph(ring, RandomWalk(4), channels=np.arange(2)).channels == (0, 1)  # type: ignore[arg-type]
