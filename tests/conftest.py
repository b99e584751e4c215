"""Which tests run, how many examples they try, and fixtures of all tests.

``pytest`` runs the quick tests. ``--tests=rest`` runs those that it leaves out: what is marked ``slow``, the folders
``theory``, ``fuzz`` and ``slow``, and every property once more with more examples. ``--tests=all`` runs everything.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, settings

from tg_lpe.app.training.tasks import TASKS
from tg_lpe.checkpoints.registry import CLASSES
from tg_lpe.encoders import ENCODERS
from tg_lpe.nn.attention import ATTENTIONS, GLOBAL_ATTENTIONS
from tg_lpe.nn.norms import NORMS
from tg_lpe.ops import cpu

TESTS = Path(__file__).resolve().parent
SLOW_FOLDERS = {"theory", "fuzz", "slow"}

ALWAYS = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("quick", max_examples=6, derandomize=True, **ALWAYS)
settings.register_profile("all", max_examples=16, **ALWAYS)

REGISTRIES = (ENCODERS, CLASSES, ATTENTIONS, GLOBAL_ATTENTIONS, NORMS, TASKS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tests", choices=("quick", "rest", "all"), default="quick", help="which tests run")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("quick" if config.getoption("tests") == "quick" else "all")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests of ``--tests``. A slow file or folder that the command line names is run, too."""
    tests = config.getoption("tests")
    named = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    chosen, others = [], []
    for item in items:
        is_slow = (
            not SLOW_FOLDERS.isdisjoint(item.path.relative_to(TESTS).parts)
            or item.get_closest_marker("slow") is not None
        )
        is_named = item.path in named or any(path in item.path.parents and path.name in SLOW_FOLDERS for path in named)
        is_property = hasattr(getattr(item, "function", None), "hypothesis")
        is_chosen = {"quick": not is_slow or is_named, "rest": is_slow or is_property, "all": True}[tests]
        (chosen if is_chosen else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = chosen


@pytest.fixture(autouse=True)
def names_of_one_test() -> Iterator[None]:
    """Unregister the classes of a test, because another test may define a class of the same name."""
    before = [dict(registry) for registry in REGISTRIES]
    yield
    for registry, entries in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(entries)


@pytest.fixture
def own(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The text ``OWN`` of a test file as a user's module ``own_classes`` in the working directory."""
    (tmp_path / "own_classes.py").write_text(request.module.OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("own_classes")
    del sys.modules["own_classes"]


@pytest.fixture
def threads() -> Iterator[None]:
    """Set the number of threads back, a setting of the process that ``--threads`` changes."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_thread(threads: None) -> None:
    """Sums in one order, so that a run in this process has the bits of one in another."""
    torch.set_num_threads(1)


@pytest.fixture
def no_grad() -> Iterator[None]:
    """No gradients: thousands of layers would store their intermediate values."""
    with torch.no_grad():
        yield


@pytest.fixture(params=["cpu", "reference"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each test with this fixture runs with the C++ part and without."""
    if request.param == "cpu" and not cpu.is_available():
        pytest.skip("the C++ part is absent or switched off")
    with nullcontext() if request.param == "cpu" else cpu.switched_off():
        yield request.param


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real data: `TG_LPE_DATA`, or `shared/data` next to the repository."""
    default = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("TG_LPE_DATA") or default)
    if not folder.is_dir():
        pytest.skip(f"real data are not here: set TG_LPE_DATA to their folder (looked in {folder})")
    return folder
