"""Count the pairs of BREC, https://arxiv.org/abs/2304.07702, that colourings, encoders and models tell apart.

    python benchmarks/brec.py --data DIR [--rows oracles networks] [--seeds 0 1 2] [--quick] [--json FILE]

DIR holds pairs.csv with the columns category, graph6_a and graph6_b: 400 pairs of non-isomorphic graphs without
features. Quick runs draw three pairs. Rows of the file that do not run now stay.

The protocol for networks is deterministic: float64, eval mode, four relabellings of each graph. The gap is the distance
between the mean outputs of the two graphs, and the spread is the change by relabelling. A network tells a pair apart if
the gap exceeds 1000 times the spread and 1e-11 of the scale of the outputs. As a control, four more relabellings of the
first graph must not be told apart from the others; otherwise the network is unreliable on the pair, which does not
count. With several seeds of the weights, a pair counts if one seed tells it apart. Each network has a colouring as its
bound and must not tell apart more than this colouring.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import torch
from _arguments import Parser
from _results import earlier_rows, show, write_results
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.utils import from_networkx

from tg_lpe import Encoder, GramTransformer, GraphTransformer, encoders
from tg_lpe.models.tuple_transformer import TupleTransformer
from tg_lpe.theory import wl

RELABELLINGS = 4
CHANNELS = 16
STEPS = 16
MANY_STEPS = 32
NODES = 100
"""Largest number of nodes in a batch of relabelled graphs, because tuples of large graphs take gigabytes."""


@dataclass
class Pair:
    """Two graphs, with what colourings read as attributes."""

    category: str
    a: Data
    b: Data

    def with_attributes(self, *names: str) -> Pair:
        """Return both graphs with these attributes, each computed once."""
        for name in names:
            if name not in self.a:
                ATTRIBUTES[name](self)
        return self


def read_pairs(folder: Path) -> list[Pair]:
    table = pd.read_csv(folder / "pairs.csv", dtype=str, keep_default_na=False)
    graphs = ([from_networkx(nx.from_graph6_bytes(text.encode())) for text in table[f"graph6_{side}"]] for side in "ab")
    return [Pair(*row) for row in zip(table["category"], *graphs, strict=True)]


def drawn_pairs() -> list[Pair]:
    """Return three pairs: hexagon and two triangles, decalin and bicyclopentyl, rook's and Shrikhande's graph."""
    triangle, pentagon = nx.cycle_graph(3), nx.cycle_graph(5)
    bicyclopentyl = nx.disjoint_union(pentagon, pentagon)
    bicyclopentyl.add_edge(0, 5)
    torus = [(a, b) for a in range(4) for b in range(4)]
    shrikhande = nx.Graph(((a, b), ((a + x) % 4, (b + y) % 4)) for a, b in torus for x, y in ((0, 1), (1, 0), (1, 1)))
    graphs = (
        (nx.cycle_graph(6), nx.disjoint_union(triangle, triangle)),
        (nx.Graph([*nx.cycle_graph(10).edges, (0, 5)]), bicyclopentyl),
        (nx.line_graph(nx.complete_bipartite_graph(4, 4)), shrikhande),
    )
    return [Pair("drawn here", from_networkx(one), from_networkx(other)) for one, other in graphs]


def many_walks(pair: Pair) -> None:
    """Compute longer walks at all pairs of nodes."""
    for data in (pair.a, pair.b):
        data.many_walks = wl.exact_walks(data, MANY_STEPS)


def walks(pair: Pair) -> None:
    """Compute ``P^t`` exactly at all pairs of nodes, at the nodes and at the edges."""
    for data in (pair.a, pair.b):
        data.walks = wl.exact_walks(data, STEPS)
        data.returns = data.walks.diagonal().T.contiguous()
        source, target = data.edge_index
        data.crossings = data.walks[source, target] + data.walks[target, source]


def complete(pair: Pair) -> None:
    """Return the complete graph with ``P^t`` at its edges."""
    pair.with_attributes("walks")
    for data in (pair.a, pair.b):
        source, target = (index.ravel() for index in np.indices((data.num_nodes,) * 2))
        source, target = (torch.from_numpy(index[source != target]) for index in (source, target))
        data.complete = Data(edge_index=torch.stack([source, target]), num_nodes=data.num_nodes, returns=data.returns)
        data.complete.crossings = data.walks[source, target] + data.walks[target, source]


def folklore(pair: Pair) -> None:
    """Compute the colours of 2-FWL at all pairs of nodes."""
    for data, found in zip((pair.a, pair.b), wl.joint_colors([pair.a, pair.b], "2-FWL"), strict=True):
        data.folklore = torch.from_numpy(found.color.view(np.int64).reshape((data.num_nodes,) * 2))


ATTRIBUTES: dict[str, Callable[[Pair], None]] = {
    "walks": walks,
    "many_walks": many_walks,
    "complete": complete,
    "folklore": folklore,
}


def colouring(name: str, *needs: str, **attributes: Any) -> Callable[[Pair], bool]:
    def apart(pair: Pair) -> bool:
        pair.with_attributes(*needs)
        return wl.distinguishes(pair.a, pair.b, name, **attributes)

    return apart


def over_all_pairs(pair: Pair) -> bool:
    pair.with_attributes("complete")
    return wl.distinguishes(pair.a.complete, pair.b.complete, "1-WL", node=["returns"], edge=["crossings"])


ORACLES: dict[str, Callable[[Pair], bool]] = {
    "1-WL": colouring("1-WL"),
    "2-WL": colouring("2-WL"),
    "(2,1)-LWL": colouring("(2,1)-LWL"),
    "P^t at nodes": colouring("1-WL", "walks", node=["returns"], rounds=0),
    "1-WL with both": colouring("1-WL", "walks", node=["returns"], edge=["crossings"]),
    "(2,1)-LWL + P^t": colouring("(2,1)-LWL", "many_walks", pair=["many_walks"]),
    "1-WL over all pairs": over_all_pairs,
    "delta-2-WL": colouring("delta-2-WL"),
    "delta-2-LWL": colouring("delta-2-LWL"),
    "2-FWL": colouring("2-FWL"),
    "(3,1)-LWL": colouring("(3,1)-LWL"),
    "(3,1)-LWL + P^t": colouring("(3,1)-LWL", "many_walks", pair=["many_walks"]),
    "(3,1)-LWL + 2-FWL": colouring("(3,1)-LWL", "folklore", pair=["folklore"]),
    "(3,2)-LWL": colouring("(3,2)-LWL"),
}


class Summed(nn.Module):
    """Sum perceptrons on the encodings of nodes and edges over the graph."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.node, self.edge = (
            nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, CHANNELS))
            for width in (encoder.out_channels, encoder.edge_out_channels)
        )

    def forward(self, x: None, edge_index: Tensor, edge_attr: None, batch: Tensor) -> Tensor:
        encoding = self.encoder(x, edge_index, edge_attr, batch)
        out = torch.zeros(int(batch[-1]) + 1, CHANNELS, dtype=encoding.node.dtype)
        out = out.index_add(0, batch, self.node(encoding.node))
        return out.index_add(0, batch[edge_index[0]], self.edge(encoding.edge))


