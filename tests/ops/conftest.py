"""Fixtures for tests of the operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tg_lpe.ops import cpu


@pytest.fixture(params=["cpu", "reference"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each test with this fixture runs with the C++ part and without."""
    if request.param == "reference":
        with cpu.switched_off():
            yield request.param
    elif cpu.is_available():
        yield request.param
    else:
        pytest.skip("the C++ part is absent or switched off")
