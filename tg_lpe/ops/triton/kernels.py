"""Triton kernels on small graphs, one program per graph; the other modules of :mod:`tg_lpe.ops.triton` launch them.

A graph's matrices stay on chip. Products are in full single precision (``ieee``): tf32, which tensor cores would take,
has ten bits of mantissa, of which a dozen layers of products and normalisations leave nothing.
"""

import triton
import triton.language as tl

WIDTH = tl.constexpr(16)  # columns of Phi, the fewest that tl.dot takes; fewer are filled up with zeros


@triton.jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _bounds(ptr, edge_ptr, graph):
    """First node and number of nodes of one graph, its first edge and that of the next graph."""
    first = tl.load(ptr + graph)
    return first, tl.load(ptr + graph + 1) - first, tl.load(edge_ptr + graph), tl.load(edge_ptr + graph + 1)


@triton.jit
def _operator(tail, head, scale, conductance, diagonal, begin, end, first, n, NODES: tl.constexpr):
    """``diag(s) L diag(s)`` of one graph, ``[NODES, NODES]``, whose diagonal is given."""
    EDGES: tl.constexpr = 16  # at a time
    row = tl.arange(0, NODES)
    matrix = tl.full((NODES, NODES), 0.0, tl.float32)
    for block in range(begin, end, EDGES):
        edge = block + tl.arange(0, EDGES)
        there = edge < end
        i = tl.load(tail + edge, mask=there, other=-1)
        j = tl.load(head + edge, mask=there, other=-1)
        entry = tl.load(scale + i, mask=there, other=0.0) * tl.load(scale + j, mask=there, other=0.0)
        if conductance is not None:
            entry = entry * tl.load(conductance + edge, mask=there, other=0.0)
        # Without an edge there, an entry of zero.
        ends = (row[:, None] == (i - first)[None, :]) | (row[:, None] == (j - first)[None, :])
        matrix += _dot(tl.where(ends, entry[None, :], 0.0), tl.trans(tl.where(ends, 1.0, 0.0)))
    d = tl.load(diagonal + first + row, mask=row < n, other=0.0)
    return tl.where(row[:, None] == row[None, :], d[:, None], -matrix)


@triton.jit
def _matrix(pointer, layer, k, TRANSPOSED: tl.constexpr):
    """One layer's weights ``[k, k]``."""
    a, b = tl.arange(0, WIDTH)[:, None], tl.arange(0, WIDTH)[None, :]
    at = b * k + a if TRANSPOSED else a * k + b
    return tl.load(pointer + layer * k * k + at, mask=(a < k) & (b < k), other=0.0)


@triton.jit
def _similarity(pointer, layer, k, factor):
    """The diagonal of one layer's weights of ``S``, ``[k]``, times the graph's factor from the second layer on."""
    a = tl.arange(0, WIDTH)
    return tl.load(pointer + layer * k * k + a * (k + 1), mask=a < k, other=0.0) * tl.where(layer > 0, factor, 1.0)


@triton.jit
def _inverse_norms(y, floor):
    """One over the norms of the columns; zero for those that are left as they are."""
    norm = tl.sqrt_rn(tl.sum(y * y, 0))
    longer = norm > floor
    return tl.where(longer, tl.div_rn(1.0, tl.where(longer, norm, 1.0)), 0.0)


