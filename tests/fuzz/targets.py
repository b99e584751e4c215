"""Make what graphs are thrown at: every encoder, transform, layer, tokeniser and model there is.

All are found in the registries and made from the signatures of their constructors, so that a new one joins by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from fuzz.graphs import EDGE_CHANNELS, EDGE_TYPES, NODE_CHANNELS, NODE_TYPES, GraphInput
from torch import Tensor, nn
from torch_geometric.data import Data

import tg_lpe.transforms
from tg_lpe import Graph
from tg_lpe.encoders import ENCODERS, Encoder, make_encoder
from tg_lpe.models import MODELS, TupleTransformer
from tg_lpe.nn.attention import ATTENTIONS, GLOBAL_ATTENTIONS, AttentionLayer, make_attention
from tg_lpe.nn.norms import NORMS
from tg_lpe.nn.tuples import tuple_tokens
from tg_lpe.transforms.base import GraphTransform

CHANNELS, HEADS = 16, 2
SIZES = {"hidden_channels": CHANNELS, "heads": HEADS, "num_layers": 2, "out_channels": 2, "k": 4, "max_nodes": 300}
"""Arguments of constructors, where they have no default or a large one."""

TYPES = {"num_node_types": NODE_TYPES, "num_edge_types": EDGE_TYPES}
FEATURES = {"in_channels": NODE_CHANNELS, "edge_dim": EDGE_CHANNELS}

PAIRS = 20_000
"""Pairs of nodes, graph by graph, beyond which a case is left out where work grows faster than with these."""

SCORES = 10**8
"""Pairs of pairs of nodes, the same for models whose tokens are pairs."""

PADDED = 30_000
"""Rows of a padded batch beyond which attention over all nodes takes longer than a case should."""


class Output(NamedTuple):
    """A result, and the form that it must have."""

    values: Any
    shape: tuple[int | None, ...]
    """``None`` stands for any size."""
    dtype: torch.dtype
    may_be_infinite: bool = False


class Target(NamedTuple):
    """Something to call with a graph."""

    name: str
    kind: str
    run: Callable[[GraphInput, int], list[Output]]
    """Called with the graph and the seed of the case."""
    reads: frozenset[str] = frozenset()
    """Arguments besides the edges, the numbers and the batch."""
    takes: Callable[[GraphInput], bool] = lambda graph: True
    limits: tuple[str, ...] = ()
    """Arguments of its own that it may refuse any graph for."""
    turns: str = ""
    """Targets of one such name are the same thing with other options, and take turns from case to case."""


def in_turn(targets: Sequence[Target], seed: int) -> Iterator[Target]:
    """Return the targets of a case; of targets that take turns, one."""
    names: dict[str, list[str]] = {}
    for target in targets:
        names.setdefault(target.turns or target.name, []).append(target.name)
    for target in targets:
        alike = names[target.turns or target.name]
        if target.name == alike[seed % len(alike)]:
            yield target


TRAINING = [Data(edge_index=torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 4, 2]]), num_nodes=5)]
"""What encoders of statistics are fitted to."""


def all_targets(dtype: torch.dtype) -> list[Target]:
    """Everything there is, with weights of a dtype, in the order of names."""
    torch.manual_seed(0)
    targets = [*_encoders(dtype), *_transforms(dtype), *_layers(dtype), *_tokenizers(), *_models(dtype)]
    return sorted(targets, key=lambda target: target.name)


def arguments_of(make: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given arguments that a constructor has."""
    return {name: value for name, value in given.items() if name in inspect.signature(make).parameters}


def features_of(graph: GraphInput, reads: frozenset[str], real: bool) -> tuple[Any, Any]:
    """``x`` and ``edge_attr`` as a module reads them."""
    x = (graph.node_features if real else graph.node_types) if "x" in reads else None
    return x, (graph.edge_features if real else graph.edge_types) if "edge_attr" in reads else None


def _pairs(graph: GraphInput, power: int = 2) -> int:
    """Powers of numbers of nodes, summed; 0 for a malformed graph, which nobody should work on for long."""
    if graph.defect is not None:
        return 0
    if graph.batch is None:
        return int(graph.num_nodes**power)
    return int(torch.bincount(graph.batch, minlength=1).pow(power).sum())


def _rows(graph: GraphInput) -> tuple[int, int]:
    return graph.num_nodes, graph.edge_index.size(1)


# Encoders.


