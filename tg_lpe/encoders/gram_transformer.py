"""The linear transformer with Gram read-outs of nodes and edges: equivariant, independent of signs and bases."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_choice, check_count, check_positive, check_seed
from tg_lpe.data.spec import DataSpec
from tg_lpe.encoders.base import Encoder, Encoding, LearnedTable, check_pairs
from tg_lpe.encoders.registry import register
from tg_lpe.graph.graph import Graph, inverse_sqrt
from tg_lpe.graph.padding import PaddedBatch
from tg_lpe.graph.wider import MagneticCover, WithPairs
from tg_lpe.nn._util import without_autocast
from tg_lpe.nn.conductances import LearnedConductances
from tg_lpe.nn.probes import draw_seed
from tg_lpe.ops.balls import ball_orders, ball_polynomials
from tg_lpe.ops.estimates import estimated_polynomials
from tg_lpe.ops.polynomials import (
    BASES,
    dense_polynomials,
    is_faster,
    matrix_polynomials,
)
from tg_lpe.ops.triangles import triangle_products

CONDUCTANCES = ("learned", "ground", "fixed")
GRAM_PROBES = ("auto", "identity", "rademacher")

EXACT_NODES = 256
"""Graphs of up to so many nodes ``probes="auto"`` computes exactly, whatever that takes."""

EXACT_WORK = 1e10
"""Multiplications up to which it computes larger graphs exactly: a training step takes about a second on two cores."""

EXACT_WORK_ONCE = 3e11
"""The same for an encoder that encodes each graph once: some six seconds on two cores."""

BALL_VISITS = 640
"""Edges around a node that ``probes="auto"`` looks at in a graph that is larger still, each counted from both ends."""

NEIGHBOURS = 64
"""Neighbours of an edge's end of lower degree, in the mean over the edges, up to which it looks for common ones."""

PARTS = {"nodes": ("at nodes", "of currents at nodes"), "edges": ("at edges", "of imaginary parts at edges")}
"""Parts that a linear map reads, half each; without directions the first alone."""

IDENTITY_LIMIT = 4096
"""Largest graph that ``probes="identity"`` accepts: a matrix of it has 64 MiB."""

MAX_PADDING = 1.15
"""Work grows with the cube of a bucket's ``max_nodes``, so its graphs differ in size by no more than this factor."""


