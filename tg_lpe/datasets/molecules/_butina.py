"""Butina's clusters of molecules, in memory that grows with their number alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tg_lpe.arguments import ArgumentError

NUM_BITS = 1024

MAX_MOLECULES = 50_000
"""All pairs are compared: minutes for that many, and four times as long for twice as many."""

BLOCK = 256
"""Molecules that are compared with all others at once."""


def butina_clusters(fingerprints: Sequence[Sequence[int]]) -> list[int]:
    """The cluster of each molecule, as RDKit's `Butina.ClusterData` finds them.

    `Butina 1999 <https://doi.org/10.1021/ci9803381>`_: the molecule with most neighbours and these are the first
    cluster; of the others, the one that has most neighbours among all and those of them that are left the next; and so
    on. Where two have as many neighbours, the one that comes later is first.

    Args:
        fingerprints: The bits of each molecule's fingerprint that are set, below 1,024.

    Returns:
        Numbers of clusters, from 0.

    Raises:
        ValueError: If there are more than 50,000 molecules.
    """
    number = len(fingerprints)
    if number > MAX_MOLECULES:
        raise ArgumentError(
            "{split} compares all pairs of molecules, at most {:,}, got {:,}; a scaffold split divides more",
            MAX_MOLECULES,
            number,
            split="butina",
        )
    bits = torch.zeros(number, NUM_BITS)
    row = torch.tensor([row for row, own in enumerate(fingerprints) for _ in own], dtype=torch.long)
    bits[row, torch.tensor([bit for own in fingerprints for bit in own], dtype=torch.long)] = 1
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
    """Which molecules are neighbours of some, themselves among them, bool ``[num_rows, num_molecules]``."""
    sizes = bits.sum(1)
    # A Tanimoto distance of at most 0.6, as in DeepChem's split, in integers that float32 holds exactly:
    # 1 - common / (a + b - common) <= 0.6.
    near = 7 * (bits[rows] @ bits.T) >= 2 * (sizes[rows, None] + sizes)
    near[torch.arange(len(rows)), rows] = True  # also where no bit is set
    return near
