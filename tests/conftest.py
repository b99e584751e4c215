"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tg_lpe.encoders import ENCODERS
from tg_lpe.hub.checkpoints import CLASSES
from tg_lpe.nn.attention import ATTENTIONS, GLOBAL_ATTENTIONS
from tg_lpe.nn.norms import NORMS
from tg_lpe.training.tasks import TASKS

REGISTRIES = (ENCODERS, CLASSES, ATTENTIONS, GLOBAL_ATTENTIONS, NORMS, TASKS)


@pytest.fixture(autouse=True)
def names_of_one_test() -> Iterator[None]:
    """Forget what a test registers: another test may define a class of the same name."""
    before = [dict(registry._entries) for registry in REGISTRIES]
    yield
    for registry, entries in zip(REGISTRIES, before, strict=True):
        registry._entries.clear()
        registry._entries.update(entries)
