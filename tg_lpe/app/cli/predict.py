"""``tg-lpe predict``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from jsonargparse import Namespace

from tg_lpe.app.cli.options import Chosen, add_import, add_reading, parse_rest
from tg_lpe.app.cli.parser import Parser
from tg_lpe.app.cli.runs import add_process, set_threads
from tg_lpe.app.prediction import load, load_many, predict_file
from tg_lpe.app.prediction.predictor import BATCH_SIZE
from tg_lpe.app.training.units import units_text
from tg_lpe.arguments import checked_device


def parse(parser: Parser, words: Sequence[str]) -> Namespace:
    """Declare the options of the command and parse them."""
    parser.usage = "tg-lpe predict MODEL [MODEL ...] IN OUT [options]"
    parser.epilog = (
        "OUT has a row for each molecule of IN, in the same order: line (of IN), smiles, the other columns of IN, the "
        "predictions (empty if the molecule is refused), and outside (how the molecule differs from the training set). "
        "With several models, OUT has the mean of their predictions and NAME_spread, the standard deviation. "
        "Examples: tg-lpe predict transformer-zinc molecules.smi predictions.csv; "
        "tg-lpe predict runs/a runs/b runs/c molecules.csv predictions.csv"
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="+",
        help="name of a shipped model, run folder, or folder of a checkpoint; the predictions of several are averaged",
    )
    parser.add_argument(
        "input",
        metavar="IN",
        help="file of molecules: .smi, .csv, .tsv, .txt, .sdf, .mol (also .gz, .bz2, .xz, .zip), .parquet",
    )
    parser.add_argument("output", metavar="OUT", help=".csv file; - for standard output")
    add_import(parser)
    add_reading(parser)
    parser.add_argument("--refused", metavar="FILE", help="csv file that lists the refused molecules with the reasons")
    parser.add_argument(
        "--coverage",
        type=float,
        metavar="SHARE",
        help="add NAME_low and NAME_high, an interval that should contain this share of labels, such as 0.9. It "
        "follows from the errors on the validation set. MODEL must be run folders of regressions, several of one split",
    )
    parser.add_argument("--batch_size", type=int, default=BATCH_SIZE, help="molecules in a batch")
    text = "processes that read SMILES (default: one for every four cores; the other cores compute)"
    parser.add_argument("--workers", type=int, metavar="N", help=text)
    add_process(parser, has_device=True)
    return parse_rest(parser, Chosen(parser, words))


def run(args: Namespace) -> None:
    """Predict for the molecules of a file."""
    if not args.output.endswith(".csv") and args.output != "-":
        raise ValueError(f"OUT must end in .csv or be -, got {args.output}")
    device, cores = checked_device("--device", args.device), torch.get_num_threads()
    # Reading a molecule takes a third of the time of predicting it, so one worker for each four cores suffices.
    workers = args.workers if args.workers is not None else 0 if cores == 1 else max(1, cores // 4)
    set_threads(args.threads if args.threads is not None else max(1, cores - workers))
    predictor = load(args.model[0], device) if len(args.model) == 1 else load_many(args.model, device)
    done = predict_file(
        predictor,
        args.input,
        args.output,
        smiles_column=args.smiles_column,
        refused=args.refused,
        batch_size=args.batch_size,
        num_workers=workers,
        progress=not args.quiet,
        coverage=args.coverage,
    )
    out = sys.stderr if args.output == "-" else sys.stdout
    hint = "; --refused FILE lists them with the reasons" if done.num_refused and args.refused is None else ""
    print(f"{done.num_molecules:,} molecules, {done.num_refused:,} of them refused: {args.output}{hint}", file=out)
    if predictor.spread_columns:
        names = ", ".join(predictor.spread_columns)
        print(f"  means of {len(args.model)} models; their standard deviation, not an error bar: {names}", file=out)
    if args.coverage is not None:
        intervals = predictor.intervals(args.coverage)
        columns = (predictor.columns, intervals.num_labels, intervals.reached, intervals.width.tolist())
        for name, number, share, width in zip(*columns, strict=True):
            held = "no test label" if share != share else f"{100 * share:.1f} % of the test labels"
            if width == float("inf"):
                held += "; the intervals are infinite, because there are too few validation labels for this share"
            print(
                f"  {name}_low to {name}_high: {100 * args.coverage:g} % intervals from {number:,} validation labels; "
                f"they contain {held}",
                file=out,
            )
    if predictor.units:
        print(f"  {units_text(predictor.columns, predictor.units)}", file=out)
