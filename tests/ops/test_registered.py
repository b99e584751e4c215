"""Each operation as ``torch.library`` sees it: schema, fake tensors, autograd and torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from helpers import batch_of, normal
from hostile import EDGES, NODES, OPS, PARTS, operations, samples
from ops_support import needs_cpu
from torch import Tensor
from torch.autograd import forward_ad

from tg_lpe import GramTransformer, Graph, LinearTransformer
from tg_lpe.encoders import Inputs
from tg_lpe.ops import edges, estimates, layers, polynomials, segment
from tg_lpe.ops.operator import Operator
from tg_lpe.ops.segment import RowGroups

REGISTERED = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("tg_lpe::"))
NAMES = sorted({name.removeprefix("tg_lpe::").partition(".")[0] for name in REGISTERED})
OF_BACKENDS = {"segment_sum", "layers_backward", "matrix_polynomials_backward"}


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name: str) -> None:
    if name not in (found := samples()) and name in OF_BACKENDS:
        pytest.skip("there is no backend with such an operation")
    tests = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    torch.library.opcheck(getattr(OPS, name).default, found[name], test_utils=tests)


@pytest.fixture
def compiled() -> Callable[..., Any]:
    torch._dynamo.reset()
    return lambda function: torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)


def outputs(function: Callable[..., Any], *inputs: Tensor) -> list[Tensor]:
    """Values and gradients."""
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    outs = function(*inputs)
    outs = [out for out in ([outs] if isinstance(outs, Tensor) else outs) if out is not None]
    return [*outs, *torch.autograd.grad(sum(out.square().sum() for out in outs), inputs)]


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("method", ["differences", "laplacian", "spread_to_directed", "merge_directed"])
@pytest.mark.parametrize("weighted", [True, False])
def test_methods_of_the_incidence_are_traced_whole(method: str, weighted: bool, compiled: Any) -> None:
    arguments = batch_of(PARTS).arguments(weighted)
    loop = torch.tensor([[2], [2]])
    arguments["edge_index"] = torch.cat([arguments["edge_index"], loop], 1)
    if weighted:
        arguments["edge_weight"] = torch.cat([arguments["edge_weight"], torch.ones(1).double()])
    sizes = {"spread_to_directed": EDGES, "merge_directed": arguments["edge_index"].size(1)}
    x = normal(sizes.get(method, NODES), 2)
    expected = outputs(getattr(Graph(**arguments), method), x)
    graph = Graph(**arguments)
    got = outputs(compiled(lambda x: getattr(graph, method)(x)), x)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("scatter", [True, False])
def test_row_groups_are_traced_whole(scatter: bool, compiled: Any) -> None:
    if scatter and segment.torch_scatter is None:
        pytest.skip("torch-scatter is not installed or switched off")

    def of(x: Tensor) -> Tensor:
        groups = RowGroups(torch.tensor([3, 0, 3, 1]), 4)
        return groups.sum(groups.gather(x).square()) * groups.mean(groups.gather(x))

    with nullcontext() if scatter else mock.patch.object(segment, "torch_scatter", None):
        found, expected = outputs(compiled(of), normal(4, 2)), outputs(of, normal(4, 2))
    torch.testing.assert_close(found, expected)


QUICK = [("exact", "cpu"), ("linear", "cpu")]
SLOW = [("exact", "reference"), ("estimated", "cpu"), ("directed", "reference")]


@pytest.mark.parametrize(
    ("kind", "backend"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)], indirect=["backend"]
)
def test_encoders_compile(kind: str, backend: str) -> None:
    """With the C++ part, one graph after the incidence; graphs of several sizes are padded in a separate call."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model: Any = LinearTransformer(4, 3).double()
    if kind != "linear":
        options = {"probes": "rademacher" if kind == "estimated" else "identity", "num_probes": 5}
        direction = 0.1 if kind == "directed" else None
        model = GramTransformer(3, 2, num_filters=2, num_layers=2, direction=direction, **options).double()
    parameters = list(model.parameters())

    def run(encode: Callable[..., Any]) -> list[Tensor]:
        graph = Graph(**batch_of(PARTS).arguments(weighted=False))
        out = [part for part in encode(graph, Inputs()) if part is not None]
        grads = torch.autograd.grad(sum(part.square().sum() for part in out), parameters, allow_unused=True)
        return [*out, *(grad for grad in grads if grad is not None)]

    whole = kind == "linear" or (kind == "exact" and backend == "cpu")
    compiled = torch.compile(model.encode, backend="aot_eager", fullgraph=whole, dynamic=True)
    for mine, theirs in zip(run(compiled), run(model.encode), strict=True):
        torch.testing.assert_close(mine, theirs)


EAGER = {
    operator.overload.name().removeprefix("tg_lpe::"): operator
    for module in (edges, estimates, layers, polynomials, segment)
    for operator in vars(module).values()
    if isinstance(operator, Operator)
}


@needs_cpu
@pytest.mark.filterwarnings("ignore")  # of torch.jit
@pytest.mark.parametrize("name", [*EAGER, "laplacian_step_", "ball_polynomials", "edge_attention"])
def test_no_transform_of_torch_gives_a_wrong_number(name: str) -> None:
    """Forward mode, ``torch.func`` and ``torch.jit.trace`` end in an error or in the right values."""
    operation, arguments = operations()[name]
    operation = operation if name == "segment_sum" else EAGER.get(name, operation)

    def of(at: int, value: Tensor) -> Tensor:
        values = [x.detach().clone() if isinstance(x, Tensor) else x for x in arguments]
        out = operation(*values[:at], value.clone(), *values[at + 1 :])
        outs = [out] if isinstance(out, Tensor) else [x for x in out if isinstance(x, Tensor)]
        return torch.cat([x.flatten() for x in outs if x.is_floating_point()])

    def dual(run: Any, x: Tensor, step: Tensor) -> Tensor:
        with forward_ad.dual_level():
            out, tangent = forward_ad.unpack_dual(run(forward_ad.make_dual(x, step)))
            return torch.zeros_like(out) if tangent is None else tangent

    for at, x in enumerate(arguments):
        if isinstance(x, Tensor) and x.is_floating_point():
            x, run, step = x.detach(), partial(of, at), normal(*x.shape, seed=5)
            with suppress(RuntimeError):
                slope = (run(x + 1e-6 * step) - run(x - 1e-6 * step)) / 2e-6
                torch.testing.assert_close(dual(run, x, step), slope, rtol=1e-5, atol=1e-6)
            with suppress(RuntimeError):
                torch.testing.assert_close(torch.func.jvp(run, (x,), (step,))[1], slope, rtol=1e-5, atol=1e-6)
            with suppress(RuntimeError):
                torch.testing.assert_close(torch.func.vmap(run)(x.expand(2, *x.shape)), run(x).expand(2, -1))
            with suppress(RuntimeError):
                traced = torch.jit.trace(run, x, check_trace=False)
                torch.testing.assert_close(traced(x + 0.1 * step), run(x + 0.1 * step))
