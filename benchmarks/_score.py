"""Score a checkpoint on molecules that ship with RDKit; cards hold the score and tests reproduce it."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import torch
from _runs import nci_smiles
from torch import Tensor

from tg_lpe.app.molecules import (
    AtomVocabulary,
    MoleculeReader,
    constrained_solubility,
    load_molecules,
)
from tg_lpe.app.prediction import load
from tg_lpe.app.training.metrics import IN_UNITS, METRICS
from tg_lpe.app.training.tasks import make_task
from tg_lpe.checkpoints import zoo
from tg_lpe.data.storage import GraphChunk, iterate_chunks, whole
from tg_lpe.encoders import Positions, load_encoder
from tg_lpe.graph.graph import Graph
from tg_lpe.models import MODELS, Model
from tg_lpe.ops.segment import RowGroups

SAMPLE = 500
"""Largest number of molecules: the first in RDKit's file that the checkpoint can read.

Molecules with more than the ``max_nodes`` of its card are left out.
"""

RIDGE = 1e-3


def errors_on_test_set(name: str, folder: str | Path) -> dict[str, Any]:
    """Compute the errors of a model of the zoo on the test set of its data, in the unit of the labels.

    The split is the random one of the seed in the card, or the files of a data set that comes in three.

    Args:
        name: name of the checkpoint.
        folder: folder of the data set.
    """
    card, predictor = zoo.card(name), load(name)
    target = card["data"]["target"]
    own = {} if target["computed"] else {"targets": target["columns"]}
    splits = load_molecules(folder, name=card["data"]["source"], seed=card["seed"], **own)
    if predictor.reader != MoleculeReader.of(splits.describe()):
        sys.exit(f"{name} reads molecules otherwise than {folder}: {predictor.reader}")
    values, labels = predictor.predict(splits.test).values.double(), splits.labels("test").double().view(-1, 1)
    errors = {f"test_{metric}": METRICS[metric].column(values[:, 0], labels[:, 0]) for metric in IN_UNITS}
    return {"molecules": len(splits.test), **errors}


def score(name: str, card: dict[str, Any] | None = None, folder: str | Path | None = None) -> dict[str, Any]:
    """Compute the outputs of a checkpoint on 500 molecules of RDKit's NCI file, for ``sample`` of its card.

    - ``mae``: the mean absolute error of the penalised logP, if ``normalization`` in the card names one. For an
      encoder, it is the error of a linear probe: ridge regression on sums over nodes and edges of the encoding and of
      its square, fitted to the first half of the molecules and tested on the second. Of positions it reads edges alone.
    - ``mean_prediction``: the mean of each predicted column, if ``normalization`` is ``None``, because RDKit has no
      labels for other targets. It detects changes of weights and code, but does not measure quality.

    Args:
        name: name of the shipped checkpoint.
        card: a card to use instead of the checkpoint's own.
        folder: folder of the checkpoint, if it does not ship yet.
    """
    card = zoo.card(name) if card is None else card
    checkpoint = str(folder or name)
    normalization = card["sample"]["normalization"]
    chunk, smiles = _molecules(card["data"], card["sample"].get("max_nodes"))
    model: Any = MODELS[card["class"]].from_pretrained(checkpoint) if card["class"] in MODELS else None
    with torch.inference_mode():
        if normalization is None:
            predictions = make_task(card["task"]).predict(_predict(model, chunk))
            return {"mean_prediction": predictions.double().mean(0).tolist()}
        target = torch.tensor([constrained_solubility(text, normalization) for text in smiles], dtype=torch.float64)
        if model is None:
            return {"mae": _probe(_pooled(checkpoint, chunk), target)}
        return {"mae": float((_predict(model, chunk).squeeze(1).double() - target).abs().mean())}


def _predict(model: Model, chunk: GraphChunk) -> Tensor:
    given = chunk.attributes
    return model(given["x"], chunk.edge_index, given["edge_attr"], chunk.batch, num_graphs=chunk.num_graphs)  # type: ignore[no-any-return]


def _pooled(checkpoint: str, chunk: GraphChunk) -> Tensor:
    """Return features of each molecule for the probe, float64 ``[num_graphs, channels]``."""
    encoder = load_encoder(checkpoint)
    graph = Graph(chunk.edge_index, chunk.num_nodes, batch=chunk.batch, num_graphs=chunk.num_graphs)
    x, edge_attr = chunk.attributes["x"], chunk.attributes["edge_attr"]
    out = encoder(x, graph, edge_attr)
    nodes = RowGroups(chunk.batch, chunk.num_graphs, is_sorted=True)
    parts = [] if isinstance(encoder, Positions) else [(nodes, out.node.double())]
    if out.edge is not None:
        parts.append((RowGroups(chunk.batch[chunk.edge_index[0]], chunk.num_graphs), out.edge.double()))
    return torch.cat([groups.sum(values) for groups, part in parts for values in (part, part.square())], 1)


def _probe(features: Tensor, target: Tensor) -> float:
    half = target.numel() // 2
    mean, std = features[:half].mean(0), features[:half].std(0)
    features = (features - mean) / torch.where(std > 1e-9, std, 1.0)
    features = torch.cat([features, features.new_ones(features.size(0), 1)], 1)
    fit, held = features[:half], features[half:]
    gram = fit.mT @ fit / half + RIDGE * torch.eye(fit.size(1), dtype=fit.dtype)
    weights = torch.linalg.solve(gram, fit.mT @ target[:half] / half)
    return float((held @ weights - target[half:]).abs().mean())


def _molecules(data: dict[str, Any], max_nodes: int | None) -> tuple[GraphChunk, list[str]]:
    """Return the sample as one batch, and its SMILES; ``data`` comes from the card."""
    strings = nci_smiles()
    types = data.get("atom_types")  # without them, the checkpoint reads ogb's features or none
    reader = MoleculeReader(AtomVocabulary(tuple(types)) if types else None, canonical=False)
    for count in (2 * SAMPLE, len(strings)):  # most checkpoints read most molecules
        read = next(reader.read(strings[:count], batch_size=count, num_workers=0))
        small = read.graphs.slices["x"].diff() <= (max_nodes or math.inf)
        chosen = small.nonzero().flatten()[:SAMPLE]
        if len(chosen) == SAMPLE:
            break
    used = [text for text, reason in zip(strings, read.reasons, strict=False) if reason is None]
    chunk = next(iterate_chunks(whole(read.graphs[chosen]), SAMPLE, ("x", "edge_attr")))
    return chunk, [used[index] for index in chosen.tolist()]
