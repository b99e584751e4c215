"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Parser(argparse.ArgumentParser):
    """Parse options, with the script's docstring as help; quick runs do not overwrite full results."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        found = super().parse_args(args, namespace)
        default = self.get_default("json")
        if found.quick and default is not None and Path(found.json) == Path(default):
            found.json = Path(tempfile.mkdtemp(prefix="quick-"), Path(default).name)
            print(f"quick figures go to {found.json}", file=sys.stderr)
        return found
