"""Compute flows, resistances, heat kernels and eigenvectors of any graph with as many layers as a tolerance needs.

Everything is computed in float64. If a tolerance needs more layers than ``max_layers``, a ValueError is raised before
any layer runs, like those for arguments of a wrong shape or range and for graphs too large for dense algebra.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from tg_lpe.arguments import check_choice, check_count
from tg_lpe.graph.components import Components, component_labels, without_means
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.padding import padded_batch
from tg_lpe.ops.polynomials import EdgePositions
from tg_lpe.ops.random import counter_normal
from tg_lpe.theory import bounds
from tg_lpe.theory import constructions as lemmas
from tg_lpe.theory.filtered import filtered_eigenspace, warn_of_gap

MAX_LAYERS = 100_000
STEP = 8.0
"""Largest ``s lambda_max`` of one run of the heat kernel's power series, whose terms then stay below ``exp(8)``."""

FAST_FLOOR = 1e-7
"""Smallest tolerance of cubing, Lemma 5, before rounding in float64 dominates."""

PAIRS = ("all", "edges")


def incidence_of(data: Data | Graph) -> Graph:
    """Return the graph of PyG's ``Data`` or ``Batch``, with ``edge_weight`` in float64; or a graph unchanged.

    Raises:
        TypeError: on anything else.
        ValueError: if there is no ``edge_index``, or a graph is malformed.
    """
    if isinstance(data, Graph):
        return data
    if not isinstance(data, Data):
        raise TypeError(f"constructions take Data, Batch or Graph, got {type(data).__name__}")
    if "edge_weight" in data:
        data = copy.copy(data)
        data.edge_weight = data.edge_weight.double()
    return Graph.from_data(data)


def remove_component_means(graph: Graph, x: Tensor) -> Tensor:
    """Subtract from each value of ``x``, ``[num_nodes, k]``, its mean over the component, as lemmas need of demands."""
    return without_means(Components(graph), x)


def electric_potential(
    data: Data | Graph, demands: Tensor, tolerance: float = 1e-6, *, max_layers: int = MAX_LAYERS
) -> Tensor:
    """Compute potentials ``L^+ psi`` of electric flows by Lemma 1, for graphs of any size.

    Args:
        data: the graph or batch.
        demands: currents injected at the nodes, ``[num_nodes, k]``. Their mean over each component is subtracted.
        tolerance: largest relative residual ``|psi - L phi| / |psi|`` of each demand.
        max_layers: largest number of layers. A tolerance needs ``lambda_max / lambda_min`` times
            ``log(1 / tolerance)`` layers: some hundred on an expander, a million on a grid of 300 by 300.

    Returns:
        ``[num_nodes, k]``, float64, of mean zero on each component. :func:`electric_current` makes currents of them.
    """
    graph = incidence_of(data)
    _check_rows("demands", demands, graph)
    graph, scale, lower = _normalized(graph)
    layers = bounds.layers_needed(_relative(bounds.electric_flow_bound, lower), tolerance)
    _check_layers(f"L^+ psi for lambda_max / lambda_min = {1 / lower:,.0f}", layers, tolerance, max_layers)
    psi = remove_component_means(graph, demands.double())
    return _run(lemmas.electric_flow(psi.size(1), layers, 1.0), graph, psi) / scale.unsqueeze(-1)


def electric_current(data: Data | Graph, potential: Tensor) -> Tensor:
    """Compute the currents of potentials by Ohm's law: conductance times difference of potential.

    Args:
        data: the graph or batch.
        potential: ``[num_nodes, k]``, such as the result of :func:`electric_potential`.

    Returns:
        The current along each edge of ``edge_index``, from its first node to its second; zero at self-loops. Float64
        ``[num_edges, k]``.
    """
    graph = incidence_of(data)
    _check_rows("potential", potential, graph)
    tail, head = graph.edge_index.long()
    w = graph.spread_to_directed(graph.root_conductance(potential.double()).square())
    return w.unsqueeze(-1) * (potential[tail] - potential[head]).double()


