"""Textbook encodings as transforms: every method, equivalent descriptions of a graph, batches."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import sys
import warnings
from functools import partial

import networkx as nx
import numpy as np
import pytest
import torch
from construction_graphs import CASES
from helpers import Graph, Stored, data_of, heat_pe, normal, refusals, relative_error, resistive_pe
from torch import Tensor
from torch_geometric.data import Batch, Data

from tg_lpe.data import GraphDataset
from tg_lpe.encoders import LaplacianEigenvectors
from tg_lpe.testing.encoder_test_case import GRAPH as SPECTRUM
from tg_lpe.transforms import AddEffectiveResistance, AddLaplacianEigenvectors, AddPositionalEncoding

TRANSFORMS = {
    "heat": lambda: (heat_pe(edge_attr_name="entries"), "pe"),
    "resistive": lambda: (resistive_pe(4), "pe"),
    "bottom": lambda: (AddLaplacianEigenvectors(3, eigenvalue_attr_name="values"), "laplacian_eigenvectors"),
    "top": lambda: (AddLaplacianEigenvectors(3, "top"), "laplacian_eigenvectors"),
    "edges": lambda: (AddEffectiveResistance(), "effective_resistance"),
}
every_transform = pytest.mark.parametrize("name", sorted(TRANSFORMS))


@pytest.fixture(autouse=True)
def _double():
    """Results are written in double precision, so that comparisons are exact to rounding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def sample() -> list[Data]:
    """Connected, in pieces, without edges, a lone node, and none at all."""
    parts = [SPECTRUM, CASES[7].graph, Graph(3, [], []), Graph(1, [], []), Graph(0, [], []), CASES[8].graph]
    return [data_of(part) for part in parts]


# What is written.


@pytest.mark.parametrize("options", [{}, {"k": 3, "normalization": "rw", "which": "top"}])
def test_a_named_transform_is_its_encoder_with_its_defaults(options: dict) -> None:
    data = data_of(SPECTRUM)
    transform = AddLaplacianEigenvectors(attr_name="pe", **options)
    plain = AddPositionalEncoding(LaplacianEigenvectors(**options))
    assert torch.equal(transform(data).pe, plain(data).pe)
    described = repr(plain).partition("encoder=")[2]
    assert described and described in repr(transform)
    ours, theirs = (inspect.signature(cls).parameters for cls in (AddLaplacianEigenvectors, LaplacianEigenvectors))
    for name in ours.keys() & theirs.keys():
        assert ours[name].default == theirs[name].default, name


def test_effective_resistances() -> None:
    data, graph = data_of(SPECTRUM), SPECTRUM.networkx()
    exact = nx.resistance_distance(graph, weight="weight", invert_weight=False)
    edges = AddEffectiveResistance()(data).effective_resistance
    expected = [exact[u][v] for u, v in data.edge_index.T.tolist()]
    assert edges.shape == (14,) and relative_error(edges, np.array(expected)) < 1e-9


def test_resistances_between_components() -> None:
    data = AddEffectiveResistance()(data_of(Graph(3, [(0, 1), (1, 2)], [4.0, 0.0])))
    between = (data.edge_index == 2).any(0)
    assert data.effective_resistance[between].tolist() == [math.inf] * 2
    assert data.effective_resistance[~between].tolist() == pytest.approx([0.25] * 2)


@every_transform
def test_dtype_follows_the_default(name: str) -> None:
    """The dtype is PyTorch's default when the transform is made."""
    transform, attr = TRANSFORMS[name]()
    expected = transform(data_of(SPECTRUM))[attr]
    assert expected.dtype == torch.float64 and not expected.requires_grad
    torch.set_default_dtype(torch.float32)
    got = TRANSFORMS[name]()[0](data_of(SPECTRUM))[attr]
    assert got.dtype == torch.float32 and torch.equal(got, expected.float())


@every_transform
def test_data_are_not_changed(name: str) -> None:
    transform, attr = TRANSFORMS[name]()
    data = data_of(SPECTRUM, x=normal(6, 2))
    before, state = copy.deepcopy(data), torch.get_rng_state()
    out = transform(data)
    further = {"heat": {"entries"}, "bottom": {"values"}}.get(name, set())
    assert set(out.to_dict()) == {*before.to_dict(), attr, *further} and set(data.to_dict()) == set(before.to_dict())
    assert all(torch.equal(data[key], before[key]) for key in ("x", "edge_index", "edge_weight"))
    assert torch.equal(torch.get_rng_state(), state), "the global generator was used"
    assert torch.equal(transform(data)[attr], out[attr])


