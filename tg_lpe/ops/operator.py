"""Register operations with ``torch.library``, and make them differentiable any number of times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual
from torch.utils.checkpoint import checkpoint

NAMESPACE = "tg_lpe"

NO_TRANSFORM = "no forward-mode derivatives and no torch.jit.trace: use backward() or torch.export"

checkpointed = partial(checkpoint, use_reentrant=False)


def differentiable(
    implementation: Callable[..., Any], setup_context: Callable[[Any, Any, Any], None] | None, backward: Any
) -> Callable[..., Any]:
    """Give an operation a custom gradient, for plain tensors in eager mode.

    Args:
        implementation: computes the results from tensors without gradient.
        setup_context, backward: as in :meth:`torch.library.register_autograd`. ``torch.is_grad_enabled()`` is true in
            ``backward`` if its result will be differentiated again.
    """

    def forward(ctx: Any, *arguments: Any) -> Any:
        output = implementation(*arguments)
        if setup_context is not None:
            setup_context(ctx, arguments, output)
        return output

    # No setup_context method here: torch would read the signature of forward at each call, which is slow.
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(implementation.__name__, (torch.autograd.Function,), members)

    def run(*arguments: Any) -> Any:
        return function.apply(*arguments) if needs_gradient(*arguments) else implementation(*arguments)

    return run


class Operator:
    """Register an operation as ``torch.ops.tg_lpe.NAME``, so that ``torch.compile`` can trace it.

    ``torch.compile`` and fake tensors use the registered operator. Plain tensors in eager mode bypass the dispatcher,
    and with it dispatch modes: on a molecule, it costs more than the operation.

    Args:
        schema: name, arguments and results, in the format of ``torch.library``.
        implementation, setup_context, backward: as for :func:`differentiable`; without ``backward`` there is no
            gradient.
        fake: returns results of the right shapes and dtypes, without values.
    """

    def __init__(
        self,
        schema: str,
        implementation: Callable[..., Any],
        fake: Callable[..., Any],
        setup_context: Callable[[Any, Any, Any], None] | None = None,
        backward: Callable[..., Any] | None = None,
    ) -> None:
        name, bracket, rest = schema.partition("(")
        registered = torch.library.custom_op(
            f"{NAMESPACE}::{name}", implementation, mutates_args=(), schema=bracket + rest
        )
        registered.register_fake(fake)
        self.eager, self.has_gradient = implementation, backward is not None
        if backward is not None:
            registered.register_autograd(backward, setup_context=setup_context)
            self.eager = differentiable(implementation, setup_context, backward)
        self.overload = getattr(getattr(torch.ops, NAMESPACE), name).default

    def __call__(self, *arguments: Any) -> Any:
        """Run the operation; the first argument is a tensor."""
        is_plain = type(arguments[0]) in (Tensor, nn.Parameter) and not torch.compiler.is_compiling()
        if is_plain and (self.has_gradient or not needs_gradient(*arguments)):
            return self.eager(*arguments)
        return self.overload(*arguments)


SCHEMA_TYPES = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    int: "SymInt",
    bool: "bool",
    float: "float",
    float | None: "float?",
}


def signature(fields: type[tuple[Any, ...]]) -> str:
    """Write the fields of a named tuple as the arguments of a schema."""
    return ", ".join(f"{SCHEMA_TYPES[kind]} {name}" for name, kind in get_type_hints(fields).items())


def is_exporting() -> bool:
    """Return whether ``torch.export`` traces a program that runs without this package; false before torch 2.7."""
    return bool(getattr(torch.compiler, "is_exporting", bool)())


def detached(values: Tensor) -> Tensor:
    """Return values without gradient, for code outside of torch; refuse those whose tangent or trace it would lose."""
    if torch.jit.is_tracing() or unpack_dual(values).tangent is not None:  # type: ignore[attr-defined, no-untyped-call]
        raise NotImplementedError(NO_TRANSFORM)
    return values.detach()


def host_array(values: Tensor) -> np.ndarray[Any, Any]:
    """Copy values to the host, without gradient."""
    return detached(values).cpu().numpy()


def large_empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate a large tensor without initial values.

    On a CPU numpy allocates it, since numpy asks Linux for large pages. The first write to newly allocated small pages
    takes as long as computing ten values for each value written.
    """
    if device.type != "cpu" or torch.compiler.is_compiling():
        return torch.empty(shape, dtype=dtype, device=device)
    size = math.prod(shape)
    return torch.from_numpy(np.empty(max(size, 1) * dtype.itemsize, np.uint8)).view(dtype)[:size].view(shape)


def needs_gradient(*values: Any) -> bool:
    """Return whether autograd records operations on these values."""
    return torch.is_grad_enabled() and any([isinstance(x, Tensor) and x.requires_grad for x in values])


def keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep all inputs of an operation for its gradient, as ``setup_context``; :func:`kept_inputs` returns them."""
    ctx.save_for_backward(*[x if isinstance(x, Tensor) else None for x in inputs])
    ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]


def kept_inputs(ctx: Any) -> tuple[Any, ...]:
    """Return the inputs that :func:`keep_inputs` kept."""
    return tuple(x if other is None else other for x, other in zip(ctx.saved_tensors, ctx.others, strict=True))


def reference_gradients(
    reference: Callable[..., Tensor | Sequence[Tensor]], inputs: Sequence[Any], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Compute gradients by autograd through a reference in torch; differentiable if gradients are enabled.

    Args:
        reference: a function made of differentiable operations of torch.
        inputs: its arguments.
        grads: gradient of each result; ``None`` is zero.

    Returns:
        Gradient of each input; ``None`` for inputs that need none.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        outs = reference(*inputs)
        outs = [outs] if isinstance(outs, Tensor) else outs
    wanted = [index for index, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    pairs = [(out, grad) for out, grad in zip(outs, grads, strict=True) if grad is not None and out.requires_grad]
    result: list[Tensor | None] = [None] * len(inputs)
    if not (wanted and pairs):
        return result
    gradients = torch.autograd.grad(
        [out for out, _ in pairs],
        [inputs[index] for index in wanted],
        [grad for _, grad in pairs],
        create_graph=create_graph,
        allow_unused=True,
    )
    for index, grad in zip(wanted, gradients, strict=True):
        result[index] = grad
    return result
