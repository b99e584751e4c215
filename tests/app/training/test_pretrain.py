"""The sign-invariant loss against an oracle, and a pretraining that learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import Graph, data_of, fewer, normal
from hypothesis import given
from hypothesis import strategies as st

from tg_lpe import LinearTransformer
from tg_lpe.app.molecules import MoleculeSplits
from tg_lpe.app.training.build import start_encoder
from tg_lpe.app.training.config import PretrainConfig
from tg_lpe.app.training.pretrain import EigenvectorPretraining, sign_invariant_loss
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.data import GraphSplits
from tg_lpe.data.seeding import seeded
from tg_lpe.ops.segment import RowGroups


def oracle(out: np.ndarray, target: np.ndarray, sizes: list[int]) -> np.ndarray:
    """min(|phi - v|^2, |phi + v|^2), phi at length one, graph by graph and column by column."""
    losses, start = [], 0
    for size in sizes:
        row = []
        for column in range(out.shape[1]):
            phi, v = out[start : start + size, column], target[start : start + size, column]
            phi = phi / np.linalg.norm(phi)
            row.append(min(((phi - v) ** 2).sum(), ((phi + v) ** 2).sum()))
        losses.append(row)
        start += size
    return np.array(losses)


def example(sizes: list[int], k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, RowGroups]:
    graphs = RowGroups(torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)), len(sizes))
    out, target = normal(sum(sizes), k, seed=seed), normal(sum(sizes), k, seed=seed + 1)
    return out, target / graphs.gather(graphs.sum(target.square()).sqrt()), graphs


@fewer
@given(st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 99))
def test_the_loss_against_the_oracle(sizes: list[int], k: int, seed: int) -> None:
    out, target, graphs = example(sizes, k, seed)
    loss = sign_invariant_loss(out, target, graphs)
    np.testing.assert_allclose(loss.numpy(), oracle(out.numpy(), target.numpy(), sizes), atol=1e-12)


def test_the_loss_is_independent_of_sign_and_length() -> None:
    out, target, graphs = example([4, 6, 3], 3, 0)
    loss = sign_invariant_loss(out, target, graphs)
    factor = torch.tensor([[-1.0, 2.0, 1e-6], [1e6, -3.0, 1.0], [1.0, -1.0, -0.5]], dtype=torch.float64)
    torch.testing.assert_close(sign_invariant_loss(out * graphs.gather(factor), target, graphs), loss)
    torch.testing.assert_close(sign_invariant_loss(out, target * graphs.gather(factor.sign()), graphs), loss)
    assert sign_invariant_loss(-3 * target, target, graphs).abs().max() < 1e-12
    mixed = sign_invariant_loss(out + normal(13, 3, seed=8), target, graphs)
    assert (mixed - loss).abs().min() > 1e-4


def test_the_loss_of_a_zero_column_is_that_of_an_orthogonal_one_and_has_a_gradient() -> None:
    out, target, graphs = example([4, 3], 2, 0)
    out[:4, 0] = 0
    out.requires_grad_()
    loss = sign_invariant_loss(out, target, graphs)
    assert loss[0, 0] == 2
    loss.sum().backward()
    assert out.grad is not None and torch.isfinite(out.grad).all()


def test_graphs_with_fewer_eigenvectors(splits: MoleculeSplits) -> None:
    """Missing columns of a graph do not count: the mean of each column is over the graphs that have it."""
    k = 6
    sizes = splits.train.slices["x"].diff()
    assert int(sizes.min()) <= 5 and int(sizes.max()) > k, "some graphs have all eigenvectors, some do not"
    config = PretrainConfig(num_eigenvectors=k)
    training = EigenvectorPretraining(config, LinearTransformer(k=4, out_channels=k), splits, progress=False)
    target = training.attach_targets(splits.train)
    for data in target:
        norms = data.eigenvectors.double().square().sum(0)
        there = torch.arange(k) < data.num_nodes - 1
        torch.testing.assert_close(norms, there.double(), atol=1e-5, rtol=0)

    got = training.mean_losses(training.train_set)[0]
    sums, count = np.zeros(k), np.zeros(k)
    for data in target:
        out = training.encoder(None, data.edge_index, num_nodes=data.num_nodes).node.detach().double().numpy()
        there = min(k, data.num_nodes - 1)
        sums[:there] += oracle(out[:, :there], data.eigenvectors[:, :there].double().numpy(), [data.num_nodes])[0]
        count[:there] += 1
    assert count.min() < count.max()
    np.testing.assert_allclose(got.numpy(), sums / np.maximum(count, 1), atol=1e-4)


@pytest.mark.parametrize("probes", ["random", "features", "learned"])
def test_pretraining_learns(splits: MoleculeSplits, tmp_path: Path, probes: str) -> None:
    config = PretrainConfig(epochs=60, batch_size=6, num_eigenvectors=2, lr=3e-2)
    with seeded(0):
        chosen = {"class": "LinearTransformer", "k": 4, "out_channels": 2, "probes": probes}
        encoder = start_encoder(chosen, splits.spec)
    training = EigenvectorPretraining(config, encoder, splits, RunFolder(tmp_path), progress=False)
    before = training.total(training.mean_losses(training.train_set))
    result = training.fit()
    assert training.total(training.mean_losses(training.train_set)) < 0.9 * before
    assert result["kind"] == "pretrain" and len(result["test_loss_by_eigenvector"]) == 2
    assert 0 < result["test_loss"] < result["max_loss"] == 4.0
    encoder = LinearTransformer.from_pretrained(tmp_path / "encoder")
    data = splits.test[0]
    expected = training.encoder(data.x, data.edge_index).node
    assert torch.equal(encoder(data.x, data.edge_index).node, expected)


def test_targets_of_weighted_graphs() -> None:
    """Eigenvectors against dense algebra, on weights over several orders."""
    graph = Graph(5, [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)], [1e-2, 1.0, 3.0, 0.5, 20.0])
    splits = GraphSplits.of(*[[data_of(graph)] * 2] * 3)
    config, encoder = PretrainConfig(num_eigenvectors=3), LinearTransformer(k=4, out_channels=3)
    target = EigenvectorPretraining(config, encoder, splits, progress=False).train_set[1].eigenvectors.double()
    vectors = torch.from_numpy(np.linalg.eigh(graph.normalized_laplacian())[1][:, 1:4])
    torch.testing.assert_close((vectors.mT @ target).abs(), torch.eye(3, dtype=torch.float64), atol=1e-5, rtol=0)
