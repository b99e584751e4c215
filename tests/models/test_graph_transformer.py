"""The graph transformer around its layers, which tests/nn compares with their equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import few, normal, randomize_, refusals, relative_error
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tg_lpe import GramTransformer, Graph, GraphTransformer, LinearTransformer

SMALL = {"hidden_channels": 8, "heads": 2, "num_layers": 3}
EDGES = torch.tensor([[0, 1, 1, 2, 2, 0, 4, 5, 5, 6], [1, 0, 2, 1, 0, 2, 5, 4, 6, 5]])
BATCH = torch.tensor([0, 0, 0, 0, 1, 1, 1])  # node 3 has no edge


def small(**options: Any) -> GraphTransformer:
    torch.manual_seed(0)
    model = GraphTransformer(**{**SMALL, **options})
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):  # so that running averages matter
            module.running_mean.copy_(torch.randn(module.num_features, generator=generator) / 4)
            module.running_var.copy_(torch.rand(module.num_features, generator=generator) + 0.5)
            if module.affine:
                module.weight.data.copy_(torch.rand(module.num_features, generator=generator) + 0.5)
                module.bias.data.copy_(torch.randn(module.num_features, generator=generator) / 4)
    return model.double()


def inputs(num_nodes: int = 7, num_edges: int = 10) -> dict[str, Tensor]:
    return {"x": torch.arange(num_nodes) % 4, "edge_attr": torch.arange(num_edges) % 3, "pe": normal(num_nodes, 2)}


def reference(
    model: GraphTransformer,
    x: Tensor | None,
    graph: Graph,
    edge_attr: Tensor | None,
    pe: Tensor | None,
    edge_pe: Tensor | None,
    pooling: str,
) -> np.ndarray:
    """The layers themselves, and in numpy what is before and after them, one node, edge and graph at a time."""
    state = {name: value.numpy() for name, value in model.state_dict().items()}

    def linear(name: str, v: np.ndarray) -> np.ndarray:
        return state[f"{name}.weight"] @ v + state[f"{name}.bias"]

    def norm(name: str, v: np.ndarray) -> np.ndarray:
        if f"{name}.running_var" not in state:
            return v
        v = (v - state[f"{name}.running_mean"]) / np.sqrt(state[f"{name}.running_var"] + 1e-5)
        return v * state[f"{name}.weight"] + state[f"{name}.bias"] if f"{name}.weight" in state else v

    def embed(name: str, pe_name: str, features: Tensor | None, encoding: Tensor | None, count: int) -> Tensor:
        rows = []
        for i in range(count):
            if f"{name}.linear.weight" in state:
                row = linear(f"{name}.linear", features[i].numpy())
            else:
                row = state[f"{name}.rows.weight"][0 if features is None else int(features[i])]
            if encoding is not None:
                row = row + linear(pe_name, norm(f"{pe_name}.norm", encoding[i].numpy()))
            rows.append(row)
        return torch.from_numpy(np.array(rows).reshape(count, SMALL["hidden_channels"]))

    h = embed("node_embedding", "pe_embedding", x, pe, graph.num_nodes)
    e = graph.sort_edges(embed("edge_embedding", "edge_pe_embedding", edge_attr, edge_pe, graph.num_directed_edges))
    with torch.no_grad():
        for layer in model.layers:
            h, e = layer(h, e, graph)
    rows = []
    for number in range(graph.num_graphs):
        mine = h[graph.batch == number].numpy()
        mean, total, largest = (
            f(mine, axis=0) if len(mine) else np.zeros(h.size(1)) for f in (np.mean, np.sum, np.max)
        )
        both = np.concatenate([mean, total])
        hidden = linear(
            "readout.0", norm("pool_norm", {"mean": mean, "sum": total, "max": largest, "both": both}[pooling])
        )
        if hidden.size > 1:  # the paper's single unit has no nonlinearity
            hidden = np.maximum(hidden, 0)
        rows.append(linear("readout.2", hidden))
    return np.array(rows)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """Directed edges with repetitions and loops, and graphs without nodes."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any))
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    pairs = [(i, j) for i in range(len(batch)) for j in range(len(batch)) if batch[i] == batch[j]]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=10))
    return torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T.contiguous(), batch, len(sizes)


