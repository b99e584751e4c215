"""``tg-lpe report``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace

from tg_lpe.app.cli.parser import Parser


def parse(parser: Parser, words: Sequence[str]) -> Namespace:
    """Declare the options of the command and parse them."""
    parser.usage = "tg-lpe report RUN [RUN ...] [options]"
    parser.epilog = "example: tg-lpe report runs/*"
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, finished or not; others are left out")
    parser.add_argument("--out", default="report.html", help="page to write")
    return parser.parse_args(words)


def run(args: Namespace) -> None:
    """Compare runs: print a table, and write a page with figures."""
    from tg_lpe.app.report import comparison_table, read_run, write_report
    from tg_lpe.app.training.run_folder import RunFolder
    from tg_lpe.checkpoints.files import check_writable

    if Path(args.out).suffix not in (".html", ".htm"):
        raise ValueError(f"--out is a page and must end in .html, got {args.out}")
    check_writable(Path(args.out).resolve())
    paths = list({Path(path).resolve(): path for path in args.runs}.values())
    others = [path for path in paths if Path(path).exists() and not RunFolder(path).config.is_file()]
    if len(others) < len(paths):  # otherwise read_run refuses the first
        paths = [path for path in paths if path not in others]
        for path in others:
            try:
                read_run(path)
            except ValueError as error:
                print(f"left out: {error}", file=sys.stderr)
    print(comparison_table([read_run(path) for path in paths]))
    write_report(paths, Path(args.out).resolve())
    print(f"report: {args.out}")
