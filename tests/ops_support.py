"""Shared by the tests of the operations: random graphs, definitions in dense algebra, comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Graph, batch_of, normal
from torch import Tensor

import tg_lpe
from tg_lpe import LinearTransformer
from tg_lpe.encoders import Inputs
from tg_lpe.ops import cpu
from tg_lpe.ops.polynomials import BASES, matrix_polynomials

needs_cpu = pytest.mark.skipif(
    not cpu.is_available(), reason="the C++ part was not built (it needs a C++ compiler) or is switched off"
)
bases = pytest.mark.parametrize("basis", sorted(BASES))
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def polynomials_of(adjacency: Tensor, graph: tg_lpe.Graph, basis: str, num_layers: int) -> tuple[Tensor, Tensor]:
    """:func:`matrix_polynomials` of a batch."""
    structure = graph.tail, graph.head, graph.ptr, graph.num_nodes, graph.max_nodes
    return matrix_polynomials(adjacency, *structure, basis, num_layers)


def incidence(parts: list[Graph]) -> tg_lpe.Graph:
    """A batch with unit weights."""
    return tg_lpe.Graph(**batch_of(parts).arguments(weighted=False))


def entries_at_edges(
    graph: tg_lpe.Graph, num_filters: int = 3, dtype: torch.dtype = torch.float64, seed: int = 0
) -> Tensor:
    """Adjacency entries of both signs, different for each filter, with eigenvalues of about one at most."""
    degree = torch.bincount(torch.cat([graph.tail, graph.head]), minlength=max(graph.num_nodes, 1)).clamp(min=1)
    scale = (degree[graph.tail] * degree[graph.head]).double().rsqrt()
    return (normal(num_filters, graph.num_edges, seed=seed).clamp(-1.5, 1.5) * scale).to(dtype)


def expected_polynomials(
    adjacency: Tensor, graph: tg_lpe.Graph, basis: str, num_layers: int
) -> tuple[np.ndarray, np.ndarray]:
    """The recurrence on one dense matrix of the whole batch, in double precision."""
    tail, head, n = graph.tail.numpy(), graph.head.numpy(), graph.num_nodes
    nodes, edges = [], []
    for row in adjacency.detach().double().numpy():
        P = np.zeros((n, n))
        P[tail, head] = P[head, tail] = row
        before, phi = np.eye(n), P
        for _ in range(num_layers):
            nodes.append(np.diag(phi))
            edges.append(phi[tail, head])
            before, phi = phi, P @ phi if basis == "power" else 2 * P @ phi - before
    width = adjacency.size(0) * num_layers
    return np.array(nodes).reshape(width, n).T, np.array(edges).reshape(width, tail.size).T


def check(got: tuple[Tensor, Tensor], expected: tuple[Any, Any], tolerance: float) -> None:
    """Compare node and edge entries, in units of the largest."""
    scale = max(1.0, *(float(np.abs(np.asarray(part)).max(initial=0.0)) for part in expected))
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.shape == theirs.shape
        assert np.abs(mine.detach().numpy() - np.asarray(theirs)).max(initial=0.0) < tolerance * scale


def same_with_any_threads(run: Callable[[], Sequence[Tensor]], counts: Sequence[int] = (1, 2, 3)) -> Sequence[Tensor]:
    """Return the result of ``run``, which has the same bits with each number of threads."""
    found = []
    for count in counts:
        torch.set_num_threads(count)
        found.append(run())
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(other, found[0], strict=True))
    return found[0]


def parameters_of_layers(model: LinearTransformer, num_blocks: int, num_loops: int) -> list[dict[str, np.ndarray]]:
    """Each layer's parameters under the names of the paper; absent parameters are one (betas) or zero."""
    absent = {"alpha_v": 0.0, "alpha_r": 0.0, **{f"beta_{i}": 1.0 for i in (1, 2, 3, 4)}}
    state = {name: value.detach().double().numpy() for name, value in model.state_dict().items()}
    result = []
    for block in range(num_blocks):
        values = {name: np.array(value[block]) for name, value in state.items() if block < len(value)}
        result += [{**{key: np.array(v) for key, v in absent.items()}, **values}] * num_loops
    return result


def eq_16(graph: Graph, phi: np.ndarray, model: LinearTransformer, options: dict[str, Any], blocks: int) -> np.ndarray:
    """The encoding, term by term from the paper."""
    B, n, k = graph.incidence(), *phi.shape
    for p in parameters_of_layers(model, blocks, options["num_loops"]):
        WQ, WK, WV = (p[w] if p[w].ndim == 2 else np.diag(p[w]) for w in ("w_q", "w_k", "w_v"))
        WR = p["w_r"] if p["w_r"].ndim == 2 else p["w_r"] * np.eye(k)
        D = np.abs(B).sum(1)
        scaling = np.diag([1 / np.sqrt(d) if d > 0 else 0.0 for d in D]) if options["degree_scaling"] else np.eye(n)
        S = p["alpha_q"] * p["alpha_k"] * scaling @ B @ B.T @ scaling
        P = phi @ WQ.T @ WK @ phi.T
        BT = (1 + p["alpha_r"]) * B.T + p["alpha_v"] * B.T @ (p["beta_1"] * S + p["beta_2"] * P)
        phiT = (np.eye(k) + WR) @ phi.T + WV @ phi.T @ (p["beta_3"] * S + p["beta_4"] * P)
        B, phi = BT.T, phiT.T
        if options["normalize"]:
            B = B / (np.linalg.norm(B) or 1.0)
            norms = np.linalg.norm(phi, axis=0)
            phi = phi / np.where(norms > 0, norms, 1.0)
    return phi @ model.readout.weight.detach().double().numpy().T


def encoded_twice(model: LinearTransformer, graph: tg_lpe.Graph, phi: Tensor) -> tuple[Tensor, Tensor]:
    """The encoding by the layers in C++, and in torch."""
    in_cpp = model.encode(graph, Inputs(), probes=phi).node
    with cpu.switched_off():
        return in_cpp, model.encode(graph, Inputs(), probes=phi).node