KINDS = ("types", "features", "nothing")


@few
@given(
    batches(),
    st.sampled_from(KINDS),
    st.sampled_from(KINDS),
    st.sampled_from([(False, False), (True, False), (True, True), (False, True)]),
    st.sampled_from(["mlp", "paper"]),
    st.sampled_from(["mean", "sum", "max", "both"]),
    st.booleans(),
)
def test_embeddings_and_readouts(drawn, nodes: str, edges: str, given_pe, readout: str, pooling: str, pe_norm) -> None:
    with_pe, with_edge_pe = given_pe
    edge_index, batch, graphs = drawn
    n, m = batch.numel(), edge_index.size(1)
    node_options = {"types": {"num_node_types": 4}, "features": {"in_channels": 3}, "nothing": {}}[nodes]
    edge_options = {"types": {"num_edge_types": 3}, "features": {"edge_dim": 2}, "nothing": {}}[edges]
    pe_options = {"edge_channels": 3 if with_edge_pe else None, "norm": pe_norm}
    options = {**node_options, **edge_options, "pe_channels": 2 if with_pe else None, "pe_options": pe_options}
    model = small(**options, readout={"hidden": readout, "pooling": pooling}, out_channels=2)
    x = {"types": torch.arange(n) % 4, "features": normal(n, 3), "nothing": None}[nodes]
    edge_attr = {"types": torch.arange(m) % 3, "features": normal(m, 2, seed=1), "nothing": None}[edges]
    pe = normal(n, 2, seed=2) if with_pe else None
    edge_pe = normal(m, 3, seed=3) if with_edge_pe else None
    got = model.eval()(x, edge_index, edge_attr, batch, pe=pe, edge_pe=edge_pe, num_graphs=graphs)
    graph = Graph(edge_index, batch=batch, num_graphs=graphs)
    expected = reference(model, x, graph, edge_attr, pe, edge_pe, pooling)
    assert relative_error(got, expected) < 1e-10


def test_small_and_empty_graphs() -> None:
    none = torch.zeros(2, 0, dtype=torch.int64)
    model = small(num_node_types=4).eval()
    assert model(torch.tensor([1]), none).isfinite().all()
    x = torch.tensor([0, 1])
    out = model(x, none, batch=torch.tensor([1, 3]), num_graphs=5)
    assert out.shape == (5, 1) and out.isfinite().all()
    assert torch.equal(out[0], out[2]) and torch.equal(out[0], out[4]) and not torch.equal(out[1], out[3])
    assert model(x[:0], none).shape == (1, 1)
    assert small()(None, none, num_nodes=3).isfinite().all(), "training without a single edge"


# Encodings of edges, and encoders that make them.

WITH_EDGES = {"num_node_types": 4, "num_edge_types": 3, "pe_channels": 2}


def with_edges(**pe_options: Any) -> GraphTransformer:
    return small(**WITH_EDGES, pe_options={"edge_channels": 3, **pe_options})


def encoded_inputs() -> dict[str, Tensor]:
    return {**inputs(), "edge_pe": normal(10, 3, seed=5)}


def gram(**options: Any) -> GramTransformer:
    options = {"num_filters": 2, "num_layers": 3, "num_edge_types": 3, "num_node_types": 4, **options}
    return randomize_(GramTransformer(**options)).double()


