"""``tg-lpe report``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace

from tg_lpe.cli.parser import Parser


def parse(parser: Parser, words: Sequence[str]) -> Namespace:
    """Declare the options of the command and parse them."""
    parser.usage = "tg-lpe report RUN [RUN ...] [options]"
    parser.epilog = "example: tg-lpe report runs/*"
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, finished or not; others are left out")
    parser.add_argument("--out", default="report.html", help="page to write")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    return parser.parse_args(words)


def run(args: Namespace) -> None:
    """Compare runs: a table here, and a page with figures."""
    from tg_lpe.checkpoints.files import check_writable, write_json
    from tg_lpe.report import benchmark_json, comparison_table, read_run, write_report
    from tg_lpe.training.run_folder import RunFolder

    for path in (args.out, args.json):
        if path is not None:
            check_writable(Path(path))
    if args.json is not None and Path(args.json).resolve() == Path(args.out).resolve():
        raise ValueError(f"--out and --json both name {args.json}: give them different files")
    paths = list({Path(path).resolve(): path for path in args.runs}.values())
    others = [path for path in paths if Path(path).exists() and not RunFolder(path).config.is_file()]
    if len(others) < len(paths):  # else the first is refused
        paths = [path for path in paths if path not in others]
        for path in others:
            try:
                read_run(path)
            except ValueError as error:
                print(f"left out: {error}", file=sys.stderr)
    runs = [read_run(path) for path in paths]
    print(comparison_table(runs))
    if args.json is not None:
        write_json(Path(args.json), benchmark_json(runs))
    print(f"report: {write_report(paths, args.out)}")
