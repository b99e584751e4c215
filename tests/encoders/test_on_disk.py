"""A graph whose edges stay on disk has the encoding that it has in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Graph, few, graphs, listings, randomize_
from hypothesis import given
from hypothesis import strategies as st

import tg_lpe
from tg_lpe import GramTransformer, LinearTransformer
from tg_lpe.encoders.on_disk import encode_on_disk
from tg_lpe.graph.on_disk import GraphOnDisk


@few
@given(graphs(max_nodes=30), st.data(), st.sampled_from([1, 3, 2**24]))
def test_rows_are_those_of_the_adjacency_matrix(
    tmp_path_factory: Any, graph: Graph, draw: st.DataObject, block_entries: int
) -> None:
    edge_index, _ = draw.draw(listings(graph))
    loops = torch.arange(graph.num_nodes).expand(2, -1)
    listed = torch.cat([edge_index, loops], 1).numpy().astype(draw.draw(st.sampled_from([np.int32, np.int64])))
    folder = tmp_path_factory.mktemp("graph")
    np.save(folder / "edges.npy", listed)
    built = GraphOnDisk.build(folder / "edges.npy", graph.num_nodes, folder, block_entries)
    assert (built.num_nodes, built.num_edges) == (graph.num_nodes, len(graph.edges))
    dense, covered = torch.zeros(graph.num_nodes, graph.num_nodes), 0
    for block in GraphOnDisk(folder).blocks(block_entries):
        assert block.start == covered and block.crow.dtype == block.col.dtype == torch.int32
        row = torch.arange(block.start, block.stop).repeat_interleave(block.crow.diff())
        dense[row, block.col.long()] += 1
        covered = block.stop
    expected = torch.zeros_like(dense)
    for u, v in graph.edges:
        expected[u, v] = expected[v, u] = 1
    assert covered == graph.num_nodes and torch.equal(dense, expected)


@few
@given(
    graphs(max_nodes=30),
    st.sampled_from(["power", "chebyshev"]),
    st.integers(1, 7),
    st.sampled_from(["ground", "fixed"]),
    st.sampled_from([None, 3]),
    st.sampled_from([1, 5, 16]),
)
def test_the_encoding_is_that_of_memory(
    tmp_path_factory: Any, graph: Graph, basis: str, layers: int, conductances: str, out: int | None, columns: int
) -> None:
    options: dict[str, Any] = {"probes": "rademacher", "num_probes": 12, "seed": 5, "conductances": conductances}
    encoder = randomize_(GramTransformer(out, 0, 2, layers, basis=basis, **options).double())
    built = GraphOnDisk.build(graph.edge_index().numpy(), graph.num_nodes, tmp_path_factory.mktemp("graph"), 7)
    got = encode_on_disk(encoder, built, columns=columns, block_entries=7)
    expected = encoder(None, tg_lpe.Graph(graph.edge_index(), graph.num_nodes)).node
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_a_full_disk_leaves_the_graph_of_before(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    GraphOnDisk.build(np.array([[0, 1], [1, 2]]), 3, tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            GraphOnDisk.build(np.arange(2000).reshape(2, 1000), 2000, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert GraphOnDisk(tmp_path).num_edges == 2


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="edges must"):
        GraphOnDisk.build(np.zeros((2, 3)), 4, tmp_path)
    with pytest.raises(ValueError, match="edges must"):
        GraphOnDisk.build(np.array([[0], [4]]), 4, tmp_path)
    with pytest.raises(ValueError, match="is no graph on disk"):
        GraphOnDisk(tmp_path)
    graph = GraphOnDisk.build(np.array([[0], [3]]), 4, tmp_path)
    typed, directed = GramTransformer(4, 0, num_node_types=3, num_edge_types=2), GramTransformer(4, 0, direction=0.1)
    for encoder in (LinearTransformer(k=4), typed, directed):
        with pytest.raises(ValueError, match="needs a GramTransformer without features and direction"):
            encode_on_disk(encoder, graph)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="columns must"):
        encode_on_disk(GramTransformer(4, 0), graph, columns=0)
    with (tmp_path / "neighbours.int32").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ValueError, match="must have 8 bytes"):
        GraphOnDisk(tmp_path)
