"""Fixed encodings against PyG's transforms where those work, random signs, and the encoder that settings name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import relative_error
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE

from tg_lpe import LinearTransformer
from tg_lpe.datasets import MoleculeSplits
from tg_lpe.training.config import TrainConfig
from tg_lpe.training.encodings import attach_encoding, build_encoder, flip_signs


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


def test_the_encoder_of_the_settings(tmp_path: Path) -> None:
    fresh = build_encoder(TrainConfig(pe_dim=3, k=5, probes="learned"), num_node_types=4, max_nodes=9)
    assert fresh is not None and (fresh.k, fresh.out_channels, fresh.probes.rows.shape) == (5, 3, (9, 5))
    assert build_encoder(TrainConfig(pe="laplacian"), 4, 9) is None
    saved = LinearTransformer(k=4, out_channels=3)
    saved.save_pretrained(tmp_path)
    loaded = build_encoder(TrainConfig(pe_dim=3, encoder=str(tmp_path)), 4, 9)
    assert loaded is not None and loaded.training and loaded.probe_kind == "random"
    assert all(torch.equal(value, saved.state_dict()[name]) for name, value in loaded.state_dict().items())
    with pytest.raises(ValueError, match="gives 3 channels, pe_dim is 6"):
        build_encoder(TrainConfig(pe_dim=6, encoder=str(tmp_path)), 4, 9)


def test_an_encoder_of_other_atom_types_is_refused(tmp_path: Path) -> None:
    LinearTransformer(k=4, out_channels=3, probes="features", num_node_types=9).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="starts from 9 node types, the data has 4"):
        build_encoder(TrainConfig(pe_dim=3, encoder=str(tmp_path)), num_node_types=4, max_nodes=9)
