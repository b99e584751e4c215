"""Checks of arguments that many constructors share; their messages quote what came and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real

import torch


class ArgumentError(ValueError):
    """Report wrong arguments in the spelling of the caller: Python, or a command line, which writes them otherwise.

    ``ArgumentError("{} holds a run; go on with {resume}", path, resume=True)`` ends, in Python, in ``resume=True``.

    Args:
        template: the message, with ``{}`` for each value in their order and ``{name}`` for each argument.
        values: what the message quotes.
        arguments: arguments by name, with the value that came or that helps; ``...`` where it may be any.
    """

    def __init__(self, template: str, *values: object, **arguments: object) -> None:
        self.template, self.values, self.arguments = template, values, arguments
        super().__init__(self.told(as_keyword))

    def told(self, write: Callable[[str, object], str]) -> str:
        """The message, with each argument as ``write(name, value)`` writes it."""
        written = {name: write(name, value) for name, value in self.arguments.items()}
        return self.template.format(*self.values, **written)

    def about(self, what: object) -> ArgumentError:
        """The same error with what it is about before the message."""
        return ArgumentError("{}: " + self.template, what, *self.values, **self.arguments)

    def __reduce__(self) -> tuple[Callable[..., ArgumentError], tuple[object, ...]]:
        """From one process to another."""
        return _argument_error, (self.template, self.values, self.arguments)


def _argument_error(template: str, values: Sequence[object], arguments: Mapping[str, object]) -> ArgumentError:
    return ArgumentError(template, *values, **arguments)


def as_keyword(name: str, value: object) -> str:
    """An argument as a call in Python has it."""
    return name if value is ... else f"{name}={value!r}"


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise ``ValueError`` unless ``value`` is an integer of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def check_seed(seed: object) -> None:
    """Raise ``ValueError`` unless ``seed`` is an integer from 0 to ``2 ** 63 - 1``."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be an integer from 0 to 2^63 - 1, got {seed!r}")


def check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}")


def check_flags(**flags: object) -> None:
    """Raise ``ValueError`` unless each argument, given by its name, is ``True`` or ``False``."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")


def check_options(name: str, options: object) -> None:
    """Raise ``ValueError`` unless ``options`` is a mapping of names of arguments to their values, or ``None``."""
    if options is not None and not isinstance(options, Mapping):
        raise ValueError(f"{name} must be a dictionary from names of arguments to values, got {options!r}")


def check_share(name: str, value: float) -> None:
    """Raise ``ValueError`` unless ``value`` is at least 0 and below 1."""
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value!r}")


def check_positive(name: str, value: object, or_zero: bool = False) -> None:
    """Raise ``ValueError`` unless ``value`` is positive and finite; with ``or_zero`` zero is allowed."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) < math.inf or (value == 0 and not or_zero):  # type: ignore[arg-type]
        allowed = "finite and at least 0" if or_zero else "positive and finite"
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def checked_numbers(name: str, values: object) -> tuple[float, ...]:
    """Return a sequence of numbers as floats, or raise ``TypeError`` if it is none."""
    given: object = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else values
    if not isinstance(given, list) or not all(isinstance(v, Real) and not isinstance(v, bool) for v in given):
        raise TypeError(f"{name} must be a sequence of numbers, got {given!r}")
    return tuple(map(float, given))


def check_no_effect(reason: str, **options: tuple[object, object]) -> None:
    """Raise ``ValueError`` if an option, given with its default, is not that though nothing would read it."""
    for name, (value, default) in options.items():
        if value != default:
            raise ValueError(f"{name}={value!r} would have no effect with {reason}")


def check_type(name: str, value: object, kind: type, hint: str = "") -> None:
    """Refuse an object of another class; ``hint`` says where one comes from."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}{hint}, got {type(value).__name__}")


def check_generator(generator: object) -> None:
    """Raise ``TypeError`` unless ``generator`` is a generator of random numbers or ``None``."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator or None, got {generator!r}; torch.Generator().manual_seed(0) is one"
        )


def check_heads(hidden_channels: int, heads: int) -> None:
    """Raise ``ValueError`` unless ``heads`` divides ``hidden_channels``."""
    check_count("heads", heads)
    if hidden_channels % heads:
        raise ValueError(f"heads must divide hidden_channels, got heads={heads} and hidden_channels={hidden_channels}")
