"""Call products of matrices in C++; :mod:`tg_lpe.ops.products` documents them."""

from __future__ import annotations

from torch import Tensor

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import Function, Int, Pointer

_product = Function(
    "product",
    (Int, "num_rows num_inner num_columns row_step inner_step b_inner_step b_column_step"),
    (Pointer, "a b bias out"),
    (Int, "num_threads"),
)


def is_faster() -> bool:
    """Return whether products are faster than MKL's, which uses AVX-512 only on Intel's processors."""
    return cpu.library is not None and bool(cpu.library.tg_lpe_products_are_faster())


def product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply matrices of any strides; dtypes and shapes must fit."""
    if a.dim() != 2 or b.dim() != 2 or a.size(1) != b.size(0) or a.dtype != b.dtype:
        raise ValueError(f"cannot multiply {a.dtype} {list(a.shape)} by {b.dtype} {list(b.shape)}")
    if bias is not None and (bias.shape != (b.size(1),) or bias.dtype != a.dtype):
        raise ValueError(f"bias must be {a.dtype} [{b.size(1)}], got {bias.dtype} {list(bias.shape)}")
    bias = None if bias is None else bias.contiguous()
    out = a.new_empty(a.size(0), b.size(1))
    _product(
        a.dtype,
        "matrices must fit",
        {"a": a, "b": b, "bias": bias, "out": out},
        num_rows=a.size(0),
        num_inner=a.size(1),
        num_columns=b.size(1),
        row_step=a.stride(0),
        inner_step=a.stride(1),
        b_inner_step=b.stride(0),
        b_column_step=b.stride(1),
    )
    return out
