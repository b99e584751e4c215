"""Checkpoints: the same bits in another process, and a clear error for every file that was altered."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from children import run_python
from helpers import randomize_
from safetensors.torch import load_file, save_file
from torch import nn

from tg_lpe import GraphTransformer, LinearTransformer, zoo
from tg_lpe.checkpoints.checkpoint import CONFIG, DESCRIPTION, DIGEST, WEIGHTS, CheckpointMixin, module_digest
from tg_lpe.checkpoints.files import check_writable, load_tensors, read_json, replacing, save_tensors, write_json

EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 4, 2]])
CHANGES = {"num_loops": 2, "seed": 1, "normalize": False, DIGEST: "0" * 64, "extra": 1}


class Other(CheckpointMixin, nn.Module):
    """A module whose constructor takes none of the encoder's arguments."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)


def encode(model: LinearTransformer, x: torch.Tensor | None = None) -> torch.Tensor:
    return model(x, EDGES).node


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    randomize_(LinearTransformer(k=4)).save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_trip_is_exact(tmp_path: Path, dtype: torch.dtype) -> None:
    model = randomize_(LinearTransformer(k=5, seed=2**40, update_incidence=True), scale=0.2).to(dtype)
    model.save_pretrained(tmp_path)
    loaded = LinearTransformer.from_pretrained(tmp_path)
    assert torch.equal(encode(loaded), encode(model)) and encode(loaded).dtype == dtype
    assert not loaded.training
    assert all(p.requires_grad for p in loaded.parameters())
    assert module_digest(loaded) == module_digest(model)


def test_parts_of_different_dtypes_get_the_widest(tmp_path: Path) -> None:
    model = GraphTransformer(encoder=LinearTransformer(k=4), hidden_channels=8, heads=2, num_layers=1)
    randomize_(model).encoder.double()  # type: ignore[union-attr]
    model.readout[-1].bias.data = model.readout[-1].bias.data.double()
    model.save_pretrained(tmp_path)
    loaded = GraphTransformer.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(value.double(), loaded[name]) for name, value in model.state_dict().items())


def test_a_configuration_is_no_one_else_s(tmp_path: Path) -> None:
    """Later changes of the caller's dictionary or of the configuration do not affect each other."""
    options = {"full": True, "gamma": 0.5}
    model = GraphTransformer(attention="spectral", attention_options=options, hidden_channels=8, heads=2, num_layers=1)
    options["gamma"] = 0.1
    config = model.config_dict()
    assert config["attention_options"] == {"full": True, "gamma": 0.5}
    config["attention_options"]["softmax"] = "separate"
    assert options == {"full": True, "gamma": 0.1}
    model.save_pretrained(tmp_path)
    assert GraphTransformer.from_pretrained(tmp_path).layers[0].attention.gamma == 0.5


def test_a_new_process_computes_the_same_bits(tmp_path: Path) -> None:
    model = randomize_(LinearTransformer(k=5, seed=3, num_loops=2))
    model.save_pretrained(tmp_path / "encoder")
    save_file({"edges": EDGES}, tmp_path / "edges.safetensors")
    code = """
import sys, torch
from safetensors.torch import load_file, save_file
from tg_lpe import LinearTransformer, LinearTransformerPE
from tg_lpe.checkpoints.checkpoint import module_digest
folder = sys.argv[1]
model = LinearTransformer.from_pretrained(folder + "/encoder")
out = model(None, load_file(folder + "/edges.safetensors")["edges"]).node
save_file({"out": out.detach()}, folder + "/out.safetensors")
print(module_digest(model), LinearTransformerPE(k=2, encoder=model))
"""
    (tmp_path / "load.py").write_text(code, encoding="utf-8")
    said = run_python(str(tmp_path / "load.py"), str(tmp_path), said=tmp_path / "said").strip()
    assert torch.equal(load_file(tmp_path / "out.safetensors")["out"], encode(model))
    from tg_lpe import LinearTransformerPE

    assert said.endswith(f"{module_digest(model)} {LinearTransformerPE(k=2, encoder=model)}")