def effective_resistance(data: Data | Graph, pairs: str = "all", *, tolerance: float = 1e-10) -> Tensor:
    """Compute effective resistances ``R_ij = (u_i - u_j)^T L^+ (u_i - u_j)`` by Lemma 4.

    The number of layers, ``log2(lambda_max / lambda_min log(1 / tolerance))``, follows from bounds on the eigenvalues.
    A layer takes ``O(n^3)`` time for a graph of ``n`` nodes.

    Args:
        data: the graph or batch.
        pairs: ``"all"`` pairs of nodes of a single graph, or only the ``"edges"``.
        tolerance: relative error, before rounding.

    Returns:
        ``[num_nodes, num_nodes]``, zero on the diagonal and infinite between components; or one value for each edge of
        ``edge_index``, ``[num_edges]``, zero at self-loops. Float64.
    """
    check_choice("pairs", pairs, PAIRS)
    graph = incidence_of(data)
    label = component_labels(graph)
    if pairs == "all":
        _check_single(graph, "pairs='edges'")
        matrix = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64, device=graph.device)
        for _, found in _resistances(graph, tolerance):  # one bucket, or none without nodes
            matrix = found[0]
        return matrix.masked_fill(label.unsqueeze(1) != label, math.inf).fill_diagonal_(0.0)
    edges = torch.zeros(graph.num_edges, dtype=torch.float64, device=graph.device)
    for positions, found in _resistances(graph, tolerance):
        edges[positions.edges] = positions.at_edges(found)[0]
    # An edge of weight zero is absent: it may join two components.
    return graph.spread_to_directed(edges.masked_fill(label[graph.tail] != label[graph.head], math.inf))


def _resistances(graph: Graph, tolerance: float) -> Iterator[tuple[EdgePositions, Tensor]]:
    """Compute ``R_ij = L^+_ii + L^+_jj - 2 L^+_ij``, ``[num_graphs, max_nodes, max_nodes]``, bucket by bucket.

    The error of ``L^+`` by Lemma 4 is ``L^+ M^(2^L)``, so each resistance has a relative error within the tolerance.
    """
    lower, upper = bounds.spectral_bounds(graph)
    label = component_labels(graph)
    size = torch.bincount(label).double() if label.numel() else torch.zeros(0)
    padded = padded_batch(graph)
    ones = torch.ones(graph.num_nodes, dtype=torch.float64, device=graph.device)
    # Padding nodes have no component: the projection is zero there.
    labels = padded.pad(torch.stack([label + 1.0, 1 / size[label]], dim=1))
    for bucket, laplacian, positions, marks in zip(
        padded.buckets, padded.dense_laplacians(ones), padded.edge_positions(), labels, strict=True
    ):
        number, share = marks.unbind(-1)
        same = (number.unsqueeze(-1) == number.unsqueeze(-2)) * share.unsqueeze(-1)
        projection = torch.diag_embed((number > 0).double()) - same
        top = upper[bucket.graphs]
        worst = float((lower[bucket.graphs] / top).min())
        layers = bounds.layers_needed(_relative(bounds.fast_electric_flow_bound, worst), tolerance)
        z = lemmas.fast_electric_flow_input(laplacian, projection, 1 / top.view(-1, 1, 1))
        inverse = lemmas.fast_electric_flow_output(_run(lemmas.fast_electric_flow(layers), z))
        diagonal = inverse.diagonal(dim1=1, dim2=2)
        yield positions, (diagonal.unsqueeze(2) + diagonal.unsqueeze(1) - inverse - inverse.mT).clamp(min=0)


def _relative(bound: Callable[[int, float, float], float], lower: float) -> Callable[[int], float]:
    """Return a bound on the error of ``L^+`` relative to its norm, for eigenvalues from ``lower`` to one."""
    return lambda layers: lower * bound(layers, lower, 1.0)


