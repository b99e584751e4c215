"""Options of the graph transformer: levels, dropout, norms, residuals; weights from a seed; invalid options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import Degrees, normal, refusals, relative_error
from torch import nn

from tg_lpe import Encoding, GramTransformer, Graph, GraphTransformer, LinearTransformer
from tg_lpe.encoders import Inputs

EDGES = torch.tensor([[0, 1, 1, 2, 2, 0, 3, 4], [1, 0, 2, 1, 0, 2, 4, 3]])
BATCH = torch.tensor([0, 0, 0, 1, 1, 2])
INPUTS: dict[str, Any] = {
    "x": torch.tensor([0, 1, 2, 1, 0, 2]),
    "edge_index": EDGES,
    "edge_attr": torch.tensor([0, 0, 1, 1, 0, 0, 1, 1]),
    "batch": BATCH,
}


def small(**options: Any) -> GraphTransformer:
    torch.manual_seed(0)
    defaults = {"num_node_types": 3, "num_edge_types": 2, "hidden_channels": 8, "heads": 2, "num_layers": 2}
    return GraphTransformer(**{**defaults, **options}).double()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "attention_options": {"norm": "graph"},
            "readout": {"pooling": "both"},
            "pe_channels": 2,
            "pe_options": {"norm": True, "edge_channels": 3},
        },
        {"readout": {"norm": "running"}, "attention_options": {"norm": "running", "local": "gine", "drop_path": 0.1}},
        {"num_node_types": None, "num_edge_types": None, "in_channels": 2, "edge_dim": 3},
    ],
)
def test_reset_parameters_gives_the_initial_weights(options: dict[str, Any]) -> None:
    model = small(**options).float()
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    for value in model.state_dict().values():
        value.fill_(7)
    torch.manual_seed(0)
    model.reset_parameters()
    assert all(torch.equal(value, initial[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("pooling", ["mean", "sum", "both"])
@pytest.mark.parametrize("pool_norm", [None, "none", "batch", "running", "layer"])
def test_pooled_features_are_normalised_by_name(pooling: str, pool_norm: str | None) -> None:
    model = small(readout={"pooling": pooling, "norm": pool_norm}).eval()
    plain = small(readout={"level": "node"}).eval()
    layers = {name: value for name, value in model.state_dict().items() if name.startswith(("layers", "node", "edge"))}
    plain.load_state_dict({**plain.state_dict(), **layers})
    plain.readout = nn.Identity()
    rows = plain(**INPUTS)
    graphs = [rows[graph == BATCH] for graph in range(3)]
    parts = {"mean": [part.mean(0) for part in graphs], "sum": [part.sum(0) for part in graphs]}
    pooled = torch.cat([torch.stack(parts[name]) for name in (("mean", "sum") if pooling == "both" else (pooling,))], 1)
    kind = pool_norm or ("batch" if pooling == "both" else "none")
    if kind == "layer":
        pooled = nn.functional.layer_norm(pooled, pooled.shape[1:])
    elif kind != "none":
        pooled = pooled / (1 + 1e-5) ** 0.5  # fresh running statistics
    assert relative_error(model(**INPUTS), model.readout(pooled)) < 1e-12
    assert "pool_norm.running_mean" not in model.state_dict() or kind in ("batch", "running")


class Recorder(Degrees):
    """Weighted degrees of the nodes; it records the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.edge_out_channels = 0
        self.given: list[Any] = []

    def encode(self, graph: Graph, inputs: Inputs) -> Encoding:
        self.given.append((inputs.generator, inputs.precomputed, graph.num_graphs))
        return Encoding(super().encode(graph, inputs).node.double())


def test_a_users_encoder_gets_weights_generator_and_what_was_precomputed() -> None:
    encoder = Recorder()
    joint, fed = small(encoder=encoder).eval(), small(pe_channels=1).eval()
    fed.load_state_dict(joint.state_dict())
    weight = torch.tensor([2.0, 2.0, 3.0, 3.0, 0.5, 0.5, 4.0, 4.0], dtype=torch.float64)
    pe = torch.tensor([2.5, 5.0, 3.5, 4.0, 4.0, 0.0], dtype=torch.float64).unsqueeze(1)
    generator, precomputed = torch.Generator(), {"node_values": pe}
    got = joint(**INPUTS, edge_weight=weight, generator=generator, precomputed=precomputed, num_graphs=4)
    assert relative_error(got, fed(**INPUTS, pe=pe, num_graphs=4)) < 1e-12
    assert encoder.given == [(generator, precomputed, 4)]