def transformer(encoder: Encoder | None, **options: Any) -> nn.Module:
    return GraphTransformer(
        encoder=encoder,
        hidden_channels=32,
        heads=4,
        num_layers=4,
        readout={"pooling": "sum"},
        out_channels=CHANNELS,
        **options,
    )


def over_pairs(attention: str, encoder: Encoder) -> nn.Module:
    """Make attention over all pairs with a norm of each row, because batch norm has no statistics before training."""
    return transformer(encoder, attention=attention, attention_options={"norm": "layer"})


def gram() -> Encoder:
    return GramTransformer(out_channels=32, edge_out_channels=32)


def tuples(
    k: int, s: int, attention: str, encoder: Encoder | None = None, num_layers: int = 3, is_strong: bool = True
) -> nn.Module:
    """Make a tuple transformer, by default one that changes its input strongly, so that differences do not fade."""
    heads = k if attention == "local" else 2
    model = TupleTransformer(
        encoder=encoder,
        k=k,
        s=s,
        hidden_channels=2 * heads,
        heads=heads,
        num_layers=num_layers,
        out_channels=CHANNELS,
        attention=attention,
        readout={"pooling": "sum"},
    )
    for module in model.modules() if is_strong else ():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
    return model


def with_pairs() -> Encoder:
    """Use Chebyshev polynomials, which do not decay; powers of ``P`` hide the differences in CFI pairs."""
    return GramTransformer(
        num_layers=MANY_STEPS,
        basis="chebyshev",
        out_channels=16,
        edge_out_channels=16,
        pair_out_channels=16,
    )


