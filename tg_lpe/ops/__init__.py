"""Numerical operations on plain tensors: nothing here knows of graphs as objects, modules or encoders.

One module per operation holds its contract, its reference in torch and the choice of a backend:

- :mod:`~tg_lpe.ops.segment`: sums over groups of rows;
- :mod:`~tg_lpe.ops.edges`: distinct undirected edges of a list, adjacency rows, products with a Laplacian;
- :mod:`~tg_lpe.ops.polynomials`: polynomials of symmetric matrices, read on the diagonal and at the edges;
- :mod:`~tg_lpe.ops.estimates`: the same estimated from random signs, for graphs of any size;
- :mod:`~tg_lpe.ops.balls`: the same exactly, in graphs of any size where few edges lie around each node;
- :mod:`~tg_lpe.ops.triangles`: sums over common neighbours, the second order at the edges of any graph;
- :mod:`~tg_lpe.ops.eigenvectors`: eigenvectors of many small symmetric matrices;
- :mod:`~tg_lpe.ops.layers`: all layers of a linear transformer with a fixed incidence matrix;
- :mod:`~tg_lpe.ops.random`: random numbers by their place, the same in every batch.

:mod:`~tg_lpe.ops.blas` keeps threads of numpy and scipy off small matrices.

:mod:`tg_lpe.ops.cpu` (C++) has a module of the same name for each operation that it implements, with functions of the
same names, arguments and shapes. What ``torch.compile`` may meet is registered with ``torch.library`` as
``torch.ops.tg_lpe.NAME``, see :mod:`tg_lpe.ops.operator`.
"""
