"""Pretraining of Gram read-outs on kernels of the Laplacian."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Graph, data_of, graph_of, refusals
from scipy.linalg import expm

from tg_lpe import Encoder, GramTransformer, LinearTransformer
from tg_lpe.app.molecules import MoleculeSplits
from tg_lpe.app.training.config import KernelPretrainConfig
from tg_lpe.app.training.kernels import HEAT_TIMES, WALK_STEPS, kernel_channels, kernel_entries
from tg_lpe.app.training.pretrain import KernelPretraining
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.data import GraphSplits
from tg_lpe.data.seeding import seeded
from tg_lpe.encoders import RandomWalk
from tg_lpe.graph.random_walks import random_walk_probabilities

RING = Graph(6, [(0, 1), (0, 5), (1, 2), (2, 3), (3, 4), (4, 5)], [1.0] * 6)
RING_AND_TAIL = [(0, 1), (0, 4), (0, 5), (1, 2), (2, 3), (3, 4), (5, 6)]


def test_kernels_against_dense_algebra() -> None:
    """Two graphs in a batch, one of them with an isolated node; a ring, whose eigenvalues repeat."""
    parts = Graph(8, RING_AND_TAIL, [1.0] * 7), RING
    graph = graph_of(*parts)
    kernels = ("heat", "resistance", "walks")
    node, edge = kernel_entries(graph, kernels)
    assert node.shape == (14, kernel_channels(kernels))
    for number, (start, size) in enumerate(((0, 8), (8, 6))):
        s = torch.from_numpy(parts[number].normalized_laplacian())
        matrices = [torch.from_numpy(expm(-time * s.numpy())) for time in HEAT_TIMES]
        matrices.append(torch.linalg.pinv(s, hermitian=True))
        matrices += [torch.linalg.matrix_power(torch.eye(size) - s, steps) for steps in WALK_STEPS]
        assert len(matrices) == node.size(1)
        for channel, matrix in enumerate(matrices):
            torch.testing.assert_close(node[start : start + size, channel], matrix.diagonal(), rtol=0, atol=1e-10)
            mine = graph.batch[graph.tail] == number
            tail, head = graph.tail[mine] - start, graph.head[mine] - start
            torch.testing.assert_close(edge[mine, channel], matrix[tail, head], rtol=0, atol=1e-10)


def test_walks_are_return_probabilities() -> None:
    """Of graphs without isolated nodes, whose walks return nowhere in one convention and stay in the other."""
    graph = graph_of(Graph(7, RING_AND_TAIL, [1e-3, 1.0, 4.0, 2.0, 0.5, 30.0, 1.0]))
    for got, expected in zip(kernel_entries(graph, ("walks",)), random_walk_probabilities(graph, 20), strict=True):
        torch.testing.assert_close(got, expected[:, 1:], rtol=0, atol=1e-12)


test_unknown_kernels = refusals(lambda kernels: kernel_entries(graph_of(RING), kernels), ((("warmth",),), "warmth"))


@pytest.mark.parametrize(
    ("make", "share"),
    [
        (lambda k: GramTransformer(k, k, num_filters=2, num_layers=8), 0.3),
        (lambda k: LinearTransformer(k=4, out_channels=k), 1.0),
    ],
    ids=["nodes and edges", "nodes"],
)
def test_it_learns_the_heat_kernel(splits: MoleculeSplits, tmp_path: Path, make: Any, share: float) -> None:
    config = KernelPretrainConfig(epochs=12, batch_size=16, kernels=("heat",))
    width = kernel_channels(config.kernels)
    with seeded(0):
        encoder = make(width)
    training = KernelPretraining(config, encoder, splits, RunFolder(tmp_path), progress=False)
    before = training.validate()["val_loss"]
    result = training.fit()
    assert result["val_loss"] < share * before
    assert len(result["test_loss_by_channel"]) == (1 + bool(encoder.edge_out_channels)) * width
    loaded = type(encoder).from_pretrained(tmp_path / "encoder")
    data = splits.test[0]
    mine, theirs = (m.eval()(None, data.edge_index, num_nodes=data.num_nodes) for m in (training.encoder, loaded))
    assert torch.equal(mine.node, theirs.node)
    assert mine.edge is None if share == 1 else torch.equal(mine.edge, theirs.edge)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (GramTransformer(3, 3), "3 channels"),
        (GramTransformer(7, 2), "2 channels of edges"),
        (RandomWalk(7), "RandomWalk has"),
    ],
)
def test_encoders_that_do_not_fit_are_refused(splits: MoleculeSplits, encoder: Encoder, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KernelPretraining(KernelPretrainConfig(kernels=("heat",)), encoder, splits)


def test_targets_of_weighted_graphs() -> None:
    """Kernels at nodes and at edges against dense algebra, on weights over several orders."""
    graph = Graph(5, [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)], [1e-2, 1.0, 3.0, 0.5, 20.0])
    data = data_of(graph)
    config, encoder = KernelPretrainConfig(kernels=("heat",)), LinearTransformer(k=4, out_channels=len(HEAT_TIMES))
    target = KernelPretraining(config, encoder, GraphSplits.of(*[[data] * 2] * 3), progress=False).train_set[1]
    for channel, time in enumerate(HEAT_TIMES):
        heat = torch.from_numpy(expm(-time * graph.normalized_laplacian())).float()
        torch.testing.assert_close(target.kernel[:, channel], heat.diagonal(), atol=1e-6, rtol=0)
        entries = heat[data.edge_index[0], data.edge_index[1]]
        torch.testing.assert_close(target.edge_kernel[:, channel], entries, atol=1e-6, rtol=0)
