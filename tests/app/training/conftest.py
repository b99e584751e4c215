"""A few dozen molecules to train on, and settings small enough to do so in a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from tg_lpe.app.molecules import MoleculeSplits, load_molecules

CORES = ("C1CCCCC1", "c1ccccc1", "CC(C)C", "C1CCNC1", "CCOC", "c1ccncc1")
TAILS = ("", "C", "CC", "CCO", "C(=O)O", "CN")


def smiles(start: int, stop: int) -> str:
    """Lines of a .smi file; different numbers are different molecules."""
    every = [f"{tail}{core} {tail}-{core}" for tail in TAILS for core in CORES]
    return "\n".join(every[start:stop]) + "\n"


@pytest.fixture(scope="session")
def molecules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three splits."""
    folder = tmp_path_factory.mktemp("molecules")
    for name, (start, stop) in {"train": (0, 24), "val": (24, 30), "test": (30, 36)}.items():
        (folder / f"{name}.smi").write_text(smiles(start, stop), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def splits(molecules: Path, tmp_path_factory: pytest.TempPathFactory) -> MoleculeSplits:
    """The molecules of that folder."""
    cache = tmp_path_factory.mktemp("cache")
    return load_molecules(molecules, computed="penalised_logp", cache_dir=cache, num_workers=0, progress=False)
