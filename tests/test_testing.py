"""The equivariance checks accept equivariant functions and report violations."""

from __future__ import annotations

import pytest
import torch
from construction_graphs import random_weights
from helpers import normal, refusals

from tg_lpe import Encoding, GramTransformer, Graph, LinearTransformer
from tg_lpe.encoders import Inputs
from tg_lpe.testing import assert_edge_permutation_equivariant, assert_permutation_equivariant
from tg_lpe.theory import EfficientTransformer, FullTransformer

EDGES = torch.tensor([[0, 1, 2, 3, 4, 0, 5], [1, 2, 3, 4, 5, 3, 1]])
WEIGHT = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0, 4.0, 0.1])


def neighbour_sum(edge_index, num_nodes, x, edge_weight=None):
    return Graph(edge_index, num_nodes, edge_weight=edge_weight).laplacian(x)


def test_accepts_equivariant_encoders() -> None:
    x = normal(6, 2, dtype=torch.float32)
    assert_permutation_equivariant(neighbour_sum, EDGES, 6, x=x, edge_weight=WEIGHT)
    features = LinearTransformer(k=4, probes="features", in_channels=2)
    assert_permutation_equivariant(features, EDGES, 6, x=x, edge_weight=WEIGHT)
    gram = GramTransformer(3, 2, num_filters=2, num_layers=3, in_channels=2, edge_dim=1)
    assert_permutation_equivariant(gram, EDGES, 6, x=x, edge_attr=normal(7, 1, dtype=torch.float32), edge_weight=WEIGHT)
    model = LinearTransformer(k=8)
    assert_permutation_equivariant(
        lambda edge_index, num_nodes, x: model.encode(Graph(edge_index, num_nodes), Inputs(), probes=x),
        EDGES,
        6,
        x=torch.randn(6, 8),
    )


def check_edges(edge, flip_edges=True, **features):
    encode = lambda index, n, **given: Encoding(torch.ones(6, 1), edge(index, **given).float())  # noqa: E731
    assert_permutation_equivariant(encode, EDGES, 6, flip_edges=flip_edges, **features)


def degree(index):
    return torch.bincount(index.flatten(), minlength=6)


def test_accepts_edge_encodings_that_follow_the_edges() -> None:
    check_edges(lambda index: degree(index)[index].sum(0))
    check_edges(lambda index, edge_attr: edge_attr, edge_attr=WEIGHT)
    check_edges(lambda index: degree(index)[index[0]], flip_edges=False)


test_catches_edge_encodings_that_do_not_follow_the_edges = refusals(
    check_edges,
    (
        (lambda _: torch.arange(7),),
        AssertionError,
        r"reordering edges changed the encoding of \d of 7 edges, .* of edge \d by",
    ),
    ((lambda index: degree(index)[index[0]],), AssertionError, "flipping edges changed the encoding of"),
    ((lambda index: index.sum(0),), AssertionError, r"relabelling nodes changed the encoding of \d of 7 edges"),
    ((lambda _: torch.ones(6, 2),), AssertionError, r"one row for each of 7 edges, got shape \[6, 2\]"),
)


def test_catches_an_encoding_that_changes_its_shape() -> None:
    calls = []

    def wider(edge_index, num_nodes):
        calls.append(1)
        return torch.ones(num_nodes, len(calls))

    with pytest.raises(AssertionError, match=r"changed the shape of the node encoding from \[6, 1\] to \[6, 2\]"):
        assert_permutation_equivariant(wider, EDGES, 6)

    def sometimes(edge_index, num_nodes):
        first = torch.equal(edge_index, EDGES)
        return Encoding(torch.ones(num_nodes, 1), torch.ones(edge_index.size(1), 1) if first else None)

    with pytest.raises(AssertionError, match="changed whether edges are encoded"):
        assert_permutation_equivariant(sometimes, EDGES, 6)


def first_edge(edge_index, num_nodes):
    return torch.nn.functional.one_hot(edge_index.min(0).values[:1], num_nodes).float().T


def into(edge_index, num_nodes):
    return torch.zeros(num_nodes).index_add(0, edge_index[1], torch.ones(edge_index.size(1)))


def by_position(edge_index, num_nodes, edge_weight):
    return torch.zeros(num_nodes).index_add(0, edge_index.min(0).values, WEIGHT)


def test_accepts_orientation_on_request() -> None:
    assert_permutation_equivariant(into, EDGES, 6, flip_edges=False)


test_catches_nodes_that_do_not_follow_and_refuses_to_test_nothing = refusals(
    lambda encode, num_nodes=6, **more: assert_permutation_equivariant(encode, EDGES, num_nodes, **more),
    *(
        ((model,), AssertionError, r"relabelling nodes changed the encoding of \d of 6 nodes, .* by \d")
        for model in (LinearTransformer(k=4, probes="learned", max_nodes=6), LinearTransformer(k=4))
    ),
    ((first_edge,), AssertionError, "reordering edges"),
    ((into,), AssertionError, "flipping edges"),
    ({"encode": by_position, "edge_weight": WEIGHT}, AssertionError, "reordering edges"),
    ((lambda e, n: torch.randn(n, 2),), AssertionError, "calling the encoder again"),
    ((lambda e, n: torch.full((n,), torch.nan),), AssertionError, "calling the encoder again .* of 6 of 6 nodes"),
    ((lambda e, n: torch.zeros(1, 3),), AssertionError, r"one row for each of 6 nodes, got shape \[1, 3\]"),
    ({"encode": into, "num_nodes": 1}, "num_nodes=1"),
)


# Lemma 10.

B, PHI = 0.5 * normal(6, 7, seed=1), 0.5 * normal(6, 4, seed=2)


def loaded(**options) -> EfficientTransformer:
    model = EfficientTransformer(2, 4, 3, **options)
    with torch.no_grad():
        for name, value in random_weights((3,), 4)._asdict().items():
            getattr(model, name).copy_(value)
    return model


def full(weights: float) -> FullTransformer:
    """Eq. (3) with Lemma 9's blocks, plus ``weights`` times random matrices."""
    model = loaded().full(7)
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.add_(weights * normal(*parameter.shape, seed=seed))
    return model


def split(model: FullTransformer):
    """Eq. (3) as a function of ``B`` and ``Phi``."""

    def run(b, phi):
        out = model(torch.cat([b, phi], -1).mT).mT
        return out[..., :7], out[..., 7:]

    return run


@pytest.mark.parametrize("how", [None, "frobenius", "columns"])
@pytest.mark.parametrize("incidence", [False, True])
def test_lemma_10_holds_for_eq_7_whatever_the_weights(how, incidence) -> None:
    model = loaded(normalize_phi=how, normalize_incidence=incidence)
    assert_edge_permutation_equivariant(model.run, B, PHI)
    assert_edge_permutation_equivariant(model.run, torch.stack([B, 2 * B]), torch.stack([PHI, PHI]))


def test_lemma_10_holds_for_eq_3_with_the_blocks_of_lemma_9_only() -> None:
    assert_edge_permutation_equivariant(split(full(0.0)), B, PHI)
    message = r"Lemma 10 .* reordering and flipping edges changed B by \S+ .*\(rtol=1e-09"
    with pytest.raises(AssertionError, match=message):
        assert_edge_permutation_equivariant(split(full(0.05)), B, PHI)
