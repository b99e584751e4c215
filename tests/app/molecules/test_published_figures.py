"""Sizes, types and targets of the corpora, against the published figures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tg_lpe.app.molecules._pool import read_smiles
from tg_lpe.app.molecules.solubility import NORMALIZATIONS, SolubilityNormalization


class Corpus:
    """A .smi file, read once."""

    def __init__(self, path: Path, repair_radicals: bool = False, with_terms: bool = False) -> None:
        smiles = [line.split()[0] for line in path.read_text().splitlines()]
        self.unusable: list[str] = []
        self.types: Counter[str] = Counter()
        num_nodes, num_edges, terms = [], [], []
        for _, molecules in read_smiles(smiles, repair_radicals=repair_radicals, with_terms=with_terms):
            for entry in molecules:
                if isinstance(entry, str):
                    self.unusable.append(entry)
                    continue
                num_nodes.append(len(entry.atoms))
                num_edges.append(2 * len(entry.bonds) // 3)
                terms.append(entry.terms)
                self.types.update(entry.atoms)
        self.num_nodes, self.num_edges = np.array(num_nodes), np.array(num_edges)
        self.terms = terms


@pytest.mark.slow
def test_zinc_test_set(shared_data: Path) -> None:
    corpus = Corpus(shared_data / "zinc" / "test.smi", with_terms=True)
    assert not corpus.unusable
    assert len(corpus.num_nodes) == 24_445
    assert corpus.num_nodes.mean() == pytest.approx(23.13, abs=0.005)
    assert corpus.num_edges.mean() == pytest.approx(49.76, abs=0.005)
    assert corpus.num_nodes.max() == 38
    target = [NORMALIZATIONS["zinc"](*terms) for terms in corpus.terms]
    assert np.mean(target) == pytest.approx(-0.007, abs=0.0005)
    assert np.std(target) == pytest.approx(2.062, abs=0.0005)


@pytest.mark.slow
def test_qm9_after_the_published_clean_up(shared_data: Path) -> None:
    corpus = Corpus(shared_data / "qm9" / "train.smi", repair_radicals=True, with_terms=True)
    assert not corpus.unusable
    assert corpus.num_nodes.mean() == pytest.approx(8.79, abs=0.005)
    assert corpus.num_edges.mean() == pytest.approx(18.79, abs=0.005)
    assert corpus.num_nodes.max() == 9
    val = Corpus(shared_data / "qm9" / "val.smi", repair_radicals=True)
    assert len({*corpus.types, *val.types}) == 15
    # To the printed five decimals; among equally large fragments any other choice misses them.
    measured = SolubilityNormalization.from_terms(corpus.terms)
    assert vars(measured) == pytest.approx(vars(NORMALIZATIONS["qm9"]), abs=6e-6)
