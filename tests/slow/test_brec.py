"""The benchmark on BREC: its protocol on networks that are known to be right or wrong, and its results."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from tg_lpe.checkpoints.files import read_json
from tg_lpe.encoders import RandomWalk

ROOT = Path(__file__).parents[2]
RESULTS = read_json(ROOT / "benchmarks" / "results" / "brec.json")
ROWS = {row["row"]: row for row in RESULTS["results"]}

CATEGORIES = (
    *("basic", "simple regular", "strongly regular", "extension"),
    *("CFI", "4-vertex condition", "distance regular"),
)
BOUNDS = {
    "1-WL": (0, 0, 0, 0, 0, 0, 0),
    "2-WL": (0, 0, 0, 0, 0, 0, 0),
    "(2,1)-LWL": (59, 49, 0, 60, 0, 0, 0),
    "P^t at nodes": (60, 50, 0, 100, 5, 0, 0),
    "P^t at edges": (60, 50, 0, 100, 2, 0, 0),
    "1-WL with both": (60, 50, 0, 100, 7, 0, 0),
    "(2,1)-LWL + P^t": (60, 50, 0, 100, 8, 0, 0),
    "P^t at all pairs": (60, 50, 0, 100, 20, 0, 0),
    "1-WL over all pairs": (60, 50, 0, 100, 26, 0, 0),
    "delta-2-WL": (60, 50, 0, 100, 57, 0, 0),
    "delta-2-LWL": (60, 50, 0, 100, 57, 0, 0),
    "delta-2-LWL + P^t": (60, 50, 0, 100, 57, 0, 0),
    "2-FWL": (60, 50, 0, 100, 60, 0, 0),
    "2-FWL + P^t": (60, 50, 0, 100, 60, 0, 0),
    "(3,1)-LWL": (60, 50, 50, 100, 0, 20, 0),
    "(3,1)-LWL + P^t": (60, 50, 50, 100, 8, 20, 0),
    "(3,2)-LWL": (60, 50, 50, 100, 57, 20, 0),
    "(3,1)-LWL + 2-FWL": (60, 50, 50, 100, 60, 20, 0),
}
"""Pairs told apart by category, found by other code; 2-FWL is 3-WL, which the paper reports at 60, 50, 100, 60 too."""


@pytest.fixture(scope="module")
def brec() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("brec")


@pytest.mark.parametrize("name", [name for name in BOUNDS if name in ROWS])
def test_colourings_have_the_known_counts(name: str) -> None:
    assert tuple(ROWS[name]["counts"][category] for category in CATEGORIES) == BOUNDS[name]
    assert ROWS[name]["total"] == sum(BOUNDS[name]) and ROWS[name]["num_pairs"] == 400


def test_no_network_is_beyond_its_bound() -> None:
    networks = [row for row in RESULTS["results"] if row["kind"] == "network"]
    for row in networks:
        assert row["num_pairs"] == 400 and row["unreliable"] == row["beyond"] == 0, row["row"]
        for category, found in row["counts"].items():
            assert found <= ROWS[row["bound"]]["counts"][category], row["row"]


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("GraphTransformer(GramTransformer)", 210),
        ("(3,1)-GT local", 260),
        ("(3,1)-GT(GramTransformer with pairs) local", 280),
    ],
)
def test_networks_tell_apart_enough(name: str, least: int) -> None:
    assert ROWS[name]["total"] >= least


class OfGraph(nn.Module):
    """A network that is any function of a graph."""

    def __init__(self, function: Callable[[Data], float]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: None, edge_index: Tensor, edge_attr: None, batch: Tensor) -> Tensor:
        out = []
        for number in range(int(batch[-1]) + 1):
            inside = batch[edge_index[0]] == number
            start = int((batch < number).sum())
            data = Data(edge_index=edge_index[:, inside] - start, num_nodes=int((batch == number).sum()))
            out.append(self.function(data))
        return torch.tensor(out, dtype=torch.float64).unsqueeze(1)


def closed_walks(data: Data) -> float:
    """A sum over nodes, so rounding depends on their order."""
    return float(RandomWalk(6)(None, data.edge_index, num_nodes=data.num_nodes).node.double().sqrt().sum())


def of_labels(data: Data) -> float:
    return float(data.edge_index[0] @ data.edge_index[1])


def row_of(brec: ModuleType, monkeypatch: pytest.MonkeyPatch, function: Callable[[Data], float], bound: Any) -> Any:
    monkeypatch.setitem(brec.NETWORKS, "tested", (lambda: OfGraph(function), "tested"))
    pairs = brec.drawn_pairs()
    may = {id(pair): is_apart for pair, is_apart in zip(pairs, bound, strict=True)}
    return brec.network_row("tested", pairs, [0, 1], lambda pair: may[id(pair)]), pairs


def test_an_invariant_is_told_apart_where_it_differs(brec: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    row, pairs = row_of(brec, monkeypatch, closed_walks, [True, True, False])
    assert (row["total"], row["beyond"], row["unreliable"]) == (2, 0, 0)
    assert row["counts"] == {"drawn here": 2} and row["num_pairs"] == len(pairs)
    assert row["least_gap"] > 1e-3 and row["largest_spread"] < 1e-12


def test_what_exceeds_a_bound_is_counted(brec: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    row, _ = row_of(brec, monkeypatch, closed_walks, [True, False, False])
    assert (row["total"], row["beyond"]) == (2, 1)


def test_what_depends_on_labels_tells_nothing_apart(brec: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    row, _ = row_of(brec, monkeypatch, of_labels, [True, True, True])
    assert (row["total"], row["unreliable"]) == (0, 0) and row["largest_spread"] > 1e-3


def test_a_network_that_tells_a_graph_from_itself_is_unreliable(
    brec: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def by_call(data: Data) -> float:
        calls.append(1)
        return float((len(calls) - 1) // brec.RELABELLINGS)

    row, pairs = row_of(brec, monkeypatch, by_call, [True, True, True])
    assert (row["total"], row["unreliable"]) == (0, len(pairs))
    row, _ = row_of(brec, monkeypatch, lambda data: float("nan"), [True, True, True])
    assert (row["total"], row["unreliable"]) == (0, len(pairs))


@pytest.mark.parametrize("side", ["a", "b"])
def test_nan_on_one_side_is_unreliable(brec: ModuleType, monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    calls: list[int] = []

    def on_one_side(data: Data) -> float:
        calls.append(1)
        is_b = (len(calls) - 1) // brec.RELABELLINGS % 3 == 2
        return float("nan") if is_b == (side == "b") else 1.0

    row, pairs = row_of(brec, monkeypatch, on_one_side, [True, True, True])
    assert (row["total"], row["unreliable"]) == (0, len(pairs))


def test_a_network_with_random_signs_is_trained(brec: ModuleType) -> None:
    """Where 1-WL is blind, LPE is not; and a graph is not told from itself."""
    hexagon, *others = brec.drawn_pairs()
    row = brec.trained_row("GraphTransformer(LPE), trained", [hexagon], [0], lambda pair: True)
    assert (row["total"], row["unreliable"], row["beyond"], row["kind"]) == (1, 0, 0, "trained")
    itself = brec.Pair("itself", others[0].a, others[0].a)
    row = brec.trained_row("GraphTransformer(LPE), trained", [itself], [0], lambda pair: False)
    assert row["total"] == 0


def test_hotellings_statistic(brec: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a network whose outputs are known: copies times the mean's square over the variance; NaN is unreliable."""
    from scipy import stats

    p, q = brec.CHANNELS, brec.COPIES
    assert pytest.approx(p * (q - 1) / (q - p) * stats.f.ppf(0.95, p, q - p), abs=0.01) == brec.QUANTILE
    monkeypatch.setattr(brec, "EPOCHS", 0)
    noise = torch.Generator().manual_seed(0)

    class Known(nn.Module):
        shift = 0.0

        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.weight = RandomWalk(2), nn.Parameter(torch.zeros(1))

        def forward(self, x: None, edge_index: Tensor, **given: Any) -> Tensor:
            rows = torch.randn(brec.BATCH, p, generator=noise, dtype=torch.float64)
            rows[::2] += self.shift
            drawn.append(rows)
            return rows

    pair, drawn = brec.drawn_pairs()[0], []
    network = Known()
    verdict = brec.train_and_judge(network, pair.a, pair.b, torch.Generator().manual_seed(0))
    rows = torch.cat(drawn)[: 2 * q]
    difference = (rows[::2] - rows[1::2]).numpy()
    mean, covariance = difference.mean(0), np.cov(difference.T) + 1e-7 * np.eye(p)
    assert verdict.statistic == pytest.approx(q * mean @ np.linalg.inv(covariance) @ mean)
    assert verdict.is_reliable and not verdict.is_apart
    network.shift = math.nan
    assert not brec.train_and_judge(network, pair.a, pair.b, torch.Generator()).is_reliable


