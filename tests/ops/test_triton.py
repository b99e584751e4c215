"""The Triton kernels: they compile for GPUs, and are correct in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Graph, batch_of

from tg_lpe import GramTransformer, Incidence, LinearTransformer
from tg_lpe.ops import triton as room
from tg_lpe.ops.structures import Recurrence
from tg_lpe.ops.triton import polynomials

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: there is none for this system"
)

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from tg_lpe.ops import triton as room
from tg_lpe.ops.triton import kernels, layers, polynomials

INDICES, INTS = {"tail", "head", "ptr", "edge_ptr"}, {"k", "start"}
def kind(name):
    if name in INDICES: return "*i64"
    if name in INTS or name.startswith("num_") or name == "out_channels": return "i32"
    return "fp32" if name in ("floor", "alpha", "gamma") else "*fp32"

def check(name, nodes, **constants):
    kernel = getattr(kernels, name)
    constants["NODES"] = nodes
    signature = {a: "constexpr" if a in constants else kind(a) for a in kernel.arg_names}
    source = triton.compiler.ASTSource(kernel, signature, constants)
    done = triton.compile(source, target=target, options=room.launch_options(nodes))
    assert f".entry {name}" in done.asm["ptx"] and len(done.asm["cubin"]) > 1000
    print(target.arch, name, nodes, done.metadata.shared)

for target in (GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32)):
    check("layers", layers.MAX_NODES, DIAGONAL=False, NORMALIZED=True)
    check("layers_backward", layers.MAX_NODES)
    check("matrix_polynomials", polynomials.MAX_NODES)
    check("matrix_polynomials_backward", polynomials.MAX_NODES)
# What is absent, and numbers that are one, become constants at launch.
absent = dict(conductance=None)
check("layers", 16, DIAGONAL=True, NORMALIZED=False, k=1, num_layers=1, readout=None, **absent)
check("layers_backward", 16, k=1, num_layers=1, start=1, **absent)
check("matrix_polynomials", 16, num_filters=1, num_layers=1, num_edges=1, start=1)
check("matrix_polynomials_backward", 16, num_filters=1, num_layers=1, num_edges=1, start=1)
"""

SMALLEST_SHARED = 99 * 1024
"""Bytes that a program may have on the smallest GPUs from compute capability 8.0 on; 227 KiB on the largest."""


def run(*arguments: str, **variables: str) -> str:
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("TRITON_", "TG_LPE_", "PYTEST_"))
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**environment, **variables},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_triton
def test_under_the_interpreter() -> None:
    """In a separate process: with the variable set, the kernels would run on the CPU tensors of every other test."""
    out = run("-m", "pytest", "tests/triton_interpreted.py", "-q", "-p", "no:cacheprovider", TRITON_INTERPRET="1")
    assert " passed" in out and " skipped" not in out, out


@needs_triton
def test_kernels_compile(tmp_path: Path) -> None:
    """For the oldest and the newest architecture that Triton compiles differently; no GPU is needed."""
    lines = [line.split() for line in run("-c", COMPILE, TRITON_CACHE_DIR=str(tmp_path)).splitlines()]
    assert len(lines) == 12
    assert 0 < max(int(line[-1]) for line in lines) <= SMALLEST_SHARED, lines


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "enabled", True)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "tg_lpe.ops.triton.kernels", raising=False)
    room.load_kernels.cache_clear()
    try:
        assert room.load_kernels() is None
        monkeypatch.setattr(room, "interpreted", True)
        room._runs_on.cache_clear()
        assert not room.supports(torch.zeros(1))
        graph = Incidence(torch.tensor([[0, 1], [1, 2]]), 3)
        assert LinearTransformer(k=4).encode(graph).node.shape == (3, 4)
        with pytest.raises(RuntimeError, match="absent"):
            recurrence = Recurrence(graph.tail, graph.head, graph.ptr, 3, 3, 1.0, 0.0, 2)
            polynomials.matrix_polynomials(torch.ones(1, 2), recurrence)
    finally:
        room.load_kernels.cache_clear()
        room._runs_on.cache_clear()


@needs_triton
def test_it_runs_only_on_request() -> None:
    script = (
        "import torch; from tg_lpe.ops import triton as room; "
        "print(room.supports(torch.zeros(1)), room.load_kernels() is not None)"
    )
    assert run("-c", script).split() == ["False", "False"]
    assert run("-c", script, TG_LPE_TRITON="1").split() == ["False", "True"]  # tensors on the CPU are not supported


@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("kind", [LinearTransformer, GramTransformer])
def test_on_a_gpu(kind: Any) -> None:
    graph = batch_of([Graph(6, [(0, 1), (0, 2), (1, 2), (3, 4)], [1.0, 0.5, 2.0, 1.5])] * 300).arguments()
    arguments = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in graph.items()}
    arguments["edge_weight"] = arguments["edge_weight"].float()
    torch.manual_seed(0)
    model = kind().cuda()

    def outputs() -> list[torch.Tensor]:
        parts = [part for part in model(None, **arguments) if part is not None]
        grads = torch.autograd.grad([part.square().sum() for part in parts], list(model.parameters()))
        return [*parts, *grads]

    with room.switched(False):
        expected = outputs()
    with room.switched(True):
        once, again = outputs(), outputs()
    for a, b, c in zip(once, again, expected, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=1e-3, atol=1e-4)


@needs_triton
def test_switched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "enabled", False)
    with room.switched(True):
        assert room.enabled and room.load_kernels() is not None
        with room.switched(False):
            assert not room.enabled and room.load_kernels() is None
        assert room.enabled and room.load_kernels() is not None
    assert not room.enabled and room.load_kernels() is None


def test_what_it_supports(monkeypatch: pytest.MonkeyPatch) -> None:
    if not room.interpreted:
        assert not room.supports(torch.zeros(1))
    monkeypatch.setattr(room, "interpreted", True)
    monkeypatch.setattr(room, "enabled", True)
    monkeypatch.setattr(room, "_runs_on", lambda device: device.type == "cpu")
    monkeypatch.setattr(room, "load_kernels", lambda: room)
    assert room.supports(torch.zeros(1))
    assert not room.supports(torch.zeros(1).double()) and not room.supports(torch.zeros(1, device="meta"))


def test_where_the_edges_of_each_graph_begin() -> None:
    batch = torch.tensor([0, 0, 0, 2, 2, 4, 5, 5])
    graph = Incidence(torch.tensor([[7, 1, 0, 1, 4], [6, 0, 2, 2, 3]]), 8, batch=batch, num_graphs=7)
    assert graph.edge_ptr.tolist() == [0, 3, 3, 4, 4, 4, 5, 5]
    assert Incidence(torch.tensor([[1, 0], [0, 2]]), 4).edge_ptr.tolist() == [0, 2]
    assert Incidence(torch.zeros(2, 0, dtype=torch.int64), 0).edge_ptr.tolist() == [0, 0]
