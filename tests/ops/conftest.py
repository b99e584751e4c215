"""Fixtures for tests of the operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tg_lpe.ops import cpu


@pytest.fixture(params=["cpu", "reference"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test with this fixture runs with the C++ part and without."""
    if request.param == "reference":
        monkeypatch.setattr(cpu, "library", None)
    elif not cpu.is_available():
        pytest.skip("the C++ part is absent or switched off")
    return request.param


@pytest.fixture
def threads() -> Iterator[None]:
    """Sets the number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
