"""Measure the speed of spectral attention: missing pairs, training steps.

    python benchmarks/spectral_attention.py [--data ZINC12K_DIR] [--quick] [--json FILE]

- Attention over missing pairs, and over missing pairs and edges, forward and backward, for batches of 16 graphs of
  CLUSTER (117 nodes on average) with 48 channels and 8 heads. Two methods give the same result, which is checked:
  batched products of padded graphs under a mask, and a list of all pairs. Edges have one common feature, as in CLUSTER,
  or a feature each, as with an encoding of edges; then both methods gather at edges.
- A training step of the published model for ZINC-12k with batches of 32: with feed-forward nets of 2048 channels in its
  encoding, with 64 channels, and with the encodings that do not depend on signs and bases.

The methods of a group take turns, so that other load affects all of them. Times are medians of the CPU time of this
process with one thread. Without --data, the molecules are those that ship with RDKit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from _arguments import Parser
from _measure import take_turns
from _results import show, write_results
from torch import Tensor, nn
from torch_geometric.loader import DataLoader

from tg_lpe.app.datasets.block_models import cluster_graphs
from tg_lpe.app.molecules import load_molecules
from tg_lpe.app.training.build import build_model
from tg_lpe.app.training.config import TrainConfig
from tg_lpe.app.training.joint import JointTraining
from tg_lpe.app.training.presets import san
from tg_lpe.app.training.tasks import Regression
from tg_lpe.encoders import SpectralKernel
from tg_lpe.graph.graph import Graph
from tg_lpe.nn.attention.spectral import MissingPairs, SpectralAttention, missing_pairs
from tg_lpe.ops.attention import SCORE_BOUND

CHANNELS, HEADS, GAMMA, BATCH = 48, 8, 0.1, 16
"""Settings of the published model for CLUSTER."""

Group = dict[str, tuple[int, Callable[[], Any]]]
"""Number of graphs and function of each method."""


class PairList(SpectralAttention):
    """Compute the attention with lists of pairs, made once for a batch."""

    edges: Tensor
    missing: Tensor

    def _over_pairs(
        self, h: Tensor, feature: Tensor, value: Tensor, pairs: MissingPairs, gamma: Tensor | float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        found, total = self._over_list(self.edges, self.query(h), self.key(h), self.edge, feature, value)
        other, rest = self._over_missing(h, value, pairs)
        return found + gamma * other, total + gamma * rest, other, rest

    def _over_missing(self, h: Tensor, value: Tensor, pairs: MissingPairs) -> tuple[Tensor, Tensor]:
        query, key = self.missing_query(h), self.missing_key(h)
        return self._over_list(self.missing, query, key, self.missing_edge, pairs.feature, value)

    def _over_list(
        self, ends: Tensor, query: Tensor, key: Tensor, edge: nn.Linear, feature: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        (target, source), query = ends, query * self._scale(query)
        logits = (query * edge(feature))[target] * key[source]
        weight = logits.unflatten(1, (HEADS, -1)).sum(2).clamp(-SCORE_BOUND, SCORE_BOUND).exp()
        values = value[source].unflatten(1, (HEADS, -1)) * weight.unsqueeze(2)
        found = torch.zeros_like(value.unflatten(1, (HEADS, -1))).index_add(0, target, values)
        return found, weight.new_zeros(len(value), HEADS).index_add(0, target, weight).unsqueeze(2)


def attention_groups() -> dict[str, Group]:
    """Return passes over a batch of CLUSTER."""
    batch = next(iter(DataLoader(cluster_graphs(BATCH, 0), BATCH)))
    neighbourhoods = Graph(batch.edge_index, batch=batch.batch, num_graphs=BATCH)
    # Made once for a batch and used by all layers.
    pairs = missing_pairs(neighbourhoods, torch.randn(CHANNELS).requires_grad_())
    listed = []
    for mask, node in zip(pairs.missing, pairs.rows.pad(torch.arange(len(batch.batch))), strict=True):
        graph, target, source = mask.nonzero().T
        listed.append(torch.stack([node[graph, target], node[graph, source]]))
    by_list, batched = (cls(CHANNELS, HEADS, True, GAMMA) for cls in (PairList, SpectralAttention))
    by_list.missing, by_list.edges = torch.cat(listed, dim=1), neighbourhoods.edges_by_target.flip(0)
    batched.load_state_dict(by_list.state_dict())
    methods = {"pair list": by_list, "batched products": batched}
    h = torch.randn(neighbourhoods.num_nodes, CHANNELS).requires_grad_()
    features = {
        "of one feature": torch.randn(CHANNELS).requires_grad_().expand(neighbourhoods.num_directed_edges, -1),
        "of features of their own": torch.randn(neighbourhoods.num_directed_edges, CHANNELS).requires_grad_(),
    }
    for e in features.values():
        with torch.no_grad():
            found = (method(h, e, neighbourhoods, pairs) for method in methods.values())
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)

    def missing(method: SpectralAttention) -> None:
        found, total = method._over_missing(h, method.value(h), pairs)
        (found.sum() + total.sum()).backward()
        method.zero_grad(set_to_none=True)

    def full(method: SpectralAttention, e: Tensor) -> None:
        method(h, e, neighbourhoods, pairs).sum().backward()
        method.zero_grad(set_to_none=True)

    passes: dict[str, Callable[[SpectralAttention], None]] = {"missing pairs": missing}
    passes |= {f"edges {name} and missing pairs": partial(full, e=e) for name, e in features.items()}
    return {
        what: {name: (BATCH, partial(run, method)) for name, method in methods.items()} for what, run in passes.items()
    }


def step_group(splits: Any) -> Group:
    """Return training steps of the published model."""
    options = san("train", "zinc12k", {"class": "SpectralEncoder"})
    model = {name.removeprefix("model."): value for name, value in options.items() if name.startswith("model.")}
    published = {"class": "SpectralEncoder", **options["encoder"]}
    encoders: dict[str, dict[str, Any]] = {
        "eigenvectors, 2048 channels": published,
        "eigenvectors, 64 channels": {**published, "feedforward_channels": 64},
        "eigenspaces, 64 channels": {**published, "feedforward_channels": 64, "tokens": "eigenspaces"},
        "kernel": {"class": SpectralKernel.__name__, "edge_out_channels": 0, "num_eigenpairs": 10},
        "none": {},
    }
    config = TrainConfig(batch_size=options["batch_size"], precision="float32")
    few = {part: getattr(splits, part).copy(torch.arange(64)) for part in ("train", "val", "test")}
    splits = type(splits)(**{**vars(splits), **few})
    group = {}
    for name, encoder in encoders.items():
        training = JointTraining(
            config,
            build_model(splits.spec, Regression(), encoder or None, **model),
            splits,
            Regression(),
            progress=False,
        )
        training.model.train()
        batch = next(iter(DataLoader(training.train_set, config.batch_size)))

        def step(training: JointTraining = training, batch: Any = batch) -> None:
            loss = training.loss(batch, torch.Generator().manual_seed(0))
            training.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            training.optimizer.step()

        group[name] = config.batch_size, step
    return group


def measure(what: str, group: Group, repeats: int) -> list[dict[str, Any]]:
    """Measure the methods of a group in turn, and return their rows."""
    seconds = take_turns({name: run for name, (_, run) in group.items()}, repeats)
    first, rows = np.array(next(iter(seconds.values()))), []
    for name, times in seconds.items():
        cpu = float(np.median(times))
        # The median of ratios of the same turn varies less than the ratio of medians.
        row = {"what": what, "method": name, "seconds": cpu, "ratio": float(np.median(first / np.array(times)))}
        rows.append({**row, "graphs_per_second": group[name][0] / cpu})
        show(rows[-1])
    return rows


def main() -> None:
    parser = Parser(__doc__, "few repetitions", "spectral_attention.json")
    parser.add_argument("--data", metavar="DIR", help="folder of ZINC-12k")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    splits = load_molecules(args.data or "nci", name="zinc12k" if args.data else "nci", progress=False)
    repeats = 2 if args.quick else 20
    results = []
    for what, group in attention_groups().items():
        results += measure(what, group, repeats)
    results += measure("a step of the model for ZINC-12k", step_group(splits), repeats)
    write_results(args.json, results, data="zinc12k" if args.data else "nci")


if __name__ == "__main__":
    main()
