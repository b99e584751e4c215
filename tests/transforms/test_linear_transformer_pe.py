"""The transform: attributes that it writes, attributes that it leaves unchanged, and its repr."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from helpers import Graph, Stored, corner_cases, data_of, normal, randomize_, refusals, relative_error
from torch_geometric.data import Data

from tg_lpe import GramTransformer, LinearTransformer, LinearTransformerPE
from tg_lpe.data.storage import iterate_chunks

EDGE_PE = "linear_transformer_edge_pe"


def sample(count: int = 6) -> list[Data]:
    paths = [Graph(n + 2, [(i, i + 1) for i in range(n)], [1.0 + i for i in range(n)]) for n in range(count)]
    return [data_of(path, x=normal(path.num_nodes, 2, seed=n).float()) for n, path in enumerate(paths)]


@pytest.fixture
def encoder() -> LinearTransformer:
    torch.manual_seed(0)
    return LinearTransformer(k=8)


@pytest.fixture
def transform(encoder: LinearTransformer) -> LinearTransformerPE:
    return LinearTransformerPE(encoder=encoder)


def encode(model: LinearTransformer, data: Data) -> torch.Tensor:
    with torch.no_grad():  # with a gradient, other code computes the same up to rounding
        return model(data.x, data.edge_index, edge_weight=data.get("edge_weight")).node


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal up to the rounding of float32 sums in another order, carried through nine layers."""
    return relative_error(first, second) < 1e-4


def test_appends_to_features(encoder) -> None:
    transform = LinearTransformerPE(attr_name=None, k=3, encoder=encoder)
    data = sample()[4]
    expected = encode(encoder, data)[:, :3]
    assert torch.equal(transform(data).x, torch.cat([data.x, expected], 1)) and data.x.size(1) == 2
    bare = transform(Data(edge_index=data.edge_index, num_nodes=6)).x
    assert bare.shape == (6, 3)
    typed = Data(x=torch.arange(6), edge_index=data.edge_index)  # one integer type per node
    assert torch.equal(transform(typed).x, torch.cat([torch.arange(6.0).unsqueeze(1), bare], 1))


test_errors_say_what_came = refusals(
    lambda **options: LinearTransformerPE(**options)(sample()[4]),
    ({"encoder": torch.nn.Linear(2, 2)}, TypeError, "got Linear;"),
    *(
        ({"k": k, "encoder": LinearTransformer(k=8)}, rf"k must lie in 1\.\.8, .* got {k!r}")
        for k in (0, 9, -1, "8", 8.0, True)
    ),
    ({"encoder": LinearTransformer(k=2, probes="learned", max_nodes=3)}, "max_nodes=3"),
)


