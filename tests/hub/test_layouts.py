"""Checkpoints of the first release load, and their outputs are those of release 0.1.

The encoders are still shipped. The transformers are small ones that release 0.1 made; their weights lie beside them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tg_lpe import zoo
from tg_lpe.hub.checkpoints import CONFIG, WEIGHTS, load
from tg_lpe.hub.files import load_tensors, read_json
from tg_lpe.hub.layouts import Kind, kind_of, upgrade

FIXTURES = Path(__file__).parents[1] / "fixtures" / "layout_1"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.json"))
SHIPPED = [name for name in NAMES if name in zoo.names()]


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    """A batch of graphs, and the outputs of release 0.1."""
    return load_tensors(FIXTURES / "outputs.safetensors")[0]


def old_checkpoint(name: str, folder: Path) -> Path:
    """The checkpoint as release 0.1 wrote it: the weight files of what is shipped have not changed."""
    weights = zoo.path(name) / WEIGHTS if name in SHIPPED else FIXTURES / f"{name}.safetensors"
    shutil.copy(FIXTURES / f"{name}.json", folder / CONFIG)
    shutil.copy(weights, folder / WEIGHTS)
    return folder


@pytest.mark.parametrize(("name", "layout"), [*((name, 1) for name in NAMES), *((name, 2) for name in SHIPPED)])
def test_outputs_are_those_of_release_0_1(name: str, layout: int, expected: dict[str, Tensor], tmp_path: Path) -> None:
    module = load(name if layout == 2 else old_checkpoint(name, tmp_path))
    graph = {key: expected[key] for key in ("x", "edge_index", "edge_attr", "batch")}
    with torch.no_grad():
        out = module(**graph)
    parts = {"prediction": out} if isinstance(out, Tensor) else {"node": out.node, "edge": out.edge}
    # The layers of eigen-k8 amplify rounding, and other vector units than those of the fixtures round otherwise.
    exact = name != "eigen-k8" or torch.backends.cpu.get_cpu_capability() == "AVX512"
    for part, value in parts.items():
        if value is not None:
            torch.testing.assert_close(value, expected[f"{name}.{part}"], rtol=1e-6, atol=1e-6 if exact else 2e-5)
    assert {f"{name}.{part}" for part, value in parts.items() if value is not None} == {
        key for key in expected if key.startswith(f"{name}.")
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configurations_name_their_class(name: str) -> None:
    config = read_json(zoo.path(name) / CONFIG)
    assert config["class"] == zoo.card(name)["class"] and upgrade(config) is config


def test_upgrading_does_not_change_its_argument() -> None:
    config = {"probes": "auto", "num_node_types": None, "edge_channels": 3}
    assert upgrade(config) == {
        "class": "GramTransformer",
        "probes": "auto",
        "num_node_types": None,
        "edge_out_channels": 3,
    }
    assert config == {"probes": "auto", "num_node_types": None, "edge_channels": 3}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"class": "GramTransformer", "num_layers": 2}, Kind.CHECKPOINT),
        ({"class": "OfAUser", "command": "go", "train": True}, Kind.CHECKPOINT),
        ({"probes": "auto", "num_node_types": None}, Kind.CHECKPOINT),
        ({}, Kind.CHECKPOINT),
        ({"layout": 2, "command": "train", "encoder": None}, Kind.TRAINING),
        ({"layout": 2, "command": "pretrain"}, Kind.PRETRAINING),
        ({"layout": 2, "command": "pretrain-kernels"}, Kind.PRETRAINING),
        ({"train": {"epochs": 2}, "data": {}}, Kind.EARLIER_RUN),
        ({"pretrain": {"epochs": 2}}, Kind.EARLIER_RUN),
    ],
)
def test_what_a_folder_holds(config: dict[str, Any], kind: Kind) -> None:
    assert kind_of(config) is kind