def _variants(name: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Configurations of an encoder: as it is, and with features of each kind if its constructor has such."""
    cls = ENCODERS[name]
    yield name, {"class": name, **_required(cls)}, False
    if types := arguments_of(cls, TYPES):
        reading = {"probes": "identity"} if "max_nodes" in _options(cls) else {}
        if reading:
            yield f"{name} of node types", {"class": name, "probes": "features", "num_node_types": NODE_TYPES}, False
        yield f"{name} of types", {"class": name, **_required(cls), **types, **reading}, False
        yield f"{name} of features", {"class": name, **_required(cls), **arguments_of(cls, FEATURES), **reading}, True


def _options(cls: type) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(cls).parameters


def _required(cls: type) -> dict[str, Any]:
    empty = inspect.Parameter.empty
    names = [p.name for p in _options(cls).values() if p.default is empty and p.kind is not p.VAR_KEYWORD]
    # Longer cycles take minutes on dense graphs.
    triangles = {"lengths": [3], "max_paths": 10**9} if cls.__name__ == "CycleCounts" else {}
    return {name: SIZES[name] for name in names} | triangles


def _encoders(dtype: torch.dtype) -> Iterator[Target]:
    for name in ENCODERS:
        for title, config, real in _variants(name):
            encoder = make_encoder(config).fit(TRAINING).to(dtype).eval()

            def run(graph: GraphInput, seed: int, encoder: Encoder = encoder, real: bool = real) -> list[Output]:
                x, edge_attr = features_of(graph, encoder.reads, real)
                weight = graph.edge_weight if "edge_weight" in encoder.reads else None
                counts = {"num_nodes": graph.num_nodes, "num_graphs": graph.num_graphs}
                given = x, graph.edge_index, edge_attr, graph.batch, weight
                found = _learning(encoder, seed, lambda: encoder(*given, **counts))
                return _encoding(found, encoder, graph)

            yield Target(f"encoder {title}", "encoders", run, encoder.reads)
        if "pair_out_channels" in _options(ENCODERS[name]):
            is_fixed = "None" in str(_options(ENCODERS[name])["pair_out_channels"].annotation)
            width = None if is_fixed else 3
            pair_encoder = make_encoder({"class": name, "pair_out_channels": width}).to(dtype).eval()

            def pairs(graph: GraphInput, seed: int, encoder: Encoder = pair_encoder) -> list[Output]:
                edges = graph.edge_index  # pairs, too
                found = _learning(encoder, seed, lambda: encoder(None, _incidence(graph), pairs=edges).pair)
                return [Output(found, (edges.size(1), encoder.pair_out_channels), dtype)]

            yield Target(f"encoder {name} of pairs", "encoders", pairs, pair_encoder.reads, _limited(PAIRS))


def _encoding(found: Any, encoder: Encoder, graph: GraphInput) -> list[Output]:
    n, m = _rows(graph)
    dtype = found.node.dtype
    parameter = next(encoder.parameters(), None)
    outputs = [Output(found.node, (n, encoder.out_channels), dtype if parameter is None else parameter.dtype)]
    if encoder.edge_out_channels:
        outputs.append(Output(found.edge, (m, encoder.edge_out_channels), outputs[0].dtype))
    return outputs


def _learning(module: nn.Module, seed: int, call: Callable[[], Any]) -> Any:
    """The result in evaluation; for some seeds in training, with finite gradients of all parameters."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    if seed % 8 or not parameters:
        with torch.no_grad():
            return call()
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    torch.manual_seed(seed)
    module.train()
    try:
        found = call()
        tensors = [found] if isinstance(found, Tensor) else [part for part in found if isinstance(part, Tensor)]
        # Squares of large values would overflow where the values themselves do not.
        loss = sum(part.tanh().sum() for part in tensors if part.requires_grad)
        if isinstance(loss, Tensor):
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            if any(gradient is not None and not bool(gradient.isfinite().all()) for gradient in gradients):
                raise FloatingPointError("gradients of parameters are not finite")
    finally:
        module.eval()
        with torch.no_grad():
            for name, value in module.named_buffers():
                value.copy_(buffers[name])
    return found


# Transforms.


def _transforms(dtype: torch.dtype) -> Iterator[Target]:
    for name in tg_lpe.transforms.__all__:
        cls = getattr(tg_lpe.transforms, name)
        options = _options(cls)
        given: dict[str, Any] = {}
        if "k" in options and options["k"].default is inspect.Parameter.empty:
            given["k"] = 4
        if "encoder" in options:
            given["encoder"] = make_encoder({"class": "GramTransformer"}).to(dtype)
        if options.get("edge_attr_name") is not None:
            given["edge_attr_name"] = "edge_pe"
        transform = cls(**given)
        reads, run = frozenset({"edge_weight", *transform.features}), _transform(transform, dtype)
        yield Target(f"transform {name}", "transforms", run, reads, _limited(10 * PAIRS), (), f"transform {name}")


def _limited(pairs: int) -> Callable[[GraphInput], bool]:
    return lambda graph: _pairs(graph) <= pairs


def _transform(transform: GraphTransform, dtype: torch.dtype) -> Callable[[GraphInput, int], list[Output]]:
    def run(graph: GraphInput, seed: int) -> list[Output]:
        data = Data(edge_index=graph.edge_index, num_nodes=graph.num_nodes)
        given = {"batch": graph.batch, "edge_weight": graph.edge_weight}
        given |= {"x": graph.node_types, "edge_attr": graph.edge_types} if transform.features else {}
        for name, value in given.items():
            if value is not None:
                data[name] = value
        before = set(data.keys())
        result = transform(data)
        if set(data.keys()) != before:
            raise AssertionError(f"the transform changed its input: it has {sorted(set(data.keys()) - before)} now")
        takes_encoder = "encoder" in inspect.signature(type(transform)).parameters
        outputs = []
        for name in sorted(set(result.keys()) - before):
            values = result[name]
            expected = dtype if takes_encoder else torch.get_default_dtype()
            expected = expected if values.is_floating_point() else values.dtype
            # The resistance of an edge of weight zero between two components is infinite.
            infinite = isinstance(transform, tg_lpe.transforms.AddEffectiveResistance)
            outputs.append(Output(values, (None,) * values.dim(), expected, infinite))
        if not outputs:
            raise AssertionError("the transform wrote nothing")
        return outputs

    return run


# Layers.


class _WithShared(nn.Module):
    """A layer with the state that the layers of a model share."""

    def __init__(self, layer: AttentionLayer, shared: nn.Module | None) -> None:
        super().__init__()
        self.layer, self.shared = layer, shared

    def forward(self, h: Tensor, e: Tensor, neighbourhoods: Graph) -> tuple[Tensor, Tensor]:
        if self.shared is None:
            return self.layer(h, e, neighbourhoods)
        given = (None, e) if self.layer.reads_pairs else ()
        h, e, _ = self.layer(h, e, neighbourhoods, self.shared(neighbourhoods, *given))
        return h, e


def _layers(dtype: torch.dtype) -> Iterator[Target]:
    choices: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in ATTENTIONS]
    for inner in GLOBAL_ATTENTIONS:
        options = {"num_rows": 300} if "num_rows" in _options(GLOBAL_ATTENTIONS[inner]) else {}
        choices.append(("hybrid", {"global_attention": inner, "global_options": options}))
    for name, options in choices:
        layer = make_attention(name, CHANNELS, HEADS, options)
        layer = _WithShared(layer, layer.shared()).to(dtype).eval()

        def run(graph: GraphInput, seed: int, layer: nn.Module = layer) -> list[Output]:
            neighbourhoods = _neighbourhoods(graph)
            n, m = neighbourhoods.num_nodes, neighbourhoods.num_directed_edges
            generator = torch.Generator().manual_seed(seed)
            h, e = (torch.randn(rows, CHANNELS, generator=generator, dtype=dtype) for rows in (n, m))
            found = _learning(layer, seed, lambda: layer(h, e, neighbourhoods))
            return [Output(values, (rows, CHANNELS), dtype) for values, rows in zip(found, (n, m), strict=True)]

        title = f"layer {name} {options.get('global_attention', '')}".strip()
        yield Target(title, "layers", run, frozenset(), _for_layers)
    for name in NORMS:
        norm = NORMS[name](NODE_CHANNELS).to(dtype).eval()

        def normalise(graph: GraphInput, seed: int, norm: nn.Module = norm) -> list[Output]:
            neighbourhoods = _neighbourhoods(graph)
            x = graph.node_features.to(dtype)
            found = _learning(norm, seed, lambda: norm(x, neighbourhoods.graphs))
            return [Output(found, tuple(x.shape), dtype)]

        yield Target(f"norm {name}", "layers", normalise, frozenset(), lambda graph: graph.defect is None)


