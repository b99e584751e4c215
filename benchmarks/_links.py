"""Link prediction on one graph with the model and the loop of tg_lpe.compare.

The model computes 64 numbers for each node, and the score of a pair is their inner product. 5 % of the edges are hidden
for validation, which chooses the best step, and 10 % for test; encoding, attention and training see only the others.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import RemoveSelfLoops

from tg_lpe.app.comparison import Candidate
from tg_lpe.app.comparison.grid import MODEL
from tg_lpe.app.datasets.nodes import load_node_graph
from tg_lpe.app.training import task_for
from tg_lpe.app.training.build import build_model
from tg_lpe.app.training.config import ONE_GRAPH
from tg_lpe.app.training.joint import JointTraining
from tg_lpe.app.training.loop import run_in_folder
from tg_lpe.app.training.run_folder import RunFolder, describe_model
from tg_lpe.data import GraphSplits, random_link_split

WIDTH = 64
"""Output channels of a node."""


class LinkTraining(JointTraining):
    """Train on the edges of one graph and evaluate on hidden edges."""

    def __init__(self, pairs: dict[str, Data], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.pairs, self.metric = pairs, "val_roc_auc"
        self.larger_is_better, self.best_value = True, -math.inf

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return the cross-entropy of the edges and of as many random pairs of nodes."""
        ends = batch.edge_index
        others = torch.randint(batch.num_nodes, ends.shape, generator=generator)
        labels = (torch.arange(2 * ends.size(1)) < ends.size(1)).float()
        scores = self.scores(self.predict(batch, generator), torch.cat([ends, others], dim=1))
        return F.binary_cross_entropy_with_logits(scores, labels)

    @staticmethod
    def scores(h: Tensor, ends: Tensor) -> Tensor:
        """Return the inner products of pairs of nodes."""
        return (h[ends[0]] * h[ends[1]]).sum(dim=1)

    @torch.no_grad()
    def shares(self, part: str) -> Tensor:
        """Return for each hidden edge the share of pairs without an edge that score less; their mean is the ROC-AUC."""
        self.model.eval()
        batch, pairs = Batch.from_data_list([self.train_set[0]]), self.pairs[part]
        scores, is_edge = self.scores(self.predict(batch), pairs.edge_label_index), pairs.edge_label == 1
        hidden, others = scores[is_edge].unsqueeze(1), scores[~is_edge]
        return ((hidden > others).float() + (hidden == others).float() / 2).mean(dim=1)

    def validate(self) -> dict[str, Any]:
        """Return the ROC-AUC on the edges hidden for validation."""
        return {self.metric: float(self.shares("val").mean())}

    def result(self) -> dict[str, Any]:
        """Return the ROC-AUC on the edges hidden for test, and the share of each edge."""
        shares = self.shares("test")
        return {"test_roc_auc": float(shares.mean()), "shares": shares.tolist()}


class Links:
    """Hide edges of a graph, always the same ones.

    Args:
        file: the graph, ``.npz``.
        has_features: whether to read its features.
    """

    def __init__(self, file: Path, has_features: bool) -> None:
        graph = RemoveSelfLoops()(load_node_graph(file, undirected=True))
        graph.num_nodes = graph.num_nodes  # without features, PyG would infer it from the edges
        if not has_features:
            del graph.x
        train, val, test = random_link_split(graph, 0)
        self.pairs = {"val": val, "test": test}
        known = Data(train.get("x"), train.edge_index, y=torch.zeros(graph.num_nodes, WIDTH), num_nodes=graph.num_nodes)
        self.splits = GraphSplits.of([known], [known], [known], level="node")
        self.task = task_for(self.splits, name="regression")

    def train(self, candidate: Candidate, seed: int, folder: Path) -> list[float]:
        """Train or resume with an encoding; return the shares of the hidden test edges."""
        rate = candidate.encoder_lr
        config = replace(ONE_GRAPH, seed=seed, **({} if rate is None else {"encoder_lr": rate}))
        options = {"seed": seed, "edge_encoding": candidate.edge_encoding, **MODEL, **(candidate.model or {})}
        options["dataset"] = self.splits.train
        model, run_folder = build_model(self.splits.spec, self.task, candidate.encoder, **options), RunFolder(folder)

        def make() -> LinkTraining:
            return LinkTraining(self.pairs, config, model, self.splits, self.task, run_folder, progress=False)

        settings = {**describe_model(model), "loop": config.to_dict()}
        result = run_in_folder(make, run_folder, "train", settings, resume=True, model=model)
        return list(result["shares"])
