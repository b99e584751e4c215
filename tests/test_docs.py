"""The documentation: Python and examples run, commands parse, tables and pictures are there, classes show arguments."""

from __future__ import annotations

import doctest
import inspect
import re
import runpy
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from children import run_python
from pages import DOCS, README, ROOT, checked, no_downloads, python_blocks, run_blocks

import tg_lpe
from tg_lpe import data, encoders, models, transforms, zoo
from tg_lpe.app import prediction, training
from tg_lpe.app.cli import main, parse
from tg_lpe.encoders import ENCODERS
from tg_lpe.nn import attention

__all__ = ["no_downloads"]

CHANGELOG = ROOT / "CHANGELOG.md"
REGISTERED = dict(ENCODERS)  # now: other tests register classes of their own
WITH_PYTHON = [page for page in DOCS if python_blocks(page)]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.usefixtures("no_downloads")
def test_python_of_a_page_runs(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    needs = {"datasets.molecules": "rdkit", "from ogb": "ogb", "import pyarrow": "pyarrow"}
    needs |= {"from pandapower": "pandapower", "tg_lpe.graphgym": "pytorch_lightning"}
    for module, package in needs.items():
        if module in text:
            pytest.importorskip(package)
    missing = [name for name in ("fastapi", "import pytorch_lightning") if find_spec(name.split()[-1]) is None]
    blocks = [block for block in python_blocks(page) if not any(name in block for name in missing)]
    run_blocks(blocks, f"docs_{page.stem}")


def test_claims_in_comments_are_checked() -> None:
    with pytest.raises(AssertionError, match="1 == 2"):
        exec(compile(checked("1 == 2  # True"), "page", "exec"))
    with pytest.raises(AssertionError, match="does not hold"):
        exec(compile(checked("import torch\ntorch.zeros(2, 3)  # [2, 4]: too many"), "page", "exec"))
    exec(compile(checked("import torch\ntorch.zeros(2, 3)  # [2, 3]\n1 == 1  # True"), "page", "exec"))


COMMANDS = [
    (page, command)
    for page in (README, *DOCS)
    for command in re.findall(
        r"^(?:tg-lpe|python benchmarks/).*", page.read_text(encoding="utf-8").replace("\\\n", " "), flags=re.M
    )
]


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: getattr(value, "stem", value))
def test_commands_of_a_page_parse(page: Path, command: str) -> None:
    program, *words = shlex.split(command.removesuffix("&"), comments=True)
    if program == "tg-lpe":
        if "--start" in words:
            pytest.skip("begins from a run that the reader has made")
        try:
            parse(words[0], words[1:]) if words and not words[0].startswith("-") else main(words)
        except SystemExit as stopped:  # also of --help
            assert not stopped.code, f"{page.name}: {command}"
    else:
        script = (ROOT / words[0]).read_text(encoding="utf-8")
        for option in (word for word in words if word.startswith("--")):
            assert f'"{option}"' in script, f"{page.name}: {command}"


@pytest.mark.parametrize("page", [README, CHANGELOG, *DOCS], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_headings_that_a_page_names_are_there(page: Path) -> None:
    for file, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", without_code(page)):
        if "://" not in file:
            target = page.parent / file if file else page
            assert target.is_file(), f"{page.name} links to {file}"
            assert not heading or heading in headings(target), f"{page.name} links to {file}#{heading}"


def test_files_and_names_of_the_architecture_are_there() -> None:
    page = without_code(ROOT / "docs" / "architecture.md")
    package = [path for path in (ROOT / "tg_lpe").rglob("*") if "__pycache__" not in path.parts]
    files = [*package, *(ROOT / "benchmarks").iterdir(), *ROOT.iterdir()]
    source = "\n".join(path.read_text(encoding="utf-8") for path in files if path.suffix in (".py", ".cpp", ".h"))
    paths = [f"/{path.relative_to(ROOT)}" for path in files]
    for name in re.findall(r"`@?([\w./]+)(?:\([^`]*\))?`", page):
        if "NAME" in name or name.endswith((".json", ".safetensors")):
            continue
        if name.endswith(("/", ".py", ".cpp", ".h", ".toml")):
            assert any(path.endswith(f"/{name.rstrip('/')}") for path in paths), name
        else:
            assert re.search(rf"\b{name.split('.')[-1]}\b", source), name
    for name, file in re.findall(r"`(?:\w+\.)*(\w+)(?:\(\))?`\s(?:in|of)\s`([\w./]+\.py)`", page):
        text = next(path for path in files if f"/{path}".endswith(f"/{file}")).read_text("utf-8")
        assert re.search(rf"^ *(def|class) {name}\b|^{name}\b", text, flags=re.M), f"{name} in {file}"


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)


