"""Checks to run on one's own encoders, and the graphs and files to run them on."""

from tg_lpe.testing.equivariance import assert_edge_permutation_equivariant, assert_permutation_equivariant
from tg_lpe.testing.files import FileInput, random_file
from tg_lpe.testing.graphs import DEFECTS, GraphInput, malformed_graph, random_graph

__all__ = [
    "DEFECTS",
    "FileInput",
    "GraphInput",
    "assert_edge_permutation_equivariant",
    "assert_permutation_equivariant",
    "malformed_graph",
    "random_file",
    "random_graph",
]
