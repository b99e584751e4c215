"""Store an encoder's precomputed tensors in a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, InMemoryDataset

from tg_lpe.arguments import check_type
from tg_lpe.data.storage import RESERVED, iterate_chunks, whole, with_attribute
from tg_lpe.encoders.base import LEVELS, Encoder
from tg_lpe.graph.graph import Graph

PREFIX = "precomputed_"
"""Prefix of the stored attributes, so that no attribute of the user is overwritten."""

CHUNK = 2000
"""Most graphs that are computed at once."""

CHUNK_PAIRS = 2**24
"""Most pairs of nodes, summed over graphs, that are computed at once: dense matrices have as many entries."""


def incidences(
    dataset: InMemoryDataset, chunk_size: int, max_pairs: int | None = None, weighted: bool = True
) -> Iterator[Graph]:
    """Yield the graphs of a dataset in batches, see :func:`iterate_chunks`; without weights unless ``weighted``."""
    for chunk in iterate_chunks(dataset, chunk_size, ("edge_weight",) if weighted else (), max_pairs):
        yield Graph(
            chunk.edge_index,
            chunk.num_nodes,
            edge_weight=chunk.attributes.get("edge_weight"),
            batch=chunk.batch,
            num_graphs=chunk.num_graphs,
        )


def store_precomputed(encoder: Encoder | None, dataset: InMemoryDataset | Sequence[Data]) -> InMemoryDataset:
    """Return a copy of a dataset with the results of :meth:`Encoder.precompute <tg_lpe.Encoder.precompute>`.

    Args:
        encoder: the encoder; ``None`` for none. If it is frozen, store again after its weights change.
        dataset: a PyG dataset or a sequence of ``Data``. It is not changed.

    Returns:
        A dataset with an additional attribute for each precomputed tensor. It shares the storage of an in-memory
        ``dataset``, and is that ``dataset`` itself if the encoder precomputes nothing.

    Raises:
        TypeError: if ``encoder`` is no :class:`~tg_lpe.Encoder`, or an element is not a ``Data``.
        ValueError: if there is no graph, ``dataset`` has a ``transform``, or a precomputed tensor has a wrong number of
            rows or an invalid name: it must begin with its level and not contain a word, such as ``index``, that
            PyTorch Geometric reads as node numbers.
    """
    if encoder is not None:
        check_type("encoder", encoder, Encoder)
    if isinstance(dataset, InMemoryDataset) and not len(dataset):
        return dataset
    dataset = whole(dataset)
    if encoder is None or (type(encoder).precompute is Encoder.precompute and not encoder.is_constant):
        return dataset
    parts: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for graph in incidences(dataset, CHUNK, CHUNK_PAIRS, weighted="edge_weight" in encoder.reads):
            rows = {"node": graph.num_nodes, "edge": graph.num_directed_edges, "graph": graph.num_graphs}
            for name, values in encoder.precompute(graph).items():
                level = _level(type(encoder).__name__, name)
                if values.size(0) != rows[level]:
                    got = f"{name} of shape {list(values.shape)} for a batch of {rows[level]} {level}s"
                    raise ValueError(f"{type(encoder).__name__}.precompute returned {got}")
                parts.setdefault(name, []).append(values)
    for name, chunks in parts.items():
        dataset = with_attribute(dataset, PREFIX + name, _level(type(encoder).__name__, name), torch.cat(chunks))
    return dataset


def precomputed_of(data: Data) -> dict[str, Tensor] | None:
    """Return the tensors that :func:`store_precomputed` stored in a graph or batch; ``None`` if there are none.

    Raises:
        TypeError: if ``data`` is no ``Data``.
    """
    check_type("data", data, Data)
    names = [name for name in data.keys() if name.startswith(PREFIX)]  # noqa: SIM118
    return {name.removeprefix(PREFIX): data[name] for name in names} or None


def call_on(module: nn.Module, batch: Batch, **options: Any) -> Any:
    """Call an encoder or a model on a batch, with the tensors that :func:`store_precomputed` stored in it.

    Args:
        module: a module with the arguments of :meth:`Encoder.forward <tg_lpe.Encoder.forward>`; ``edge_weight`` is
            passed only if the module reads it.
        batch: the graphs.
        options: further arguments.
    """
    if not isinstance(module, Encoder) and module.reads_graph_attr:
        options["graph_attr"] = batch.get("graph_attr")
    return module(
        batch.get("x"),
        batch.edge_index,
        batch.get("edge_attr"),
        batch.batch,
        batch.get("edge_weight") if reads_edge_weight(module) else None,
        precomputed=precomputed_of(batch),
        num_nodes=batch.num_nodes,
        num_graphs=batch.num_graphs,
        **options,
    )


def reads_edge_weight(module: nn.Module) -> bool:
    """Return whether an encoder or a :class:`~tg_lpe.models.Model` reads edge weights."""
    return "edge_weight" in module.reads if isinstance(module, Encoder) else bool(module.reads_edge_weight)


def _level(encoder: str, name: str) -> str:
    """Return the level in the name of a precomputed tensor, or raise if the name is invalid."""
    level, separator, _ = name.partition("_")
    if level not in LEVELS or not separator or any(word in name for word in RESERVED):
        raise ValueError(
            f"names of {encoder}.precompute must begin with one of {LEVELS} and '_', without {' and '.join(RESERVED)}, "
            f"got {name!r}"
        )
    return level
