"""The transform: what it writes, what it leaves alone, and what its repr must tell."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from helpers import Graph, corner_cases, fewer, graphs, normal, randomize_, relative_error
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import Compose

from tg_lpe import LinearTransformer, LinearTransformerPE, zoo

needs_zoo = pytest.mark.skipif("eigen-k8" not in zoo.names(), reason="eigen-k8 is not trained yet")


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
    return model(data.edge_index, data.num_nodes, edge_weight=data.get("edge_weight"), x=data.x).detach()


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
    encode_with_grad = encoder(data.edge_index, data.num_nodes)
    assert encode_with_grad.requires_grad, "the caller's module is not frozen"
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
    with pytest.raises(TypeError, match=r"must be a LinearTransformer, got str; .*from_pretrained"):
        LinearTransformerPE(encoder="eigen-k8")
    with pytest.raises(TypeError, match="got Linear;"):
        LinearTransformerPE(encoder=torch.nn.Linear(2, 2))
    for k in (0, 9, -1):
        with pytest.raises(ValueError, match=rf"k must lie in 1\.\.8, .* got {k};"):
            LinearTransformerPE(k=k, encoder=encoder)
    with pytest.raises(TypeError, match="got HeteroData"):
        transform(HeteroData())
    with pytest.raises(ValueError, match=r"needs edge_index, got data with \['x'\]"):
        transform(Data(x=torch.zeros(2, 1)))
    learned = LinearTransformerPE(encoder=LinearTransformer(k=2, probes="learned", max_nodes=3))
    with pytest.raises(ValueError, match="max_nodes=3"):
        learned(sample()[4])


def test_feature_probes_read_x() -> None:
    model = LinearTransformer(k=4, probes="features", in_channels=2)
    data = sample()[4]
    assert torch.equal(LinearTransformerPE(encoder=model)(data).linear_transformer_pe, encode(model, data))
    with pytest.raises(ValueError, match="needs node features of 6 rows, got None"):
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
    monkeypatch.setattr("tg_lpe.transforms.linear_transformer_pe.CHUNK", chunk)
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
    with pytest.raises(ValueError, match=r"needs edge_index, got data with \['x'\]"):
        transform.encode_dataset([*graphs, Data(x=torch.zeros(2, 1))], progress=False)


def test_encode_dataset_of_nothing(transform) -> None:
    assert transform.encode_dataset([], progress=False) == []
    dataset = Stored(sample())
    assert len(transform.encode_dataset(dataset[:0], progress=False)) == 0


@needs_zoo
def test_the_shipped_encoder() -> None:
    default = LinearTransformerPE()
    assert default.k == 8 and repr(default) == repr(LinearTransformerPE.from_pretrained("eigen-k8"))
    assert repr(LinearTransformerPE(k=4)) == repr(LinearTransformerPE.from_pretrained("eigen-k8", 4))
    for graph in corner_cases():
        data = as_data(graph)
        pe = default(data).linear_transformer_pe
        assert pe.shape == (graph.num_nodes, 8) and pe.isfinite().all()
        assert torch.equal(LinearTransformerPE(k=3)(data).linear_transformer_pe, pe[:, :3])


def test_from_pretrained_takes_a_folder(tmp_path, encoder) -> None:
    encoder.save_pretrained(tmp_path)
    transform = LinearTransformerPE.from_pretrained(tmp_path, k=3, attr_name="pe", edge_weight=None)
    assert repr(transform) == repr(LinearTransformerPE(3, "pe", encoder, None))
