"""Fixtures of the tests of constructions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def no_grad() -> Iterator[None]:
    """No gradients: thousands of layers would store their intermediate values."""
    with torch.no_grad():
        yield
