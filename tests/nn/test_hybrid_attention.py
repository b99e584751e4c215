"""Message passing with attention over all nodes agrees with published pseudo-code, dense algebra and PyG."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from helpers import attention_of, normal, randomize_, refusals, relative_error
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GINEConv, global_mean_pool
from torch_geometric.utils import to_dense_batch

from tg_lpe import GraphTransformer
from tg_lpe.graph.graph import Graph
from tg_lpe.nn.attention import (
    GLOBAL_ATTENTIONS,
    AttentionLayer,
    PrimalAttention,
    make_attention,
    register_global_attention,
)
from tg_lpe.nn.attention.gatedgcn import GatedGCN
from tg_lpe.testing.attention_test_case import BATCH, CHANNELS, EDGES, GRAPHS, HEADS, AttentionTestCase

PRIMAL = {"rank": 3, "num_rows": 5}


def algorithm_1(layer: Any, x: Tensor, batch: Tensor, fx: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The published pseudo-code, line by line; ``fx`` is ``[num_graphs, N_s, s]``. Returns out, fx and loss_svd."""
    heads = layer.heads
    x_dense, mask = to_dense_batch(x, batch, batch_size=len(fx))
    b, m = mask.shape
    fx = global_mean_pool(layer.virtual(x), batch, size=len(fx)).unsqueeze(1) + fx
    q = functional.normalize(layer.features.query(x_dense).view(b, m, heads, -1), p=2, dim=-1)
    k = functional.normalize(layer.features.key(x_dense).view(b, m, heads, -1), p=2, dim=-1)
    we_x = torch.einsum("bdv,vhe->bdhe", fx.transpose(2, 1), layer.weight_e)
    wr_x = torch.einsum("bdv,vhe->bdhe", fx.transpose(2, 1), layer.weight_r)
    escore = torch.einsum("bmhd,bhde->bmhe", q, we_x.permute(0, 2, 3, 1))[mask]
    rscore = torch.einsum("bmhd,bhde->bmhe", k, wr_x.permute(0, 2, 3, 1))[mask]
    out = layer.out(torch.cat((escore, rscore), dim=-1)).reshape(len(x), -1)
    loss_escore = (torch.einsum("nhd,hd->nhd", escore, layer.lambda_).norm(dim=-1, p=2) ** 2).mean() / 2
    loss_rscore = (torch.einsum("nhd,hd->nhd", rscore, layer.lambda_).norm(dim=-1, p=2) ** 2).mean() / 2
    trace = torch.einsum("dhe,ehk->dhk", layer.weight_e.permute(2, 1, 0), layer.weight_r).mean(dim=1).trace()
    return out, fx, (loss_escore + loss_rscore - trace) ** 2


def of_each_graph(module: Callable[[Tensor], Tensor], x: Tensor, batch: Tensor) -> Tensor:
    """A module of PyG, called with each graph by itself."""
    before, out = torch.get_default_dtype(), torch.zeros_like(x)
    torch.set_default_dtype(x.dtype)  # SGFormer makes ones of this dtype
    try:
        for graph in batch.unique():
            out[batch == graph] = module(x[batch == graph].unsqueeze(0)).squeeze(0)
    finally:
        torch.set_default_dtype(before)
    return out


