"""Update the ranges and the score in the card of a shipped checkpoint.

    python benchmarks/_ranges.py NAME [FOLDER] [--unit TEXT]

FOLDER holds the training molecules of the model; with it, the card gets their ranges of sizes, atom types and labels.
The score on RDKit's molecules is always computed again. The weights do not change.
"""

from __future__ import annotations

import argparse
from typing import Any

from _ship import ZOO, finish

from tg_lpe import zoo
from tg_lpe.datasets.molecules import AtomVocabulary, load_molecules


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--unit", help="what the predictions are and in which unit")
    parser.add_argument("--cache", help="where processed molecules are kept")
    args = parser.parse_args()
    card = zoo.card(args.name)
    data = card["data"]
    if args.folder is not None:
        data["ranges"] = ranges(data, args.folder, args.cache)
    if args.unit is not None:
        data["target"]["unit"] = args.unit
    lines = (ZOO / args.name / "README.md").read_text(encoding="utf-8").splitlines()
    made = next(line for line in lines if line.startswith("- made by "))
    finish(card, made.removeprefix("- made by "))


def ranges(data: dict[str, Any], folder: str, cache: str | None) -> dict[str, Any]:
    """Measure sizes, atom types and labels of the training molecules, read as the card says."""
    published = data["source"] in ("zinc", "qm9-solubility", "zinc12k")
    types = data["atom_types"]
    splits = load_molecules(
        folder,
        name=data["source"] if published else None,
        targets=None if published else data["target"]["columns"],
        features="types" if types else "ogb",
        vocabulary=AtomVocabulary(tuple(types)) if types else None,
        cache_dir=cache,
    )
    if len(splits.train) != data["num_train"]:
        raise SystemExit(f"{folder} has {len(splits.train):,} training molecules, the card says {data['num_train']:,}")
    return splits.ranges().to_dict()


if __name__ == "__main__":
    main()
