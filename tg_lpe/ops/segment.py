"""Sum over groups of rows, with torch-scatter if it is installed.

Results are the same without torch-scatter; with it, sums of narrow rows over sorted groups are faster on CPU. The
environment variable ``TG_LPE_NO_SCATTER=1`` disables it.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tg_lpe.ops.operator import Operator, is_exporting

torch_scatter: Any = None
if os.environ.get("TG_LPE_NO_SCATTER", "") in ("", "0"):
    try:
        import torch_scatter  # type: ignore[no-redef]
    except (ImportError, OSError, RuntimeError):  # a build against another torch or another CUDA
        torch_scatter = None


LONG = 2**12
"""Above this number of rows in a single group, torch's sum replaces additions one by one, which lose digits."""

NARROW = 16
"""From this number of columns on, torch sums: with 32 to 128 columns, it takes half to a sixth of the time."""


def _by_torch_scatter(src: Tensor) -> bool:
    is_narrow = src.dim() != 2 or src.size(1) < NARROW
    is_supported = not src.is_cuda and src.dtype in (torch.float32, torch.float64)
    # An exported program must run without torch-scatter.
    return torch_scatter is not None and is_narrow and is_supported and not is_exporting()


def along_rows(values: Tensor, like: Tensor) -> Tensor:
    """Reshape one value per row, ``[num_rows]``, to broadcast over the rows of ``like``."""
    return values.view(-1, *[1] * (like.dim() - 1))


def group_pointers(group: Tensor, num_groups: int) -> Tensor:
    """Find the start of each group in a sorted vector of group numbers.

    Args:
        group: int64 ``[num_rows]``, sorted ascending.
        num_groups: number of groups, empty ones included.

    Returns:
        int64 ``[num_groups + 1]``; group ``g`` is rows ``ptr[g]`` to ``ptr[g + 1] - 1``.
    """
    if is_exporting():  # ONNX has no searchsorted
        return group.new_zeros(num_groups + 1).index_add(0, group + 1, torch.ones_like(group)).cumsum(0)
    bounds = torch.arange(num_groups + 1, device=group.device, dtype=group.dtype)
    return torch.searchsorted(group, bounds)


def sorted_with_order(index: Tensor) -> tuple[Tensor, Tensor]:
    """Sort a vector stably; an exported program does not keep the order of equal entries, since ONNX cannot.

    Returns:
        The sorted entries, and their positions in the vector.
    """
    if is_exporting():
        return torch.sort(index)
    return torch.sort(index, stable=True)


