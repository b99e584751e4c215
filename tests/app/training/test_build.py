"""The model and the encoder that a training begins with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import randomize_, refusals
from torch import Tensor
from torch_geometric.data import Batch, Data

from tg_lpe import GramTransformer, LinearTransformer
from tg_lpe.app.training.build import build_model, hash_seed
from tg_lpe.app.training.tasks import Binary, Multiclass, Regression
from tg_lpe.checkpoints.checkpoint import Checkpoint
from tg_lpe.data import DataSpec
from tg_lpe.encoders import ENCODERS, Encoder

SPEC = DataSpec(num_node_types=4, num_edge_types=3, max_nodes=9)
SMALL = {"hidden_channels": 16, "heads": 2, "num_layers": 1}


def test_hash_seed() -> None:
    seeds = {hash_seed(a, b) for a in range(50) for b in range(50)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**63 for seed in seeds)
    bits = [bin(hash_seed(0, a) ^ hash_seed(0, a + 1)).count("1") for a in range(200)]
    assert 25 < sum(bits) / len(bits) < 38, "neighbours share about half their bits"
    assert hash_seed(1, 2) == hash_seed(1, 2) and hash_seed(-1, 2**70) >= 0
    torch.Generator().manual_seed(max(seeds))


@pytest.mark.parametrize("readout", ["mlp", "paper"])
def test_every_encoding_starts_from_the_same_graph_transformer(readout: str) -> None:
    """With one seed, the common parts of two models have the same weights, whatever the encoder draws."""
    states: dict[str, dict[str, Tensor]] = {}
    for name in (*ENCODERS, "none"):
        chosen = None if name == "none" else {"class": name, **({"k": 6} if name == "LaplacianEigenvectors" else {})}
        model = build_model(SPEC, Regression(), chosen, readout=readout, **SMALL)
        states[name] = {key: value for key, value in model.state_dict().items() if not key.startswith("encoder.")}
    for state in states.values():
        assert set(states["none"]) <= set(state)
        assert {key.split(".")[0] for key in set(state) - set(states["none"])} <= {"pe_embedding", "edge_pe_embedding"}
        for key, value in states["none"].items():
            assert torch.equal(state[key], value), key
    other = build_model(SPEC, Regression(), seed=1, readout=readout, **SMALL).state_dict()
    assert any(not torch.equal(other[key], value) for key, value in states["none"].items())


def test_sizes_come_from_data_and_task() -> None:
    model = build_model(SPEC, Multiclass(num_classes=5), {"class": "GramTransformer"}, **SMALL)
    config = model.config_dict()
    assert (config["num_node_types"], config["num_edge_types"], config["out_channels"]) == (4, 3, 5)
    assert (config["encoder"]["num_node_types"], config["encoder"]["num_edge_types"]) == (4, 3)
    assert build_model(SPEC, Binary(level="node"), **SMALL).config_dict()["readout"] == {"level": "node"}
    own = build_model(SPEC, Regression(), GramTransformer(), **SMALL)
    assert own.config_dict()["encoder"]["num_node_types"] is None, "an encoder that is given is taken as it is"


test_refusals = refusals(
    lambda encoder=None, **options: build_model(SPEC, Regression(), encoder, **options),
    ({"channels": 8}, "channels"),
    ({"encoder": {"class": "Walk"}}, "encoder"),
    ({"encoder": GramTransformer}, "'class': 'GramTransformer'"),
    ({"seed": "0"}, "seed"),
    ({"edge_encoding": "no"}, "edge_encoding"),
)


@pytest.mark.parametrize("name", ["LaplacianEigenvectors", "RandomWalk", "GramTransformer"])
def test_without_the_encoding_of_edges(name: str) -> None:
    model = build_model(SPEC, Regression(), {"class": name}, edge_encoding=False, **SMALL)
    assert model.edge_pe_embedding is None and model.pe_embedding is not None
    assert build_model(SPEC, Regression(), {"class": name}, **SMALL).edge_pe_embedding is not None


def test_an_open_checkpoint_starts_each_model_from_its_own_weights() -> None:
    """So does each seed of ``tg-lpe train --pretrained NAME --seeds 0 1`` and of a comparison."""
    checkpoint = Checkpoint.open("gram-k16")
    first, second = (build_model(SPEC, Regression(), checkpoint, seed=seed, **SMALL).encoder for seed in (0, 1))
    assert first is not None and second is not None
    assert first.training and all(parameter.requires_grad for parameter in first.parameters())
    randomize_(first)  # as a training does
    torch.testing.assert_close(second.state_dict(), checkpoint.load().state_dict(), rtol=0, atol=0)
    third = build_model(SPEC, Regression(), checkpoint, **SMALL).encoder
    torch.testing.assert_close(third.state_dict(), checkpoint.load().state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("saved", "name"),
    [
        (LinearTransformer(4, probes="features", num_node_types=5), "num_node_types"),
        (GramTransformer(num_node_types=7), "num_node_types"),
        (GramTransformer(num_edge_types=2), "num_edge_types"),
        (GramTransformer(edge_dim=2), "edge_dim"),
    ],
)
def test_an_encoder_of_other_features_is_refused(tmp_path: Path, saved: torch.nn.Module, name: str) -> None:
    saved.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=name):
        build_model(SPEC, Regression(), tmp_path)


def test_readouts_of_a_new_encoder_start_at_principal_components() -> None:
    """Over the training graphs, if they are given; pretrained weights stay, at any depth."""
    graphs = [Data(edge_index=torch.combinations(torch.arange(n)).mT, num_nodes=n) for n in (2, 3, 4, 6)]
    batch = Batch.from_data_list(graphs)
    gram = {"class": "GramTransformer", "out_channels": 2}

    def built(chosen: object, dataset: list[Data] | None) -> Encoder:
        model = build_model(DataSpec(), Regression(), chosen, edge_encoding=False, dataset=dataset, **SMALL)
        return model.encoder

    for new in (gram, {"class": "LinearTransformer", "probes": "identity", "out_channels": 2, "edge_out_channels": 1}):
        node = built(new, graphs)(None, batch.edge_index, batch=batch.batch).node
        torch.testing.assert_close(node.mT.cov(correction=0), torch.eye(2), rtol=1e-3, atol=1e-3)
    combined = {"class": "Combined", "encoders": ["heat-k8", gram]}
    for chosen in ("heat-k8", combined, {"class": "Whitened", "encoder": "heat-k8"}, {"class": "LinearTransformer"}):
        of_graphs, of_none = (built(chosen, dataset).state_dict() for dataset in (graphs, None))
        assert all(torch.equal(tensor, of_none[name]) for name, tensor in of_graphs.items())
