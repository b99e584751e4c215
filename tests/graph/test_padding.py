"""The layout of a batch in blocks: nothing lost, nothing mixed, operators equal to the dense Laplacian."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from helpers import Graph, batch_of, corner_cases, few, from_networkx, graphs, normal, relative_error
from hypothesis import example, given
from hypothesis import strategies as st

from tg_lpe import Incidence
from tg_lpe.graph.padding import DENSE_HEIGHT, GraphBlocks

layouts = st.sampled_from(
    [
        {},
        {"max_rows": 8},
        {"max_rows": 30, "dense_height": 4},
        {"dense_height": 0},
        {"max_fill": 1.25},
        {"max_fill": 1.0, "dense_height": 6},
    ]
)
batches = st.lists(st.one_of(graphs(exponents=(-3.0, 3.0)), st.sampled_from(corner_cases())), max_size=6)


@few
@given(batches, layouts)
def test_layout_is_a_permutation_with_zero_fill(parts: list[Graph], options: dict[str, int]) -> None:
    batched = batch_of(parts)
    graph = Incidence(**batched.arguments())
    layout = GraphBlocks(graph, **options)
    x = normal(batched.num_nodes, 3)
    laid_out = layout.lay_out(x)
    placed = [int(g) for block in layout.blocks for g in block.graphs]
    assert len(set(placed)) == len(placed)
    assert {i for i, part in enumerate(parts) if part.num_nodes} <= set(placed)
    rows = batched.split(x)
    for block, z in zip(layout.blocks, laid_out, strict=True):
        assert z.shape == (block.num_graphs, 3, block.height)
        for number, values in zip(block.graphs.tolist(), z, strict=True):
            n = parts[number].num_nodes
            assert torch.equal(values[:, :n].T, rows[number]) and not values[:, n:].any()
    if layout.blocks:
        assert torch.equal(layout.collect(laid_out, 3), x)


@few
@given(batches, layouts, st.booleans(), st.booleans(), st.booleans())
def test_operators_against_networkx(
    parts: list[Graph], options: dict[str, int], weighted: bool, scaled: bool, grounded: bool
) -> None:
    batched = batch_of(parts)
    ground = normal(batched.num_nodes, seed=6).abs() * (normal(batched.num_nodes, seed=7) > 0) * grounded
    graph = Incidence(**batched.arguments(weighted), ground=ground if grounded else None)
    layout = GraphBlocks(graph, **options)
    x, scale = normal(batched.num_nodes, 2), torch.ones(batched.num_nodes, dtype=torch.float64)
    if scaled:
        scale = normal(batched.num_nodes, seed=4).abs() + 0.1
    outs = [apply(z) for apply, z in zip(layout.laplacian_operators(scale), layout.lay_out(x), strict=True)]
    for block, out in zip(layout.blocks, outs, strict=True):
        for number, values in zip(block.graphs.tolist(), out, strict=True):
            assert not values[:, parts[number].num_nodes :].any(), "the fill stays zero"
    if not outs:
        return
    everything = (layout.collect(outs, 2), x, scale, ground)
    for part, got, rows, s, q in zip(parts, *(batched.split(each) for each in everything), strict=True):
        meant = part if weighted else Graph(part.num_nodes, part.edges, [1.0] * len(part.edges))
        laplacian = torch.from_numpy(meant.laplacian()) + torch.diag(q)
        expected = s.unsqueeze(1) * (laplacian @ (s.unsqueeze(1) * rows))
        assert relative_error(got, expected) < 1e-12


@few
@given(batches)
def test_dense_laplacians_are_symmetric_and_padded_with_zeros(parts: list[Graph]) -> None:
    batched = batch_of(parts)
    graph = Incidence(**batched.arguments())
    layout = GraphBlocks(graph, dense_height=1000)
    dense = layout.dense_laplacians(torch.ones(batched.num_nodes, dtype=torch.float64))
    assert len(dense) == len(layout.blocks)
    for block, matrices in zip(layout.blocks, dense, strict=True):
        for number, matrix in zip(block.graphs.tolist(), matrices, strict=True):
            n = parts[number].num_nodes
            assert torch.equal(matrix, matrix.T) and not matrix[n:].any()
            assert relative_error(matrix[:n, :n], parts[number].laplacian()) < 1e-14


@pytest.mark.parametrize("wide", [False, True])
def test_gradients_through_both_kinds_of_operator(wide: bool) -> None:
    options = {} if wide else {"dense_height": 3}
    batched = batch_of([from_networkx(nx.path_graph(3)), from_networkx(nx.cycle_graph(5)), Graph(1, [], [])])

    def of(x, scale, conductance):
        weight = torch.cat([conductance[:2], conductance[:2], conductance[2:], conductance[2:]])
        arguments = {**batched.arguments(), "edge_weight": weight}
        layout = GraphBlocks(Incidence(**arguments), **options)
        operators = layout.laplacian_operators(scale)
        return layout.collect([f(z) for f, z in zip(operators, layout.lay_out(x), strict=True)], 2)

    inputs = normal(9, 2), normal(9, seed=1), normal(7, seed=2).abs() + 0.5
    assert torch.autograd.gradcheck(of, [t.requires_grad_() for t in inputs])


def test_blocks_bound_memory() -> None:
    sizes = [3] * 5000 + [60] * 300 + [500, 130, 70, 9000]
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    layout = GraphBlocks(Incidence(torch.zeros(2, 0, dtype=torch.int64), batch=batch), max_rows=1024)
    assert all(b.num_rows <= 1024 or b.num_graphs == 1 for b in layout.blocks)
    assert all(b.dense == (b.height <= DENSE_HEIGHT) for b in layout.blocks)
    assert layout.num_rows < 2 * sum(sizes), "the fill costs less than the nodes"


sizes_of_batches = st.lists(st.integers(0, 25), min_size=2, max_size=30)


def empty_graphs(sizes: list[int]) -> Incidence:
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return Incidence(torch.zeros(2, 0, dtype=torch.int64), batch=batch, num_graphs=len(sizes))


@few
@example([11, 10, 9, 12], 1.25, 10)
@given(sizes_of_batches, st.sampled_from([1.0, 1.25, 2.0]), st.sampled_from([0, 10, 20]))
def test_graphs_of_a_block_are_alike(sizes: list[int], max_fill: float, dense_height: int) -> None:
    layout = GraphBlocks(empty_graphs(sizes), max_rows=200, dense_height=dense_height, max_fill=max_fill)
    placed = sorted(int(g) for block in layout.blocks for g in block.graphs)
    assert placed == [i for i, size in enumerate(sizes) if size]
    for block in layout.blocks:
        mine = [sizes[g] for g in block.graphs]
        assert max(mine) == block.height <= max_fill * min(mine)
        # Whether a graph is computed with exactly is its own affair, not that of the block it got into.
        assert all((size <= dense_height) == block.dense for size in mine)
    assert layout.num_rows <= max_fill * sum(sizes)


@few
@given(batches, layouts)
def test_edge_positions(parts: list[Graph], options: dict[str, int]) -> None:
    batched = batch_of(parts)
    graph = Incidence(**batched.arguments())
    layout = GraphBlocks(graph, **options)
    found = layout.edge_positions()
    assert len(found) == len(layout.blocks)
    seen = torch.cat([torch.zeros(0, dtype=torch.int64), *(where.columns for where in found)])
    assert sorted(seen.tolist()) == list(range(graph.num_edges)), "each edge in one block"
    nodes = layout.lay_out(torch.arange(graph.num_nodes).unsqueeze(1))
    for where, block, numbers in zip(found, layout.blocks, nodes, strict=True):
        assert (where.num_graphs, where.height) == (block.num_graphs, block.height)
        node_of_row = numbers.mT.reshape(-1)
        assert torch.equal(node_of_row[where.tail], graph.tail[where.columns])
        assert torch.equal(node_of_row[where.head], graph.head[where.columns])
    if layout.blocks:
        rows = [numbers.mT.reshape(-1, 1) for numbers in nodes]
        assert layout.collect_rows(rows).flatten().tolist() == list(range(graph.num_nodes))


def test_matrices_by_positions_are_the_laplacians_off_the_diagonal() -> None:
    batched = batch_of([from_networkx(nx.path_graph(n), lambda i: 1.0 + i) for n in (3, 9, 4, 30, 5, 29)])
    graph = Incidence(**batched.arguments())
    layout = GraphBlocks(graph, max_fill=1.25)
    assert len(layout.blocks) == 4, "sizes 30 and 29, 9, 5 and 4, 3"
    dense = layout.dense_laplacians(torch.ones(graph.num_nodes, dtype=torch.float64))
    for where, matrix in zip(layout.edge_positions(), dense, strict=True):
        off = torch.diag_embed(matrix.diagonal(dim1=1, dim2=2)) - matrix
        assert torch.equal(where.fill(graph.conductance[where.columns].unsqueeze(0)), off)
