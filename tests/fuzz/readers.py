"""Make the functions that read files."""

from __future__ import annotations

import json
import lzma
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fuzz.targets import Output

from tg_lpe import GramTransformer, GraphTransformer
from tg_lpe.app.molecules import AtomVocabulary, load_molecules
from tg_lpe.app.molecules import _cache as molecule_cache
from tg_lpe.app.molecules.load import read_molecules
from tg_lpe.app.prediction import load as load_predictor
from tg_lpe.app.prediction import predict_file
from tg_lpe.app.report.runs import read_run
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.state import read_metrics
from tg_lpe.checkpoints.checkpoint import CONFIG, DIGEST, WEIGHTS, Checkpoint, _digest, load
from tg_lpe.checkpoints.files import load_tensors, read_json, save_tensors, write_json
from tg_lpe.encoders import load_encoder

MOLECULES = ("CCO", "c1ccccc1", "CC(=O)O", "CCN", "C1CC1", "CO", "CCC", "CN", "CC", "C", "OCC", "NCC")


class Reader(NamedTuple):
    """A function that reads a file."""

    name: str
    prepare: Callable[[Path, bytes, int], Path]
    """Puts the content into a folder, with what belongs beside it; returns what is read. Told the seed too."""
    read: Callable[[Path], list[Output]]


def as_file(name: str) -> Callable[[Path, bytes, int], Path]:
    def prepare(folder: Path, content: bytes, seed: int) -> Path:
        (folder / name).write_bytes(lzma.compress(content, preset=0) if name.endswith(".xz") and seed % 2 else content)
        return folder / name

    return prepare


def as_part(name: str, whole: Callable[[], dict[str, bytes]], seal: bool = False) -> Callable[[Path, bytes, int], Path]:
    """The content in place of one file of a folder; with ``seal``, often with the digest that it should have."""

    def prepare(folder: Path, content: bytes, seed: int) -> Path:
        target = folder / "folder"
        for part, valid in {**whole(), name: content}.items():
            (target / part).parent.mkdir(parents=True, exist_ok=True)
            (target / part).write_bytes(valid)
        if seal and seed % 4:
            try:
                config = json.loads((target / CONFIG).read_bytes())
                config.pop(DIGEST, None)
                write_json(target / CONFIG, {**config, DIGEST: _digest(config, (target / WEIGHTS).read_bytes())})
            except (ValueError, TypeError, AttributeError, RecursionError):
                pass
        return target

    return prepare


def nothing(read: Callable[[Path], Any]) -> Callable[[Path], list[Output]]:
    """A reader whose answer has no form to check."""

    def run(path: Path) -> list[Output]:
        read(path)
        return []

    return run


def _molecules(path: Path) -> list[Output]:
    dataset = read_molecules(path, num_workers=0, progress=False)[0]
    return [Output(dataset._data.x, (None, 1), torch.int64), Output(dataset._data.edge_index, (2, None), torch.int64)]


def _splits(path: Path) -> list[Output]:
    splits = load_molecules(
        path, computed="penalised_logp", cache_dir=path.parent / "cache", num_workers=0, progress=False
    )
    return [Output(splits.train._data.y, (None,), torch.float32)]


def _encode(path: Path) -> list[Output]:
    encoder = load_encoder(path)
    edges = torch.tensor([[0, 1], [1, 2]])
    found = encoder(torch.zeros(3, dtype=torch.int64), edges, torch.zeros(2, dtype=torch.int64), num_nodes=3)
    return [Output(found.node, (3, encoder.out_channels), found.node.dtype)]


def _resume(path: Path) -> None:
    folder = RunFolder(path)
    try:
        folder.start("train", {"loop": {}}, resume=True)
        folder.load_state()
    finally:
        folder.release()


def _predict(path: Path) -> None:
    predict_file(_predictor(), path, path.parent / "out" / "out.csv", progress=False)


@cache
def _predictor() -> Any:
    return load_predictor("transformer-zinc")


@cache
def _checkpoint() -> dict[str, bytes]:
    torch.manual_seed(0)
    return _saved(
        lambda folder: GramTransformer(4, num_filters=2, num_layers=3, num_node_types=4).save_pretrained(folder)
    )


