"""Measure molecules per second and memory of `tg-lpe predict` for a file, and where the time goes.

    python benchmarks/prediction.py [--quick] [--file FILE] [--model NAME] [--json FILE]

`tg-lpe predict` runs in a separate process, so that its peak memory can be measured; its time includes the start. Other
rows measure reading SMILES and the model with one thread, on the same molecules in this process. Without --file, these
are the 5,000 molecules that ship with RDKit.
"""

from __future__ import annotations

import csv
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _arguments import Parser
from _measure import timed
from _results import show, write_results
from rdkit import RDConfig

from tg_lpe import zoo


def median_seconds(run: Callable[[], Any], rounds: int) -> float:
    """Return the median seconds of several runs."""
    return statistics.median(timed(run)[1] for _ in range(rounds))


def measure(model: str, file: Path, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of the result."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.csv"
        command = [sys.executable, "-m", "tg_lpe.app.cli", "predict", model, str(file), str(out), "--quiet"]
        whole = median_seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), rounds)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        with out.open(newline="", encoding="utf-8") as table:
            predicted = list(csv.reader(table))[1:]
    smiles = [row[1] for row in predicted]
    predictor = zoo.load(model)
    batches = [batch.graphs for batch in predictor.reader.read(smiles, batch_size=256, num_workers=0)]
    reading = median_seconds(lambda: list(predictor.reader.read(smiles, batch_size=256, num_workers=0)), rounds)
    torch.set_num_threads(1)
    computing = median_seconds(lambda: [predictor.predict(batch) for batch in batches], rounds)
    rows = {"tg-lpe predict": whole, "reading, one process": reading, "model, one thread": computing}
    return [
        {
            "what": what,
            "model": model,
            "molecules": len(smiles),
            "refused": sum(not row[2] for row in predicted),
            "seconds": seconds,
            "molecules_per_second": len(smiles) / seconds,
            "peak_mib": peak if what == "tg-lpe predict" else None,
        }
        for what, seconds in rows.items()
    ]


def main() -> None:
    parser = Parser(__doc__, "300 molecules, once", "prediction.json")
    parser.add_argument("--file", type=Path, help="a .smi file, such as QM9's test.smi")
    parser.add_argument("--model", default="transformer-qm9")
    args = parser.parse_args()
    file = args.file or Path(RDConfig.RDDataDir, "NCI", "first_5K.smi")
    with tempfile.TemporaryDirectory() as folder:
        if args.quick:
            short = Path(folder) / "short.smi"
            short.write_text("\n".join(file.read_text(encoding="utf-8").splitlines()[:300]), encoding="utf-8")
            file = short
        rows = measure(args.model, file, 1 if args.quick else 3)
    for row in rows:
        show(row)
    write_results(args.json, rows)


if __name__ == "__main__":
    main()
