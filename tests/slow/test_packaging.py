"""Sdist and wheels have the right content, are valid for a package index, and run in an empty environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from pages import ROOT

import tg_lpe

COMPILER = shutil.which(os.environ.get("CXX", "c++"))
CSRC = {path.name for path in (ROOT / "tg_lpe" / "ops" / "csrc").iterdir()}


ENCODE = """
import sys
import torch
import tg_lpe
from tg_lpe.ops import cpu
from torch_geometric.data import Data

assert tg_lpe.__file__.startswith(sys.prefix), tg_lpe.__file__
assert cpu.is_available() is (sys.argv[1] == "compiled")
ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
data = tg_lpe.LinearTransformerPE(k=8)(Data(edge_index=ring, num_nodes=6))
assert "gram-k8" in tg_lpe.zoo.names()
torch.save(data.linear_transformer_pe, sys.argv[2])
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution, built from a copy: building leaves files behind."""
    copy, out = tmp_path_factory.mktemp("copy") / "tg_lpe", tmp_path_factory.mktemp("sdist")
    left_out = shutil.ignore_patterns(".*", "*.so", "*.egg-info", "__pycache__", "build", "dist", "runs", "notebooks")
    shutil.copytree(ROOT, copy, ignore=left_out)
    run("-c", f"from setuptools import build_meta; build_meta.build_sdist({str(out)!r})", cwd=copy)
    return only(out, "*.tar.gz")


@pytest.fixture(scope="module")
def compiled(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with the compiled part, which a compiler that does not optimise makes in a third of the time."""
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("compiled")
    quick = folder / "compiler"
    quick.write_text(f'#!/bin/sh\nexec "{COMPILER}" "$@" -O0\n', encoding="utf-8")
    quick.chmod(0o755)
    return wheel(sdist, folder, CC=str(quick), CXX=str(quick))


@pytest.fixture(scope="module")
def pure(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel as a machine without a compiler builds it."""
    return wheel(sdist, tmp_path_factory.mktemp("pure"), CC="no-compiler", CXX="no-compiler")


def wheel(sdist: Path, out: Path, **environment: str) -> Path:
    run(
        *("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir"),
        *("-w", str(out), str(sdist)),
        **environment,
    )
    return only(out, "*.whl")


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def run(*arguments: str, cwd: Path | None = None, **environment: str) -> str:
    """Return the output of a Python program."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_a_wheel_fits_every_python_on_one_platform(compiled: Path) -> None:
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    assert compiled.name == f"tg_lpe-{tg_lpe.__version__}-py3-none-{platform}.whl"
    assert "tg_lpe/ops/cpu/_library.so" in names(compiled)


def test_without_a_compiler_a_wheel_fits_every_platform(pure: Path) -> None:
    assert pure.name == f"tg_lpe-{tg_lpe.__version__}-py3-none-any.whl"
    assert not any(name.endswith(".so") for name in names(pure))
    with zipfile.ZipFile(pure) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        assert "Root-Is-Purelib: true" in archive.read(about).decode()


def test_distributions_hold_the_package_alone(sdist: Path, pure: Path) -> None:
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tg_lpe").rglob("*")
        if path.suffix in (".py", ".typed", ".html", ".md", ".json", ".yaml", ".safetensors")
    }
    own = {name for name in names(pure) if ".dist-info/" not in name}
    assert own == package
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert package | {f"tg_lpe/ops/csrc/{name}" for name in CSRC} <= held
    assert {"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md"} <= held
    assert not any(name.startswith(("tests", "benchmarks", "docs")) for name in held)


def test_a_package_index_takes_them(sdist: Path, pure: Path) -> None:
    pytest.importorskip("twine")
    run("-m", "twine", "check", "--strict", str(sdist), str(pure))


def test_links_and_pictures_hold_away_from_the_repository(pure: Path) -> None:
    about = metadata(pure)
    source = dict(url.split(", ") for url in about.get_all("Project-URL", []))["Source"]
    links = re.findall(r"\]\(([^)]+)\)", str(about.get_payload()))
    assert len(links) > 5
    for link in links:
        assert re.match(r"https://|#", link), link
        if link.startswith(source):
            path = re.sub(r"^/(raw|blob)/main/", "", link.removeprefix(source)).partition("#")[0]
            assert (ROOT / path).is_file(), link


def test_a_user_gets_no_tools_of_development(pure: Path) -> None:
    required = metadata(pure).get_all("Requires-Dist", [])
    user = [line for line in required if "extra ==" not in line or re.search(r'extra == "(all|molecules|plot)"', line)]
    assert any("molecules" in line for line in user)
    for tool in ("pytest", "ruff", "mypy", "sphinx", "ipykernel", "twine", "lint", "test", "dev", "docs"):
        assert not any(re.search(rf"\b{tool}\b", line.partition(";")[0]) for line in user), tool


def test_an_empty_environment_encodes(compiled: Path, pure: Path, tmp_path: Path) -> None:
    import torch

    encodings = []
    for kind, built in (("compiled", compiled), ("pure", pure)):
        python = empty_environment(tmp_path / kind)
        run("-m", "pip", "-q", "--python", str(python), "install", "--no-deps", "--no-index", str(built))
        out = tmp_path / f"{kind}.pt"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TG_LPE", "PYTHON"))}
        for command in ([str(python), "-c", ENCODE, kind, str(out)], [str(python.with_name("tg-lpe")), "--help"]):
            done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        assert "usage: tg-lpe" in done.stdout
        encodings.append(torch.load(out, weights_only=True))
    torch.testing.assert_close(*encodings, rtol=1e-4, atol=1e-5)


def empty_environment(folder: Path) -> Path:
    """The Python of a new virtual environment, which sees the dependencies of this one, but no package's own hooks."""
    run("-m", "venv", "--without-pip", str(folder))
    own = only(folder, "lib/python*/site-packages")
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin" / "python"