def test_weights_by_name_or_none() -> None:
    data = data_of(SPECTRUM)
    unit = Data(edge_index=data.edge_index, num_nodes=6)
    named = Data(edge_index=data.edge_index, conductance=data.edge_weight, num_nodes=6)
    for build, attr in (
        (AddEffectiveResistance, "effective_resistance"),
        (heat_pe, "pe"),
        (lambda **more: resistive_pe(2, **more), "pe"),
        (lambda **more: AddLaplacianEigenvectors(2, **more), "laplacian_eigenvectors"),
    ):
        weighted = build()(data)[attr]
        assert torch.equal(build(edge_weight="conductance")(named)[attr], weighted)
        assert torch.equal(build(edge_weight=None)(data)[attr], build()(unit)[attr])
        assert not torch.equal(weighted, build()(unit)[attr])


# Batches.


def parts_of(name: str, out: Batch, attr: str, graphs: list[Data]) -> tuple[Tensor, ...]:
    return out[attr].split([g.num_edges if name == "edges" else g.num_nodes for g in graphs])


@every_transform
def test_batches_and_datasets_are_their_graphs_one_by_one(name: str) -> None:
    transform, attr = TRANSFORMS[name]()
    graphs = sample()
    alone = [transform(data) for data in graphs]
    datasets = [transform.encode_dataset(kind(graphs), progress=False) for kind in (list, Stored)]
    batch = transform(Batch.from_data_list(graphs))
    for expected, got, *found in zip(alone, parts_of(name, batch, attr, graphs), *datasets, strict=True):
        torch.testing.assert_close(got, expected[attr], rtol=1e-9, atol=1e-9)
        for own in found:
            assert sorted(own.keys()) == sorted(expected.keys())
            for key in set(own.keys()) - {"num_nodes"}:
                torch.testing.assert_close(own[key], expected[key], rtol=1e-9, atol=1e-9, equal_nan=True)


# Arguments.


@pytest.mark.parametrize(
    ("build", "changes"),
    [
        (AddEffectiveResistance, {"attr_name": "r", "edge_weight": None}),
        (heat_pe, {"attr_name": "h", "edge_attr_name": "e", "edge_weight": None}),
        (
            lambda k=2, **more: AddLaplacianEigenvectors(k, **more),
            {"k": 3, "which": "top", "attr_name": None, "seed": 1, "edge_weight": None}
            | {"normalization": "rw", "eigenvalue_attr_name": "values"},
        ),
    ],
)
def test_repr_tells_every_argument(build, changes: dict) -> None:
    changed = {name: repr(build(**{name: value})) for name, value in changes.items()}
    assert len({repr(build()), *changed.values()}) == 1 + len(changes)
    for name, value in changes.items():
        assert f"{name}={value!r}" in changed[name]
    assert repr(build()) == repr(build()) == repr(pickle.loads(pickle.dumps(build())))


test_refuses_arguments_that_mean_nothing = refusals(  # those that the encoders do not read and so do not refuse
    AddEffectiveResistance,
    ({"edge_weight": 3}, TypeError, "edge_weight must be the name of an attribute or None, got 3"),
)


@pytest.mark.parametrize("name", ["y", "edge_attr", "edge_weight"])
def test_what_is_replaced_is_told(name: str) -> None:
    """In a graph, a batch and a dataset, and only where there was something."""
    ring = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3, other=torch.zeros(3))
    transform = heat_pe(**{"edge_attr_name" if "edge" in name else "attr_name": name})
    graphs = [ring, ring]
    for present in (False, True):
        if present:
            graphs = [copy.copy(ring).update({name: torch.ones(3)}) for _ in range(2)]
        for call, given in (
            (transform, graphs[0]),
            (transform, Batch.from_data_list(graphs)),
            (transform.encode_dataset, graphs),
            (transform.encode_dataset, GraphDataset.from_data_list(graphs)),
        ):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call(given)
            told = [str(warning.message) for warning in caught if "is replaced by" in str(warning.message)]
            assert bool(told) == present and all(repr(name) in text for text in told)