def heat_kernel(
    data: Data | Graph,
    s: float,
    psi: Tensor | None = None,
    *,
    tolerance: float = 1e-6,
    max_layers: int = MAX_LAYERS,
) -> Tensor:
    """Compute the heat kernel ``exp(-s L)`` by Lemma 5, or its product with columns by Lemma 3.

    Args:
        data: the graph or batch.
        s: temperature, not negative.
        psi: columns ``[num_nodes, k]``, for graphs of any size. If absent, the matrix of a single graph is computed.
        tolerance: error in spectral norm, before rounding; at least ``1e-7`` for the matrix.
        max_layers: largest number of layers; with ``psi``, about ``4 s lambda_max`` are needed.

    Returns:
        ``[num_nodes, num_nodes]``, or ``[num_nodes, k]`` with ``psi``. Float64.
    """
    graph = incidence_of(data)
    bounds.check_temperature(s)
    if psi is not None:
        _check_rows("psi", psi, graph)
        top = float(bounds.spectral_bounds(graph)[1].max()) if graph.num_graphs else 1.0
        steps = max(1, math.ceil(s * top / STEP))
        part = lambda count: bounds.heat_kernel_bound(count, top, s / steps)  # noqa: E731
        each = bounds.layers_needed(part, tolerance / (2 * steps))
        _check_layers(f"exp(-s L) for s={s:g} and lambda_max={top:.4g}", steps * (each + 1) - 1, tolerance, max_layers)
        return _run(lemmas.heat_kernel_layers(psi.size(1), each, s, steps), graph, psi.double())
    _check_single(graph, "psi")
    if graph.num_nodes == 0:
        return torch.zeros(0, 0, dtype=torch.float64, device=graph.device)
    if tolerance < FAST_FLOOR:
        raise ValueError(f"tolerance must be at least {FAST_FLOOR:g} without psi, got {tolerance:g}; pass psi")
    ones = torch.ones(graph.num_nodes, dtype=torch.float64, device=graph.device)
    (laplacian,), top = padded_batch(graph).dense_laplacians(ones), float(bounds.spectral_bounds(graph)[1])
    layers = bounds.layers_needed(lambda count: bounds.fast_heat_kernel_bound(count, top, s), tolerance)
    return _run(lemmas.fast_heat_kernel(layers), lemmas.fast_heat_kernel_input(laplacian, layers, s))[0]


def resistive_embedding(
    data: Data | Graph,
    k: int | None = None,
    *,
    tolerance: float = 1e-4,
    seed: int = 0,
    max_layers: int = MAX_LAYERS,
) -> Tensor:
    """Compute a resistive embedding by Lemma 2: squared distances between rows are effective resistances (Fact 1).

    Args:
        data: the graph or batch.
        k: number of columns, for graphs of any size: ``sqrt(L^+)`` is projected onto ``k`` random directions, which
            preserves each squared distance up to a relative error of about ``sqrt(2 / k)``. If absent, the result is
            ``sqrt(L^+)`` of a single graph.
        tolerance: error relative to ``sqrt(L^+)`` in spectral norm, before the projection.
        seed: seed of the directions, which depend only on the seed and a node's index within its graph.
        max_layers: largest number of layers; ``lambda_max / lambda_min log(1 / tolerance)`` are needed.

    Returns:
        ``[num_nodes, num_nodes]``, or ``[num_nodes, k]``. Float64. Distances between components have no meaning.
    """
    graph = incidence_of(data)
    like = torch.empty(0, dtype=torch.float64, device=graph.device)
    if k is None:
        _check_single(graph, "k")
        start = torch.eye(graph.num_nodes).to(like)
    else:
        check_count("k", k)
        start = counter_normal(seed, max(graph.max_nodes, 1), k, like)[graph.local_index] / k**0.5
    if start.numel() == 0:
        return start
    graph, scale, lower = _normalized(graph)
    bound = lambda count: lower**0.5 * bounds.resistive_embedding_bound(count, lower, 1.0)  # noqa: E731
    layers = bounds.layers_needed(bound, tolerance)
    _check_layers(f"sqrt(L^+) for lambda_max / lambda_min = {1 / lower:,.0f}", layers, tolerance, max_layers)
    model = lemmas.resistive_embedding_layers(start.size(1), layers, 1.0)
    return _run(model, graph, remove_component_means(graph, start)) / scale.sqrt().unsqueeze(-1)


