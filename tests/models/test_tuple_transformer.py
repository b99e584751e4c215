"""The tuple transformer against loops over tuples and torch's transformer; relabelling, batches, order transfer."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from helpers import Graph, few, fewer, from_networkx, graphs, normal, randomize_, refusals, relative_error
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

import tg_lpe
from tg_lpe import GramTransformer, GraphTransformer
from tg_lpe.checkpoints.checkpoint import load
from tg_lpe.encoders import LPE, RandomWalk, SpectralEncoder
from tg_lpe.graph.tuples import component_tuples
from tg_lpe.models.tuple_transformer import TupleTransformer
from tg_lpe.nn.random_features import RandomFeatureAttention, RandomFeatures
from tg_lpe.nn.tuples import FullAttention
from tg_lpe.ops.segment import RowGroups

EDGES = torch.tensor([[0, 1, 2, 1, 0, 0, 5, 4, 6], [1, 0, 1, 2, 1, 0, 4, 5, 5]])  # repeated, a loop, one-way
BATCH = torch.tensor([0, 0, 0, 0, 1, 1, 1, 3])  # graph 2 has no nodes, nodes 3 and 7 have no edges
SMALL = {"hidden_channels": 8, "num_layers": 2, "heads": 4}
ORDERS = [(1, 1), (2, 1), (3, 1), (2, None)]
ATTENTIONS = ["full", "local", "delta", "performer"]
LEVELS = ["graph", "node", "edge"]


def gram() -> GramTransformer:
    return GramTransformer(3, 2, 2, 4, pair_out_channels=5)


def tuple_model(**options: Any) -> TupleTransformer:
    """In float64, every parameter with a value of its own."""
    chosen = {**SMALL, **options}
    if chosen.get("attention") == "delta":
        chosen = {**chosen, "heads": 6, "hidden_channels": 12}
    with torch.random.fork_rng(devices=[]):
        model = TupleTransformer(**chosen)
    return randomize_(model, scale=0.6).double().eval()


def run(model: TupleTransformer, graph: Graph, index: Tensor | None = None, x: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return model(x, graph.both_ways()[0] if index is None else index, num_nodes=graph.num_nodes)


# Tokens and layers, by loops.


def linked(graph: Graph, k: int, s: int | None) -> list[tuple[int, ...]]:
    incidence = tg_lpe.Graph(graph.edge_index(), graph.num_nodes)
    return [tuple(nodes) for nodes in component_tuples(incidence, k, k if s is None else s).T.tolist()]


def normed(rows: Tensor, norm: Any) -> Tensor:
    """Layer norm, written out."""
    centred = rows - rows.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def looped(model: TupleTransformer, graph: Graph, x: Tensor, bonds: list[int], pe: Tensor, edge_pe: Tensor) -> Tensor:
    """The prediction of a graph, one tuple at a time."""
    w = dict(model.named_parameters())
    d, k = model.token_norm.normalized_shape[0], model.k
    joined = {**{e: i for i, e in enumerate(graph.edges)}, **{(v, u): i for i, (u, v) in enumerate(graph.edges)}}
    degree = [sum(u in edge for edge in graph.edges) for u in range(graph.num_nodes)]
    features = []
    for u in range(graph.num_nodes):
        embedded = w["node_embedding.rows.weight"][x[u]]
        encoded = w["pe_embedding.weight"] @ pe[u] + w["pe_embedding.bias"]
        of_degree = w["degree_embedding.weight"][degree[u]]
        if model.structure is None:
            features.append(torch.cat([embedded, of_degree, encoded]))
        else:
            features.append(embedded + model.structure(of_degree + encoded))

    def edge(u: int, v: int) -> Tensor:
        if u == v:
            return w["tokens.same.weight"][0]
        if (u, v) not in joined:
            return torch.zeros(d, dtype=torch.float64)
        number = joined[u, v]
        encoded = w["edge_pe_embedding.weight"] @ edge_pe[number] + w["edge_pe_embedding.bias"]
        return w["edge_embedding.rows.weight"][bonds[number]] + encoded

    tuples = linked(graph, k, model.s)
    tokens, places = [], {nodes: row for row, nodes in enumerate(tuples)}
    near = [
        [[*nodes[:j], w_, *nodes[j + 1 :]] for w_ in range(graph.num_nodes) if (nodes[j], w_) in joined]
        for nodes in tuples
        for j in range(k)
    ]
    near_rows = [[places[tuple(v)] for v in moved if tuple(v) in places] for moved in near]
    for row, nodes in enumerate(tuples):
        # The rows of a map by position lie one after the other.
        maps = w["tokens.nodes.weight"].view(k, d, -1)
        token = w["tokens.bias"] + sum(maps[i] @ features[u] for i, u in enumerate(nodes))
        for block, (u, v) in enumerate(itertools.combinations(nodes, 2)):
            token = token + w["tokens.types.weight"].view(-1, d, d)[block] @ edge(u, v)
        if model.attention == "local":
            counts = torch.tensor([len(near_rows[row * k + j]) for j in range(k)], dtype=torch.float64)
            token = token + w["tokens.counts.weight"] @ torch.log1p(counts)
        tokens.append(normed(token, model.token_norm))
    h = torch.stack([*tokens, w["graph_token.weight"][0]])
    for layer in model.layers:
        q, key, v = layer.query_key_value(normed(h, layer.norm_attention)).view(len(h), 3, layer.heads, -1).unbind(1)
        found = torch.zeros_like(q)
        for row in range(len(h)):
            for head in range(layer.heads):
                seen = list(range(len(h)))
                if model.attention == "local":
                    seen = near_rows[row * k + head % k] if row < len(tokens) else seen[:-1]
                if seen:
                    scores = key[seen, head] @ q[row, head] / q.size(2) ** 0.5
                    found[row, head] = torch.softmax(scores, 0) @ v[seen, head]
        h = h + layer.out(found.flatten(1))
        inner = layer.feed_forward[0](normed(h, layer.norm_feed_forward))
        h = h + layer.feed_forward[2](inner * (1 + torch.erf(inner / 2**0.5)) / 2)  # GELU
    return model.readout(h[-1])


@fewer
@given(graphs(max_nodes=5, min_nodes=1), st.sampled_from(ORDERS), st.sampled_from(["full", "local"]), st.booleans())
def test_against_loops_over_tuples(graph: Graph, order: tuple[int, int], attention: str, is_linear: bool) -> None:
    options = {"num_node_types": 3, "num_edge_types": 4, "pe_channels": 2, "pe_options": {"edge_channels": 3}}
    node_tokens = "linear" if is_linear else "feed_forward"
    k, s = order
    model = tuple_model(k=k, s=s, attention=attention, node_tokens=node_tokens, out_channels=2, **options)
    x, bonds = torch.arange(graph.num_nodes) % 3, [i % 4 for i in range(len(graph.edges))]
    pe, edge_pe = normal(graph.num_nodes, 2), normal(len(graph.edges), 3, seed=1)
    with torch.no_grad():
        expected = looped(model, graph, x, bonds, pe, edge_pe)
        both = torch.tensor(bonds * 2, dtype=torch.int64)
        got = model(x, graph.both_ways()[0], both, pe=pe, edge_pe=torch.cat([edge_pe, edge_pe]))
    assert relative_error(got[0], expected) < 1e-12


# Attention by random features.


def test_random_features_are_orthogonal_and_normal() -> None:
    torch.manual_seed(0)
    features = RandomFeatures(1200, 6)
    for block in features.projection.split(6):
        product = block @ block.T
        assert bool((product - product.diagonal().diag()).abs().max() < 1e-4)
    first = features.projection[::6]  # independent of each other
    assert abs(float(first.mean())) < 0.1 and abs(float(first.square().mean()) - 1) < 0.1
    assert torch.allclose(torch.cov(features.projection.T), torch.eye(6), atol=0.15)
    drawn = [features.projection.clone()]
    for seed in (0, 1):
        torch.manual_seed(seed)
        features.reset_parameters()
        drawn.append(features.projection.clone())
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def by_random_features(rows: Tensor, batch: Tensor, projection: Tensor) -> Tensor:
    """Eq. (4) of the Performers' paper, one token at a time."""
    query, key, value = rows.unbind(1)
    found = torch.zeros_like(query)
    scale = rows.size(3) ** -0.25
    for token, head in itertools.product(range(len(rows)), range(rows.size(2))):
        seen = batch == batch[token]

        def of(vector: Tensor) -> Tensor:
            return torch.exp(projection @ (scale * vector) - (scale * vector) @ (scale * vector) / 2)

        weights = torch.stack([of(query[token, head]) @ of(one) for one in key[seen, head]])
        found[token, head] = weights @ value[seen, head] / weights.sum()
    return found


