"""Threads of numpy's and scipy's linear algebra: one where matrices are small, and afterwards as before."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import networkx as nx
import pytest
import torch
from helpers import from_networkx
from ops_support import incidence
from threadpoolctl import ThreadpoolController

from tg_lpe import Incidence
from tg_lpe.graph import solvers
from tg_lpe.graph.eigenvectors import laplacian_eigenvectors
from tg_lpe.graph.heat import heat_kernel_entries
from tg_lpe.graph.resistance import resistive_embedding
from tg_lpe.ops import blas
from tg_lpe.ops.eigenvectors import symmetric_eigenvectors


def num_threads() -> set[int]:
    return {library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """The environment of the tests sets one thread."""
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        if sys.platform != "linux" and not num_threads():
            pytest.skip("the libraries here have no threads to count")
        assert num_threads() == {2}
        yield


def test_within_and_afterwards() -> None:
    with blas.one_thread():
        assert num_threads() == {1}
        with blas.one_thread():
            assert num_threads() == {1}
        assert num_threads() == {1}
    assert num_threads() == {2}
    with pytest.raises(ValueError, match="anything"), blas.one_thread():
        raise ValueError("anything")
    assert num_threads() == {2}


def test_callers_that_overlap() -> None:
    """The one who came first sets it back, the other changes nothing."""
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with blas.one_thread():
            entered.set()
            leave.wait(10)

    with blas.one_thread():
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(10)
        assert num_threads() == {1}
    assert num_threads() == {2}
    leave.set()
    thread.join()
    assert num_threads() == {2}
    with blas.one_thread():
        assert num_threads() == {1}


def test_sizes() -> None:
    for num_rows, expected in ((1, 2), (64, 2), (65, 1), (1024, 1), (1025, 2)):
        with blas.threads_for(num_rows):
            assert num_threads() == {expected}


SMALL_GRAPHS = """
import os, time, networkx as nx
from torch_geometric.utils import from_networkx
from tg_lpe import transforms

def switches():
    found = {}
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as file:
            found[task] = [line for line in file if line.startswith("voluntary")]
    found.pop(str(os.getpid()))
    return found

for num_nodes in (10, 23, 60):
    data = from_networkx(nx.connected_watts_strogatz_graph(num_nodes, 4, 0.3, seed=0))
    for name in ("AddLaplacianEigenvectors", "AddResistiveEmbeddingPE", "AddHeatKernelPE", "AddEffectiveResistance"):
        transform = getattr(transforms, name)(*([8] if name[3:6] in ("Lap", "Res") else []))
        transform(data)
        time.sleep(0.2)  # threads that were woken by then fall asleep
        before = switches()
        for _ in range(20):
            transform(data)
        time.sleep(0.2)
        if switches() != before:
            print(name, num_nodes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts switches of threads in /proc")
def test_small_graphs_wake_no_second_thread() -> None:
    """In a process whose environment allows two."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    command = [sys.executable, "-c", SMALL_GRAPHS]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert not found.stdout


@pytest.mark.parametrize(
    "function",
    [
        lambda graph: laplacian_eigenvectors(graph, 4),
        lambda graph: resistive_embedding(graph, torch.ones(graph.num_nodes, 1)),
        lambda graph: heat_kernel_entries(graph, (1.0,)),
    ],
    ids=["eigenvectors", "resistive embedding", "heat kernel"],
)
def test_components_by_their_sizes(function: Callable[[Incidence], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else is in the batch."""
    seen: dict[int, set[int]] = {}

    def watched(matrices: torch.Tensor, *arguments: Any) -> Any:
        seen[matrices.size(1)] = num_threads()
        return symmetric_eigenvectors(matrices, *arguments)

    monkeypatch.setattr(solvers, "symmetric_eigenvectors", watched)
    function(incidence([from_networkx(nx.path_graph(size)) for size in (9, 64, 70, 200)]))
    assert seen == {9: {2}, 64: {2}, 70: {1}, 200: {1}} and num_threads() == {2}