LINEAR, GRAM, WITHOUT_EDGES = LinearTransformer(k=4), GramTransformer(4, 3), GramTransformer(4, 0)
test_constructor_refuses = refusals(
    small,
    ({"readout": {"level": "edge"}}, "level must"),
    ({"readout": {"level": "node", "pooling": "sum"}}, "level="),
    ({"readout": {"norm": "row"}}, "norm must"),
    ({"readout": {"norm": "graph"}}, "norm="),
    ({"readout": {"level": "node", "norm": "batch"}}, "level="),
    ({"readout": {"pool": "sum"}}, "readout takes .*'pooling'.* got pool='sum'"),
    ({"readout": {"pooling": "min"}}, r"pooling must be one of \('mean', 'sum', .*got 'min'"),
    ({"readout": {"hidden": "deep"}}, "readout must"),
    ({"readout": "sum"}, r"readout must be one of \('mlp', 'paper', 'pyramid'\), .* got 'sum'"),
    ({"readout": 3}, TypeError, "readout must"),
    ({"readout": [8, 0]}, r"hidden\[1\] must be"),
    ({"pe_options": {"merge": "sum"}}, "merge must"),
    ({"pe_options": {"merge": "apart"}}, "merge="),
    ({"pe_options": {"pe_norm": True}}, "pe_options takes .*'norm'.* got pe_norm=True"),
    ({"pe_options": True}, "pe_options must"),
    ({"pe_options": {"merge": "concat"}, "pe_channels": 8}, "hidden_channels"),
    ({"heads": 3}, "heads must divide hidden_channels, got heads=3 and hidden_channels=8"),
    ({"num_node_types": 2, "in_channels": 3}, "nodes have either .* got 2 types and 3 channels"),
    ({"num_edge_types": 2, "edge_dim": 3}, "edges have either .* got 2 types and 3 channels"),
    ({"pe_channels": 5, "encoder": LINEAR}, "pe_channels=5 contradicts the encoder's 4"),
    *(
        ({"pe_options": {"edge_channels": 5}, "encoder": encoder}, f"edge_channels=5 contradicts the encoder's {width}")
        for encoder, width in ((LINEAR, None), (GRAM, 3), (WITHOUT_EDGES, None))
    ),
    ({"encoder": {"class": "GramTransformer", "num_philters": 3}}, "num_philters"),
    ({"encoder": nn.Identity()}, TypeError, "tg_lpe"),
)


@pytest.mark.parametrize("pe_norm", [False, True])
def test_an_encoding_may_stand_beside_the_features(pe_norm: bool) -> None:
    """Adding through maps that put it there is the same."""
    pe, edge_pe = normal(6, 3, seed=1), normal(EDGES.size(1), 2, seed=2)
    beside, added = (
        small(pe_channels=3, pe_options={"edge_channels": 2, "norm": pe_norm, "merge": merge}).eval()
        for merge in ("concat", "add")
    )
    weights = beside.state_dict()
    assert not any(name.startswith(("pe_embedding.weight", "edge_pe_embedding.weight")) for name in weights)
    for name, width in (("node", 3), ("edge", 2)):
        rows = weights.pop(f"{name}_embedding.rows.weight")
        assert rows.size(1) == 8 - width
        weights[f"{name}_embedding.rows.weight"] = nn.functional.pad(rows, (0, width))
        pe_name = "pe_embedding" if name == "node" else "edge_pe_embedding"
        weights[f"{pe_name}.weight"] = torch.eye(8, dtype=torch.float64)[:, 8 - width :]
        weights[f"{pe_name}.bias"] = torch.zeros(8, dtype=torch.float64)
    added.load_state_dict(weights)
    assert relative_error(beside(**INPUTS, pe=pe, edge_pe=edge_pe), added(**INPUTS, pe=pe, edge_pe=edge_pe)) < 1e-12
    with pytest.raises(ValueError, match="pe must"):
        beside(**INPUTS, pe=pe[:, :2], edge_pe=edge_pe)


def test_a_graph_unlike_the_training_set_does_not_grow_from_layer_to_layer() -> None:
    """Sums over neighbours feed scores, and products of scores feed the sums: without bound they are 1e30 here."""
    options = {"num_layers": 12, "attention_options": {"local": "gine"}}
    model = small(**options, in_channels=2, num_node_types=None)
    for seed in range(20):
        model(
            {**INPUTS, "x": normal(6, 2, seed=seed)}["x"],
            *(INPUTS[name] for name in ("edge_index", "edge_attr", "batch")),
        )
    out = model.eval()(**{**INPUTS, "x": 1e3 * normal(6, 2, seed=99)})
    assert float(out.detach().abs().max()) < 1e4