def test_attention_by_random_features() -> None:
    """As the formula says, with its gradient; and the softmax in the limit."""
    torch.manual_seed(0)
    # Those of 12 and 11 tokens share a bucket, which is cut as that of 30 is.
    batch = torch.tensor([0] * 12 + [1] * 30 + [3] * 11)[torch.randperm(53)]
    groups, features = RowGroups(batch, 4), RandomFeatures(10, 4).double()
    rows = normal(53, 3, 2, 4).requires_grad_()
    expected = by_random_features(rows, batch, features.projection)
    slope = torch.autograd.grad(expected.sin().sum(), rows)[0]
    got = RandomFeatureAttention(groups, features)(rows)
    assert relative_error(got, expected) < 1e-12
    assert relative_error(torch.autograd.grad(got.sin().sum(), rows)[0], slope) < 1e-10
    with torch.no_grad():
        small, exact = 0.5 * rows, FullAttention(groups)(0.5 * rows)
        errors = [
            relative_error(RandomFeatureAttention(groups, RandomFeatures(number, 4).double())(small), exact)
            for number in (16, 4096)
        ]
    assert errors[1] < 0.03 and errors[1] < errors[0] / 4


@pytest.mark.parametrize("scale", [1e-3, 30.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_features_of_large_and_small_scores(scale: float, dtype: torch.dtype) -> None:
    """Eq. (4) in logarithms, whatever the features themselves would be."""
    torch.manual_seed(0)
    groups, features = RowGroups(torch.tensor([0, 0, 0, 1]), 2), RandomFeatures(16, 4).to(dtype)
    rows = normal(4, 3, 2, 4, dtype=dtype)
    rows[:, :2] *= scale
    rows.requires_grad_()
    got = RandomFeatureAttention(groups, features)(rows)
    query, key, value = rows.detach().double().unbind(1)
    of_query, of_key = (features(side.transpose(0, 1) * 4**-0.25) for side in (query, key))  # [heads, tokens, features]
    scores = torch.logsumexp(of_query[:, :, None] + of_key[:, None], 3).transpose(0, 1)  # [tokens, heads, tokens]
    scores = scores.masked_fill((torch.arange(4) < 3)[:, None, None] != (torch.arange(4) < 3), -torch.inf)
    expected = torch.einsum("ihj,jhd->ihd", scores.softmax(2), value)
    assert relative_error(got.double(), expected) < (1e-10 if dtype == torch.float64 else 1e-3)
    got.sum().backward()
    assert rows.grad is not None and bool(rows.grad.isfinite().all())
    if scale < 1:
        assert torch.allclose(got[:3], value[:3].mean(0).expand(3, -1, -1).to(dtype), atol=0.02)


# What must not matter.


@pytest.mark.parametrize(
    ("k", "s", "level"), [(k, s, level) for k, s in ORDERS for level in LEVELS if k > 1 or level != "edge"]
)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_batch_is_its_graphs_one_by_one(k: int, s: int | None, attention: str, level: str) -> None:
    options = {"readout": {"level": level}, "pe_options": {"norm": "unit"}}
    model = tuple_model(k=k, s=s, attention=attention, encoder=gram(), num_node_types=3, **options)
    x = torch.arange(8) % 3
    with torch.no_grad():
        whole = model(x, EDGES, batch=BATCH, num_graphs=4)
        parts = []
        for number in range(4):
            nodes, start = number == BATCH, int((number > BATCH).sum())
            parts.append(model(x[nodes], EDGES[:, nodes[EDGES[0]]] - start, num_nodes=int(nodes.sum())))
    assert whole.shape == ({"graph": 4, "node": 8, "edge": 9}[level], 1)
    assert relative_error(whole, torch.cat(parts)) < 1e-12


@few
@given(st.data())
def test_relabelling(data: st.DataObject) -> None:
    graph = data.draw(graphs(min_nodes=1, max_nodes=7))
    k, s = data.draw(st.sampled_from(ORDERS))
    attention = data.draw(st.sampled_from(ATTENTIONS))
    level = data.draw(st.sampled_from(LEVELS).filter(lambda level: k > 1 or level != "edge"))
    model = tuple_model(k=k, s=s, attention=attention, readout={"level": level}, encoder=gram(), num_node_types=3)
    label = torch.tensor(data.draw(st.permutations(range(graph.num_nodes))))
    x = torch.arange(graph.num_nodes) % 3
    index, _ = graph.both_ways()
    order = torch.randperm(index.size(1), generator=torch.Generator().manual_seed(1))
    expected = run(model, graph, index, x)
    got = run(model, graph, label[index][:, order], torch.empty_like(x).index_copy(0, label, x))
    if level != "graph":
        expected = expected if level == "node" else expected[order]
        got = got[label] if level == "node" else got
    assert relative_error(got, expected) < 1e-11


def test_graphs_without_nodes_and_edges() -> None:
    none = torch.zeros(2, 0, dtype=torch.int64)
    for attention, level in itertools.product(ATTENTIONS, LEVELS):
        model = tuple_model(attention=attention, readout={"level": level}, encoder=gram(), k=3).train()
        for num_nodes, batch, num_graphs in ((0, None, None), (1, None, None), (3, torch.tensor([1, 1, 3]), 5)):
            out = model(None, none, batch=batch, num_nodes=num_nodes, num_graphs=num_graphs)
            rows = {"graph": num_graphs or 1, "node": num_nodes, "edge": 0}[level]
            assert out.shape == (rows, 1) and bool(out.isfinite().all())
            out.sum().backward()


# Gradients, numbers, weights.


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_gradients(attention: str) -> None:
    model = tuple_model(k=2, attention=attention, encoder=gram(), in_channels=2, num_layers=1).train()
    names = [name for name, _ in model.named_parameters()]
    x = normal(4, 2)
    ring = torch.tensor([[0, 1, 2], [1, 2, 0]])

    def of(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x, ring))

    values = [value.detach().clone().requires_grad_() for value in model.parameters()]
    assert torch.autograd.gradcheck(of, (x.requires_grad_(), *values), fast_mode=True, atol=1e-6)


def test_numbers_of_parameters_and_tokens_of_the_published_model() -> None:
    """12 layers of width 768: 49.1 million parameters besides the tables of atoms and bonds in the published code. Here
    there are two square maps more, of the encoding and of atomic types.
    """
    d = 768
    with torch.device("meta"):
        model = TupleTransformer(5, None, 3, encoder=LPE(d, 96), hidden_channels=d, heads=16, num_layers=12)
        published = nn.ModuleList(
            [
                *(nn.TransformerEncoderLayer(d, 16, dim_feedforward=d) for _ in range(12)),
                *(nn.Linear(2, 2 * d), nn.Linear(2 * d, d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)),  # LPE
                nn.Embedding(100, 16),  # of degrees
                *(nn.Linear(2 * width, d) for width in (d, d, 16)),  # of a pair's features, encodings and degrees
                *(nn.LayerNorm(d), nn.Embedding(1, d)),  # of tokens, the graph's token
                *(nn.Linear(d, d), nn.LayerNorm(d), nn.Linear(d, 1)),  # the read-out
            ]
        )
    expected = 96 + sum(p.numel() for p in published.parameters())  # LPE's epsilon
    # Three biases of tokens there are here one, that of the encoding's map, and the row of equal nodes.
    tables = [p.numel() for name, p in model.named_parameters() if name.endswith("_embedding.rows.weight")]
    assert expected == 49_089_185 and sorted(tables) == [3 * d, 5 * d]
    assert sum(p.numel() for p in model.parameters()) - sum(tables) == expected + 2 * d**2 == 50_268_833
    assert model.pe_embedding.weight.shape == model.tokens.types.weight.shape == (d, d)
    graph = from_networkx(nx.path_graph(4))
    assert len(linked(graph, 2, 1)) == 4 + 2 * 3 and len(linked(graph, 3, 1)) == 34


def test_reset_draws_the_weights_of_a_new_one() -> None:
    encoder = gram().config_dict()

    def make(attention: str) -> TupleTransformer:
        torch.manual_seed(3)
        return TupleTransformer(num_node_types=3, encoder=encoder, node_tokens="feed_forward", attention=attention, k=3)

    for attention in ("local", "performer"):
        expected, model = make(attention).state_dict(), randomize_(make(attention))
        torch.manual_seed(3)
        model.reset_parameters()
        for name, values in model.state_dict().items():
            assert torch.equal(values, expected[name]), name


# In the house.


def test_where_a_graph_transformer_is_taken(tmp_path: Path) -> None:
    """The call of a graph transformer works, with the arguments of training, precomputed encodings and checkpoints."""
    data = Batch.from_data_list(
        [Data(edge_index=EDGES[:, :6], num_nodes=4), Data(edge_index=EDGES[:, 6:] - 4, num_nodes=3)]
    )
    for encoder in (RandomWalk(4), gram(), SpectralEncoder(4, 4, heads=2, num_layers=1), None):
        model = TupleTransformer(encoder=encoder, **SMALL).eval()
        other = GraphTransformer(encoder=encoder, **SMALL).eval()
        graph = tg_lpe.Graph(data.edge_index, 7, batch=data.batch)
        precomputed = None if encoder is None else encoder.precompute(graph)
        calls = {"precomputed": precomputed, "num_nodes": 7, "num_graphs": 2}
        calls["generator"] = torch.Generator().manual_seed(0)
        out = [each(None, data.edge_index, None, data.batch, None, **calls) for each in (model, other)]
        assert out[0].shape == out[1].shape and not getattr(model, "has_penalty", False)
    model = TupleTransformer(encoder=gram(), num_node_types=3, k=3, attention="local", **SMALL).eval()
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    x = torch.arange(7) % 3
    assert (
        isinstance(loaded, TupleTransformer)
        and "k=3, hidden_channels" in repr(loaded)
        and "attention='local'" in repr(loaded)
    )
    assert torch.equal(loaded(x, data.edge_index, None, data.batch), model(x, data.edge_index, None, data.batch))


def test_gradients_reach_encoders_and_edge_weights() -> None:
    model = tuple_model(k=3, encoder=gram()).train()
    weight = torch.ones(9, dtype=torch.float64, requires_grad=True)
    model(None, EDGES, batch=BATCH, edge_weight=weight).sum().backward()
    assert weight.grad is not None and bool(weight.grad[[0, 6]].ne(0).all())
    assert bool(model.encoder.pair_readout.weight.grad.any())


@pytest.mark.parametrize("attention", ["full", "local"])
def test_order_transfer(attention: str) -> None:
    """From (2,1) to (3,1) the layers stay bit by bit, all else is new; with the same order only the read-out is."""
    options = {"attention": attention, "attention_options": {"dropout": 0.1}}
    model = tuple_model(encoder=gram(), num_node_types=3, heads=4, **options)
    with torch.no_grad():
        for values in model.parameters():
            values.mul_(1 + 1e-12)  # which float32 rounds away
    state = torch.get_rng_state()
    other = model.with_order(3, 1, seed=5)
    assert torch.equal(torch.get_rng_state(), state) and not other.training
    assert (other.k, other.s, other.attention) == (3, 1, attention) and other.layers[0].dropout.p == 0.1
    before, after = model.state_dict(), other.state_dict()
    kept = {name for name in before if name.startswith(("layers.", "token_norm."))}
    assert kept and all(torch.equal(before[name], after[name]) for name in kept)
    for name in set(after) - kept:
        same = name in before and torch.equal(before[name], after[name])
        assert not same or not before[name].numel(), name
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert torch.equal(other.state_dict()["readout.0.weight"], model.with_order(3, 1, seed=5).readout[0].weight)

    task = model.with_order(2, 1, out_channels=7)
    for name, values in task.state_dict().items():
        assert torch.equal(values, before[name]) != name.startswith("readout."), name
    assert task(torch.arange(8) % 3, EDGES, batch=BATCH).shape == (4, 7)
    same = model.with_order(2, 1, attention=model.attention, pe_options=model.config_dict()["pe_options"]).state_dict()
    assert all(torch.equal(values, same[name]) for name, values in before.items() if name[:8] != "readout.")
    options = {"dropout": 0.3, "attention_dropout": 0.1, "drop_path": 0.2}
    wilder = model.with_order(2, 1, attention_options=options).state_dict()
    assert all(torch.equal(values, before[name]) for name, values in wilder.items() if name[:8] != "readout.")
    types = model.with_order(2, 1, num_node_types=5, out_channels=7)
    for name, values in types.state_dict().items():
        assert torch.equal(values, before[name]) != name.startswith(("readout.", "node_embedding.")), name
    assert types(torch.arange(8) % 5, EDGES, batch=BATCH).shape == (4, 7)
    with pytest.raises(ValueError, match=r"belong to the layers, which are kept; got other \['heads'\]"):
        model.with_order(3, heads=2)


@pytest.mark.parametrize(("k", "s"), [(3, 1), (1, 1), (2, None)])
def test_start_from_another_order(k: int, s: int | None) -> None:
    """The layers and the norm before them are taken over bit by bit, and nothing else, whatever else differs."""
    trained = tuple_model(encoder=gram(), num_node_types=3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        fresh = TupleTransformer(k=k, s=s, num_node_types=4, out_channels=2, **SMALL).double()
    before = {name: values.clone() for name, values in fresh.state_dict().items()}
    fresh.start_from(trained)
    theirs = trained.state_dict()
    for name, values in fresh.state_dict().items():
        is_kept = name.startswith(("layers.", "token_norm."))
        assert torch.equal(values, (theirs if is_kept else before)[name]), name
        assert not is_kept or not torch.equal(values, before[name]), name

    for options, message in (
        ({"hidden_channels": 16}, "hidden_channels is 16 here and 8 there"),
        ({"num_layers": 1}, "num_layers is 1 here and 2 there"),
        ({"heads": 2}, "heads is 2 here and 4 there"),
    ):
        other = TupleTransformer(k=k, s=s, **{**SMALL, **options})
        before = {name: values.clone() for name, values in other.state_dict().items()}
        with pytest.raises(ValueError, match=f"the layers do not fit: {message}"):
            other.start_from(trained)
        assert all(torch.equal(values, before[name]) for name, values in other.state_dict().items())
    with pytest.raises(ValueError, match="a TupleTransformer cannot start from a GraphTransformer"):
        fresh.start_from(GraphTransformer(num_node_types=3, **SMALL))


test_wrong_arguments = refusals(
    lambda **options: TupleTransformer(**{**SMALL, **options}),
    ({"s": 3}, "1 <= s <= k, got k=2, s=3"),
    (
        {"attention": "performer", "attention_options": {"attention_dropout": 0.1}},
        r"attention='performer' has no weights that could be dropped, got attention_dropout=0\.1",
    ),
    ({"attention_options": {"random_features": 0}}, "random_features must be an integer from 1 to 100,000, got 0"),
    ({"readout": {"level": "tuple"}}, "level must be one of"),
    ({"readout": {"level": "node", "pooling": "sum"}}, "level='node' does not pool, got pooling='sum'"),
    ({"attention": "delta", "heads": 3, "hidden_channels": 9}, "needs at least 4 heads, got 3"),
    ({"heads": 3}, "heads must divide hidden_channels"),
    *(
        ({"attention_options": {name: 1.0}}, f"{name} must be at least 0 and below 1, got 1.0")
        for name in ("dropout", "attention_dropout", "drop_path")
    ),
    ({"k": 1, "s": 1, "readout": {"level": "edge"}}, "level='edge' reads the token .* needs k of at least 2, got"),
    ({"encoder": gram(), "pe_channels": 7}, "pe_channels=7 contradicts the encoder's 3"),
    ({"encoder": 3}, TypeError, r"encoder must be a .*Encoder or the arguments of one, got 3"),
)
test_wrong_inputs = refusals(
    lambda x=None, **inputs: tuple_model(pe_channels=2)(x, EDGES, batch=BATCH, **inputs),
    ({"pe": normal(8, 3)}, r"pe must have shape \(8, 2\), got \(8, 3\)"),
    ({"pe": normal(8, 2), "edge_pe": normal(9, 2)}, "built without edge_channels"),
    ({"pe": normal(8, 2), "edge_weight": torch.ones(9)}, "no encoder that reads edge weights"),
    ({"pe": normal(8, 2), "return_penalty": True}, "layers have no penalty"),
    ({"x": torch.zeros(8, dtype=torch.int64), "pe": normal(8, 2)}, "built without node features, but some were"),
)


@pytest.mark.parametrize("attention", ["full", "performer"])
def test_pooled_tokens(attention: str) -> None:
    """A path of three nodes has seven tuples: a sum is seven means, and no channel exceeds its maximum."""
    pooled = {}
    for pooling in ("mean", "sum", "max"):
        torch.manual_seed(0)
        model = tuple_model(attention=attention, readout={"pooling": pooling})
        model.readout = nn.Identity()
        pooled[pooling] = model(None, EDGES[:, :6], num_nodes=3)
    assert relative_error(pooled["sum"], 7 * pooled["mean"]) < 1e-12
    assert bool((pooled["mean"] <= pooled["max"]).all())
