"""Compute attributes when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

import torch

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 (used as a decorator)
    """Cache a property, without the lock that torch.compile cannot trace in Python 3.11 and older."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function, self.name, self.__doc__ = function, function.__name__, function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> lazy[T] | T:
        if instance is None:
            return self
        if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
            value = self.function(instance)
        else:
            with torch.inference_mode(False):  # a later call may need gradients through the cached tensors
                value = self.function(instance)
        setattr(instance, self.name, value)  # hides this descriptor from now on
        return value
