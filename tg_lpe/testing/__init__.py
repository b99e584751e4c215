"""Checks to run on one's own encoders.

:class:`EncoderTestCase` needs pytest, hypothesis and networkx; the functions need nothing more than the package.
"""

from typing import TYPE_CHECKING, Any

from tg_lpe.testing.equivariance import assert_edge_permutation_equivariant, assert_permutation_equivariant

if TYPE_CHECKING:
    from tg_lpe.testing.encoder_test_case import EncoderTestCase

__all__ = ["EncoderTestCase", "assert_edge_permutation_equivariant", "assert_permutation_equivariant"]


def __getattr__(name: str) -> Any:
    """Import the test case when it is asked for."""
    if name != "EncoderTestCase":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pytest

        pytest.register_assert_rewrite("tg_lpe.testing.encoder_test_case")
        from tg_lpe.testing.encoder_test_case import EncoderTestCase
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"EncoderTestCase needs {error.name}: pip install hypothesis networkx pytest", name=error.name
        ) from error
    return EncoderTestCase
