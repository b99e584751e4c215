"""Errors for encoders that break the contract; arguments and weights are never lost silently."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Degrees
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

import tg_lpe
from tg_lpe import AddPositionalEncoding, Encoder, Encoding, GramTransformer, Graph, GraphTransformer
from tg_lpe.checkpoints.registry import CLASSES
from tg_lpe.encoders import (
    ENCODERS,
    RRWP,
    Combined,
    Inputs,
    LinearTransformer,
    RandomWalk,
    SpectralEncoder,
    Whitened,
    load_encoder,
    without_edges,
)

RING = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


def frozen(encoder: Encoder) -> Encoder:
    return encoder.requires_grad_(False).eval()


def ring() -> Data:
    return Data(edge_index=RING, num_nodes=4)


class Activated(Encoder):
    """Degrees behind a function, which no configuration can hold, and a net without a method to reset it."""

    def __init__(self, act: Callable[[Tensor], Tensor] = torch.relu, edge_out_channels: int = 2) -> None:
        super().__init__()
        self.act = act
        self.out_channels, self.edge_out_channels = 2, edge_out_channels
        self.net = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 2))
        self.register_buffer("count", torch.tensor(3), persistent=True)
        self.register_buffer("scale", torch.tensor(0.1, dtype=torch.float64), persistent=False)

    def encode(self, graph: Graph, inputs: Inputs) -> Encoding:
        degree = graph.laplacian_diagonal(torch.empty(0)).unsqueeze(1)
        node = self.act(self.net(degree) - 1) * self.count * self.scale.float()
        return Encoding(node, node[graph.edge_index].sum(0) if self.edge_out_channels else None)


def test_arguments_that_json_cannot_hold_are_not_dropped(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        encoder = Activated(torch.abs)
    for call in (encoder.config_dict, lambda: encoder.save_pretrained(tmp_path / "encoder")):
        with pytest.raises(TypeError, match="act="):
            call()
    assert not (tmp_path / "encoder").exists()
    data = AddPositionalEncoding(encoder)(ring())
    assert torch.equal(data.pe, encoder(None, RING, num_nodes=4).node.detach()), "the very encoder that was given"
    model = GraphTransformer(encoder=encoder, hidden_channels=8)
    with pytest.raises(TypeError, match="act="):
        model.config_dict()


def test_without_edges_copies_every_tensor() -> None:
    encoder = Activated()
    encoder.net[0].requires_grad_(False)
    encoder.net.eval()
    encoder.count += 4
    encoder.scale.mul_(1 / 3)
    slim = without_edges(encoder)
    assert slim is not encoder and slim.edge_out_channels == 0
    assert slim.count.dtype == torch.int64 and torch.equal(slim.count, encoder.count)
    assert slim.scale.dtype == torch.float64 and torch.equal(slim.scale, encoder.scale)
    assert not slim.net[0].weight.requires_grad and slim.net[2].weight.requires_grad
    assert slim.training and not slim.net.training
    assert torch.equal(slim(None, RING).node, encoder(None, RING).node)
    with torch.no_grad():
        slim.net[2].weight.zero_()
    assert bool(encoder.net[2].weight.any()), "copies, not the same tensors"


@pytest.mark.parametrize(
    ("encoder", "attention"),
    [
        (GramTransformer(4), "edge"),
        (Combined([RRWP(4), GramTransformer(4)]), "edge"),
        (Combined([RRWP(4), RandomWalk(4)]), "bias"),
        (Whitened(RRWP(4)), "pairs"),
    ],
)
def test_forward_hooks_run_in_a_model(encoder: Encoder, attention: str) -> None:
    """Hooks extract features; wrappers such as FSDP rely on them too."""
    encoder.fit([ring()])
    model = GraphTransformer(encoder=encoder, attention=attention, hidden_channels=8, heads=2, num_layers=1).eval()
    outputs = {}
    for name, part in model.named_modules():
        if isinstance(part, Encoder):
            part.register_forward_hook(lambda _module, _inputs, output, name=name: outputs.update({name: output}))
    model(None, RING, num_nodes=4)
    assert len(outputs) == sum(isinstance(part, Encoder) for part in model.modules())
    assert torch.equal(outputs["encoder"].node, encoder(None, RING, num_nodes=4).node)


def test_a_linear_transformer_in_a_model_that_is_trained_again() -> None:
    model = GraphTransformer(encoder=frozen(LinearTransformer(4)), hidden_channels=8, heads=2, num_layers=1)
    assert not model.train().encoder.training
    model.requires_grad_(True)
    model(None, RING, num_nodes=4).sum().backward()
    gradients = [parameter.grad for parameter in model.encoder.parameters()]
    assert gradients and all(grad is not None for grad in gradients)
    assert model.train().encoder.training


def test_without_edges_stays_frozen() -> None:
    """A training would switch dropout on in an encoder that is not to change."""
    dropping = frozen(SpectralEncoder(4, 4, dropout=0.5))
    for encoder in (dropping, Combined([dropping, RandomWalk(4)]), Whitened(dropping)):
        slim = without_edges(encoder)
        assert slim is not encoder and slim.edge_out_channels == 0
        assert not any(module.training for module in slim.train().modules())
        slim.check_loadable()
    parts = [RandomWalk(4, 0).eval(), GramTransformer(4, 4).eval()]
    slim = without_edges(Combined(parts))
    assert slim.training and not any(part.training for part in (*parts, *slim.encoders)), "the modes are left alone"


class Unweighted(Degrees):
    """Reads nothing but the edges."""

    reads = frozenset()


def test_weights_do_not_reach_an_encoder_that_does_not_read_them() -> None:
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    data = Data(edge_index=RING, num_nodes=4, edge_weight=weight)
    assert AddPositionalEncoding(Unweighted())(data).pe.flatten().tolist() == [2.0] * 4
    with pytest.raises(ValueError, match="edge_weight"):
        Unweighted()(None, RING, edge_weight=weight)


def test_weights_in_place_of_edge_features_are_told_of(recwarn: pytest.WarningsRecorder) -> None:
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    with pytest.warns(UserWarning, match="RandomWalk does not read edge_attr.*edge_weight=") as told:
        RandomWalk(4)(None, RING, weight)
    assert told[0].filename == __file__
    RandomWalk(4)(None, RING, weight.unsqueeze(1))  # features
    RandomWalk(4)(None, RING, weight, edge_weight=weight)
    Unweighted()(None, RING, weight)
    assert not recwarn.list


def _set(name: str, value: Any) -> Encoder:
    encoder = Degrees()
    if value is None:
        del encoder.out_channels
    else:
        setattr(encoder, name, value)
    return encoder


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (_set("reads", frozenset({"pos"})), r"must set reads .*\('x', 'edge_attr', 'edge_weight'\), got .*{'pos'}"),
        (_set("reads", "edge_weight"), "must set reads to a set of names from .*, got 'edge_weight'"),
        *((_set("out_channels", width), "Degrees must set out_channels to an integer") for width in (None, -1, 1.5)),
    ],
)
def test_what_an_encoder_says_of_itself_is_checked(encoder: Encoder, message: str) -> None:
    for use in (AddPositionalEncoding, lambda own: GraphTransformer(encoder=own, hidden_channels=8)):
        with pytest.raises(ValueError, match=message):
            use(encoder)


class EdgesAlone(Degrees):
    """Sums of degrees at the edges, nothing at the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.out_channels = 0

    def encode(self, graph: Graph, inputs: Inputs) -> Encoding:
        encoding = super().encode(graph, inputs)
        return Encoding(encoding.node[:, :0], encoding.edge)