test_refuses_names_that_are_taken = refusals(
    lambda build, name="pe", **more: build(attr_name=name, **more),
    *(
        ((build, name), f"attr_name must be none of .*, got {name!r}")
        for name in ("", "adj_t", "num_nodes", "ptr", "face", "pe_index", "batch_pe")
        for build in (heat_pe, AddEffectiveResistance, partial(AddLaplacianEigenvectors, 2))
    ),
    ({"build": heat_pe, "edge_attr_name": "ptr"}, "edge_attr_name must"),
    ({"build": AddLaplacianEigenvectors, "k": 2, "eigenvalue_attr_name": ""}, "eigenvalue_attr_name must"),
    ({"build": heat_pe, "name": "a", "edge_attr_name": "a"}, "differ, got 'a' for both"),
    ((heat_pe, 3), TypeError, "attr_name must"),
    ((AddEffectiveResistance, None), TypeError, "attr_name must"),
)


LONE = data_of(SPECTRUM)
PAIR = Batch.from_data_list([LONE, LONE])
BATCHED = (
    ([LONE, PAIR], r"but graph 1 is a DataBatch; batch\.to_data_list\(\)"),
    ([data_of(SPECTRUM, batch=torch.tensor([0, 0, 0, 1, 1, 1]))], "but graph 0 has"),
)
test_refuses_what_is_no_dataset = refusals(
    lambda name, given: TRANSFORMS[name]()[0].encode_dataset(given, progress=False),
    *(
        (("heat", given), TypeError, said)
        for given, said in (
            (LONE, "got one Data; call the transform itself, or pass a list of one"),
            (PAIR, r"got one DataBatch; call the transform itself, or pass batch\.to_data_list"),
            (None, "sequence of Data, got NoneType;"),
            ([LONE, "x"], "[Gg]raph 1 is str|got str"),
            *BATCHED,
        )
    ),
)


def test_datasets_are_encoded_with_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    for shown in (False, True):
        AddEffectiveResistance().encode_dataset([data_of(SPECTRUM)] * 3, progress=shown)
        assert ("encoding: 100%" in capsys.readouterr().err) == shown


def test_weights_that_are_named_must_be_there() -> None:
    with_it, without = data_of(SPECTRUM, conductance=torch.ones(14)), data_of(SPECTRUM)
    transform = heat_pe(edge_weight="conductance")
    for call in (
        lambda: transform(without),
        lambda: transform.encode_dataset([without] * 2, progress=False),
        lambda: transform.encode_dataset(Stored([without] * 2), progress=False),
    ):
        message = r"edge_weight='conductance' names an attribute that no graph has, got \['edge_index', 'edge_weight',"
        with pytest.raises(ValueError, match=message):
            call()
    mixed = transform.encode_dataset([without, with_it], progress=False)
    torch.testing.assert_close(mixed[0].pe, mixed[1].pe)
    torch.testing.assert_close(mixed[1].pe, transform(with_it).pe)
    del without.edge_weight
    assert "pe" in heat_pe()(without), "the default name need not be there"


def test_features_that_nothing_can_be_put_beside() -> None:
    for x, got in (
        (torch.ones(6, 2, 2), r"torch\.strided \[6, 2, 2\]"),
        (torch.eye(6).to_sparse(), r"torch\.sparse_coo \[6, 6\]"),
        (torch.ones(5, 2), r"torch\.strided \[5, 2\]"),
    ):
        data = data_of(SPECTRUM, x=x)
        for call in (heat_pe(attr_name=None), lambda d: heat_pe(attr_name=None).encode_dataset([d])):
            with pytest.raises(ValueError, match=rf"attr_name=None appends .*dense \[6\] or \[6, num_.*, got {got};"):
                call(data)


test_refuses_data_without_edges_to_read = refusals(
    lambda name, **data: TRANSFORMS[name]()[0](Data(**data)),
    *(({"name": name, "x": normal(3, 2)}, "needs edge_index") for name in sorted(TRANSFORMS)),
    *(({"name": n, "edge_index": torch.tensor([[0], [2]]), "num_nodes": 2}, "edge_index must") for n in TRANSFORMS),
)


def test_pyg_cuts_attributes_of_edges_by_their_names() -> None:
    """In a graph of as many nodes as edges, too."""
    index = torch.tensor([[0, 1, 2, 3, 3, 1], [1, 2, 0, 0, 4, 5]])
    ring = AddEffectiveResistance(attr_name="edge_resistance")(Data(edge_index=index, num_nodes=6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        part = heat_pe(edge_attr_name="edge_heat")(ring).subgraph(torch.tensor([0, 1, 3, 4]))
    torch.testing.assert_close(part.edge_resistance.double(), torch.tensor([2 / 3, 1.0, 1.0]).double())
    assert part.edge_heat.size(0) == part.num_edges == 3
