"""Numerical operations on plain tensors, independent of graph objects, modules and encoders.

The module of an operation contains its documentation, its reference in torch, the call of its C++, and the choice:

- :mod:`~tg_lpe.ops.segment`: sums over groups of rows;
- :mod:`~tg_lpe.ops.edges`: distinct undirected edges of a list, adjacency rows, products with a Laplacian;
- :mod:`~tg_lpe.ops.polynomials`: polynomials of symmetric matrices, read on the diagonal and at the edges;
- :mod:`~tg_lpe.ops.estimates`: these polynomials estimated from random signs, for graphs of any size;
- :mod:`~tg_lpe.ops.balls`: these polynomials exactly, in graphs of any size with few edges around each node;
- :mod:`~tg_lpe.ops.walks`: powers of a symmetric matrix in large graphs with hubs, in the compiled part alone;
- :mod:`~tg_lpe.ops.layers`: all layers of a linear transformer with a fixed incidence matrix;
- :mod:`~tg_lpe.ops.random`: random numbers that depend only on their row and column, the same in every batch.

:mod:`~tg_lpe.ops.blas` runs numpy and scipy on one thread for small matrices.

:mod:`tg_lpe.ops.cpu` loads the C++; the sources in ``csrc`` have the names of the modules here. Operations that
``torch.compile`` may trace are registered with ``torch.library`` as ``torch.ops.tg_lpe.NAME``, see
:mod:`tg_lpe.ops.operator`.
"""
