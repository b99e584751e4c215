"""Checks of arguments that many constructors share; their messages quote what came and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real


def check_count(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no integer, or less than ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def check_seed(seed: object) -> None:
    """Refuse what is no seed."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be an integer from 0 to 2^63 - 1, got {seed!r}")


def check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    """Refuse what is not among the allowed values."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}")


def check_share(name: str, value: float) -> None:
    """Refuse what is no share that leaves something."""
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value!r}")


def check_positive(name: str, value: object, or_zero: bool = False) -> None:
    """Refuse what is no positive number, or infinite."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) < math.inf or (value == 0 and not or_zero):  # type: ignore[arg-type]
        allowed = "finite and at least 0" if or_zero else "positive and finite"
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def check_heads(hidden_channels: int, heads: int) -> None:
    """Refuse a number of attention heads that does not divide the width."""
    check_count("heads", heads)
    if hidden_channels % heads:
        raise ValueError(f"heads must divide hidden_channels, got heads={heads} and hidden_channels={hidden_channels}")
