"""Tests for your own encoders and attention layers.

:class:`EncoderTestCase`, :class:`PositionalEncoderTestCase` and :class:`AttentionTestCase` need pytest, hypothesis and
networkx. The functions have no further dependencies.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tg_lpe.testing.equivariance import assert_edge_permutation_equivariant, assert_permutation_equivariant

if TYPE_CHECKING:
    from tg_lpe.testing.attention_test_case import AttentionTestCase
    from tg_lpe.testing.encoder_test_case import EncoderTestCase
    from tg_lpe.testing.positional_test_case import PositionalEncoderTestCase

__all__ = [
    "AttentionTestCase",
    "EncoderTestCase",
    "PositionalEncoderTestCase",
    "assert_edge_permutation_equivariant",
    "assert_permutation_equivariant",
]

CASES = {
    "AttentionTestCase": "attention_test_case",
    "EncoderTestCase": "encoder_test_case",
    "PositionalEncoderTestCase": "positional_test_case",
}


def __getattr__(name: str) -> Any:
    """Import a test case when it is first used."""
    if name not in CASES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pytest

        pytest.register_assert_rewrite(f"{__name__}.{CASES[name]}")
        return getattr(import_module(f"{__name__}.{CASES[name]}"), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{name} needs {error.name}: pip install hypothesis networkx pytest", name=error.name
        ) from error
