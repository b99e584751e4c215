"""Fixtures of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data: `TG_LPE_DATA`, or `shared/data` beside the repository."""
    default = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("TG_LPE_DATA") or default)
    if not folder.is_dir():
        pytest.skip(f"real data are not here: set TG_LPE_DATA to their folder (looked in {folder})")
    return folder
