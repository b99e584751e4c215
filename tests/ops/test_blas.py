"""Threads of numpy's and scipy's linear algebra: one where matrices are small, and afterwards as before."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import networkx as nx
import pytest
import torch
from helpers import from_networkx
from ops_support import incidence, needs_cpu
from threadpoolctl import ThreadpoolController
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe import AddPositionalEncoding, Encoder, Incidence, transforms
from tg_lpe.encoders import EffectiveResistance, HeatKernel, RandomWalk, ResistiveEmbedding
from tg_lpe.graph import solvers
from tg_lpe.graph.eigenvectors import laplacian_eigenvectors
from tg_lpe.graph.heat import heat_kernel_entries
from tg_lpe.graph.resistance import resistive_embedding
from tg_lpe.ops import blas
from tg_lpe.ops.balls import ball_orders
from tg_lpe.ops.eigenvectors import symmetric_eigenvectors
from tg_lpe.ops.triangles import triangle_products


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


def seconds_of_others() -> float:
    """Processor time of all threads but this one, those that have ended too."""
    return time.process_time() - time.thread_time()


def wakes(run: Callable[[], object], calls: int = 5) -> bool:
    """Whether calls start or wake other threads: at least some microseconds' work each."""
    run()
    time.sleep(0.05)  # what was woken falls asleep
    before = seconds_of_others()
    for _ in range(calls):
        run()
        time.sleep(0.002)
    return seconds_of_others() - before > 4e-6 * calls


@pytest.fixture
def torch_with_two_threads() -> Iterator[None]:
    """As after a user's call, which lets MKL wake threads for work however small."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


SMALL_WORK = {
    "eigenvectors": transforms.AddLaplacianEigenvectors(8),
    "resistive embedding": transforms.AddResistiveEmbeddingPE(8),
    "heat kernel": transforms.AddHeatKernelPE(),
    "resistances": transforms.AddEffectiveResistance(),
    "linear transformer": transforms.LinearTransformerPE(8),
    "walks": AddPositionalEncoding(RandomWalk(8)),
}


@pytest.mark.skipif(sys.platform != "linux", reason="torch elsewhere may have no threads to wake")
@pytest.mark.usefixtures("torch_with_two_threads")
class TestSmallWork:
    """Wakes no second thread, which on a busy machine would be waited for."""

    def test_torch_would(self) -> None:
        """Otherwise the other tests show nothing."""
        matrix, numbers = torch.eye(23).double(), torch.rand(10**6).double()
        assert wakes(lambda: torch.linalg.cholesky(matrix)) and wakes(lambda: numbers.log())

        def both() -> None:
            numbers[:400].log()
            torch.linalg.cholesky(matrix)

        with blas.alone():
            assert torch.get_num_threads() == 1 and not wakes(both)
        assert torch.get_num_threads() == 2

    @pytest.mark.parametrize("num_nodes", [10, 23, 60, 100])
    @pytest.mark.parametrize("name", SMALL_WORK)
    def test_transforms(self, name: str, num_nodes: int) -> None:
        data = Data(edge_index=torch.cat([edges := ring_with_chords(num_nodes), edges.flip(0)], 1), num_nodes=num_nodes)
        assert not wakes(lambda: SMALL_WORK[name](data))

    @pytest.mark.parametrize("encoder", [ResistiveEmbedding(8), EffectiveResistance(), HeatKernel()], ids=repr)
    def test_encoders(self, encoder: Encoder) -> None:
        graph = Incidence(ring_with_chords(23), 23)
        assert not wakes(lambda: encoder.precompute(graph))

    @needs_cpu
    def test_compiled(self) -> None:
        tail, head = ring_with_chords(400)
        weights = torch.ones(1, len(tail))
        assert not wakes(lambda: triangle_products(weights, weights, tail, head, 400))
        assert not wakes(lambda: ball_orders(tail, head, 400, 4, 100))


def ring_with_chords(num_nodes: int) -> Tensor:
    """A ring, and every fifth node joined to the one three further on; ``tail < head``, ``[2, num_edges]``."""
    ends = [(i, i + 1) for i in range(num_nodes - 1)] + [(0, num_nodes - 1)]
    return torch.tensor(sorted(ends + [(i, i + 3) for i in range(0, num_nodes - 3, 5)])).T


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