def test_colourings_of_the_drawn_pairs(brec: ModuleType) -> None:
    expected = {
        "1-WL": (False, False, False),
        "P^t at nodes": (True, True, False),
        "1-WL over all pairs": (True, True, False),
        "2-FWL + P^t": (True, True, False),
        "(3,1)-LWL": (True, False, True),
        "(3,1)-LWL + 2-FWL": (True, True, True),
        "(3,2)-LWL": (True, True, True),
    }
    pairs = brec.drawn_pairs()
    assert {name: tuple(brec.ORACLES[name](pair) for pair in pairs) for name in expected} == expected


@pytest.mark.parametrize(
    "name",
    [
        *("(2,1)-GT", "(2,1)-GT local", "(2,1)-GT(GramTransformer)", "(2,1)-GT(GramTransformer) local"),
        *("(3,1)-GT local", "(3,1)-GT(GramTransformer with pairs) local"),
    ],
)
def test_tuple_transformers_tell_apart_what_their_bound_does(brec: ModuleType, name: str) -> None:
    pairs = brec.drawn_pairs()
    bound = brec.ORACLES[brec.NETWORKS[name][1]]
    row = brec.network_row(name, pairs, [0], bound)
    assert (row["total"], row["beyond"], row["unreliable"]) == (sum(map(bound, pairs)), 0, 0)


