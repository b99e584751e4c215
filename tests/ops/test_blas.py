"""Threads of numpy's and scipy's linear algebra: one where matrices are small, and afterwards as before."""

from __future__ import annotations

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
from tg_lpe.graph.components import ComponentGroup
from tg_lpe.graph.heat import heat_kernel_entries
from tg_lpe.graph.resistance import effective_resistances, resistance_pairs, resistive_embedding
from tg_lpe.graph.spectral import laplacian_eigenvectors
from tg_lpe.ops import blas


def num_threads() -> set[int]:
    return {library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Whatever the environment says: that of the tests says one."""
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        if num_threads() != {2}:
            pytest.skip("the libraries here have no threads to count")
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


@pytest.mark.parametrize(
    "function",
    [
        lambda graph: laplacian_eigenvectors(graph, 4),
        effective_resistances,
        resistance_pairs,
        lambda graph: resistive_embedding(graph, torch.ones(graph.num_nodes, 1)),
        lambda graph: heat_kernel_entries(graph, (1.0,)),
    ],
    ids=["eigenvectors", "resistances", "resistance pairs", "resistive embedding", "heat kernel"],
)
@pytest.mark.parametrize(("sizes", "expected"), [((9, 64), 2), ((9, 65), 1), ((1030, 70), 2)])
def test_where_matrices_are_small(
    function: Callable[[Incidence], object], sizes: tuple[int, ...], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[int] = set()
    matrices = ComponentGroup.matrices

    def watched(self: ComponentGroup, *arguments: Any) -> Any:
        seen.update(num_threads())
        return matrices(self, *arguments)

    monkeypatch.setattr(ComponentGroup, "matrices", watched)
    function(incidence([from_networkx(nx.path_graph(size)) for size in sizes]))
    assert seen == {expected} and num_threads() == {2}
