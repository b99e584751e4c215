"""The transform: the attributes that it writes, those that it leaves unchanged, and its repr."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers import Graph, corner_cases, fewer, graphs, normal, randomize_, relative_error
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import Compose

from tg_lpe import GramTransformer, Incidence, LinearTransformer, LinearTransformerPE, zoo
from tg_lpe.data.storage import iterate_chunks
from tg_lpe.transforms.linear_transformer_pe import DEFAULT_ENCODER

needs_zoo = pytest.mark.skipif("eigen-k8" not in zoo.names(), reason="eigen-k8 is not trained yet")
EDGE_PE = "linear_transformer_edge_pe"


def as_data(graph: Graph, seed: int = 0, **more) -> Data:
    index, weight = graph.both_ways(torch.float32)
    return Data(x=normal(graph.num_nodes, 2, seed=seed).float(), edge_index=index, edge_weight=weight, **more)


def sample(count: int = 6) -> list[Data]:
    return [as_data(Graph(n + 2, [(i, i + 1) for i in range(n)], [1.0 + i for i in range(n)]), n) for n in range(count)]


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


class Stored(InMemoryDataset):
    """A dataset made of a list."""

    def __init__(self, graphs: list[Data], transform=None) -> None:
        super().__init__(None, transform)
        self.data, self.slices = self.collate(graphs)


class OnDisk(InMemoryDataset):
    """A dataset that is processed into a folder."""

    def __init__(self, root, pre_transform) -> None:
        super().__init__(root, pre_transform=pre_transform)
        self.load(self.processed_paths[0])

    @property
    def processed_file_names(self) -> str:
        return "data.pt"

    def process(self) -> None:
        self.save([self.pre_transform(data) for data in sample()], self.processed_paths[0])


def test_writes_the_encoding_on_a_copy(transform, encoder) -> None:
    data = sample()[4]
    before = copy.deepcopy(data)
    out = transform(data)
    assert torch.equal(out.linear_transformer_pe, encode(encoder, data))
    assert not out.linear_transformer_pe.requires_grad and out.linear_transformer_pe.dtype == torch.float32
    assert data.keys() == before.keys() and all(torch.equal(data[key], before[key]) for key in before.keys())  # noqa: SIM118
    assert set(out.keys()) == {*data.keys(), "linear_transformer_pe"}


def test_appends_to_features(encoder) -> None:
    transform = LinearTransformerPE(attr_name=None, k=3, encoder=encoder)
    data = sample()[4]
    expected = encode(encoder, data)[:, :3]
    assert torch.equal(transform(data).x, torch.cat([data.x, expected], 1)) and data.x.size(1) == 2
    typed = Data(x=torch.arange(6), edge_index=data.edge_index)  # one integer type per node
    out = transform(typed).x
    assert torch.equal(out[:, 0], torch.arange(6.0)) and out.shape == (6, 4)
    bare = transform(Data(edge_index=data.edge_index, num_nodes=6)).x
    assert bare.shape == (6, 3)


@pytest.mark.parametrize("k", [1, 5, 8])
def test_k_columns_are_a_prefix(encoder, k: int) -> None:
    data = sample()[5]
    pe = LinearTransformerPE(k=k, attr_name="pe", encoder=encoder)(data).pe
    assert torch.equal(pe, encode(encoder, data)[:, :k]) and pe.is_contiguous()


@fewer
@given(st.lists(st.one_of(graphs(exponents=(-2.0, 2.0)), st.sampled_from(corner_cases())), min_size=1, max_size=5))
def test_a_batch_is_its_graphs_one_by_one(parts: list[Graph]) -> None:
    torch.manual_seed(0)
    transform = LinearTransformerPE(encoder=LinearTransformer(k=8).double())
    singles = [as_data(graph, i) for i, graph in enumerate(parts)]
    for data in singles:
        data.edge_weight = data.edge_weight.double()
    out = transform(Batch.from_data_list(singles))
    together = out.linear_transformer_pe.split([graph.num_nodes for graph in parts])
    for data, got in zip(singles, together, strict=True):
        assert relative_error(got, transform(data).linear_transformer_pe) < 1e-9


def test_edge_weights_are_read_by_name_or_ignored(encoder) -> None:
    data = sample()[4]
    data.conductance, data.edge_weight = data.edge_weight, torch.ones_like(data.edge_weight)
    unit, named, off = (
        LinearTransformerPE(encoder=encoder, attr_name="pe", **options)(data).pe
        for options in ({}, {"edge_weight": "conductance"}, {"edge_weight": None})
    )
    assert same(unit, off) and not same(unit, named)


def test_the_encoder_is_copied(encoder) -> None:
    data = sample()[4]
    encoder.train()
    transform = LinearTransformerPE(encoder=encoder)
    before, text = transform(data).linear_transformer_pe, repr(transform)
    assert encoder.training and all(p.requires_grad for p in encoder.parameters())
    assert encoder(data.x, data.edge_index).node.requires_grad, "the caller's module is not frozen"
    randomize_(encoder)
    encoder.double()
    assert torch.equal(transform(data).linear_transformer_pe, before) and repr(transform) == text


def test_a_frozen_and_changed_encoder_is_taken_as_it_is(encoder) -> None:
    frozen = copy.deepcopy(encoder).freeze()
    data = sample()[4]
    assert torch.equal(
        LinearTransformerPE(encoder=frozen)(data).linear_transformer_pe,
        LinearTransformerPE(encoder=encoder)(data).linear_transformer_pe,
    )


def test_errors_say_what_came(encoder, transform) -> None:
    with pytest.raises(TypeError, match="tg_lpe"):
        LinearTransformerPE(encoder="eigen-k8")
    with pytest.raises(TypeError, match="got Linear;"):
        LinearTransformerPE(encoder=torch.nn.Linear(2, 2))
    for k in (0, 9, -1, "8", 8.0, True):
        with pytest.raises(ValueError, match=rf"k must lie in 1\.\.8, .* got {k!r};"):
            LinearTransformerPE(k=k, encoder=encoder)
    with pytest.raises(TypeError, match="got HeteroData"):
        transform(HeteroData())
    with pytest.raises(ValueError, match="edge_index"):
        transform(Data(x=torch.zeros(2, 1)))
    learned = LinearTransformerPE(encoder=LinearTransformer(k=2, probes="learned", max_nodes=3))
    with pytest.raises(ValueError, match="max_nodes=3"):
        learned(sample()[4])


def test_feature_probes_read_x() -> None:
    model = LinearTransformer(k=4, probes="features", in_channels=2)
    data = sample()[4]
    assert torch.equal(LinearTransformerPE(encoder=model)(data).linear_transformer_pe, encode(model, data))
    with pytest.raises(ValueError, match=r"reads node features from data\.x, got data without x"):
        LinearTransformerPE(encoder=model)(Data(edge_index=data.edge_index, num_nodes=6))


def test_repr_changes_with_everything_that_changes_the_output(encoder) -> None:
    changed = copy.deepcopy(encoder)
    with torch.no_grad():
        changed.readout.weight.view(-1)[-1] += 1e-7
    other = {}
    for option in ({"seed": 1}, {"num_loops": 2}, {"normalize": False}, {"degree_scaling": False}):
        model = LinearTransformer(k=8, **option)
        model.load_state_dict(encoder.state_dict(), strict=False)
        other[str(option)] = LinearTransformerPE(encoder=model)
    transforms = [
        LinearTransformerPE(encoder=encoder),
        LinearTransformerPE(k=7, encoder=encoder),
        LinearTransformerPE(attr_name=None, encoder=encoder),
        LinearTransformerPE(attr_name="None", encoder=encoder),
        LinearTransformerPE(edge_weight=None, encoder=encoder),
        LinearTransformerPE(edge_weight="r", encoder=encoder),
        LinearTransformerPE(encoder=changed),
        LinearTransformerPE(encoder=copy.deepcopy(encoder).double()),
        *other.values(),
    ]
    assert len({repr(t) for t in transforms}) == len(transforms)
    assert repr(LinearTransformerPE(encoder=copy.deepcopy(encoder))) == repr(transforms[0])
    assert repr(LinearTransformerPE(encoder=copy.deepcopy(encoder).freeze())) == repr(transforms[0])


def test_copies_and_pickles(transform) -> None:
    data = sample()[4]
    expected = transform(data).linear_transformer_pe
    for other in (copy.deepcopy(transform), pickle.loads(pickle.dumps(transform)), Compose([transform])):
        assert torch.equal(other(data).linear_transformer_pe, expected)
    assert repr(pickle.loads(pickle.dumps(transform))) == repr(transform)


def test_pre_transform_of_a_dataset_on_disk(tmp_path, encoder, transform) -> None:
    dataset = OnDisk(tmp_path, pre_transform=transform)
    for data, original in zip(dataset, sample(), strict=True):
        assert torch.equal(data.linear_transformer_pe, encode(encoder, original))
    assert (tmp_path / "processed" / "pre_transform.pt").exists()
    with pytest.warns(UserWarning, match="pre_transform"):
        OnDisk(tmp_path, pre_transform=LinearTransformerPE(k=2, encoder=encoder))


def test_workers_of_a_loader(transform) -> None:
    dataset = Stored(sample(), transform=transform)
    expected = [data.linear_transformer_pe for data in dataset]
    for start, batch in enumerate(DataLoader(dataset, batch_size=3, num_workers=2)):
        assert same(batch.linear_transformer_pe, torch.cat(expected[3 * start : 3 * start + 3]))


@pytest.mark.parametrize("chunk", [1, 4, 4096])
def test_encode_dataset_in_memory(transform, monkeypatch, chunk: int) -> None:
    monkeypatch.setattr("tg_lpe.transforms.base.CHUNK", chunk)
    dataset = Stored(sample())
    keys = dataset[0].keys()
    result = transform.encode_dataset(dataset, progress=False)
    assert type(result) is Stored and len(result) == len(dataset)
    for got, data in zip(result, sample(), strict=True):
        assert same(got.linear_transformer_pe, transform(data).linear_transformer_pe)
        assert torch.equal(got.x, data.x) and torch.equal(got.edge_index, data.edge_index)
    assert result._data.x.data_ptr() == dataset._data.x.data_ptr(), "storage is shared"
    assert dataset[0].keys() == keys and "linear_transformer_pe" not in dataset.slices
    only = transform.encode_dataset(Stored(sample()[5:]), progress=False)
    assert isinstance(only, Stored) and same(only[0].linear_transformer_pe, result[5].linear_transformer_pe)


@pytest.mark.parametrize("attr_name", ["pe", None])
@pytest.mark.parametrize("source", ["list", "subset", "index", "transformed", "memory"])
def test_encode_dataset_of_every_kind(encoder, source: str, attr_name: str | None) -> None:
    transform = LinearTransformerPE(k=5, attr_name=attr_name, encoder=encoder)
    whole = Stored(sample(30))
    dataset = {
        "list": sample(12),
        "subset": whole[10:20],
        "index": whole[torch.tensor([5, 3, 11])],
        "transformed": Stored(sample(8), transform=lambda data: data),
        "memory": whole,
    }[source]
    keys, x = dataset[0].keys(), dataset[0].x.clone()
    result = transform.encode_dataset(dataset, progress=False)
    assert len(result) == len(dataset)
    for got, data in zip(result, dataset, strict=True):
        expected = transform(data)
        assert set(got.keys()) == set(expected.keys())
        name = attr_name or "x"
        assert got[name].shape == expected[name].shape and same(got[name], expected[name])
    assert dataset[0].keys() == keys and torch.equal(dataset[0].x, x)


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


def test_encode_dataset_of_nothing(transform) -> None:
    assert transform.encode_dataset([], progress=False) == []
    dataset = Stored(sample())
    assert len(transform.encode_dataset(dataset[:0], progress=False)) == 0


@needs_zoo
def test_the_shipped_encoder() -> None:
    assert repr(LinearTransformerPE()) == repr(LinearTransformerPE.from_pretrained(DEFAULT_ENCODER))
    assert repr(LinearTransformerPE(k=4)) == repr(LinearTransformerPE.from_pretrained(DEFAULT_ENCODER, 4))
    eigen, three = (LinearTransformerPE.from_pretrained("eigen-k8", k) for k in (None, 3))
    assert eigen.k == 8
    for graph in corner_cases():
        data = as_data(graph)
        pe = eigen(data).linear_transformer_pe
        assert pe.shape == (graph.num_nodes, 8) and pe.isfinite().all()
        assert torch.equal(three(data).linear_transformer_pe, pe[:, :3])


@needs_zoo
def test_every_width_is_a_prefix_of_the_shipped_encoder() -> None:
    whole = LinearTransformerPE()
    assert whole.k == 16
    for graph in corner_cases():
        data = as_data(graph)
        pe = whole(data).linear_transformer_pe
        assert pe.isfinite().all()
        for k in (1, 7, 16):
            assert relative_error(LinearTransformerPE(k=k)(data).linear_transformer_pe, pe[:, :k]) < 1e-5
    with pytest.raises(ValueError, match="k must"):
        LinearTransformerPE(k=17)
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


def by_hand(encoder: GramTransformer, data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Encodings of nodes and edges from the formulas: conductances one by one, dense matrices, their powers."""

    def softplus(raw: np.ndarray) -> np.ndarray:
        return np.log1p(np.exp(raw))

    parameters = {name: value.detach().double().numpy() for name, value in encoder.named_parameters()}
    bond, atom = (parameters[f"conductances.{name}"] for name in ("edge.table", "ground.table"))
    types, (row, col) = data.x[:, 0].numpy(), data.edge_index.numpy()
    weight = np.ones(len(row)) if data.get("edge_weight") is None else data.edge_weight.double().numpy()
    nodes, edges = [], []
    for f in range(encoder.num_filters):
        matrix = np.zeros((len(types), len(types)))
        for u, v, kind, w in zip(row, col, data.edge_attr.tolist(), weight, strict=True):
            if u != v:
                matrix[u, v] = matrix[v, u] = w * softplus(bond[kind, f])
        scale = (matrix.sum(1) + softplus(atom[types, f])) ** -0.5
        p = scale[:, None] * matrix * scale
        power = np.eye(len(types))
        for _ in range(encoder.num_layers):
            power = power @ p
            nodes.append(np.diag(power))
            edges.append(np.where(row == col, 0.0, power[row, col]))
    node = np.stack(nodes, 1) @ parameters["readout.weight"].T + parameters["readout.bias"]
    return node, np.stack(edges, 1) @ parameters["edge_readout.weight"].T


