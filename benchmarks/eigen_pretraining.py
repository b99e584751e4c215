"""Pretrain on Laplacian eigenvectors with learned, random and equivariant probes, and compare the losses.

    python benchmarks/eigen_pretraining.py --data ZINC_DIR [--rows ROW ...] [--epochs 30]

Every run is one `tg-lpe pretrain zinc --preset paper`: the first six non-trivial eigenvectors of the normalised
Laplacian, the sign-invariant loss, batches of 400. The loss of an eigenvector is 0 if the encoding's column is parallel
to it and 2 if it is orthogonal. The second loss is measured after the nodes of every test graph are renumbered at
random. Complete runs under --out are not repeated, and a stopped run is resumed.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from _arguments import Parser
from _readme import markdown
from _results import write_results
from _runs import machine_of, run, slug

from tg_lpe.app.datasets import relabel_nodes
from tg_lpe.app.molecules import load_molecules
from tg_lpe.app.training import EigenvectorPretraining, PretrainConfig
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.state import read_metrics
from tg_lpe.checkpoints.files import read_json
from tg_lpe.encoders import load_encoder

FIXED = ["--encoder.update_incidence", "false"]
ROWS: dict[str, list[str]] = {
    "learned probes, B updated": ["--encoder.probes", "learned"],
    "learned probes": ["--encoder.probes", "learned", *FIXED],
    "random probes": ["--encoder.probes", "random", *FIXED],
    "atom types as probes, B updated": ["--encoder.probes", "features"],
    "atom types as probes": ["--encoder.probes", "features", *FIXED],
    "GramTransformer": ["--encoder", "GramTransformer", "--encoder.probes", "identity"],
}
"""Options of each row; the first is the pretraining in the paper, and the last three are equivariant."""


def main() -> None:
    parser = Parser(__doc__, "one epoch on the molecules that ship with RDKit", "eigen_pretraining.json")
    parser.add_argument("--data", metavar="DIR", help="folder of ZINC (default: the molecules that ship with RDKit)")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--epochs", type=int, default=30, help="(default: %(default)s)")
    parser.add_options("--threads")
    args = parser.parse_args()
    if args.quick:
        args.data, args.epochs = None, 1
    source = "zinc" if args.data else "nci"
    for row in args.rows:
        folder = args.out / f"{source}-{slug(row)}-{args.epochs}"
        options = ["--preset", "paper", *ROWS[row], "--epochs", str(args.epochs)]
        run("pretrain", source, folder, options, args.data, args.threads)
    folders = [(row, RunFolder(path)) for row in ROWS for path in sorted(args.out.glob(f"{source}-{slug(row)}-[0-9]*"))]
    complete = [(row, folder) for row, folder in folders if folder.result.exists()]
    if not complete:
        sys.exit(f"no run under {args.out} is complete")
    entries = [entry_of(row, folder, source, args.data) for row, folder in complete]
    print(markdown("eigen_pretraining", {"results": entries}))
    write_results(args.json, entries, machine_of(complete[0][1]), set=source)


def entry_of(row: str, folder: RunFolder, source: str, data: str | None) -> dict[str, Any]:
    """Return the figures of a complete run."""
    result = read_json(folder.result)
    names = ("epochs", "test_loss", "test_loss_by_eigenvector", "max_loss", "num_parameters")
    return {
        "row": row,
        "options": ROWS[row],
        **{name: result[name] for name in names},
        "test_loss_relabelled": relabelled_loss(folder, source, data),
        "seconds": sum(line["seconds"] for line in read_metrics(folder.metrics)),
    }


def relabelled_loss(folder: RunFolder, source: str, data: str | None) -> float:
    """Return the test loss of the run's encoder after the nodes of every test graph are renumbered at random."""
    config = PretrainConfig(**read_json(folder.config)["loop"])
    splits = load_molecules(data or source, name=source, targets=(), progress=False)
    encoder = load_encoder(folder.path / "encoder").requires_grad_(True)
    training = EigenvectorPretraining(config, encoder, splits, progress=False)
    relabelled = relabel_nodes(splits.test, torch.Generator().manual_seed(0))
    return float(training.mean_losses(training.attach_targets(relabelled))[0].sum())


if __name__ == "__main__":
    main()