@pytest.mark.parametrize("name", [name for name in BOUNDS if name != "(3,2)-LWL"])
def test_real_pairs(brec: ModuleType, name: str, shared_data: Path) -> None:
    """Whole categories whose graphs are small, and the first of others."""
    pairs = brec.read_pairs(shared_data / "brec")
    assert len(pairs) == 400 and all(pair.a.num_nodes == pair.b.num_nodes for pair in pairs)
    for category, known in zip(CATEGORIES, BOUNDS[name], strict=True):
        own = [pair for pair in pairs if pair.category == category]
        if category in ("basic", "simple regular"):
            assert sum(brec.ORACLES[name](pair) for pair in own) == known, category
        elif known in (0, len(own)):
            for pair in own[:3]:
                assert brec.ORACLES[name](pair) == bool(known), category


def test_isolated_nodes_of_real_pairs(brec: ModuleType, shared_data: Path) -> None:
    pairs = brec.read_pairs(shared_data / "brec")
    isolated = [
        pair.category
        for pair in pairs
        if any(len(data.edge_index.unique()) < data.num_nodes for data in (pair.a, pair.b))
    ]
    assert Counter(isolated) == {"basic": 3, "extension": 3}


def test_published_code_tries_what_3_wl_tells_apart(brec: ModuleType, shared_data: Path) -> None:
    """Pairs 0 to 109 and 160 to 319, as BREC counts them: by category. Here those of at most 60 nodes."""
    pairs = brec.read_pairs(shared_data / "brec")
    ordered = [pair for category in CATEGORIES for pair in pairs if pair.category == category]
    tried = {*range(110), *range(160, 320)}
    assert len(tried) == ROWS["2-FWL"]["total"]
    for number, pair in enumerate(ordered):
        if pair.a.num_nodes <= 60:
            assert brec.ORACLES["2-FWL"](pair) == (number in tried), number