@pytest.mark.parametrize("number", range(len(corner_cases())))
def test_nodes_and_edges_of_a_gram_encoder(number: int) -> None:
    encoder = gram_encoder(torch.float64)
    data = typed(corner_cases()[number], number)
    before = copy.deepcopy(data)
    out = LinearTransformerPE(encoder=encoder, edge_attr_name=EDGE_PE)(data)
    node, edge = by_hand(encoder, data)
    assert relative_error(out.linear_transformer_pe, node) < 1e-9
    assert relative_error(out.linear_transformer_edge_pe, edge) < 1e-9
    assert out.linear_transformer_edge_pe.shape == (data.num_edges, 5)
    assert data.keys() == before.keys() and all(torch.equal(data[key], before[key]) for key in before.keys())  # noqa: SIM118
    assert set(out.keys()) == {*data.keys(), "linear_transformer_pe", EDGE_PE}


def test_edges_are_encoded_as_they_are_listed() -> None:
    """Edges in one direction, both, or twice, in any order, with self-loops, whose encoding is zero."""
    encoder = gram_encoder(torch.float64)
    index = torch.tensor([[3, 0, 1, 2, 2, 0, 0], [3, 1, 0, 2, 1, 1, 0]])
    data = Data(x=torch.tensor([[1], [3], [0], [2]]), edge_index=index, edge_attr=torch.tensor([0, 2, 2, 1, 0, 2, 1]))
    got = LinearTransformerPE(encoder=encoder, edge_attr_name=EDGE_PE)(data).linear_transformer_edge_pe
    assert relative_error(got, by_hand(encoder, data)[1]) < 1e-12
    assert got[[0, 3, 6]].abs().max() == 0 and got[[1, 2, 4, 5]].abs().amin() > 0
    assert torch.equal(got[1], got[2]) and torch.equal(got[1], got[5])


