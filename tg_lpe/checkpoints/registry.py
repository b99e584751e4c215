"""Names for classes, as a command line or a ``config.json`` uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Registry(Mapping[str, Any]):
    """A read-only mapping from names to classes that grows by :meth:`register` alone.

    Args:
        kind: what its entries are, for error messages: ``"encoder"``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Any] = {}

    def register(self, entry: T | None = None, *, name: str | None = None) -> Any:
        """Add a class under a name, or its own, and return it; a decorator with or without arguments.

        The same class defined again, in a notebook for instance, takes the place of the former.

        Raises:
            ValueError: if the name belongs to another class.
        """
        if entry is None:
            decorator: Callable[[T], T] = lambda late: self.register(late, name=name)  # noqa: E731
            return decorator
        key = name if name is not None else entry.__name__  # type: ignore[attr-defined]
        registered = self._entries.get(key)
        if registered is not None and _origin(registered) != _origin(entry):
            raise ValueError(
                f"the {self.kind} name {key!r} is taken by {_origin(registered)}; choose another for {entry}"
            )
        self._entries[key] = entry
        return entry

    def __getitem__(self, name: str) -> Any:
        """Return the class of a name; where there is none, a ``ValueError`` lists what there is."""
        try:
            return self._entries[name]
        except (KeyError, TypeError):
            raise ValueError(
                f"{self.kind} must be one of {list(self._entries)}, got {name!r}; a class of your own is known "
                "once its module is imported: import it, or say --import MODULE on the command line"
            ) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def get(self, name: object, default: Any = None) -> Any:
        """Return the class of a name, or ``default``."""
        return self._entries[name] if isinstance(name, str) and name in self._entries else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _origin(entry: Any) -> str:
    return f"{getattr(entry, '__module__', '?')}.{getattr(entry, '__qualname__', repr(entry))}"
