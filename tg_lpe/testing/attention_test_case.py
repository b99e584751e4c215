"""Tests that every attention layer must pass."""

from __future__ import annotations

import copy
import inspect
import itertools
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import reset_all
from tg_lpe.nn.attention import ATTENTIONS, AttentionLayer, SharedState, make_attention
from tg_lpe.nn.norms import RunningNorm
from tg_lpe.testing.graphs import normal, randomize_, relative_error, uncalled_linears
from tg_lpe.testing.host_reads import HostReads

CHANNELS, HEADS = 8, 2
BATCH = torch.tensor([0, 0, 0, 0, 1, 1, 1, 3])  # graph 2 has no nodes; node 3 and graph 3 have no edges
EDGES = torch.tensor([[0, 1, 2, 1, 0, 0, 5, 4, 6, 6, 5], [1, 0, 1, 2, 1, 0, 4, 5, 5, 4, 5]])  # repeated, loops, one-way
GRAPHS = 4


class WithShared(nn.Module):
    """A layer with the module that layers share, called like a layer without one."""

    def __init__(self, layer: AttentionLayer, shared: SharedState, has_pairs: bool = False) -> None:
        super().__init__()
        self.layer, self.shared, self.has_pairs = layer, shared, has_pairs

    def reset_parameters(self) -> None:
        reset_all(self.layer)
        reset_all(self.shared)

    def forward(self, h: Tensor, e: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
        inputs: tuple[Tensor | None, ...] = ()
        if self.layer.reads_pairs:
            inputs = pair_encoding(graph).to(h.dtype) if self.has_pairs else None, e
        h, e, _ = self.layer(h, e, graph, self.shared(graph, *inputs))
        return h, e


def pair_encoding(graph: Graph) -> Tensor:
    """Encode all pairs by the degrees of both nodes and whether they are equal, ``[num_pairs, 3]``."""
    degree, (first, second) = graph.laplacian_diagonal(torch.ones((), dtype=torch.float64)), graph.pairs
    return torch.stack([degree[first], 1 / (1 + degree[second]), (first == second).double()], 1)


def make_layer(name: str, options: dict[str, Any]) -> nn.Module:
    """Create a small layer; the option ``pair_channels`` is 0 or 3."""
    options, pair_channels = dict(options), int(options.get("pair_channels", 0))
    options.pop("pair_channels", None)
    layer = make_attention(name, CHANNELS, HEADS, options, pair_channels=pair_channels)
    shared = layer.shared()
    return layer if shared is None else WithShared(layer, shared, pair_channels > 0)


class AttentionTestCase:
    """Tests of an attention layer; a subclass sets ``name`` and, if there is an oracle, overrides :meth:`expected`."""

    name: str
    variants: ClassVar[list[dict[str, Any]]] = [{}]
    """Options of the layer; every test runs with each."""
    half_tolerance: ClassVar[float] = 0.1
    """Largest relative error in half precision."""

    def expected(
        self, layer: nn.Module, h: Tensor, e: Tensor, edge_index: Tensor, batch: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the layer's result in eval mode independently; edges are in the order of ``edge_index``."""
        pytest.skip(f"attention {self.name!r} has no oracle")

    def layers(self, train: bool = False, **options: Any) -> list[nn.Module]:
        """Return the layer in all variants, in float64, with random parameters and running statistics."""
        return [self._randomized({**variant, **options}).train(train) for variant in self.variants]

    def _randomized(self, options: dict[str, Any]) -> nn.Module:
        layer = randomize_(make_layer(self.name, options), scale=0.7).double()
        for module in layer.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.copy_(normal(module.num_features, seed=1) / 4)
                module.running_var.copy_(normal(module.num_features, seed=2).abs() + 0.5)
        return layer

    def apply(
        self,
        layer: nn.Module,
        h: Tensor,
        e: Tensor,
        edge_index: Tensor = EDGES,
        batch: Tensor = BATCH,
        graphs: int = GRAPHS,
    ) -> tuple[Tensor, Tensor]:
        """Apply the layer to edges in any order, and return edge features in the same order."""
        graph = Graph(edge_index, batch=batch, num_graphs=graphs)
        h, e = layer(h, graph.sort_edges(e), graph)
        place = graph.sort_edges(torch.arange(edge_index.size(1)))
        return h, torch.empty_like(e).index_copy(0, place, e)

    def inputs(self, num_nodes: int = len(BATCH), num_edges: int = EDGES.size(1)) -> tuple[Tensor, Tensor]:
        return normal(num_nodes, CHANNELS, seed=3), normal(num_edges, CHANNELS, seed=4)

    def test_against_the_oracle(self) -> None:
        for layer in self.layers():
            h, e = self.inputs()
            with torch.no_grad():
                expected = self.expected(layer, h, e, EDGES, BATCH)
                for got, rows in zip(self.apply(layer, h, e), expected, strict=True):
                    assert relative_error(got, rows) < 1e-12

    @pytest.mark.parametrize("train", [False, True])
    def test_gradients(self, train: bool) -> None:
        for layer in self.layers(train):
            if train and any(isinstance(module, RunningNorm) for module in layer.modules()):
                continue  # its statistics have no gradient, so finite differences do not match
            names = [name for name, _ in layer.named_parameters()]
            buffers = {name: value.clone() for name, value in layer.named_buffers()}

            def of(
                h: Tensor,
                e: Tensor,
                *values: Tensor,
                layer: nn.Module = layer,
                names: Any = names,
                buffers: Any = buffers,
            ) -> tuple[Tensor, ...]:
                state = {**dict(zip(names, values, strict=True)), **{name: v.clone() for name, v in buffers.items()}}
                graph = Graph(EDGES, batch=BATCH, num_graphs=GRAPHS)
                out = torch.func.functional_call(layer, state, (h, graph.sort_edges(e), graph))
                return tuple(rows for rows in out if rows.requires_grad)

            arguments = [*self.inputs(), *(p.detach() for p in layer.parameters())]
            arguments = [a.clone().requires_grad_() for a in arguments]
            assert torch.autograd.gradcheck(of, arguments, fast_mode=True)

    def test_second_derivatives(self) -> None:
        for layer in self.layers(train=False):
            h, e = self.inputs()
            sorted_e = Graph(EDGES, batch=BATCH, num_graphs=GRAPHS).sort_edges(e)

            def of(h: Tensor, layer: nn.Module = layer, e: Tensor = sorted_e) -> tuple[Tensor, ...]:
                out = layer(h, e, Graph(EDGES, batch=BATCH, num_graphs=GRAPHS))
                return tuple(rows for rows in out if rows.requires_grad)

            with sdpa_kernel(SDPBackend.MATH):  # torch's other kernels have no second derivative
                assert torch.autograd.gradgradcheck(of, h.clone().requires_grad_(), fast_mode=True)

    @pytest.mark.parametrize("train", [False, True])
    @pytest.mark.parametrize("seed", range(3))
    def test_labels_and_edge_order_change_nothing(self, seed: int, train: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        ptr = [0, 4, 7, 8]
        parts = [torch.randperm(b - a, generator=generator) + a for a, b in itertools.pairwise(ptr)]
        label, order = torch.cat(parts), torch.randperm(EDGES.size(1), generator=generator)
        for layer in self.layers(train):
            h, e = self.inputs()
            expected_h, expected_e = self.apply(copy.deepcopy(layer), h, e)
            moved = torch.empty_like(h).index_copy(0, label, h)
            got_h, got_e = self.apply(layer, moved, e[order], label[EDGES][:, order])
            assert relative_error(got_h[label], expected_h) < 1e-12
            assert relative_error(got_e, expected_e[order]) < 1e-12

    def test_a_graph_does_not_depend_on_its_batch(self) -> None:
        for layer in self.layers():
            h, e = self.inputs()
            together_h, together_e = self.apply(layer, h, e)
            for nodes, edges in ((slice(0, 4), slice(0, 6)), (slice(4, 7), slice(6, 11)), (slice(7, 8), slice(11, 11))):
                index, batch = EDGES[:, edges] - nodes.start, torch.zeros(nodes.stop - nodes.start, dtype=torch.int64)
                alone_h, alone_e = self.apply(layer, h[nodes], e[edges], index, batch, 1)
                assert relative_error(alone_h, together_h[nodes]) < 1e-12
                assert relative_error(alone_e, together_e[edges]) < 1e-12

    @pytest.mark.parametrize("train", [False, True])
    @pytest.mark.parametrize(
        ("num_nodes", "edges", "graphs"),
        [(0, [], 0), (0, [], 2), (1, [], 1), (1, [(0, 0)], 1), (3, [], 1), (2, [(1, 0)], 1), (3, [(0, 0)], 5)],
    )
    def test_small_and_empty_graphs(
        self, num_nodes: int, edges: list[tuple[int, int]], graphs: int, train: bool
    ) -> None:
        index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T.contiguous()
        batch = torch.full((num_nodes,), max(graphs - 2, 0))
        for layer in self.layers(train):
            h, e = (rows.requires_grad_() for rows in self.inputs(num_nodes, len(edges)))
            out = self.apply(layer, h, e, index, batch, graphs)
            assert [tuple(rows.shape) for rows in out] == [(num_nodes, CHANNELS), (len(edges), CHANNELS)]
            sum(rows.square().sum() for rows in out).backward()
            gradients = [p.grad for p in (h, e, *layer.parameters()) if p.grad is not None]
            assert all(bool(gradient.isfinite().all()) for gradient in gradients)

    @pytest.mark.parametrize("graphs", [1, 2])
    def test_a_batch_without_nodes_leaves_nothing_out(self, graphs: int) -> None:
        """Run all norms and gradients without nodes too, because parallel processes exchange them in the same order."""
        for layer in self.layers(train=True):
            seen: list[list[str]] = []
            for name, module in layer.named_modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.register_forward_hook(lambda *_, name=name, seen=seen: seen[-1].append(name))
            grads = []
            for num_nodes, edges, batch, count in (
                (len(BATCH), EDGES, BATCH, GRAPHS),
                (0, EDGES[:, :0], BATCH[:0], graphs),
            ):
                seen.append([])
                layer.zero_grad()
                h, e = (rows.requires_grad_() for rows in self.inputs(num_nodes, edges.size(1)))
                sum(rows.sum() for rows in self.apply(layer, h, e, edges, batch, count)).backward()
                grads.append({name: p.grad for name, p in layer.named_parameters() if p.grad is not None})
            assert seen[0] == seen[1] and grads[0].keys() == grads[1].keys()
            assert not any(bool(grad.any()) for grad in grads[1].values())

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_dtypes(self, dtype: torch.dtype) -> None:
        tolerance = 1e-5 if dtype == torch.float32 else self.half_tolerance
        for layer in self.layers():
            h, e = self.inputs()
            expected = self.apply(layer, h, e)
            got = self.apply(layer.to(dtype), h.to(dtype), e.to(dtype))
            assert [rows.dtype for rows in got] == [dtype, dtype]
            assert all(relative_error(a.double(), b) < tolerance for a, b in zip(got, expected, strict=True))

    def test_reset_parameters_draws_all_anew_from_the_seed(self) -> None:
        for layer in self.layers():
            states = []
            for seed in (0, 0, 1):
                with torch.no_grad():
                    for tensor in layer.state_dict().values():
                        tensor.fill_(7)
                torch.manual_seed(seed)
                layer.reset_parameters()
                states.append({name: value.clone() for name, value in layer.state_dict().items()})
            first, second, other = states
            assert all(torch.equal(first[name], second[name]) for name in first)
            assert [name for name, value in first.items() if (value == 7).any()] == []
            drawn = [name for name, value in first.items() if value.dim() == 2]
            assert drawn and not any(torch.equal(first[name], other[name]) for name in drawn)

    def test_hooks_of_linear_maps_are_called(self) -> None:
        """Adapters such as LoRA, and pruning, work through calls of the modules."""
        for layer in self.layers():
            assert uncalled_linears(layer, partial(self.apply, layer, *self.inputs())) == []

    @pytest.mark.parametrize("train", [False, True])
    def test_inputs_are_not_changed(self, train: bool) -> None:
        for layer in self.layers(train):
            h, e = self.inputs()
            self.apply(layer, h, e)
            assert all(torch.equal(a, b) for a, b in zip((h, e), self.inputs(), strict=True))

    def test_nothing_waits_for_the_device(self) -> None:
        graph = Graph(EDGES, batch=BATCH, num_graphs=GRAPHS)
        for layer in self.layers(train=True):
            h, e = (rows.requires_grad_() for rows in self.inputs())
            _ = graph.max_nodes, graph.num_pairs  # read once per batch
            with HostReads() as reads:
                out = layer(h, e, graph)
                sum(rows.sum() for rows in out if rows.requires_grad).backward()
            assert reads.seen == []

    @pytest.mark.parametrize("option", ["dropout", "attention_dropout", "drop_path"])
    def test_dropout_follows_the_seed_and_ends_with_training(self, option: str) -> None:
        if option not in inspect.signature(ATTENTIONS[self.name]).parameters:
            pytest.skip(f"attention {self.name!r} has no {option}")
        h, e = self.inputs()
        for variant in self.variants:
            plain, layer = (self._randomized({**variant, **changes}).eval() for changes in ({}, {option: 0.5}))
            expected = self.apply(plain, h, e)
            assert all(torch.equal(a, b) for a, b in zip(self.apply(layer, h, e), expected, strict=True))
            drawn = []
            for seed in (0, 0, 1):
                torch.manual_seed(seed)
                drawn.append(self.apply(copy.deepcopy(layer).train(), h, e)[0])
            assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