@cache
def _model() -> dict[str, bytes]:
    torch.manual_seed(0)
    encoder = GramTransformer(4, num_filters=2, num_layers=3)
    model = GraphTransformer(4, encoder=encoder, hidden_channels=8, heads=2, num_layers=1)
    return _saved(model.save_pretrained)


@cache
def _run_folder() -> dict[str, bytes]:
    def write(path: Path) -> None:
        folder = RunFolder(path)
        config = {"layout": 2, "command": "train", "loop": {"epochs": 2}, "data": {"source": "x"}}
        config |= {
            "model": {"class": "GraphTransformer"},
            "encoder": {"class": "RandomWalk"},
            "task": {"metric": "mae"},
        }
        write_json(folder.config, config)
        write_json(folder.environment, {"packages": {}})
        write_json(folder.result, {"test_mae": 0.5, "epochs": 2})
        folder.metrics.write_text('{"epoch": 1, "val_mae": 0.5}\n{"epoch": 2, "val_mae": 0.4}\n')
        save_tensors(folder.state, {"a": torch.ones(2, 2)}, {"epoch": 1})

    return _saved(write)


@cache
def _cache_file() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "molecules.smi")
        path.write_text("\n".join(MOLECULES))
        load_molecules(path, computed="penalised_logp", cache_dir=Path(name, "cache"), num_workers=0, progress=False)
        return next(Path(name, "cache").glob("*.safetensors")).read_bytes()


def _saved(write: Callable[[Path], Any]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "folder")
        folder.mkdir()
        write(folder)
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def all_readers() -> tuple[list[Reader], Sequence[bytes]]:
    """Every reader, and well-formed files of all formats."""
    readers = [
        *(
            Reader(f"read_molecules {suffix}", as_file(f"a{suffix}"), _molecules)
            for suffix in (".smi", ".csv", ".csv.xz", ".smi.xz", ".txt", ".sdf", ".tsv.zip")
        ),
        *(Reader(f"load_molecules {suffix}", as_file(f"a{suffix}"), _splits) for suffix in (".smi", ".csv")),
        *(Reader(f"predict_file {suffix}", as_file(f"a{suffix}"), nothing(_predict)) for suffix in (".smi", ".csv.xz")),
        Reader("AtomVocabulary.from_file", as_file("atom_dict.txt"), nothing(AtomVocabulary.from_file)),
        Reader("cached molecules", as_file("a.safetensors"), nothing(molecule_cache.load)),
        Reader("load_tensors", as_file("a.safetensors"), nothing(load_tensors)),
        Reader("read_json", as_file("a.json"), nothing(read_json)),
        Reader("read_metrics", as_file("metrics.jsonl"), nothing(read_metrics)),
        Reader("encoder, config.json", as_part(CONFIG, _checkpoint, seal=True), _encode),
        Reader("encoder, model.safetensors", as_part(WEIGHTS, _checkpoint, seal=True), _encode),
        Reader("model, config.json", as_part(CONFIG, _model, seal=True), nothing(load)),
        Reader("model, model.safetensors", as_part(WEIGHTS, _model, seal=True), nothing(load)),
        Reader("Checkpoint", as_part(CONFIG, _model), nothing(Checkpoint.open)),
    ]
    for name in ("config.json", "metrics.jsonl", "result.json", "environment.json", "state.safetensors"):
        readers.append(Reader(f"read_run, {name}", as_part(name, _run_folder), nothing(read_run)))
    for name in ("config.json", "state.safetensors"):
        readers.append(Reader(f"RunFolder, {name}", as_part(name, _run_folder), nothing(_resume)))
    valid = [
        *(content for whole in (_checkpoint(), _model(), _run_folder()) for content in whole.values()),
        _cache_file(),
        lzma.compress("\n".join(("smiles", *MOLECULES)).encode()),
        "\n".join(("smiles,y", *(f"{smiles},{i}" for i, smiles in enumerate(MOLECULES)))).encode(),
    ]
    return readers, valid
