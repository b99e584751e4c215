"""Apply linear maps to many rows in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import products as cpu_products
from tg_lpe.ops.operator import differentiable, is_traced, keep_inputs, kept_inputs

FEW_ROWS = 64
"""Below this number of rows, calling the operation takes longer than the product."""


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
    return cpu.supports(x) and cpu_products.is_faster()


def _product_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Compute the gradient by products that can be differentiated."""
    a, b, _ = kept_inputs(ctx)
    of_a, of_b, of_bias = ctx.needs_input_grad
    return (
        _product(grad, b.mT, None) if of_a else None,
        _product(a.mT, grad, None) if of_b else None,
        grad.sum(0) if of_bias else None,
    )


_product = differentiable(cpu_products.product, keep_inputs, _product_backward)
