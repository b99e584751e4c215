"""Compute Butina's clusters of molecules in memory that grows linearly with their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rdkit.DataStructs import BulkTanimotoSimilarity

from tg_lpe.arguments import ArgumentError

MAX_MOLECULES = 50_000
"""Largest number of molecules: comparing all pairs takes minutes for that many, and grows with its square."""


def butina_clusters(fingerprints: Sequence[Any]) -> list[int]:
    """Return the cluster of each molecule, numbered from 0, as RDKit's `Butina.ClusterData` does at distance 0.6.

    `Butina 1999 <https://doi.org/10.1021/ci9803381>`_: the molecule with the most neighbours and its neighbours form
    the first cluster. Of the remaining molecules, the one with the most neighbours among all molecules forms the next
    cluster with its remaining neighbours, and so on. Ties go to the later molecule. RDKit's own function holds the
    distances of all pairs in memory.

    Args:
        fingerprints: RDKit's bit vectors.

    Raises:
        ValueError: If there are more than 50,000 molecules.
    """
    if len(fingerprints) > MAX_MOLECULES:
        message = "{split} compares all pairs of at most {:,} molecules, got {:,}; a scaffold split takes any number"
        raise ArgumentError(message, MAX_MOLECULES, len(fingerprints), split="butina")
    near = [np.flatnonzero(np.array(BulkTanimotoSimilarity(one, fingerprints)) >= 0.4) for one in fingerprints]
    cluster = np.full(len(near), -1)
    for place in sorted(range(len(near)), key=lambda place: (len(near[place]), place), reverse=True):
        if cluster[place] < 0:
            cluster[[place, *near[place][cluster[near[place]] < 0]]] = cluster.max() + 1
    return cluster.tolist()
