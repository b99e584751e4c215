"""Predict what a simulator computes for water networks, on a network larger than those trained on.

    python benchmarks/water.py --data DIR [--rows NAME ...] [--backbones NAME ...] [--seeds 0 1 2] [--quick] [--collect]

The networks are wntr's Net3, ky4 and ky10 for training and Net6 for the test, with the demand of every junction drawn
within 30 % and levels of tanks over their range; EPANET computes heads and flows. Models, rows and training are those
of flow.py. "DC" is the linear electric flow of the network: pipes have the conductance of water at 1 m/s by Hazen and
Williams, heads of tanks and reservoirs are given, pumps lift by their curve or by 40 m. "losses" is what a second
linear flow adds, of pipes at the speeds of the first. Reducing valves are open pipes to it.

The figures are R2, averaged over the draws of a network: "flow" of flows less those of DC, "whole flow" of flows, and
of the pressure at junctions, predicted by itself or as a difference to that of DC.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flow
import numpy as np
import torch
from flow import cached, directed, r2, tensor
from scipy.sparse import coo_array
from scipy.sparse.linalg import spsolve
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

SMALL, LARGE = ["Net3", "ky4", "ky10"], ["Net6"]
HEAD, LIFT, SPEED = 50.0, 40.0, 1.0
"""Metres that heads are divided by and that pumps without a curve lift, and metres a second of the first flow."""
FIGURES = ("flow", "whole flow", "pressure", "pressure on DC")


class Network:
    """Draw and solve operating points of one of wntr's networks."""

    def __init__(self, name: str) -> None:
        import wntr

        self.simulate, self.net = wntr.sim.EpanetSimulator, wntr.network.WaterNetworkModel(name)
        self.net.options.time.duration = 0
        self.random, self.tried, self.solved = np.random.default_rng(0), 0, 0
        self.demands = [
            (one, one.base_value) for _, node in self.net.junctions() for one in node.demand_timeseries_list
        ]

    def draws(self, count: int) -> list[Data]:
        """Return the solved ones of some draws."""
        return [graph for _ in range(count) if (graph := self.solve()) is not None]

    def solve(self) -> Data | None:
        """Return the graph of new demands and levels; ``None`` if it is skipped."""
        for demand, base in self.demands:
            demand.base_value = base * self.random.uniform(0.7, 1.3)
        for _, tank in self.net.tanks():
            tank.init_level = self.random.uniform(tank.min_level, tank.max_level)
        self.tried += 1
        with tempfile.TemporaryDirectory() as folder:
            found = self.simulate(self.net).run_sim(file_prefix=str(Path(folder, "run")))
        if found.error_code is not None or found.node["head"].isna().any(axis=None):
            return None
        self.solved += 1
        return self.graph(found)

    def graph(self, found: Any) -> Data:
        """Return the graph of open links. Edges 2i and 2i + 1 are the directions of one edge."""
        names = self.net.node_name_list
        number = {name: place for place, name in enumerate(names)}
        head, demand = (found.node[what].iloc[0][names].to_numpy(float) for what in ("head", "demand"))
        nodes = [self.net.get_node(name) for name in names]
        kinds = np.array([[node.node_type == kind for node in nodes] for kind in ("Junction", "Tank", "Reservoir")])
        status, rate = found.link["status"].iloc[0], found.link["flowrate"].iloc[0]
        links = [(name, link) for name, link in self.net.links() if status[name] != 0]
        tail, head_of = np.array([[number[link.start_node_name], number[link.end_node_name]] for _, link in links]).T
        sign = np.where(tail < head_of, 1, -1)
        keys, edge = np.unique(np.minimum(tail, head_of) * len(names) + np.maximum(tail, head_of), return_inverse=True)

        def merged(values: np.ndarray) -> np.ndarray:
            return np.bincount(edge, values, len(keys))

        is_pipe = np.array([link.link_type == "Pipe" for _, link in links])
        loss, area = np.array([resistance(link) for _, link in links]).T
        lift = np.array([lifted(link) for _, link in links])

        def linear(flows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            """Return conductances, heads and flows, of pipes that are linear at given flows."""
            weights = 1 / (loss * np.maximum(abs(flows), 1e-3 * SPEED * area) ** 0.852)
            weights[~is_pipe] = np.median(weights[is_pipe])
            heads = potentials(tail, head_of, weights, lift, demand, np.where(kinds[0], np.nan, head))
            return weights, heads, weights * (heads[tail] + lift - heads[head_of])

        weights, heads, flows = linear(SPEED * area)
        _, later_heads, later_flows = linear(flows)
        dc = merged(flows * sign)
        scale, middle = float(np.sqrt(np.square(dc).mean())), head[~kinds[0]].mean()
        elevation = np.array([n.base_head if n.node_type == "Reservoir" else n.elevation for n in nodes])
        rates = merged(rate[[name for name, _ in links]].to_numpy(float) * sign)
        fixed = np.where(kinds[0], 0, head - middle) / HEAD
        conductances = merged(weights)
        even = [np.log(conductances * HEAD / scale), merged(~is_pipe), np.log(merged(area))]
        pairs = torch.from_numpy(np.stack([keys // len(names), keys % len(names)]))
        changes = (heads, later_heads - heads), (dc, merged(later_flows * sign) - dc)
        return Data(
            x=tensor([np.arcsinh(demand * kinds[0] / scale), (elevation - middle) / HEAD, *kinds, fixed]),
            edge_index=torch.stack([pairs, pairs.flip(0)], 2).flatten(1),
            edge_attr=directed(even, [merged(lift * sign) / HEAD]),
            edge_weight=tensor([conductances / np.median(conductances)]).squeeze(1).repeat_interleave(2),
            edge_labels=tensor([rates - dc, abs(rates) - abs(dc)]) / scale,
            node_labels=tensor([(head - elevation) / HEAD - 1, (head - heads) / HEAD]),
            is_free=torch.from_numpy(kinds[0]),
            is_slack=tensor([~kinds[0] / (~kinds[0]).sum()]),
            dc_flow=tensor([dc / scale]).squeeze(1),
            flows={
                name: (tensor([(at_nodes - middle * (name == "DC")) / HEAD]), directed([], [at_edges / scale]))
                for name, at_nodes, at_edges in zip(("DC", "losses"), *changes, strict=True)
            },
        )


def resistance(link: Any) -> tuple[float, float]:
    """Return the metres that a pipe of Hazen and Williams loses at 1 m^3/s, and its area."""
    if link.link_type != "Pipe":
        return 1.0, np.pi / 4 * 0.3**2
    return 10.667 * link.length / (link.roughness**1.852 * link.diameter**4.871), np.pi / 4 * link.diameter**2


def lifted(link: Any) -> float:
    """Return the metres that a pump lifts at three quarters of its greatest head, and zero for other links."""
    if link.link_type != "Pump":
        return 0.0
    return 0.75 * link.get_head_curve_coefficients()[0] if link.pump_type == "HEAD" else LIFT


def potentials(
    tail: np.ndarray, head: np.ndarray, weights: np.ndarray, lift: np.ndarray, demand: np.ndarray, fixed: np.ndarray
) -> np.ndarray:
    """Return the heads of a linear network with demands, where those that are not NaN are given."""
    n, free = len(fixed), np.isnan(fixed)
    ends, others = np.concatenate([tail, head]), np.concatenate([head, tail])
    values = np.concatenate([weights, weights])
    matrix = coo_array((values, (ends, ends)), (n, n)) - coo_array((values, (ends, others)), (n, n))
    right = -demand + np.bincount(head, weights * lift, n) - np.bincount(tail, weights * lift, n)
    known = np.where(free, 0, fixed)
    matrix = matrix.tocsr() + 1e-9 * weights.mean() * coo_array((np.ones(n), (np.arange(n),) * 2), (n, n)).tocsr()
    heads = known.copy()
    heads[free] = spsolve(matrix[free][:, free].tocsc(), (right - matrix @ known)[free])
    return heads


def draws_of(name: str, args: argparse.Namespace) -> tuple[dict[str, list[Data]], dict[str, int]]:
    """Return the graphs of a network by purpose, and how many draws were tried and solved."""

    def make() -> tuple[dict[str, list[Data]], dict[str, int]]:
        network = Network(name)
        train, test = (4, 2) if args.quick else (0 if name in LARGE else 100, 10)
        graphs = {"train": network.draws(train), "test": network.draws(test)}
        return graphs, {"tried": network.tried, "solved": network.solved}

    return cached(args.data / f"{name}.pt", make)


@torch.no_grad()
def figures(predict: Callable[[Data], tuple[Tensor, Tensor]], parts: dict[str, list[Data]]) -> dict[str, float]:
    """Return the figures of predicted labels on a network."""
    rows = []
    for graph in DataLoader(parts["test"]):
        (edges, nodes), free = predict(graph), graph.is_free
        flows = graph.edge_labels[:, 0], edges[:, 0]
        whole = [one + graph.dc_flow for one in flows]
        pressure, residual = graph.node_labels[free].T
        rows.append([r2(*flows), r2(*whole), r2(pressure, nodes[free, 0])])
        rows[-1].append(r2(pressure, pressure - residual + nodes[free, 1]))
    return dict(zip(FIGURES, map(statistics.fmean, zip(*rows, strict=True)), strict=True))


def main() -> None:
    if importlib.util.find_spec("wntr") is None:
        sys.exit("water.py needs wntr: pip install -r benchmarks/flow-requirements.txt")
    flow.command(__doc__, "water.json", SMALL, LARGE, draws_of, figures)


if __name__ == "__main__":
    main()
