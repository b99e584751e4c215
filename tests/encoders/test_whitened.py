"""Whitened encodings against numpy: uncorrelated on the training set, which alone decides the statistics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import Graph, data_of, from_networkx, randomize_, refusals
from networkx import barbell_graph, gnp_random_graph
from safetensors.torch import load_file
from torch import Tensor
from torch_geometric.data import Data

import tg_lpe
from tg_lpe import AddPositionalEncoding, Encoder, GramTransformer
from tg_lpe.app.training import TrainConfig, build_model, make_task, train
from tg_lpe.data import GraphSplits
from tg_lpe.encoders import HeatKernel, LaplacianEigenvectors, RandomWalk, Whitened, load_encoder, make_encoder
from tg_lpe.testing.encoder_test_case import EncoderTestCase

GRAPHS = [from_networkx(gnp_random_graph(9, 0.4, seed=seed), lambda number: 1.0 + number % 3) for seed in range(8)]


def typed(graph: Graph) -> Data:
    return data_of(graph, edge_attr=torch.ones(2 * len(graph.edges), dtype=torch.int64))


TRAINING = [typed(graph) for graph in GRAPHS]


def rows_of(encoder: Encoder, data: list[Data]) -> tuple[np.ndarray, np.ndarray | None]:
    """Encodings of all nodes and all edges of some graphs, encoded one by one."""
    parts = [
        encoder(None, one.edge_index, one.edge_attr, edge_weight=one.edge_weight, num_nodes=one.num_nodes)
        for one in data
    ]
    edges = [part.edge.detach() for part in parts if part.edge is not None]
    return torch.cat([part.node.detach() for part in parts]).numpy(), torch.cat(edges).numpy() if edges else None


class TestWhitened(EncoderTestCase):
    tolerance = 1e-7

    def make(self) -> Encoder:
        return Whitened(RandomWalk(5)).fit(TRAINING)


class TestWhitenedGramTransformer(EncoderTestCase):
    """A learned encoder inside is frozen, whatever a training would do."""

    learned = True

    def make(self) -> Encoder:
        inside = {"class": "GramTransformer", "out_channels": 3, "edge_out_channels": 2, "num_layers": 3}
        return Whitened({**inside, "num_edge_types": 2, "pair_out_channels": 2}).fit(TRAINING)

    def double(self) -> Encoder:
        encoder = self.make()
        randomize_(encoder.encoder)
        return encoder.double().fit(TRAINING).eval()

    def test_pairs_are_those_of_the_encoder_inside(self) -> None:
        encoder, (index, weight) = self.double(), GRAPHS[0].both_ways()
        graph, types = tg_lpe.Graph(index, GRAPHS[0].num_nodes, edge_weight=weight), torch.ones(index.size(1)).long()
        encoding = encoder(None, graph, types, pairs=graph.pairs)
        assert torch.equal(encoding.pair, encoder.encoder(None, graph, types, pairs=graph.pairs).pair)
        assert torch.equal(encoding.node, encoder(None, graph, types).node)

    def test_freezing_lasts(self) -> None:
        encoder = self.make().requires_grad_(True).train()
        assert not any(parameter.requires_grad for parameter in encoder.parameters())
        assert not any(module.training for module in encoder.encoder.modules())

    def test_reset_draws_the_weights_of_a_new_one(self) -> None:
        """New weights have other statistics."""
        encoder = self.make()
        encoder.reset_parameters()
        assert not encoder.is_fitted


@pytest.mark.parametrize("make", [lambda: RandomWalk(7), HeatKernel, lambda: LaplacianEigenvectors(4)])
def test_uncorrelated_with_variance_one(make: Callable[[], Encoder]) -> None:
    whitened = Whitened(make()).double().fit(TRAINING)
    rows, before = rows_of(whitened, TRAINING), rows_of(make().double(), TRAINING)
    for found, plain in zip(rows, before, strict=True):
        assert found is not None and plain is not None
        variances, axes = np.linalg.eigh(np.cov(plain.T, bias=True))
        kept = variances > 1e-10 * variances[-1]
        expected = np.diag(kept[::-1]).astype(float)
        np.testing.assert_allclose(found.mean(0), 0, atol=1e-8)
        np.testing.assert_allclose(np.cov(found.T, bias=True), expected, atol=1e-6)
        components = (plain - plain.mean(0)) @ axes[:, kept] / variances[kept] ** 0.5
        np.testing.assert_allclose(found @ found.T, components @ components.T, rtol=1e-5, atol=1e-5)


def test_statistics_do_not_depend_on_how_the_set_is_written_down() -> None:
    """Principal axes have signs of their own: a rule fixes them."""
    first = Whitened(RandomWalk(5)).double().fit(TRAINING)
    halves = [data.clone() for data in reversed(TRAINING)]
    second = Whitened(RandomWalk(5)).double().fit(halves)
    for name, value in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], value, rtol=1e-6, atol=1e-6)
    largest = first.node_map.gather(0, first.node_map.abs().argmax(0, keepdim=True))
    assert bool((largest >= 0).all())


def test_self_loops_have_no_encoding_and_do_not_count() -> None:
    looped = [data.clone() for data in TRAINING]
    for data in looped:
        data.edge_index = torch.cat([data.edge_index, torch.zeros(2, 1, dtype=torch.int64)], 1)
        data.edge_weight = torch.cat([data.edge_weight, torch.ones(1)])
    plain, found = (Whitened(RandomWalk(5)).double().fit(part) for part in (TRAINING, looped))
    torch.testing.assert_close(found.edge_map, plain.edge_map)
    torch.testing.assert_close(found.edge_mean, plain.edge_mean)


def test_without_statistics_nothing_is_encoded(tmp_path: Path) -> None:
    encoder = Whitened(RandomWalk(4))
    assert not encoder.is_fitted
    with pytest.raises(ValueError, match="training_graphs"):
        AddPositionalEncoding(encoder)(TRAINING[0])
    encoder.save_pretrained(tmp_path)
    assert not load_encoder(tmp_path).is_fitted
    assert encoder.fit(TRAINING).is_fitted
    encoder.save_pretrained(tmp_path)
    assert torch.equal(
        AddPositionalEncoding(load_encoder(tmp_path))(TRAINING[0]).pe, AddPositionalEncoding(encoder)(TRAINING[0]).pe
    )


test_nothing_to_fit = refusals(
    Whitened(RandomWalk(3)).fit,
    (([],), "got none"),
    (([Data(edge_index=torch.zeros(2, 0, dtype=torch.int64), num_nodes=0)],), "got none"),
)


def test_encoders_by_name() -> None:
    """The encoder may be an object, class and arguments, or a checkpoint; the object is not changed."""
    own = GramTransformer(2, num_layers=2).train()
    with pytest.warns(UserWarning, match="random weights"):
        Whitened(own)
    assert own.training and all(parameter.requires_grad for parameter in own.parameters())
    shipped = Whitened("gram-k16")
    assert (shipped.out_channels, shipped.is_fitted) == (16, False)
    assert Whitened(make_encoder({"class": "RandomWalk", "steps": 3})).config_dict() == {
        "class": "Whitened",
        "encoder": RandomWalk(3).config_dict(),
    }
    assert Whitened().config_dict() == Whitened(RandomWalk()).config_dict()
    for wrong, kind in ((3, TypeError), ("no-such-checkpoint", ValueError), ({}, ValueError)):
        with pytest.raises(kind, match=r"encoder|checkpoint"):
            Whitened(wrong)  # type: ignore[arg-type]


def labelled(graphs: list[Data], seed: int) -> list[Data]:
    generator = torch.Generator().manual_seed(seed)
    result = [data.clone() for data in graphs]
    for data in result:
        data.y = torch.randn(1, generator=generator)
    return result


def test_a_training_fits_on_the_training_part(tmp_path: Path) -> None:
    """Statistics are computed once, from training graphs only, and saved in the checkpoint."""
    rest = [typed(from_networkx(barbell_graph(4, 2))) for _ in range(3)]
    splits = GraphSplits.of(labelled(TRAINING, 0), labelled(rest, 1), labelled(rest, 2), level="graph")
    task = make_task({"name": "regression", "metric": "mae"})
    encoder = {"class": "Whitened", "encoder": {"class": "RandomWalk", "steps": 4}}
    model = build_model(splits.spec, task, encoder, hidden_channels=8, heads=2, num_layers=1)
    config = TrainConfig(epochs=1, batch_size=4, precision="float32")
    train(model, splits, task, config, folder=tmp_path, progress=False)
    expected = Whitened(RandomWalk(4)).fit(TRAINING)
    saved = load_file(tmp_path / "model.safetensors")
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(model.encoder.state_dict()[name], value)
        torch.testing.assert_close(saved[f"encoder.{name}"], value)
    fitted: Tensor = model.encoder.node_mean.clone()
    train(
        model, GraphSplits.of(labelled(rest, 0), splits.val, splits.test, level="graph"), task, config, progress=False
    )
    assert torch.equal(model.encoder.node_mean, fitted)


@pytest.mark.parametrize("level", ["node", "edge"])
def test_an_encoding_that_is_not_finite_changes_no_statistics(level: str) -> None:
    class Broken(RandomWalk):
        def compute(self, graph):
            node, edge = super().compute(graph)
            return (node / 0.0, edge) if level == "node" else (node, edge / 0.0)

    encoder = Whitened(Broken(3))
    before = {name: values.clone() for name, values in encoder.state_dict().items()}
    with pytest.raises(ValueError, match="not finite"):
        encoder.fit(TRAINING)
    assert all(torch.equal(values, before[name]) for name, values in encoder.state_dict().items())
