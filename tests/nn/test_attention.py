"""The attention layers of the package, and one that a user registers."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from helpers import few, normal, randomize_, refusals, relative_error
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.nn import GINEConv

from tg_lpe import Encoder, GramTransformer, GraphTransformer
from tg_lpe.encoders import RRWP, RandomWalk
from tg_lpe.graph.graph import Graph
from tg_lpe.nn.attention import AttentionLayer, SharedState, make_attention, register_attention
from tg_lpe.nn.attention.edge import DropPath
from tg_lpe.nn.norms import NORMS
from tg_lpe.ops.segment import RowGroups
from tg_lpe.testing.attention_test_case import (
    BATCH,
    CHANNELS,
    EDGES,
    GRAPHS,
    AttentionTestCase,
    make_layer,
    pair_encoding,
)

NORM_VARIANTS: list[dict[str, Any]] = [{"norm": norm} for norm in NORMS]


class TestEdgeAttention(AttentionTestCase):
    name = "edge"
    variants: ClassVar[list[dict[str, Any]]] = [*NORM_VARIANTS, {"local": "gine"}]

    def expected(self, layer: Any, h: Tensor, e: Tensor, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Compute Dwivedi & Bresson's equations with dense incidence matrices, head by head, and PyG's GINE."""
        nodes = torch.eye(len(h), dtype=h.dtype)
        source, target = nodes[edge_index[0]], nodes[edge_index[1]]  # [num_edges, num_nodes]
        attention = layer.attention
        key, value = (source @ part for part in attention.key_value(h).chunk(2, 1))
        width = h.size(1) // attention.heads
        score = (target @ attention.query(h)) * key * attention.edge(e) / width**0.5
        out = torch.zeros_like(h)
        for head in range(attention.heads):
            part = slice(head * width, (head + 1) * width)
            weight = target.T * score[:, part].sum(1).clamp(-5, 5).exp()  # [num_nodes, num_edges]
            share = weight / weight.sum(1, keepdim=True).clamp(min=1e-6)
            out[:, part] = share @ value[:, part]
        local = 0.0 if layer.local is None else GINEConv(layer.local.net)(h, edge_index, e)
        return (
            dense_update(layer.node_update, h, out, batch, local),
            dense_update(layer.edge_update, e, score, batch[edge_index[1]]),
        )


def normed(norm: Any, x: Tensor, graph: Tensor) -> Tensor:
    """A norm, which tests/nn/test_norms.py compares with others', of rows of these graphs."""
    return norm(x, RowGroups(graph, GRAPHS))


def dense_update(update: Any, x: Tensor, change: Tensor, graph: Tensor, local: Tensor | float = 0.0) -> Tensor:
    """Output map and feed-forward net, each with residual and norm, written out."""
    x = normed(update.norm_attention, x + update.out(change) + local, graph)
    hidden = update.feed_forward[0](x).clamp(min=0)
    return normed(update.norm_feed_forward, x + update.feed_forward[2](hidden), graph)


