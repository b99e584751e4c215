"""A comparison of runs from their folders alone: a table for the terminal, a page to look at, figures to keep.

Runs on different data are never ranked against each other; runs that differ only in the seed share a row.
"""

from tg_lpe.report.figures import draw_curve
from tg_lpe.report.figures_json import benchmark_json
from tg_lpe.report.groups import Group, Spread, Variant, compare
from tg_lpe.report.page import write_report
from tg_lpe.report.runs import Run, read_run
from tg_lpe.report.table import comparison_table

__all__ = [
    "Group",
    "Run",
    "Spread",
    "Variant",
    "benchmark_json",
    "compare",
    "comparison_table",
    "draw_curve",
    "read_run",
    "write_report",
]