@fewer
@given(st.lists(st.one_of(graphs(exponents=(-2.0, 2.0)), st.sampled_from(corner_cases())), min_size=1, max_size=5))
def test_gram_encodings_alone_in_a_batch_and_in_a_dataset(parts: list[Graph]) -> None:
    encoder = gram_encoder(torch.float64)
    transform = LinearTransformerPE(encoder=encoder, edge_attr_name=EDGE_PE)
    singles = [typed(graph, i) for i, graph in enumerate(parts)]
    alone = [transform(data) for data in singles]
    expected = {name: torch.cat([data[name] for data in alone]) for name in ("linear_transformer_pe", EDGE_PE)}
    stored, listed = (transform.encode_dataset(dataset, progress=False) for dataset in (Stored(singles), singles))
    for out in (transform(Batch.from_data_list(singles)), Batch.from_data_list(listed), Batch.from_data_list(stored)):
        for name, value in expected.items():
            assert relative_error(out[name], value) < 1e-9


def test_gram_encodings_follow_relabelled_nodes_and_rewritten_edges() -> None:
    transform = LinearTransformerPE(encoder=gram_encoder(torch.float64), edge_attr_name=EDGE_PE)
    generator = torch.Generator().manual_seed(0)
    for number, graph in enumerate(corner_cases()):
        data = typed(graph, number)
        label = torch.randperm(graph.num_nodes, generator=generator)
        order = torch.randperm(data.num_edges, generator=generator)
        flip = torch.rand(data.num_edges, generator=generator) < 0.5
        index = label[data.edge_index[:, order]]
        other = Data(
            x=torch.empty_like(data.x).index_copy(0, label, data.x),
            edge_index=torch.where(flip, index.flip(0), index),
            edge_attr=data.edge_attr[order],
            edge_weight=data.edge_weight[order],
        )
        got, expected = transform(other), transform(data)
        assert relative_error(got.linear_transformer_pe[label], expected.linear_transformer_pe) < 1e-9
        assert relative_error(got.linear_transformer_edge_pe, expected.linear_transformer_edge_pe[order]) < 1e-9


