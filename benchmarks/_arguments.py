"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import atexit
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _results import RESULTS

OPTIONS: dict[str, dict[str, Any]] = {
    "--seeds": {"nargs": "+", "type": int, "default": [0], "help": "(default: %(default)s)"},
    "--device": {"default": "cpu", "help": "where to train (default: %(default)s)"},
    "--collect": {"action": "store_true", "help": "run nothing, collect what is complete"},
    "--add": {"action": "store_true", "help": "keep the rows of the file that are not collected now"},
}
"""Options that several scripts have."""


class Parser(argparse.ArgumentParser):
    """Parse options, with the script's docstring as help.

    Quick runs do not overwrite full results, and have run folders in a temporary folder.

    Args:
        description: the docstring.
        quick: what --quick does.
        json: name of the results file, in which braces stand for other options; ``None`` if the script makes it up.
    """

    def __init__(self, description: str | None, quick: str, json: str | None = None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.file = json
        self.add_argument("--quick", action="store_true", help=quick)
        default = "" if json is None else f" (default: benchmarks/results/{json})"
        self.add_argument("--json", type=Path, metavar="FILE", help=f"where the figures go{default}")

    def add_options(self, *names: str) -> None:
        """Add some of the common options, and --out for run folders."""
        for name in names:
            self.add_argument(name, **OPTIONS[name])
        out = Path("runs", Path(self.prog).stem)
        self.add_argument("--out", type=Path, metavar="DIR", default=out, help="of run folders (default: %(default)s)")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        found = super().parse_args(args, namespace)
        name = (self.file or "results.json").format(**vars(found))
        if found.quick and found.json is None:
            found.json = Path(tempfile.mkdtemp(prefix="quick-"), name)
            print(f"quick figures go to {found.json}", file=sys.stderr)
        elif found.json is None and self.file is not None:
            found.json = RESULTS / name
        if found.quick and "out" in found:
            folder = tempfile.TemporaryDirectory(prefix="quick-")
            atexit.register(folder.cleanup)
            found.out = Path(folder.name)
        return found