@triton.jit
def layers(
    phi,
    tail,
    head,
    scale,
    conductance,
    diagonal,
    ptr,
    edge_ptr,
    residual,
    similarity,
    left,
    right,
    later,
    readout,
    out,
    k,
    num_layers,
    out_channels,
    floor,
    DIAGONAL: tl.constexpr,
    NORMALIZED: tl.constexpr,
    NODES: tl.constexpr,
):
    """All layers of one graph and their read-out."""
    graph = tl.program_id(0)
    first, n, begin, end = _bounds(ptr, edge_ptr, graph)
    s = _operator(tail, head, scale, conductance, diagonal, begin, end, first, n, NODES)
    factor = tl.load(later + graph)
    row, column = tl.arange(0, NODES), tl.arange(0, WIDTH)
    node = first + row
    z = tl.load(phi + node[:, None] * k + column[None, :], mask=(row < n)[:, None] & (column < k)[None, :], other=0.0)
    for layer in range(num_layers):
        mix = _matrix(left, layer, k, True)
        gram = _dot(tl.trans(z), z)
        similar = _dot(s, z)
        if DIAGONAL:
            mix = mix * gram
            similar = similar * _similarity(similarity, layer, k, factor)[None, :]
        else:
            mix = _dot(_matrix(right, layer, k, True), _dot(gram, mix))
            similar = _dot(similar, _matrix(similarity, layer, k, True)) * tl.where(layer > 0, factor, 1.0)
        z = _dot(z, mix + _matrix(residual, layer, k, True)) + similar
        if NORMALIZED:
            inverse = _inverse_norms(z, floor)
            z = z * tl.where(inverse > 0.0, inverse, 1.0)[None, :]
    for block in range(0, out_channels, WIDTH):
        channel = block + column
        there = (channel < out_channels)[None, :]
        y = z
        if readout is not None:
            weight = readout + channel[None, :] * k + column[:, None]
            y = _dot(z, tl.load(weight, mask=there & (column < k)[:, None], other=0.0))
        tl.store(out + node[:, None] * out_channels + channel[None, :], y, mask=(row < n)[:, None] & there)


@triton.jit
def layers_backward(
    phi,
    tail,
    head,
    scale,
    conductance,
    diagonal,
    ptr,
    edge_ptr,
    residual,
    similarity,
    left,
    later,
    grad_out,
    grad_phi,
    by_residual,
    by_similarity,
    by_left,
    chain,
    norms,
    k,
    num_layers,
    floor,
    start,
    NODES: tl.constexpr,
):
    """The gradients of one graph; diagonal weights, normalised.

    With ``G = z^T z``, ``M = R + L * G``, ``y = z M^T + (S z) diag(s)`` and ``z' = y / |y|``, column by column, all
    ``z`` are computed anew and kept in ``chain``, ``[num_graphs, num_layers + 1, NODES, WIDTH]``; then back through
    them.
    """
    program = tl.program_id(0).to(tl.int64)
    graph = start + program
    first, n, begin, end = _bounds(ptr, edge_ptr, graph)
    s = _operator(tail, head, scale, conductance, diagonal, begin, end, first, n, NODES)
    factor = tl.load(later + graph)
    row, column = tl.arange(0, NODES), tl.arange(0, WIDTH)
    there = (row < n)[:, None] & (column < k)[None, :]
    at = (first + row)[:, None] * k + column[None, :]
    square = column[:, None] * k + column[None, :]
    inside = (column < k)[:, None] & (column < k)[None, :]
    tile = chain + program * (num_layers + 1) * NODES * WIDTH + row[:, None] * WIDTH + column[None, :]
    norm_row = norms + program * num_layers * WIDTH + column

    z = tl.load(phi + at, mask=there, other=0.0)
    tl.store(tile, z)
    for layer in range(num_layers):
        mix = _matrix(residual, layer, k, True) + _matrix(left, layer, k, True) * _dot(tl.trans(z), z)
        y = _dot(z, mix) + _dot(s, z) * _similarity(similarity, layer, k, factor)[None, :]
        inverse = _inverse_norms(y, floor)
        z = y * tl.where(inverse > 0.0, inverse, 1.0)[None, :]
        tl.store(norm_row + layer * WIDTH, inverse)
        tl.store(tile + (layer + 1) * NODES * WIDTH, z)
    tl.debug_barrier()  # what other threads of this program stored is read from here on

    g = tl.load(grad_out + at, mask=there, other=0.0)
    for step in range(num_layers):
        layer = num_layers - 1 - step
        after = z
        z = tl.load(tile + layer * NODES * WIDTH)
        inverse = tl.load(norm_row + layer * WIDTH)
        # By y: the part along a column of length one is taken away.
        along = tl.where(inverse > 0.0, tl.sum(g * after, 0), 0.0)
        g = (g - after * along[None, :]) * tl.where(inverse > 0.0, inverse, 1.0)[None, :]
        # By the weights.
        gram = _dot(tl.trans(z), z)
        by_mix = _dot(tl.trans(g), z)  # [b, a]: of y_b by z_a
        weight = _matrix(left, layer, k, False)
        mine = program * num_layers + layer
        tl.store(by_residual + mine * k * k + square, by_mix, mask=inside)
        tl.store(by_left + mine * k * k + square, by_mix * gram, mask=inside)
        similar = _dot(s, g)  # S is symmetric, so this serves both <g, S z> and S (g diag(s))
        own = tl.sum(similar * z, 0) * tl.where(layer > 0, factor, 1.0)
        tl.store(by_similarity + mine * k + column, own, mask=column < k)
        # By z.
        mix = _matrix(residual, layer, k, False) + weight * gram
        by_gram = by_mix * weight
        similar = similar * _similarity(similarity, layer, k, factor)[None, :]
        g = _dot(g, mix) + _dot(z, by_gram + tl.trans(by_gram)) + similar
    tl.store(grad_phi + at, g, mask=there)


