"""Learned encodings of Laplacian eigenpairs: spectral attention, and variants independent of signs and bases."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tg_lpe.arguments import check_choice, check_count, check_counts, check_flags, check_no_effect, check_shares
from tg_lpe.encoders.base import Encoder, Encoding, Inputs, check_precomputed
from tg_lpe.encoders.registry import register
from tg_lpe.graph.eigenspaces import bottom_eigenvectors, eigenspaces
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import in_chunks, without_autocast
from tg_lpe.nn.dot_product import token_attention
from tg_lpe.nn.probes import with_random_signs

TOKENS = ("eigenspaces", "eigenvectors")
NETS = ("transformer", "deep_set")
NORMALIZATIONS = (None, "sym")


class EigenpairEncoder(Encoder):
    """Base class of encoders that precompute and read the ``num_eigenpairs`` smallest eigenpairs of the Laplacian.

    Eigenpairs are computed in float64 and in batches. Eigenvectors of eigenvalue 0 are included. With
    ``normalization="sym"``, a node without edges has eigenvalue 1, as in the published code.
    """

    has_signs: bool = False
    """Whether a generator draws a random sign for each eigenvector of each graph."""

    def __init__(
        self,
        out_channels: int,
        edge_out_channels: int,
        num_eigenpairs: int,
        tokens: str,
        normalization: str | None,
        row_norm: bool,
    ) -> None:
        super().__init__()
        check_flags(row_norm=row_norm)
        check_count("num_eigenpairs", num_eigenpairs)
        check_counts(least=0, out_channels=out_channels, edge_out_channels=edge_out_channels)
        check_choice("tokens", tokens, TOKENS)
        check_choice("normalization", normalization, NORMALIZATIONS)
        self.out_channels, self.edge_out_channels = out_channels, edge_out_channels
        self.num_eigenpairs, self.tokens = num_eigenpairs, tokens
        self.normalization, self.row_norm = normalization, row_norm
        self.kind = "_".join([tokens, str(normalization), *(["row_norm"] if row_norm else [])])

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Return eigenvalues and their values at nodes and edges, in the dtype of the weights.

        The names end in a :attr:`kind` such as ``eigenspaces_sym``:

        - ``graph_eigenvalues_KIND``, ``[num_graphs, num_eigenpairs]``, NaN if a graph has fewer eigenvalues
        - ``node_spectrum_KIND``, ``[num_nodes, num_eigenpairs]``: entries of the eigenvectors, or ``sqrt(P_ii)`` for
          the projector ``P`` of each eigenspace
        - ``edge_spectrum_KIND``, ``[num_directed_edges, 2 num_eigenpairs]``, if edges are encoded:
          ``sqrt(P_ii + P_jj - 2 P_ij)`` and ``P_ij``, where ``P = phi phi^T`` for an eigenvector
        """
        options = {"normalization": self.normalization, "row_norm": self.row_norm}
        dtype = next(self.parameters()).dtype
        if self.tokens == "eigenvectors":
            node, values = bottom_eigenvectors(graph, self.num_eigenpairs, **options)  # type: ignore[arg-type]
            edges = slice(None) if self.edge_out_channels else slice(0)
            first, second = node[graph.tail[edges]], node[graph.head[edges]]
            distance, product = (first - second).abs(), first * second
        else:
            spaces = eigenspaces(graph, self.num_eigenpairs, edges=bool(self.edge_out_channels), **options)  # type: ignore[arg-type]
            values, node, distance, product = spaces
        tensors = self._named(values.to(dtype), node.to(dtype))
        if self.edge_out_channels:
            edge = graph.spread_to_directed(torch.cat([distance, product], dim=1))
            tensors[f"edge_spectrum_{self.kind}"] = edge.to(dtype)
        return tensors

    def _named(self, values: Tensor, node: Tensor) -> dict[str, Tensor]:
        return {f"graph_eigenvalues_{self.kind}": values, f"node_spectrum_{self.kind}": node}

    def encode(self, graph: Graph, inputs: Inputs) -> Encoding:
        """Encode nodes and edges, see :meth:`Encoder.encode`; the ``generator`` draws the signs of eigenvectors.

        Raises:
            ValueError: if ``precomputed`` belongs to another encoder or graph.
        """
        w = graph.conductance
        if w is not None and w.requires_grad:  # eigenpairs have no gradient
            graph = graph.with_conductances(w.detach())
        precomputed, names = inputs.precomputed, (f"graph_eigenvalues_{self.kind}", f"node_spectrum_{self.kind}")
        if precomputed is None:
            with torch.no_grad():
                precomputed = self.precompute(graph)
        else:
            edges = {f"edge_spectrum_{self.kind}": 2 * self.num_eigenpairs} if self.edge_out_channels else {}
            check_precomputed(self, graph, precomputed, {**dict.fromkeys(names, self.num_eigenpairs), **edges})
        dtype = next(self.parameters()).dtype
        values, node = (precomputed[name].to(dtype) for name in names)
        if self.has_signs and self.out_channels:
            node = with_random_signs(node, graph, inputs.generator)
        # A graph has no more eigenpairs than nodes, and the first columns hold them.
        is_tracing = torch.compiler.is_compiling()
        m = self.num_eigenpairs if is_tracing else min(self.num_eigenpairs, max(graph.max_nodes, 1))
        values, node = values[:, :m], node[:, :m]
        absent = values.isnan()
        values = values.masked_fill(absent, 0.0)
        node = self.encode_nodes(graph, node, values, absent) if self.out_channels else node[:, :0]
        if not self.edge_out_channels:
            return Encoding(node)
        index, rows = graph.undirected_index, torch.arange(graph.num_directed_edges, device=node.device)
        # The last listed directed edge of each; self-loops have the index -1, and go to a last row that is cut off.
        last = rows.new_zeros(graph.num_edges + 1)
        last.scatter_reduce_(0, index.where(index >= 0, graph.num_edges), rows, "amax")
        edge = precomputed[f"edge_spectrum_{self.kind}"].to(dtype)[last[:-1]]
        distance, product = (part[:, :m] for part in edge.chunk(2, dim=1))
        edge = self.encode_edges(graph, distance, product, values, absent)
        return Encoding(node, graph.spread_to_directed(edge))

    @abstractmethod
    def encode_nodes(self, graph: Graph, node: Tensor, values: Tensor, absent: Tensor) -> Tensor:
        """Encode the nodes.

        Args:
            graph: the graph or batch.
            node: the first ``m`` columns of ``node_spectrum`` of :meth:`precompute`, ``[num_nodes, m]``; a graph of the
                batch may have as many nodes.
            values: eigenvalues ``[num_graphs, m]``; zero if absent.
            absent: whether an eigenvalue is absent, bool ``[num_graphs, m]``.

        Returns:
            ``[num_nodes, out_channels]``.
        """

    def encode_edges(self, graph: Graph, distance: Tensor, product: Tensor, values: Tensor, absent: Tensor) -> Tensor:
        """Encode undirected edges, ``[num_edges, edge_out_channels]``, see :meth:`encode_nodes`."""
        raise NotImplementedError(f"{type(self).__name__} encodes no edges")