def test_an_encoder_of_edges_alone() -> None:
    data = ring()
    encoded = AddPositionalEncoding(EdgesAlone(), edge_attr_name="edge_pe")(data)
    assert "pe" not in encoded and torch.equal(encoded.edge_pe, torch.full((4, 1), 4.0))
    with pytest.raises(ValueError, match="edge_attr_name"):
        AddPositionalEncoding(EdgesAlone())
    assert without_edges(EdgesAlone()).edge_out_channels
    model = GraphTransformer(encoder=EdgesAlone(), hidden_channels=8)
    assert model.pe_embedding is None and model.edge_pe_embedding is not None
    given = GraphTransformer(pe_options={"edge_channels": 1}, hidden_channels=8)
    given.load_state_dict(model.state_dict())
    expected = given.eval()(None, data.edge_index, edge_pe=encoded.edge_pe, num_nodes=4)
    assert torch.equal(model.eval()(None, data.edge_index, num_nodes=4), expected)
    empty = Degrees()
    empty.out_channels = empty.edge_out_channels = 0
    with pytest.raises(ValueError, match="out_channels"):
        GraphTransformer(encoder=empty)


class Wrong(Degrees):
    """Return an encoding that the test sets."""

    result: Any = None

    def encode(self, *args: Any, **kwargs: Any) -> Encoding:
        return self.result


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (torch.zeros(4, 1), TypeError, "Wrong.encode must return an Encoding of tensors, got Tensor"),
        (Encoding(torch.zeros(3, 1), torch.zeros(4, 1)), ValueError, r"node encoding must be \[4, 1\], got \[3, 1\]"),
        (Encoding(torch.zeros(4, 2), torch.zeros(4, 1)), ValueError, "out_channels"),
        (Encoding(torch.zeros(4), torch.zeros(4, 1)), ValueError, r"node encoding must be \[4, 1\], got \[4\]"),
        (Encoding(torch.zeros(4, 1)), ValueError, "edge encoding must"),
        (Encoding(torch.zeros(4, 1), torch.zeros(3, 1)), ValueError, r"edge encoding must be \[4, 1\], got \[3, 1\]"),
    ],
)
def test_a_wrong_encoding_is_refused(result: Any, error: type, message: str) -> None:
    encoder = Wrong()
    encoder.result = result
    with pytest.raises(error, match=message):
        AddPositionalEncoding(encoder)(ring())
    with pytest.raises(error, match=message):
        GraphTransformer(encoder=encoder, hidden_channels=8)(None, RING, num_nodes=4)


