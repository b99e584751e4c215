"""Apply linear maps to many rows in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import Function, Int, Pointer
from tg_lpe.ops.operator import differentiable, is_traced, keep_inputs, kept_inputs

FEW_ROWS = 64
"""Below this number of rows, calling the operation takes longer than the product."""

_kernel = Function(
    "product",
    (Int, "num_rows num_inner num_columns row_step inner_step b_inner_step b_column_step"),
    (Pointer, "a b bias out"),
    (Int, "num_threads"),
)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``x @ weight.mT + bias``, in C++ if that is faster than torch.

    Args:
        x: ``[num_rows, in_channels]``, or of more dimensions.
        weight: ``[out_channels, in_channels]``.
        bias: ``[out_channels]``, or ``None``.
    """
    if not is_faster(x, weight):
        return functional.linear(x, weight, bias)
    out: Tensor = _product(x, weight.mT, bias)
    return out


def is_faster(x: Tensor, weight: Tensor) -> bool:
    """Return whether the C++ product is faster: on processors with AVX-512 that torch's library does not use."""
    if is_traced() or type(x) is not Tensor or torch.is_autocast_enabled(x.device.type):
        return False
    if not x.dtype == weight.dtype == torch.float32 or x.dim() != 2 or x.size(0) < FEW_ROWS:
        return False
    return cpu.supports(x) and processor_suits()


def processor_suits() -> bool:
    """Return whether products are faster than MKL's, which uses AVX-512 only on Intel's processors."""
    return cpu.library is not None and bool(cpu.library.tg_lpe_products_are_faster())


def compiled_product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply matrices of any strides and add ``bias``; dtypes and shapes must fit."""
    if a.dim() != 2 or b.dim() != 2 or a.size(1) != b.size(0) or a.dtype != b.dtype:
        raise ValueError(f"cannot multiply {a.dtype} {list(a.shape)} by {b.dtype} {list(b.shape)}")
    if bias is not None and (bias.shape != (b.size(1),) or bias.dtype != a.dtype):
        raise ValueError(f"bias must be {a.dtype} [{b.size(1)}], got {bias.dtype} {list(bias.shape)}")
    bias = None if bias is None else bias.contiguous()
    out = a.new_empty(a.size(0), b.size(1))
    _kernel(
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


def _product_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Compute the gradient by products that can be differentiated."""
    a, b, _ = kept_inputs(ctx)
    of_a, of_b, of_bias = ctx.needs_input_grad
    return (
        _product(grad, b.mT, None) if of_a else None,
        _product(a.mT, grad, None) if of_b else None,
        grad.sum(0) if of_bias else None,
    )


_product = differentiable(compiled_product, keep_inputs, _product_backward)
