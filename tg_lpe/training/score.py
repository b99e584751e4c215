"""A figure for any checkpoint, from molecules that ship with RDKit: what cards promise and tests reproduce."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tg_lpe.data.storage import GraphChunk, iterate_chunks
from tg_lpe.datasets.molecules import AtomVocabulary, constrained_solubility, read_molecules
from tg_lpe.encoders.registry import load_encoder
from tg_lpe.graph.incidence import Incidence
from tg_lpe.hub import zoo
from tg_lpe.models import MODELS, Model
from tg_lpe.ops.segment import RowGroups

SAMPLE = 500
"""How many of the molecules that a checkpoint can read are taken, in the order of RDKit's file, at most.

A model of small molecules has ``max_nodes`` on its card, and is asked for none that are larger.
"""

RIDGE = 1e-3


def score(name: str, card: dict[str, Any] | None = None, folder: str | Path | None = None) -> float:
    """Mean absolute error of the constrained solubility on 500 molecules of RDKit's NCI file.

    A model predicts it. Of an encoder, it is the error of a linear probe: ridge regression on sums over
    nodes and edges of the encoding and of its square, fitted to the first half and tested on the second.

    Args:
        name: of the shipped checkpoint.
        card: its card; its own if absent.
        folder: where the checkpoint lies, if it does not ship yet.
    """
    card = zoo.card(name) if card is None else card
    checkpoint = str(folder or name)
    sample = card["sample"]
    chunk, target = _molecules(card["data"].get("atom_types"), sample["normalization"], sample.get("max_nodes"))
    with torch.inference_mode():
        if card["class"] in MODELS:
            model = MODELS[card["class"]].from_pretrained(checkpoint)
            return float((_predict(model, chunk).squeeze(1).double() - target).abs().mean())
        return _probe(_pooled(checkpoint, chunk), target)


def _predict(model: Model, chunk: GraphChunk) -> Tensor:
    given = chunk.attributes
    return model(given["x"], chunk.edge_index, given["edge_attr"], chunk.batch, num_graphs=chunk.num_graphs)  # type: ignore[no-any-return]


def _pooled(checkpoint: str, chunk: GraphChunk) -> Tensor:
    """Features of each molecule, float64 ``[num_graphs, channels]``."""
    encoder = load_encoder(checkpoint)
    graph = Incidence(chunk.edge_index, chunk.num_nodes, batch=chunk.batch, num_graphs=chunk.num_graphs)
    x, edge_attr = chunk.attributes["x"], chunk.attributes["edge_attr"]
    out = encoder.encode(graph, x, edge_attr)
    nodes = RowGroups(chunk.batch, chunk.num_graphs)
    parts = [(nodes, out.node.double())]
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


def _molecules(atom_types: list[str] | None, normalization: str, max_nodes: int | None) -> tuple[GraphChunk, Tensor]:
    """The sample as one batch, and its targets, float64 ``[num_graphs]``."""
    from rdkit import RDConfig

    vocabulary = AtomVocabulary(tuple(atom_types)) if atom_types else None
    file = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi")
    dataset, _, _, used = read_molecules(file, vocabulary=vocabulary, progress=False)
    small = dataset.slices["x"].diff() <= (max_nodes or math.inf)
    chosen = small.nonzero().flatten()[:SAMPLE]
    chunk = next(iterate_chunks(dataset[chosen].whole(), SAMPLE, ("x", "edge_attr")))
    smiles = [used[index][1] for index in chosen.tolist()]
    return chunk, torch.tensor([constrained_solubility(text, normalization) for text in smiles], dtype=torch.float64)
