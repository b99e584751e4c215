"""Register classes by the names that the command line and ``config.json`` use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Registry(dict[Any, Any]):
    """A dictionary from names to classes, which :meth:`register` fills.

    Args:
        kind: name of the kind of entries for error messages, such as ``"encoder"``.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def register(self, entry: T | None = None, *, name: str | None = None) -> Any:
        """Add a class under ``name``, or its own name, and return it; usable as a decorator with or without arguments.

        A class that is defined again, as in a notebook, replaces the previous one.

        Raises:
            ValueError: if the name belongs to another class.
        """
        if entry is None:
            decorator: Callable[[T], T] = lambda decorated: self.register(decorated, name=name)  # noqa: E731
            return decorator
        key = name if name is not None else entry.__name__  # type: ignore[attr-defined]
        registered = self.get(key)
        if registered is not None and _origin(registered) != _origin(entry):
            raise ValueError(f"the {self.kind} name {key!r} is taken by {_origin(registered)}; choose another")
        self[key] = entry
        return entry

    def __missing__(self, name: object) -> Any:
        """Raise ``ValueError`` with the known names."""
        hint = "to use your own class, import its module first, with --import MODULE on the command line"
        raise ValueError(f"{self.kind} must be one of {list(self)}, got {name!r}; {hint}")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name)  # a file may name a list

    def get(self, name: object, default: Any = None) -> Any:
        """Return the class of a name, or ``default``."""
        return super().get(name, default) if isinstance(name, str) else default


CLASSES = Registry("class of a checkpoint")
"""Every class that a checkpoint may have, by its name in ``config.json``."""


def _origin(entry: Any) -> str:
    defined = entry if isinstance(entry, type) else getattr(entry, "column", entry)  # a metric is known by its function
    return f"{defined.__module__}.{getattr(defined, '__qualname__', repr(defined))}"
