"""Record operations that synchronise with the device."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = (
    "aten::_local_scalar_dense",
    "aten::bincount",
    "aten::equal",
    "aten::masked_select",
    "aten::nonzero",
    "aten::repeat_interleave",
    "aten::unique_consecutive",
    "aten::unique_dim",
    "aten::_unique2",
)
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class HostReads:
    """Context that records in :attr:`seen` the operations that synchronise with the device, including ``tolist``."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._modes: tuple[Any, ...] = (_Dispatched(self.seen), _Called(self.seen))

    def __enter__(self) -> HostReads:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


class _Dispatched(TorchDispatchMode):
    def __init__(self, seen: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.name().split(".")[0], kwargs or {}
        by_mask = name in INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1])
        if by_mask or (name in WAITING and kwargs.get("output_size") is None):
            self.seen.append(name)
        return func(*args, **kwargs)


class _Called(TorchFunctionMode):
    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.tolist:
            self.seen.append("tolist")
        return func(*args, **(kwargs or {}))