def softmax(attention: Any, x: Tensor) -> Tensor:
    n, d = x.shape[1:]
    query, key, value = attention.query_key_value(x[0]).view(n, 3, attention.heads, -1).permute(1, 2, 0, 3)
    weight = (query @ key.mT / (d // attention.heads) ** 0.5).softmax(-1)
    return attention.out((weight @ value).transpose(0, 1).reshape(n, d)).unsqueeze(0)


def gated_gcn(local: Any, h: Tensor, e: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    source, target = edge_index
    gate = local.target(h)[target] + local.source(h)[source] + local.edge(e)
    share = torch.sigmoid(gate)
    found = torch.zeros_like(h)
    for node in range(len(h)):
        at = target == node
        found[node] = (share[at] * local.value(h)[source[at]]).sum(0) / (share[at].sum(0) + 1e-6)
    h = h + local.node_norm(local.own(h) + found).clamp(min=0)
    return h, e if local.edge_norm is None else e + local.edge_norm(gate).clamp(min=0)


class TestHybrid(AttentionTestCase):
    name = "hybrid"
    variants: ClassVar[list[dict[str, Any]]] = [
        {"global_options": PRIMAL},
        {"global_options": {**PRIMAL, "form": "published"}, "local": "gine"},
        {"global_options": {**PRIMAL, "eta": 0.0}, "local": "none", "norm": "none"},
        {"global_attention": "softmax", "local": "none"},
        {"global_attention": "performer", "local": "none", "global_options": {"head_channels": 3}},
        {"global_attention": "sgformer", "local": "none"},
        {"global_attention": "none"},
        {"global_attention": "none", "local": "gine"},
    ]

    def _randomized(self, options: dict[str, Any]) -> nn.Module:
        torch.manual_seed(0)  # the random features of Performer
        return super()._randomized(options)

    def expected(self, layer: Any, h: Tensor, e: Tensor, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        shared, layer = layer.shared, layer.layer
        y = torch.zeros_like(h)
        attention = layer.attention
        if isinstance(attention, PrimalAttention):
            fx = shared.projection.expand(GRAPHS, -1, -1)
            update = algorithm_1(attention, h, batch, fx)[0]
        elif attention is not None and hasattr(attention, "attention"):
            update = of_each_graph(attention.attention, h, batch)
        elif attention is not None:
            update = of_each_graph(lambda x: softmax(attention, x), h, batch)
        if attention is not None:
            y = y + layer.attention_norm(h + update)
        if hasattr(layer.local, "gine"):
            y = y + layer.local_norm(h + GINEConv(layer.local.gine.net)(h, edge_index, e))
        elif layer.local is not None:
            local, e = gated_gcn(layer.local, h, e, edge_index)
            y = y + layer.local_norm(local)
        first, second = layer.feed_forward[0], layer.feed_forward[3]
        return layer.norm(y + second(first(y).clamp(min=0))), e


@pytest.mark.parametrize("heads", [HEADS, 1])
@pytest.mark.parametrize("batch", [BATCH, torch.zeros_like(BATCH)])
def test_layers_hand_on_the_virtual_node_as_algorithm_1_does(batch: Tensor, heads: int) -> None:
    """Three layers: outputs, f_X and the loss of both forms, and all gradients."""
    graph = Graph(EDGES[:, :0], batch=batch)
    gradients, inputs = {}, normal(len(batch), CHANNELS, seed=3)
    for form in ("folded", "published", "algorithm 1"):
        options = {**PRIMAL, "form": "folded" if form == "algorithm 1" else form}
        layers = [attention_of(seed=seed, heads=heads, **options)[0] for seed in range(3)]
        shared = attention_of(heads=heads, **options)[1]
        x, penalty = inputs.clone().requires_grad_(), torch.zeros(())
        if form == "algorithm 1":
            h, fx = x, shared.projection.expand(graph.num_graphs, -1, -1)
            for layer in layers:
                h, fx, loss = algorithm_1(layer, h, batch, fx)
                penalty = penalty + 0.1 * loss
        else:
            h, state = x, shared(graph)
            for layer in layers:
                h, state = layer(h, graph, state)
            penalty, fx = state.penalty, state.projection + state.node.unsqueeze(1)
        fx = fx[batch.unique()]  # the pseudo-code gives graphs without nodes no bias
        parameters = [x, *shared.parameters(), *(p for layer in layers for p in layer.parameters())]
        loss = (h * normal(*h.shape, seed=7)).sum() + 3.0 * penalty
        gradients[form] = [h, fx, penalty, *torch.autograd.grad(loss, parameters)]
    for form in ("folded", "published"):
        for got, expected in zip(gradients[form], gradients["algorithm 1"], strict=True):
            assert relative_error(got, expected) < 1e-11
    for got, expected in zip(gradients["folded"], gradients["published"], strict=True):
        assert relative_error(got, expected) < 1e-12


@pytest.mark.parametrize(("num_rows", "heads"), [(5, 1), (5, 2), (CHANNELS, 4), (30, 2)])
def test_weights_start_orthogonal_over_all_heads_together(num_rows: int, heads: int) -> None:
    """``sum_h W_h W_h^T = I`` up to as many rows as channels; with more of them the columns are orthonormal."""
    attention = PrimalAttention(CHANNELS, heads, rank=3, num_rows=num_rows).double()
    for _ in range(2):
        for weight in (attention.weight_e, attention.weight_r):
            assert weight.shape == (num_rows, heads, CHANNELS // heads)
            if num_rows <= CHANNELS:
                product = sum(weight[:, head] @ weight[:, head].T for head in range(heads))
            else:
                product = weight.flatten(1).T @ weight.flatten(1)
            assert relative_error(product, torch.eye(len(product))) < 1e-5  # drawn in float32
        attention.reset_parameters()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_zeros_have_finite_gradients(dtype: torch.dtype) -> None:
    for name in GLOBAL_ATTENTIONS:
        attention, shared = attention_of(name, **(PRIMAL if name == "primal" else {}))
        attention, shared = attention.to(dtype), shared.to(dtype)
        h = torch.zeros(len(BATCH), CHANNELS, dtype=dtype, requires_grad=True)
        out, _ = attention(h, Graph(EDGES, batch=BATCH), shared(Graph(EDGES, batch=BATCH)))
        assert out.dtype == dtype
        out.sum().backward()
        assert h.grad is None or bool(h.grad.isfinite().all()), name


def test_a_users_own_attention() -> None:
    @register_global_attention("own")
    class Own(AttentionLayer):
        def __init__(self, hidden_channels: int, heads: int, *, slope: float = 1.0) -> None:
            super().__init__()
            self.slope = slope

        def forward(self, h: Tensor, neighbourhoods: Graph, state: Any) -> tuple[Tensor, Any]:
            return self.slope * neighbourhoods.graphs.gather(neighbourhoods.graphs.mean(h)), state

    options = {"global_attention": "own", "global_options": {"slope": 2.0}}
    model = GraphTransformer(hidden_channels=8, heads=2, num_layers=2, attention="hybrid", attention_options=options)
    assert model(None, EDGES, batch=BATCH, num_graphs=GRAPHS).shape == (GRAPHS, 1)


test_arguments = refusals(
    partial(make_attention, "hybrid", CHANNELS, HEADS),
    (({"local": "gcn"},), "local must .*, got 'gcn'"),
    (({"local": "none", "global_attention": "none"},), "leave nothing of the layer"),
    (({"global_attention": "none", "global_options": {"rank": 3}},), "takes no global_options"),
    (({"local": "gine", "pe_gate": True},), "local='gine' has no gates, so pe_gate must be False"),
    (({"local": "none", "pe_gate": True},), "local='none' has no gates, so pe_gate must be False"),
    (({"global_attention": "full"},), r"global_attention must be one of \['none', .*'primal'.*\], got 'full'"),
    (({"global_options": {"s": 3}},), "global_attention 'primal' takes the options .*'rank'.*, got s=3"),
    (({"global_options": 3},), "global_options must be a dictionary from argument names to values, got 3"),
    (({"global_options": {"eta": -1.0}},), "eta must be at least 0"),
    (
        ({"global_attention": "performer", "global_options": {"head_channels": 1}},),
        "head_channels must be an integer from 2 to 100,000, got 1",
    ),
)


def test_gates_read_distances_of_encodings() -> None:
    """Each gate times a net of the squared distance; rotations of the encoding change nothing."""
    layer = randomize_(GatedGCN(CHANNELS, norm="none", pe_gate=True), scale=0.7).double()
    h, e, pe = (
        normal(len(BATCH), CHANNELS, seed=3),
        normal(EDGES.size(1), CHANNELS, seed=4),
        normal(len(BATCH), 3, seed=5),
    )
    neighbourhoods = Graph(EDGES, batch=BATCH, num_graphs=GRAPHS)
    expected = torch.zeros_like(h)
    for i in range(len(h)):
        found, total = torch.zeros(CHANNELS).double(), torch.full((CHANNELS,), 1e-6).double()
        for edge, (j, target) in enumerate(neighbourhoods.edges_by_target.T.tolist()):
            if target == i:
                share = (layer.target(h[i]) + layer.source(h[j]) + layer.edge(e[edge])).sigmoid()
                share = share * layer.pe_gate((pe[i] - pe[j]).square().sum().reshape(1))
                found, total = found + share * layer.value(h[j]), total + share
        expected[i] = h[i] + (layer.own(h[i]) + found / total).relu()
    turned = pe @ torch.linalg.qr(normal(3, 3, seed=6)).Q
    for given in (pe, turned):
        source, target = neighbourhoods.edges_by_target
        found = layer(h, e, neighbourhoods, (given[source] - given[target]).square().sum(1, keepdim=True))[0]
        assert relative_error(found, expected) < 1e-12
    options = {"global_attention": "none", "pe_gate": True}
    model = GraphTransformer(attention="hybrid", attention_options=options, hidden_channels=CHANNELS, heads=2)
    with pytest.raises(ValueError, match="no encoding of nodes"):
        model(None, EDGES, batch=BATCH)


def test_encodings_that_layers_alone_read() -> None:
    """With ``merge="apart"`` the encoding reaches nodes through gates: where all are alike, any other is too."""
    options = {"global_attention": "none", "pe_gate": True}
    apart = {"pe_channels": 3, "pe_options": {"merge": "apart"}}
    model = GraphTransformer(**apart, attention="hybrid", attention_options=options).eval()
    pe = normal(len(BATCH), 3, seed=5).float()
    with torch.no_grad():
        alike, shifted, other = (model(None, EDGES, batch=BATCH, pe=p) for p in (0 * pe, 0 * pe + 7, pe))
    torch.testing.assert_close(alike, shifted)
    assert relative_error(other, alike) > 1e-4


def test_the_last_layer_leaves_edge_features() -> None:
    layer = make_attention("hybrid", CHANNELS, HEADS, {"global_attention": "none"}, update_edges=False).double()
    graph, e = Graph(EDGES, batch=BATCH), normal(EDGES.size(1), CHANNELS, seed=4)
    assert layer(normal(len(BATCH), CHANNELS, seed=3), e, graph, None)[1] is e
    assert not [name for name, _ in layer.named_parameters() if "edge_norm" in name]


@pytest.mark.parametrize("form", ["folded", "published"])
def test_a_penalty_that_nobody_reads_is_left_out(form: str) -> None:
    attention, shared = attention_of(form=form, **PRIMAL)
    h, graph = normal(len(BATCH), CHANNELS, seed=3), Graph(EDGES, batch=BATCH)
    out, state = attention(h, graph, shared(graph))
    alone, other = attention(h, graph, shared(graph)._replace(needs_penalty=False))
    assert torch.equal(alone, out) and torch.equal(other.node, state.node)
    assert state.penalty > 0 and other.penalty == 0


def test_graphs_without_nodes_do_not_count_in_a_penalty() -> None:
    attention, shared = attention_of(eta=1.0, **PRIMAL)
    h, batch = normal(len(BATCH), CHANNELS, seed=3), BATCH.unique(return_inverse=True)[1]
    none, plain = EDGES[:, :0], int(batch.max()) + 1
    penalties = []
    for own, num_graphs in ((batch, plain), (batch, plain + 2), (batch + (batch > 0), plain + 1)):
        graph = Graph(none, batch=own, num_graphs=num_graphs)
        penalties.append(attention(h, graph, shared(graph))[1].penalty)
    assert all(relative_error(penalty, penalties[0]) < 1e-12 for penalty in penalties[1:])
