"""Colourings against dictionaries that hold all that a colour stands for, on random graphs and known pairs."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, few, from_networkx, graphs, refusals, rook_and_shrikhande
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from tg_lpe.encoders import RandomWalk
from tg_lpe.theory import wl

NAMES = (
    *("1-WL", "2-WL", "3-WL", "delta-1-WL", "delta-2-WL", "delta-1-LWL", "delta-2-LWL", "2-FWL", "3-FWL"),
    *("(1,1)-LWL", "(2,1)-LWL", "(2,2)-LWL", "(3,1)-LWL", "(3,2)-LWL"),
)

Color = Any


def data_of(graph: nx.Graph | Graph) -> Data:
    own = from_networkx(graph) if isinstance(graph, nx.Graph) else graph
    return Data(edge_index=own.both_ways()[0], num_nodes=own.num_nodes)


def components(nodes: Sequence[int], adjacency: np.ndarray) -> int:
    links = nx.Graph()
    links.add_nodes_from(range(len(nodes)))
    for i, j in itertools.combinations(range(len(nodes)), 2):
        if nodes[i] == nodes[j] or adjacency[nodes[i], nodes[j]]:
            links.add_edge(i, j)
    return nx.number_connected_components(links)


class Reference:
    """Colours as nested tuples of Python, as the definitions say."""

    def __init__(self, data: Data, name: str, node: str | None = None, edge: str | None = None) -> None:
        self.n = int(data.num_nodes)
        self.adjacency = np.zeros((self.n, self.n), dtype=int)
        label = {}
        for place, (u, v) in enumerate(data.edge_index.T.tolist()):
            self.adjacency[u, v] = self.adjacency[v, u] = 1
            label[u, v] = label[v, u] = None if edge is None else int(data[edge][place])
        self.label = label
        head, _, self.kind = name.rpartition("-")
        self.delta = head.startswith("delta-")
        if name.startswith("("):
            self.k, s = (int(part) for part in head.strip("()").split(","))
        else:
            self.k = s = int(head.removeprefix("delta-"))
        if name == "1-WL":
            self.kind = "LWL"
        every = itertools.product(range(self.n), repeat=self.k)
        self.tuples = [nodes for nodes in every if components(nodes, self.adjacency) <= s]
        self.color: dict[tuple[int, ...], Color] = {
            nodes: (
                *(None if node is None else int(data[node][v]) for v in nodes),
                *((u == v, label.get((u, v), "none")) for u, v in itertools.combinations(nodes, 2)),
            )
            for nodes in self.tuples
        }

    def refined(self) -> dict[tuple[int, ...], Color]:
        """Return the next colours."""
        return {nodes: (self.color[nodes], *self.multisets(nodes)) for nodes in self.tuples}

    def multisets(self, nodes: tuple[int, ...]) -> list[Color]:
        def moved(place: int, w: int) -> Color:
            return self.color.get((*nodes[:place], w, *nodes[place + 1 :]))

        def multiset(values: list[Color]) -> Color:
            return frozenset(Counter(values).items())

        if self.kind == "FWL":
            return [multiset([tuple(moved(place, w) for place in range(self.k)) for w in range(self.n)])]
        found = []
        for place in range(self.k):
            row = self.adjacency[nodes[place]]
            if self.kind == "LWL":
                values = [
                    (moved(place, w), self.label[nodes[place], w] if self.k == 1 else None)
                    for w in range(self.n)
                    if row[w] and moved(place, w) is not None
                ]
            else:
                step = [(row[w], self.label.get((nodes[place], w)) if self.k == 1 else None) for w in range(self.n)]
                values = [(moved(place, w), self.delta and step[w]) for w in range(self.n)]
            found.append(multiset(values))
        return found


def reference(parts: Sequence[Data], name: str, rounds: int, **labels: str) -> list[list[int]]:
    """Colours of all graphs as numbers."""
    own = [Reference(data, name, **labels) for data in parts]
    for done in range(rounds + 1):
        values = [part.color if done == 0 else part.refined() for part in own]
        number: dict[Color, int] = {}
        for part, value in zip(own, values, strict=True):
            part.color = {nodes: number.setdefault(value[nodes], len(number)) for nodes in part.tuples}
    return [list(part.color.values()) for part in own]


def same_partition(one: Sequence[Color], other: Sequence[Color]) -> bool:
    pairs = set(zip(one, other, strict=True))
    return len(pairs) == len(set(one)) == len(set(other))


def flat(parts: Sequence[Sequence[Color]]) -> list[Color]:
    return [value for part in parts for value in part]


@pytest.mark.parametrize("name", NAMES)
@few
@given(st.data())
def test_colours_are_those_of_the_definition(name: str, data: st.DataObject) -> None:
    size = 4 if name[0] == "3" or "(3" in name else 6
    parts = [data_of(data.draw(graphs(max_nodes=size))) for _ in range(2)]
    rounds = data.draw(st.integers(0, 3))
    got = wl.joint_colors(parts, name, rounds=rounds)
    assert [part.rounds for part in got] == [rounds, rounds]
    assert same_partition(flat([part.color.tolist() for part in got]), flat(reference(parts, name, rounds)))
    for part, own in zip(got, parts, strict=True):
        assert part.color.dtype == np.uint64
        assert [tuple(nodes) for nodes in part.tuples.tolist()] == Reference(own, name).tuples
    one, other = (Counter(colors) for colors in reference(parts, name, 12))
    assert wl.distinguishes(*parts, name) == (one != other)
    assert wl.distinguishes(*parts, name, rounds=rounds) == (
        Counter(got[0].color.tolist()) != Counter(got[1].color.tolist())
    )


LABELLED = ["1-WL", "delta-1-WL", "delta-1-LWL", "2-WL", "delta-2-WL", "delta-2-LWL", "(2,1)-LWL", "2-FWL"]


@pytest.mark.parametrize("name", LABELLED)
@few
@given(st.data())
def test_labels_of_nodes_and_edges(name: str, data: st.DataObject) -> None:
    parts = []
    for _ in range(2):
        own = data_of(data.draw(graphs(max_nodes=5)))
        m = own.edge_index.size(1) // 2
        own.x = torch.tensor(data.draw(st.lists(st.integers(0, 1), min_size=own.num_nodes, max_size=own.num_nodes)))
        own.edge_attr = torch.tensor(2 * data.draw(st.lists(st.integers(0, 1), min_size=m, max_size=m)))
        own.x, own.edge_attr = own.x.long(), own.edge_attr.long()
        parts.append(own)
    rounds = data.draw(st.integers(0, 3))
    got = wl.joint_colors(parts, name, node=["x"], edge=["edge_attr"], rounds=rounds)
    expected = reference(parts, name, rounds, node="x", edge="edge_attr")
    assert same_partition(flat([part.color.tolist() for part in got]), flat(expected))


def cfi(base: nx.Graph, twisted: bool) -> nx.Graph:
    """The graph of Cai, Fürer and Immerman: even subsets of the edges of each node, one edge crossed."""
    graph = nx.Graph()
    crossed = next(iter(base.edges)) if twisted else None
    for v in base:
        incident = [frozenset((v, u)) for u in base[v]]
        for size in range(0, len(incident) + 1, 2):
            for chosen in itertools.combinations(incident, size):
                for edge in incident:
                    graph.add_edge((v, frozenset(chosen)), (v, edge, edge in chosen))
    for u, v in base.edges:
        edge = frozenset((u, v))
        for side in (False, True):
            graph.add_edge((u, edge, side), (v, edge, side ^ ((u, v) == crossed)))
    return graph


def decalin() -> nx.Graph:
    return nx.Graph([*nx.cycle_graph(10).edges, (0, 5)])


def bicyclopentyl() -> nx.Graph:
    return nx.Graph([*nx.cycle_graph(5).edges, *((u + 5, v + 5) for u, v in nx.cycle_graph(5).edges), (0, 5)])


PAIRS: dict[str, tuple[tuple[nx.Graph, nx.Graph], dict[str, bool]]] = {
    "decalin and bicyclopentyl": (
        (decalin(), bicyclopentyl()),
        {"1-WL": False, "2-WL": False, "(2,1)-LWL": False, "delta-2-LWL": True, "2-FWL": True, "(3,1)-LWL": False},
    ),
    "a hexagon and two triangles": (
        (nx.cycle_graph(6), nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3))),
        {"1-WL": False, "2-WL": False, "delta-2-WL": True, "2-FWL": True, "3-WL": True, "(3,1)-LWL": True},
    ),
    "rook's graph and Shrikhande's": (
        rook_and_shrikhande(),
        {"1-WL": False, "delta-2-LWL": False, "2-FWL": False, "3-WL": False, "(3,1)-LWL": True, "3-FWL": True},
    ),
    "CFI graphs of a triangle": (
        (cfi(nx.complete_graph(3), False), cfi(nx.complete_graph(3), True)),
        {"1-WL": False, "2-WL": False, "2-FWL": True},
    ),
    "CFI graphs of K4": (
        (cfi(nx.complete_graph(4), False), cfi(nx.complete_graph(4), True)),
        {"1-WL": False, "2-FWL": False, "(3,1)-LWL": False},
    ),
}


@pytest.mark.parametrize(
    "pair, name, expected", [(pair, name, apart) for pair, (_, known) in PAIRS.items() for name, apart in known.items()]
)
def test_known_pairs(pair: str, name: str, expected: bool) -> None:
    parts = [data_of(graph) for graph in PAIRS[pair][0]]
    assert not nx.is_isomorphic(*PAIRS[pair][0])
    assert wl.distinguishes(*parts, name) == expected
    if parts[0].num_nodes <= 10:  # and the definition agrees
        first, second = (Counter(colors) for colors in reference(parts, name, 8))
        assert (first != second) == expected


def test_walks_are_powers_of_the_random_walk_matrix() -> None:
    graph = nx.gnp_random_graph(9, 0.4, seed=2)
    graph.add_node(9)
    data = data_of(graph)
    walks = wl.exact_walks(data, 4)
    adjacency = nx.to_numpy_array(graph)
    degree = adjacency.sum(1)
    common = int(np.prod(np.maximum(degree, 1)))  # a common denominator of one step
    step = (adjacency * (common / np.maximum(degree, 1))[:, None]).round().astype(object).astype(int).astype(object)
    power = np.eye(10).astype(int).astype(object)
    for t in range(4):
        power = step.dot(power)
        scale = pow(common ** (t + 1), -1, wl.PRIME)
        assert walks[..., t].tolist() == [[int(x) * scale % wl.PRIME for x in row] for row in power]
    assert wl.exact_walks(data, 0).shape == (10, 10, 0)


def test_encodings_are_initial_colours() -> None:
    """Return probabilities tell decalin and bicyclopentyl apart, which 1-WL does not; in either precision."""
    one, other = data_of(decalin()), data_of(bicyclopentyl())
    for dtype in (torch.float64, torch.float32):
        for data in (one, other):
            steps = RandomWalk(6)(None, data.edge_index, num_nodes=data.num_nodes).node.to(dtype)
            data.steps = steps
        assert wl.distinguishes(one, other, "1-WL", node=["steps"], rounds=0)
        moved = Data(edge_index=one.edge_index.flip(1), num_nodes=10, steps=one.steps * (1 + torch.finfo(dtype).eps))
        assert not wl.distinguishes(one, moved, "1-WL", node=["steps"])
    for data in (one, other):
        data.probability = wl.exact_walks(data)
    assert wl.distinguishes(one, other, "2-WL", pair=["probability"], rounds=0)


def test_a_batch_is_coloured_graph_by_graph() -> None:
    parts = [
        data_of(nx.path_graph(5)),
        data_of(nx.cycle_graph(4)),
        Data(edge_index=torch.zeros(2, 0).long(), num_nodes=1),
    ]
    for got, part in zip(wl.joint_colors(Batch.from_data_list(parts), "(2,1)-LWL"), parts, strict=True):
        assert np.array_equal(got.color, wl.colors(part, "(2,1)-LWL", rounds=got.rounds).color)
    assert wl.joint_colors([], "1-WL") == []
    assert len(wl.colors(Data(edge_index=torch.zeros(2, 0).long(), num_nodes=0), "2-FWL").color) == 0


def a_pair() -> tuple[Data, Data]:
    return data_of(nx.path_graph(3)), data_of(nx.complete_graph(3))


PATH, TRIANGLE = a_pair()
BATCH = Batch.from_data_list([PATH, TRIANGLE])

test_refusals = refusals(
    lambda function, *arguments, **options: getattr(wl, function)(*arguments, **options),
    *(
        (("colors", PATH, name), "colouring")
        for name in ("3WL", "0-WL", "1-FWL", "(2,3)-LWL", "(2,0)-LWL", "delta-2", "", "WL", "01-WL", "(3,01)-LWL", 5)
    ),
    (("colors", BATCH, "1-WL"), "joint_colors"),
    (("distinguishes", BATCH, PATH, "1-WL"), "joint_colors"),
    (("exact_walks", BATCH), "joint_colors"),
    (("joint_colors", PATH, "1-WL"), TypeError, "several graphs"),
    (("colors", PATH.edge_index, "1-WL"), TypeError, "Tensor"),
    (("colors", Data(x=torch.ones(3)), "1-WL"), "edge_index"),
    (("colors", data_of(nx.path_graph(40)), "5-WL"), "5-WL"),
    (("exact_walks", PATH, -1), "steps"),
    (("exact_walks", PATH, 2.5), "steps"),
    (("exact_walks", PATH, 10**8), "steps"),
    *(
        ({"function": "colors", "data": PATH, "name": "1-WL", **option}, error, name)
        for option, error, name in (
            ({"rounds": -1}, ValueError, "rounds"),
            ({"rounds": 2.5}, ValueError, "rounds"),
            ({"node": "x"}, TypeError, "node"),
            ({"node": None}, TypeError, "node"),
            ({"node": ["absent"]}, TypeError, "absent"),
        )
    ),
)


def color_by(level: str, *values: object) -> None:
    graphs = [Data(edge_index=PATH.edge_index, num_nodes=3, value=value) for value in values]
    wl.joint_colors(graphs, "1-WL", **{level: ["value"]})


test_refused_labels = refusals(
    color_by,
    (("node", torch.zeros(3, 2), torch.zeros(3)), "value"),
    (("node", torch.zeros(3).long(), torch.zeros(3)), "dtype"),
    (("node", torch.full((3,), torch.nan)), "finite"),
    (("node", torch.zeros(3, dtype=torch.float16)), "float16"),
    (("node", torch.zeros(3, dtype=torch.complex64)), "complex64"),
    (("node", [0, 1, 2]), TypeError, "list"),
    (("pair", torch.zeros(3)), "value"),
    (("edge", torch.tensor([0, 1, 1, 1])), r"\(0, 1\)"),
)


def test_values_that_are_linked_by_others_are_warned_of() -> None:
    one, other = a_pair()
    one.x, other.x = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0.0, 1e-6, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert wl.distinguishes(one, other, "1-WL", node=["x"], rounds=0)
    dense = Data(edge_index=one.edge_index, num_nodes=200_001, x=torch.linspace(0, 1, 200_001))
    with pytest.warns(UserWarning, match="values of x are so dense that some count as equal"):
        colored = wl.joint_colors([one, dense], "1-WL", node=["x"], rounds=0)
    assert len(np.unique(colored[0].color)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_of_integers_are_exact(dtype: torch.dtype) -> None:
    ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])

    def labelled(*values: float) -> Data:
        return Data(edge_index=ring, num_nodes=6, x=torch.tensor(values, dtype=dtype).unsqueeze(1))

    assert wl.distinguishes(labelled(0, 1, 2, 3, 4, 999_999), labelled(4, 4, 4, 4, 4, 999_999), "1-WL", node=["x"])
    several = [labelled(0, 1, 2, 3, 4, 5), labelled(*6 * [5]), labelled(*6 * [1e6])]
    first, second, _ = wl.joint_colors(several, "1-WL", node=["x"], rounds=0)
    assert len(set(first.color.tolist())) == 6 and len(set(second.color.tolist())) == 1
    close = 1 + 0.1 * {torch.float32: 1e-5, torch.float64: 1e-10}[dtype]  # of a column with a fraction
    assert not wl.distinguishes(labelled(*6 * [0.5]), labelled(*5 * [0.5], 0.5 * close), "1-WL", node=["x"])
