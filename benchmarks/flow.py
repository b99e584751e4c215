"""Predict what AC power flow adds to DC power flow, on power grids larger than those trained on.

    python benchmarks/flow.py --data DIR [--rows NAME ...] [--backbones NAME ...] [--seeds 0 1 2] [--quick] [--collect]

The grids are those of pandapower (flow-requirements.txt), with every load and generator drawn within 30 % and, in half
of the graphs, one line taken out; Newton's method computes the labels. Draws that do not converge or that cut a bus off
are skipped and counted. DIR keeps grids and encodings, and --out the figures of complete runs, which are not repeated.

Nodes are buses, edges are lines and transformers, merged where they are parallel; `edge_weight` is one over their
reactance. Powers and impedances are relative to a power of each grid: the root mean square of its DC flows. One model
learns four labels, and the figures are R2, averaged over the draws of a grid:

- flow, loading: at edges, active power (the mean of both ends) and apparent power, less those of DC power flow;
- voltage, angle: at buses that do not control their voltage; the angle less that of DC power flow.

"whole flow" is R2 of the active power itself. "outages" is the average precision of finding overloaded branches after
outages of a line, by loading over limit: the known loading before, and the predicted change. The limit is 1.2 times the
loading before and a tenth of the mean. "DC, untrained" adds nothing, and "flow of losses, untrained" adds the DC flow
of the losses r f^2 of DC flows f, which the slack bus supplies. Of the trained rows, "DC" reads potentials, flows and
losses of DC power flow, "flow of losses" those of the second, too, and "flow" learns its demands, by ElectricFlow.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _arguments import Parser
from _measure import timed
from _results import show, write_results
from _runs import slug
from grid import BACKBONES, ROWS
from scipy.sparse.linalg import splu
from sklearn.metrics import average_precision_score, r2_score
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_add_pool

from tg_lpe import Graph, GraphTransformer
from tg_lpe.app.training.build import start_encoder
from tg_lpe.checkpoints.files import read_json, write_json
from tg_lpe.data import DataSpec
from tg_lpe.encoders import ElectricFlow, without_edges

SMALL = ["case14", "case24_ieee_rts", "case30", "case39", "case57", "case89pegase", "case118", "case_illinois200"]
SMALL += ["case300", "case1354pegase"]
"""Grids for training, without case145, an equivalent with losses below zero."""
LARGE = ["case2869pegase", "case9241pegase"]

ENCODERS = {name: ROWS[name] for name in ("walks", "eigenvectors", "positions-k16", "universal-k32")}
ENCODERS["weighted walks"] = ROWS["walks"]
"""Encodings of grid.py, of weighted edges but for "walks"."""
PARTS: dict[str, tuple[str, ...]] = {
    **{"none": (), "DC": ("DC",), "flow": ("DC",), "flow of losses": ("DC", "losses"), "R-PEARL": ()},
    **{name: (name,) for name in ENCODERS},
}
"""Rows, and what their models read beside features."""

FIGURES = ("flow", "loading", "voltage", "angle", "whole flow", "outages")
EPOCHS, WIDTH, DEMANDS = 30, 64, 8
"""Passes over the training set, channels of a node that the maps to labels read, and learned demands."""


class Grid:
    """Draw and solve operating points of one of pandapower's grids."""

    def __init__(self, name: str) -> None:
        import pandapower
        from pandapower import networks

        self.solver, self.net = pandapower, getattr(networks, name)()
        self.random, self.tried, self.solved = np.random.default_rng(0), 0, 0
        self.powers = {table: self.net[table].filter(["p_mw", "q_mvar"]).copy() for table in ("load", "sgen", "gen")}

    def solve(self, has_outage: bool, is_new: bool = False) -> Data | None:
        """Return the graph with or without a random line, and new or the last loads; ``None`` if it is skipped."""
        for table, powers in self.powers.items() if is_new else ():
            self.net[table][powers.columns] = powers.mul(self.random.uniform(0.7, 1.3, len(powers)), axis=0)
        line = self.random.choice(self.net.line.index)
        self.net.line.loc[line, "in_service"] = not has_outage
        self.tried += 1
        try:
            self.solver.runpp(self.net, numba=False)
        except self.solver.LoadflowNotConverged:
            return None
        finally:
            self.net.line.loc[line, "in_service"] = True
        internal = self.net._ppc["internal"]
        if len(internal["bus"]) < len(self.net.bus):
            return None
        self.solved += 1
        return solved(internal)

    def draws(self, count: int) -> list[Data]:
        """Return the solved ones of some draws, of which every other one has an outage."""
        return [graph for number in range(count) if (graph := self.solve(number % 2 == 1, is_new=True))]

    def outages(self, count: int) -> list[Data]:
        """Return a graph and those after some outages, each with its limits and its edges' places in the first."""
        intact = next(graph for _ in repeat(None) if (graph := self.solve(has_outage=False, is_new=True)))
        intact.before = intact.edge_labels[:, 1] + intact.dc_flow.abs()
        limit = 1.2 * intact.before + 0.1 * intact.before.mean()
        place = {edge: number for number, edge in enumerate(zip(*intact.edge_index[:, ::2].tolist(), strict=True))}
        found = [intact, *(graph for graph in (self.solve(has_outage=True) for _ in range(count)) if graph)]
        for graph in found:
            graph.place = torch.tensor([place[edge] for edge in zip(*graph.edge_index[:, ::2].tolist(), strict=True)])
            graph.limit = limit[graph.place] * (intact.scale / graph.scale)
        return found


