"""Fixed encodings against PyG's transforms where those work, random signs, and the encoder that settings name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import randomize_, relative_error
from torch_geometric.data import Batch
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE

from tg_lpe import GramTransformer, LinearTransformer
from tg_lpe.cli import main
from tg_lpe.datasets.molecules import MoleculeSplits
from tg_lpe.hub.checkpoints import CheckpointMixin
from tg_lpe.hub.files import load_tensors
from tg_lpe.nn.pair_forms import pair_forms
from tg_lpe.report import read_run
from tg_lpe.training.config import TrainConfig
from tg_lpe.training.encodings import attach_encoding, build_encoder, edge_width, flip_signs
from tg_lpe.training.joint import build_model


def eigenvalues(edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    adjacency = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    adjacency[edge_index[0], edge_index[1]] = 1.0
    scale = adjacency.sum(0).rsqrt()
    return torch.linalg.eigvalsh(torch.eye(num_nodes) - scale * adjacency * scale.unsqueeze(-1))


def test_laplacian_is_pygs_up_to_sign(splits: MoleculeSplits) -> None:
    k, compared = 3, 0
    dataset = attach_encoding(TrainConfig(pe="laplacian", pe_dim=k), splits.train)
    transform = AddLaplacianEigenvectorPE(k, attr_name="theirs", is_undirected=True)
    for data, plain in zip(dataset, splits.train, strict=True):
        assert data.pe.dtype == torch.float32 and data.pe.shape == (plain.num_nodes, k)
        if plain.num_nodes <= k + 1:  # theirs needs ARPACK's k < n
            continue
        theirs = transform(plain).theirs
        values = eigenvalues(plain.edge_index, plain.num_nodes)
        for column in range(k):
            around = values[column : column + 3]  # the first is trivial
            gaps = around.diff()
            if gaps.min() < 1e-3 or (column + 2 == len(values)):  # the basis of a repeated one is anybody's choice
                continue
            ours, other = data.pe[:, column], theirs[:, column]
            assert min(relative_error(ours, other), relative_error(ours, -other)) < 1e-4
            compared += 1
    assert compared > 20


def test_random_walk_is_pygs(splits: MoleculeSplits) -> None:
    dataset = attach_encoding(TrainConfig(pe="random-walk", pe_dim=5), splits.train)
    transform = AddRandomWalkPE(5, attr_name="theirs")
    for data, plain in zip(dataset, splits.train, strict=True):
        assert relative_error(data.pe, transform(plain).theirs) < 1e-6


@pytest.mark.parametrize("pe", ["none", "linear-transformer"])
def test_other_encodings_attach_nothing(splits: MoleculeSplits, pe: str) -> None:
    assert attach_encoding(TrainConfig(pe=pe), splits.train) is splits.train


def test_the_dataset_is_left_alone(splits: MoleculeSplits) -> None:
    attach_encoding(TrainConfig(pe="laplacian"), splits.train)
    assert "pe" not in splits.train[0] and "pe" not in splits.train.slices


def test_flip_signs() -> None:
    batch = torch.arange(400).repeat_interleave(3)
    pe = torch.arange(1.0, 1 + 1200 * 4).view(1200, 4)
    flipped = flip_signs(pe, batch, 400, torch.Generator().manual_seed(0))
    signs = (flipped / pe).view(400, 3, 4)
    assert torch.equal(signs.abs(), torch.ones_like(signs)), "nothing but signs"
    assert torch.equal(signs, signs[:, :1].expand_as(signs)), "one per graph and column"
    ups = (signs[:, 0] > 0).double().mean(0)
    assert ((ups > 0.4) & (ups < 0.6)).all()
    correlation = torch.corrcoef(signs[:, 0].T) - torch.eye(4)
    assert correlation.abs().max() < 0.25, "columns flip independently"
    assert torch.equal(flipped, flip_signs(pe, batch, 400, torch.Generator().manual_seed(0)))
    assert not torch.equal(flipped, flip_signs(pe, batch, 400, torch.Generator().manual_seed(1)))


def test_edges_of_eigenvectors_forget_their_signs(splits: MoleculeSplits) -> None:
    config = TrainConfig(pe="laplacian", pe_dim=3, edge_pe=True)
    dataset = attach_encoding(config, splits.train)
    assert edge_width(config) == 6
    for data, plain in zip(dataset, splits.train, strict=True):
        assert torch.equal(data.edge_index, plain.edge_index)
        assert data.edge_pe.dtype == torch.float32 and data.edge_pe.shape == (plain.num_edges, 6)
        pe = data.pe.numpy()
        for (u, v), row in zip(plain.edge_index.T.tolist(), data.edge_pe.numpy(), strict=True):
            assert np.array_equal(row, np.concatenate([np.abs(pe[u] - pe[v]), pe[u] * pe[v]]))
    batch = Batch.from_data_list([dataset[i] for i in range(4)])
    flipped = flip_signs(batch.pe, batch.batch, 4, torch.Generator().manual_seed(0))
    assert not torch.equal(flipped, batch.pe)
    assert torch.equal(pair_forms(flipped, batch.edge_index), batch.edge_pe), "so it needs no flipping of its own"


def test_edges_of_random_walks(splits: MoleculeSplits) -> None:
    config = TrainConfig(pe="random-walk", pe_dim=5, edge_pe=True)
    assert edge_width(config) == 5
    for data in attach_encoding(config, splits.train):
        A = np.zeros((data.num_nodes, data.num_nodes))
        A[tuple(data.edge_index.numpy())] = 1.0
        P = A / np.sqrt(np.outer(A.sum(0), A.sum(0)))
        expected = [np.linalg.matrix_power(P, t)[tuple(data.edge_index.numpy())] for t in range(1, 6)]
        assert data.edge_pe.dtype == torch.float32 and relative_error(data.edge_pe, np.array(expected).T) < 1e-6


@pytest.mark.parametrize("pe", ["laplacian", "random-walk"])
def test_without_edges(splits: MoleculeSplits, pe: str) -> None:
    config = TrainConfig(pe=pe, edge_pe=False)
    dataset = attach_encoding(config, splits.train)
    assert edge_width(config) is None
    assert "edge_pe" not in dataset[0] and dataset[0].pe.size(1) == {"laplacian": 6, "random-walk": 16}[pe]
    model = build_model(TrainConfig(pe=pe, edge_pe=False, channels=8, num_layers=1), splits)
    assert model.edge_pe_embedding is None and model.pe_embedding is not None


def test_the_encoder_of_the_settings() -> None:
    fresh = build_encoder(TrainConfig(pe_dim=3, k=5, probes="learned"), 4, 3, max_nodes=9)
    assert isinstance(fresh, LinearTransformer)
    assert (fresh.k, fresh.out_channels, fresh.probes.rows.shape) == (5, 3, (9, 5))
    for pe in ("laplacian", "random-walk", "none"):
        assert build_encoder(TrainConfig(pe=pe), 4, 3, 9) is None
        assert edge_width(TrainConfig(pe="none")) is None is edge_width(TrainConfig())


def test_the_gram_encoder_of_the_settings() -> None:
    encoder = build_encoder(TrainConfig(probes="identity"), 4, 3, 9)
    assert isinstance(encoder, GramTransformer) and encoder.probe_kind == "identity"
    width = encoder.num_filters * encoder.num_layers
    assert (encoder.out_channels, encoder.edge_out_channels) == (width, width)
    assert encoder.conductances.edge.table.shape == (3, encoder.num_filters)
    assert encoder.conductances.ground.table.shape == (4, encoder.num_filters)
    settings = {"num_filters": 2, "encoder_layers": 3, "num_squarings": 1, "basis": "chebyshev", "pe_dim": 5}
    encoder = build_encoder(TrainConfig(probes="identity", **settings, end_features=True), 4, 3, 9)
    assert (encoder.num_filters, encoder.num_layers, encoder.num_squarings, encoder.basis) == (2, 3, 1, "chebyshev")
    assert (encoder.out_channels, encoder.edge_out_channels) == (5, 5) and encoder.conductances.ends.shape == (4, 2)
    for change, names in (
        ({"edge_pe": False}, {"conductances.edge.table", "conductances.ground.table"}),
        ({"ground": False}, {"conductances.edge.table"}),
        ({"conductances": "fixed"}, {"conductances.ground.table"}),
        ({"conductances": "fixed", "ground": False}, set()),
        ({"probes": "rademacher"}, {"conductances.edge.table", "conductances.ground.table"}),
        ({"probes": "auto"}, {"conductances.edge.table", "conductances.ground.table"}),
    ):
        encoder = build_encoder(TrainConfig(**change), 4, 3, 9)
        assert {name for name, _ in encoder.named_parameters()} == names
        assert encoder.probe_kind == change.get("probes", "identity")
        assert (encoder.edge_out_channels == 0) == (change.get("edge_pe") is False)
    shared = build_encoder(TrainConfig(conductances="fixed"), 4, 3, 9)
    assert shared.conductances.ground.table.shape == (1, shared.num_filters), "fixed, it reads no types"


SAVED = {
    "linear": LinearTransformer(k=4, out_channels=3),
    "gram": GramTransformer(3, 2, num_filters=2, num_layers=3, probes="auto", num_edge_types=3, num_node_types=4),
}


@pytest.mark.parametrize("probes", ["identity", "features"])
@pytest.mark.parametrize("kind", SAVED)
def test_a_pretrained_encoder_brings_its_own(tmp_path: Path, kind: str, probes: str) -> None:
    """Class, probes and width are the checkpoint's, whatever the settings say of a fresh one."""
    saved = randomize_(SAVED[kind])
    saved.save_pretrained(tmp_path)
    for pe_dim in (None, 3):
        loaded = build_encoder(TrainConfig(pe_dim=pe_dim, probes=probes, encoder=str(tmp_path)), 4, 3, 9)
        assert type(loaded) is type(saved) and loaded.training and loaded.probe_kind == saved.probe_kind
        assert all(torch.equal(value, saved.state_dict()[name]) for name, value in loaded.state_dict().items())
    with pytest.raises(ValueError, match="gives 3 channels, pe_dim is 6"):
        build_encoder(TrainConfig(pe_dim=6, probes=probes, encoder=str(tmp_path)), 4, 3, 9)


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (LinearTransformer(k=4, probes="features", num_node_types=9), "knows 9 node types, the data has 4"),
        (GramTransformer(3, num_node_types=9), "knows 9 node types, the data has 4"),
        (GramTransformer(3, num_edge_types=2, num_node_types=4), "knows 2 edge types, the data has 3"),
    ],
    ids=["features", "nodes", "edges"],
)
def test_an_encoder_of_other_types_is_refused(tmp_path: Path, saved: CheckpointMixin, message: str) -> None:
    saved.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        build_encoder(TrainConfig(encoder=str(tmp_path)), 4, 3, max_nodes=9)


