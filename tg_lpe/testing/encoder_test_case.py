"""Tests that every encoder must pass."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networkx import barbell_graph
from torch import Tensor
from torch_geometric.data import Batch, Data

import tg_lpe.graph.graph
from tg_lpe.encoders import ENCODERS, Encoder, Encoding, load_encoder, make_encoder, without_edges
from tg_lpe.graph.graph import make_graph
from tg_lpe.models import GraphTransformer
from tg_lpe.testing.graphs import (
    Graph,
    batch_of,
    corner_cases,
    directed_graphs,
    few,
    fewer,
    from_networkx,
    graphs,
    listings,
    randomize_,
    uncalled_linears,
)
from tg_lpe.transforms import AddPositionalEncoding

GRAPH = Graph(6, [(0, 1), (0, 3), (1, 2), (1, 5), (2, 3), (3, 4), (4, 5)], [1.0, 2.0, 0.5, 3.0, 1.0, 4.0, 0.2])


class EncoderTestCase:
    """Tests that every encoder must pass; pytest runs them for a subclass whose name begins with ``Test``.

    They cover corner cases, batches, relabelling, dtypes, checkpoints, precomputation, transforms, gradients and more::

        @tg_lpe.encoders.register
        class Degree(tg_lpe.Encoder): ...


        class TestDegree(EncoderTestCase):
            def make(self):
                return Degree()

    A subclass implements :meth:`make` and, if possible, computes the encoding of a graph independently in
    :meth:`oracle`. If the encoding has arbitrary choices, such as signs, :meth:`invariant` returns a function of it
    without them.
    """

    exponents: ClassVar[tuple[float, float]] = (-2.0, 2.0)
    """Range of random weights, as powers of ten."""
    tolerance: ClassVar[float] = 1e-8
    learned: ClassVar[bool] = False
    """Whether the encoder has weights and gradients."""
    equivariant: ClassVar[bool] = True
    """Whether the encoding is equivariant under relabelling of the nodes."""
    checks_precomputed: ClassVar[bool] = True
    """Whether ``encode`` raises an error for the precomputed tensors of another graph."""

    def make(self) -> Encoder:
        """Return a new encoder."""
        raise NotImplementedError

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Compute :meth:`invariant` of the nodes and of the edges independently.

        The edges are ``graph.edges``, or those of ``graph.listing()`` for a ``directed`` encoder.
        """
        return None

    def pair_oracle(self, graph: Graph) -> np.ndarray | None:
        """Compute the encoding of all pairs, ``[num_nodes, num_nodes, pair_out_channels]``, independently."""
        return None

    def invariant(self, graph: Graph, encoding: Encoding) -> Encoding:
        """Return rows of nodes and edges without arbitrary choices; by default, the encoding."""
        return encoding

    def strategy(self, **options: Any) -> st.SearchStrategy[Graph]:
        """Return the strategy of hypothesis that draws the graphs of the tests."""
        return (directed_graphs if self.make().directed else graphs)(exponents=self.exponents, **options)

    # The rest is the same for all encoders.

    def double(self) -> Encoder:
        return randomize_(self.make()).double().eval()

    def features(self, encoder: Encoder, graph: Graph) -> Tensor | None:
        """Return integer node features that move with the nodes, if the encoder reads them."""
        return self.degrees(graph) % 3 if "x" in encoder.reads else None

    def degrees(self, graph: Graph) -> Tensor:
        return graph.edge_index().flatten().bincount(minlength=graph.num_nodes)

    def kinds(self, encoder: Encoder, edge_index: Tensor) -> Tensor | None:
        return torch.ones(edge_index.size(1), dtype=torch.int64) if "edge_attr" in encoder.reads else None

    def run(self, encoder: Encoder, graph: Graph, index: Tensor, weight: Tensor, **options: Any) -> Encoding:
        made = make_graph(index, graph.num_nodes, edge_weight=weight)
        with torch.no_grad():
            return encoder(self.features(encoder, graph), made, self.kinds(encoder, index), **options)

    def batch(
        self, encoder: Encoder, parts: list[Graph]
    ) -> tuple[tg_lpe.graph.graph.Graph, Tensor | None, Tensor | None]:
        """Return a batch of graphs, and its features."""
        batched = batch_of(parts)
        x = [rows for part in (Graph(0, [], []), *parts) if (rows := self.features(encoder, part)) is not None]
        kinds = self.kinds(encoder, batched.edge_index)
        return make_graph(**batched.arguments()), torch.cat(x) if x else None, kinds

    def run_batch(self, encoder: Encoder, parts: list[Graph], **options: Any) -> Encoding:
        with torch.no_grad():
            graph, x, kinds = self.batch(encoder, parts)
            return encoder(x, graph, kinds, **options)

    def alone(self, encoder: Encoder, graph: Graph) -> Encoding:
        return self.run(encoder, graph, *graph.listing())

    def close(self, got: Tensor, expected: Tensor, tolerance: float | None = None) -> None:
        """Compare values relative to the largest."""
        tolerance = self.tolerance if tolerance is None else tolerance
        size = float(expected.abs().max()) if expected.numel() else 1.0
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance * max(size, 1.0))

    def check(self, graph: Graph, got: Encoding, expected: Encoding, tolerance: float | None = None) -> None:
        for rows, expected_rows in zip(self.invariant(graph, got), self.invariant(graph, expected), strict=True):
            assert (rows is None) == (expected_rows is None)
            if rows is not None and expected_rows is not None:
                self.close(rows, expected_rows, tolerance)

    @few
    @given(data=st.data())
    def test_values(self, data: st.DataObject) -> None:
        self.check_values(data.draw(self.strategy()))

    def test_values_of_corner_cases(self) -> None:
        for graph in [GRAPH, *corner_cases()]:
            self.check_values(graph)

    def check_values(self, graph: Graph) -> None:
        if (expected := self.oracle(graph)) is None:
            pytest.skip("this test case has no oracle")
        (node, edge), encoder = expected, self.double()
        got = self.invariant(graph, self.alone(encoder, graph))
        if got.node is not None:
            self.close(got.node, torch.as_tensor(node).to(got.node).reshape(got.node.shape))
        if got.edge is not None and edge is not None:
            listed = edge if encoder.directed else np.concatenate([edge] * 2)
            self.close(got.edge, torch.as_tensor(listed).to(got.edge).reshape(got.edge.shape))

    @few
    @given(data=st.data())
    def test_a_batch_is_its_graphs_one_by_one(self, data: st.DataObject) -> None:
        self.check_batch(self.double(), data.draw(st.lists(self.strategy(), max_size=4)))

    def test_a_batch_of_corner_cases(self) -> None:
        self.check_batch(self.double(), corner_cases())
        empty, isolated = Graph(0, [], []), Graph(3, [], [])
        self.check_batch(self.double(), [empty, empty, isolated])  # as many components as graphs

    def check_batch(self, encoder: Encoder, parts: list[Graph]) -> None:
        whole = self.run_batch(encoder, parts)
        assert whole.node.shape == (sum(part.num_nodes for part in parts), encoder.out_channels)
        assert (whole.edge is None) == (encoder.edge_out_channels == 0)
        nodes = whole.node.split([part.num_nodes for part in parts])
        edges = [None] * len(parts)
        if whole.edge is not None:
            sizes = [part.listing()[0].size(1) for part in parts]
            assert whole.edge.shape == (sum(sizes), encoder.edge_out_channels)
            edges = whole.edge.split(sizes)
        for part, node, edge in zip(parts, nodes, edges, strict=True):
            self.check(part, Encoding(node, edge), self.alone(encoder, part))

    @few
    @given(data=st.data())
    def test_relabelling(self, data: st.DataObject) -> None:
        if not self.equivariant:
            pytest.skip("this encoding depends on how the nodes are numbered")
        graph, encoder = data.draw(self.strategy(min_nodes=2)), self.double()
        label = data.draw(st.permutations(range(graph.num_nodes)))
        index, weight = graph.listing()
        place = torch.tensor(label)
        got = self.run(encoder, graph.relabelled(label), place[index], weight)
        self.check(graph, got._replace(node=got.node[place]), self.alone(encoder, graph))

    @few
    @given(data=st.data())
    def test_order_and_direction_of_edges(self, data: st.DataObject) -> None:
        graph, encoder = data.draw(graphs(min_nodes=1, exponents=self.exponents)), self.double()
        index, weight = data.draw(listings(graph, both_ways=encoder.directed))
        expected, got = self.alone(encoder, graph), self.run(encoder, graph, index, weight)
        self.check(graph, Encoding(got.node), Encoding(expected.node))
        if expected.edge is None or got.edge is None or self.invariant(graph, expected).edge is None:
            return
        row_of = {tuple(ends): row for row, ends in enumerate(graph.both_ways()[0].T.tolist())}
        for row, (u, v) in zip(got.edge, index.T.tolist(), strict=True):
            ends = (u, v) if encoder.directed else (min(u, v), max(u, v))
            same = expected.edge[row_of[ends]] if u != v else torch.zeros_like(row)
            torch.testing.assert_close(row, same, rtol=self.tolerance, atol=self.tolerance)

    def test_directions_are_told(self) -> None:
        """Encode a node of a directed cycle with its next and its previous node: the pairs must differ."""
        encoder, ring = self.double(), Graph(5, [(0, 1), (0, 4), (1, 2), (2, 3), (3, 4)], [1.0] * 5)
        if encoder.directed and encoder.pair_out_channels:
            index, pairs = torch.stack([torch.arange(5), torch.arange(1, 6) % 5]), torch.tensor([[0, 0], [1, 4]])
            told = self.run(encoder, ring, index, torch.ones(5), pairs=pairs).pair
            assert told is not None and float((told[0] - told[1]).abs().max()) > 0.01

    def run_pairs(self, encoder: Encoder, parts: list[Graph], pairs: Tensor | None = None) -> tuple[Encoding, Tensor]:
        """Encode a batch and pairs of its nodes, by default all pairs."""
        graph, x, kinds = self.batch(encoder, parts)
        with torch.no_grad():
            encoding = encoder(x, graph, kinds, pairs=graph.pairs if pairs is None else pairs)
        return encoding._replace(pair=None), encoding.pair

    @few
    @given(data=st.data())
    def test_pairs(self, data: st.DataObject) -> None:
        graph = data.draw(self.strategy())
        self.check_pairs(self.double(), [graph], data.draw(st.permutations(range(graph.num_nodes))))

    def test_pairs_of_corner_cases(self) -> None:
        encoder = self.double()
        parts = [part for part in (GRAPH, *corner_cases()) if part.num_nodes <= 80]
        self.check_pairs(encoder, parts, list(range(sum(part.num_nodes for part in parts))))
        if not encoder.pair_out_channels:
            return
        narrow = self.run_pairs(copy.deepcopy(encoder).float(), [GRAPH])[1]
        assert narrow.dtype == torch.float32
        self.close(narrow.double(), self.run_pairs(encoder, [GRAPH])[1], 1e-3)
        with pytest.raises(ValueError, match="pair"):
            self.run_pairs(encoder, [GRAPH, GRAPH], torch.tensor([[0], [6]]))

    def check_pairs(self, encoder: Encoder, parts: list[Graph], label: list[int]) -> None:
        """Compare the pairs of a batch with the oracle, with single graphs, with some pairs, and after relabelling."""
        if not encoder.pair_out_channels:
            with pytest.raises(ValueError, match="pair_out_channels"):
                self.run_pairs(encoder, parts)
            return
        encoding, values = self.run_pairs(encoder, parts)
        assert _equal(encoding, self.run_batch(encoder, parts))
        sizes = [part.num_nodes for part in parts]
        assert values.shape == (sum(size**2 for size in sizes), encoder.pair_out_channels)
        for part, part_values in zip(parts, values.split([size**2 for size in sizes]), strict=True):
            self.close(self.run_pairs(encoder, [part])[1], part_values)
            if (expected := self.pair_oracle(part)) is not None:
                self.close(part_values, torch.from_numpy(expected).reshape(part_values.shape))
        pairs = make_graph(**batch_of(parts).arguments()).pairs
        some = torch.randperm(pairs.size(1), generator=torch.Generator().manual_seed(0))[:50]
        self.close(self.run_pairs(encoder, parts, pairs[:, some])[1], values[some])
        if self.equivariant and len(parts) == 1:
            moved = parts[0].relabelled(label)
            self.close(self.run_pairs(encoder, [moved], torch.tensor(label, dtype=torch.int64)[pairs])[1], values)

    def test_dtype_follows_the_module(self) -> None:
        encoder = self.double()
        wide = self.alone(encoder, GRAPH)
        narrow = self.alone(copy.deepcopy(encoder).float(), GRAPH)
        for part, other in zip(wide, narrow, strict=True):
            if part is not None and other is not None:
                assert part.dtype == torch.float64 and other.dtype == torch.float32
        edge = None if narrow.edge is None else narrow.edge.double()
        self.check(GRAPH, Encoding(narrow.node.double(), edge), wide, 1e-3)

    def test_the_same_call_gives_the_same(self) -> None:
        encoder, state = self.double(), torch.get_rng_state()
        first, second = (self.alone(encoder, GRAPH) for _ in range(2))
        assert _equal(first, second)
        assert torch.equal(torch.get_rng_state(), state), "the global generator was used"
        drawn = [
            self.run(encoder, GRAPH, *GRAPH.both_ways(), generator=torch.Generator().manual_seed(3)) for _ in range(2)
        ]
        assert torch.equal(drawn[0].node, drawn[1].node), "not all random numbers come from the generator"

    def test_what_was_precomputed_is_enough(self) -> None:
        encoder, parts = self.double(), [GRAPH, Graph(1, [], []), from_networkx(barbell_graph(5, 2))]
        batched = batch_of(parts)
        precomputed = encoder.precompute(make_graph(**batched.arguments()))
        rows = {"node": batched.num_nodes, "edge": batched.edge_index.size(1), "graph": len(parts)}
        for name, values in precomputed.items():
            assert values.size(0) == rows[name.split("_")[0]] and "index" not in name and "batch" not in name
        got, expected = self.run_batch(encoder, parts, precomputed=precomputed), self.run_batch(encoder, parts)
        assert _equal(got, expected)
        singles = [encoder.precompute(make_graph(**batch_of([part]).arguments())) for part in parts]
        stacked = {name: torch.cat([single[name] for single in singles]) for name in precomputed}
        got = self.run_batch(encoder, parts, precomputed=stacked)
        torch.testing.assert_close(got.node, expected.node, rtol=self.tolerance, atol=self.tolerance)

    def test_saved_and_made_again(self, tmp_path: Path) -> None:
        encoder = self.double()
        encoder.save_pretrained(tmp_path)
        loaded = load_encoder(tmp_path)
        assert type(loaded) is type(encoder) and ENCODERS[type(encoder).__name__] is type(encoder)
        expected = self.alone(encoder, GRAPH)
        got = self.alone(loaded, GRAPH)
        assert _equal(got, expected)
        config = json.loads(json.dumps(encoder.config_dict()))
        again = make_encoder(config)
        assert json.loads(json.dumps(again.config_dict())) == config
        assert (again.out_channels, again.edge_out_channels) == (encoder.out_channels, encoder.edge_out_channels)

    def test_rows_are_contiguous_and_inputs_unchanged(self) -> None:
        encoder = self.double()
        index, weight = GRAPH.both_ways()
        inputs = [self.features(encoder, GRAPH), index, self.kinds(encoder, index), weight]
        copies = [None if values is None else values.clone() for values in inputs]
        with torch.no_grad():
            encoding = encoder(inputs[0], make_graph(index, GRAPH.num_nodes, edge_weight=weight), inputs[2])
        assert all(part is None or part.is_contiguous() for part in encoding)
        for values, copied in zip(inputs, copies, strict=True):
            assert values is None or copied is None or torch.equal(values, copied)

    def test_hooks_of_linear_maps_are_called(self) -> None:
        """Adapters such as LoRA, and pruning, work through calls of the modules."""
        encoder = self.double()
        run = self.run_pairs if encoder.pair_out_channels else self.run_batch
        assert uncalled_linears(encoder, lambda: run(encoder, [GRAPH])) == []

    def test_without_edges(self) -> None:
        encoder = self.double()
        slim = without_edges(encoder)
        if slim is encoder:  # the constructor has no argument edge_out_channels
            return
        assert slim.edge_out_channels == 0 and slim.out_channels == encoder.out_channels
        got = self.alone(slim, GRAPH)
        assert got.edge is None and torch.equal(got.node, self.alone(encoder, GRAPH).node)

    def test_as_a_transform(self) -> None:
        encoder = self.make().eval()
        edge_name = "edge_pe" if encoder.edge_out_channels else None
        transform = AddPositionalEncoding(encoder, edge_attr_name=edge_name)
        parts = [GRAPH, Graph(2, [(0, 1)], [4.0]), Graph(3, [], [])]
        graphs_ = [self.data(encoder, part) for part in parts]
        together = transform(Batch.from_data_list(graphs_))
        collected = transform.encode_dataset(graphs_, progress=False)
        for data, of_batch, of_dataset in zip(graphs_, together.to_data_list(), collected, strict=True):
            single = transform(data)
            assert single.pe.shape == (data.num_nodes, encoder.out_channels) and "pe" not in data
            for name in filter(None, ("pe", edge_name)):
                torch.testing.assert_close(of_batch[name], single[name], rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(of_dataset[name], single[name], rtol=1e-4, atol=1e-5)

    def data(self, encoder: Encoder, part: Graph) -> Data:
        index, weight = part.both_ways(torch.float32)
        return Data(
            x=self.features(encoder, part),
            edge_index=index,
            edge_attr=self.kinds(encoder, index),
            edge_weight=weight,
            num_nodes=part.num_nodes,
        )

    def test_reset_draws_the_weights_of_a_new_one(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            fresh = self.make()
            encoder = randomize_(self.make())
            torch.manual_seed(3)
            encoder.reset_parameters()
        expected = fresh.state_dict()
        for name, values in encoder.state_dict().items():
            assert torch.equal(values, expected[name]), name

    def test_encodings_are_finite_at_edges_of_weight_zero(self) -> None:
        encoder = self.double()
        graph = Graph(5, [(0, 1), (1, 2), (2, 3), (3, 4)], [1.0, 0.0, 2.0, 1.0])
        for part in self.alone(encoder, graph):
            assert part is None or bool(part.isfinite().all())

    def test_extreme_weights_are_encoded_or_refused(self) -> None:
        encoder, (index, weight) = self.make(), GRAPH.both_ways()
        inputs = self.features(encoder, GRAPH), index, self.kinds(encoder, index)
        for scale in (1e-300, 1e-40, 1e-20, 1e20, 1e37, 1e300) if "edge_weight" in encoder.reads else ():
            try:
                encoding = encoder(*inputs, edge_weight=scale * weight, num_nodes=GRAPH.num_nodes)
            except ValueError:
                continue
            assert all(part is None or bool(part.isfinite().all()) for part in encoding), scale

    def test_what_is_precomputed_is_a_constant_of_the_graph(self) -> None:
        encoder = self.double()
        if self.learned or type(encoder).precompute is Encoder.precompute or "edge_weight" not in encoder.reads:
            return
        index, weight = GRAPH.both_ways()
        encoding = encoder(
            self.features(encoder, GRAPH), index, self.kinds(encoder, index), edge_weight=weight.requires_grad_()
        )
        assert not any(part.requires_grad for part in encoding if part is not None)

    def test_precomputed_of_another_graph_is_refused(self) -> None:
        encoder, other = self.double(), from_networkx(barbell_graph(5, 2))
        precomputed = encoder.precompute(make_graph(**batch_of([GRAPH]).arguments()))
        if not precomputed or not self.checks_precomputed:
            return
        for wrong in (
            {},
            {f"{name}_": values for name, values in precomputed.items()},
            {name: torch.cat([values, values], dim=-1) for name, values in precomputed.items()},
        ):
            with pytest.raises(ValueError, match="precomputed"):
                self.run_batch(encoder, [GRAPH], precomputed=wrong)
        with pytest.raises(ValueError, match="precomputed"):
            self.run_batch(encoder, [other], precomputed=precomputed)

    def test_inside_a_model(self) -> None:
        encoder = self.make()
        data = self.data(encoder, GRAPH)
        model = GraphTransformer(encoder=encoder, hidden_channels=8, heads=2, num_layers=1)
        weight = data.edge_weight if "edge_weight" in encoder.reads else None
        out = model(data.x, data.edge_index, data.edge_attr, edge_weight=weight, num_nodes=data.num_nodes)
        assert out.shape == (1, 1) and bool(out.isfinite().all())

    def test_repr_tells_arguments(self) -> None:
        encoder = self.make()
        text, parameters = repr(encoder), inspect.signature(type(encoder)).parameters
        assert text.startswith(type(encoder).__name__) and encoder.extra_repr() in text
        for name, value in encoder.config_dict().items():
            if name in encoder._modules_in_config:
                modules = getattr(encoder, name)
                for part in modules if isinstance(value, list) else [modules]:
                    assert f"): {type(part).__name__}(" in text and part.extra_repr() in text
            else:
                assert name == "class" or value == parameters[name].default or f"{name}={value!r}" in text

    def of_weights(self, encoder: Encoder, graph: Graph) -> Callable[..., Tensor]:
        """Return the entries of the encoding as a function of the encoder's parameters."""
        index, weight = graph.both_ways()
        names = [name for name, _ in encoder.named_parameters()]

        def encode(*values: Tensor) -> Tensor:
            made = make_graph(index, graph.num_nodes, edge_weight=weight)
            inputs = self.features(encoder, graph), made, self.kinds(encoder, index)
            state = dict(zip(names, values, strict=True))
            encoding = torch.func.functional_call(encoder, state, inputs)
            return torch.cat([part.flatten() for part in encoding if part is not None])

        return encode

    @fewer
    @given(data=st.data())
    def test_gradients(self, data: st.DataObject) -> None:
        if not self.learned:
            assert not any(parameter.requires_grad for parameter in self.make().parameters())
            return
        graph, encoder = data.draw(graphs(max_nodes=5, min_nodes=2, exponents=(-0.5, 0.5))), self.double().train()
        encode = self.of_weights(encoder, graph)
        values = tuple(parameter.detach().clone().requires_grad_() for parameter in encoder.parameters())
        assert torch.autograd.gradcheck(encode, values, atol=1e-5, rtol=1e-3, fast_mode=True)


def _equal(got: Encoding, expected: Encoding) -> bool:
    """Return whether nodes and edges are equal bit by bit."""
    pairs = zip(got, expected, strict=True)
    return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)
