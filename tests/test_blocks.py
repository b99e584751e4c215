"""The layout of a batch in blocks: nothing lost, nothing mixed, operators equal to the dense Laplacian."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from helpers import Graph, batch_of, corner_cases, few, from_networkx, graphs, normal, relative_error
from hypothesis import given
from hypothesis import strategies as st

from tg_lpe import Incidence
from tg_lpe.blocks import DENSE_HEIGHT, GraphBlocks

layouts = st.sampled_from([{}, {"max_rows": 8}, {"max_rows": 30, "dense_height": 4}, {"dense_height": 0}])
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
@given(batches, layouts, st.booleans(), st.booleans())
def test_operators_against_networkx(parts: list[Graph], options: dict[str, int], weighted: bool, scaled: bool) -> None:
    batched = batch_of(parts)
    graph = Incidence(**batched.arguments(weighted))
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
    for part, got, rows, s in zip(
        parts, batched.split(layout.collect(outs, 2)), batched.split(x), batched.split(scale), strict=True
    ):
        meant = part if weighted else Graph(part.num_nodes, part.edges, [1.0] * len(part.edges))
        expected = s.unsqueeze(1) * (torch.from_numpy(meant.laplacian()) @ (s.unsqueeze(1) * rows))
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