def test_large_graphs_are_estimated_alike_alone_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXACT_WORK_ONCE", "BALL_VISITS"):
        monkeypatch.setattr(f"tg_lpe.encoders.gram_transformer.{name}", 0)
    ring = torch.arange(300)
    index = torch.stack([ring, (ring + 1) % 300])
    data = [Data(edge_index=index, num_nodes=300 + more) for more in (0, 7)]
    encoder = randomize_(GramTransformer(4, 3, num_filters=2, num_layers=4, num_probes=8))
    transform = LinearTransformerPE(encoder=encoder, edge_attr_name=EDGE_PE)
    alone = [transform(one) for one in data]
    exact = LinearTransformerPE(
        encoder=copy_weights(encoder, GramTransformer(4, 3, num_filters=2, num_layers=4, probes="identity")),
        edge_attr_name=EDGE_PE,
    )
    for out in (transform(Batch.from_data_list(data)), Batch.from_data_list(transform.encode_dataset(data, False))):
        for name in ("linear_transformer_pe", EDGE_PE):
            assert same(out[name], torch.cat([one[name] for one in alone]))
            difference = relative_error(out[name], exact(Batch.from_data_list(data))[name])
            assert 1e-3 < difference < 2, "an estimate from 8 probes is near, and not the exact value"


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
    assert torch.equal(out.linear_transformer_pe, full.linear_transformer_pe[:, :k])
    assert out.linear_transformer_pe.is_contiguous() and torch.equal(out[EDGE_PE], full[EDGE_PE])


