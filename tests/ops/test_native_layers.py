"""All layers of a linear transformer, compiled, against the same layers in torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import Batched, Graph, batch_of, corner_cases, few, graphs, normal, randomize_, relative_error
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tg_lpe import Incidence, LinearTransformer
from tg_lpe.datasets.synthetic import grid_edges
from tg_lpe.graph.incidence import LARGE, inverse_sqrt
from tg_lpe.ops import native

pytestmark = pytest.mark.skipif(
    not native.has_native(), reason="the compiled part was not built (it needs a C++ compiler) or is switched off"
)

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
]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def model_of(options: dict[str, Any], dtype: torch.dtype = torch.float64) -> LinearTransformer:
    torch.manual_seed(0)
    model = LinearTransformer(**{"num_blocks": 2, "num_loops": 2, **options}).to(dtype).requires_grad_(False)
    scale = 0.5 if options.get("normalize", True) else 0.1
    randomize_(model, scale=scale)
    return model


def both(model: LinearTransformer, graph: Incidence) -> tuple[torch.Tensor, torch.Tensor]:
    """The encoding by the compiled layers, and by torch's."""
    phi = model.probes(graph, None, None)
    assert model._compiled_runs(graph, phi)
    return model.encode(graph, probes=phi).node, model._run_fixed(graph, phi)


@pytest.mark.parametrize("options", MODELS, ids=str)
@few
@given(parts=st.lists(graphs(max_nodes=9, exponents=(-1, 1)), min_size=1, max_size=4), weighted=st.booleans())
def test_random_batches(options: dict[str, Any], parts: list[Graph], weighted: bool) -> None:
    batch = batch_of(parts)
    if batch.num_nodes:
        got, expected = both(model_of(options), Incidence(**batch.arguments(weighted)))
        assert relative_error(got, expected) < 1e-9


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_corner_cases(options: dict[str, Any]) -> None:
    batch = batch_of(corner_cases())
    for weighted in (True, False):
        got, expected = both(model_of(options), Incidence(**batch.arguments(weighted)))
        for ours, torchs in zip(batch.split(got), batch.split(expected), strict=True):
            assert relative_error(ours, torchs) < 1e-8


def test_float32_is_as_near_as_torch_is() -> None:
    batch: Batched = batch_of(corner_cases())
    exact, _ = both(model_of({}), Incidence(**batch.arguments()))
    arguments = batch.arguments() | {"edge_weight": batch.edge_weight.float()}
    for got in both(model_of({}, torch.float32), Incidence(**arguments)):
        assert relative_error(got, exact) < 1e-4


def test_ground_conductances() -> None:
    batch = batch_of([graph for graph in corner_cases() if graph.num_nodes > 1])
    ground = torch.rand(batch.num_nodes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got, expected = both(model_of({}), Incidence(**batch.arguments(), ground=ground))
    assert relative_error(got, expected) < 1e-9


def test_a_large_graph_by_any_number_of_threads(threads: None) -> None:
    generator = torch.Generator().manual_seed(0)
    n = 40_000  # more rows than one thread keeps to itself
    graph = Incidence(torch.randint(n, (2, 3 * n), generator=generator), n)
    model = model_of({}, torch.float32)
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(both(model, graph))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][0], results[2][0])
    assert relative_error(*results[0]) < 1e-4


@pytest.mark.parametrize("sizes", [(1, 725), (2, 725)], ids=str)  # the large graph's first row at both places of a pair
def test_a_graph_that_no_cache_holds(sizes: tuple[int, int]) -> None:
    alone, side = sizes
    edges = grid_edges(side) + alone
    batch = torch.ones(alone + side * side, dtype=torch.int64)
    batch[:alone] = 0
    graph = Incidence(edges, batch=batch)
    assert graph.num_nodes * 8 * 4 > 2**24
    assert relative_error(*both(model_of({"num_blocks": 1}, torch.float32), graph)) < 1e-4


def test_only_without_gradient() -> None:
    graph = Incidence(torch.tensor([[0, 1], [1, 2]]), 3)
    model = model_of({})
    phi = model.probes(graph, None, None)
    assert model._compiled_runs(graph, phi)
    assert not model._compiled_runs(graph, phi.clone().requires_grad_())
    assert not model_of({"k": 17})._compiled_runs(graph, phi)
    model.requires_grad_(True)
    assert not model._compiled_runs(graph, phi) and model._compiled_trains(graph, phi)
    weighted = graph.with_conductances(torch.ones(2).double().requires_grad_())
    assert not model._compiled_trains(weighted, phi)
    for options in ({"k": 9}, {"normalize": False}, {"diagonal": False}):
        assert not model_of(options)._compiled_trains(graph, phi)
    with torch.no_grad():
        assert model._compiled_runs(graph, phi)


