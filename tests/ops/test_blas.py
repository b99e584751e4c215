"""Threads of numpy's and scipy's linear algebra: one where matrices are small, and afterwards as before."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from threadpoolctl import ThreadpoolController

from tg_lpe.ops import blas


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


def test_alone(threads: None) -> None:
    """One thread of torch, and afterwards as before."""
    torch.set_num_threads(2)
    with blas.alone():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
