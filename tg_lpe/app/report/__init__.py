"""Compare runs from their folders: as a table for the terminal, a page, and figures.

Runs on different data get different tables; runs that differ only in the seed share a row.
"""

from tg_lpe.app.report.page import write_report
from tg_lpe.app.report.runs import Run, read_run
from tg_lpe.app.report.table import Row, Spread, Table, compare, comparison_table

__all__ = ["Row", "Run", "Spread", "Table", "compare", "comparison_table", "read_run", "write_report"]
