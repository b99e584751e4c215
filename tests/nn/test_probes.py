"""Probes: their distribution, their dependencies, and values that must never change."""

from __future__ import annotations

import numpy as np
import torch
from helpers import Graph, batch_of, few, graphs, normal, refusals
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import tg_lpe
from tg_lpe.nn.probes import FeatureProbes, LearnedProbes, RandomProbes, draw_seed
from tg_lpe.ops import cpu
from tg_lpe.ops.random import counter_normal, counter_signs

DOUBLE = torch.empty(0, dtype=torch.float64)
seeds = st.integers(-(2**63), 2**64 - 1)
COMPILED = torch.compile if cpu.is_available() else lambda draw: draw  # where there is a compiler
PINNED_0 = [
    [-0.2788749225862037, -0.7642228620191804, 0.41892564486752387],
    [0.34136817510037737, 0.2960293168526119, -1.3191733176244114],
]
PINNED_7 = [-0.37910414878596527, -0.8690352037976481]
PINNED_LAST = [
    -0.08184054752098134,
    1.039549831168359,
    0.6563597671886584,
    -0.08622466863569936,
    1.7045226027907405,
    0.6946447801439035,
    0.1951594304175965,
    1.1409338618046,
]
PLUS_0 = [[1, 1, 1, 0, 0, 0, 1, 0, 0, 1], [0, 1, 0, 1, 1, 1, 0, 1, 1, 0], [1, 1, 0, 0, 1, 0, 0, 0, 1, 1]]
PLUS_7 = [0, 1, 1, 1, 0, 0, 1, 1, 0, 0]


def incidence(num_nodes: int) -> tg_lpe.Graph:
    return tg_lpe.Graph(torch.zeros(2, 0, dtype=torch.int64), num_nodes)


@few
@given(seeds)
def test_standard_normal(seed: int) -> None:
    sample = counter_normal(seed, 2000, 8, DOUBLE).numpy()
    # 16,000 draws: five standard errors of mean, standard deviation, skewness, kurtosis.
    flat, root = sample.ravel(), np.sqrt(sample.size)
    assert abs(flat.mean()) < 5 / root
    assert abs(flat.std() - 1) < 5 / (np.sqrt(2) * root)
    assert abs(stats.skew(flat)) < 5 * np.sqrt(6) / root
    assert abs(stats.kurtosis(flat)) < 5 * np.sqrt(24) / root
    assert stats.kstest(flat, "norm").pvalue > 1e-6
    correlation = np.corrcoef(sample.T) - np.eye(8)
    assert np.abs(correlation).max() < 5.5 / np.sqrt(2000)
    # Neighbours in a column are uncorrelated too, and so are their squares.
    assert np.abs([np.corrcoef(column[1:], column[:-1])[0, 1] for column in sample.T]).max() < 5.5 / np.sqrt(2000)
    assert np.abs(np.corrcoef((sample**2).T) - np.eye(8)).max() < 10 / np.sqrt(2000)


def test_values_are_pinned() -> None:
    """Encodings of released checkpoints depend on these numbers: they must never change, also under torch.compile."""
    np.testing.assert_allclose(counter_normal(0, 2, 3, DOUBLE).tolist(), PINNED_0, rtol=1e-12)
    draws = [*map(COMPILED(lambda seed: counter_normal(seed, 1000, 2, DOUBLE)), (8, 7))]  # the second is symbolic
    np.testing.assert_allclose(draws[1][-1], PINNED_7, rtol=1e-12)
    np.testing.assert_allclose(counter_normal(-1, 1, 8, DOUBLE)[0].tolist(), PINNED_LAST, rtol=1e-12)


@few
@given(st.lists(graphs(max_nodes=6), max_size=5), st.sampled_from([None, 5]))
def test_random_probes_of_a_batch_are_those_of_its_graphs(parts: list[Graph], seed: int | None) -> None:
    probes = RandomProbes(3, seed=11).double()

    def generator() -> torch.Generator | None:
        return None if seed is None else torch.Generator().manual_seed(seed)

    batched = batch_of(parts)
    rows = probes(tg_lpe.Graph(**batched.arguments()), None, generator())
    for graph, got in zip(parts, batched.split(rows), strict=True):
        assert torch.equal(got, probes(incidence(graph.num_nodes), None, generator()))