def test_a_gram_encoder_without_readouts() -> None:
    encoder = GramTransformer(num_filters=2, num_layers=3)
    out = LinearTransformerPE(encoder=encoder, edge_attr_name=EDGE_PE)(sample()[4])
    assert out.linear_transformer_pe.shape == (6, 6) and out[EDGE_PE].shape == (8, 6)
    data = sample()[4]
    node, edge = encoder(data.x, data.edge_index, edge_weight=data.edge_weight)
    assert torch.equal(out.linear_transformer_pe, node) and torch.equal(out[EDGE_PE], edge)


def test_gram_edge_weights_are_read_by_name_or_ignored(gram) -> None:
    data = typed_sample()[6]
    data.conductance, data.edge_weight = data.edge_weight, torch.ones_like(data.edge_weight)
    unit, named, off = (
        LinearTransformerPE(encoder=gram, attr_name="pe", edge_attr_name="edge_pe", **options)(data)
        for options in ({}, {"edge_weight": "conductance"}, {"edge_weight": None})
    )
    data.edge_weight = data.conductance
    node, edge = by_hand(gram, data)
    assert same(named.pe, node) and same(named.edge_pe, edge)
    assert same(unit.pe, off.pe) and not same(unit.pe, named.pe)
    assert same(unit.edge_pe, off.edge_pe) and not same(unit.edge_pe, named.edge_pe)


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


