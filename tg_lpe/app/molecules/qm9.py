"""List QM9's twelve properties with units, and draw the split of the literature.

`Quantum chemistry structures and properties of 134 kilo molecules <https://doi.org/10.1038/sdata.2014.22>`_.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tg_lpe.arguments import ArgumentError, check_seed

QM9_UNITS = {
    "mu": "Debye",
    "alpha": "Bohr^3",
    "homo": "Hartree",
    "lumo": "Hartree",
    "gap": "Hartree",
    "r2": "Bohr^2",
    "zpve": "Hartree",
    "u0": "Hartree",
    "u298": "Hartree",
    "h298": "Hartree",
    "g298": "Hartree",
    "cv": "cal/(mol K)",
}
"""Published units of the twelve targets, in the order of the published table."""

_SIZES = (100_000, 17_748, 13_083)


def check_qm9_targets(targets: Sequence[str]) -> None:
    """Refuse targets that are not among QM9's twelve."""
    if unknown := [name for name in targets if name not in QM9_UNITS]:
        message, names = "{targets}: QM9's are {}, not {}", ", ".join(map(str, unknown))
        raise ArgumentError(message, ", ".join(QM9_UNITS), names, targets=list(targets))


def qm9_split(num_molecules: int, seed: int = 0) -> tuple[list[int], list[int], list[int]]:
    """Draw the standard split of models that read positions: 100,000, 17,748 and 13,083 molecules.

    The parts are consecutive in `numpy.random.RandomState(seed).permutation(130831)`. Molecules are numbered in the
    order of GDB-9, without the uncharacterised ones. Seed 0 gives the split of `Cormorant
    <https://arxiv.org/abs/1906.04015>`_ and `EGNN <https://arxiv.org/abs/2102.09844>`_, by their published code.

    Args:
        num_molecules: Number of molecules, 130,831.
        seed: Draws the permutation.

    Returns:
        Indices for training, validation and test, each in ascending order.

    Raises:
        ValueError: If there are not 130,831 molecules, or the seed is no integer of at most 32 bits.
    """
    check_seed(seed)
    if seed >= 2**32:
        raise ValueError(f"seed of the standard split must be below 2^32, got {seed}")
    if num_molecules != sum(_SIZES):
        message = "{split} divides the {:,} characterised molecules of QM9, got {:,}; a random split takes any number"
        raise ArgumentError(message, sum(_SIZES), num_molecules, split="standard")
    order = np.random.RandomState(seed).permutation(num_molecules)
    train, val, test = (sorted(part.tolist()) for part in np.split(order, np.cumsum(_SIZES)[:2]))
    return train, val, test
