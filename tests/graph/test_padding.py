"""Padding of a batch in buckets: padding and unpadding are inverse, operators equal the dense Laplacian."""

from __future__ import annotations

import torch
from helpers import Graph, batch_of, corner_cases, few, graphs, normal, relative_error
from hypothesis import example, given
from hypothesis import strategies as st

import tg_lpe
from tg_lpe.graph.padding import PaddedBatch

options_of_padding = st.sampled_from(
    [{}, {"max_rows": 8}, {"max_rows": 30}, {"max_padding": 1.25}, {"max_padding": 1.0}]
)
batches = st.lists(st.one_of(graphs(exponents=(-3.0, 3.0)), st.sampled_from(corner_cases())), max_size=6)


@few
@given(batches, options_of_padding)
def test_padding_is_a_permutation_with_zeros(parts: list[Graph], options: dict[str, int]) -> None:
    batched = batch_of(parts)
    graph = tg_lpe.Graph(**batched.arguments())
    padded = PaddedBatch(graph, **options)
    x = normal(batched.num_nodes, 3)
    found = padded.transposed(x)
    placed = [int(g) for bucket in padded.buckets for g in bucket.graphs]
    assert len(set(placed)) == len(placed)
    assert {i for i, part in enumerate(parts) if part.num_nodes} <= set(placed)
    rows = batched.split(x)
    for bucket, z in zip(padded.buckets, found, strict=True):
        assert z.shape == (bucket.num_graphs, 3, bucket.max_nodes)
        for number, values in zip(bucket.graphs.tolist(), z, strict=True):
            n = parts[number].num_nodes
            assert torch.equal(values[:, :n].T, rows[number]) and not values[:, n:].any()
    if padded.buckets:
        assert torch.equal(padded.unpad([z.mT for z in found]), x)


@few
@given(batches)
def test_dense_laplacians_are_symmetric_and_padded_with_zeros(parts: list[Graph]) -> None:
    batched = batch_of(parts)
    graph = tg_lpe.Graph(**batched.arguments())
    padded = PaddedBatch(graph)
    dense = padded.dense_laplacians(torch.ones(batched.num_nodes, dtype=torch.float64))
    assert len(dense) == len(padded.buckets)
    for bucket, matrices in zip(padded.buckets, dense, strict=True):
        for number, matrix in zip(bucket.graphs.tolist(), matrices, strict=True):
            n = parts[number].num_nodes
            assert torch.equal(matrix, matrix.T) and not matrix[n:].any()
            assert relative_error(matrix[:n, :n], parts[number].laplacian()) < 1e-14


def test_buckets_bound_memory() -> None:
    sizes = [3] * 5000 + [60] * 300 + [500, 130, 70, 9000]
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    padded = PaddedBatch(tg_lpe.Graph(torch.zeros(2, 0, dtype=torch.int64), batch=batch), max_rows=1024)
    assert all(b.num_rows <= 1024 or b.num_graphs == 1 for b in padded.buckets)
    assert padded.num_rows < 2 * sum(sizes), "the padding costs less than the nodes"


sizes_of_batches = st.lists(st.integers(0, 25), min_size=2, max_size=30)


def empty_graphs(sizes: list[int]) -> tg_lpe.Graph:
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return tg_lpe.Graph(torch.zeros(2, 0, dtype=torch.int64), batch=batch, num_graphs=len(sizes))


@few
@example([11, 10, 9, 12], 1.25)
@given(sizes_of_batches, st.sampled_from([1.0, 1.25, 2.0]))
def test_graphs_of_a_bucket_have_similar_sizes(sizes: list[int], max_padding: float) -> None:
    padded = PaddedBatch(empty_graphs(sizes), max_rows=200, max_padding=max_padding)
    placed = sorted(int(g) for bucket in padded.buckets for g in bucket.graphs)
    assert placed == [i for i, size in enumerate(sizes) if size]
    for bucket in padded.buckets:
        mine = [sizes[g] for g in bucket.graphs]
        assert max(mine) == bucket.max_nodes <= max_padding * min(mine)
    assert padded.num_rows <= max_padding * sum(sizes)


@few
@given(batches, options_of_padding)
def test_edge_positions(parts: list[Graph], options: dict[str, int]) -> None:
    batched = batch_of(parts)
    graph = tg_lpe.Graph(**batched.arguments())
    padded = PaddedBatch(graph, **options)
    found = padded.edge_positions()
    assert len(found) == len(padded.buckets)
    seen = torch.cat([torch.zeros(0, dtype=torch.int64), *(where.edges for where in found)])
    assert sorted(seen.tolist()) == list(range(graph.num_edges)), "each edge in one bucket"
    nodes = padded.transposed(torch.arange(graph.num_nodes).unsqueeze(1))
    for where, bucket, numbers in zip(found, padded.buckets, nodes, strict=True):
        assert (where.num_graphs, where.max_nodes) == (bucket.num_graphs, bucket.max_nodes)
        node_of_row = numbers.mT.reshape(-1)
        assert torch.equal(node_of_row[where.tail], graph.tail[where.edges])
        assert torch.equal(node_of_row[where.head], graph.head[where.edges])
    if padded.buckets:
        rows = [numbers.mT.reshape(-1, 1) for numbers in nodes]
        assert padded.unpad_rows(rows).flatten().tolist() == list(range(graph.num_nodes))
