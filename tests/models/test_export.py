"""Exported programs on batches of other sizes against the model: torch.export, and ONNX where it is installed."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import pytest
import torch
from helpers import randomize_
from torch import Tensor, nn

from tg_lpe import GraphTransformer
from tg_lpe.encoders import GramTransformer, PersonalizedPageRank, RandomWalk
from tg_lpe.models.features import FeatureModel

pytestmark = pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="torch.export needs torch 2.7")
BASE: dict[str, Any] = {"num_node_types": 5, "num_edge_types": 4, "hidden_channels": 16, "heads": 2, "num_layers": 1}
MODELS: dict[str, dict[str, Any]] = {
    "edge": {"encoder": RandomWalk(steps=4), "num_layers": 2, "readout": {"pooling": "both"}},
    "gine": {
        "encoder": GramTransformer(out_channels=4, edge_out_channels=3, num_edge_types=4),
        "attention_options": {"local": "gine", "norm": "bounded"},
        "pe_options": {"norm": True},
    },
    "convolution": {"attention_options": {"local": "GATv2Conv"}, "readout": {"pooling": "max"}},
    "spectral": {"encoder": RandomWalk(steps=3), "attention": "spectral", "pe_options": {"merge": "concat"}},
    "nodes": {"encoder": RandomWalk(steps=2), "readout": {"level": "node"}, "attention_options": {"norm": "graph"}},
}


class Network(nn.Module):
    """The network that the tutorial exports."""

    def __init__(self, model: FeatureModel) -> None:
        super().__init__()
        self.model = model if model.encoder is None else model.without_encoder()

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor, pe: Tensor | None, edge_pe: Tensor | None
    ) -> Tensor:
        return self.model(x, edge_index, edge_attr, batch, pe=pe, edge_pe=edge_pe)


def made(name: str) -> GraphTransformer:
    return randomize_(GraphTransformer(**{**BASE, **MODELS[name]})).eval()


def inputs(model: GraphTransformer, sizes: list[int]) -> tuple[Tensor | None, ...]:
    """Rings of these sizes with edges in any order, and their encodings."""
    generator, edges, first = torch.Generator().manual_seed(sum(sizes)), [], 0
    for size in sizes:
        node = torch.arange(size) + first
        edges += [torch.stack([node, node.roll(1)]), torch.stack([node.roll(1), node])]
        first += size
    edge_index = torch.cat(edges, 1)
    edge_index = edge_index[:, torch.randperm(edge_index.size(1), generator=generator)]
    batch = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    x = torch.randint(0, 5, (first,), generator=generator)
    low, high = edge_index.aminmax(dim=0)
    edge_attr = (low + high) % 4  # both directions agree
    if model.encoder is None:
        return x, edge_index, edge_attr, batch, None, None
    with torch.no_grad():
        encoding = model.encoder(x, edge_index, edge_attr, batch)
    return x, edge_index, edge_attr, batch, encoding.node, encoding.edge


@cache
def exported(name: str) -> tuple[GraphTransformer, torch.export.ExportedProgram]:
    """Return a model and its exported network."""
    model = made(name)
    nodes, edges = torch.export.Dim("nodes", min=2), torch.export.Dim("edges", min=2)
    example = inputs(model, [3, 4, 5])
    rows = ({0: nodes}, {1: edges}, {0: edges}, {0: nodes}, {0: nodes}, {0: edges})
    shapes = tuple(None if value is None else row for row, value in zip(rows, example, strict=True))
    return model, torch.export.export(Network(model), example, dynamic_shapes=shapes, strict=False)


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_program_predicts_as_the_model(name: str) -> None:
    (model, program), file = exported(name), io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    run = torch.export.load(file).module()
    for sizes in ([3, 4, 5], [6], [9, 3], [5] * 20):
        torch.testing.assert_close(run(*inputs(model, sizes)), model(*inputs(model, sizes)[:4]), rtol=1e-4, atol=1e-5)
    calls = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not [call for call in calls if "tg_lpe" in call], "it runs where this package is not installed"


@pytest.mark.parametrize("name", MODELS)
def test_onnx_predicts_as_the_model(name: str, tmp_path: Any) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    (model, program), path = exported(name), str(tmp_path / "network.onnx")
    torch.onnx.export(program, dynamo=True, verbose=False).save(path)
    session = runtime.InferenceSession(path)
    for sizes in ([3, 4, 5], [6], [9, 3], [5] * 20):
        given = [value for value in inputs(model, sizes) if value is not None]
        feed = {entry.name: value.numpy() for entry, value in zip(session.get_inputs(), given, strict=True)}
        (got,) = session.run(None, feed)
        torch.testing.assert_close(torch.from_numpy(got), model(*inputs(model, sizes)[:4]), rtol=1e-4, atol=1e-5)


def test_without_encoder_is_a_copy_that_draws_nothing() -> None:
    model = made("gine")
    before, given = torch.get_rng_state(), inputs(model, [4, 6])
    network = model.without_encoder()
    assert torch.equal(before, torch.get_rng_state()) and network.encoder is None and not network.training
    expected = model(*given[:4])
    torch.testing.assert_close(network(*given[:4], pe=given[4], edge_pe=given[5]), expected, rtol=0, atol=0)
    with torch.no_grad():
        network.node_embedding.rows.weight.zero_()
    torch.testing.assert_close(model(*given[:4]), expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"without_encoder.*has none"):
        network.without_encoder()
    with pytest.raises(ValueError, match=r"without_encoder.*pairs"):
        GraphTransformer(encoder=PersonalizedPageRank(), attention="bias", hidden_channels=16).without_encoder()