def flip(path: Path, where: int) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


def alter(path: Path, **change: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        *((name, Path.unlink, f"encoder is incomplete: {name} is missing") for name in (CONFIG, WEIGHTS)),
        *((WEIGHTS, partial(flip, where=at), "was truncated or altered: .* digest") for at in (0, 9, 200, -1, -40)),
        *((CONFIG, partial(alter, **{key: value}), "was truncated or altered") for key, value in CHANGES.items()),
        *((CONFIG, partial(Path.write_text, data=text), "not valid JSON") for text in ("", '{"k": 4')),
        (CONFIG, partial(Path.write_text, data="[1, 2]"), "must hold a JSON object, got list"),
        (CONFIG, partial(Path.write_text, data="{}"), "truncated or altered"),
    ],
)
def test_a_damaged_checkpoint_is_named(saved: Path, name: str, damage: Callable[[Path], None], message: str) -> None:
    damage(saved / name)
    with pytest.raises(ValueError, match=message) as caught:
        LinearTransformer.from_pretrained(saved)
    assert str(saved) in str(caught.value)


def test_a_checkpoint_of_another_class_is_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not fit Other: it holds a LinearTransformer"):
        Other.from_pretrained(saved)
    Other().save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="does not fit LinearTransformer: it holds a Other"):
        LinearTransformer.from_pretrained(tmp_path / "other")
    assert Other.from_pretrained(tmp_path / "other").linear.in_features == 3


@pytest.mark.parametrize("name", ["no-such-encoder", "./missing/folder", "a/b/c", "~/x", "/nowhere"])
def test_an_unknown_name_lists_what_there_is(name: str) -> None:
    with pytest.raises(ValueError, match="no checkpoint: it must be one of") as caught:
        LinearTransformer.from_pretrained(name)
    assert repr(name) in str(caught.value) and str(zoo.names()) in str(caught.value)


def test_saving_replaces_what_was_there(saved: Path) -> None:
    (saved / "README.md").write_text("my card")
    newer = randomize_(LinearTransformer(k=3), seed=8)
    newer.save_pretrained(saved)
    assert torch.equal(encode(LinearTransformer.from_pretrained(saved)), encode(newer))
    assert (saved / "README.md").read_text() == "my card"
    assert sorted(p.name for p in saved.iterdir()) == ["README.md", CONFIG, WEIGHTS]


def test_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.json"
    write_json(target, {"b": 1, "a": "é"})
    assert read_json(target) == {"b": 1, "a": "é"} and list(read_json(target)) == ["b", "a"]
    with pytest.raises(RuntimeError), replacing(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_json(target)["b"] == 1 and [p.name for p in target.parent.iterdir()] == ["file.json"]


def test_tensors_and_metadata_round_trip(tmp_path: Path) -> None:
    shared = torch.arange(6.0).view(2, 3)
    save_tensors(tmp_path / "t", {"a": shared.T, "b": shared, "c": torch.tensor(3)}, {"note": [1, None]})
    tensors, metadata = load_tensors(tmp_path / "t")
    assert torch.equal(tensors["a"], shared.T) and torch.equal(tensors["b"], shared) and tensors["c"] == 3
    assert metadata == {"note": [1, None]}
    (tmp_path / "t").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        load_tensors(tmp_path / "t")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_only_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for call in (lambda: check_writable(tmp_path / "pipe"), lambda: write_json(tmp_path / "pipe", 1)):
        with pytest.raises(ValueError, match="pipe: it is a device or a pipe; only regular files"):
            call()
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1


def test_another_model_s_card_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / DESCRIPTION).write_text("{}", encoding="utf-8")
    LinearTransformer(k=3).save_pretrained(tmp_path)
    assert not (tmp_path / DESCRIPTION).exists()