@triton.jit
def _product(a, b, NODES: tl.constexpr):
    """Of two matrices ``[NODES, NODES]`` in memory; as one ``tl.dot``, their rows would fill the registers."""
    row, inner = tl.arange(0, NODES), tl.arange(0, WIDTH)
    result = tl.full((NODES, NODES), 0.0, tl.float32)
    for block in range(0, NODES, WIDTH):
        left = tl.load(a + row[:, None] * NODES + (block + inner)[None, :])
        result += _dot(left, tl.load(b + (block + inner)[:, None] * NODES + row[None, :]))
    return result


@triton.jit
def _fill(matrix, values, factor, stride, tail, head, first, begin, end, NODES: tl.constexpr):
    """Write edges' values into a symmetric matrix in memory; all else in it stays."""
    EDGES: tl.constexpr = 128
    for block in range(begin, end, EDGES):
        edge = block + tl.arange(0, EDGES)
        there = edge < end
        i = tl.load(tail + edge, mask=there, other=0) - first
        j = tl.load(head + edge, mask=there, other=0) - first
        value = factor * tl.load(values + edge * stride, mask=there, other=0.0)
        tl.store(matrix + i * NODES + j, value, mask=there)
        tl.store(matrix + j * NODES + i, value, mask=there)


@triton.jit
def _adjacency(matrix, values, tail, head, first, begin, end, NODES: tl.constexpr):
    """Write ``P`` of one graph and filter into memory, whole, and read it."""
    row = tl.arange(0, NODES)
    whole = row[:, None] * NODES + row[None, :]
    tl.store(matrix + whole, tl.full((NODES, NODES), 0.0, tl.float32))
    tl.debug_barrier()
    _fill(matrix, values, 1.0, 1, tail, head, first, begin, end, NODES)
    tl.debug_barrier()
    return tl.load(matrix + whole)


@triton.jit
def _read(matrix, values, stride, tail, head, first, begin, end, BOTH: tl.constexpr, NODES: tl.constexpr):
    """Read entries ``(tail, head)`` of a matrix in memory, plus ``(head, tail)`` for ``BOTH``, into edges' values."""
    EDGES: tl.constexpr = 128
    for block in range(begin, end, EDGES):
        edge = block + tl.arange(0, EDGES)
        there = edge < end
        i = tl.load(tail + edge, mask=there, other=0) - first
        j = tl.load(head + edge, mask=there, other=0) - first
        value = tl.load(matrix + i * NODES + j, mask=there, other=0.0)
        if BOTH:
            value += tl.load(matrix + j * NODES + i, mask=there, other=0.0)
        tl.store(values + edge * stride, value, mask=there)


