"""The local part of a layer: any convolution of PyTorch Geometric, by its name, its class or a module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import normal, refusals
from torch import Tensor, nn
from torch_geometric.explain import AttentionExplainer, Explainer, GNNExplainer
from torch_geometric.nn import MessagePassing, SAGEConv

from tg_lpe import GraphTransformer

EDGES = torch.tensor([[0, 1, 1, 2, 3, 4, 4, 5], [1, 0, 2, 1, 4, 3, 5, 4]])
BATCH = torch.tensor([0, 0, 0, 1, 1, 1])
CASES: list[tuple[Any, dict[str, Any]]] = [
    ("GATv2Conv", {"heads": 2, "concat": False}),
    ("GINEConv", {}),
    ("GINConv", {}),
    ("TransformerConv", {}),
    ("ResGatedGraphConv", {}),
    (SAGEConv, {"aggr": "max"}),
    (SAGEConv(8, 8), {}),
]


def model_of(attention: str, local: Any, options: dict[str, Any], **arguments: Any) -> GraphTransformer:
    torch.manual_seed(0)
    layer: dict[str, Any] = {"local": local, **({"local_options": options} if options else {})}
    if attention == "hybrid":
        layer["global_attention"] = "none"
    return GraphTransformer(
        **{"in_channels": 3, "edge_dim": 2, "hidden_channels": 8, "heads": 2, "num_layers": 2, **arguments},
        attention=attention,
        attention_options=layer,
    ).double()


@pytest.mark.parametrize("attention", ["edge", "gps", "hybrid"])
@pytest.mark.parametrize(("local", "options"), CASES, ids=str)
def test_any_convolution(attention: str, local: Any, options: dict[str, Any]) -> None:
    model = model_of(attention, local, options).eval()
    x, e = normal(6, 3), normal(8, 2, seed=1)
    out = model(x, EDGES, e, BATCH)
    out.sum().backward()
    convolutions = [part for part in model.modules() if isinstance(part, MessagePassing) and part is not local]
    assert any(type(part).__name__ == getattr(local, "__name__", local) or local in CASES[-1] for part in convolutions)
    grads = [p.grad for part in convolutions for p in part.parameters()]
    assert grads and all(g is not None and bool(g.isfinite().all()) for g in grads)
    weights = [p for part in convolutions for p in part.parameters() if p.dim() == 2]
    assert not torch.equal(weights[0], weights[len(weights) // 2]), "layers have weights of their own"
    order = torch.tensor([2, 0, 1, 5, 3, 4])  # the node with the new number i had the old number order[i]
    number = torch.empty(6, dtype=torch.int64).index_copy(0, order, torch.arange(6))
    rows = torch.tensor([7, 2, 0, 1, 3, 6, 5, 4])
    moved = model(x[order], number[EDGES][:, rows], e[rows], BATCH)
    torch.testing.assert_close(moved, out, rtol=1e-10, atol=1e-12)


def test_a_checkpoint_holds_the_name(tmp_path: Path) -> None:
    model = model_of("gps", "GATv2Conv", {"heads": 2, "concat": False}).eval()
    model.save_pretrained(tmp_path)
    loaded = GraphTransformer.from_pretrained(tmp_path)
    inputs = normal(6, 3), EDGES, normal(8, 2, seed=1), BATCH
    assert torch.equal(loaded(*inputs), model(*inputs))
    with pytest.raises(TypeError, match="attention_options"):
        model_of("gps", SAGEConv, {}).save_pretrained(tmp_path)


test_what_is_refused = refusals(
    lambda *arguments: model_of(*arguments)(normal(6, 3), EDGES, normal(8, 2, seed=1), BATCH),
    *(
        ((attention, *row), error, "local.*")
        for attention in ("edge", "gps", "hybrid")
        for *row, error in (
            ("NoConv", {}, ValueError),
            (3, {}, TypeError),
            (SAGEConv(8, 8), {"aggr": "max"}, TypeError),
            ("GATv2Conv", {"colour": 1}, ValueError),
        )
    ),
    (("edge", "GATv2Conv", {"heads": 2}), "concat=False"),
)


class Sum(nn.Module):
    """A user's own, without edge features."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


def test_a_users_own() -> None:
    out = model_of("edge", Sum, {})(normal(6, 3), EDGES, normal(8, 2, seed=1), BATCH)
    assert out.shape == (2, 1)


@pytest.mark.parametrize("attention", ["edge", "gps", "hybrid"])
@pytest.mark.parametrize("algorithm", [GNNExplainer(epochs=1), AttentionExplainer()])
def test_explainers_of_edges_are_refused(attention: str, algorithm: Any) -> None:
    """The attention and the encoder read edges too, and the order of edges is another one."""
    explainer = Explainer(
        model_of(attention, "GATv2Conv", {"concat": False}).eval(),
        algorithm,
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "regression", "task_level": "graph", "return_type": "raw"},
    )
    with pytest.raises(ValueError, match="edge_mask_type=None"):
        explainer(normal(6, 3), EDGES, edge_attr=normal(8, 2, seed=1))
