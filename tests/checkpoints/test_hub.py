"""Pushed to the Hugging Face Hub and loaded from it; a folder plays the Hub."""

from __future__ import annotations

import re
import shutil
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Degrees, randomize_
from huggingface_hub import ModelCard
from huggingface_hub.utils import EntryNotFoundError
from torch import nn
from torch_geometric.data import Data

import tg_lpe.checkpoints.checkpoint
from tg_lpe import AddPositionalEncoding, GramTransformer, GraphTransformer, LinearTransformer, zoo
from tg_lpe.checkpoints.checkpoint import CONFIG, load, module_digest
from tg_lpe.checkpoints.registry import CLASSES
from tg_lpe.encoders import ENCODERS, load_encoder

EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 4, 2]])


class TableOfDegrees(Degrees):
    """A user's own encoder, with a weight."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__(scale)
        self.offset = nn.Parameter(torch.randn(3))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the Hub: ``OWNER/NAME/REVISION/FILE``."""
    folder = tmp_path / "hub"

    class Api:
        def __init__(self, token: str | None = None) -> None:
            pass

        def create_repo(self, repo_id: str, **_: object) -> types.SimpleNamespace:
            return types.SimpleNamespace(repo_id=repo_id if "/" in repo_id else f"me/{repo_id}")

        def upload_folder(self, *, repo_id: str, folder_path: Path, revision: str | None, **_: object) -> str:
            shutil.copytree(folder_path, folder / repo_id / (revision or "main"))
            return f"https://huggingface.co/{repo_id}/commit/0"

    def download(
        repo_id: str, filename: str, *, revision: str | None = None, token: str | None = None, cache_dir: str = ""
    ) -> str:
        there, downloaded = (root / repo_id / (revision or "main") / filename for root in (folder, tmp_path / "cache"))
        if not there.parent.exists():
            raise OSError(f"404 Client Error.\n\nRepository Not Found: {repo_id}")
        if not there.exists():
            raise EntryNotFoundError(f"404 Client Error.\n\nEntry Not Found: {filename}")
        downloaded.parent.mkdir(parents=True, exist_ok=True)
        return str(shutil.copy(there, downloaded))

    for registry in (ENCODERS, CLASSES):  # for this test alone
        monkeypatch.setitem(registry, "TableOfDegrees", TableOfDegrees)
    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    monkeypatch.setattr(tg_lpe.checkpoints.checkpoint, "hf_hub_download", download)
    return folder


small = partial(GraphTransformer, hidden_channels=8, heads=2, num_layers=1)
MODULES: dict[str, Callable[[], nn.Module]] = {
    **ENCODERS,
    "LaplacianEigenvectors": partial(ENCODERS["LaplacianEigenvectors"], k=3),
    "ResistiveEmbedding": partial(ENCODERS["ResistiveEmbedding"], k=3),
    "Whitened": lambda: ENCODERS["Whitened"]().fit([Data(edge_index=EDGES, num_nodes=5)]),
    "own encoder": partial(TableOfDegrees, 2.0),
    "model": partial(small, num_node_types=3, pe_channels=2),
    "model with an encoder": lambda: small(encoder=GramTransformer()),
    "model with an own encoder": lambda: small(encoder=TableOfDegrees(2.0)),
}


@pytest.mark.parametrize("name", MODULES)
def test_pushed_and_loaded_as_its_card_says(name: str, hub: Path) -> None:
    module = randomize_(MODULES[name]())
    address = module.push_to_hub("someone/checkpoint")
    assert address == "https://huggingface.co/someone/checkpoint/commit/0"
    files = sorted(path.name for path in (hub / "someone" / "checkpoint" / "main").iterdir())
    assert files == ["README.md", CONFIG, "model.safetensors"]
    for loaded in (type(module).from_pretrained("someone/checkpoint"), load("someone/checkpoint")):
        assert type(loaded) is type(module) and not loaded.training
        assert module_digest(loaded) == module_digest(module)
    if type(module).__name__ in ENCODERS:
        edges = {"edge_attr_name": "edge_pe"} if module.edge_out_channels else {}
        transform = AddPositionalEncoding.from_pretrained("someone/checkpoint", **edges)
        assert repr(transform) == repr(AddPositionalEncoding(load_encoder("someone/checkpoint"), **edges))
    card = ModelCard.load(hub / "someone" / "checkpoint" / "main" / "README.md")
    assert card.data.library_name == "tg_lpe" and "pytorch-geometric" in card.data.tags
    (usage,) = re.findall(r"```python\n(.*?)```", card.text, flags=re.S)
    names: dict[str, Any] = {}
    exec(usage.replace("OWNER/NAME", "someone/checkpoint"), names)
    assert module_digest(names["module"]) == module_digest(module)


def test_names_and_branches(hub: Path, tmp_path: Path) -> None:
    first, second = (randomize_(LinearTransformer(k=2), seed=seed) for seed in (0, 1))
    first.push_to_hub("walks")
    second.push_to_hub("walks", branch="next")
    for revision, module in ((None, first), ("main", first), ("next", second)):
        options = {} if revision is None else {"revision": revision}
        for loaded in (LinearTransformer.from_pretrained("me/walks", **options), load("me/walks", **options)):
            assert module_digest(loaded) == module_digest(module)
    first.save_pretrained(tmp_path / "local", push_to_hub=True, repo_id="someone/else")
    for card in (tmp_path / "local" / "README.md", hub / "someone" / "else" / "main" / "README.md"):
        assert 'load("OWNER/NAME")' in card.read_text()
    with pytest.raises(TypeError, match="resume="):
        load("me/walks", resume=True)


def test_the_class_on_another_revision_is_read_from_there(hub: Path) -> None:
    LinearTransformer(k=2).push_to_hub("me/mixed")
    GramTransformer().push_to_hub("me/mixed", branch="gram")
    assert isinstance(load("me/mixed", revision="gram"), GramTransformer)


def test_a_model_with_its_card_predicts_molecules(hub: Path) -> None:
    pytest.importorskip("rdkit")
    molecules, expected = ["CCO", "c1ccccc1"], zoo.load("transformer-zinc")
    expected.save(hub / "someone" / "zinc" / "main")
    got = zoo.load("someone/zinc").predict(molecules)
    assert got.columns == expected.columns and torch.equal(got.values, expected.predict(molecules).values)


def test_a_mistyped_name_is_answered_here_or_with_what_the_hub_says(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small(num_node_types=3).save_pretrained(tmp_path / "runs" / "zinc-s0")
    for load_it in (load, zoo.load):
        with pytest.raises(ValueError, match=r"'runs/zink-s0' is no checkpoint: it must be"):
            load_it("runs/zink-s0")
        with pytest.raises(ValueError, match=r"'nobody/nothing' is no .* the Hub says: 404 Client Error"):
            load_it("nobody/nothing")
    LinearTransformer(k=2).push_to_hub("me/half")
    (hub / "me" / "half" / "main" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"Entry Not Found: model\.safetensors"):
        load("me/half")


def test_nothing_is_pushed_that_could_not_be_loaded(hub: Path) -> None:
    with pytest.raises(TypeError, match="a configuration holds numbers, strings"):
        Degrees(scale=torch.ones(1)).push_to_hub("me/tensor")
    assert not hub.exists()