@triton.jit
def matrix_polynomials(
    adjacency,
    tail,
    head,
    ptr,
    edge_ptr,
    nodes,
    edges,
    scratch,
    alpha,
    gamma,
    num_filters,
    num_edges,
    num_layers,
    start,
    NODES: tl.constexpr,
):
    """``Phi_t = alpha P Phi_{t-1} - gamma Phi_{t-2}`` of one graph and filter, read on the diagonal and at the edges.

    ``scratch`` holds three matrices ``[NODES, NODES]`` per program: ``P``, and the last two ``Phi_t`` in turn. One is
    written over only after the barrier that follows everything that reads it.
    """
    SIZE: tl.constexpr = NODES * NODES
    program = tl.program_id(0).to(tl.int64)
    graph, channel = start + program // num_filters, program % num_filters
    first, n, begin, end = _bounds(ptr, edge_ptr, graph)
    row = tl.arange(0, NODES)
    whole = row[:, None] * NODES + row[None, :]
    on_diagonal = row[:, None] == row[None, :]
    width = num_filters * num_layers
    own = scratch + program * 3 * SIZE

    phi = _adjacency(own, adjacency + channel * num_edges, tail, head, first, begin, end, NODES)
    before = tl.where(on_diagonal, 1.0, 0.0)
    for layer in range(num_layers):
        half = own + (1 + layer % 2) * SIZE
        if layer > 0:
            after = alpha * _product(own, own + (2 - layer % 2) * SIZE, NODES) - gamma * before
            before, phi = phi, after
        at = channel * num_layers + layer
        tl.store(nodes + (first + row) * width + at, tl.sum(tl.where(on_diagonal, phi, 0.0), 1), mask=row < n)
        tl.store(half + whole, phi)
        tl.debug_barrier()
        _read(half, edges + at, width, tail, head, first, begin, end, False, NODES)


@triton.jit
def matrix_polynomials_backward(
    adjacency,
    tail,
    head,
    ptr,
    edge_ptr,
    grad_nodes,
    grad_edges,
    grad,
    scratch,
    alpha,
    gamma,
    num_filters,
    num_edges,
    num_layers,
    start,
    NODES: tl.constexpr,
):
    """The gradient by the entries: ``H_t = G_t + alpha P H_{t+1} - gamma H_{t+2}``, summed up with ``Phi_{t-1}``.

    ``scratch`` holds ``num_layers + 3`` matrices ``[NODES, NODES]`` per program: ``G_t`` and at last the result, the
    last two ``H_t`` in turn, and ``Phi_1 .. Phi_T``, of which the first is ``P``.
    """
    SIZE: tl.constexpr = NODES * NODES
    program = tl.program_id(0).to(tl.int64)
    graph, channel = start + program // num_filters, program % num_filters
    first, n, begin, end = _bounds(ptr, edge_ptr, graph)
    row = tl.arange(0, NODES)
    whole = row[:, None] * NODES + row[None, :]
    on_diagonal = row[:, None] == row[None, :]
    width = num_filters * num_layers
    own = scratch + program * (num_layers + 3) * SIZE
    chain = own + 3 * SIZE

    zero = tl.full((NODES, NODES), 0.0, tl.float32)
    tl.store(own + whole, zero)
    phi = _adjacency(chain, adjacency + channel * num_edges, tail, head, first, begin, end, NODES)
    before = tl.where(on_diagonal, 1.0, 0.0)
    for layer in range(1, num_layers):
        after = alpha * _product(chain, chain + (layer - 1) * SIZE, NODES) - gamma * before
        before, phi = phi, after
        tl.store(chain + layer * SIZE + whole, phi)
        tl.debug_barrier()

    total, h, later = zero, zero, zero
    for step in range(num_layers):
        layer = num_layers - 1 - step
        at = channel * num_layers + layer
        # An edge's entry stands in two places, which share its gradient.
        _fill(own, grad_edges + at, 0.5, width, tail, head, first, begin, end, NODES)
        tl.debug_barrier()
        by_node = tl.load(grad_nodes + (first + row) * width + at, mask=row < n, other=0.0)
        g = tl.load(own + whole) + tl.where(on_diagonal, by_node[:, None], 0.0)
        if step > 0:
            g += alpha * _product(chain, own + (2 - step % 2) * SIZE, NODES) - gamma * later
        later, h = h, g
        half = own + (1 + step % 2) * SIZE
        tl.store(half + whole, h)
        tl.debug_barrier()
        if layer > 0:
            total += alpha * _product(half, chain + (layer - 1) * SIZE, NODES)
    tl.store(own + whole, total + h)  # Phi_1 is P itself
    tl.debug_barrier()
    _read(own, grad + channel * num_edges, 1, tail, head, first, begin, end, True, NODES)
