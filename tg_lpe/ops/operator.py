"""Register operations with ``torch.library``, and make them differentiable any number of times."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

NAMESPACE = "tg_lpe"

_FUNCTIONAL = torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode


def differentiable(
    implementation: Callable[..., Any], setup_context: Callable[[Any, Any, Any], None] | None, backward: Any
) -> Callable[..., Any]:
    """Give an operation a custom gradient, for plain tensors in eager mode.

    Under ``torch.func`` and forward-mode derivatives, the implementation must use differentiable operations of torch.

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
        if not needs_gradient(*arguments) or is_transforming():
            return implementation(*arguments)
        return function.apply(*arguments)

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
        if is_transforming() or (is_plain and (self.has_gradient or not needs_gradient(*arguments))):
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


def signature(fields: type[tuple[Any, ...]], stop: int | None = None) -> str:
    """Write the fields of a named tuple, or the first ``stop`` of them, as the arguments of a schema."""
    hints = list(get_type_hints(fields).items())
    return ", ".join(f"{SCHEMA_TYPES[kind]} {name}" for name, kind in hints[:stop])


def is_exporting() -> bool:
    """Return whether ``torch.export`` traces a program that runs without this package; false before torch 2.7."""
    return bool(getattr(torch.compiler, "is_exporting", bool)())


def is_traced() -> bool:
    """Return whether operations are traced, which is possible only for operations of torch."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def is_transforming() -> bool:
    """Return whether forward-mode derivatives, ``torch.func`` or ``torch.jit.trace`` need operations of torch."""
    if torch.compiler.is_compiling():
        return False
    if torch._C._get_tracing_state() is not None:
        return True
    if forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled():
        return True
    is_functional = torch._C._functorch.peek_interpreter_stack() is not None
    return is_functional and not torch._C._dispatch_tls_is_dispatch_key_excluded(_FUNCTIONAL)


@contextlib.contextmanager
def without_transforms() -> Iterator[None]:
    """Switch off what :func:`is_transforming` reports, in a context that computes with plain tensors."""
    with _without_tracing(), forward_ad._set_fwd_grad_enabled(False), torch._C._DisableFuncTorch():
        yield


@contextlib.contextmanager
def _without_tracing() -> Iterator[None]:
    """Pause ``torch.jit.trace``."""
    tracing = torch._C._get_tracing_state()
    if tracing is None:
        yield
        return
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_tracing_state(tracing)  # type: ignore[attr-defined]


def constant(values: Tensor) -> Tensor:
    """Return values without gradient and forward-mode derivative; ``detach()`` keeps the latter."""
    values = values.detach()
    return forward_ad.unpack_dual(values).primal if forward_ad._current_level >= 0 else values


def without_wrappers(values: Tensor) -> Tensor:
    """Return the plain tensor of a tensor of ``torch.func``; under ``vmap``, it has the dimension of the map too."""
    functional = torch._C._functorch
    while functional.is_gradtrackingtensor(values) or functional.is_batchedtensor(values):
        values = functional.get_unwrapped(values)
    return values


def host_array(values: Tensor) -> np.ndarray[Any, Any]:
    """Copy values to the host, without gradient; a tensor of ``torch.func.grad`` is unwrapped."""
    while torch._C._functorch.is_gradtrackingtensor(values):
        values = torch._C._functorch.get_unwrapped(values)
    with torch._C._DisableFuncTorch():  # otherwise detach() would wrap it again
        return values.detach().cpu().numpy()


def large_empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate a large tensor without initial values.

    On a CPU numpy allocates it, since numpy asks Linux for large pages. The first write to newly allocated small pages
    takes as long as computing ten values for each value written.
    """
    if device.type != "cpu" or is_traced():
        return torch.empty(shape, dtype=dtype, device=device)
    size = math.prod(shape)
    return torch.from_numpy(np.empty(max(size, 1) * dtype.itemsize, np.uint8)).view(dtype)[:size].view(shape)


def checkpointed(function: Callable[..., Any], *arguments: Any) -> Any:
    """Apply torch.utils.checkpoint, except under ``torch.func`` transforms."""
    if is_transforming():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False)


def needs_gradient(*values: Any) -> bool:
    """Return whether autograd records operations on these values."""
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in values)


def keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep all inputs of an operation for its gradient, as ``setup_context``; :func:`kept_inputs` returns them."""
    ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in inputs))
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
