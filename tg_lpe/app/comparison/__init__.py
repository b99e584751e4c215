"""Compare encodings on your own data: one model, one budget, several seeds, a table and a page."""

from tg_lpe.app.comparison.candidates import ENCODINGS, Candidate, candidates_of
from tg_lpe.app.comparison.grid import compare
from tg_lpe.app.comparison.table import Comparison

__all__ = ["ENCODINGS", "Candidate", "Comparison", "candidates_of", "compare"]