@pytest.mark.parametrize(
    ("options", "reads"),
    [
        ({}, {"x", "edge_attr"}),
        ({"num_node_types": None}, {"edge_attr"}),
        ({"conductances": "ground"}, {"x"}),
        ({"num_edge_types": None}, {"x"}),
        ({"num_edge_types": None, "num_node_types": None}, set()),
    ],
)
def test_features_that_an_encoder_does_not_read_may_be_absent(options: dict, reads: set[str]) -> None:
    encoder = gram_encoder(**options)
    assert encoder.reads == {"edge_weight", *reads}
    transform = LinearTransformerPE(encoder=encoder, edge_attr_name=EDGE_PE)
    data = typed_sample()[6]
    expected = transform(data)
    for name in ("x", "edge_attr"):
        if name in reads:
            other = copy.copy(data)
            other[name] = (data[name] + 1) % 3
            assert not same(transform(other).linear_transformer_pe, expected.linear_transformer_pe)
            assert not same(transform(other)[EDGE_PE], expected[EDGE_PE])
        else:
            lacking = without(data, name)
            for out in (transform(lacking), transform.encode_dataset([lacking], progress=False)[0]):
                assert same(out.linear_transformer_pe, expected.linear_transformer_pe)
                assert same(out[EDGE_PE], expected[EDGE_PE])


