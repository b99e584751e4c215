"""The transform of any encoder, here of one that a user wrote."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Degrees, Stored
from torch_geometric.data import Batch, Data, InMemoryDataset

from tg_lpe import AddPositionalEncoding, Encoder, GramTransformer, Graph
from tg_lpe.encoders import LPE, Combined, RandomWalk, Whitened, load_encoder

PATHS = [torch.tensor([[*range(n - 1)], [*range(1, n)]], dtype=torch.int64).view(2, -1) for n in (1, 4, 6)]


def graphs() -> list[Data]:
    return [Data(edge_index=index, num_nodes=n) for n, index in zip((1, 4, 6), PATHS, strict=True)]


@pytest.mark.parametrize("edge_name", [None, "edge_pe"])
def test_alone_in_a_batch_and_in_a_dataset(edge_name: str | None) -> None:
    """Edge encodings are written on request only, also where the encoder computes them anyway."""
    transform = AddPositionalEncoding(Degrees(scale=0.5), edge_attr_name=edge_name)
    first, others = Stored(graphs()[:1]), Stored(graphs())[1:]  # one graph, and a selection
    for result in (
        [transform(data) for data in graphs()],
        transform(Batch.from_data_list(graphs())).to_data_list(),
        transform.encode_dataset(graphs(), progress=False),
        [data for part in (first, others) for data in transform.encode_dataset(part, progress=False)],
    ):
        for data, index in zip(result, PATHS, strict=True):
            degree = torch.bincount(index.flatten(), minlength=data.num_nodes).unsqueeze(1)
            assert torch.equal(data.pe, 0.5 * degree)
            assert set(data.keys()) - {"num_nodes"} == {"edge_index", "pe", edge_name} - {None}
            assert edge_name is None or torch.equal(data.edge_pe, 0.5 * degree[index].sum(0))


@pytest.mark.parametrize("make", [list, Stored])
def test_a_refused_graph_of_a_dataset_is_named(make: Callable[[list[Data]], Any]) -> None:
    """By its number in the dataset, beyond the first chunk, with its own nodes and the error itself as the cause."""
    number, transform = 4500, AddPositionalEncoding(RandomWalk(2))
    dataset = [Data(edge_index=PATHS[1], num_nodes=4, edge_weight=torch.ones(3)) for _ in range(number + 5)]
    dataset[number].edge_weight = torch.tensor([1.0, -1.0, 1.0])
    with pytest.raises(ValueError, match=rf"graph {number}: edge_weight .* \(1, 2\)") as error:
        transform.encode_dataset(make(dataset), progress=False)
    assert isinstance(error.value.__cause__, ValueError)


@pytest.mark.parametrize("make", [list, Stored])
def test_rows_too_many_of_a_single_graph_are_refused(make: Callable[[list[Data]], Any]) -> None:
    """Nothing of another graph follows them, so that they could be cut off."""
    data = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), edge_weight=torch.ones(5), num_nodes=3)
    with pytest.raises(ValueError, match=r"edge_weight .* shape \[3\], got .* \[5\]"):
        AddPositionalEncoding(RandomWalk(2)).encode_dataset(make([data]), progress=False)


def test_a_batch_of_batches_or_by_hand() -> None:
    """The ``num_graphs`` of one counts the batches, not the graphs; the other has a batch vector alone."""
    first, *others = graphs()
    nested = Batch.from_data_list([Batch.from_data_list([first]), Batch.from_data_list(others)])
    transform = AddPositionalEncoding(RandomWalk(4))
    expected = transform(Batch.from_data_list(graphs()))
    plain = Data(edge_index=expected.edge_index, batch=expected.batch, num_nodes=expected.num_nodes)
    assert torch.equal(transform(nested).pe, expected.pe) and torch.equal(transform(plain).pe, expected.pe)
    assert Graph.from_data(nested).num_graphs == 3


def test_weights_under_another_name_are_not_ignored_in_silence() -> None:
    """``from_networkx`` writes ``weight`` and ``GDC`` writes ``edge_attr``; a sample weight of a graph is none."""

    def told(**attributes: torch.Tensor) -> list[str]:
        data = Data(edge_index=PATHS[2], num_nodes=6, **attributes)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            transform(data)
        in_a_list = warned_of_a_list([data])
        assert in_a_list == [str(one.message) for one in found] and all(one.filename == __file__ for one in found)
        return in_a_list

    def warned_of_a_list(graphs: list[Data]) -> list[str]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            transform.encode_dataset(graphs, progress=False)
        return [str(one.message) for one in found]

    transform, numbers = AddPositionalEncoding(RandomWalk(4)), torch.rand(5)
    for weight in (numbers, numbers.long()):
        assert "edge_weight='weight'" in told(weight=weight)[0]
    assert "edge_weight='edge_attr'" in told(edge_attr=numbers)[0]
    assert not told(edge_weight=numbers, edge_attr=numbers) and not told(weight=torch.ones(1))
    assert not told(edge_attr=numbers.long()) and not told(edge_attr=numbers.unsqueeze(1))
    transform = AddPositionalEncoding(RandomWalk(4), edge_weight=None)
    assert not told(weight=numbers, edge_attr=numbers)


class OnDisk(Stored):
    """A dataset that was written to a file and read again."""

    def __init__(self, graphs: list[Data], path: Path) -> None:
        InMemoryDataset.__init__(self)
        self.save(graphs, path)
        self.load(path)


@pytest.mark.parametrize("name", ["pe", None])
@pytest.mark.parametrize("size", [{"num_nodes": 1}, {"x": 1}, {"feat": 1}, {"pos": 1}, {"n_id": 1}], ids=str)
def test_a_dataset_is_encoded_from_its_storage(
    size: dict[str, int], name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever tells the number of nodes, ``num_nodes`` alone included: no graph is taken out one by one."""
    (key,) = size
    given = [
        Data(edge_index=index, **{key: n if key == "num_nodes" else torch.zeros(n, 1)})
        for n, index in zip((1, 4, 6), PATHS, strict=True)
    ]
    transform = AddPositionalEncoding(Degrees(), name, "edge_pe")
    for dataset in (Stored(given), OnDisk(given, tmp_path / "data.pt")):
        with monkeypatch.context() as patched:
            patched.setattr(InMemoryDataset, "get", lambda self, index: pytest.fail("graph by graph"))
            result = transform.encode_dataset(dataset, progress=False)
        assert type(result) is type(dataset)
        for got, data in zip(result, given, strict=True):
            expected = transform(data)
            assert set(got.keys()) == set(expected.keys()) and got.num_nodes == data.num_nodes
            assert torch.equal(got[name or "x"], expected[name or "x"])
            assert torch.equal(got.edge_pe, expected.edge_pe)
        assert set(dataset[0].keys()) == {"edge_index", key}, "the caller's dataset stays as it is"