@register
class SpectralEncoder(EigenpairEncoder):
    r"""Encode nodes and edges by a transformer over the Laplacian spectrum.

    See `Rethinking Graph Transformers with Spectral Attention <https://arxiv.org/abs/2106.03893>`_, section 4. The
    tokens of a node or edge are the ``num_eigenpairs`` smallest eigenvalues, each with the entries of its eigenvector:
    ``(phi_li, lambda_l)`` at a node, ``(|phi_li - phi_lj|, phi_li phi_lj, lambda_l)`` at an edge. A linear map and
    ``num_layers`` transformer encoder layers process the tokens of one node or edge; the outputs are summed.

    ``tokens="eigenvectors"`` selects these published tokens. The node encoding then depends on the signs of the
    eigenvectors, so a ``generator``, as in training, draws random signs at each call. If an eigenvalue repeats, both
    encodings also depend on an arbitrary basis.

    ``tokens="eigenspaces"``, the default, has a token for each eigenspace, with its projector ``P``:
    ``(sqrt(P_ii), lambda)`` at a node and ``(sqrt(P_ii + P_jj - 2 P_ij), P_ij, lambda)`` at an edge. It is independent
    of signs and bases, and equals the published edge encoding if no eigenvalue repeats.

    ``net="deep_set"`` maps each token separately, through one hidden layer of twice the width, and sums the outputs:
    LapPE of `Recipe for a General, Powerful, Scalable Graph Transformer <https://arxiv.org/abs/2205.12454>`_.

    Args:
        out_channels: width ``k`` of the node encoding; 0 for none. It must be divisible by ``heads``.
        edge_out_channels: width of the edge encoding; 0 for none. It must be divisible by ``heads``.
        num_eigenpairs: number of eigenvalues ``m``, counted with multiplicity, zeros included. A graph may have fewer.
        num_layers: number of transformer layers. A deep set does not read ``num_layers``, ``heads``,
            ``feedforward_channels`` and ``dropout``.
        heads: number of attention heads.
        feedforward_channels: hidden width of the feed-forward nets. The published models use 2048, which causes
            nearly all of their cost.
        tokens: ``"eigenspaces"`` or ``"eigenvectors"``.
        normalization: ``"sym"`` or ``None``, normalization of the Laplacian as in PyG.
        row_norm: whether to scale the entries of each node to norm one, as the published code does.
        flip_signs: whether a generator draws random signs for ``tokens="eigenvectors"``.
        dropout: dropout of the transformer layers. The published code has 0.1 in all its models.
        net: ``"transformer"`` or ``"deep_set"``.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import SpectralEncoder
        >>> SpectralEncoder(out_channels=8)(None, torch.tensor([[0, 1, 2], [1, 2, 0]])).node.shape
        torch.Size([3, 8])
    """

    def __init__(
        self,
        out_channels: int = 8,
        edge_out_channels: int = 8,
        num_eigenpairs: int = 10,
        num_layers: int = 2,
        heads: int = 4,
        feedforward_channels: int = 64,
        tokens: str = "eigenspaces",
        normalization: str | None = "sym",
        row_norm: bool = False,
        flip_signs: bool = True,
        dropout: float = 0.0,
        net: str = "transformer",
    ) -> None:
        super().__init__(out_channels, edge_out_channels, num_eigenpairs, tokens, normalization, row_norm)
        check_flags(flip_signs=flip_signs)
        check_choice("net", net, NETS)
        check_counts(num_layers=num_layers, heads=heads, feedforward_channels=feedforward_channels)
        for name, width in (("out_channels", out_channels), ("edge_out_channels", edge_out_channels)):
            if net == "transformer" and width % heads:
                raise ValueError(f"{name} must be divisible by heads={heads}, got {width}")
        check_shares(dropout=dropout)
        if net != "transformer":
            check_no_effect(
                f"net={net!r}",
                num_layers=(num_layers, 2),
                heads=(heads, 4),
                feedforward_channels=(feedforward_channels, 64),
                dropout=(dropout, 0.0),
            )
        self.num_layers, self.heads, self.feedforward_channels = num_layers, heads, feedforward_channels
        self.flip_signs, self.dropout = flip_signs, dropout
        self.has_signs = flip_signs and tokens == "eigenvectors"
        self.net, self.row_width = net, 2 * num_eigenpairs * max(out_channels, edge_out_channels, feedforward_channels)
        options = (num_layers, heads, feedforward_channels, dropout) if net == "transformer" else ()
        make: type[nn.Module] = TokenTransformer if net == "transformer" else TokenSet
        self.node_net = make(2, out_channels, *options) if out_channels else None
        self.edge_net = make(3, edge_out_channels, *options) if edge_out_channels else None

    def encode_nodes(self, graph: Graph, node: Tensor, values: Tensor, absent: Tensor) -> Tensor:
        """Return the rows of the nodes, see :meth:`EigenpairEncoder.encode_nodes`."""
        batch = graph.batch
        tokens = torch.stack([node, values[batch]], dim=2)
        return in_chunks(self.node_net, self.row_width, tokens, absent[batch])  # type: ignore[arg-type]

    def encode_edges(self, graph: Graph, distance: Tensor, product: Tensor, values: Tensor, absent: Tensor) -> Tensor:
        """Return the rows of the edges, see :meth:`EigenpairEncoder.encode_edges`."""
        batch = graph.batch[graph.tail]
        tokens = torch.stack([distance, product, values[batch]], dim=2)
        return in_chunks(self.edge_net, self.row_width, tokens, absent[batch])  # type: ignore[arg-type]


