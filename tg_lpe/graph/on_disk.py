"""Keep the edges of a graph on disk, for graphs larger than memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tg_lpe.checkpoints.files import replacing

BLOCK_ENTRIES = 2**24
"""Approximate number of entries of the adjacency matrix in memory; all entries of a node are read together."""

_PTR, _NEIGHBOURS = "ptr.npy", "neighbours.int32"


class RowBlock(NamedTuple):
    """Hold rows ``start..stop-1`` of the adjacency matrix as CSR."""

    start: int
    stop: int
    crow: Tensor
    """int32 ``[stop - start + 1]``, from zero."""
    col: Tensor
    """int32 ``[num_entries]``, read from disk when it is used."""


class GraphOnDisk:
    """Read an undirected, unweighted graph from two memory-mapped files that hold its adjacency matrix as CSR.

    ``ptr.npy`` is int64 ``[num_nodes + 1]``. ``neighbours.int32`` lists the neighbours of each node. An edge takes
    eight bytes in all.

    Args:
        folder: a folder that :meth:`build` wrote.

    Raises:
        ValueError: if a file is missing, damaged or incomplete.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        ptr, neighbours = self.folder / _PTR, self.folder / _NEIGHBOURS
        if not ptr.is_file() or not neighbours.is_file():
            raise ValueError(
                f"{folder} is no graph on disk: it needs {_PTR} and {_NEIGHBOURS}; GraphOnDisk.build writes them"
            )
        try:
            self.ptr = torch.from_numpy(np.load(ptr, allow_pickle=False))
        except (ValueError, EOFError, MemoryError) as error:
            raise ValueError(f"{ptr} is damaged: {error}") from error
        form = self.ptr.dtype, self.ptr.dim()
        if form != (torch.int64, 1) or not len(self.ptr) or bool((self.ptr.diff() < 0).any()):
            got = f"{self.ptr.dtype} {list(self.ptr.shape)}"
            raise ValueError(f"{ptr} must be int64 [num_nodes + 1] and ascend, got {got}")
        self.num_nodes, entries = len(self.ptr) - 1, int(self.ptr[-1])
        self.num_edges = entries // 2
        if (size := neighbours.stat().st_size) != 4 * entries:
            raise ValueError(f"{neighbours} must have {4 * entries} bytes, as {_PTR} says, got {size}")
        # Torch takes no read-only array; mode "c" is writable in memory and leaves the file unchanged.
        self._neighbours = np.memmap(neighbours, np.int32, "c") if entries else np.empty(0, np.int32)

    @classmethod
    def build(
        cls, edges: str | Path | np.ndarray, num_nodes: int, folder: str | Path, block_entries: int = BLOCK_ENTRIES
    ) -> GraphOnDisk:
        """Sort a list of edges and write it to a folder, a block of nodes at a time.

        As in :class:`~tg_lpe.Graph`, an edge may be listed in one direction, in both, or several times, and
        self-loops are dropped.

        Args:
            edges: an ``.npy`` file, which is memory-mapped, or an array: integer ``[2, num_listed]``.
            num_nodes: number of nodes, at most 2^31.
            folder: where to write; created if absent.
            block_entries: approximate number of entries to sort at once; each takes some 50 bytes of memory.

        Raises:
            ValueError: if the list has another shape or dtype, or a node is out of range.
        """
        listed = edges if isinstance(edges, np.ndarray) else np.load(edges, mmap_mode="r", allow_pickle=False)
        if listed.ndim != 2 or listed.shape[0] != 2 or listed.dtype.kind not in "iu":
            raise ValueError(
                f"edges must be integers of shape [2, num_listed], got {listed.dtype} {list(listed.shape)}"
            )
        if not 0 <= num_nodes <= 2**31:
            raise ValueError(f"num_nodes must lie in 0..2^31, got {num_nodes}")
        counts = np.zeros(num_nodes, np.int64)
        for ends in _pieces(listed, block_entries):
            if ends.size and (ends.min() < 0 or ends.max() >= num_nodes):
                raise ValueError(f"edges must lie in 0..{num_nodes - 1}, got {ends.min()}..{ends.max()}")
            for end in ends:
                counts += np.bincount(end, minlength=num_nodes)
        cuts = _cuts(np.concatenate([[0], counts.cumsum()]), block_entries)
        with replacing(Path(folder) / _NEIGHBOURS) as temporary, temporary.open("wb") as file:
            for start, stop in itertools.pairwise(cuts):
                keys = [np.empty(0, np.int64)]  # of distinct entries: the row, counted from start, and the column
                for ends in _pieces(listed, block_entries):
                    for row, col in (ends, ends[::-1]):
                        in_block = (row >= start) & (row < stop) & (row != col)
                        keys.append((row[in_block].astype(np.int64) - start) << 32 | col[in_block].astype(np.int64))
                key = np.unique(np.concatenate(keys))
                counts[start:stop] = np.bincount(key >> 32, minlength=stop - start)
                file.write((key & (2**32 - 1)).astype(np.int32).tobytes())
            (Path(folder) / _PTR).unlink(missing_ok=True)  # only now: an interruption keeps the graph of before
        with replacing(Path(folder) / _PTR) as temporary, temporary.open("wb") as file:
            np.save(file, np.concatenate([[0], counts.cumsum()]), allow_pickle=False)
        return cls(folder)

    def blocks(self, block_entries: int = BLOCK_ENTRIES) -> Iterator[RowBlock]:
        """Iterate over blocks of rows of the adjacency matrix."""
        cuts = _cuts(self.ptr.numpy(), block_entries)
        for start, stop in itertools.pairwise(cuts):
            ptr = self.ptr[start : stop + 1]
            col = torch.from_numpy(self._neighbours[int(ptr[0]) : int(ptr[-1])])
            yield RowBlock(start, stop, (ptr - ptr[0]).int(), col)

    def __repr__(self) -> str:
        return f"GraphOnDisk({str(self.folder)!r}, num_nodes={self.num_nodes}, num_edges={self.num_edges})"


def _cuts(ptr: np.ndarray, block_entries: int) -> list[int]:
    """Return the first rows of consecutive blocks of about ``block_entries`` entries, and the number of rows."""
    rows = len(ptr) - 1
    wanted = np.searchsorted(ptr, np.arange(block_entries, int(ptr[-1]), block_entries))
    return [0, *np.unique(wanted[(wanted > 0) & (wanted < rows)]).tolist(), rows] if rows else [0]


def _pieces(listed: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, listed.shape[1], size):
        yield np.asarray(listed[:, start : start + size])
