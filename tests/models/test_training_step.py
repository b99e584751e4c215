"""A training step waits for the device a few times, however many layers it has, and compiles as a whole."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from helpers import relative_error
from ops_support import needs_cpu
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

import tg_lpe.graph.graph
import tg_lpe.ops.segment
from tg_lpe import GramTransformer, GraphTransformer, LinearTransformer
from tg_lpe.ops import cpu
from tg_lpe.testing.host_reads import HostReads

TYPES = {"num_node_types": 5, "num_edge_types": 3}


def rings(num_graphs: int, max_nodes: int = 9, seed: int = 0) -> dict[str, Any]:
    """A batch of rings of 3 to ``max_nodes`` nodes with types."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(3, max_nodes + 1, (num_graphs,), generator=generator).tolist()
    edges, first = [], 0
    for size in sizes:
        ring = [(first + i, first + (i + 1) % size) for i in range(size)]
        edges += [*ring, *((v, u) for u, v in ring)]
        first += size
    return {
        "x": torch.randint(0, 5, (first,), generator=generator),
        "edge_index": torch.tensor(edges).T.contiguous(),
        "edge_attr": torch.randint(0, 3, (len(edges),), generator=generator),
        "batch": torch.repeat_interleave(torch.arange(num_graphs), torch.tensor(sizes)),
        "num_graphs": num_graphs,
    }


@pytest.mark.parametrize("is_counted", [False, True], ids=["num_graphs unknown", "num_graphs given"])
@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=needs_cpu)], ids=["torch", "C++"])
@pytest.mark.parametrize("attention", ["edge", "gps"])
@pytest.mark.parametrize("with_encoder", [False, True])
def test_few_reads_from_the_device(with_encoder: bool, attention: str, is_compiled: bool, is_counted: bool) -> None:
    torch.manual_seed(0)
    encoder = GramTransformer(num_filters=2, num_layers=4, **TYPES) if with_encoder else None
    sizes = {"hidden_channels": 16, "heads": 2, **TYPES}
    model = GraphTransformer(encoder=encoder, attention=attention, pe_options={"norm": True}, **sizes)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch, target = rings(128), torch.randn(128, 1)
    if not is_counted:
        del batch["num_graphs"]
    with nullcontext() if is_compiled else cpu.switched_off(), HostReads() as reads:
        loss = nn.functional.l1_loss(model(**batch), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    # One for all checks and counts, whatever the layers; one for graphs of each size, and on the CPU for num_graphs.
    most = 1 + (with_encoder and not (is_compiled and is_counted))
    assert 1 <= len(reads.seen) <= most, reads.seen
    if encoder is not None:
        assert all(parameter.grad is not None for parameter in encoder.parameters())


@pytest.fixture
def no_scatter() -> Iterator[None]:
    with mock.patch.object(tg_lpe.ops.segment, "torch_scatter", None):
        yield


def compiled(model: nn.Module, backend: str, fullgraph: bool = True) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, fullgraph=fullgraph, dynamic=True, backend=backend)


def step(model: Any, batch: dict[str, Any]) -> list[Tensor]:
    """The prediction and the gradient of every parameter."""
    out = model(**batch, num_nodes=len(batch["batch"]))
    return [out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))]


@pytest.mark.parametrize("attention", ["bias", "pairs"])
def test_one_graph_is_compiled_as_a_whole(attention: str) -> None:
    """Without batch, which would say to which graph each node belongs."""
    torch.manual_seed(0)
    model = GraphTransformer(num_node_types=2, attention=attention, hidden_channels=8, heads=2, num_layers=1).double()
    x, ring = torch.tensor([0, 1, 1, 0]), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    torch.testing.assert_close(compiled(copy.deepcopy(model), "eager")(x, ring), model(x, ring))


@pytest.mark.parametrize(
    ("options", "scatter"),
    [
        ({**TYPES, "num_layers": 1}, False),
        ({**TYPES, "num_layers": 1}, True),
        pytest.param(
            {**TYPES, "attention_options": {"norm": "graph"}, "readout": {"pooling": "both"}},
            True,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"attention_options": {"norm": "layer"}, "readout": {"level": "node"}}, False, marks=pytest.mark.slow
        ),
    ],
)
def test_compiled_as_a_whole(options: dict[str, Any], scatter: bool, request: pytest.FixtureRequest) -> None:
    """The same values and gradients, and one compilation for batches of all sizes."""
    if not scatter:
        request.getfixturevalue("no_scatter")
    elif tg_lpe.ops.segment.torch_scatter is None:
        pytest.skip("torch-scatter is not installed or switched off")
    torch.manual_seed(0)
    model = GraphTransformer(**{"hidden_channels": 8, "heads": 2, "num_layers": 2, **options}).double()
    whole = compiled(copy.deepcopy(model), "aot_eager")
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for number, num_graphs in enumerate((3, 5, 11)):
        batch = rings(num_graphs, seed=number)
        if "num_node_types" not in options:
            batch = {**batch, "x": None, "edge_attr": None}
        for got, expected in zip(step(whole, batch), step(model, batch), strict=True):
            assert relative_error(got, expected) < 1e-9
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before <= 1


@needs_cpu
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gram", "linear"])
def test_compiled_with_an_encoder(kind: str) -> None:
    """The same values and gradients with one graph break: the size of the incidence depends on the data."""
    torch.manual_seed(0)
    encoder = GramTransformer(num_filters=2, num_layers=4, **TYPES) if kind == "gram" else LinearTransformer(4, 3)
    model = GraphTransformer(encoder=encoder, hidden_channels=8, heads=2, num_layers=1, **TYPES).double()
    batch, twin = rings(3), compiled(copy.deepcopy(model), "aot_eager", fullgraph=False)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for got, expected in zip(step(twin, batch), step(model, batch), strict=True):
        assert relative_error(got, expected) < 1e-9
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before <= 2


@pytest.mark.slow
@pytest.mark.xfail(
    torch.__version__.startswith("2.6."),
    reason="the CPU code generator of PyTorch 2.6 has no atomic sums in the tiles it makes here",
    raises=BackendCompilerFailed,
    strict=True,
)
@pytest.mark.usefixtures("no_scatter")
def test_compiled_by_inductor() -> None:
    torch.manual_seed(0)
    model = GraphTransformer(hidden_channels=8, heads=2, num_layers=1, **TYPES)
    whole = compiled(copy.deepcopy(model), "inductor")
    for number, num_graphs in enumerate((3, 5)):
        batch = rings(num_graphs, seed=number)
        for got, expected in zip(step(whole, batch), step(model, batch), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5)
