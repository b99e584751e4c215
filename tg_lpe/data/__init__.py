"""PyTorch Geometric's in-memory storage, read and written in bulk, and what a dataset's graphs look like."""

from tg_lpe.data.spec import DataSpec

__all__ = ["DataSpec"]