@register
class GramTransformer(Encoder):
    r"""Linear transformer with the incidence held fixed, identity or random probes, and Gram read-outs.

    For each of ``num_filters`` filters, the incidence matrix ``B`` is weighted by learned conductances ``w`` (eq. (1)
    of the paper with ``w = 1/r``), nodes are grounded through learned conductances ``q``, and with
    ``L = B B^T + diag(q)``, ``D = diag(L)``, ``S = D^{-1/2} L D^{-1/2}`` the layers of eq. (16), with ``alpha^V = 0``,
    ``W^V = -I`` and no similarity between nodes, read

    .. math:: \Phi_t = (I - S) \Phi_{t-1} = P \Phi_{t-1}, \qquad \Phi_0 = V .

    So ``Phi_t = f_t(S) V``, and what is read of every layer is ``f_t(S)`` itself: its diagonal at the nodes and its
    entries at the edges. Both are equivariant under relabelling of the nodes and independent of signs and bases. With
    ``V = I`` they are exact. With ``num_probes`` columns of random signs the Gram matrix of two layers,
    ``Phi_s Phi_t^T / num_probes``, estimates ``f_s(S) f_t(S)`` without bias, in
    ``O(num_layers * num_filters * num_probes * num_edges)`` for a graph of any size.

    ``probes="auto"`` is exact where that takes about a second on two cores: ``num_layers * num_filters * num_nodes *
    (num_nodes + 2 num_edges)`` of up to 1e10, or up to 256 nodes; with the defaults and three edges a node, up to 4,700
    nodes. In a transform, which encodes a graph once, it is 3e11: some six seconds, up to 26,000 such nodes. In a
    larger graph, each order ``t`` is exact whose walks from a node and back see at most 640 edges: all in grids and
    road networks, the first four to six in graphs that expand. So is the second order at the edges, unless the graph is
    dense: the ends of lower degree have more than 64 neighbours in the mean. The others are estimated by random probes.
    Each graph of a batch is treated by itself, whatever else is in the batch. The exact part is equivariant; the
    estimated part is equivariant in distribution: relabelling changes it by as much as another seed would.

    With ``pair_out_channels``, :meth:`encode_with_pairs` reads the entries of ``f_t(S)`` at any pair of nodes too, as
    those of a graph in which asked-for pairs are edges of conductance zero: exact or estimated as above.

    With ``direction=q``, ``P`` is Hermitian: its entry at an edge that is listed from ``u`` to ``v`` alone is
    multiplied by ``exp(i 2 pi q)``, at ``(v, u)`` by the conjugate, as in the magnetic Laplacian of `MagNet
    <https://arxiv.org/abs/2102.11391>`_, section 2.2. At the listed edge and at pairs, the real parts of its
    polynomials ``f_t(u, v)`` are read and then the imaginary ones. At a node, where entries are real, the sum of
    ``|P_uv| Im f_t(u, v)`` over its edges is read too: the net current that leaves it. Turning all edges round changes
    the sign of imaginary parts and currents. It costs as much as a graph of twice the nodes and four times the edges.

    A node without edges and without ground has ``D = 0``; its row of ``P`` is zero.

    `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, eqs. (1), (16).

    Args:
        out_channels: width of the node encoding, through a linear map; if absent, all values that are read:
            ``num_filters * num_layers`` values.
        edge_out_channels: width of the edge encoding likewise; 0 for none.
        num_filters: filters, each with conductances of its own.
        num_layers: layers, each of them read.
        basis: ``"power"`` as above, or ``"chebyshev"``: ``Phi_t = 2 P Phi_{t-1} - Phi_{t-2}``, the same space of
            filters in a basis that does not decay.
        probes: ``"identity"``, exact, up to 4,096 nodes; ``"rademacher"``, random; or ``"auto"``: exact as far as
            described above, random beyond.
        num_probes: number of random probes.
        seed: of random probes.
        num_edge_types, edge_dim: categories or width of the edge features that decide conductances.
        num_node_types, in_channels: categories or width of the node features that decide ground conductances.
        conductances: ``"learned"``: those of edges depend on their features, and nodes are grounded through learned
            ones; ``"ground"``: only nodes are grounded so; ``"fixed"``: neither, the layers walk on the graph as it is.
        pair_out_channels: width of the encoding of pairs, through a linear map; ``None`` for all values that are read,
            0 for no encoding of pairs.
        direction: potential ``q`` of listed directions, see above: 0.25 tells one step best, smaller ones count more of
            them; if absent, directions are not read. Widths without linear maps are then twice as large.

    Raises:
        ValueError: if an argument is out of range or two exclude each other.

    Warns:
        UserWarning: by calls, if ``probes="auto"`` estimates something of a graph.

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
        check_count("num_filters", num_filters)
        check_count("num_layers", num_layers)
        check_count("num_probes", num_probes)
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
        given = {name: size for name, size in sizes.items() if size is not None}
        if given and conductances == "fixed":
            told = ", ".join(f"{name}={size}" for name, size in given.items())
            raise ValueError(f"features decide nothing with conductances='fixed', got {told}")
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
        self.register_buffer("unit", torch.ones(()), persistent=False)  # carries the module's device and dtype
        self.direction, self.directed = direction, direction is not None
        width = num_filters * num_layers * (1 + self.directed)
        self.out_channels = width if out_channels is None else out_channels
        self.edge_out_channels = width if edge_out_channels is None else edge_out_channels
        # The bias reads Phi_0 = I, whose diagonal is one and whose entries at the edges are zero.
        self.readout = None if out_channels is None else nn.Linear(width, out_channels)
        self.edge_readout = nn.Linear(width, edge_out_channels, bias=False) if edge_out_channels else None
        self.pair_out_channels = width if pair_out_channels is None else pair_out_channels
        self.pair_readout = nn.Linear(width, pair_out_channels, bias=False) if pair_out_channels else None

    @classmethod
    def data_arguments(cls, spec: DataSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sizes of the features that learned conductances read; none of others."""
        learned = arguments.get("conductances", "learned") == "learned"
        return super().data_arguments(spec, arguments) if learned else {}

    @classmethod
    def reads_directions(cls, arguments: Mapping[str, Any]) -> bool:
        """Whether there is a ``direction``."""
        return arguments.get("direction") is not None

    def keep_channels(self, k: int) -> None:
        """Keep the first ``k`` rows of the nodes' linear map, as a view."""
        if self.readout is not None:
            self.out_channels = k
            for name, rows in list(self.readout.named_parameters()):
                self.readout.register_parameter(name, nn.Parameter(rows.detach()[:k], rows.requires_grad))

    @without_autocast
    def encode(
        self,
        graph: Graph,
        x: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
    ) -> Encoding:
        """Encode nodes and edges as :meth:`Encoder.encode` says; conductances of the graph are factors on learned ones.

        Without a ``generator`` the module's seed gives the same probes at every call; ``precomputed`` is not read.

        Raises:
            ValueError: on missing features, or a graph too large for identity probes.
        """
        return self._read_out(graph, *self.gram(graph, x, edge_attr, generator=generator))

    def _read_out(self, graph: Graph, node: Tensor, edge: Tensor) -> Encoding:
        """The encoding, from what :meth:`gram` returns."""
        node = node if self.readout is None else self.readout(node)
        if not self.edge_out_channels:
            return Encoding(node, None)
        edge = edge if self.edge_readout is None else self.edge_readout(edge)
        return Encoding(node, edge if self.directed else graph.spread_to_directed(edge))

    @without_autocast
    def encode_with_pairs(
        self,
        graph: Graph,
        pairs: Tensor,
        x: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
    ) -> tuple[Encoding, Tensor]:
        """Return :meth:`Encoder.encode_with_pairs`; the pairs ``(u, v)`` and ``(v, u)`` get equal rows.

        Raises:
            ValueError: if ``pair_out_channels`` is 0, a pair is in two graphs, or as :meth:`encode`.
        """
        if not self.pair_out_channels:
            return super().encode_with_pairs(graph, pairs)
        check_pairs(graph, pairs)
        wider = self._wider(graph, pairs)
        # The asked-for edges decide which orders are exact, so a large graph is encoded without them.
        alone = self.encode(graph, x, edge_attr, generator=generator) if self._large_graphs(wider.graph) else None
        node, edge, values = self._read_wider(wider, graph, self._adjacency(graph, x, edge_attr), generator)
        values = values if self.pair_readout is None else self.pair_readout(values)
        return alone or self._read_out(graph, node, edge), values

    def _wider(self, graph: Graph, pairs: Tensor) -> WithPairs | MagneticCover:
        """The graph whose polynomials are computed for entries at pairs, or of a Hermitian matrix."""
        return WithPairs(graph, pairs) if self.direction is None else MagneticCover(graph, pairs, self.direction)

    def _read_wider(
        self, wider: WithPairs | MagneticCover, graph: Graph, adjacency: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return :meth:`gram`, and values at the pairs."""
        rows = self._gram(wider.graph, wider.matrix(adjacency), generator, read_edges=True)
        node, edge, values = wider.read(*rows)
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
        """Return the entries that the layers compute, before any read-out.

        Returns:
            Diagonals of ``f_t(S)``, ``[num_nodes, num_filters * T]``, and entries at the edges,
            ``[num_edges, num_filters * T]`` (one row per undirected edge), filter by filter. With ``direction``, these
            and then currents, ``[num_nodes, 2 * num_filters * T]``; and at the directed edges real parts and then
            imaginary ones, ``[num_directed_edges, 2 * num_filters * T]``.
        """
        adjacency = self._adjacency(graph, x, edge_attr)
        if not self.directed:
            return self._gram(graph, adjacency, generator, self.edge_out_channels > 0)
        cover = self._wider(graph, graph.edge_index[:, :0])
        return self._read_wider(cover, graph, adjacency, generator)[:2]

    def _gram(
        self, graph: Graph, adjacency: Tensor, generator: torch.Generator | None, read_edges: bool
    ) -> tuple[Tensor, Tensor]:
        """Return :meth:`gram` of entries of ``P`` at the edges; estimate at the edges only if they are read."""
        if self.probe_kind == "identity" and graph.max_nodes > IDENTITY_LIMIT:
            raise ValueError(
                f"probes='identity' writes out matrices of num_nodes x num_nodes and takes graphs of up to "
                f"{IDENTITY_LIMIT} nodes, got one of {graph.max_nodes}; probes='auto' and 'rademacher' take any"
            )
        num_nodes, max_nodes = graph.num_nodes, graph.max_nodes
        if graphs := self._large_graphs(graph):
            return self._one_by_one(graph, adjacency, graphs, generator, read_edges)
        exact = 0 if self.probe_kind == "rademacher" else max_nodes
        if exact and is_faster(adjacency, num_nodes, max_nodes):
            structure = graph.tail, graph.head, graph.ptr, num_nodes, max_nodes
            return matrix_polynomials(adjacency, *structure, self.basis, self.num_layers)
        padded = PaddedBatch(graph, dense_nodes=exact, max_padding=MAX_PADDING)
        is_exact = all(bucket.dense for bucket in padded.buckets)
        seed = self.seed if generator is None or is_exact else draw_seed(generator)
        nodes, edges, order = [], [], []
        for bucket, where in zip(padded.buckets, padded.edge_positions(), strict=True):
            part = adjacency if len(padded.buckets) == 1 else adjacency.index_select(1, where.edges)
            if bucket.dense:
                diagonals, entries = dense_polynomials(part, where, self.basis, self.num_layers)
                at_nodes, at_edges = diagonals.flatten(0, 1).mT, entries.flatten(0, 1).mT
            else:
                at_nodes, at_edges = estimated_polynomials(
                    part,
                    where.tail,
                    where.head,
                    where.num_graphs * where.max_nodes,
                    where.max_nodes,
                    self.basis,
                    self.num_layers,
                    self.num_probes,
                    seed,
                    read_edges,
                )
            nodes.append(at_nodes)
            edges.append(at_edges)
            order.append(where.edges)
        width = self.num_filters * self.num_layers
        if not nodes:
            return adjacency.new_zeros(num_nodes, width), adjacency.new_zeros(0, width)
        if len(edges) == 1:
            return padded.unpad_rows(nodes), edges[0].contiguous() if read_edges else edges[0]
        return padded.unpad_rows(nodes), torch.cat(edges).index_select(0, torch.argsort(torch.cat(order)))

    @torch.no_grad()
    def learned(self) -> list[LearnedTable]:
        """Conductances of edge types, ground conductances of node types, and the response of each filter.

        A channel of the encoding is the sum over filters of the diagonal of ``r(S)``, and for edges of its entries; the
        response ``r`` is a polynomial, evaluated at 101 eigenvalues of ``S`` in [0, 2].
        Without a linear map (``out_channels=None``) the responses are the basis and not listed; nor are conductances
        listed that depend on real features or several columns of types. With ``direction`` there are further responses:
        of currents, and of imaginary parts.
        """
        filters = tuple(f"filter {number}" for number in range(self.num_filters))
        tables = []
        for over, what in (("edge_attr", "conductance of edges"), ("x", "ground conductance of nodes")):
            values = self.conductances.of_types(over)
            if values is not None:
                tables.append(LearnedTable(what, over, torch.arange(values.size(0)), values.cpu(), filters))
        eigenvalues = torch.linspace(0.0, 2.0, 101, dtype=torch.float64)
        basis = self._basis(1.0 - eigenvalues)
        for level, readout in (("nodes", self.readout), ("edges", self.edge_readout)):
            if readout is not None:
                weights = readout.weight.double().cpu().view(-1, 1 + self.directed, self.num_filters, basis.size(1))
                for part, of_part in zip(PARTS[level], weights.unbind(1), strict=False):
                    responses = torch.einsum("et,cft->efc", basis, of_part)
                    tables.append(LearnedTable(f"response {part}", "eigenvalue", eigenvalues, responses, filters))
        return tables

    def _basis(self, p: Tensor) -> Tensor:
        """The polynomials of the layers at eigenvalues ``p`` of ``P``, ``[num_values, num_layers]``."""
        alpha, gamma = BASES[self.basis]
        chain = [torch.ones_like(p), p]
        for _ in range(self.num_layers - 1):
            chain.append(alpha * p * chain[-1] - gamma * chain[-2])
        return torch.stack(chain[1:], dim=1)

    def _adjacency(self, graph: Graph, x: Tensor | None, edge_attr: Tensor | None) -> Tensor:
        """Entries of ``P`` at the edges, ``w_e / sqrt(D_i D_j)``, ``[num_filters, num_edges]``."""
        w, q = self.conductances(graph, x, edge_attr)
        if w is None:
            diagonal = graph.laplacian_diagonal(self.unit).expand(self.num_filters, -1)
        else:
            # P does not depend on the scale of a graph's conductances, and they may be outside of the dtype's range.
            factor = None if graph.conductance is None else _factor(graph, graph.conductance, q is not None)
            w = (w if factor is None else w * factor[graph.batch[graph.tail]]).to(self.unit.dtype)
            diagonal = w.new_zeros(self.num_filters, graph.num_nodes)
            diagonal = diagonal.index_add(1, graph.tail, w).index_add(1, graph.head, w)
            ground = graph.ground  # the graph's own, added to the learned one
            if factor is not None:
                of_node = factor[graph.batch]
                q, ground = (None if part is None else part * of_node for part in (q, ground))
            if ground is not None:
                diagonal = diagonal + ground.to(self.unit.dtype)
        if q is not None:
            diagonal = diagonal + q.to(self.unit.dtype)
        scale = inverse_sqrt(diagonal)
        both = scale.index_select(1, graph.tail) * scale.index_select(1, graph.head)
        return both if w is None else w * both

    def _large_graphs(self, graph: Graph) -> list[int]:
        """Graphs of the batch whose exact computation takes too long for ``probes="auto"``."""
        is_any_large = self.probe_kind == "auto" and graph.max_nodes > EXACT_NODES
        return self._find_large_graphs(graph) if is_any_large else []

    @torch.compiler.disable  # what it finds depends on the data
    def _find_large_graphs(self, graph: Graph) -> list[int]:
        sizes = graph.ptr.diff()
        work = self.num_layers * self.num_filters * sizes.double() * (sizes + 2 * graph.edge_counts)
        limit = EXACT_WORK_ONCE if self.encodes_once else EXACT_WORK
        return ((sizes > EXACT_NODES) & (work > limit)).nonzero().flatten().tolist()

    @torch.compiler.disable  # what is computed of each graph depends on the data
    def _one_by_one(
        self,
        graph: Graph,
        adjacency: Tensor,
        large: list[int],
        generator: torch.Generator | None,
        read_edges: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return :meth:`gram` of a batch that contains large graphs: each by itself, those between together."""
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
        """Return :meth:`gram` of one large graph: exact in the orders that few edges decide."""
        layers = self.num_layers
        orders = ball_orders(tail, head, num_nodes, layers + read_edges, BALL_VISITS)
        exact = ball_polynomials(adjacency, tail, head, orders, self.basis, layers, read_edges)
        if bool((orders == layers + read_edges).all()):
            return exact
        warnings.warn(
            f"a graph of {num_nodes:,} nodes is too large to be encoded exactly: probes='auto' estimates a part of the "
            f"encoding from num_probes={self.num_probes} random signs, and more of them lower the error; this "
            f"{type(self).__name__} has out_channels={self.out_channels}, and columns that need long walks may be "
            "mostly noise",
            stacklevel=2,
        )
        options = self.basis, layers, self.num_probes, seed, read_edges
        estimates = estimated_polynomials(adjacency, tail, head, num_nodes, num_nodes, *options)
        layer = torch.arange(1, layers + 1, device=tail.device).repeat(self.num_filters)
        nodes = torch.where(layer <= orders.unsqueeze(1), exact[0], estimates[0])
        if not read_edges:
            return nodes, estimates[1]
        at_edges = torch.maximum(orders[tail], orders[head]) - 1
        edges = torch.where(layer <= at_edges.unsqueeze(1), exact[1], estimates[1])
        degree = torch.bincount(torch.cat([tail, head]), minlength=num_nodes)
        paths = torch.minimum(degree[tail], degree[head]).sum()
        if layers > 1 and bool(paths <= NEIGHBOURS * tail.numel()):
            # Near hubs balls are too large. The second order at an edge needs only common neighbours.
            squares = triangle_products(adjacency, adjacency, tail, head, num_nodes) * (BASES[self.basis][0] / 2)
            second = edges.view(-1, self.num_filters, layers)[:, :, 1]
            second.copy_(torch.where(at_edges.unsqueeze(1) < 2, squares.mT, second))
        return nodes, edges


@torch.no_grad()
def _factor(graph: Graph, conductance: Tensor, at_least_one: bool) -> Tensor:
    """A power of two for each graph that brings its largest conductance to one half at least, below one.

    Args:
        graph: the batch.
        conductance: those of its edges, ``[num_edges]``.
        at_least_one: whether there are further conductances of about one, which must not grow.

    Returns:
        ``[num_graphs]``.
    """
    largest = conductance.new_zeros(graph.num_graphs)
    largest = largest.scatter_reduce(0, graph.batch[graph.tail], conductance, "amax")
    if graph.ground is not None:
        largest = largest.scatter_reduce(0, graph.batch, graph.ground.to(largest.dtype), "amax")
    if at_least_one:
        largest = largest.clamp(min=1.0)
    exponent = torch.frexp(torch.where(largest > 0, largest, 1.0)).exponent
    most = math.frexp(torch.finfo(largest.dtype).max)[1] - 1
    return torch.ldexp(torch.ones_like(largest), (-exponent).clamp(-most, most))