@pytest.mark.parametrize("merge", ["add", "concat"])
def test_unit_norm_is_that_of_columns_scaled_beforehand(merge: str) -> None:
    """The length of each column of each graph, of the nodes' encoding and of the edges', makes no difference."""
    plain, unit = (with_edges(norm=norm, merge=merge).eval() for norm in (False, "unit"))
    plain.load_state_dict(unit.state_dict())
    given, scaled = encoded_inputs(), encoded_inputs()
    for name, rows in (("pe", BATCH), ("edge_pe", BATCH[EDGES[1]])):
        for graph in rows.unique():
            given[name][rows == graph] *= 10.0 ** (2 * graph - 1)
            scaled[name][rows == graph] /= scaled[name][rows == graph].norm(dim=0)
    got, expected = unit(edge_index=EDGES, batch=BATCH, **given), plain(edge_index=EDGES, batch=BATCH, **scaled)
    assert relative_error(got, expected) < 1e-12
    assert relative_error(plain(edge_index=EDGES, batch=BATCH, **given), expected) > 1e-3


@pytest.mark.parametrize("edge_out_channels", [0, 3, None])
@pytest.mark.parametrize("pe_norm", [False, True])
def test_a_gram_encoder_is_the_same_as_its_encoding(edge_out_channels: int | None, pe_norm: bool) -> None:
    encoder = gram(out_channels=2, edge_out_channels=edge_out_channels)
    width = encoder.edge_out_channels or None
    types = {"num_node_types": 4, "num_edge_types": 3}
    joint = small(**types, encoder=encoder, pe_options={"norm": pe_norm}).eval()
    fed = small(**types, pe_channels=2, pe_options={"edge_channels": width, "norm": pe_norm}).eval()
    fed.load_state_dict({name: v for name, v in joint.state_dict().items() if not name.startswith("encoder.")})
    arguments = {**inputs(), "pe": None}
    node, edge, _ = encoder(arguments["x"], EDGES, arguments["edge_attr"], BATCH)
    assert (edge is None) == (edge_out_channels == 0)
    expected = fed(edge_index=EDGES, batch=BATCH, **{**arguments, "pe": node, "edge_pe": edge})
    got = joint(edge_index=EDGES, batch=BATCH, **arguments)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("probes", ["identity", "rademacher"])
@pytest.mark.parametrize("pooling", ["mean", "sum", "max", "both"])
def test_every_parameter_of_a_gram_encoder_receives_a_gradient(probes: str, pooling: str) -> None:
    encoder = gram(out_channels=3, edge_out_channels=2, probes=probes, num_probes=4)
    # In eval mode: batch norm over a batch removes a bias before it, up to rounding.
    reading = {"readout": {"pooling": pooling}, "pe_options": {"norm": True}}
    model = small(num_node_types=4, num_edge_types=3, encoder=encoder, **reading).eval()
    out = model(inputs()["x"], EDGES, inputs()["edge_attr"], BATCH)
    (out * normal(*out.shape)).sum().backward()
    dead = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-12]
    assert dead == []


def fed(options: dict[str, Any], change: dict[str, Any]) -> None:
    """Run a model that reads types and both encodings unless other options are given."""
    model = small(**(options or {**WITH_EDGES, "pe_options": {"edge_channels": 3}}))
    model(**{"edge_index": EDGES, "batch": BATCH, **({} if options else encoded_inputs()), **change})


test_forward_refuses = refusals(
    fed,
    (({}, {"edge_attr": None}), "built for edge features, but none were given"),
    (({}, {"pe": torch.zeros(7, 2) + 1j}), "pe must be real, got torch.complex64"),
    (({}, {"edge_pe": None}), r"edge_pe must have shape \(10, 3\), got None"),
    (({}, {"edge_pe": torch.zeros(10, 2)}), r"edge_pe must have shape \(10, 3\), got \(10, 2\)"),
    *((({}, {"x": torch.tensor(6 * [0] + [bad])}), "node types must lie in 0..3") for bad in (4, -1)),
    (({"heads": 2}, {"x": None, "pe": torch.zeros(7, 3)}), "built without pe_channels or encoder"),
    (({"encoder": LinearTransformer(k=3)}, {"x": None, "pe": torch.zeros(7, 3)}), "has an encoder of its own"),
    (({"in_channels": 3}, {"x": torch.arange(7)}), r"floating point \[7, 3\], got torch.int64 \[7\]"),
)