class TestGPS(AttentionTestCase):
    name = "gps"
    variants: ClassVar[list[dict[str, Any]]] = NORM_VARIANTS

    def expected(self, layer: Any, h: Tensor, e: Tensor, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        """PyTorch Geometric's own forward pass of the same module, whose norms do not ask for graphs."""
        gps, groups = layer.layer, RowGroups(batch, GRAPHS)
        hooks = [
            norm.register_forward_pre_hook(lambda _, x: (x[0], groups)) for norm in (gps.norm1, gps.norm2, gps.norm3)
        ]
        try:
            return gps(h, edge_index, batch, edge_attr=e), e
        finally:
            for hook in hooks:
                hook.remove()


class TestBias(AttentionTestCase):
    name = "bias"
    variants: ClassVar[list[dict[str, Any]]] = [
        *({**variant, "pair_channels": 3} for variant in NORM_VARIANTS),
        {"pair_channels": 3, "local": "gine"},
        {},
    ]

    def expected(self, layer: Any, h: Tensor, e: Tensor, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Graphormer's equation with dense matrices, head by head."""
        inner, attention = layer.layer, layer.layer.attention
        pairs, _ = dense_pairs(layer, edge_index, batch)
        width = h.size(1) // attention.heads
        query, key, value = attention.query_key_value(h).chunk(3, 1)
        out = torch.zeros_like(h)
        for head in range(attention.heads):
            part = slice(head * width, (head + 1) * width)
            score = query[:, part] @ key[:, part].T / width**0.5
            if pairs is not None:
                score = score + pairs @ attention.pair.weight[head]
            for number, (source, target) in enumerate(edge_index.T.tolist()):
                score[target, source] = score[target, source] + e[number] @ attention.edge.weight[head]
            out[:, part] = score.masked_fill(batch[:, None] != batch, -torch.inf).softmax(1) @ value[:, part]
        local = 0.0 if inner.local is None else GINEConv(inner.local.net)(h, edge_index, e)
        return dense_update(inner.update, h, out, batch, local), e


class TestPairs(AttentionTestCase):
    name = "pairs"
    half_tolerance = 0.2  # without a norm 0.02; here graphs of one node are divided by next to nothing
    variants: ClassVar[list[dict[str, Any]]] = [*({**variant, "pair_channels": 3} for variant in NORM_VARIANTS), {}]

    def expected(self, layer: Any, h: Tensor, e: Tensor, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        """The equations of Ma et al. on all pairs of nodes at once; the features of pairs are compared here."""
        inner, attention = layer.layer, layer.layer.attention
        given, count = dense_pairs(layer, edge_index, batch)
        n, channels = h.shape
        pairs = torch.zeros(n, n, channels, dtype=h.dtype) if given is None else layer.shared.linear(given)
        for number, (source, target) in enumerate(edge_index.T.tolist()):
            pairs[target, source] += e[number]
        scale, shift = attention.pair_scale(pairs), attention.pair_shift(pairs)
        key, value = attention.key_value(h).chunk(2, 1)
        product = (attention.query(h)[:, None] + key) * scale
        hat = (product.clamp(min=0).sqrt() - (-product).clamp(min=0).sqrt() + shift).clamp(min=0)
        apart, width, out = batch[:, None] != batch, channels // attention.heads, torch.zeros_like(h)
        for head in range(attention.heads):
            part = slice(head * width, (head + 1) * width)
            weight = (hat[:, :, part] @ attention.score[head]).masked_fill(apart, -torch.inf).softmax(1)
            sent = value[:, part] + hat[:, :, part] @ attention.pair_value[head]
            out[:, part] = (weight.unsqueeze(2) * sent).sum(1)
        out = inner.out(out)
        out = out * inner.scale + torch.log(1 + count)[:, None] * out * inner.degree_scale
        x = normed(inner.norm_attention, h + out, batch)
        x = normed(inner.norm_feed_forward, x + inner.feed_forward(x), batch)
        own = normed(inner.pair_norm, (pairs + inner.pair_out(hat))[~apart], batch[(~apart).nonzero()[:, 0]])
        graph = Graph(edge_index, batch=batch, num_graphs=GRAPHS)
        state = layer.shared(graph, pair_encoding(graph) if layer.has_pairs else None, graph.sort_edges(e))
        assert relative_error(inner(h, graph.sort_edges(e), graph, state)[2].values, own) < 1e-12
        return x, e


def dense_pairs(layer: Any, edge_index: Tensor, batch: Tensor) -> tuple[Tensor | None, Tensor]:
    """The encoding of pairs of the test case, ``[num_nodes, num_nodes, 3]``, and the number of edges at nodes."""
    n, graph = len(batch), Graph(edge_index, batch=batch, num_graphs=GRAPHS)
    out = torch.zeros(n, n, 3, dtype=torch.float64)
    out[graph.pairs[0], graph.pairs[1]] = pair_encoding(graph)
    return out if layer.has_pairs else None, edge_index[1].bincount(minlength=n).double()


def test_pairs_of_the_last_layer_are_not_updated() -> None:
    model = GraphTransformer(hidden_channels=8, heads=2, num_layers=2, attention="pairs", encoder=RRWP(4))
    assert [layer.pair_out is None for layer in model.layers] == [False, True]
    model(None, EDGES, batch=BATCH, num_graphs=GRAPHS).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("attention", ["bias", "pairs"])
def test_attention_over_pairs_compiles_as_a_whole(attention: str) -> None:
    """Values and gradients, once the graph has listed its pairs."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = make_layer(attention, {"pair_channels": 3}).double()
    graph = Graph(EDGES, batch=BATCH, num_graphs=GRAPHS)
    h, e = normal(len(BATCH), CHANNELS), normal(EDGES.size(1), CHANNELS)
    state = layer.shared(graph, pair_encoding(graph), e)

    def run(layer: Any) -> list[Tensor]:
        h_out, _, new = layer(h, e, graph, state)
        loss = h_out.square().sum() + new.values.square().sum()
        return [h_out, *torch.autograd.grad(loss, list(layer.parameters()))]

    expected = run(layer.layer)  # reads the views of the graph
    compiled = torch.compile(layer.layer, backend="aot_eager", fullgraph=True)
    for got, wanted in zip(run(compiled), expected, strict=True):
        assert relative_error(got, wanted) < 1e-12


@pytest.mark.parametrize("attention", ["bias", "pairs"])
def test_graphs_of_too_many_nodes_are_refused(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before memory is allocated for their pairs."""
    monkeypatch.setattr(Graph, "pairs", property(lambda _: pytest.fail("pairs were made")))
    model = GraphTransformer(
        hidden_channels=8, heads=2, attention=attention, attention_options={"max_nodes": 3}, encoder=RRWP(4)
    )
    with pytest.raises(ValueError, match="larger ones: max_nodes in attention_options, or attention='edge'"):
        model(None, EDGES, batch=BATCH, num_graphs=GRAPHS)
    with pytest.raises(ValueError, match="pair_channels"):
        GraphTransformer(hidden_channels=8, attention=attention, attention_options={"pair_channels": 3})


@pytest.mark.parametrize("attention", ["bias", "pairs"])
@pytest.mark.parametrize("encoder", [RRWP(4), GramTransformer(4, pair_out_channels=3), RandomWalk(4), None])
def test_models_read_the_pairs_of_their_encoder(attention: str, encoder: Encoder | None) -> None:
    """Equivariant, the same in a batch as alone, and a gradient for each weight of the encoder."""
    torch.manual_seed(0)
    model = GraphTransformer(hidden_channels=8, heads=2, num_layers=2, attention=attention, encoder=encoder)
    model = randomize_(model).double().eval()
    out = model(None, EDGES, batch=BATCH, num_graphs=GRAPHS)
    alone = model(None, EDGES[:, :6], num_nodes=4)
    assert relative_error(out[:1], alone) < 1e-10
    label = torch.tensor([2, 0, 3, 1])
    assert relative_error(model(None, label[EDGES[:, :6]], num_nodes=4), alone) < 1e-10
    out.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@few
@given(st.data())
def test_edges_by_target_and_padded_nodes(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    n = len(batch)
    ends = st.integers(0, max(n - 1, 0))
    pairs = data.draw(st.lists(st.tuples(ends, ends), max_size=10 if n else 0))
    pairs = [(u, v) for u, v in pairs if batch[u] == batch[v]]
    index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T.contiguous()
    found = Graph(index, batch=batch, num_graphs=len(sizes))
    assert (found.num_nodes, found.num_directed_edges, found.num_graphs) == (n, len(pairs), len(sizes))
    by_target = sorted(range(len(pairs)), key=lambda i: pairs[i][1])  # stable
    assert found.edges_by_target.T.tolist() == [list(pairs[i]) for i in by_target]
    assert found.sort_edges(torch.arange(len(pairs))).tolist() == by_target
    assert found.edge_graphs.index.tolist() == [int(batch[pairs[i][1]]) for i in by_target]
    assert found.max_nodes == max(sizes)
    x = normal(n, 3) + 9.0
    padded = found.pad(x)
    assert padded.shape == (len(sizes), max(sizes), 3)
    for graph, size in enumerate(sizes):
        assert found.padding[graph].tolist() == [False] * size + [True] * (max(sizes) - size)
        assert torch.equal(padded[graph, :size], x[batch == graph])
        assert not padded[graph, size:].any()
    assert torch.equal(found.unpad(padded), x)
    listed = [(u, v) for u in range(n) for v in range(n) if batch[u] == batch[v]]
    assert found.num_pairs == len(listed) and found.pairs.T.tolist() == [list(pair) for pair in listed]
    assert found.pair_number(*found.pairs).tolist() == list(range(len(listed)))
    assert found.pairs[:, found.edge_pairs].tolist() == found.edges_by_target.flip(0).tolist()
    values = normal(len(listed), 2)
    dense = torch.zeros(n, n, 2, dtype=values.dtype)
    dense[found.pairs[0], found.pairs[1]] = values
    blocks = found.pad_pairs(values)
    for graph, size in enumerate(sizes):
        own = (batch == graph).nonzero().flatten()
        assert torch.equal(blocks[graph, :size, :size], dense[own][:, own])
        assert not blocks[graph, size:].any() and not blocks[graph, :, size:].any()
    assert torch.equal(found.unpad_pairs(blocks), values)


def test_layers_that_share_weights_and_hand_on_a_state() -> None:
    class First(SharedState):
        def __init__(self, hidden_channels: int) -> None:
            super().__init__()
            self.row = nn.Parameter(torch.randn(hidden_channels))

        def reset_parameters(self) -> None:
            nn.init.normal_(self.row)

        def forward(self, neighbourhoods: Graph) -> Tensor:
            return self.row.expand(neighbourhoods.num_graphs, -1)

    @register_attention("running sum")
    class RunningSum(AttentionLayer):
        """Adds to the state of each graph the mean of its nodes, and to each node the state of its graph."""

        def __init__(self, hidden_channels: int, heads: int, *, scale: float = 1.0) -> None:
            super().__init__()
            self.hidden_channels, self.scale = hidden_channels, scale

        def shared(self) -> First:
            return First(self.hidden_channels)

        def forward(self, h: Tensor, e: Tensor, neighbourhoods: Graph, state: Tensor) -> tuple[Tensor, ...]:
            state = state + self.scale * neighbourhoods.graphs.mean(h)
            return h + neighbourhoods.graphs.gather(state), e, state

    torch.manual_seed(0)
    model = GraphTransformer(
        hidden_channels=8, num_layers=2, attention="running sum", attention_options={"scale": 2.0}
    ).double()
    row, state = model.node_embedding.rows.weight, model.shared.row
    assert "shared.row" in model.state_dict()
    h = row
    for _ in range(2):
        state = state + 2 * h
        h = h + state
    got = model(None, EDGES[:, :0], num_nodes=3)
    assert relative_error(got, model.readout(h)) < 1e-12
    before = model.shared.row.detach().clone()
    model.reset_parameters()
    assert not torch.equal(model.shared.row, before)


test_options_are_checked = refusals(
    lambda name, options: make_attention(name, 8, 2, options),
    (("other", {}), r"attention must be one of \['edge'.*\], got 'other'"),
    (("edge", {"tau": 1.0}), r"attention 'edge' takes the options \['dropout', 'norm', 'local', .*\], got tau=1.0"),
    (("edge", {"local": "gcn"}), "local must .*, got 'gcn'"),
    (("edge", {"update_edges": False}), "takes the options .*, got update_edges=False"),
    (("gps", {"update_edges": False}), r"attention 'gps' takes the options .*, got update_edges=False"),
    (("hybrid", {"local": "gine", "dropout": 1.0}), "dropout must be at least 0 and below 1, got 1.0"),
)


def test_the_last_layer_may_leave_edges_out() -> None:
    last, other = (make_attention("edge", 8, 2, {}, update_edges=update).double() for update in (False, True))
    other.load_state_dict({**other.state_dict(), **last.state_dict()})
    found = Graph(EDGES, batch=BATCH, num_graphs=GRAPHS)
    h, e = normal(len(BATCH), 8), normal(EDGES.size(1), 8, seed=1)
    assert torch.equal(last.eval()(h, e, found)[0], other.eval()(h, e, found)[0])
    assert last(h, e, found)[1] is e


def test_attention_dropout_leaves_the_mean_of_the_values() -> None:
    """The weights that are kept are scaled up, so that the mean over many draws is attention without dropout."""
    plain, dropping = (make_attention("edge", 8, 2, {"attention_dropout": p}).attention.double() for p in (0.0, 0.5))
    dropping.load_state_dict(plain.state_dict())
    found = Graph(EDGES, batch=BATCH, num_graphs=GRAPHS)
    h, e = normal(len(BATCH), 8), normal(EDGES.size(1), 8, seed=1)
    torch.manual_seed(0)
    drawn = torch.stack([dropping(h, e, found)[0] for _ in range(400)])
    expected = plain(h, e, found)[0]
    assert ((drawn.mean(0) - expected).abs() <= 5 * drawn.std(0) / 20 + 1e-12).all()
    assert (drawn.std(0)[EDGES[1].unique()] > 0).all()


def test_drop_path_skips_whole_graphs() -> None:
    graphs = RowGroups(torch.arange(500).repeat_interleave(2), 500, is_sorted=True)
    x, drop = normal(1000, 3), DropPath(0.25)
    torch.manual_seed(0)
    factor = drop(x, graphs) / x
    by_graph = factor.view(500, 6)
    assert relative_error(by_graph, by_graph[:, :1].expand(-1, 6)) < 1e-12
    kept = by_graph[:, 0] > 0
    assert relative_error(by_graph[kept], torch.full((int(kept.sum()), 6), 1 / 0.75, dtype=torch.float64)) < 1e-12
    assert abs(float(kept.double().mean()) - 0.75) < 0.1
    assert drop.eval()(x, graphs) is x and DropPath(0.0)(x, graphs) is x
