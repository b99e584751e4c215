"""All layers of a linear transformer at once, in each backend, against padded batches in torch."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest
import torch
from helpers import (
    Batched,
    Graph,
    batch_of,
    corner_cases,
    few,
    from_networkx,
    graph_of,
    graphs,
    normal,
    randomize_,
    relative_error,
)
from hypothesis import given
from hypothesis import strategies as st
from ops_support import encoded_twice, needs_cpu, same_with_any_threads
from torch import Tensor

import tg_lpe
from tg_lpe import LinearTransformer
from tg_lpe.encoders import Inputs
from tg_lpe.graph.incidence import LARGE
from tg_lpe.ops import edges
from tg_lpe.ops import layers as layer_ops
from tg_lpe.ops.layers import LayerArguments, LayerStack

MODELS: list[dict[str, Any]] = [
    {},
    {"normalize": False},
    {"degree_scaling": False},
    {"independent_scaling": False},
    {"diagonal": False},
    {"diagonal": False, "normalize": False, "degree_scaling": False},
    {"k": 1},
    {"k": 5, "diagonal": False},
    {"k": 16, "out_channels": 3},
    {"k": 11, "diagonal": False},
]


def model_of(options: dict[str, Any], dtype: torch.dtype = torch.float64) -> LinearTransformer:
    torch.manual_seed(0)
    model = LinearTransformer(**{"num_blocks": 2, "num_loops": 2, **options}).to(dtype).requires_grad_(False)
    scale = 0.5 if options.get("normalize", True) else 0.1
    randomize_(model, scale=scale)
    return model


def both(model: LinearTransformer, graph: tg_lpe.Graph) -> tuple[Tensor, Tensor]:
    return encoded_twice(model, graph, model.probes(graph, None, None))


@needs_cpu
@pytest.mark.parametrize("options", MODELS, ids=str)
@few
@given(parts=st.lists(graphs(max_nodes=9, exponents=(-1, 1)), min_size=1, max_size=4), weighted=st.booleans())
def test_random_batches(options: dict[str, Any], parts: list[Graph], weighted: bool) -> None:
    batch = batch_of(parts)
    if batch.num_nodes:
        got, expected = both(model_of(options), tg_lpe.Graph(**batch.arguments(weighted)))
        assert relative_error(got, expected) < 1e-9


@needs_cpu
@pytest.mark.parametrize("options", MODELS, ids=str)
def test_corner_cases(options: dict[str, Any]) -> None:
    batch = batch_of(corner_cases())
    for weighted in (True, False):
        got, expected = both(model_of(options), tg_lpe.Graph(**batch.arguments(weighted)))
        for ours, torchs in zip(batch.split(got), batch.split(expected), strict=True):
            assert relative_error(ours, torchs) < 1e-8


@needs_cpu
@pytest.mark.parametrize("options", [{}, {"k": 16}, {"k": 16, "diagonal": False}], ids=str)
def test_float32_is_as_accurate_as_torch(options: dict[str, Any]) -> None:
    batch: Batched = batch_of(corner_cases())
    exact, _ = both(model_of(options), tg_lpe.Graph(**batch.arguments()))
    arguments = batch.arguments() | {"edge_weight": batch.edge_weight.float()}
    for got in both(model_of(options, torch.float32), tg_lpe.Graph(**arguments)):
        assert relative_error(got, exact) < 1e-4


@needs_cpu
@pytest.mark.parametrize("k", [8, 16])
def test_a_large_graph_by_any_number_of_threads(k: int, threads: None) -> None:
    generator = torch.Generator().manual_seed(0)
    n = 40_000  # more rows than one thread handles
    graph = tg_lpe.Graph(torch.randint(n, (2, 3 * n), generator=generator), n)
    model = model_of({"k": k}, torch.float32)
    same_with_any_threads(torch.no_grad()(lambda: [model._columns(graph, Inputs(), None)]))
    assert relative_error(*both(model, graph)) < 1e-4


@needs_cpu
def test_what_a_backend_supports() -> None:
    phi = torch.zeros(3, 8)
    assert layer_ops.supports(phi, 3) and layer_ops.supports(phi.double(), 3, gradient=True)
    assert layer_ops.supports(torch.zeros(3, 16), 10**6) and not layer_ops.supports(torch.zeros(3, 17), 3)
    assert not layer_ops.supports(torch.zeros(3, 9), 3, gradient=True)
    assert not layer_ops.supports(phi, layer_ops.TRAINED_NODES + 1, gradient=True)
    assert not layer_ops.supports(phi.half(), 3) and not layer_ops.supports(phi.to("meta"), 3)


@needs_cpu
def test_malformed_calls_are_refused() -> None:
    model, graph = model_of({}), tg_lpe.Graph(torch.tensor([[0, 1], [1, 2]]), 3)
    ones, phi = torch.ones(3).double(), torch.ones(3, 8).double()
    laplacian = graph.scaled_laplacian(ones)

    def run(phi: Tensor = phi, later: Tensor = ones[:1], **changed: Tensor) -> Tensor:
        own = laplacian._replace(**changed)
        return layer_ops.compiled_layers(LayerArguments(phi, *own, *model._weights(), later, 1e-12))

    assert run().shape == (3, 8)
    for match, arguments in (
        (r"later must be torch.float64 \[1\] on the CPU, got torch.float32", {"later": torch.ones(1)}),
        ("ptr must ascend from 0 to 3", {"ptr": torch.tensor([0, 2])}),
        ("phi must be .* k <= 16", {"phi": torch.ones(3, 17).double()}),
        (r"diagonal must be torch.float64 \[3\]", {"diagonal": ones[:2]}),
    ):
        with pytest.raises(ValueError, match=match):
            run(**arguments)


@needs_cpu
@pytest.mark.parametrize(
    ("crow", "col"),
    [
        ([0, 1, 10**9, 4], [1, 0, 2, 1]),
        ([0, 3, 1, 4], [1, 0, 2, 1]),
        ([0, -1, 3, 4], [1, 0, 2, 1]),
        ([1, 1, 3, 4], [1, 0, 2, 1]),
        ([0, 1, 3, 3], [1, 0, 2, 1]),
        ([0, 1, 3, 4], [1, 0, 3, 1]),
        ([0, 1, 3, 4], [1, -1, 2, 1]),
    ],
    ids=str,
)
def test_rows_that_are_none_are_refused(crow: list[int], col: list[int]) -> None:
    """By every operation that reads them: they would read other memory."""
    phi, graph = torch.ones(3, 8).double(), tg_lpe.Graph(torch.tensor([[0, 1], [1, 2]]), 3)
    laplacian = graph.scaled_laplacian(phi)
    rows = laplacian.rows._replace(crow=torch.tensor(crow), col=torch.tensor(col, dtype=torch.int32))
    wrong, ones = laplacian._replace(**rows._asdict()), torch.ones(1).double()
    inputs = LayerArguments(phi, *wrong, *torch.ones(4, 2, 8, 8).double(), True, ones, 1e-12)
    message = "crow must ascend from 0 to the number of entries, and col be in 0..2"
    for call in (
        lambda: edges.laplacian(rows, laplacian.diagonal, phi),
        lambda: layer_ops.compiled_layers(inputs),
        lambda: layer_ops.compiled_forward(inputs),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def problem(num_layers: int = 3, k: int = 3, diagonal: bool = True) -> tuple[Any, ...]:
    """A batch of three graphs, and weights of both signs."""
    parts = [from_networkx(nx.cycle_graph(4), lambda i: 1.0 + i), Graph(1, [], []), from_networkx(nx.path_graph(3))]
    graph = graph_of(*parts)
    phi = normal(graph.num_nodes, k)
    stacks = [0.5 * normal(num_layers, k, k, seed=seed) for seed in range(4)]
    laplacian = graph.scaled_laplacian(phi, degree_scaling=True)
    return phi, laplacian, LayerStack(*stacks, diagonal), normal(3, seed=8).abs()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("norm_floor", [None, 1e-12])
def test_the_operation_against_its_reference(diagonal: bool, norm_floor: float | None) -> None:
    phi, laplacian, weights, later = problem(diagonal=diagonal)
    for own in (laplacian, laplacian._replace(crow=None, col=None, value=None)):
        got = layer_ops.layers(phi, own, weights, later, norm_floor)
        expected = layer_ops._reference(phi, *own, *weights, later, norm_floor)
        assert relative_error(got, expected) < 1e-12


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("diagonal, norm_floor", [(True, 1e-12), (False, None)])
def test_first_and_second_derivatives(diagonal: bool, norm_floor: float | None) -> None:
    phi, laplacian, weights, later = problem(num_layers=2, k=2, diagonal=diagonal)
    similarity = torch.diag_embed(weights.similarity.diagonal(dim1=1, dim2=2)) if diagonal else weights.similarity

    def of(phi: Tensor, residual: Tensor, similarity: Tensor, left: Tensor) -> Tensor:
        similarity = torch.diag_embed(similarity.diagonal(dim1=1, dim2=2)) if diagonal else similarity
        stack = LayerStack(residual, similarity, left, weights.right, diagonal)
        return layer_ops.layers(phi, laplacian, stack, later, norm_floor)

    inputs = [x.requires_grad_() for x in (phi, weights.residual, similarity, weights.left)]
    assert torch.autograd.gradcheck(of, inputs)
    assert torch.autograd.gradgradcheck(of, inputs)


def test_the_laplacian_of_a_large_graph_with_and_without_gradient() -> None:
    n = LARGE // 2
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(n, (2, 2 * LARGE), generator=generator)
    graph = tg_lpe.Graph(edges, n)
    assert graph.num_edges > LARGE
    x = normal(n, 3, dtype=torch.float32)
    with_gradient = graph.laplacian(x.clone().requires_grad_())
    assert with_gradient.requires_grad and relative_error(graph.laplacian(x), with_gradient) < 1e-5
    w = torch.rand(graph.num_edges, generator=generator)
    other = graph.with_conductances(w)
    again = other.laplacian(x)
    assert relative_error(again, other.laplacian(x.clone().requires_grad_())) < 1e-5
    assert relative_error(again, graph.laplacian(x)) > 0.1
    assert other.with_conductances(w.requires_grad_()).laplacian(x).requires_grad
    cached = torch.no_grad()(other.with_conductances(w).scaled_laplacian)(x)
    assert not cached.diagonal.requires_grad


GRADIENTS: list[dict[str, Any]] = [{}, {"degree_scaling": False}, {"independent_scaling": False}, {"k": 5}, {"k": 1}]


def gradients(model: LinearTransformer, out: Tensor, phi: Tensor) -> list[Tensor]:
    """Gradients of an asymmetric function of the encoding, by ``Phi_0`` and all parameters."""
    loss = (out * normal(*out.shape, seed=3, dtype=out.dtype)).sum()
    found = torch.autograd.grad(loss, [phi, *model.parameters()], allow_unused=True)
    return [torch.zeros(1, dtype=out.dtype) if grad is None else grad for grad in found]


@needs_cpu
@pytest.mark.parametrize("options", GRADIENTS, ids=str)
@few
@given(parts=st.lists(graphs(max_nodes=9, exponents=(-1, 1)), min_size=1, max_size=4), weighted=st.booleans())
def test_gradients_of_random_batches(options: dict[str, Any], parts: list[Graph], weighted: bool) -> None:
    batch = batch_of(parts)
    if not batch.num_nodes:
        return
    model, graph = model_of(options).requires_grad_(True), tg_lpe.Graph(**batch.arguments(weighted))
    phi = model.probes(graph, None, None).clone().requires_grad_()
    got, expected = encoded_twice(model, graph, phi)
    assert relative_error(got, expected) < 1e-9
    of_torch = gradients(model, expected, phi)
    scale = max(1.0, *(float(grad.abs().max()) for grad in of_torch))
    for ours, theirs in zip(gradients(model, got, phi), of_torch, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-7 * scale


@needs_cpu
def test_the_number_of_threads_changes_gradients_by_rounding_only(threads: None) -> None:
    """Gradients of weights are matrix products of torch's library, which sums in another order on some processors."""
    batch = batch_of([graph for graph in corner_cases() if graph.num_nodes > 1] * 40)
    model = model_of({}, torch.float32).requires_grad_(True)
    graph = tg_lpe.Graph(**batch.arguments(weighted=False))
    phi = model.probes(graph, None, None).clone().requires_grad_()
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(gradients(model, model.encode(graph, Inputs(), probes=phi).node, phi))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)
