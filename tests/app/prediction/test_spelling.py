"""One molecule, one prediction: order, Kekule structures, written hydrogens and atom maps of a string do not decide."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tg_lpe import zoo

pytest.importorskip("rdkit")

from rdkit import Chem, RDConfig

NUM_MOLECULES = 100
SPELLINGS = ("order",) * 3 + ("kekulised",) * 2 + ("hydrogens",) * 2 + ("mapped",) * 2 + ("mapped hydrogens",)


def spellings(smiles: str, draw: random.Random) -> Iterator[str]:
    for kind in SPELLINGS:
        molecule = Chem.MolFromSmiles(smiles)
        if "hydrogens" in kind:
            molecule = Chem.AddHs(molecule)
        if "mapped" in kind:
            for atom, number in zip(
                molecule.GetAtoms(), draw.sample(range(1, 900), molecule.GetNumAtoms()), strict=True
            ):
                atom.SetAtomMapNum(number)
        if kind == "kekulised":
            Chem.Kekulize(molecule, clearAromaticFlags=True)
        yield Chem.MolToRandomSmilesVect(molecule, 1, randomSeed=draw.randrange(1, 2**20))[0]


def test_ten_spellings_of_a_molecule_get_one_prediction() -> None:
    model, draw = zoo.load("transformer-zinc12k"), random.Random(0)
    file = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi")
    lines = [line.split()[0] for line in file.read_text(encoding="utf-8").splitlines()]
    (read,) = model.reader.read(lines[: 4 * NUM_MOLECULES], batch_size=len(lines), num_workers=0)
    molecules = [smiles for smiles, why in zip(read.smiles, read.reasons, strict=True) if why is None]
    molecules = molecules[: 2 * NUM_MOLECULES : 2]
    assert len(molecules) == NUM_MOLECULES
    spelled = [text for smiles in molecules for text in spellings(smiles, draw)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many of the molecules are smaller than ZINC's
        expected = model.predict(molecules).values.repeat_interleave(len(SPELLINGS), 0)
        got = model.predict(spelled)
        torch.testing.assert_close(got.values, expected, rtol=1e-5, atol=3e-5)
        # If the string decides, the places of double bonds in aromatic rings follow the spelling; nothing else does.
        aliphatic = [s for s in molecules if not any(b.GetIsAromatic() for b in Chem.MolFromSmiles(s).GetBonds())]
        spelled = [text for smiles in aliphatic for text in spellings(smiles, draw)]
        model.reader = replace(model.reader, canonical=False)
        plain = model.predict(spelled).values
        expected = model.predict(aliphatic).values.repeat_interleave(len(SPELLINGS), 0)
    assert len(aliphatic) > 20
    torch.testing.assert_close(plain, expected, rtol=1e-5, atol=3e-5)