def laplacian_eigenvectors(
    data: Data | Graph,
    k: int,
    which: str = "bottom",
    *,
    tolerance: float = 1e-6,
    seed: int = 0,
    max_layers: int = MAX_LAYERS,
) -> tuple[Tensor, Tensor]:
    """Compute eigenvectors of ``L`` by subspace iteration: Corollary 7 for the bottom, Lemma 6 for the top.

    If the gap after vector ``k`` is small, it iterates the number of vectors, mostly up to ``2 k``, that needs the
    fewest layers. A Rayleigh-Ritz step then rotates the span to eigenvectors. For graphs of up to 1,024 nodes, the
    number of layers follows from the eigenvalues, which are computed densely. On larger graphs a Chebyshev filter
    (:func:`~tg_lpe.theory.chebyshev_filter`) alternates with orthogonalisation until the residual is small enough.

    Args:
        data: the graph or batch; graphs are solved one by one.
        k: number of eigenvectors.
        which: ``"bottom"``, smallest eigenvalue first, starting with one null vector per component; or ``"top"``,
            largest first.
        tolerance: largest sine of the angle between the iterated and the wanted span. The residual is checked, and a
            warning is given if rounding prevents the tolerance. On graphs of more than 1,024 nodes, the check uses an
            estimate of the gap.
        seed: seed of ``Phi_0``, which depends only on the seed and a node's index within its graph.
        max_layers: largest number of layers for a graph.

    Returns:
        Eigenvectors ``[num_nodes, k]``, orthonormal, and eigenvalues ``[num_graphs, k]``, float64. Columns that a small
        graph lacks are zero, their eigenvalues NaN. Signs are arbitrary, and so is the basis of a repeated eigenvalue.
    """
    check_choice("which", which, ("bottom", "top"))
    check_count("k", k)
    graph = incidence_of(data)
    like = torch.empty(0, dtype=torch.float64, device=graph.device)
    vectors, values = like.new_zeros(graph.num_nodes, k), like.new_full((graph.num_graphs, k), torch.nan)
    for number in range(graph.num_graphs):
        first, last = graph.ptr[number : number + 2].tolist()
        n, few = last - first, k + max(4, k // 2)
        if n == 0:
            continue
        inside = (graph.tail >= first) & (graph.tail < last)
        w = None if graph.conductance is None else graph.conductance[inside].double()
        single = Graph(torch.stack([graph.tail, graph.head])[:, inside] - first, n, edge_weight=w)
        solve, width = (_eigenspace, n) if n <= max(bounds.EXACT_NODES, few) else (filtered_eigenspace, few)
        span, ritz = solve(single, min(k, n), which, tolerance, counter_normal(seed, n, width, like), max_layers)
        vectors[first:last, : ritz.numel()] = span
        values[number, : ritz.numel()] = ritz
    return vectors, values


def _eigenspace(
    graph: Graph, k: int, which: str, tolerance: float, start: Tensor, max_layers: int
) -> tuple[Tensor, Tensor]:
    """Compute eigenvectors ``[n, k]`` and eigenvalues ``[k]`` of one graph of ``n >= k`` nodes."""
    n = graph.num_nodes
    graph, scale, _ = _normalized(graph)  # rounding of mu - 1 would hide eigenvalues far below one
    laplacian = padded_batch(graph).dense_laplacians(torch.ones_like(start[:, 0]))[0][0]
    values = torch.linalg.eigvalsh(laplacian)
    top = float(values[-1]) or 1.0
    # The shift makes the iterated matrix invertible, so that no vector is lost for k = n.
    shift = 0.05 * top
    iterated = (values + shift).flip(0) if which == "top" else top + shift - values
    gap = torch.cat([iterated[k:] / iterated[k - 1 : -1], iterated.new_zeros(1)])
    tangent = 100.0 * n  # a random start rarely exceeds it, and the residual is checked
    choices = []
    for width, ratio in enumerate(gap.tolist(), start=k):
        if ratio < 1 - 1e-9:
            bound = lambda count, ratio=ratio: bounds.subspace_iteration_bound(count, ratio, tangent)  # noqa: E731
            count = bounds.layers_needed(bound, tolerance, 10**12) + 1
            choices.append((count * (width + 1), width, count))
    # A few more vectors help if the gap after them is larger; many more are a last resort.
    few = [choice for choice in choices if choice[1] <= 2 * k and choice[1] < n and choice[0] <= max_layers]
    layers, width, count = min(few or choices)
    _check_layers(f"the span of {k} {which} eigenvectors of a graph of {n} nodes", layers, tolerance, max_layers)
    if which == "top":
        model = lemmas.top_eigenvectors(width, count, shift)
    else:
        model = lemmas.bottom_eigenvectors(width, count, top + shift)
    phi = start[:, :width]
    edge = float(iterated[width] - shift) if width < n else -math.inf
    for _ in range(10):
        phi = _run(model, graph, phi)
        q, _ = torch.linalg.qr(phi)
        image = laplacian @ q
        ritz, turn = torch.linalg.eigh(q.mT @ image)
        residual = float(torch.linalg.matrix_norm(image - q @ (q.mT @ image), 2))
        # Davis and Kahan: the sine of the angle is at most the residual over the gap to the unwanted eigenvalues.
        worst = float(ritz[0]) if which == "top" else top - float(ritz[-1])
        if width == n or residual <= tolerance * (worst - edge):
            break
    else:
        warn_of_gap(graph, k, which, residual / (worst - edge), tolerance)
    order = ritz.argsort(descending=which == "top")[:k]
    return q @ turn[:, order], ritz[order] * scale[0]


def _run(model: nn.Module, *inputs: Graph | Tensor) -> Tensor:
    """Run layers without gradient, on the device of their input."""
    with torch.no_grad():
        out: Tensor = model.to(inputs[-1].device)(*inputs)
    return out


def _normalized(graph: Graph) -> tuple[Graph, Tensor, float]:
    """Divide the Laplacian of each graph by its largest eigenvalue.

    Returns:
        The batch, the eigenvalue of each node's graph ``[num_nodes]``, and the smallest ``lambda_min / lambda_max``.
    """
    lower, upper = bounds.spectral_interval(graph)
    w = graph.root_conductance(upper).square() / upper[graph.batch[graph.tail]]
    worst = float((lower / upper).min()) if lower.numel() else 1.0
    return graph.with_conductances(w), upper[graph.batch], worst


def _check_layers(quantity: str, layers: int, tolerance: float, max_layers: int) -> None:
    if layers > max_layers:
        raise ValueError(
            f"{quantity} needs {layers:,} layers for tolerance={tolerance:g}, more than max_layers={max_layers:,}"
        )


def _check_single(graph: Graph, instead: str) -> None:
    if graph.num_graphs != 1:
        raise ValueError(f"data must be a single graph, got a batch of {graph.num_graphs}; pass {instead}")


def _check_rows(name: str, x: Tensor, graph: Graph) -> None:
    if x.dim() != 2 or x.size(0) != graph.num_nodes or x.size(1) == 0:
        raise ValueError(f"{name} must be [{graph.num_nodes}, k], got {list(x.shape)}")
