"""Predict side effects of drugs in a graph of several types, with types ignored or read.

    python benchmarks/typed.py --data DIR [--seeds 0 1 2] [--quick] [--json FILE]

DIR has moleculenet/sider.csv, a table of drugs and classes of side effects, whose cells say yes or no. Nodes are drugs,
classes and functional groups (those of RDKit); edges are "has", "has not" and "contains". Six classes are no nodes, but
labels. The figure is the mean of their ROC-AUC on a fifth of the drugs, at the epoch that is best on another fifth.

The model is that of nodes.py. It reads the type of each node and an encoding, and takes all edges alike ("alike"), or
has a map for each type of edges ("typed"). "numbers" are the weights of "has not" and "contains", relative to "has",
with which logistic regression on the default encoding is best on validation drugs. GramTransformer is trained with the
model. "tables" is logistic regression on the cells of both tables. Seconds are those of the processor.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from _arguments import Parser
from _results import show, write_results
from _runs import nci_smiles, over_seeds
from nodes import Model, fit, neighbours_of
from rdkit import Chem
from rdkit.Chem import Fragments
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToUndirected

from tg_lpe import AddPositionalEncoding, Encoder, GramTransformer
from tg_lpe.app.training.metrics import METRICS
from tg_lpe.encoders import RandomWalk, load_encoder

LABELS = ["Hepatobiliary disorders", "Eye disorders", "Investigations", "Psychiatric disorders"]
LABELS += ["Renal and urinary disorders", "Cardiac disorders"]
ALIKE = (1.0, 1.0, 1.0)
NUMBERS = list(itertools.product([1.0], *2 * [[0.0, 0.1, 1.0, 10.0]]))
GROUPS = [count for name, count in vars(Fragments).items() if name.startswith("fr_")]


def read(table: pd.DataFrame) -> tuple[HeteroData, Tensor]:
    """Return the graph, each edge in both directions, and the cells of its tables, ``[num_drugs, num_cells]``."""
    molecules = [Chem.MolFromSmiles(smiles) for smiles in table.smiles]
    groups = torch.tensor([[count(molecule) > 0 for count in GROUPS] for molecule in molecules])
    effects = torch.from_numpy(table.drop(columns=["smiles", *LABELS]).to_numpy("float32"))
    data = HeteroData(drug={"num_nodes": len(table)}, effect={"num_nodes": effects.size(1)})
    data["group"].num_nodes = len(GROUPS)
    data["drug", "has", "effect"].edge_index = effects.nonzero().T
    data["drug", "has not", "effect"].edge_index = (1 - effects).nonzero().T
    data["drug", "contains", "group"].edge_index = groups.nonzero().T
    return ToUndirected()(data), torch.cat([effects, groups], 1)


def columns(data: HeteroData, encoder: Encoder, numbers: tuple[float, ...] = ALIKE) -> Tensor:
    """Return an encoding of all nodes, of variance one, with a weight for each type of edges."""
    data = data.clone()
    for kind, number in zip(data.edge_types, 2 * numbers, strict=True):
        data[kind].edge_weight = torch.full((data[kind].num_edges,), number)
    pe = AddPositionalEncoding(encoder, hetero="whole", reduce="add")(data).to_homogeneous().pe
    return (pe - pe.mean(0)) / pe.std(0).clamp(min=1e-6)


def regression(x: Tensor, y: Tensor, train: Tensor, rows: Tensor) -> float:
    """Return the ROC-AUC of logistic regression."""
    models = [LogisticRegression(C=0.1, max_iter=1000).fit(x[train], label[train]) for label in y.T]
    scores = np.stack([model.decision_function(x[rows]) for model in models], 1)
    return METRICS["roc_auc"](torch.from_numpy(scores), y[rows]).mean


def train(data: Data, y: Tensor, parts: dict[str, Tensor], encoder: GramTransformer | None, epochs: int) -> float:
    """Train a model, with its encoder if there is one, and return its ROC-AUC on test drugs."""
    neighbours = neighbours_of(data)
    model: Any = Model((data.x.size(1), data.pe.size(1)), len(neighbours[0]), 2, 0.5, y.size(1))
    model.encoder = encoder

    def score(part: str) -> Tensor:
        relation = data.relation if encoder is not None and encoder.reads & {"edge_attr"} else None
        pe = data.pe if encoder is None else encoder(data.x, data.edge_index, relation).node
        return model.head(model(data.x, pe, neighbours)[parts[part]])

    def losses() -> Iterator[Tensor]:
        yield F.binary_cross_entropy_with_logits(score("train"), y[parts["train"]])

    def evaluate(part: str) -> dict[str, float]:
        return {"roc_auc": METRICS["roc_auc"](score(part), y[parts[part]]).mean}

    return float(fit(model, epochs, losses, evaluate)["test"]["roc_auc"])


def main() -> None:
    parser = Parser(__doc__, "molecules of RDKit with cells that are drawn, five epochs", "typed.json")
    parser.add_argument("--data", type=Path, metavar="DIR", default=Path(), help="folder of all data")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="(default: 0 1 2)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.quick:
        drawn = np.random.default_rng(0).integers(0, 2, (100, 9))
        table = pd.DataFrame(drawn, columns=[*LABELS, *"abc"]).assign(smiles=nci_smiles()[:100])
    else:
        table = pd.read_csv(args.data / "moleculenet" / "sider.csv")
    data, cells = read(table)
    y, fifth = torch.from_numpy(table[LABELS].to_numpy("float32")), len(table) // 5
    one = data.to_homogeneous().sort()
    one.x, one.relation = F.one_hot(one.node_type).float(), one.edge_type % 3  # both directions are one relation
    default, walks = load_encoder("universal-k32"), columns(data, RandomWalk(16, 0))
    encoded = {numbers: columns(data, default, numbers) for numbers in NUMBERS}
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seed in args.seeds:
        order = torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))
        parts = dict(zip(("train", "val", "test"), order.split([len(table) - 2 * fifth, fifth, fifth]), strict=True))
        best = max(NUMBERS, key=lambda numbers: regression(encoded[numbers], y, parts["train"], parts["val"]))
        rows: dict[str, Any] = {"none": one.x, "walks": walks, "default": encoded[ALIKE], "numbers": encoded[best]}
        rows |= {"GramTransformer": {}, "GramTransformer, types": {"num_edge_types": 3, "in_channels": 3}}
        for (name, row), edges in itertools.product(rows.items(), ("alike", "typed")):
            torch.manual_seed(seed)
            start, graph = time.process_time(), one.clone()
            encoder = GramTransformer(16, 0, 2, 4, **row) if isinstance(row, dict) else None
            graph.pe = one.x.new_empty(one.num_nodes, 16) if encoder else row
            if edges == "typed":
                graph.edge_pe = F.one_hot(one.relation).float()
            figures[name][edges].append(train(graph, y, parts, encoder, 5 if args.quick else 100))
            figures[name]["seconds"].append(time.process_time() - start)
            show({"encoding": name, "edges": edges, "seed": seed, "roc_auc": figures[name][edges][-1], "numbers": best})
        figures["numbers"]["weight_of_has_not"].append(best[1])
        start = time.process_time()
        figures["tables"]["alike"].append(regression(cells, y, parts["train"], parts["test"]))
        figures["tables"]["seconds"].append(time.process_time() - start)
    results = [{"encoding": name} for name in figures]
    for row in results:
        for figure, values in figures[row["encoding"]].items():
            row |= over_seeds(figure, values)
    write_results(args.json, results)


if __name__ == "__main__":
    main()