def headings(page: Path) -> set[str]:
    """Return the anchors of all headings."""
    titles = re.findall(r"^#+ (.+)$", without_code(page), flags=re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_page_of_encodings_says_what_the_classes_say() -> None:
    """Each encoder has one row, whose content, weights and paper agree with the class."""
    page = (ROOT / "docs" / "encodings.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| \{class\}`~tg_lpe\.(?:encoders\.)?(\w+)`(, learned)? \| ([nep ]+) \| (.*)$", page, flags=re.M
    )
    assert sorted(name for name, *_ in rows) == sorted(REGISTERED)
    for name, learned, levels, rest in rows:
        cls = REGISTERED[name]
        encoder = cls()
        has_pairs = encoder.pair_out_channels or "pair_out_channels" in inspect.signature(cls).parameters
        found = [encoder.out_channels and "n", encoder.edge_out_channels and "e", has_pairs and "p"]
        assert levels.split() == [level for level in found if level], name
        assert bool(learned) == any(True for _ in encoder.parameters()), name
        for link in re.findall(r"https://arxiv[^)]*", rest):
            assert link in (cls.__doc__ or ""), f"{name}: {link}"


def test_the_page_of_errors_quotes_the_package() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tg_lpe").rglob("*.py"))
    quotes = [quote for row in re.findall(r"^\| ([^|]+) \|", page, flags=re.M) for quote in re.findall("`(.+?)`", row)]
    assert quotes and not [quote for quote in quotes if quote not in source]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_of_a_page_needs_no_test_framework(page: Path) -> None:
    assert not any("pytest" in block for block in python_blocks(page))
    text = page.read_text(encoding="utf-8")
    assert "NeighborLoader" not in text or "pyg-lib" in text, "which NeighborLoader needs"


def test_tables_are_those_of_the_results(tmp_path: Path) -> None:
    run_python(str(ROOT / "benchmarks" / "_readme.py"), "--check", said=tmp_path / "said")  # run it without --check


@pytest.mark.usefixtures("no_downloads")
def test_python_of_the_readme_runs() -> None:
    pytest.importorskip("rdkit")
    names = run_blocks(python_blocks(README), "readme")
    assert names["batch"].pe.shape == (30, 16)  # all four rings
    assert names["model"].predict(names["molecules"]).outside == ()


def test_the_better_figure_of_a_column_of_the_grid_has_the_greener_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    figures = pytest.importorskip("_figures")
    shades = []
    monkeypatch.setattr(figures, "draw_cell", lambda axes, cell, lead, *place: shades.append((cell, lead)))
    monkeypatch.setattr(figures, "save", lambda *figure: None)
    figures.draw_grid(ROOT)
    assert len({cell["column"] for cell, _ in shades}) >= 15
    for cell, lead in shades:
        for other, other_lead in shades:
            sign = 1 if cell["direction"] == "max" else -1
            if cell["column"] == other["column"] and sign * (cell["test"]["mean"] - other["test"]["mean"]) > 0:
                assert lead > other_lead, (cell["row"], other["row"], cell["column"])


QUICK = {
    "pe_in_your_model": ["1"],
    "train_on_csv": ["--epochs", "1"],
    "pretrain": ["--epochs", "1", "--graphs", "40"],
    "one_large_graph": ["--nodes", "2000"],
    "own_encoder": [],
    "link_prediction": ["--nodes", "300", "--epochs", "5"],
}


def test_every_example_is_run() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(QUICK)


@pytest.mark.parametrize("name", QUICK)
def test_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "train_on_csv":
        pytest.importorskip("rdkit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *QUICK[name]])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out


FIRST = [
    *(getattr(transforms, name) for name in transforms.__all__),
    *encoders.ENCODERS.values(),
    models.GraphTransformer,
    models.TupleTransformer,
    data.GraphSplits,
    training.TrainConfig,
    prediction.Predictor,
    encoders.load_encoder,
    zoo.load,
]
"""Classes and functions that users meet first."""


@pytest.mark.parametrize("cls", FIRST, ids=lambda cls: cls.__name__)
def test_the_example_runs(cls: Any) -> None:
    if cls in (prediction.Predictor, zoo.load):
        pytest.importorskip("rdkit")
    text = inspect.getdoc(cls) or ""
    module = sys.modules[cls.__module__]
    examples = doctest.DocTestParser().get_doctest(text, {}, cls.__name__, module.__file__, None)
    lines = sum(example.source.count("\n") + example.want.count("\n") for example in examples.examples)
    assert 0 < lines <= 10
    said: list[str] = []
    outcome = doctest.DocTestRunner(verbose=False).run(examples, out=said.append)
    assert outcome.failed == 0, "".join(said)


PUBLIC = sorted(
    {
        value
        for module in (tg_lpe, data, encoders, models, prediction, training, transforms, attention)
        for value in (getattr(module, name) for name in module.__all__)
        if inspect.isclass(value)
    },
    key=lambda cls: cls.__qualname__,
)


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda cls: cls.__name__)
def test_a_class_shows_the_arguments_of_its_constructor(cls: type) -> None:
    """Documentation tools read ``__signature__``, else ``__new__``, else ``__init__``."""
    if cls.__init__ in (torch.nn.Module.__init__, object.__init__):
        return  # it has no arguments of its own
    own = inspect.signature(cls.__init__)
    shown = getattr(cls, "__signature__", own if cls.__new__ is object.__new__ else inspect.signature(cls.__new__))
    assert [name for name in own.parameters if name != "self"] == [p for p in shown.parameters if p != "self"]
