"""Everything runs on a device other than the CPU: no tensor stays on the CPU, forwards or backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from elsewhere import DEVICE, Device, Elsewhere, brought_back, from_host, is_fake, moved
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from tg_lpe import GramTransformer, Graph, GraphTransformer, LinearTransformer, LinearTransformerPE, theory
from tg_lpe.app.training.metrics import METRICS, hits_at
from tg_lpe.encoders import (
    LPE,
    RPEARL,
    RRWP,
    SPE,
    CycleCounts,
    DirectedWalk,
    Encoder,
    MagneticLaplacian,
    PersonalizedPageRank,
    Positions,
    ShortestPath,
    SignNet,
)
from tg_lpe.graph.eigenvectors import laplacian_eigenvectors
from tg_lpe.graph.random_walks import random_walk_probabilities
from tg_lpe.ops import segment
from tg_lpe.theory import effective_resistance, electric_potential, heat_kernel, resistive_embedding

NODE_TYPES, EDGE_TYPES = 5, 3


def batch_of(*sizes: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    parts = []
    for n in sizes:
        edges = torch.randint(n, (2, 2 * n), generator=generator)
        edges = torch.cat([edges, edges.flip(0)], dim=1)
        x = torch.randint(NODE_TYPES, (n, 1), generator=generator)
        parts.append(Data(x=x, edge_index=edges, edge_attr=edges.sum(0) % EDGE_TYPES, num_nodes=n))
    return Batch.from_data_list(parts)


SMALL, MIXED = (5, 1, 12, 30, 8), (300, 5)
both_batches = pytest.mark.parametrize("sizes", [SMALL, MIXED], ids=["small graphs", "a large one"])
TYPES = {"num_node_types": NODE_TYPES, "num_edge_types": EDGE_TYPES}


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not is_fake:
        yield
        return
    asked = torch.is_autocast_enabled
    monkeypatch.setattr(segment, "torch_scatter", None)  # it is not used on GPUs
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind != "meta" and asked(kind))
    # Inference mode does not support tensors that wrap others.
    monkeypatch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad() if mode else nullcontext())
    # Numbers of Python's become a tensor without any dispatch.
    made = torch.tensor

    def tensor(values: Any, *, device: Any = None, **options: Any) -> Tensor:
        out = made(values, **options)
        return Elsewhere(out) if device is not None and torch.device(device) == DEVICE else out

    monkeypatch.setattr(torch, "tensor", tensor)
    with Device():
        yield


def flat(value: Any) -> list[Tensor]:
    values = value if isinstance(value, tuple | list) else [value]
    return [part for part in values if part is not None]


def check(run: Callable[[Any, Callable[[Any], Any]], Any], model: nn.Module | None = None) -> None:
    """Check that results on the device and on the CPU agree; ``run(model, place)`` moves its input with ``place``."""
    here = flat(run(model, lambda value: value))
    there = flat(run(moved(model), moved))
    assert len(here) == len(there) > 0
    for expected, found in zip(here, there, strict=True):
        torch.testing.assert_close(brought_back(found), expected.detach(), rtol=1e-3, atol=1e-4)


def with_gradients(out: Any, model: nn.Module) -> list[Tensor]:
    parts = flat(out)
    loss = torch.stack([part.square().sum() for part in parts]).sum()
    return [*parts, *flat(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))]


@pytest.mark.skipif(not is_fake, reason="the device is a real one")
def test_the_fake_device_rejects_tensors_of_others() -> None:
    a = moved(torch.ones(3))
    assert (a + 1).device == a.device and (a + torch.tensor(2.0)).device == a.device
    with pytest.raises(RuntimeError, match="two devices"):
        a + torch.ones(3)
    with pytest.raises(RuntimeError, match="two devices"):
        a[torch.arange(2)]


@both_batches
@pytest.mark.parametrize(
    "encoder",
    [
        LinearTransformer(),
        LinearTransformer(diagonal=False),
        LinearTransformer(normalize=False),
        LinearTransformer(degree_scaling=False),
        LinearTransformer(update_incidence=True),
        LinearTransformer(probes="features", num_node_types=NODE_TYPES),
        LinearTransformer(probes="learned", max_nodes=300),
        GramTransformer(4, 4, 2, 5),
        GramTransformer(4, 4, 2, 5, basis="chebyshev"),
        GramTransformer(4, 4, 2, 5, probes="rademacher", num_probes=8),
        GramTransformer(4, 4, 2, 5, probes="identity"),
        GramTransformer(4, 4, 2, 5, **TYPES),
        LPE(8, 4),
        SPE(8, 4),
        SignNet(8, 4),
        RPEARL(8, 4),
        Positions(4, loops=3),
    ],
    ids=lambda encoder: repr(encoder).partition("\n")[0],
)
def test_learned_encodings(encoder: Encoder, sizes: tuple[int, ...]) -> None:
    batch = batch_of(*sizes)
    weight = 1.0 + batch.edge_index.sum(0) % 3

    def run(model: Any, place: Callable[[Any], Any]) -> list[Tensor]:
        graph = (place(part) for part in (batch.x, batch.edge_index, batch.edge_attr, batch.batch, weight))
        generator = torch.Generator().manual_seed(0)
        return with_gradients(model(*graph, num_graphs=batch.num_graphs, generator=generator), model)

    check(run, encoder)


COMPUTED = RRWP(4), ShortestPath(3), PersonalizedPageRank(), MagneticLaplacian(3), DirectedWalk(4), CycleCounts((3, 4))


@pytest.mark.parametrize("encoder", COMPUTED, ids=str)
def test_computed_encodings(encoder: Encoder) -> None:
    batch = batch_of(*SMALL)

    def run(model: Any, place: Callable[[Any], Any]) -> list[Tensor]:
        graph = Graph(place(batch.edge_index), batch.num_nodes, batch=place(batch.batch), num_graphs=len(SMALL))
        if not encoder.pair_out_channels:
            return flat(model(None, graph))
        return flat(model(None, graph, pairs=graph.pairs))

    check(run, encoder)


def test_metrics() -> None:
    scores, labels = torch.linspace(0, 1, 20).roll(7), (torch.arange(20) % 3 == 0).float()
    for column in (*(metric.column for metric in METRICS.values()), lambda *values: hits_at(*values, 3)):
        assert column(moved(scores), moved(labels)) == column(scores, labels)


@pytest.mark.parametrize(
    "options",
    [
        {"encoder": GramTransformer(4, 4, 2, 5, **TYPES)},
        {"encoder": GramTransformer(4, 4, 2, 5, **TYPES), "pe_options": {"norm": True}, "readout": {"pooling": "both"}},
        {"encoder": RRWP(4), "attention": "bias"},
        {"encoder": RRWP(4), "attention": "pairs"},
    ],
    ids=["edges", "both", "bias", "pairs"],
)
def test_graph_transformer_with_its_encoder(options: dict[str, Any]) -> None:
    batch = batch_of(*SMALL)

    def run(model: Any, place: Callable[[Any], Any]) -> list[Tensor]:
        graph = (place(part) for part in (batch.x, batch.edge_index, batch.edge_attr, batch.batch))
        return with_gradients(model(*graph), model)

    check(run, GraphTransformer(**TYPES, hidden_channels=16, heads=2, num_layers=2, **options).double())


@pytest.mark.skipif(not is_fake, reason="the device is a real one")
@pytest.mark.parametrize(
    "encoder", [None, GramTransformer(4, 4, 2, 5), LinearTransformer(4)], ids=["none", "gram", "linear"]
)
def test_a_step_copies_nothing_from_the_host(encoder: nn.Module | None) -> None:
    batch = batch_of(*SMALL)
    model = moved(GraphTransformer(encoder=encoder, hidden_channels=16, heads=2, num_layers=2))
    arguments = [moved(batch.edge_index), None, moved(batch.batch)]
    from_host.clear()
    with_gradients(model(None, *arguments, num_graphs=batch.num_graphs), model)
    assert not from_host
    moved(batch.batch) + torch.arange(batch.num_nodes).to(DEVICE)
    assert from_host == ["_to_copy"]


@both_batches
def test_functions_of_a_graph(sizes: tuple[int, ...]) -> None:
    batch = batch_of(*sizes)

    def graph(place: Callable[[Any], Any]) -> Graph:
        return Graph(place(batch.edge_index), batch.num_nodes, batch=place(batch.batch), num_graphs=len(sizes))

    check(lambda _, place: laplacian_eigenvectors(graph(place), 4)[0].square())
    check(lambda _, place: random_walk_probabilities(graph(place), 4))
    check(
        lambda _, place: heat_kernel(graph(place), 0.5, psi=place(torch.ones(batch.num_nodes, 2, dtype=torch.double)))
    )


def test_functions_by_the_lemmas() -> None:
    batch = batch_of(9)
    demands = torch.randn(9, 2, dtype=torch.double, generator=torch.Generator().manual_seed(1))

    def graph(place: Callable[[Any], Any]) -> Graph:
        return Graph(place(batch.edge_index), 9)

    check(lambda _, place: effective_resistance(graph(place)))
    check(lambda _, place: effective_resistance(graph(place), pairs="edges"))
    check(lambda _, place: heat_kernel(graph(place), 0.5))
    check(lambda _, place: electric_potential(graph(place), place(demands)))
    check(lambda _, place: resistive_embedding(graph(place)).square().sum(1))
    check(lambda _, place: theory.laplacian_eigenvectors(graph(place), 2, tolerance=0.1)[1])


@pytest.mark.parametrize("name", ["gram-k8", "positions-k16"])
def test_transform(name: str) -> None:
    batch = batch_of(*SMALL)
    transform = LinearTransformerPE.from_pretrained(name, 8)

    def run(_: Any, place: Callable[[Any], Any]) -> Tensor:
        data = batch.clone().apply(place)
        return transform(data).linear_transformer_pe

    check(run)