class ScaledDegrees(Degrees):
    """Scaled degrees with a weight, which the argument ``scale`` does not show."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__(scale)
        self.offset = torch.nn.Parameter(torch.zeros(1))


@pytest.mark.parametrize("cls", [Degrees, ScaledDegrees])
def test_arguments_of_the_encoder_are_in_the_repr(cls: type[Degrees]) -> None:
    """The transform's repr shows them even if the encoder's does not: PyG compares it to detect a stale dataset."""
    first, other = (AddPositionalEncoding(cls(scale)) for scale in (1.0, 2.0))
    assert repr(first) == repr(AddPositionalEncoding(cls(1.0))) != repr(other)


def warned(encoder: Encoder) -> list[str]:
    """The warnings of a transform that is made of an encoder."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        AddPositionalEncoding(encoder)
    assert all(one.filename == __file__ for one in found), "warnings name the caller's line"
    return [str(one.message) for one in found]


@pytest.mark.parametrize("encoder", [GramTransformer(8), LPE(), Combined([RandomWalk(2), GramTransformer(8)])])
def test_an_encoder_in_training_mode_is_warned_of(encoder: Encoder) -> None:
    """It may be new, with random weights."""
    for message in (*warned(encoder), *warned(encoder)):
        assert "from_pretrained" in message and "eval()" in message and type(encoder).__name__ in message
    assert not warned(encoder.eval())


def test_other_encoders_are_not_warned_of() -> None:
    assert not warned(load_encoder("gram-k8")) and not warned(RandomWalk(3)) and not warned(Whitened("gram-k8"))
