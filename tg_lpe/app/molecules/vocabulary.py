"""Number atom types and bond types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

BOND_TYPES = ("NONE", "SINGLE", "DOUBLE", "TRIPLE")
"""Bond types by their index in `edge_attr`. `NONE` never occurs, but keeps the published numbering."""


@dataclass(frozen=True)
class AtomVocabulary:
    """Hold an ordered set of atom types (element, explicit hydrogens, charge), written like `C`, `C H1`, `N H1 +`.

    Args:
        types: The names; the position of a name is its index in `x`.

    Raises:
        TypeError: If a name is not a string.
        ValueError: If there are no names, or a name is empty or repeated.
    """

    types: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.types, str) or not all(isinstance(name, str) for name in self.types):
            raise TypeError(f"atom types must be a sequence of strings, got {self.types!r}")
        object.__setattr__(self, "types", tuple(self.types))
        if not self.types or not all(name.strip() for name in self.types):
            raise ValueError(f"a vocabulary needs at least one atom type and no empty ones, got {self.types!r}")
        if twice := [repr(name) for name, count in Counter(self.types).items() if count > 1]:
            raise ValueError(f"atom types occur more than once: {', '.join(twice)}")

    @classmethod
    def from_counts(cls, counts: Mapping[str, int]) -> AtomVocabulary:
        """Order types by descending count, then by name.

        Args:
            counts: Number of occurrences of each type; 0 is allowed.
        """
        return cls(tuple(sorted(counts, key=lambda name: (-counts[name], name))))

    @classmethod
    def from_file(cls, path: str | Path) -> AtomVocabulary:
        """Read one name per line, as in the published `atom_dict.txt`.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is not UTF-8, or names no type, or a type twice.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
            return cls(tuple(line.strip() for line in lines if line.strip()))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)


_ZINC = (
    "C,O,N,F,C H1,S,Cl,O -,N H1 +,Br,N H3 +,N H2 +,N +,N -,S -,I,P,O H1 +,N H1 -,O +,S +,P H1,P H2,C H2 -,P +,S H1 +,"
    "C H1 -,P H1 +"
)
ZINC_VOCABULARY = AtomVocabulary(tuple(_ZINC.split(",")))
"""The atom types of the published ZINC benchmark graphs, in their numbering."""
