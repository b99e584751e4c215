"""Linear transformer with Gram read-outs: equivariant, independent of signs and bases."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_choice, check_count, check_counts, check_positive, check_seed
from tg_lpe.data.spec import DataSpec
from tg_lpe.encoders.base import Encoder, Encoding, Inputs
from tg_lpe.encoders.registry import register
from tg_lpe.graph.cover import Cover
from tg_lpe.graph.graph import Graph, inverse_sqrt
from tg_lpe.graph.padding import POLYNOMIAL_PADDING, PaddedBatch, exact_polynomials
from tg_lpe.graph.progress import LINEAR, Progress
from tg_lpe.graph.subspace import power_of_two
from tg_lpe.nn._util import without_autocast
from tg_lpe.nn.conductances import LearnedConductances
from tg_lpe.nn.probes import draw_seed
from tg_lpe.ops.balls import ball_orders, ball_polynomials
from tg_lpe.ops.estimates import estimated_polynomials
from tg_lpe.ops.polynomials import BASES, EdgePositions, matrix_polynomials

CONDUCTANCES = ("learned", "ground", "fixed")
GRAM_PROBES = ("auto", "identity", "rademacher")

EXACT_NODES = 256
"""``probes="auto"`` is exact on all graphs of up to this number of nodes."""

EXACT_WORK = 1e10
"""``probes="auto"`` is exact up to this number of multiplications: about a second a training step on two cores."""

EXACT_WORK_ONCE = 3e11
"""The same limit for an encoder that encodes each graph once: about ten seconds on two cores."""

BALL_VISITS = 640
"""On larger graphs, an order is exact if its walks see at most this number of edges, counted from both ends."""

IDENTITY_LIMIT = 4096
"""Most nodes of a graph with ``probes="identity"``: one matrix takes 64 MiB."""


@register
class GramTransformer(Encoder):
    r"""Encode nodes, edges and pairs of nodes by learned polynomials of the Laplacian.

    Each of ``num_filters`` filters weights the incidence matrix ``B`` by learned conductances ``w`` (eq. (1) of `Graph
    Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_ with ``w = 1/r``) and connects nodes to the
    ground through learned conductances ``q``. With ``L = B B^T + diag(q)``, ``D = diag(L)`` and
    ``S = D^{-1/2} L D^{-1/2}``, the layers are

    .. math:: \Phi_t = (I - S) \Phi_{t-1} = P \Phi_{t-1}, \qquad \Phi_0 = V .

    They are those of :class:`~tg_lpe.LinearTransformer` with ``probes="identity"``, ``W^V = -I``, ``W^R = 0``, and all
    of them are read instead of the last. The encoding is ``f_t(S)`` on its diagonal at nodes, which for equal
    conductances and no ground holds return probabilities of random walks, and at edges. Both are equivariant under
    relabelling of nodes and independent of signs and bases. A node without edges and ground has a zero row in ``P``.

    **Exact or estimated.** With ``V = I``, the encoding is exact. With ``num_probes`` columns of random signs, the Gram
    matrix of two layers, ``Phi_s Phi_t^T / num_probes``, is an unbiased estimate of ``f_s(S) f_t(S)`` in time linear in
    the edges. ``probes="auto"`` is exact up to 256 nodes, and on larger graphs if ``num_layers * num_filters *
    num_nodes * (num_nodes + 2 num_edges)`` is at most 1e10, or 3e11 in a transform, which encodes each graph once. In
    still larger graphs, the value of layer ``t`` at a node is exact if the walks of ``t`` steps from the node back to
    itself see at most 640 edges; others are estimated, which is equivariant in distribution.

    **Pairs.** With ``pair_out_channels``, the encoding of pairs reads ``f_t(S)`` at any pairs of nodes, as if they were
    edges of conductance zero. The pairs ``(u, v)`` and ``(v, u)`` have equal rows without ``direction``.

    **Directions.** With ``direction=q``, ``P`` is Hermitian, as in the magnetic Laplacian of `MagNet
    <https://arxiv.org/abs/2102.11391>`_, section 2.2: if an edge is only listed from ``u`` to ``v``, its entry
    ``(u, v)`` is multiplied by ``exp(i 2 pi q)`` and the entry ``(v, u)`` by the conjugate. The encoding of a directed
    edge or pair has the real parts of ``f_t(u, v)`` and then the imaginary parts; that of a node has the diagonals and
    then the net current that leaves the node, the sum of ``|P_uv| Im f_t(u, v)`` over its edges. The cost is that of a
    graph of twice the nodes and four times the edges.

    Args:
        out_channels: width of the node encoding, computed by a linear map. If absent, there is no linear map and the
            encoding has all ``num_filters * num_layers`` values, twice as many with ``direction``.
        edge_out_channels: width of the edge encoding, as ``out_channels``; 0 for none.
        num_filters: number of filters, each with its own conductances.
        num_layers: number of layers, all of which are read.
        basis: ``"power"``, ``Phi_t = P Phi_{t-1}``, or ``"chebyshev"``, ``Phi_t = 2 P Phi_{t-1} - Phi_{t-2}``: the same
            space of filters in a basis that does not decay.
        probes: ``"identity"`` (exact, up to 4,096 nodes, or 2,048 with ``direction``), ``"rademacher"`` (random), or
            ``"auto"``, which estimates only graphs that take too long to encode exactly.
        num_probes: number of random probes.
        seed: seed of random probes.
        num_edge_types, edge_dim: number of types or width of the edge features that conductances depend on.
        num_node_types, in_channels: number of types or width of the node features that ground conductances depend on.
        conductances: which conductances are learned.

            - ``"learned"``: those of edges, from edge features, and those to the ground
            - ``"ground"``: only those to the ground
            - ``"fixed"``: none; there is no ground, and conductances are the edge weights of the graph
        pair_out_channels: width of the encoding of pairs, computed by a linear map; ``None`` for all values, 0 for no
            encoding of pairs.
        direction: potential ``q`` of a magnetic Laplacian, which reads the directions of edges; if absent, directions
            are not read. 0.25 distinguishes the directions of a single step best, smaller potentials count more steps.

    Raises:
        ValueError: if an argument is out of range or two arguments exclude each other.

    Warns:
        UserWarning: in a call, if ``probes="auto"`` estimates a part of the encoding of a graph.

    Example:
        >>> import torch
        >>> from tg_lpe import GraphTransformer
        >>> from tg_lpe.encoders import GramTransformer
        >>> x = torch.tensor([0, 1, 1, 0, 2, 2])  # six nodes of three types
        >>> edge_index = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> model = GraphTransformer(num_node_types=3, encoder=GramTransformer(out_channels=8), hidden_channels=16)
        >>> model(x, edge_index).shape
        torch.Size([1, 1])
    """

    unit: Tensor

    def __init__(
        self,
        out_channels: int | None = None,
        edge_out_channels: int | None = None,
        num_filters: int = 4,
        num_layers: int = 16,
        *,
        basis: str = "power",
        probes: str = "auto",
        num_probes: int = 64,
        seed: int = 0,
        num_edge_types: int | Sequence[int] | None = None,
        edge_dim: int | None = None,
        num_node_types: int | Sequence[int] | None = None,
        in_channels: int | None = None,
        conductances: str = "learned",
        pair_out_channels: int | None = 0,
        direction: float | None = None,
    ) -> None:
        super().__init__()
        if direction is not None:
            check_positive("direction", direction, or_zero=True)
        check_seed(seed)
        check_counts(num_filters=num_filters, num_layers=num_layers, num_probes=num_probes)
        if out_channels is not None:
            check_count("out_channels", out_channels)
        for name, width in (("edge_out_channels", edge_out_channels), ("pair_out_channels", pair_out_channels)):
            if width is not None:
                check_count(name, width, least=0)
        check_choice("basis", basis, tuple(BASES))
        check_choice("probes", probes, GRAM_PROBES)
        check_choice("conductances", conductances, CONDUCTANCES)
        sizes = {"num_edge_types": num_edge_types, "edge_dim": edge_dim}
        sizes |= {"num_node_types": num_node_types, "in_channels": in_channels}
        feature_sizes = ", ".join(f"{name}={size}" for name, size in sizes.items() if size is not None)
        if feature_sizes and conductances == "fixed":
            raise ValueError(f"conductances='fixed' reads no features, so {feature_sizes} must not be given")
        self.num_filters, self.num_layers = num_filters, num_layers
        self.basis, self.probe_kind, self.num_probes, self.seed = basis, probes, num_probes, seed
        self.conductances = LearnedConductances(
            num_filters,
            num_edge_types,
            edge_dim,
            num_node_types,
            in_channels,
            learned=conductances == "learned",
            ground=conductances != "fixed",
        )
        c = self.conductances
        by_nodes = c.ground is not None and (c.num_node_types is not None or c.in_channels is not None)
        read = {"edge_weight": True, "edge_attr": c.edge is not None, "x": by_nodes}
        self.reads = frozenset(name for name, is_read in read.items() if is_read)
        self.register_buffer("unit", torch.ones(()), persistent=False)  # has the module's device and dtype
        self.direction, self.directed = direction, direction is not None
        width = num_filters * num_layers * (1 + self.directed)
        self.out_channels = width if out_channels is None else out_channels
        self.edge_out_channels = width if edge_out_channels is None else edge_out_channels
        # The bias reads Phi_0 = I, whose diagonal is one and whose entries at the edges are zero.
        self.readout = None if out_channels is None else nn.Linear(width, out_channels)
        self.mixes_polynomials = self.readout is not None
        self.edge_readout = nn.Linear(width, edge_out_channels, bias=False) if edge_out_channels else None
        self.pair_out_channels = width if pair_out_channels is None else pair_out_channels
        self.pair_readout = nn.Linear(width, pair_out_channels, bias=False) if pair_out_channels else None

    @classmethod
    def data_arguments(cls, spec: DataSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sizes of features that learned conductances read; nothing for other conductances."""
        learned = arguments.get("conductances", "learned") == "learned"
        return super().data_arguments(spec, arguments) if learned else {}

    @without_autocast
    def encode(self, graph: Graph, inputs: Inputs) -> Encoding:
        """Encode nodes, edges and pairs, see :meth:`Encoder.encode`; edge weights multiply learned conductances.

        Without a ``generator``, every call uses the random probes of :attr:`seed`. ``precomputed`` is not read.

        Raises:
            ValueError: if a required feature is missing or a graph is too large for identity probes.
        """
        x, edge_attr, pairs, generator, _ = inputs
        if pairs is None:
            return self._read_out(graph, *self.gram(graph, x, edge_attr, generator=generator))
        cover = Cover(graph, pairs, self.direction)
        # In a large graph, the additional edges change which orders are exact, so nodes and edges are encoded without.
        encoding = self.encode(graph, inputs._replace(pairs=None)) if self._large_graphs(cover.graph) else None
        node, edge, values = self._read_cover(cover, graph, self._adjacency(graph, x, edge_attr), generator)
        values = values if self.pair_readout is None else self.pair_readout(values)
        return (encoding or self._read_out(graph, node, edge))._replace(pair=values)

    def _read_out(self, graph: Graph, node: Tensor, edge: Tensor) -> Encoding:
        """Apply the linear maps to the results of :meth:`gram`."""
        node = node if self.readout is None else self.readout(node)
        if not self.edge_out_channels:
            return Encoding(node, None)
        edge = edge if self.edge_readout is None else self.edge_readout(edge)
        return Encoding(node, edge if self.directed else graph.spread_to_directed(edge))

    def _read_cover(
        self, cover: Cover, graph: Graph, adjacency: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the results of :meth:`gram` and the values at the pairs."""
        node, edge, values = cover.read(*self._gram(cover.graph, cover.matrix(adjacency), generator, read_edges=True))
        if self.directed:
            imaginary = edge[:, edge.size(1) // 2 :]
            current = adjacency.mT.repeat_interleave(self.num_layers, 1) * imaginary
            zero = torch.zeros_like(node)
            node = torch.cat([node, zero.index_add(0, graph.tail, current).index_add(0, graph.head, -current)], 1)
            edge = graph.spread_to_directed(edge)
            is_back = (graph.edge_index[0] > graph.edge_index[1]).unsqueeze(1)
            real, imaginary = edge.chunk(2, 1)
            edge = torch.cat([real, torch.where(is_back, -imaginary, imaginary)], 1)
        return node, edge, values

    def gram(
        self,
        graph: Graph,
        x: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the entries of ``f_t(S)`` for ``t = 1, ..., num_layers = T``, before any linear map.

        Returns:
            Diagonals, ``[num_nodes, num_filters * T]``, and entries at the undirected edges,
            ``[num_edges, num_filters * T]``, filter by filter. With ``direction``: diagonals and then currents,
            ``[num_nodes, 2 * num_filters * T]``, and real and then imaginary parts at the directed edges,
            ``[num_directed_edges, 2 * num_filters * T]``.
        """
        adjacency = self._adjacency(graph, x, edge_attr)
        if not self.directed:
            return self._gram(graph, adjacency, generator, self.edge_out_channels > 0)
        cover = Cover(graph, graph.edge_index[:, :0], self.direction)
        return self._read_cover(cover, graph, adjacency, generator)[:2]

    def _gram(
        self, graph: Graph, adjacency: Tensor, generator: torch.Generator | None, read_edges: bool
    ) -> tuple[Tensor, Tensor]:
        """Compute :meth:`gram` from the entries of ``P`` at the edges; estimate edge values only if they are read."""
        if self.probe_kind == "identity" and graph.max_nodes > IDENTITY_LIMIT:
            rows = 1 + self.directed  # of a node
            raise ValueError(
                f"probes='identity' needs matrices of num_nodes x num_nodes, so a graph may have up to "
                f"{IDENTITY_LIMIT // rows} nodes, got {graph.max_nodes // rows}; probes='auto' and 'rademacher' have "
                "no limit"
            )
        if graphs := self._large_graphs(graph):
            return self._one_by_one(graph, adjacency, graphs, generator, read_edges)
        if self.probe_kind != "rademacher" or not graph.max_nodes:
            return exact_polynomials(graph, adjacency, self.basis, self.num_layers)
        padded = PaddedBatch(graph, max_padding=POLYNOMIAL_PADDING)
        seed = self.seed if generator is None else draw_seed(generator)
        options = self.basis, self.num_layers, self.num_probes, seed, read_edges

        def estimate(part: Tensor, where: EdgePositions) -> tuple[Tensor, Tensor]:
            tail, head, size = where.tail, where.head, where.max_nodes
            return estimated_polynomials(part, tail, head, where.num_graphs * size, size, *options)

        return padded.by_bucket(adjacency, estimate)

    def _adjacency(self, graph: Graph, x: Tensor | None, edge_attr: Tensor | None) -> Tensor:
        """Compute the entries of ``P`` at the edges, ``w_e / sqrt(D_i D_j)``, ``[num_filters, num_edges]``."""
        w, q = self.conductances(graph, x, edge_attr)
        if w is None:
            diagonal = graph.laplacian_diagonal(self.unit).expand(self.num_filters, -1)
        else:
            # Scale conductances into the dtype's range; P does not depend on their scale.
            factor = None if graph.conductance is None else power_of_two(graph, q is not None)
            w = (w if factor is None else w * factor[graph.batch[graph.tail]]).to(self.unit.dtype)
            diagonal = w.new_zeros(self.num_filters, graph.num_nodes)
            diagonal = diagonal.index_add(1, graph.tail, w).index_add(1, graph.head, w)
            if factor is not None and q is not None:
                q = q * factor[graph.batch]
        if q is not None:
            diagonal = diagonal + q.to(self.unit.dtype)
        scale = inverse_sqrt(diagonal)
        both = scale.index_select(1, graph.tail) * scale.index_select(1, graph.head)
        return both if w is None else w * both

    def _large_graphs(self, graph: Graph) -> list[int]:
        """Return the numbers of graphs whose exact computation takes too long for ``probes="auto"``."""
        may_be_large = self.probe_kind == "auto" and graph.max_nodes > EXACT_NODES
        return self._find_large_graphs(graph) if may_be_large else []

    @torch.compiler.disable  # the result depends on the data
    def _find_large_graphs(self, graph: Graph) -> list[int]:
        sizes = graph.ptr.diff()
        work = self.num_layers * self.num_filters * sizes.double() * (sizes + 2 * graph.edge_counts)
        limit = EXACT_WORK_ONCE if self.encodes_once else EXACT_WORK
        return ((sizes > EXACT_NODES) & (work > limit)).nonzero().flatten().tolist()

    @torch.compiler.disable  # the control flow depends on the data
    def _one_by_one(
        self,
        graph: Graph,
        adjacency: Tensor,
        large: list[int],
        generator: torch.Generator | None,
        read_edges: bool,
    ) -> tuple[Tensor, Tensor]:
        """Compute :meth:`gram` of a batch with large graphs: each large graph separately, runs of others together."""
        seed = self.seed if generator is None else draw_seed(generator)
        first_node, first_edge = graph.ptr.tolist(), graph.edge_ptr.tolist()
        parts = []
        bounds = sorted({0, graph.num_graphs, *large, *(number + 1 for number in large)})
        for start, stop in itertools.pairwise(bounds):
            low, high = first_node[start], first_node[stop]
            edges = slice(first_edge[start], first_edge[stop])
            part, tail, head = adjacency[:, edges], graph.tail[edges] - low, graph.head[edges] - low
            if start in large:
                part = part.contiguous()
                parts.append(self._estimate_beyond_balls(part, tail, head, high - low, seed, read_edges))
            else:
                ptr = graph.ptr[start : stop + 1] - low
                structure = tail, head, ptr, high - low, int(ptr.diff().max())
                parts.append(matrix_polynomials(part, *structure, self.basis, self.num_layers))
        nodes, entries = zip(*parts, strict=True)
        return torch.cat(nodes), torch.cat(entries)

    def _estimate_beyond_balls(
        self, adjacency: Tensor, tail: Tensor, head: Tensor, num_nodes: int, seed: int, read_edges: bool
    ) -> tuple[Tensor, Tensor]:
        """Compute :meth:`gram` of one large graph: exact in the orders whose walks see few edges."""
        layers = self.num_layers
        orders = ball_orders(tail, head, num_nodes, layers + read_edges, BALL_VISITS)
        exact = ball_polynomials(adjacency, tail, head, orders, self.basis, layers, read_edges)
        if bool((orders == layers + read_edges).all()):
            return exact
        warnings.warn(
            f"a graph of {num_nodes // (1 + self.directed):,} nodes is too large to be encoded exactly: probes='auto' "
            f"estimates a part of the encoding from num_probes={self.num_probes} random signs, and more of them lower "
            f"the error; this {type(self).__name__} has out_channels={self.out_channels}, and columns that need long "
            "walks may be mostly noise",
            stacklevel=2,
        )
        options = self.basis, layers, self.num_probes, seed, read_edges
        with Progress(faster=f"fewer num_probes, or {LINEAR}"):
            estimates = estimated_polynomials(adjacency, tail, head, num_nodes, num_nodes, *options)
        layer = torch.arange(1, layers + 1, device=tail.device).repeat(self.num_filters)
        nodes = torch.where(layer <= orders.unsqueeze(1), exact[0], estimates[0])
        if not read_edges:
            return nodes, estimates[1]
        at_edges = torch.maximum(orders[tail], orders[head]) - 1
        edges = torch.where(layer <= at_edges.unsqueeze(1), exact[1], estimates[1])
        return nodes, edges