def test_real_features() -> None:
    encoder = randomize_(GramTransformer(4, 3, num_filters=2, num_layers=3, edge_dim=2, in_channels=3))
    graph = Graph(4, [(0, 1), (1, 2), (1, 3)], [1.0] * 3)
    bonds = normal(3, 2).float().repeat(2, 1)
    data = Data(x=normal(4, 3, seed=1).float(), edge_index=graph.both_ways()[0], edge_attr=bonds)
    out = LinearTransformerPE(encoder=encoder, edge_attr_name=EDGE_PE)(data)
    node, edge = encoder(data.x, data.edge_index, data.edge_attr)
    assert torch.equal(out.linear_transformer_pe, node) and torch.equal(out[EDGE_PE], edge)
    with pytest.raises(ValueError, match="edge features must"):
        LinearTransformerPE(encoder=encoder)(Data(x=data.x, edge_index=data.edge_index, edge_attr=bonds[:, :1]))


def test_errors_of_edge_encodings(encoder, gram) -> None:
    for without_edges in (encoder, gram_encoder(edge_out_channels=0)):
        said = rf"edge_attr_name='e' needs .*, got a {type(without_edges).__name__} of edge_out_channels=0$"
        with pytest.raises(ValueError, match=said):
            LinearTransformerPE(encoder=without_edges, edge_attr_name="e")
    with pytest.raises(ValueError, match="attr_name"):
        LinearTransformerPE(encoder=gram, attr_name="pe", edge_attr_name="pe")
    with pytest.raises(ValueError, match="k must"):
        LinearTransformerPE(7, encoder=gram)


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

    alike = {"basis": "chebyshev", "probes": "rademacher", "num_probes": 8, "seed": 1}
    encoders = [
        gram,
        changed(lambda e: e.readout.weight[0, 0].add_(1e-6)),
        changed(lambda e: e.edge_readout.weight[0, 0].add_(1e-6)),
        changed(lambda e: e.conductances.ground.table[0, 0].add_(1e-6)),
        changed(lambda e: e.double()),
        gram_encoder(conductances="ground"),
        *(copy_weights(gram, gram_encoder(**{name: value})) for name, value in alike.items()),
        gram_encoder(num_layers=4),
    ]
    transforms = [LinearTransformerPE(encoder=encoder, edge_attr_name=EDGE_PE) for encoder in encoders]
    transforms += [LinearTransformerPE(encoder=gram, edge_attr_name=name) for name in (None, "None", "edge_pe")]
    assert len({repr(t) for t in transforms}) == len(transforms) == 14
    again = LinearTransformerPE(encoder=copy.deepcopy(gram).eval(), edge_attr_name=EDGE_PE)
    assert repr(again) == repr(transforms[0])


def test_gram_transforms_copy_and_pickle(both) -> None:
    data = typed_sample()[5]
    expected = both(data)
    for other in (copy.deepcopy(both), pickle.loads(pickle.dumps(both))):
        assert torch.equal(other(data).linear_transformer_pe, expected.linear_transformer_pe)
        assert torch.equal(other(data)[EDGE_PE], expected[EDGE_PE]) and repr(other) == repr(both)


def test_pyg_takes_edge_encodings_for_edges(both) -> None:
    """It holds with as many edges as nodes, where the number of rows is ambiguous."""
    pair = both(typed(Graph(2, [(0, 1)], [1.0]), dtype=torch.float32))
    assert pair.is_edge_attr(EDGE_PE) and pair.is_node_attr("linear_transformer_pe")
    data = both(typed_sample()[6])
    part = data.subgraph(torch.tensor([2, 3, 4]))
    assert torch.equal(part[EDGE_PE], data[EDGE_PE][(data.edge_index >= 2).all(0) & (data.edge_index <= 4).all(0)])
    assert part[EDGE_PE].size(0) == 4


def test_workers_of_a_loader_encode_edges(both) -> None:
    dataset = Stored(typed_sample(), transform=both)
    expected = [both(data)[EDGE_PE] for data in typed_sample()]
    for start, batch in enumerate(DataLoader(dataset, batch_size=4, num_workers=1)):
        assert same(batch[EDGE_PE], torch.cat(expected[4 * start : 4 * start + 4]))


