"""The C++ part gives the same results with each set of instructions of the processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ops_support import needs_cpu
from safetensors.torch import load_file

from tg_lpe.ops import cpu

SCRIPT = """
import sys
import networkx as nx, torch
from safetensors.torch import save_file
from tg_lpe import GramTransformer, Graph, LinearTransformer, theory
from tg_lpe.ops import cpu
from tg_lpe.ops.balls import ball_polynomials
from tg_lpe.ops.walks import add_walks_

assert cpu.instructions() == sys.argv[1], cpu.instructions()
torch.manual_seed(0)
parts = [nx.gnp_random_graph(70, 0.1, seed=1), nx.path_graph(9), nx.star_graph(20), nx.empty_graph(2)]
union = nx.disjoint_union_all(parts)
edge_index = torch.tensor(list(union.edges)).T.contiguous()
batch = torch.arange(len(parts)).repeat_interleave(torch.tensor([len(part) for part in parts]))
found = {}
for dtype in (torch.float32, torch.float64):
    graph = Graph(edge_index, len(union), batch=batch)
    x = torch.randn(len(union), 11, dtype=torch.float64).to(dtype)
    models = {
        "exact": GramTransformer(4, 3, num_filters=3, num_layers=6),
        "estimated": GramTransformer(4, 3, num_layers=6, probes="rademacher", num_probes=50),
        "linear": LinearTransformer(8),
        "dense": LinearTransformer(8, diagonal=False),
        "wide": LinearTransformer(16, out_channels=3),
    }
    for name, model in models.items():
        with torch.no_grad():
            for weights in model.parameters():
                weights.copy_(0.3 * torch.randn(weights.shape, dtype=torch.float64))
        model = model.to(dtype)
        with torch.no_grad():
            without = model(None, graph)
        encoding = model(None, graph)
        sum(part.square().sum() for part in encoding if part is not None).backward()
        for what, rows in {"": encoding.node, " edges": encoding.edge, " without gradient": without.node}.items():
            if rows is not None:
                found[f"{name}{what} {dtype}"] = rows.detach()
        for what, weights in model.named_parameters():
            if weights.grad is not None:
                found[f"gradient {name} {what} {dtype}"] = weights.grad
    found[f"laplacian {dtype}"] = graph.laplacian(x)
    adjacency = 0.2 * torch.randn(3, graph.num_edges, dtype=torch.float64).to(dtype)
    orders = torch.arange(len(union)) % 6 + 1
    found[f"balls {dtype}"], found[f"ball edges {dtype}"] = ball_polynomials(
        adjacency, graph.tail, graph.head, orders, "chebyshev", 5
    )
    found[f"heat {dtype}"] = theory.heat_kernel(graph, 0.7, psi=x[:, :4])
found["walks"] = torch.zeros(104, 9, dtype=torch.float64)
add_walks_(found["walks"], None, adjacency[0].double(), graph.tail, graph.head, torch.arange(13))
save_file({name: rows.contiguous() for name, rows in found.items()}, sys.argv[2])
"""


def results(instructions: str, file: Path) -> dict[str, torch.Tensor]:
    env = {**os.environ, "TG_LPE_INSTRUCTIONS": instructions, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", SCRIPT, instructions, str(file)], env=env, check=True)
    return load_file(file)


@needs_cpu
@pytest.mark.slow
def test_older_processors_compute_the_same(tmp_path: Path) -> None:
    newest = str(cpu.instructions())
    if newest == "any":
        pytest.skip("this processor has neither AVX2 nor AVX-512, or they are switched off")
    expected = results(newest, tmp_path / newest)
    for older in cpu.INSTRUCTIONS[: cpu.INSTRUCTIONS.index(newest)]:
        got = results(older, tmp_path / older)
        assert got.keys() == expected.keys()
        assert any(not torch.equal(got[name], rows) for name, rows in expected.items()), "other instructions round so"
        for name, rows in expected.items():
            assert rows.isfinite().all(), name
            # In float32 small gradients are sums of large terms.
            single = 1e-2 if name.startswith("gradient") else 1e-4
            tolerance = single if rows.dtype == torch.float32 else 1e-11
            error = float((got[name] - rows).abs().max() / rows.abs().max().clamp(min=1e-30))
            assert error < tolerance, (older, name, error)


def test_a_mistyped_set_of_instructions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TG_LPE_NO_CPU_KERNELS", raising=False)
    monkeypatch.setenv("TG_LPE_INSTRUCTIONS", "avx-2")
    with pytest.raises(ValueError, match="TG_LPE_INSTRUCTIONS"):
        cpu._load()
