"""Fixtures of the tests of constructions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def no_grad() -> Iterator[None]:
    """Thousands of layers need not remember what they did."""
    with torch.no_grad():
        yield
