"""Sums over groups: with and without torch-scatter the same values, gradients and second derivatives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from helpers import few, normal
from hypothesis import given
from hypothesis import strategies as st

from tg_lpe.ops import segment
from tg_lpe.ops.segment import RowGroups, gather_sum, group_pointers, scatter_sum, segment_sum

DTYPES = (torch.float32, torch.float64)
indices = st.integers(1, 6).flatmap(
    lambda groups: st.tuples(st.lists(st.integers(0, groups - 1), max_size=12), st.just(groups))
)


@pytest.fixture(params=["with torch-scatter", "without"])
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "without":
        with mock.patch.object(segment, "torch_scatter", None):
            yield
    elif segment.torch_scatter is not None:
        yield
    else:
        pytest.skip("torch-scatter is not installed or switched off")


def expected_sum(src: torch.Tensor, index: list[int], groups: int) -> torch.Tensor:
    out = torch.zeros(groups, *src.shape[1:], dtype=torch.float64)
    for row, group in enumerate(index):
        out[group] += src[row].double()
    return out


@few
@given(indices, st.sampled_from([(), (3,), (2, 3)]), st.sampled_from(DTYPES))
def test_values_against_a_loop(backend, case, tail, dtype) -> None:
    index, groups = case
    src = normal(len(index), *tail, dtype=dtype)
    rows = RowGroups(torch.tensor(index, dtype=torch.int64), groups)
    expected = expected_sum(src, index, groups).to(dtype)
    torch.testing.assert_close(rows.sum(src), expected)
    torch.testing.assert_close(scatter_sum(src, rows.index, groups), expected)
    counts = [max(index.count(g), 1) for g in range(groups)]
    mean = expected / torch.tensor(counts, dtype=dtype).view(-1, *[1] * len(tail))
    torch.testing.assert_close(rows.mean(src), mean)
    x = normal(groups, *tail, seed=1, dtype=dtype)
    assert torch.equal(rows.gather(x), x[rows.index])
    group = rows.index.sort().values
    in_order = segment_sum(src, group_pointers(group, groups), group)
    assert in_order.dtype == dtype
    torch.testing.assert_close(in_order, expected_sum(src, group.tolist(), groups).to(dtype))


@few
@given(indices, st.lists(st.integers(0, 12), max_size=3), st.sampled_from(DTYPES))
def test_sums_of_rows_by_number(case, cuts, dtype) -> None:
    """Rows may be read several times or never, and groups may be empty."""
    index, rows = case
    ptr = torch.tensor([0, *sorted(min(cut, len(index)) for cut in cuts), len(index)])
    entries, x = torch.tensor(index, dtype=torch.int64), normal(rows, 3, dtype=torch.float64).requires_grad_()
    group = torch.repeat_interleave(torch.arange(len(ptr) - 1), ptr.diff())
    expected = torch.zeros(len(ptr) - 1, 3, dtype=torch.float64).index_add(0, group, x.detach()[entries])
    torch.testing.assert_close(gather_sum(x.detach().to(dtype), entries, ptr), expected.to(dtype))
    assert torch.autograd.gradcheck(lambda x: gather_sum(x, entries, ptr), (x,))
    assert torch.autograd.gradgradcheck(lambda x: gather_sum(x, entries, ptr).square(), (x,))


@pytest.mark.parametrize("index", [[0, 0, 1, 3], [3, 0, 3, 1, 0], [2]], ids=["sorted", "unsorted", "one"])
@pytest.mark.parametrize("operation", ["sum", "gather", "mean"])
def test_first_and_second_derivatives(backend, index, operation) -> None:
    rows = RowGroups(torch.tensor(index), 4)
    size = 4 if operation == "gather" else len(index)
    src = normal(size, 2).requires_grad_()

    def cubic(src: torch.Tensor) -> torch.Tensor:
        return getattr(rows, operation)(src**2) * getattr(rows, operation)(src)

    assert torch.autograd.gradcheck(getattr(rows, operation), (src,))
    assert torch.autograd.gradcheck(cubic, (src,))
    assert torch.autograd.gradgradcheck(cubic, (src,))


def test_the_backward_pass_of_a_sum_keeps_no_rows(backend) -> None:
    src, index = normal(3, 2).requires_grad_(), torch.tensor([2, 0, 2])
    rows, kept = RowGroups(index, 3), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        rows.sum(src), scatter_sum(src, index, 3)
    assert kept and not any(x.is_floating_point() for x in kept)


def test_no_rows_and_no_groups(backend) -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    assert RowGroups(empty, 3).sum(torch.zeros(0, 2)).tolist() == [[0.0, 0.0]] * 3
    assert RowGroups(empty, 3).mean(torch.zeros(0, 2)).tolist() == [[0.0, 0.0]] * 3
    assert RowGroups(empty, 0).sum(torch.zeros(0, 2)).shape == (0, 2)
    assert RowGroups(empty, 3).gather(torch.ones(3, 2)).shape == (0, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(2000,), (2000, 1), (2000, 3, 2)], ids=str)
def test_long_sums_in_half_precision(backend, shape, dtype) -> None:
    """Added one by one, ones in bfloat16 stop at 256."""
    src, index = torch.ones(shape, dtype=dtype), torch.zeros(2000, dtype=torch.int64)
    for found in (scatter_sum(src, index, 1), segment_sum(src, torch.tensor([0, 2000]), index)):
        assert found.dtype == dtype and bool((found == 2000).all())


@pytest.mark.parametrize("tail", [(), (2,), (20,)], ids=str)
def test_long_sums_in_float32(backend, tail) -> None:
    """Added one by one, a million equal numbers are wrong in the second digit."""
    src = torch.full((10**6, *tail), 0.1)
    rows = RowGroups(torch.zeros(10**6, dtype=torch.int64), 1)
    exact = src.double().sum(0, keepdim=True)
    for got in (rows.sum(src), scatter_sum(src, rows.index, 1), 1e6 * rows.mean(src)):
        torch.testing.assert_close(got.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("num_rows", [20_000, 70_000])
def test_means_in_float16_do_not_overflow(backend, num_rows) -> None:
    rows = RowGroups(torch.zeros(num_rows, dtype=torch.int64), 1)
    assert rows.mean(torch.full((num_rows, 1), 5.0, dtype=torch.float16)).tolist() == [[5.0]]


def test_environment_variable_switches_torch_scatter_off() -> None:
    code = "import tg_lpe.ops.segment as s; print(s.torch_scatter is not None)"
    env = {**os.environ, "TG_LPE_NO_SCATTER": "1"}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_largest_values_and_their_gradient() -> None:
    """Equal entries share the gradient, zeros are treated like other values, and empty groups are zero."""
    rows = torch.tensor([[-1.0, 0.0], [0.0, 3.0], [-2.0, 0.0], [-1.0, 3.0]], dtype=torch.float64, requires_grad=True)
    groups = RowGroups(torch.tensor([0, 2, 0, 2]), 4)
    found = groups.max(rows)
    assert found.tolist() == [[-1.0, 0.0], [0.0, 0.0], [0.0, 3.0], [0.0, 0.0]]
    found.sum().backward()
    assert rows.grad is not None and rows.grad.tolist() == [[1.0, 0.5], [1.0, 0.5], [0.0, 0.5], [0.0, 0.5]]
