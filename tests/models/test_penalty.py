"""Penalties of layers are added to the training loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from tg_lpe import GraphTransformer
from tg_lpe.app.training import JointTraining, TrainConfig, make_task
from tg_lpe.data import GraphSplits
from tg_lpe.graph.graph import Graph
from tg_lpe.nn.attention import AttentionLayer, SharedState, register_attention

EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


class State(NamedTuple):
    penalty: Tensor
    needs_penalty: bool = True


class Start(SharedState):
    has_penalty = True

    def forward(self, neighbourhoods: Graph) -> State:
        return State(torch.zeros(()))


def model_with_penalty() -> GraphTransformer:
    @register_attention("penalised")
    class Penalised(AttentionLayer):
        def __init__(self, hidden_channels: int, heads: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((), 3.0))

        def shared(self) -> SharedState:
            return Start()

        def forward(self, h: Tensor, e: Tensor, neighbourhoods: Graph, state: State) -> Any:
            return h, e, State(state.penalty + self.weight**2)

    return GraphTransformer(in_channels=2, hidden_channels=8, heads=2, num_layers=2, attention="penalised")


def test_predictions_and_penalty() -> None:
    model, x = model_with_penalty(), torch.randn(3, 2)
    assert model.has_penalty
    out, penalty = model(x, EDGES, return_penalty=True)
    assert torch.equal(out, model(x, EDGES)) and float(penalty) == 18.0


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_adds_it(precision: str) -> None:
    graphs = [Data(x=torch.randn(3, 2), edge_index=EDGES, y=torch.randn(1)) for _ in range(4)]
    splits, task, model = (
        GraphSplits.of(graphs, graphs, graphs),
        make_task({"name": "regression"}),
        model_with_penalty(),
    )
    training = JointTraining(TrainConfig(epochs=1, precision=precision), model, splits, task, progress=False)
    batch, generator = Batch.from_data_list(graphs), torch.Generator()
    loss = training.loss(batch, generator)
    assert float(loss) == pytest.approx(float(task.loss(training.predict(batch), batch.y)) + 18.0, rel=1e-6)
    loss.backward()
    assert [float(layer.weight.grad) for layer in model.layers] == [6.0, 6.0]