def test_feature_probes() -> None:
    types = FeatureProbes(4, num_node_types=3)
    x = torch.tensor([2, 0, 2])
    assert torch.equal(types(incidence(3), x, None), types.embedding.weight[x])
    assert torch.equal(types(incidence(3), x.unsqueeze(1), None), types.embedding.weight[x])
    real = FeatureProbes(4, in_channels=2)
    x = normal(3, 2)
    torch.testing.assert_close(real(incidence(3), x, None), x.float() @ real.linear.weight.T + real.linear.bias)


def test_learned_probes_are_rows_by_index() -> None:
    probes = LearnedProbes(4, max_nodes=6)
    graph = tg_lpe.Graph(torch.zeros(2, 0, dtype=torch.int64), batch=torch.tensor([0, 0, 0, 2, 2]), num_graphs=3)
    assert torch.equal(probes(graph, None, None), probes.rows[[0, 1, 2, 0, 1]])


@few
@given(seeds)
def test_signs_are_fair_and_independent(seed: int) -> None:
    sample = counter_signs(seed, 2000, torch.arange(8), DOUBLE).numpy()
    assert set(np.unique(sample)) == {-1.0, 1.0}
    # 16,000 tosses: five standard errors of the mean; correlations of columns, of neighbours, and of triples.
    assert abs(sample.mean()) < 5 / np.sqrt(sample.size)
    bound = 5.5 / np.sqrt(2000)
    assert np.abs(sample.T @ sample / 2000 - np.eye(8)).max() < bound
    assert np.abs((sample[1:] * sample[:-1]).mean(0)).max() < bound
    assert np.abs((sample[:, :6] * sample[:, 1:7] * sample[:, 2:8]).mean(0)).max() < bound


@few
@given(seeds, st.integers(0, 300), st.lists(st.integers(0, 200), max_size=5))
def test_a_sign_depends_on_seed_row_and_column_alone(seed: int, rows: int, columns: list[int]) -> None:
    whole = counter_signs(seed, 300, torch.arange(201), DOUBLE)
    picked = torch.tensor(columns, dtype=torch.int64)
    assert torch.equal(counter_signs(seed, rows, picked, DOUBLE), whole[:rows, picked])
    single = counter_signs(seed, rows, picked, torch.empty(0))
    assert single.dtype == torch.float32 and torch.equal(single.double(), whole[:rows, picked])


def test_signs_that_may_never_change() -> None:
    """A saved encoding must be reproducible, so the draw must never change."""
    draw = COMPILED(lambda: counter_signs(0, 3, torch.arange(10), DOUBLE))
    assert [[int(s > 0) for s in row] for row in draw()] == PLUS_0
    assert [int(s > 0) for s in counter_signs(7, 1, torch.arange(10), DOUBLE)[0]] == PLUS_7
    assert torch.equal(*(counter_signs(seed, 9, torch.arange(9), DOUBLE) for seed in (-1, 2**64 - 1)))


def test_the_seed_of_a_call_comes_from_its_generator() -> None:
    generator, state = torch.Generator().manual_seed(3), torch.get_rng_state()
    drawn = [draw_seed(generator) for _ in range(1000)]
    assert torch.equal(torch.get_rng_state(), state), "the global one is left alone"
    again = torch.Generator().manual_seed(3)
    assert drawn[:9] == [draw_seed(again) for _ in range(9)]
    assert len(set(drawn)) == 1000 and all(0 <= seed < 2**62 for seed in drawn)
    mean, error = 2**61, 2**62 / np.sqrt(12 * 1000)
    assert abs(np.mean(drawn) - mean) < 5 * error, "spread over the whole range"


def test_what_is_returned_may_be_changed() -> None:
    probes, graph = RandomProbes(3), incidence(4)
    first = probes(graph, None, None)
    kept = first.clone()
    first.zero_()
    assert torch.equal(probes(graph, None, None), kept)


test_features_of_probes_are_checked = refusals(
    lambda x: FeatureProbes(4, num_node_types=3)(incidence(3), x, None),
    *(((x,), "features|types") for x in (None, torch.zeros(4, dtype=torch.int64), torch.tensor([0, 3, 1]))),
)
