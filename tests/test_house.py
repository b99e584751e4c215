"""How the package is written: its size, no chains over its own classes, public names, versions."""

from __future__ import annotations

import ast
import importlib
import json
import re
from configparser import ConfigParser
from pathlib import Path

import house
import pytest
from packaging.version import Version
from pages import ROOT

import tg_lpe
import tg_lpe.encoders
from tg_lpe import Encoder
from tg_lpe.ops import cpu

PACKAGE = Path(tg_lpe.__file__).parent


def above_ceilings(counts: dict[str, int]) -> dict[str, tuple[int, int | None]]:
    """Counts above their ceilings, and counts that have none."""
    ceilings = json.loads(house.CEILINGS.read_text(encoding="utf-8"))
    return {name: (n, ceilings.get(name)) for name, n in counts.items() if n > ceilings.get(name, -1)}


def test_nothing_is_above_its_ceiling() -> None:
    """`python tests/house.py --lower` lowers the ceilings; none is raised."""
    assert above_ceilings(house.static_counts()) == {}


def test_the_package_calls_itself_no_more_often_than_its_ceilings_say() -> None:
    pytest.importorskip("rdkit")
    if not cpu.is_available():
        pytest.skip("the ceilings hold for the C++ part")
    assert above_ceilings(house.journey_counts()) == {}


@pytest.mark.parametrize(
    ("source", "branches", "arguments"),
    [
        ("def f(self): pass", 1, 0),
        ("def f(a, /, b, *c, d, **e): return a and b and c or d", 4, 5),
        ("def f(cls, a):\n for b in a:\n  if b: pass\n  elif a: pass\n else: pass", 4, 1),
        ("def f(a):\n def g(b):\n  if b: pass\n return [c for c in a if c]", 3, 1),
        ("def f():\n try: pass\n except OSError: pass\n assert True\n match 1:\n  case 1: pass", 4, 0),
    ],
)
def test_branches_and_arguments_are_counted(source: str, branches: int, arguments: int) -> None:
    (function, count), *_ = house.complexities(ast.parse(source)).items()
    assert (count, house.arguments(function)) == (branches, arguments)


def subclasses(of: type) -> set[str]:
    """Names of all subclasses that the package defines."""
    own = {cls.__name__ for cls in of.__subclasses__() if cls.__module__.startswith("tg_lpe.")}
    return own.union(*(subclasses(cls) for cls in of.__subclasses__()))


def class_tests(source: str) -> list[tuple[int, str]]:
    """Line and name of each class that ``isinstance``, ``issubclass``, ``type(x) is`` or ``case`` asks for."""
    found = []
    for node in ast.walk(ast.parse(source)):
        asked: list[ast.AST] = []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            asked = list(node.args[1:])
        elif isinstance(node, ast.Compare) and any(
            isinstance(side, ast.Call) and getattr(side.func, "id", "") == "type"
            for side in (node.left, *node.comparators)
        ):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        for part in asked:
            for name in ast.walk(part):
                if isinstance(name, ast.Name | ast.Attribute):
                    found.append((node.lineno, name.id if isinstance(name, ast.Name) else name.attr))
    return found


def test_the_walk_finds_what_it_looks_for() -> None:
    for source in (
        "isinstance(x, GramTransformer)",
        "isinstance(x, (int, encoders.GramTransformer))",
        "isinstance(x, int | GramTransformer)",
        "issubclass(type(x), GramTransformer)",
        "type(x) is GramTransformer",
        "match x:\n    case GramTransformer():\n        pass",
    ):
        assert "GramTransformer" in {name for _, name in class_tests(source)}, source
    assert class_tests("GramTransformer(x)") == []


def test_no_class_of_a_room_is_asked_for_outside_of_it() -> None:
    room_of = dict.fromkeys(subclasses(Encoder), "encoders") | dict.fromkeys(subclasses(tg_lpe.models.Model), "models")
    assert room_of["GramTransformer"] == "encoders" and room_of["GraphTransformer"] == "models"
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, name in class_tests(path.read_text(encoding="utf-8"))
        if name in room_of and path.relative_to(PACKAGE).parts[0] != room_of[name]
    ]
    assert found == []


def test_public_names_change_only_with_their_list() -> None:
    """CONTRIBUTING.md explains what a change of this list means for users."""
    modules = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in PACKAGE.rglob("*.py")
        if re.search(r"^__all__ = ", path.read_text(encoding="utf-8"), flags=re.M)
    }
    public = [f"{module}.{name}" for module in modules for name in importlib.import_module(module).__all__]
    listed = (ROOT / "tests" / "fixtures" / "public_names.txt").read_text(encoding="utf-8").split()
    assert sorted(public) == listed
    for path in public:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path


def test_a_version_has_its_changes_and_its_citation() -> None:
    assert f"\n## {tg_lpe.__version__} (" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {tg_lpe.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_constraints_of_the_oldest_versions_are_those_that_a_users_pip_is_given() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = config["options.extras_require"]
    lines = [config["options"]["install_requires"], extras["molecules"], extras["plot"]]
    stated = dict(line.split(">=") for line in "\n".join(lines).split())
    pinned = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    oldest = dict(line.split("==") for line in pinned if not line.startswith("#"))
    assert {name: Version(version) for name, version in stated.items()} == {
        name: Version(version) for name, version in oldest.items()
    }


@pytest.mark.parametrize(
    ("guess", "place"),
    [
        ("RandomWalk", "tg_lpe.encoders.RandomWalk"),
        ("AddLaplacianEigenvectorPE", "tg_lpe.transforms.AddLaplacianEigenvectors"),
        ("TupleTransformer", "tg_lpe.models.TupleTransformer"),
        ("xyz", "'xyz'"),
    ],
)
def test_a_guessed_name_is_told_its_place(guess: str, place: str) -> None:
    with pytest.raises(AttributeError, match=rf"{re.escape(place)}$"):
        getattr(tg_lpe, guess)