@pytest.mark.parametrize("probes", ["auto", "identity"])
def test_training_on_from_a_gram_checkpoint(molecules: Path, tmp_path: Path, probes: str) -> None:
    """By the command line, whatever its probes are; the run says whose encoder it was."""
    encoder = GramTransformer(3, 2, num_filters=2, num_layers=3, probes=probes)
    encoder.save_pretrained(tmp_path / "encoder")
    threads = torch.get_num_threads()
    command = ["train", str(molecules), "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "run"), "--quiet"]
    command += ["--encoder", str(tmp_path / "encoder"), "--epochs", "1", "--channels", "8", "--num-layers", "1"]
    try:
        assert main([*command, "--threads", "1"]) == 0
    finally:
        torch.set_num_threads(threads)
    run = read_run(tmp_path / "run")
    assert (run.settings["probes"], run.settings["pe_dim"]) == (probes, 3)
    assert run.result["encoder_parameters"] == sum(p.numel() for p in encoder.parameters())
    trained = load_tensors(tmp_path / "run" / "model.safetensors")[0]
    before = encoder.state_dict()
    for name in ("readout.weight", "edge_readout.weight", "conductances.ground.table"):
        moved = (trained[f"encoder.{name}"] - before[name]).abs().max()
        assert 0 < moved < 0.2, "from there, by a few steps"
