"""Compute the penalised logP: logP minus synthetic accessibility minus long rings, each normalised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tg_lpe.app.molecules import _molecule
from tg_lpe.arguments import check_choice


@dataclass(frozen=True)
class SolubilityNormalization:
    """Hold means and standard deviations of the three terms over a training set.

    Args:
        logp_mean, logp_std: Of Crippen's logP.
        sa_mean, sa_std: Of the synthetic accessibility score.
        cycle_mean, cycle_std: Of the number of atoms of the longest ring beyond six.

    Raises:
        ValueError: If a number is not finite or a standard deviation is not positive.
    """

    logp_mean: float
    logp_std: float
    sa_mean: float
    sa_std: float
    cycle_mean: float
    cycle_std: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not math.isfinite(value) or (name.endswith("_std") and value <= 0):
                wanted = "positive and finite" if name.endswith("_std") else "finite"
                raise ValueError(f"{name} must be {wanted}, got {value!r}")

    @classmethod
    def from_terms(cls, terms: Sequence[tuple[float, float, float]]) -> SolubilityNormalization:
        """Measure the constants on a training set. A constant term gets the standard deviation 1.

        Args:
            terms: (logP, SA, cycle) of each molecule.

        Raises:
            ValueError: If there are no terms.
        """
        if not terms:
            raise ValueError("normalization constants need at least one molecule, got none")
        constants: list[float] = []
        for column in zip(*terms, strict=True):
            mean = math.fsum(column) / len(column)
            std = math.sqrt(math.fsum((value - mean) ** 2 for value in column) / len(column))
            # Rounding gives a constant column a tiny standard deviation, by which values must not be divided.
            constants += [mean, std if std > 1e-12 * max(1.0, abs(mean)) else 1.0]
        return cls(*constants)

    def __call__(self, logp: float, sa: float, cycle: float) -> float:
        """Return the target of one molecule from its three terms."""
        return (
            (logp - self.logp_mean) / self.logp_std
            - (sa - self.sa_mean) / self.sa_std
            - (cycle - self.cycle_mean) / self.cycle_std
        )


NORMALIZATIONS = {
    "zinc": SolubilityNormalization(2.4570953396, 1.4343244011, 3.0525811293, 0.8335207025, 0.0485696877, 0.286021211),
    "qm9": SolubilityNormalization(0.28263, 0.98468, 4.24280, 0.94001, 0.03635, 0.21501),
}
"""Published constants by the name of the training set."""


def constrained_solubility(smiles: str, normalization: SolubilityNormalization | str) -> float:
    """Compute the target `logP - SA - cycle`, with terms normalised by a training set's means and deviations.

    Args:
        smiles: The molecule.
        normalization: The constants, or `"zinc"` or `"qm9"` for the published ones.

    Raises:
        ValueError: If the molecule is unusable or the name of the normalization unknown.
        ImportError: If RDKit was installed without its Contrib folder.
    """
    if not isinstance(normalization, SolubilityNormalization):
        check_choice("normalization", normalization, tuple(NORMALIZATIONS))
        normalization = NORMALIZATIONS[normalization]
    try:
        return normalization(*_molecule.solubility_terms(_molecule.parse(smiles)))
    except _molecule.UnusableMoleculeError as error:
        raise ValueError(f"unusable SMILES {smiles!r}: {error}") from error