def ppgn(num_layers: int = 8, pair_out_channels: int = 0, frequency: float | None = 10.0) -> Encoder:
    """Use sines, with which differences in CFI pairs grow with the layers; with GELUs they vanish in rounding."""
    return encoders.PPGN(16, 16, pair_out_channels, hidden_channels=16, num_layers=num_layers, frequency=frequency)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "sums of PPGN, GELUs": (lambda: Summed(ppgn(frequency=None)), "2-FWL"),
    "sums of PPGN": (lambda: Summed(ppgn()), "2-FWL"),
    "GraphTransformer": (lambda: transformer(None), "1-WL"),
    "GraphTransformer(LaplacianEigenvectors)": (lambda: transformer(encoders.LaplacianEigenvectors(8)), "2-FWL"),
    "GraphTransformer(RandomWalk)": (lambda: transformer(encoders.RandomWalk(STEPS)), "1-WL with both"),
    "GraphTransformer(HeatKernel)": (lambda: transformer(encoders.HeatKernel()), "2-FWL"),
    "GraphTransformer(EffectiveResistance)": (lambda: transformer(encoders.EffectiveResistance()), "2-FWL"),
    "GraphTransformer(GramTransformer)": (lambda: transformer(gram()), "1-WL with both"),
    "GraphTransformer(RRWP) bias": (lambda: over_pairs("bias", encoders.RRWP(STEPS + 1)), "1-WL over all pairs"),
    "GraphTransformer(RRWP) pairs": (lambda: over_pairs("pairs", encoders.RRWP(STEPS + 1)), "1-WL over all pairs"),
    "GraphTransformer(LPE)": (lambda: transformer(encoders.LPE(16, num_eigenpairs=32)), "2-FWL"),
    "GraphTransformer(SPE)": (lambda: transformer(encoders.SPE(16, num_eigenpairs=32)), "2-FWL"),
    "GraphTransformer(SpectralEncoder)": (lambda: transformer(encoders.SpectralEncoder(16, 16)), "2-FWL"),
    "GraphTransformer(SpectralKernel)": (lambda: transformer(encoders.SpectralKernel(16, 16)), "2-FWL"),
    "(2,1)-GT": (lambda: tuples(2, 1, "full"), "1-WL"),
    "(2,1)-GT(SPE)": (lambda: tuples(2, 1, "full", encoders.SPE(16, num_eigenpairs=32), is_strong=False), "2-FWL"),
    "(2,1)-GT(GramTransformer)": (lambda: tuples(2, 1, "full", gram()), "1-WL with both"),
    "(2,1)-GT(GramTransformer) local": (lambda: tuples(2, 1, "local", gram()), "(2,1)-LWL + P^t"),
    "(2,1)-GT local": (lambda: tuples(2, 1, "local"), "(2,1)-LWL"),
    "(3,1)-GT local": (lambda: tuples(3, 1, "local"), "(3,1)-LWL"),
    "(3,1)-GT(GramTransformer with pairs) local": (
        lambda: tuples(3, 1, "local", with_pairs(), num_layers=10),
        "(3,1)-LWL + P^t",
    ),
    "(3,1)-GT(PPGN with pairs) local": (
        lambda: tuples(3, 1, "local", ppgn(7, 16)),
        "(3,1)-LWL + 2-FWL",
    ),
}
"""Networks with the colouring that bounds them. 2-FWL knows all entries of all eigenspaces; an encoding that depends on
bases is bounded only as far as relabelling does not change it."""

GROUPS: dict[str, Iterable[str]] = {"oracles": ORACLES, "networks": NETWORKS}
EVERY = [name for group in GROUPS.values() for name in group]


