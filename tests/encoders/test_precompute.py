"""Precomputed values in datasets equal those computed graph by graph, also in batches and after renumbering."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers import Degrees, Graph, data_of, normal, refusals
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

import tg_lpe
from tg_lpe import Encoder, Encoding
from tg_lpe.data import GraphDataset
from tg_lpe.encoders import (
    ENCODERS,
    LPE,
    SPE,
    HeatKernel,
    Inputs,
    LaplacianEigenvectors,
    ResistiveEmbedding,
    SpectralEncoder,
    SpectralKernel,
    load_encoder,
)
from tg_lpe.encoders.precompute import call_on, precomputed_of, store_precomputed


def dataset(weighted: bool = False) -> GraphDataset:
    """A triangle with a tail, a single node, two components, a graph without edges."""
    edges = [[(0, 1), (0, 2), (1, 2), (2, 3)], [], [(0, 1), (2, 3)], []]
    graphs = []
    for number, (size, pairs) in enumerate(zip((4, 1, 5, 3), edges, strict=True)):
        weights = normal(len(pairs), seed=number).abs() + 0.1
        graphs.append(data_of(Graph(size, pairs, weights.tolist()), x=torch.zeros(size, 1).long()))
        if not weighted:
            del graphs[-1].edge_weight
    return GraphDataset.from_data_list(graphs)


EXACT = ["LaplacianEigenvectors", "RandomWalk", "HeatKernel", "EffectiveResistance"]


@pytest.mark.parametrize("name", [*EXACT, "gram-k16", "universal-k32"])
@pytest.mark.parametrize("weighted", [False, True])
def test_stored_or_not_the_encoding_is_the_same(name: str, weighted: bool) -> None:
    plain = dataset(weighted)
    encoder = ENCODERS[name]() if name in EXACT else load_encoder(name).requires_grad_(False)
    before = set(plain[0].keys())
    stored = store_precomputed(encoder, plain)
    assert set(plain[0].keys()) == before and set(stored[0].keys()) > before
    fresh, read = (call_on(encoder, next(iter(DataLoader(part, len(part))))) for part in (plain, stored))
    torch.testing.assert_close(read.node, fresh.node)
    torch.testing.assert_close(read.edge, fresh.edge)
    (batch,) = DataLoader(stored, len(stored))
    for attribute in set(stored[0].keys()) - before:
        batch[attribute] += 1
    assert not torch.allclose(call_on(encoder, batch).node, fresh.node), "they are read"


SPECTRUM: dict[str, Any] = {"num_eigenpairs": 4}
READERS: dict[str, list[Callable[[], Encoder]]] = {
    "times": [HeatKernel, lambda: HeatKernel((0.5, 2.0, 8.0)), lambda: HeatKernel((0.5, 2.0, 9.0))],
    "seed": [lambda: ResistiveEmbedding(4), lambda: ResistiveEmbedding(4, seed=1)],
    "eigenvectors": [
        *(partial(LaplacianEigenvectors, 4, normalization=normalization) for normalization in (None, "sym", "rw")),
        partial(LaplacianEigenvectors, 4, which="top"),
    ],
    "spectrum": [
        *(partial(SpectralKernel, normalization=normalization, **SPECTRUM) for normalization in (None, "sym")),
        partial(SpectralEncoder, tokens="eigenvectors", row_norm=True, **SPECTRUM),
        partial(SpectralEncoder, row_norm=True, **SPECTRUM),
        partial(LPE, **SPECTRUM),
        partial(LPE, normalization=None, **SPECTRUM),
        partial(SPE, **SPECTRUM),
        partial(SPE, normalization=None, **SPECTRUM),
        partial(LaplacianEigenvectors, 4),
    ],
}
"""Encoders whose tensors have the same shapes and other values, all of them different within a group."""


@pytest.mark.parametrize("group", READERS)
@pytest.mark.filterwarnings("ignore:SPE reads whole eigenspaces")
def test_what_another_encoder_stored_is_refused(group: str) -> None:
    stored = [store_precomputed(make(), dataset()) for make in READERS[group]]
    for number, make in enumerate(READERS[group]):
        for other, (data, *_) in enumerate(stored):
            encoder, kept = make(), precomputed_of(data)
            if other == number:
                assert encoder(data.x, data.edge_index, precomputed=kept).node.shape[0] == data.num_nodes
                continue
            with pytest.raises(ValueError, match=f"precomputed of this {type(encoder).__name__} must hold tensors of"):
                encoder(data.x, data.edge_index, precomputed=kept)


def test_several_encoders_store_side_by_side() -> None:
    first, second = HeatKernel((1.0,)), HeatKernel((2.0,))
    data = store_precomputed(second, store_precomputed(first, dataset()))[0]
    for encoder in (first, second, LPE(3, num_eigenpairs=2), SpectralKernel(num_eigenpairs=2)):
        data = store_precomputed(encoder, [data])[0]
        expected = encoder(data.x, data.edge_index).node
        torch.testing.assert_close(encoder(data.x, data.edge_index, precomputed=precomputed_of(data)).node, expected)


def test_a_dataset_of_nothing_to_store_is_returned_itself() -> None:
    plain = dataset()
    for encoder in (None, ENCODERS["GramTransformer"]()):
        assert store_precomputed(encoder, plain) is plain
    assert precomputed_of(plain[0]) is None and precomputed_of(Batch.from_data_list([plain[0]])) is None


class Named(Encoder):
    """Precomputes one tensor of any name and length."""

    def __init__(self, name: str, rows: int | None = None) -> None:
        super().__init__()
        self.out_channels, self.name, self.rows = 1, name, rows

    def precompute(self, graph: tg_lpe.Graph) -> dict[str, Tensor]:
        return {self.name: torch.zeros(self.rows if self.rows is not None else graph.num_nodes, 1)}

    def encode(self, graph: tg_lpe.Graph, inputs: Inputs) -> Encoding:
        raise NotImplementedError


test_what_cannot_be_stored_is_refused = refusals(
    lambda *arguments: store_precomputed(Named(*arguments), dataset()),
    *(
        ((name,), f"must begin with one of .* without index and batch, got '{name}'")
        for name in ("degree", "node", "node_index", "edge_batch")
    ),
    (("node_degree", 7), "node_degree"),
    (("graph_size", 3), "for a batch of 4 graphs"),
)


def test_a_list_of_graphs_is_taken_and_not_changed() -> None:
    index = torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(edge_index=index, num_nodes=2), Data(edge_index=index, num_nodes=3)]
    stored = store_precomputed(LPE(3, num_eigenpairs=2), graphs)
    assert len(stored) == 2 and stored[1].precomputed_node_spectrum_eigenvectors_sym.shape == (3, 2)
    assert all(set(data.keys()) == {"edge_index", "num_nodes"} for data in graphs)
    with pytest.raises(TypeError, match="got Data; pass"):
        store_precomputed(LPE(3), graphs[0])


@pytest.mark.parametrize("reads", [True, False])
def test_a_call_hands_over_weights_that_are_read(reads: bool) -> None:
    encoder = Degrees()
    encoder.reads = frozenset({"edge_weight"} if reads else ())
    index = torch.tensor([[0, 1], [1, 0]])
    batch = Batch.from_data_list([Data(edge_index=index, edge_weight=torch.full((2,), 3.0), num_nodes=2)] * 2)
    assert call_on(encoder, batch).node.flatten().tolist() == [3.0 if reads else 1.0] * 4