def repeat_ranges(starts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate ranges; return the range of each entry, and the entry, int64 ``[counts.sum()]``."""
    owner = torch.repeat_interleave(counts)
    before = counts.cumsum(0) - counts
    return owner, torch.arange(len(owner), device=counts.device) + (starts - before)[owner]


def check_pointers(ptr: Tensor, num_rows: int) -> None:
    """Refuse pointers that do not ascend from 0 to ``num_rows``: torch would read or write other memory on the CPU."""
    if ptr.device.type == "cpu" and type(ptr) is Tensor:  # tensors of the compiler have no values
        starts = ptr.detach().numpy()
        ascends = starts.ndim == 1 and len(starts) and starts[0] == 0 and starts[-1] == num_rows
        if not ascends or (starts[1:] < starts[:-1]).any():
            raise ValueError(f"ptr must ascend from 0 to the number of rows, {num_rows}")


def group_of_rows(ptr: Tensor, num_rows: int) -> Tensor:
    """Return the group of each row, int64 ``[num_rows]``; ``ptr`` is that of :func:`group_pointers`."""
    check_pointers(ptr, num_rows)
    return torch.repeat_interleave(ptr.diff(), output_size=num_rows)


def segment_sum(src: Tensor, ptr: Tensor, group: Tensor) -> Tensor:
    """Sum consecutive rows: ``out[g] = src[ptr[g]:ptr[g + 1]].sum(0)``.

    Args:
        src: ``[num_rows, ...]``.
        ptr: start of each group, int64 ``[num_groups + 1]``, see :func:`group_pointers`.
        group: group of each row, int64 ``[num_rows]``; a backend reads either ``ptr`` or ``group``.

    Returns:
        ``[num_groups, ...]``; zero for an empty group.
    """
    if _by_torch_scatter(src) and (ptr.numel() != 2 or len(src) <= LONG):
        return _segment_sum(src, ptr, group)
    return scatter_sum(src, group, ptr.numel() - 1)


def scatter_sum(src: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """Sum rows in any order: ``out[g]`` is the sum of the rows with ``index == g``.

    Args:
        src: ``[num_rows, ...]``.
        index: group of each row, int64 ``[num_rows]``.
        num_groups: number of rows of the result.

    Returns:
        ``[num_groups, ...]``.
    """
    if torch.compiler.is_compiling():  # the compiler itself finds that the backward pass needs no values of src
        return _run_scatter_sum(src, index, num_groups)
    return _scatter_sum(src, index, num_groups)


def _run_scatter_sum(src: Tensor, index: Tensor, num_groups: int) -> Tensor:
    # In half precision, torch adds rows of some shapes one by one: in bfloat16, a sum of ones stops at 256.
    wide = torch.promote_types(src.dtype, torch.float32) if src.is_floating_point() else src.dtype
    # In float32, the sum of four million equal rows, added one by one, is wrong by 4 %.
    if not torch.compiler.is_compiling() and num_groups == 1 and len(src) > LONG:
        return src.sum(0, keepdim=True, dtype=wide).to(src.dtype)
    zeros = torch.zeros(num_groups, *src.shape[1:], dtype=wide, device=src.device)
    return zeros.index_add(0, index, src.to(wide)).to(src.dtype)


def _keep_last(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save the index alone; torch's ``index_add`` would save ``src`` as well."""
    ctx.save_for_backward(next(x for x in reversed(inputs) if isinstance(x, Tensor)))


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Compute a gradient that can be differentiated; torch-scatter's gives wrong second derivatives."""
    (group,) = ctx.saved_tensors
    return grad.index_select(0, group), None, None


_scatter_sum = Operator(
    "scatter_sum(Tensor src, Tensor index, SymInt num_groups) -> Tensor",
    _run_scatter_sum,
    lambda src, index, num_groups: src.new_empty(num_groups, *src.shape[1:]),
    _keep_last,
    _sum_backward,
)


def gather_sum(x: Tensor, index: Tensor, ptr: Tensor) -> Tensor:
    """Sum indexed rows, ``out[g] = x[index[ptr[g]:ptr[g + 1]]].sum(0)``, without a copy of the rows.

    Args:
        x: ``[num_rows, num_columns]``.
        index: rows of ``x``, int64 ``[num_entries]``.
        ptr: start of each group, int64 ``[num_groups + 1]``, see :func:`group_pointers`.

    Returns:
        ``[num_groups, num_columns]``; zero for groups without entries.
    """
    out: Tensor = _gather_sum(x, index, ptr)
    return out


def _run_gather_sum(x: Tensor, index: Tensor, ptr: Tensor) -> Tensor:
    check_pointers(ptr, len(index))
    return functional.embedding_bag(index, x, ptr, mode="sum", include_last_offset=True)


def _keep_entries(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.num_rows = inputs[0].shape[0]
    ctx.save_for_backward(*inputs[1:])


def _gather_sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Compute a gradient that can be differentiated: the same sums with rows and groups exchanged."""
    index, ptr = ctx.saved_tensors
    group = group_of_rows(ptr, len(index))
    row, order = index.sort()
    return gather_sum(grad, group.index_select(0, order), group_pointers(row, ctx.num_rows)), None, None


_gather_sum = Operator(
    "gather_sum(Tensor x, Tensor index, Tensor ptr) -> Tensor",
    _run_gather_sum,
    lambda x, index, ptr: x.new_empty(ptr.shape[0] - 1, x.shape[1]),
    _keep_entries,
    _gather_sum_backward,
)


def _run_segment_sum(src: Tensor, ptr: Tensor, group: Tensor) -> Tensor:
    check_pointers(ptr, len(src))
    return torch_scatter.segment_csr(src, ptr, reduce="sum")


_segment_sum = Operator(
    "segment_sum(Tensor src, Tensor ptr, Tensor group) -> Tensor",
    _run_segment_sum,
    lambda src, ptr, group: src.new_empty(ptr.shape[0] - 1, *src.shape[1:]),
    _keep_last,
    _sum_backward,
)


def _gather_rows_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    order, ptr, sorted_index = ctx.saved_tensors
    grad = grad if order is None else grad.index_select(0, order)
    return segment_sum(grad.contiguous(), ptr, sorted_index), None, None, None, None


_gather_rows = Operator(
    "gather_rows(Tensor x, Tensor index, Tensor? order, Tensor ptr, Tensor sorted_index) -> Tensor",
    lambda x, index, order, ptr, sorted_index: x.index_select(0, index),
    lambda x, index, order, ptr, sorted_index: x.new_empty(index.shape[0], *x.shape[1:]),
    lambda ctx, inputs, output: ctx.save_for_backward(*inputs[2:]),
    _gather_rows_backward,
)


class RowGroups:
    """Sort an index vector once, so that gathers and sums by it, and their backward passes, are fast in every layer.

    Args:
        index: group of each row, int64 ``[num_rows]``, in any order.
        num_groups: number of groups.
        is_sorted: whether ``index`` ascends, so that it need not be sorted.
    """

    def __init__(self, index: Tensor, num_groups: int, is_sorted: bool = False) -> None:
        self.index = index
        self.num_groups = num_groups
        self.order: Tensor | None = None
        self.sorted_index = index
        if not is_sorted:
            self.sorted_index, self.order = sorted_with_order(index)
        self.ptr = group_pointers(self.sorted_index, num_groups)

    @property
    def sorted_order(self) -> Tensor:
        """Rows in the order of their groups, int64 ``[num_rows]``."""
        return torch.arange(len(self.index), device=self.index.device) if self.order is None else self.order

    def gather(self, x: Tensor) -> Tensor:
        """Return the rows ``x[index]``, ``[num_rows, ...]``; the backward pass is a sum over groups."""
        if not (x.requires_grad and _by_torch_scatter(x)):
            return x.index_select(0, self.index)
        return _gather_rows(x, self.index, self.order, self.ptr, self.sorted_index)

    def sum(self, src: Tensor) -> Tensor:
        """Sum the rows of each group, ``[num_groups, ...]``."""
        if self.order is not None:
            src = src.index_select(0, self.order)
        return segment_sum(src, self.ptr, self.sorted_index)

    def mean(self, src: Tensor) -> Tensor:
        """Average the rows of each group, ``[num_groups, ...]``; zero for an empty group."""
        # In float16, a sum may overflow although the mean does not.
        wide = src.to(torch.promote_types(src.dtype, torch.float32))
        count = (self.ptr[1:] - self.ptr[:-1]).clamp(min=1).to(wide.dtype)
        return (self.sum(wide) / along_rows(count, wide)).to(src.dtype)

    def max(self, src: Tensor) -> Tensor:
        """Return the maximum of each column in each group, ``[num_groups, channels]``; zero for an empty group."""
        index = self.index.unsqueeze(1).expand_as(src)
        # Start from -inf: with zeros and include_self=False, the gradient counts the zeros among equal entries.
        largest = src.new_full((self.num_groups, src.size(1)), -torch.inf).scatter_reduce(0, index, src, "amax")
        return largest.masked_fill((self.ptr[1:] == self.ptr[:-1]).unsqueeze(1), 0.0)
