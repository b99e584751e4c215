"""Hypothesis strategies for graphs and files; they need hypothesis (``pip install hypothesis``).

Every choice of :func:`~tg_lpe.testing.random_graph` and its companions is drawn by hypothesis, which so finds a small
example of what fails::

    @given(strategies.graphs(max_nodes=20))
    def test_my_encoder(graph):
        numbers = {"num_nodes": graph.num_nodes, "num_graphs": graph.num_graphs}
        found = encoder(None, graph.edge_index, batch=graph.batch, **numbers)
        assert found.node.isfinite().all()
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tg_lpe.testing.files import FileInput, random_file
from tg_lpe.testing.graphs import GraphInput, malformed_graph, random_graph

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "tg_lpe.testing.strategies needs hypothesis: pip install hypothesis", name="hypothesis"
    ) from error

__all__ = ["files", "graphs", "malformed_graphs"]


def graphs(
    max_nodes: int = 40, max_graphs: int = 4, dtype: torch.dtype = torch.float32
) -> st.SearchStrategy[GraphInput]:
    """Graphs and batches that every function must take, see :func:`~tg_lpe.testing.random_graph`."""
    return st.builds(random_graph, _randoms(), st.just(max_nodes), st.just(max_graphs), st.just(dtype))


def malformed_graphs(max_nodes: int = 40, dtype: torch.dtype = torch.float32) -> st.SearchStrategy[GraphInput]:
    """Graphs and small batches with one defect, see :func:`~tg_lpe.testing.malformed_graph`."""
    return st.builds(malformed_graph, _randoms(), st.just(max_nodes), st.just(dtype))


def files(valid: Sequence[bytes] = ()) -> st.SearchStrategy[FileInput]:
    """Files that are probably malformed, see :func:`~tg_lpe.testing.random_file`."""
    return st.builds(random_file, _randoms(), st.just(valid))


def _randoms() -> st.SearchStrategy[object]:
    return st.randoms(use_true_random=False)