@pytest.mark.parametrize(
    ("chunk", "pairs", "expected_chunks"),
    [
        (1, 10**6, [1] * 7),
        (4, 10**6, [4, 3]),
        (4096, 1, [1] * 7),
        (4096, 30, [4, 1, 1, 1]),  # 1 + 4 + 9 + 16, then 25, 36, 49
        (4096, 2**22, [7]),
    ],
)
def test_encode_dataset_with_edges_in_chunks_of_any_size(
    both, monkeypatch, chunk: int, pairs: int, expected_chunks: list[int]
) -> None:
    chunks = []

    def recorded(*arguments, num_graphs: int, **options) -> Incidence:
        chunks.append(num_graphs)
        return Incidence(*arguments, num_graphs=num_graphs, **options)

    monkeypatch.setattr("tg_lpe.transforms.base.CHUNK", chunk)
    monkeypatch.setattr("tg_lpe.transforms.base.CHUNK_PAIRS", pairs)
    monkeypatch.setattr("tg_lpe.transforms.base.Graph", recorded)
    dataset = Stored(typed_sample())
    keys = dataset[0].keys()
    stored = both.encode_dataset(dataset, progress=False)
    listed = both.encode_dataset(typed_sample(), progress=False)
    assert chunks == 2 * expected_chunks
    assert type(stored) is Stored and len(stored) == len(listed) == len(dataset)
    for data, *results in zip(typed_sample(), stored, listed, strict=True):
        expected = both(data)
        for got in results:
            assert set(got.keys()) == set(expected.keys())
            assert same(got.linear_transformer_pe, expected.linear_transformer_pe)
            assert same(got[EDGE_PE], expected[EDGE_PE]) and torch.equal(got.edge_attr, data.edge_attr)
    assert stored._data.edge_attr.data_ptr() == dataset._data.edge_attr.data_ptr(), "storage is shared"
    assert dataset[0].keys() == keys and EDGE_PE not in dataset.slices


@pytest.mark.parametrize("source", ["list", "subset", "transformed", "memory", "one", "appended"])
def test_encode_dataset_with_edges_of_every_kind(gram, source: str) -> None:
    transform = LinearTransformerPE(4, None if source == "appended" else "pe", gram, edge_attr_name="edge_pe")
    whole = Stored(typed_sample(12))
    dataset = {
        "list": typed_sample(12),
        "subset": whole[3:9],
        "transformed": Stored(typed_sample(8), transform=lambda data: data),
        "memory": whole,
        "one": Stored(typed_sample()[5:6]),
        "appended": whole,
    }[source]
    result = transform.encode_dataset(dataset, progress=False)
    assert len(result) == len(dataset) and isinstance(result, Stored) == (source in ("memory", "one", "appended"))
    for got, data in zip(result, dataset, strict=True):
        expected = transform(data)
        assert set(got.keys()) == set(expected.keys())
        for name in ("x" if source == "appended" else "pe", "edge_pe"):
            assert got[name].shape == expected[name].shape and same(got[name], expected[name])
        assert "edge_pe" not in data


def test_chunks_are_as_large_as_pairs_of_nodes_allow() -> None:
    sizes = [3, 4, 0, 1, 5, 2, 2, 0, 2, 10, 0, 1]
    graphs = [Data(x=torch.zeros(n, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64)) for n in sizes]
    for dataset in (graphs, Stored(graphs)):
        chunks = list(iterate_chunks(dataset, 4, (), 25))
        assert [chunk.num_graphs for chunk in chunks] == [3, 1, 1, 4, 1, 2]
        assert [chunk.num_nodes for chunk in chunks] == [7, 1, 5, 6, 10, 1]
        assert [c.num_graphs for c in iterate_chunks(dataset, 4)] == [4, 4, 4]