def _for_layers(graph: GraphInput) -> bool:
    """Layers are not told the number of nodes: they have a row for each."""
    if graph.defect is not None:
        return not graph.defect.endswith("num_nodes")
    largest = graph.num_nodes if graph.batch is None else int(torch.bincount(graph.batch, minlength=1).max())
    return graph.num_graphs * largest <= PADDED and _pairs(graph) <= 10 * PAIRS


def _neighbourhoods(graph: GraphInput) -> Graph:
    batch = graph.batch
    if batch is None:
        batch = torch.zeros(graph.num_nodes, dtype=torch.int64)
    edges = graph.edge_index if "edge_index" in graph.blamed else graph.edge_index.long()
    return Graph(edges, batch=batch, num_graphs=graph.num_graphs)


# Tokenisers.


def _tokenizers() -> Iterator[Target]:
    for k, s, pairs in ((1, 1, PAIRS), (2, 1, PAIRS), (2, 2, PAIRS), (3, 1, 1000), (3, 2, 300)):

        def run(graph: GraphInput, seed: int, k: int = k, s: int = s) -> list[Output]:
            found = tuple_tokens(_incidence(graph), k, s)
            rows = found.nodes.size(0)
            return [
                Output(found.nodes, (rows, k), torch.int64),
                Output(found.types, (rows, k * (k - 1) // 2), torch.int64),
                Output(found.batch, (rows,), torch.int64),
            ]

        title = f"tuple_tokens ({k},{s})"
        yield Target(title, "tokenizers", run, frozenset({"edge_weight"}), _limited(pairs), (), "tuple_tokens")


def _incidence(graph: GraphInput) -> Graph:
    return Graph(
        graph.edge_index, graph.num_nodes, edge_weight=graph.edge_weight, batch=graph.batch, num_graphs=graph.num_graphs
    )


# Models.


def _models(dtype: torch.dtype) -> Iterator[Target]:
    encoders = [(title, config) for name in ENCODERS for title, config, real in _variants(name) if not real]
    for name, cls in MODELS.items():
        sizes = {"num_layers": 2, **SIZES, "k": 2}
        for title, config in [("", None), *encoders]:
            if config is not None and "encoder" not in _options(cls):
                continue
            for given, real in ((TYPES, False), (FEATURES, True)) if config is None else ((TYPES, False),):
                level = "graph" if config is None else "node"
                options = arguments_of(cls, {**sizes, **given, "encoder": config, "readout": {"level": level}})
                model = cls(**options)
                if config is not None:
                    model.encoder.fit(TRAINING)
                if config is None:
                    yield _model(f"model {name} {'features' if real else 'types'}", model, real, dtype)
                else:
                    yield _model(f"model {name} {title}", model, real, dtype, f"model {name} encoder")
        if "attention" in _options(cls):
            for attention in getattr(inspect.getmodule(cls), "TOKEN_ATTENTIONS", ATTENTIONS):
                options = arguments_of(cls, {**sizes, "heads": 4, "attention": attention})
                yield _model(
                    f"model {name} attention {attention}", cls(**options), False, dtype, f"model {name} attention"
                )


def _model(title: str, model: nn.Module, real: bool, dtype: torch.dtype, turns: str = "") -> Target:
    model = model.to(dtype).eval()
    encoder = getattr(model, "encoder", None)
    signature = inspect.signature(model.forward).parameters
    embeds = {"x": "node_embedding", "edge_attr": "edge_embedding"}
    reads = frozenset(getattr(encoder, "reads", ())) | {
        name for name, part in embeds.items() if not hasattr(model, part) or getattr(model, part).expects_feature
    }

    def run(graph: GraphInput, seed: int) -> list[Output]:
        x, edge_attr = features_of(graph, reads, real)
        given = {
            "x": x,
            "edge_attr": edge_attr,
            "batch": graph.batch,
            "edge_weight": graph.edge_weight if "edge_weight" in reads else None,
            "num_nodes": graph.num_nodes,
            "num_graphs": graph.num_graphs,
        }
        given = {name: value for name, value in given.items() if name in signature}
        found = _learning(model, seed, lambda: model(edge_index=graph.edge_index, **given))
        node = getattr(model, "level", "graph") == "node"
        return [Output(found, (graph.num_nodes if node else graph.num_graphs, None), dtype)]

    # Tuples of nodes attend to each other: up to n^2 tokens, n^4 scores.
    takes = _few_scores if isinstance(model, TupleTransformer) else _limited(10 * PAIRS)
    return Target(title, "models", run, reads, takes, (), turns)


def _few_scores(graph: GraphInput) -> bool:
    return _pairs(graph, 4) <= SCORES
