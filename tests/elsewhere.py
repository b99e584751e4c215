"""A fake device: its tensors compute on the CPU, and an operation that mixes them with CPU tensors raises an error.

Code that passes here makes no tensor on a wrong device, so it runs on a GPU in this respect; no GPU is needed. With
``TG_LPE_TEST_DEVICE=cuda`` a real device takes its place.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

DEVICE = torch.device(os.environ.get("TG_LPE_TEST_DEVICE", "meta"))
"""Meta is the only device besides the CPU that every build of torch supports, gradients included."""

is_fake = DEVICE.type == "meta"

from_host: list[str] = []
"""Operations that copied values from the CPU to the fake device; on a GPU each would wait for it."""


class Elsewhere(Tensor):
    """A tensor that says it lies on :data:`DEVICE`; its values are those of ``inner``, on the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        out = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device=DEVICE
        )
        out.inner = inner
        return out

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Elsewhere({self.inner!r})"

    def tolist(self) -> Any:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """While it is active, tensors can be created on :data:`DEVICE` and used there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    places = set()

    def inner(value: Any) -> Any:
        if isinstance(value, Elsewhere):
            places.add(DEVICE.type)
            return value.inner
        if isinstance(value, Tensor) and value.dim() > 0:  # single numbers may come from the CPU, as on a GPU
            places.add("cpu")
        return value

    own_args, own_kwargs = tree_map(inner, (args, kwargs))
    name = func.name().removeprefix("aten::").split(".")[0]
    if len(places) > 1 and name not in ("copy_", "_to_copy"):
        raise RuntimeError(f"{name}: tensors on two devices")
    there = DEVICE.type in places
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]) == DEVICE
        own_kwargs["device"] = torch.device("cpu")
    if name in ("copy_", "_to_copy") and "cpu" in places and (there or len(places) > 1):
        from_host.append(name)
    out = func(*own_args, **own_kwargs)
    if name.endswith("_") and not name.endswith("__"):
        return args[0]  # changed in place
    if "out" in kwargs:
        return kwargs["out"]
    return tree_map(lambda value: Elsewhere(value) if there and isinstance(value, Tensor) else value, out)


def moved(value: Any) -> Any:
    """A tensor moved to the device, a module with all of its tensors moved, or any other value unchanged."""
    if not is_fake:
        return copy.deepcopy(value).to(DEVICE) if isinstance(value, Tensor | nn.Module) else value
    if isinstance(value, nn.Module):
        module = copy.deepcopy(value)
        for part in module.modules():
            for name, weight in part._parameters.items():
                if weight is not None:
                    part._parameters[name] = nn.Parameter(Elsewhere(weight.detach()), weight.requires_grad)
            for name, buffer in part._buffers.items():
                part._buffers[name] = None if buffer is None else Elsewhere(buffer)
        return module
    return Elsewhere(value.clone()) if isinstance(value, Tensor) else value


def brought_back(value: Tensor) -> Tensor:
    """The values of a tensor that lies on the device, on the CPU and without gradient."""
    assert value.device.type == DEVICE.type
    return value.inner.detach() if isinstance(value, Elsewhere) else value.detach().cpu()
