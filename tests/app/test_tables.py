"""Graphs as rows of Parquet files: rows round-trip, and an error names a malformed row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Graph, few, graphs, refusals
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from tg_lpe.app.tables import columns_of_graphs, graphs_of_table, parquet_files, read_graphs
from tg_lpe.data import GraphDataset

pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def data_of(graph: Graph, seed: int) -> Data:
    edge_index, weight = graph.both_ways(torch.float32)
    generator = torch.Generator().manual_seed(seed)
    return Data(
        edge_index=edge_index,
        x=torch.randint(9, (graph.num_nodes, 2), generator=generator),
        edge_weight=weight,
        edge_attr=torch.randn(edge_index.size(1), 3, generator=generator),
        y=torch.randn(1, generator=generator),
    )


@few
@given(st.lists(graphs(max_nodes=6), min_size=2, max_size=5), st.data())
def test_what_is_written_is_read_back(tmp_path_factory: Any, parts: list[Graph], draw: st.DataObject) -> None:
    data = [data_of(graph, seed) for seed, graph in enumerate(parts)]
    rows = draw.draw(st.lists(st.booleans(), max_size=4).map(lambda extra: [*extra, *[True] * len(data)]))
    while rows.count(True) > len(data):
        rows.remove(True)
    names = ["num_nodes", "edge_index", "x", "edge_weight", "edge_attr", "y"]
    columns = columns_of_graphs(GraphDataset.from_data_list(data), names, rows)
    file = tmp_path_factory.mktemp("table") / "graphs.parquet"
    pq.write_table(pa.table(columns), file)
    assert [value is not None for value in pq.read_table(file)["edge_index"].to_pylist()] == rows
    read = read_graphs(file)
    assert len(read) == len(data)
    for got, expected in zip(read, data, strict=True):
        assert got.num_nodes == expected.num_nodes
        for name in ("edge_index", "x", "edge_weight", "edge_attr", "y"):
            assert torch.equal(got[name], expected[name]) and got[name].dtype == expected[name].dtype, name


def test_plain_lists_as_others_write_them() -> None:
    table = pa.table(
        {
            "edge_index": [[[0, 1], [1, 0]], [[], []]],
            "num_nodes": [3, 1],
            "node_feat": [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[7.0, 8.0]]],
            "y": [1.5, None],
            "name": ["a", "b"],
        }
    )
    first, second = graphs_of_table(table)
    assert first.num_nodes == 3 and first.node_feat.tolist() == [[1, 2], [3, 4], [5, 6]] and first.y.tolist() == [1.5]
    assert second.num_nodes == 1 and second.edge_index.shape == (2, 0) and second.y.isnan().all()
    assert "name" not in first
    assert "node_feat" not in graphs_of_table(table, ["y"])[0]
    assert len(graphs_of_table(table.slice(0, 0))) == 0


EDGES = [[[0, 1], [1, 0]]]
PAIR = {"edge_index": EDGES, "num_nodes": [2]}
test_malformed_rows_and_columns_are_refused = refusals(
    lambda columns, *names: graphs_of_table(pa.table(columns), *names),
    (({"smiles": ["C"]},), "graphs need a column edge_index"),
    (({"edge_index": EDGES},), "graphs need a column num_nodes"),
    (({"edge_index": [[0, 1]], "num_nodes": [2]},), "two lists of whole numbers"),
    (({"edge_index": [[[0.5], [1.0]]], "num_nodes": [2]},), "two lists of whole numbers for"),
    (({"edge_index": [[[0, 1], [1]]], "num_nodes": [2]},), "row 0 does not"),
    (({"edge_index": [*EDGES, [[0]]], "num_nodes": [2, 2]},), "row 1 does not"),
    (({"edge_index": [None, *EDGES], "num_nodes": [2, 2]},), "1 null values"),
    (({"edge_index": [[[0, None], [1, 0]]], "num_nodes": [2]},), "edge_index must not be null"),
    (({"edge_index": EDGES, "num_nodes": [-1]},), "num_nodes must be whole"),
    (({"edge_index": EDGES, "num_nodes": ["two"]},), "num_nodes must be whole"),
    (({**PAIR, "x": [[1, 2, 3]]},), "x must have a row for each of the 2 nodes"),
    (({**PAIR, "edge_attr": [[1]]},), "edge_attr must have a row for each of the 2 directed"),
    (({**PAIR, "y": pa.array([2**63], pa.uint64())},), "9223372036854775808 not in range"),
    (({**PAIR, "x": [[[1], [1, 2]]]},), "x must hold lists of one width"),
    ((PAIR, ["x"]), "there is no column 'x'"),
    (({**PAIR, "name": ["a"]}, ["name"]), "'name' must hold numbers"),
)


def test_files_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        parquet_files(tmp_path)
    for name in ("b.parquet", "a.parquet", "_manifest.parquet", ".a.parquet.part", "c.csv"):
        (tmp_path / name).write_bytes(b"PAR1 is how they begin")
    assert [file.name for file in parquet_files(tmp_path)] == ["a.parquet", "b.parquet"]
    with pytest.raises(ValueError, match=r"a\.parquet is damaged or not a Parquet file"):
        read_graphs(tmp_path)


def test_columns_that_are_named(tmp_path: Path) -> None:
    table = pa.table({"edge_index": EDGES, "num_nodes": [2], "pe": [[1.0, 2.0]], "y": [3.0]})
    pq.write_table(table, tmp_path / "graphs.parquet")
    once = read_graphs(tmp_path, (name for name in ("edge_index", "pe", "num_nodes")))
    for dataset in (once, graphs_of_table(table, iter(["num_nodes", "pe", "edge_index"]))):
        assert dataset[0].pe.tolist() == [1.0, 2.0] and dataset[0].num_nodes == 2 and "y" not in dataset[0]
        assert dataset[0].edge_index.tolist() == EDGES[0]
    for read in (lambda: read_graphs(tmp_path, "pe"), lambda: graphs_of_table(table, "pe")):
        with pytest.raises(TypeError, match="columns must"):
            read()