@register
class SpectralKernel(EigenpairEncoder):
    r"""Encode nodes and edges by learned functions of the Laplacian: ``f(L)_ii``, ``f(L)_ij`` and ``d^2_ij``.

    It replaces the attention of :class:`SpectralEncoder` by sums over the eigenspaces, at nodes and at edges:

    .. math:: \sum_l f_c(\lambda_l) (P_l)_{ii}, \qquad
        \sum_l f_c(\lambda_l) (P_l)_{ij} + g_c(\lambda_l) ((P_l)_{ii} + (P_l)_{jj} - 2 (P_l)_{ij}).

    A linear map plus a small net compute all ``f_c`` and ``g_c`` from Chebyshev polynomials of ``1 - lambda``, or of
    ``(1 - lambda) / (1 + lambda)`` without normalisation. The encoding is independent of signs and bases.

    With as many eigenpairs as nodes and ``f(lambda) = (1 - lambda)^t``, it equals the Gram read-out of ``t`` layers of
    :class:`~tg_lpe.GramTransformer`. Here ``f`` can be any function, and the spectrum is cut off at ``num_eigenpairs``.

    Args:
        out_channels: width of the node encoding; 0 for none.
        edge_out_channels: width of the edge encoding; 0 for none.
        num_eigenpairs: number of eigenvalues, counted with multiplicity, zeros included.
        hidden_channels: hidden width of the nets, one for nodes and one for edges.
        normalization: ``"sym"`` or ``None``, normalization of the Laplacian as in PyG.
        num_polynomials: number of Chebyshev polynomials.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import SpectralKernel
        >>> SpectralKernel(out_channels=8)(None, torch.tensor([[0, 1, 2], [1, 2, 0]])).node.shape
        torch.Size([3, 8])
    """

    def __init__(
        self,
        out_channels: int = 8,
        edge_out_channels: int = 8,
        num_eigenpairs: int = 32,
        hidden_channels: int = 64,
        normalization: str | None = "sym",
        num_polynomials: int = 17,
    ) -> None:
        super().__init__(out_channels, edge_out_channels, num_eigenpairs, "eigenspaces", normalization, row_norm=False)
        check_counts(hidden_channels=hidden_channels, num_polynomials=num_polynomials)
        self.hidden_channels, self.num_polynomials = hidden_channels, num_polynomials
        widths = num_polynomials, hidden_channels
        self.node_net = _Filters(*widths, out_channels) if out_channels else None
        self.edge_net = _Filters(*widths, 2 * edge_out_channels) if edge_out_channels else None

    @without_autocast
    def encode_nodes(self, graph: Graph, node: Tensor, values: Tensor, absent: Tensor) -> Tensor:
        """Return the rows of the nodes, see :meth:`EigenpairEncoder.encode_nodes`."""
        f = self.node_net(self._polynomials(values))  # type: ignore[misc]
        return torch.einsum("nm,nmc->nc", node.square(), f[graph.batch])

    @without_autocast
    def encode_edges(self, graph: Graph, distance: Tensor, product: Tensor, values: Tensor, absent: Tensor) -> Tensor:
        """Return the rows of the edges, see :meth:`EigenpairEncoder.encode_edges`."""
        f, g = self.edge_net(self._polynomials(values))[graph.batch[graph.tail]].chunk(2, dim=2)  # type: ignore[misc]
        return torch.einsum("nm,nmc->nc", product, f) + torch.einsum("nm,nmc->nc", distance.square(), g)

    def _polynomials(self, values: Tensor) -> Tensor:
        """Compute Chebyshev polynomials of the eigenvalues, ``[num_graphs, m, num_polynomials]``."""
        z = 1 - values if self.normalization == "sym" else (1 - values) / (1 + values)
        angle = z.clamp(-1.0, 1.0).arccos()  # rounding may leave the interval
        return (angle.unsqueeze(2) * torch.arange(self.num_polynomials, device=z.device)).cos()