def test_an_edge_encoding_that_was_not_announced_is_refused() -> None:
    encoder = _set("edge_out_channels", 0)
    with pytest.raises(ValueError, match="edge_out_channels"):
        AddPositionalEncoding(encoder)(ring())


def test_unregistered_classes_are_told_what_to_do(tmp_path: Path) -> None:
    model = GraphTransformer(encoder=Degrees(), hidden_channels=8)
    with pytest.raises(ValueError, match="tg_lpe"):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    Degrees().save_pretrained(tmp_path / "encoder")
    with pytest.raises(ValueError, match=r"holds Degrees, which is no registered encoder: import the module"):
        load_encoder(tmp_path / "encoder")


def test_a_class_whose_name_is_taken_is_in_no_registry() -> None:
    cls = type("GraphTransformer", (Degrees,), {})
    with pytest.raises(ValueError, match="'GraphTransformer' is taken"):
        tg_lpe.encoders.register(cls)
    assert "GraphTransformer" not in ENCODERS and CLASSES["GraphTransformer"] is GraphTransformer


def test_unknown_options_of_loading_are_refused() -> None:
    with pytest.raises(TypeError, match="map_locaton"):
        GramTransformer.from_pretrained("gram-k8", map_locaton="cpu")


def test_appending_to_x_keeps_its_precision() -> None:
    x = torch.full((4, 1), 1 / 3, dtype=torch.float64)
    data = Data(x=x, edge_index=RING)
    appended = AddPositionalEncoding(Degrees(), attr_name=None)(data).x
    assert appended.dtype == torch.float64 and torch.equal(appended[:, :1], x)
    parts = AddPositionalEncoding(Degrees(), attr_name=None)(Batch.from_data_list([data, data])).to_data_list()
    assert torch.equal(parts[1].x, appended)
    bare = AddPositionalEncoding(Degrees(), attr_name=None)(Batch.from_data_list([ring(), ring()])).to_data_list()
    assert torch.equal(bare[1].x, appended[:, 1:].float())


class Scaled(Degrees):
    """Degrees with a parameter of its own, and without a method that draws it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))


def test_reset_draws_parameters_of_a_users_encoder() -> None:
    model = GraphTransformer(encoder=Scaled(), hidden_channels=8, heads=2, num_layers=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model.reset_parameters()
        torch.manual_seed(5)
        assert torch.equal(model.encoder.scale, torch.randn(3))


@pytest.mark.parametrize(
    "change",
    [
        lambda encoder, other: encoder.reset_parameters(),
        lambda encoder, other: encoder.load_state_dict(other.state_dict()),
        lambda encoder, other: encoder.load_state_dict(other.state_dict(), assign=True),
        lambda encoder, other: encoder.half().float(),
        lambda encoder, other: encoder.double(),
        lambda encoder, other: encoder.w_v[1].mul_(3),
    ],
    ids=["reset", "loaded", "assigned", "rounded", "cast", "in place"],
)
def test_a_frozen_linear_transformer_sees_other_weights(change: Callable[[Any, Any], Any]) -> None:
    encoder = frozen(LinearTransformer(4))
    before = encoder(None, RING).node
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        change(encoder, LinearTransformer(4))
    after, expected = encoder(None, RING).node, copy.deepcopy(encoder).requires_grad_(True)(None, RING).node.detach()
    assert not torch.equal(after, before.to(after.dtype))
    torch.testing.assert_close(after, expected)
