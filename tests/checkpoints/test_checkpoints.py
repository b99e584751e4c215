"""Checkpoints: the same bits in another process, and a clear error for every file that was altered."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import randomize_
from safetensors.torch import load_file, save_file
from torch import nn

import tg_lpe.checkpoints.checkpoint
from tg_lpe import GraphTransformer, LinearTransformer, zoo
from tg_lpe.checkpoints.checkpoint import CONFIG, DESCRIPTION, DIGEST, WEIGHTS, CheckpointMixin, module_digest
from tg_lpe.checkpoints.files import check_writable, load_tensors, read_json, replacing, save_tensors, write_json
from tg_lpe.encoders import load_encoder
from tg_lpe.models import MODELS

EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 4, 2]])
OPTIONS = [
    {},
    {"k": 5, "out_channels": 3, "num_blocks": 2, "num_loops": 1, "seed": 9, "update_incidence": True},
    {"probes": "learned", "max_nodes": 7, "diagonal": False, "independent_scaling": False},
    {"degree_scaling": False, "normalize": False, "seed": 2**40},
]


class Other(CheckpointMixin, nn.Module):
    """Another module whose constructor takes none of the encoder's arguments."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)


def encode(model: LinearTransformer, x: torch.Tensor | None = None) -> torch.Tensor:
    return model(x, EDGES).node


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    randomize_(LinearTransformer(k=4)).save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.mark.parametrize("options", OPTIONS, ids=["default", "updated", "learned", "raw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_trip_is_exact(tmp_path: Path, options: dict, dtype: torch.dtype) -> None:
    model = randomize_(LinearTransformer(**options), scale=0.2).to(dtype)
    model.save_pretrained(tmp_path)
    loaded = LinearTransformer.from_pretrained(tmp_path)
    assert torch.equal(encode(loaded), encode(model)) and encode(loaded).dtype == dtype
    assert not loaded.training
    assert all(p.requires_grad for p in loaded.parameters())
    assert module_digest(loaded) == module_digest(model)
    assert not torch.equal(encode(LinearTransformer(**options).to(dtype)), encode(model))


def test_parts_of_different_dtypes_stay_so(tmp_path: Path) -> None:
    model = GraphTransformer(encoder=LinearTransformer(k=4), hidden_channels=8, heads=2, num_layers=1)
    randomize_(model).encoder.double()  # type: ignore[union-attr]
    model.readout[-1].bias.data = model.readout[-1].bias.data.double()
    model.save_pretrained(tmp_path)
    loaded = GraphTransformer.from_pretrained(tmp_path).state_dict()
    assert {name: value.dtype for name, value in loaded.items()} == {
        name: value.dtype for name, value in model.state_dict().items()
    }
    assert all(torch.equal(value, loaded[name]) for name, value in model.state_dict().items())


def test_a_configuration_is_no_one_else_s(tmp_path: Path) -> None:
    """Neither what the caller does with a dictionary later, nor with the configuration, changes the other."""
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
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert torch.equal(load_file(tmp_path / "out.safetensors")["out"], encode(model))
    from tg_lpe import LinearTransformerPE

    assert run.stdout.strip() == f"{module_digest(model)} {LinearTransformerPE(k=2, encoder=model)}"


def test_files_are_json_and_safetensors(saved: Path) -> None:
    assert sorted(p.name for p in saved.iterdir() if p.name != "README.md") == [CONFIG, WEIGHTS]
    config = json.loads((saved / CONFIG).read_text())
    assert config["class"] == "LinearTransformer" and config["k"] == 4 and len(config[DIGEST]) == 64
    weights = load_file(saved / WEIGHTS)
    assert set(weights) == set(LinearTransformer(k=4).state_dict())


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_an_incomplete_checkpoint_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(ValueError, match=f"{saved.name} is incomplete: {name} is missing"):
        LinearTransformer.from_pretrained(saved)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_truncated_weights_are_refused(saved: Path, size: int) -> None:
    content = (saved / WEIGHTS).read_bytes()
    (saved / WEIGHTS).write_bytes(content[:size])
    with pytest.raises(ValueError, match=r"was truncated or altered"):
        LinearTransformer.from_pretrained(saved)


@pytest.mark.parametrize("where", [0, 9, 200, -1, -40])
def test_a_flipped_bit_is_refused(saved: Path, where: int) -> None:
    content = bytearray((saved / WEIGHTS).read_bytes())
    content[where] ^= 1
    (saved / WEIGHTS).write_bytes(content)
    with pytest.raises(ValueError, match=r"was truncated or altered: .* digest"):
        LinearTransformer.from_pretrained(saved)


@pytest.mark.parametrize(
    "change", [{"num_loops": 2}, {"seed": 1}, {"normalize": False}, {DIGEST: "0" * 64}, {"extra": 1}]
)
def test_an_altered_configuration_is_refused(saved: Path, change: dict) -> None:
    config = json.loads((saved / CONFIG).read_text())
    (saved / CONFIG).write_text(json.dumps({**config, **change}))
    with pytest.raises(ValueError, match="was truncated or altered"):
        LinearTransformer.from_pretrained(saved)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ('{"k": 4', "not valid JSON"),
        ("[1, 2]", "must hold a JSON object, got list"),
        ("{}", "truncated or altered"),
    ],
)
def test_a_damaged_configuration_is_named(saved: Path, content: str, message: str) -> None:
    (saved / CONFIG).write_text(content)
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
    with pytest.raises(ValueError, match="no checkpoint: neither one of the shipped") as caught:
        LinearTransformer.from_pretrained(name)
    assert repr(name) in str(caught.value) and str(zoo.names()) in str(caught.value)


