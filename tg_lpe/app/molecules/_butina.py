"""Compute Butina's clusters of molecules in memory that grows linearly with their number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tg_lpe.arguments import ArgumentError

NUM_BITS = 1024

MAX_MOLECULES = 50_000
"""Largest number of molecules: comparing all pairs takes minutes for that many, and grows with its square."""

BLOCK = 256
"""Number of molecules that are compared with all others at once."""


def butina_clusters(fingerprints: Sequence[Sequence[int]]) -> list[int]:
    """Return the cluster of each molecule, as RDKit's `Butina.ClusterData` does.

    `Butina 1999 <https://doi.org/10.1021/ci9803381>`_: the molecule with the most neighbours and its neighbours form
    the first cluster. Of the remaining molecules, the one with the most neighbours among all molecules forms the next
    cluster with its remaining neighbours, and so on. Ties go to the later molecule.

    Args:
        fingerprints: The set bits of each molecule's fingerprint, below 1,024.

    Returns:
        Numbers of clusters, from 0.

    Raises:
        ValueError: If there are more than 50,000 molecules.
    """
    number = len(fingerprints)
    if number > MAX_MOLECULES:
        message = "{split} compares all pairs of at most {:,} molecules, got {:,}; a scaffold split takes any number"
        raise ArgumentError(message, MAX_MOLECULES, number, split="butina")
    bits = torch.zeros(number, NUM_BITS)
    row = torch.tensor([row for row, set_bits in enumerate(fingerprints) for _ in set_bits], dtype=torch.long)
    bits[row, torch.tensor([bit for set_bits in fingerprints for bit in set_bits], dtype=torch.long)] = 1
    places = torch.arange(number)
    counts = torch.cat([places[:0], *(_near(bits, rows).sum(1) for rows in places.split(BLOCK))])
    order = (counts * number + places).argsort(descending=True)
    cluster = torch.full((number,), -1)
    last = -1
    while len(order := order[cluster[order] < 0]):
        rows = order[:BLOCK]
        for place, near in zip(rows.tolist(), _near(bits, rows), strict=True):
            if cluster[place] < 0:
                last += 1
                cluster[near & (cluster < 0)] = last
    return cluster.tolist()


def _near(bits: Tensor, rows: Tensor) -> Tensor:
    """Return a mask of the neighbours of molecules, including themselves, bool ``[num_rows, num_molecules]``."""
    sizes = bits.sum(1)
    # A Tanimoto distance of at most 0.6, as in DeepChem's split: 1 - common / (a + b - common) <= 0.6, in integers that
    # float32 holds exactly.
    near = 7 * (bits[rows] @ bits.T) >= 2 * (sizes[rows, None] + sizes)
    near[torch.arange(len(rows)), rows] = True  # also if no bit is set
    return near