def with_random_weights(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a network in float64 with random weights, also for layers that start from zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make().double().eval()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
    return network


@dataclass
class Verdict:
    """Gap, spread and control of a network on a pair."""

    gap: float
    spread: float
    scale: float
    own_gap: float
    """The gap between two sets of relabellings of the first graph."""

    @property
    def is_apart(self) -> bool:
        return self._exceeds(self.gap)

    @property
    def is_reliable(self) -> bool:
        figures = (self.gap, self.spread, self.scale, self.own_gap)
        return bool(np.isfinite(figures).all()) and not self._exceeds(self.own_gap)

    def _exceeds(self, gap: float) -> bool:
        return gap > max(1e3 * self.spread, 1e-11 * self.scale)


def judge(network: Callable[[Data], Tensor], a: Data, b: Data, generator: torch.Generator) -> Verdict:
    """Run a network, which maps a batch to ``[num_graphs, channels]``, on relabellings of both graphs."""
    copies = [relabelled(data, generator) for data in (a, a, b) for _ in range(RELABELLINGS)]
    with torch.no_grad():
        at_once = max(1, NODES // a.num_nodes)
        parts = [copies[first : first + at_once] for first in range(0, len(copies), at_once)]
        rows = torch.cat([network(Batch.from_data_list(part)) for part in parts])
        one, again, other = rows.split(RELABELLINGS)

    def spread(rows: Tensor) -> Tensor:
        return (rows - rows.mean(0)).abs().max()

    return Verdict(
        gap=float((one.mean(0) - other.mean(0)).abs().max()),
        spread=float(torch.maximum(spread(one), spread(other))),  # NaN if either is NaN
        scale=float(rows.abs().max()),
        own_gap=float((one.mean(0) - again.mean(0)).abs().max()),
    )


def relabelled(data: Data, generator: torch.Generator) -> Data:
    label = torch.randperm(data.num_nodes, generator=generator)
    return Data(edge_index=label[data.edge_index], num_nodes=data.num_nodes)


def network_row(
    name: str, pairs: Sequence[Pair], seeds: Sequence[int], bound: Callable[[Pair], bool]
) -> dict[str, Any]:
    """Count the pairs that a network tells apart, and those among them that its bound does not."""
    make, _ = NETWORKS[name]
    verdicts: list[list[Verdict]] = [[] for _ in pairs]
    for seed in seeds:
        network = with_random_weights(make, seed)
        for number, pair in enumerate(pairs):
            generator = torch.Generator().manual_seed(number)
            verdicts[number].append(
                judge(lambda batch: network(None, batch.edge_index, None, batch.batch), pair.a, pair.b, generator)  # noqa: B023
            )
    apart, unreliable = zip(*map(count, verdicts), strict=True)
    return {
        "row": name,
        "kind": "network",
        **counts(pairs, apart),
        "unreliable": sum(unreliable),
        "bound": NETWORKS[name][1],
        "beyond": sum(is_apart and not bound(pair) for is_apart, pair in zip(apart, pairs, strict=True)),
        "seeds": list(seeds),
    }


def count(verdicts: Sequence[Verdict]) -> tuple[bool, bool]:
    """Return whether any seed tells a pair apart, and whether the network is unreliable on it with any seed."""
    unreliable = not all(verdict.is_reliable for verdict in verdicts)
    return not unreliable and any(verdict.is_apart for verdict in verdicts), unreliable


def counts(pairs: Sequence[Pair], apart: Sequence[bool]) -> dict[str, Any]:
    found = Counter({pair.category: 0 for pair in pairs})
    found.update(pair.category for pair, is_apart in zip(pairs, apart, strict=True) if is_apart)
    return {"counts": dict(found), "total": sum(apart), "num_pairs": len(pairs)}


def main() -> None:
    parser = Parser(__doc__, "three pairs that are drawn", "brec.json")
    parser.add_argument("--data", type=Path, help="folder of pairs.csv")
    parser.add_argument("--rows", nargs="+", choices=[*GROUPS, *EVERY], default=list(GROUPS), metavar="ROW")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the weights (default: 0)")
    args = parser.parse_args()
    if args.data is None and not args.quick:
        parser.error("--data DIR is missing, the folder of pairs.csv")

    pairs = drawn_pairs() if args.quick else read_pairs(args.data)
    rows = {row["row"]: row for row in earlier_rows(args.json)}
    if other := {row["num_pairs"] for row in rows.values()} - {len(pairs)}:
        parser.error(f"{args.json} has rows of {sorted(other)} pairs, these are {len(pairs)}: give another --json FILE")
    for name in dict.fromkeys(name for chosen in args.rows for name in GROUPS.get(chosen, [chosen])):
        start = time.perf_counter()
        if name in ORACLES:
            row = {"row": name, "kind": "oracle", **counts(pairs, [ORACLES[name](pair) for pair in pairs])}
        else:
            row = network_row(name, pairs, args.seeds, ORACLES[NETWORKS[name][1]])
        rows[name] = {**row, "seconds": time.perf_counter() - start}
        show(rows[name])
        write_results(args.json, [rows[known] for known in EVERY if known in rows])


if __name__ == "__main__":
    main()
