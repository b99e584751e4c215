"""Train on a csv file of molecules, then predict.

    python examples/train_on_csv.py [molecules.csv --target COLUMN]

Without a file, the script writes one: alcohols and alkanes with the mass of their carbon and oxygen. The same in a
shell: tg-lpe train molecules.csv --target COLUMN --out runs/mine; tg-lpe predict runs/mine new.csv predictions.csv
"""

import argparse
import tempfile
from pathlib import Path

from tg_lpe import zoo
from tg_lpe.app.cli import main as tg_lpe


def mass(chain: str) -> float:
    return 12.011 * chain.count("C") + 15.999 * chain.count("O")


def write_molecules(path: Path) -> Path:
    chains = ["C" * (1 + number % 8) + "O" * (number % 2) for number in range(64)]
    path.write_text("smiles,mass\n" + "".join(f"{chain},{mass(chain):.2f}\n" for chain in chains))
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("csv", nargs="?", type=Path)
    parser.add_argument("--target", default="mass")
    parser.add_argument("--epochs", default="20")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = args.csv or write_molecules(Path(folder) / "molecules.csv")
        run = f"{folder}/run"
        size = ("--batch_size", "8", "--model.hidden_channels", "32", "--model.num_layers", "2", "--model.heads", "4")
        failed = tg_lpe(["train", str(source), "--target", args.target, "--out", run, "--epochs", args.epochs, *size])
        if failed:
            raise SystemExit(failed)
        predictions = zoo.load(run).predict(["CCO", "CCCCC"])
        print(predictions.columns, predictions.values.tolist())