class _Filters(nn.Module):
    """Map polynomials of an eigenvalue to the filters' responses: the sum of a linear map and a net."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)
        self.first = nn.Linear(in_channels, hidden_channels)
        self.second = nn.Linear(hidden_channels, out_channels)

    def forward(self, polynomials: Tensor) -> Tensor:
        """Return the responses ``[..., out_channels]``."""
        out: Tensor = self.linear(polynomials) + self.second(functional.gelu(self.first(polynomials)))
        return out


class TokenTransformer(nn.Module):
    """Apply a linear map and transformer encoder layers to the tokens of each row, and sum the outputs.

    The layers are torch's, with ReLU and norms after the residual sums. All start from equal weights, as in the
    published code.

    Args:
        in_channels: width of a token.
        out_channels: width of the result.
        num_layers, heads, feedforward_channels, dropout: arguments of the layers.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_layers: int,
        heads: int,
        feedforward_channels: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)
        layer = nn.TransformerEncoderLayer(out_channels, heads, feedforward_channels, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False).layers

    def forward(self, tokens: Tensor, absent: Tensor) -> Tensor:
        """Encode each row independently.

        Args:
            tokens: ``[num_rows, num_tokens, in_channels]``.
            absent: whether a token is padding, bool ``[num_rows, num_tokens]``; each row has at least one token.

        Returns:
            ``[num_rows, out_channels]``.
        """
        h = self.linear(tokens)
        if not len(h):
            return h.sum(1)
        layer: Any
        for layer in self.layers:  # torch's layer, with an attention that is faster for few tokens and narrow heads
            attention = layer.self_attn
            rows = functional.linear(h, attention.in_proj_weight, attention.in_proj_bias)
            dropout = attention.dropout if layer.training else 0.0
            attended = token_attention(rows.unflatten(2, (3, attention.num_heads, -1)), absent, dropout).flatten(2)
            h = layer.norm1(h + layer.dropout1(attention.out_proj(attended)))
            h = layer.norm2(h + layer.dropout2(layer.linear2(layer.dropout(layer.linear1(h).relu()))))
        return h.masked_fill(absent.unsqueeze(2), 0.0).sum(1)


class TokenSet(nn.Module):
    """Map each token separately, to twice the width and back with ReLU, and sum the outputs."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = nn.Linear(in_channels, 2 * out_channels)
        self.second = nn.Linear(2 * out_channels, out_channels)

    def forward(self, tokens: Tensor, absent: Tensor) -> Tensor:
        """Encode each row independently, see :meth:`TokenTransformer.forward`."""
        h = self.second(self.first(tokens).relu()).relu()
        return h.masked_fill(absent.unsqueeze(2), 0.0).sum(1)
