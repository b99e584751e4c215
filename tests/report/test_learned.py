"""What encoders say that they have learned, against the encodings that they compute; and its pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import Graph, few, graphs, randomize_
from hypothesis import given
from hypothesis import strategies as st

from tg_lpe import GramTransformer, Incidence
from tg_lpe.encoders import ENCODERS, Encoder, make_encoder
from tg_lpe.hub.files import load_tensors
from tg_lpe.report import learned_pictures, read_run, write_report
from tg_lpe.training import KernelPretrainConfig, KernelPretraining, TrainConfig, build_model, task_for, train
from tg_lpe.training.loop import run_in_folder
from tg_lpe.training.run_folder import RunFolder


@few
@given(graph=graphs(min_nodes=1), basis=st.sampled_from(["power", "chebyshev"]))
def test_responses_and_conductances_give_the_encoding(graph: Graph, basis: str) -> None:
    """The channels are sums over filters of ``r(S)``, with ``S`` made from the conductances that the tables say."""
    encoder = GramTransformer(
        3, 2, num_filters=2, num_layers=5, basis=basis, probes="identity",
        num_edge_types=4, num_node_types=3,
    )  # fmt: skip
    randomize_(encoder).double()
    tables = {table.title: table for table in encoder.learned()}
    conductance, ground = (
        tables[name].values.numpy() for name in ("conductance of edges", "ground conductance of nodes")
    )
    x, kinds = torch.arange(graph.num_nodes) % 3, torch.arange(len(graph.edges)) % 4
    incidence = Incidence(graph.edge_index(), graph.num_nodes)
    with torch.no_grad():
        node, edge = encoder.encode(incidence, x, kinds)
    expected = np.zeros((2, graph.num_nodes, graph.num_nodes, 3)), np.zeros((2, graph.num_nodes, graph.num_nodes, 2))
    for number in range(2):
        own = Graph(graph.num_nodes, graph.edges, [float(conductance[kind, number]) for kind in kinds])
        laplacian = own.laplacian() + np.diag(ground[x.numpy(), number])
        scale = 1 / np.sqrt(np.diag(laplacian))
        eigenvalues, vectors = np.linalg.eigh(scale[:, None] * laplacian * scale[None])
        for level, name in enumerate(("response at nodes", "response at edges")):
            table = tables[name]
            for channel in range(table.values.size(2)):
                # A polynomial of degree 5 through 101 points, read between them.
                values = table.values[:, number, channel].numpy()
                series = np.polynomial.Chebyshev.fit(table.rows.numpy(), values, 5, domain=[0, 2])
                expected[level][number, :, :, channel] = (vectors * series(eigenvalues)) @ vectors.T
    got = node.numpy() - encoder.readout.bias.detach().numpy()
    np.testing.assert_allclose(got, np.einsum("fiic->ic", expected[0]), atol=1e-7, rtol=1e-6)
    u, v = graph.edge_index().numpy()
    np.testing.assert_allclose(edge.numpy(), expected[1].sum(0)[u, v], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "titles"),
    [
        ({}, ["ground conductance of nodes"]),
        ({"conductances": "fixed"}, []),
        ({"edge_dim": 3, "in_channels": 2}, []),
        ({"num_edge_types": (2, 3), "num_node_types": (4, 5)}, []),
        ({"num_edge_types": 2, "conductances": "ground"}, ["ground conductance of nodes"]),
        ({"out_channels": 2, "edge_out_channels": 0}, ["ground conductance of nodes", "response at nodes"]),
    ],
    ids=str,
)
def test_what_is_told(options: dict[str, object], titles: list[str]) -> None:
    assert [table.title for table in GramTransformer(**options).learned()] == titles  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ENCODERS)
def test_tables_of_every_encoder_are_well_formed(name: str) -> None:
    encoder: Encoder = make_encoder({"class": name})
    for table in encoder.learned():
        assert table.over in ("edge_attr", "x", "eigenvalue")
        assert table.values.shape[:2] == (table.rows.numel(), len(table.columns))
        assert not table.values.requires_grad and bool((table.rows.diff() > 0).all())


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A pretraining, and a training that goes on from it."""
    pytest.importorskip("rdkit")
    from tg_lpe.datasets.molecules import load_molecules

    molecules = [f"{'C' * n}{end}" for n in range(2, 9) for end in ("O", "C#N", "C(=O)O")]
    (tmp_path / "own.csv").write_text("smiles,y\n" + "\n".join(f"{s},{len(s)}.5" for s in molecules), encoding="utf-8")
    splits = load_molecules(tmp_path / "own.csv", cache_dir=tmp_path, progress=False)
    config = KernelPretrainConfig(kernels=("resistance",), epochs=1, read_features=True)
    sizes = {name: size for name, size in splits.spec.to_dict().items() if name in ("num_node_types", "num_edge_types")}
    encoder = GramTransformer(1, 1, num_filters=2, num_layers=3, **sizes)
    pretraining = RunFolder(tmp_path / "pretraining")
    settings = {"encoder": encoder.config_dict(), "loop": config.to_dict(), "data": splits.describe()}
    run_in_folder(
        lambda: KernelPretraining(config, encoder, splits, pretraining, progress=False),
        pretraining,
        "pretrain-kernels",
        settings,
        False,
    )
    task = task_for(splits)
    model = build_model(splits.spec, task, pretraining.path / "encoder", hidden_channels=8, num_layers=1)
    train(model, splits, task, TrainConfig(epochs=1), folder=tmp_path / "training", progress=False)
    return pretraining.path, tmp_path / "training"


def test_before_and_after_are_those_of_the_run(folders: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pretraining, training = folders
    start = load_tensors(training / "initial.safetensors")[0]
    trained = load_tensors(pretraining / "model.safetensors")[0]
    assert set(start) == set(trained) and all(torch.equal(start[name], trained[name]) for name in start)
    for folder in folders:
        pictures = learned_pictures(read_run(folder), "run")
        captions = [caption for _, caption in pictures]
        assert [caption.split(",")[0].split(" to the")[0] for caption in captions] == [
            "Conductance of edges", "Ground conductance of nodes", "Response at nodes", "Response at edges",
        ]  # fmt: skip
        assert all("Grey: before training" in caption for caption in captions)
        assert "TRIPLE" in pictures[0][0] and "NONE" not in pictures[0][0] and "N" in pictures[1][0]
    page = write_report(folders, tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<h2>What was learned</h2>") == 1 and page.count('class="wide"') == 8
    (training / "initial.safetensors").unlink()
    assert not any("Grey" in caption for _, caption in learned_pictures(read_run(training), "run"))
    (training / "model.safetensors").unlink()
    assert learned_pictures(read_run(training), "run") == []