def solved(internal: dict[str, Any]) -> Data:
    """Return the graph of a solved power flow. Edges 2i and 2i + 1 are the directions of one edge."""
    bus, branch, volts = internal["bus"].real, internal["branch"].real, internal["V"]
    slack, rest = internal["ref"][0], np.delete(np.arange(len(bus)), internal["ref"])
    tail, head = branch[:, :2].astype(int).T
    sign = np.where(tail < head, 1, -1)
    keys, edge = np.unique(np.minimum(tail, head) * len(bus) + np.maximum(tail, head), return_inverse=True)
    factors = splu(internal["Bbus"].tocsc()[rest][:, rest])

    def potentials(demand: np.ndarray) -> np.ndarray:
        return np.insert(factors.solve(demand[rest]), slack, 0)

    def merged(values: np.ndarray) -> np.ndarray:
        return np.bincount(edge, values, len(keys))

    sent, received = volts[tail] * (internal["Yf"] @ volts).conj(), volts[head] * (internal["Yt"] @ volts).conj()
    injected = internal["Sbus"].real - bus[:, 4] / internal["baseMVA"]
    injected[slack] = -injected[rest].sum()
    angles = potentials(injected - internal["Pbusinj"])
    dc = internal["Bf"] @ angles + internal["Pfinj"]
    losses = branch[:, 2] * dc**2
    of_losses = potentials(-np.bincount(tail, losses / 2, len(bus)) - np.bincount(head, losses / 2, len(bus)))

    flow = merged(dc * sign)
    scale = float(np.sqrt(np.square(flow).mean()))
    loading = merged(abs(sent) + abs(received)) / 2
    admittance = 1 / (branch[:, 2] + 1j * branch[:, 3])
    impedance = scale / (merged(admittance.real) + 1j * merged(admittance.imag))
    powers = np.arcsinh(np.stack([injected, *(bus[:, [3, 5]].T / internal["baseMVA"])]) / scale)
    kinds = bus[:, 1] == np.array([[1], [2], [3]])
    control = 10 * (abs(volts) - 1) * ~kinds[0]
    even = [*np.log([abs(impedance.imag), impedance.real.clip(1e-6)])]
    even += [*np.arcsinh([impedance.real / impedance.imag, merged(branch[:, 4]) / scale])]
    odd = [10 * merged(np.log(branch[:, 8] + (branch[:, 8] == 0)) * sign), merged(branch[:, 9] * sign) / 60]
    pairs = torch.from_numpy(np.stack([keys // len(bus), keys % len(bus)]))
    edge_labels = np.stack([merged((sent - received).real * sign) / 2 - flow, loading - abs(flow)], 1) / scale
    return Data(
        x=tensor([*powers, np.log(bus[:, 9]), *kinds, control]),
        edge_index=torch.stack([pairs, pairs.flip(0)], 2).flatten(1),
        edge_attr=directed(even, odd),
        edge_weight=tensor([abs(merged(1 / branch[:, 3]))]).squeeze(1).repeat_interleave(2),
        edge_labels=tensor(edge_labels.T),
        node_labels=tensor([abs(volts) - 1, np.angle(volts / volts[slack]) - angles]),
        is_free=torch.from_numpy(kinds[0]),
        is_slack=tensor(kinds[2:]),
        scale=scale,
        dc_flow=tensor([flow / scale]).squeeze(1),
        flows={
            "DC": (tensor([angles]), directed([merged(losses) / scale], [flow / scale])),
            "losses": (tensor([of_losses]), directed([], [merged(internal["Bf"] @ of_losses * sign) / scale])),
        },
    )


def tensor(columns: Sequence[np.ndarray]) -> Tensor:
    """Return the rows of columns."""
    return torch.from_numpy(np.stack(columns, 1)).float()


def directed(even: list[np.ndarray], odd: list[np.ndarray]) -> Tensor:
    """Return features of directed edges, of which the odd ones change their sign with the direction."""
    return torch.stack([tensor([*even, *odd]), tensor([*even, *(-column for column in odd)])], 1).flatten(0, 1)


def cached(file: Path, make: Callable[[], Any]) -> Any:
    """Return what a file holds, which is made if it is absent."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(make(), file)
    return torch.load(file, weights_only=False)


def draws_of(name: str, args: argparse.Namespace) -> tuple[dict[str, list[Data]], dict[str, int]]:
    """Return the graphs of a grid by purpose, and how many draws were tried and solved."""

    def make() -> tuple[dict[str, list[Data]], dict[str, int]]:
        grid = Grid(name)
        train, test, outages = (4, 2, 10) if args.quick else (0 if name in LARGE else 60, 6, 30)
        graphs = {"train": grid.draws(train), "test": grid.draws(test), "outages": grid.outages(outages)}
        return graphs, {"tried": grid.tried, "solved": grid.solved}

    return cached(args.data / f"{name}.pt", make)


@torch.no_grad()
def encodings(part: str, graphs: list[Data]) -> list[tuple[Tensor | None, ...]]:
    """Return the encoding of nodes and edges of each graph, and no potentials."""
    encoder = start_encoder(ENCODERS[part].encoder, DataSpec()).eval()
    encoder = encoder if ENCODERS[part].edge_encoding else without_edges(encoder)
    found, known = [], {}
    for graph in graphs:
        key = graph.edge_index.numpy().tobytes() + graph.edge_weight.numpy().tobytes()
        if key not in known:
            known[key] = encoder(None, Graph.from_data(graph, edge_weight=None if part == "walks" else "edge_weight"))
        node, edge = known[key].node.float(), known[key].edge
        found.append((node, None if edge is None else edge.float(), None))
    return found


def transformer(row: str, backbone: str, graph: Data) -> GraphTransformer:
    """Make the model of the library that reads the features and the encoding of graphs like this one."""
    pe, edge_pe = (graph[name].size(1) if name in graph else 0 for name in ("pe", "edge_pe"))
    options = BACKBONES[backbone]
    # statistics of batch norm in training do not hold on larger graphs
    attention_options = {**options.get("attention_options", {}), "norm": "layer"}
    return GraphTransformer(
        in_channels=graph.x.size(1),
        edge_dim=graph.edge_attr.size(1),
        pe_channels=pe or None,
        pe_options={"norm": True, "edge_channels": edge_pe or None},
        encoder=start_encoder(ROWS[row].encoder, DataSpec()) if row == "R-PEARL" else None,
        readout={"level": "node", "hidden": []},
        out_channels=WIDTH,
        **{**options, "attention_options": attention_options},
    )


def with_encodings(row: str, name: str, args: argparse.Namespace) -> dict[str, list[Data]]:
    """Return the graphs of a grid by purpose, with what a row reads as ``pe``, ``edge_pe`` and ``potentials``."""
    found = draws_of(name, args)[0]
    for purpose, graphs in found.items():
        read = [
            cached(args.data / f"{name}-{purpose}-{slug(part)}.pt", partial(encodings, part, graphs))
            if part in ENCODERS
            else [(None, *reversed(graph.flows[part])) for graph in graphs]
            for part in PARTS[row]
        ]
        for graph, *columns in zip(graphs, *read, strict=True):
            for which, where in enumerate(("pe", "edge_pe", "potentials")):
                if some := [column[which] for column in columns if column[which] is not None]:
                    graph[where] = torch.cat(some, 1)
            del graph.flows
    return found


class Predictor(nn.Module):
    """Predict labels of edges and nodes by a model of the library and maps of its nodes."""

    def __init__(self, row: str, backbone: str, graphs: list[Data]) -> None:
        super().__init__()
        graph, added = graphs[0], DEMANDS if row == "flow" else 0
        edge_pe, potentials = (graph[name].size(1) if name in graph else 0 for name in ("edge_pe", "potentials"))
        width = graph.edge_attr.size(1) + edge_pe
        self.demands = nn.Sequential(nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, added)) if added else None
        self.flow = ElectricFlow(list(range(DEMANDS)))
        self.backbone = transformer(row, backbone, graph)
        self.of_nodes, self.of_angles = nn.Linear(WIDTH, 2), nn.Linear((potentials or 1) + added, 1, bias=False)
        self.of_edges = nn.Sequential(nn.Linear(2 * WIDTH + width + added, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
        for name in ("edge_labels", "node_labels"):
            self.register_buffer(name, torch.cat([graph[name] for graph in graphs]).std(0))

    def forward(self, data: Data) -> tuple[Tensor, Tensor]:
        """Return labels of edges ``[num_edges, 2]``, of which flow is odd and loading even, and of nodes."""
        encoding, (tail, head) = {name: data[name] for name in ("pe", "edge_pe") if name in data}, data.edge_index
        columns = [data[name] for name in ("edge_attr", "edge_pe") if name in data]
        potentials = data["potentials"] if "potentials" in data else torch.zeros(len(data.x), 1)
        if self.demands is not None:
            at_nodes = global_add_pool(self.demands(torch.cat(columns, 1)), head, len(data.x))
            missing = data.is_slack * global_add_pool(at_nodes, data.batch)[data.batch]
            found = self.flow(at_nodes - missing, data.edge_index, None, data.batch, data.edge_weight)
            columns, potentials = [*columns, found.edge], torch.cat([potentials, found.node], 1)
        h = self.backbone(data.x, data.edge_index, data.edge_attr, data.batch, **encoding)
        one, other = self.of_edges(torch.cat([h[tail], h[head], *columns], 1)).unflatten(0, (-1, 2)).unbind(1)
        edges = torch.stack([one[:, 0] - other[:, 0], one[:, 1] + other[:, 1]], 1)
        nodes = self.of_nodes(h.relu()) + nn.functional.pad(self.of_angles(potentials), (1, 0))
        return edges * self.edge_labels, nodes * self.node_labels

    def loss(self, batch: Data) -> Tensor:
        """Return the loss of labels relative to their spread."""
        edges, nodes = self(batch)
        wrong = (nodes - batch.node_labels)[batch.is_free] / self.node_labels
        wrong = torch.cat([wrong.flatten(), ((edges - batch.edge_labels) / self.edge_labels).flatten()])
        return nn.functional.huber_loss(wrong, torch.zeros_like(wrong))


def train(model: nn.Module, loss_of: Callable[[Data], Tensor], graphs: list[Data], epochs: int, size: int = 8) -> None:
    """Train with Adam in batches of a size, and a learning rate that rises and falls."""
    loader = DataLoader(graphs, batch_size=size, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=epochs * len(loader))
    for batch in (batch for _ in range(epochs) for batch in loader):
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def figures(predict: Callable[[Data], tuple[Tensor, Tensor]], parts: dict[str, list[Data]]) -> dict[str, Any]:
    """Return the figures of predicted labels on a grid, and the R2 of the flow of each draw."""
    rows, scores, overloads = [], [], []
    for graph in DataLoader(parts["test"]):
        (edges, nodes), free, flow = predict(graph), graph.is_free, graph.dc_flow
        labels = [*graph.edge_labels.T, *graph.node_labels[free].T, graph.edge_labels[:, 0] + flow]
        found = [*edges.T, *nodes[free].T, edges[:, 0] + flow]
        rows.append([r2_score(*pair) for pair in zip(labels, found, strict=True)])
    intact, *others = DataLoader(parts["outages"])
    before = intact.before - intact.dc_flow.abs() - predict(intact)[0][:, 1]
    for graph in others:
        known = before[graph.place] * (intact.scale / graph.scale) + graph.dc_flow.abs()
        scores.append((known + predict(graph)[0][:, 1]) / graph.limit)
        overloads.append(graph.dc_flow.abs() + graph.edge_labels[:, 1] > graph.limit)
    values = [*map(statistics.fmean, zip(*rows, strict=True))]
    values.append(float(average_precision_score(torch.cat(overloads), torch.cat(scores))))
    return {**dict(zip(FIGURES, values, strict=True)), "each": [row[0] for row in rows]}


def of_losses(graph: Data, share: float) -> tuple[Tensor, Tensor]:
    """Return the labels that the DC flow of losses predicts, times a number."""
    flow, angle = share * graph.edge_pe[::2, -1], share * graph.potentials[:, 1]
    loading = (graph.dc_flow + flow).abs() - graph.dc_flow.abs()
    return torch.stack([flow, loading], 1), torch.stack([torch.zeros_like(angle), angle], 1)


def run(row: str, backbone: str, seed: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Train a row, and return an entry with its figures for each grid."""
    torch.manual_seed(seed)
    grids = {name: with_encodings(row, name, args) for name in args.grids}
    graphs, start = [graph for parts in grids.values() for graph in parts["train"]], time.process_time()
    model = Predictor(row, backbone, graphs)
    train(model, model.loss, graphs, 2 if args.quick else EPOCHS)
    about = {"row": row, "backbone": backbone, "seed": seed, "seconds": time.process_time() - start}
    about["parameters"] = sum(weight.numel() for weight in model.parameters())
    return [{"grid": name, **about, **figures(model.eval(), parts)} for name, parts in grids.items()]


def main() -> None:
    if importlib.util.find_spec("pandapower") is None:
        sys.exit("flow.py needs pandapower: pip install -r benchmarks/flow-requirements.txt")
    parser = Parser(__doc__, "three small grids, 2 epochs", "flow.json")
    parser.add_argument("--data", type=Path, metavar="DIR", help="of grids and encodings (default: in --out)")
    parser.add_argument("--rows", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME")
    parser.add_argument("--backbones", nargs="+", choices=BACKBONES, default=list(BACKBONES), metavar="NAME")
    parser.add_options("--seeds", "--collect")
    args = parser.parse_args()
    args.grids, args.data = [*SMALL, *LARGE], args.data or args.out / "grids"
    if args.quick:
        args.grids, args.rows, args.backbones = SMALL[:3], ["none", "flow", "walks", "R-PEARL"], ["gine"]
    for seed, row, backbone in () if args.collect else product(args.seeds, args.rows, args.backbones):
        file = args.out / backbone / f"{slug(row)}-s{seed}.json"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {"results": run(row, backbone, seed, args)})
            show({"row": row, "backbone": backbone, "seed": seed})
    results, untrained = [], ("DC, untrained", "flow of losses, untrained")
    for share, grid in product((0, 1), args.grids):
        parts = with_encodings("flow of losses", grid, args)
        found, seconds = timed(partial(figures, partial(of_losses, share=share), parts))
        results.append({"grid": grid, "row": untrained[share], "seconds": seconds, **found})
    for file in sorted(args.out.glob("*/*-s[0-9]*.json")):
        results += read_json(file)["results"]
    write_results(args.json, results, draws={name: draws_of(name, args)[1] for name in args.grids})


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*is too large to be encoded exactly")
    main()