def test_encode_dataset_encodes_the_draw_it_returns(transform) -> None:
    generator = torch.Generator().manual_seed(0)

    def drop_edges(data: Data) -> Data:
        keep = torch.rand(data.num_edges // 2, generator=generator) < 0.5
        both = torch.cat([keep, keep])
        return Data(x=data.x, edge_index=data.edge_index[:, both], edge_weight=data.edge_weight[both])

    dataset = Stored(sample(20), transform=drop_edges)
    for data in transform.encode_dataset(dataset, progress=False):
        assert same(data.linear_transformer_pe, transform(data).linear_transformer_pe)


def test_encode_dataset_of_graphs_with_different_attributes(transform) -> None:
    graphs = sample(6)
    for number, name in ((1, "edge_weight"), (2, "x"), (3, "x"), (3, "edge_weight")):
        graphs[number].num_nodes = graphs[number].num_nodes
        del graphs[number][name]
    for order in (graphs, graphs[::-1], graphs[3:] + graphs[:3]):
        for data in transform.encode_dataset(order, progress=False):
            assert same(data.linear_transformer_pe, transform(data).linear_transformer_pe)
    with pytest.raises(ValueError, match="edge_index"):
        transform.encode_dataset([*graphs, Data(x=torch.zeros(2, 1))], progress=False)


def test_every_width_is_a_prefix_of_the_shipped_encoder() -> None:
    whole = LinearTransformerPE()
    for graph in corner_cases():
        data = data_of(graph)
        pe = whole(data).linear_transformer_pe
        assert pe.isfinite().all()
        for k in (1, 7, 16):
            assert relative_error(LinearTransformerPE(k=k)(data).linear_transformer_pe, pe[:, :k]) < 1e-5
    few = LinearTransformerPE.from_pretrained("positions-k16", k=4).encoder_on(torch.device("cpu"))
    assert few(None, data.edge_index, num_nodes=data.num_nodes).node.size(1) == 4, "no more are computed than written"
    with pytest.raises(ValueError, match="k must"):
        LinearTransformerPE.from_pretrained("gram-k8", k=16)


def test_from_pretrained_takes_a_folder(tmp_path, encoder) -> None:
    encoder.save_pretrained(tmp_path)
    transform = LinearTransformerPE.from_pretrained(tmp_path, k=3, attr_name="pe", edge_weight=None)
    assert repr(transform) == repr(LinearTransformerPE(3, "pe", encoder, None))


def typed(graph: Graph, seed: int = 0, dtype: torch.dtype = torch.float64) -> Data:
    """A graph with three types of edges and four of nodes, no two graphs alike."""
    generator = torch.Generator().manual_seed(seed)
    index, weight = graph.both_ways(dtype)
    return Data(
        x=torch.randint(0, 4, (graph.num_nodes, 1), generator=generator),
        edge_index=index,
        edge_attr=torch.randint(0, 3, (len(graph.edges),), generator=generator).repeat(2),
        edge_weight=weight,
    )


def typed_sample(count: int = 7) -> list[Data]:
    """Paths with a node on its own; the first two have no edge."""
    paths = [Graph(n + 1, [(i, i + 1) for i in range(n - 1)], [1.0 + i for i in range(n - 1)]) for n in range(count)]
    return [typed(path, seed, torch.float32) for seed, path in enumerate(paths)]


def gram_encoder(dtype: torch.dtype = torch.float32, **options) -> GramTransformer:
    """Every parameter matters, and none is zero or one."""
    settings = {"num_edge_types": 3, "num_node_types": 4, "num_filters": 2, "num_layers": 3}
    return randomize_(GramTransformer(**{"out_channels": 6, "edge_out_channels": 5, **settings, **options})).to(dtype)


def copy_weights(source: GramTransformer, target: GramTransformer) -> GramTransformer:
    target.load_state_dict(source.state_dict(), strict=False)
    return target


@pytest.fixture
def gram() -> GramTransformer:
    return gram_encoder()


@pytest.fixture
def both(gram: GramTransformer) -> LinearTransformerPE:
    return LinearTransformerPE(encoder=gram, edge_attr_name=EDGE_PE)


def test_edges_are_encoded_on_request_alone(gram, both) -> None:
    data = typed_sample()[5]
    nodes_only = LinearTransformerPE(encoder=gram)
    out, full = nodes_only(data), both(data)
    assert set(out.keys()) == {*data.keys(), "linear_transformer_pe"}
    assert torch.equal(out.linear_transformer_pe, full.linear_transformer_pe)
    named = LinearTransformerPE(attr_name="pe", encoder=gram, edge_attr_name="edge_pe")(data)
    assert torch.equal(named.edge_pe, full[EDGE_PE]) and EDGE_PE not in named
    assert gram.edge_out_channels == 5 and gram.edge_readout is not None, "the caller's encoder still has them"
    node_encoder = LinearTransformerPE(encoder=copy_weights(gram, gram_encoder(edge_out_channels=0)))
    assert repr(node_encoder) == repr(nodes_only), "edge weights that nothing reads make no cache stale"


@pytest.mark.parametrize("k", [1, 4, 6])
def test_k_columns_of_a_gram_encoder(gram, both, k: int) -> None:
    data = typed_sample()[5]
    out, full = LinearTransformerPE(k=k, encoder=gram, edge_attr_name=EDGE_PE)(data), both(data)
    torch.testing.assert_close(out.linear_transformer_pe, full.linear_transformer_pe[:, :k])  # a smaller product
    assert out.linear_transformer_pe.is_contiguous() and torch.equal(out[EDGE_PE], full[EDGE_PE])


def without(data: Data, name: str) -> Data:
    """A copy that lacks an attribute but has num_nodes set."""
    left = copy.copy(data)
    left.num_nodes = data.num_nodes
    del left[name]
    return left


@pytest.mark.parametrize(("name", "what"), [("x", "node"), ("edge_attr", "edge")])
def test_missing_features_are_named(both, name: str, what: str) -> None:
    said = rf"reads {what} features from data\.{name}, got data without {name}"
    some = typed_sample()
    lacking = [without(data, name) for data in some]
    with pytest.raises(ValueError, match=said):
        both(lacking[4])
    for dataset in (lacking, Stored(lacking), [*some, lacking[4]]):
        with pytest.raises(ValueError, match=said):
            both.encode_dataset(dataset, progress=False)
    other = copy.copy(some[4])
    other[name] = other[name].float()
    with pytest.raises(ValueError, match=rf"{what} types must be int64 .* got torch\.float32"):
        both(other)


NO_EDGES = "edge_attr_name='e' needs .*, got a {}Transformer of edge_out_channels=0$"
test_errors_of_edge_encodings = refusals(
    LinearTransformerPE,
    ({"encoder": LinearTransformer(k=8), "edge_attr_name": "e"}, NO_EDGES.format("Linear")),
    ({"encoder": gram_encoder(edge_out_channels=0), "edge_attr_name": "e"}, NO_EDGES.format("Gram")),
)


def test_a_gram_encoder_is_copied_and_its_output_takes_part_in_training(gram) -> None:
    gram.train()
    transform = LinearTransformerPE(encoder=gram, edge_attr_name=EDGE_PE)
    data, text = typed_sample()[5], repr(transform)
    before = transform(data)
    assert gram.training and all(p.requires_grad for p in gram.parameters())
    randomize_(gram, seed=1).double()
    after = transform(data)
    assert repr(transform) == text
    for name in ("linear_transformer_pe", EDGE_PE):
        assert torch.equal(before[name], after[name]) and not before[name].requires_grad
        scale = torch.ones_like(before[name], requires_grad=True)
        (scale * before[name]).sum().backward()  # refused for a tensor of inference mode
        assert torch.equal(scale.grad, before[name])


def test_gram_repr_changes_with_everything_that_changes_the_output(gram) -> None:
    def changed(change: Callable[[GramTransformer], object]) -> GramTransformer:
        other = copy.deepcopy(gram)
        with torch.no_grad():
            change(other)
        return other

    encoders = [
        gram,
        changed(lambda e: e.readout.weight[0, 0].add_(1e-6)),
        changed(lambda e: e.edge_readout.weight[0, 0].add_(1e-6)),
        changed(lambda e: e.double()),
        copy_weights(gram, gram_encoder(seed=1)),
    ]
    transforms = [LinearTransformerPE(encoder=encoder, edge_attr_name=EDGE_PE) for encoder in encoders]
    transforms += [LinearTransformerPE(encoder=gram, edge_attr_name=name) for name in (None, "None", "edge_pe")]
    assert len({repr(t) for t in transforms}) == len(transforms) == 8
    again = LinearTransformerPE(encoder=copy.deepcopy(gram).eval(), edge_attr_name=EDGE_PE)
    assert repr(again) == repr(transforms[0])


def test_gram_transforms_copy_and_pickle(both) -> None:
    data = typed_sample()[5]
    expected = both(data)
    for other in (copy.deepcopy(both), pickle.loads(pickle.dumps(both))):
        assert torch.equal(other(data).linear_transformer_pe, expected.linear_transformer_pe)
        assert torch.equal(other(data)[EDGE_PE], expected[EDGE_PE]) and repr(other) == repr(both)


def test_chunks_are_as_large_as_pairs_of_nodes_allow() -> None:
    sizes = [3, 4, 0, 1, 5, 2, 2, 0, 2, 10, 0, 1]
    graphs = [Data(x=torch.zeros(n, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64)) for n in sizes]
    for dataset in (graphs, Stored(graphs)):
        chunks = list(iterate_chunks(dataset, 4, (), 25))
        assert [chunk.num_graphs for chunk in chunks] == [3, 1, 1, 4, 1, 2]
        assert [chunk.num_nodes for chunk in chunks] == [7, 1, 5, 6, 10, 1]
        assert [c.num_graphs for c in iterate_chunks(dataset, 4)] == [4, 4, 4]


def test_encode_dataset_of_nothing(transform) -> None:
    for nothing in ([], Stored(sample())[:0]):
        assert len(transform.encode_dataset(nothing, progress=False)) == 0