def test_saving_replaces_what_was_there(saved: Path) -> None:
    (saved / "README.md").write_text("my card")
    newer = randomize_(LinearTransformer(k=3), seed=8)
    newer.save_pretrained(saved)
    assert torch.equal(encode(LinearTransformer.from_pretrained(saved)), encode(newer))
    assert (saved / "README.md").read_text() == "my card"
    assert sorted(p.name for p in saved.iterdir()) == ["README.md", CONFIG, WEIGHTS]


def test_a_failed_save_leaves_the_old_checkpoint(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {p.name: p.read_bytes() for p in saved.iterdir()}

    def full_disk(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(tg_lpe.checkpoints.checkpoint, "write_json", full_disk)
    with pytest.raises(OSError, match="no space"):
        LinearTransformer(k=4).save_pretrained(saved)
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == before


def test_a_save_between_the_two_files_is_noticed(saved: Path, tmp_path: Path) -> None:
    # Weights are replaced first: a reader in between sees a digest that does not match, never a mixture.
    randomize_(LinearTransformer(k=4), seed=5).save_pretrained(tmp_path / "new")
    (tmp_path / "new" / WEIGHTS).replace(saved / WEIGHTS)
    with pytest.raises(ValueError, match="truncated or altered"):
        LinearTransformer.from_pretrained(saved)


def test_pushing_names_the_repository_after_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(LinearTransformer, "push_to_hub", lambda self, repo_id, **kwargs: seen.append(repo_id))
    LinearTransformer(k=2).save_pretrained(tmp_path / "my-encoder", push_to_hub=True)
    LinearTransformer(k=2).save_pretrained(tmp_path / "my-encoder", push_to_hub=True, repo_id="me/other")
    assert seen == ["my-encoder", "me/other"]


def test_digest_tells_every_weight_bit_and_every_option() -> None:
    torch.manual_seed(0)
    model = LinearTransformer(k=3)
    seen = {module_digest(model)}
    assert module_digest(copy.deepcopy(model)) in seen
    for name, tensor in model.state_dict().items():
        other = copy.deepcopy(model)
        flat = other.state_dict()[name].view(-1)
        flat.view(torch.int32)[-1] ^= 1  # the last bit of the last entry, through shared memory
        assert (flat != tensor.view(-1)).sum() == 1
        seen.add(module_digest(other))
    assert len(seen) == 1 + len(model.state_dict())
    options = [{"normalize": False}, {"num_loops": 2}, {"seed": 1}, {"update_incidence": True}]
    options += [{"degree_scaling": False}, {"diagonal": False}, {"independent_scaling": False}]
    for option in options:
        other = LinearTransformer(k=3, **option)
        other.load_state_dict(
            {
                n: v if n not in (s := model.state_dict()) or s[n].shape != v.shape else s[n]
                for n, v in other.state_dict().items()
            }
        )
        seen.add(module_digest(other))
    assert len(seen) == 1 + len(model.state_dict()) + len(options)


def test_digest_sees_buffers_and_dtypes() -> None:
    norm = nn.BatchNorm1d(2)
    before = module_digest(norm)
    norm.running_mean[0] = 1e-30
    assert module_digest(norm) != before
    linear = nn.Linear(2, 2)
    assert (
        len({module_digest(copy.deepcopy(linear).to(d)) for d in (torch.float32, torch.float64, torch.bfloat16)}) == 3
    )


def test_zoo_names_exist_and_unknown_ones_are_refused() -> None:
    for name in zoo.names():
        assert (zoo.path(name) / CONFIG).is_file() and (zoo.path(name) / WEIGHTS).is_file()
        if zoo.card(name)["class"] not in MODELS:
            load_encoder(name)
    with pytest.raises(ValueError, match="no checkpoint named 'nothing'"):
        zoo.path("nothing")


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


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    for value in (1, 2):
        write_json(tmp_path / "link.json", value)
        assert (tmp_path / "link.json").is_symlink() and read_json(tmp_path / "real.json") == value


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_only_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for call in (lambda: check_writable(tmp_path / "pipe"), lambda: write_json(tmp_path / "pipe", 1)):
        with pytest.raises(ValueError, match="pipe: it is a device or a pipe, and only files are written"):
            call()
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1


def test_another_model_s_card_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / DESCRIPTION).write_text("{}", encoding="utf-8")
    LinearTransformer(k=3).save_pretrained(tmp_path)
    assert not (tmp_path / DESCRIPTION).exists()