def test_malformed_calls_are_refused() -> None:
    model, graph = model_of({}), Incidence(torch.tensor([[0, 1], [1, 2]]), 3)
    ones, ends = torch.ones(3).double(), (graph.tail, graph.head)
    adjacency = native.native_adjacency(ends, ones, None, ones)

    def run(phi: Tensor, ptr: Tensor = graph.ptr, later: Tensor = ones[:1]) -> Tensor:
        return native.native_layers(phi, adjacency, ptr, model._stack(), model.readout.weight, later, 1e-12)

    assert run(torch.ones(3, 8).double()).shape == (3, 8)
    with pytest.raises(ValueError, match=r"later must be torch.float64 \[1\] on the CPU, got torch.float32"):
        run(torch.ones(3, 8).double(), later=torch.ones(1))
    with pytest.raises(ValueError, match="ptr must ascend from 0 to 3"):
        run(torch.ones(3, 8).double(), ptr=torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="phi must be float32 or float64"):
        run(torch.ones(3, 17).double())
    with pytest.raises(ValueError, match=r"x must be torch.float64 \[3, 2\] on the CPU, got torch.float32"):
        native.native_laplacian(adjacency, torch.ones(3, 2))
    with pytest.raises(ValueError, match="each edge must have 0 <= tail < head < 3"):
        native.native_adjacency((graph.tail, graph.head + 1), ones, None, ones)
    with pytest.raises(ValueError, match=r"laplacian_diagonal must be torch.float64 \[3\]"):
        native.native_adjacency(ends, ones, None, ones[:2])


@few
@given(graph=graphs(max_nodes=12, min_nodes=1, exponents=(-5, 5)), k=st.integers(1, 20), scaled=st.booleans())
def test_products_with_the_laplacian(graph: Graph, k: int, scaled: bool) -> None:
    incidence = Incidence(graph.edge_index(), graph.num_nodes, edge_weight=graph.edge_weight())
    x = normal(graph.num_nodes, k)
    scale = inverse_sqrt(incidence.degree(x)).unsqueeze(1) if scaled else torch.ones(graph.num_nodes, 1).double()
    expected = scale * torch.from_numpy(graph.laplacian()) @ (scale * x)
    got = native.native_laplacian(incidence.adjacency(x, scaled), x)
    assert relative_error(got, expected) < 1e-12


def test_the_laplacian_of_a_large_graph_with_and_without_gradient() -> None:
    n = LARGE // 2
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(n, (2, 2 * LARGE), generator=generator)
    graph = Incidence(edges, n, ground=torch.rand(n, generator=generator))
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


GRADIENTS: list[dict[str, Any]] = [{}, {"degree_scaling": False}, {"independent_scaling": False}, {"k": 5}, {"k": 1}]


def gradients(model: LinearTransformer, out: Tensor, phi: Tensor) -> list[Tensor]:
    """Of a function of the encoding that has no symmetry, by ``Phi_0`` and all parameters."""
    loss = (out * normal(*out.shape, seed=3, dtype=out.dtype)).sum()
    found = torch.autograd.grad(loss, [phi, *model.parameters()], allow_unused=True)
    return [torch.zeros(1, dtype=out.dtype) if grad is None else grad for grad in found]


@pytest.mark.parametrize("options", GRADIENTS, ids=str)
@few
@given(parts=st.lists(graphs(max_nodes=9, exponents=(-1, 1)), min_size=1, max_size=4), weighted=st.booleans())
def test_gradients_of_random_batches(options: dict[str, Any], parts: list[Graph], weighted: bool) -> None:
    batch = batch_of(parts)
    if not batch.num_nodes:
        return
    model, graph = model_of(options).requires_grad_(True), Incidence(**batch.arguments(weighted))
    phi = model.probes(graph, None, None).clone().requires_grad_()
    assert model._compiled_trains(graph, phi)
    got, expected = model.encode(graph, probes=phi).node, model._run_fixed(graph, phi)
    assert relative_error(got, expected) < 1e-9
    scale = max(float(grad.abs().max()) for grad in gradients(model, expected, phi))
    for ours, torchs in zip(
        gradients(model, got, phi), gradients(model, model._run_fixed(graph, phi), phi), strict=True
    ):
        assert float((ours - torchs).abs().max()) < 1e-7 * max(scale, 1.0)


@pytest.mark.parametrize("options", GRADIENTS, ids=str)
def test_gradcheck(options: dict[str, Any]) -> None:
    batch = batch_of([graph for graph in corner_cases() if 1 < graph.num_nodes < 12])
    model, graph = model_of(options).requires_grad_(True), Incidence(**batch.arguments(weighted=False))
    phi = model.probes(graph, None, None).clone().requires_grad_()
    parameters = tuple(model.parameters())

    def encode(phi: Tensor, *_: Tensor) -> Tensor:
        return model.encode(graph, probes=phi).node

    assert torch.autograd.gradcheck(encode, (phi, *parameters), atol=1e-6, fast_mode=True)


def test_gradients_do_not_depend_on_the_number_of_threads(threads: None) -> None:
    batch = batch_of([graph for graph in corner_cases() if graph.num_nodes > 1] * 40)
    model = model_of({}, torch.float32).requires_grad_(True)
    graph = Incidence(**batch.arguments(weighted=False))
    phi = model.probes(graph, None, None).clone().requires_grad_()
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(gradients(model, model.encode(graph, probes=phi).node, phi))
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*found, strict=True))


def test_conductances_changed_in_place_are_seen() -> None:
    w = torch.ones(2, dtype=torch.float64)
    graph = Incidence(torch.tensor([[0, 1], [1, 2]]), 3).with_conductances(w)
    model = model_of({"degree_scaling": False, "normalize": False})
    phi = model.probes(graph, None, None)
    before = model.encode(graph, probes=phi).node
    w.mul_(100.0)
    after = model.encode(graph, probes=phi).node
    assert relative_error(after, model._run_fixed(graph, phi)) < 1e-12 and relative_error(after, before) > 1e-3
