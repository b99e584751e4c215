"""Promises of SECURITY.md: nothing is unpickled; files cannot name paths, exhaust memory or put code into pages."""

from __future__ import annotations

import ast
import io
import json
import pickle
import re
import resource
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pages import ROOT

import tg_lpe
from tg_lpe import GramTransformer, GraphTransformer, zoo
from tg_lpe.app.cli import main
from tg_lpe.app.datasets.nodes import load_node_graph
from tg_lpe.app.report import write_report
from tg_lpe.app.training.state import read_metrics
from tg_lpe.checkpoints import checkpoint as checkpoints
from tg_lpe.checkpoints.files import MAX_JSON, load_tensors, read_json, save_tensors
from tg_lpe.encoders import load_encoder

PACKAGE = Path(tg_lpe.__file__).parent
SCRIPT = "<script>alert(1)</script>"

UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
RUNNERS = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen"}


@pytest.fixture
def nothing_is_unpickled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    yield


def dangers(source: str) -> list[str]:
    """Find imports that unpickle, and calls that execute the content of a file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [name for name in names if name.partition(".")[0] in UNPICKLERS]
        elif isinstance(node, ast.Call):
            name, keywords = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
            unpickles = name in ("np.load", "numpy.load") and keywords.get("allow_pickle") != "False"
            unpickles |= name == "torch.load" and keywords.get("weights_only") != "True"
            if name in RUNNERS or unpickles or keywords.get("shell") == "True":
                found.append(name)
    return found


def test_the_source_has_nothing_that_unpickles_or_runs_files() -> None:
    imports = ("import pickle", "from dill import load")
    for source in (*imports, "np.load(f)", "torch.load(f)", "run(c, shell=True)", "eval(x)"):
        assert dangers(source), source
    assert dangers("model.eval(); np.load(f, allow_pickle=False); torch.load(f, weights_only=True)") == []
    found = {str(path.relative_to(PACKAGE)): dangers(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    assert {name: names for name, names in found.items() if names} == {}


def test_workflows_pin_actions_by_commit() -> None:
    workflows = "\n".join(path.read_text("utf-8") for path in (ROOT / ".github").rglob("*.yml"))
    uses = re.findall("uses: .*", workflows)
    assert uses and [line for line in uses if not re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on molecules whose target is named by a script, one SMILES of which is a script."""
    pytest.importorskip("rdkit")
    folder = tmp_path_factory.mktemp("run")
    lines = ["smiles," + SCRIPT] + [f"{'C' * (n % 9 + 1)}O,{n}" for n in range(40)] + [f"C{SCRIPT},1"]
    (folder / f"{SCRIPT.replace('/', '')}.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder


def test_every_path_from_data_to_report_unpickles_nothing(run_folder: Path, nothing_is_unpickled: None) -> None:
    (source,), out = run_folder.glob("*.csv"), run_folder / "run"
    train = ["train", str(source), "--target", SCRIPT, "--task", "regression", "--cache", str(run_folder / "cache")]
    train += ["--out", str(out), "--encoder.num_layers", "2", *TRAINING.split()]
    assert main(train) == 0
    (out / "result.json").unlink()  # as if it had been stopped
    assert main([*train, "--resume"]) == 0
    (run_folder / "in.smi").write_text("CCO\nCO\n")
    assert main(["predict", str(out), str(run_folder / "in.smi"), str(run_folder / "out.csv"), "--quiet"]) == 0
    tensors = str(run_folder / "out.safetensors")
    assert main(["encode", str(run_folder / "in.smi"), tensors, "--pretrained", "gram-k8", "--quiet"]) == 0
    predictor = zoo.load("transformer-zinc")
    predictor.save(run_folder / "saved")
    assert torch.equal(zoo.load(run_folder / "saved").predict(["CCO"]).values, predictor.predict(["CCO"]).values)

    page = write_report([out], run_folder / "report.html").read_text(encoding="utf-8")
    assert "alert(1)" in page and SCRIPT not in page and SCRIPT.replace("/", "") not in page
    assert page.count("<script") == page.count("</script>") == 0


@pytest.mark.parametrize(
    "name",
    ["..", "../gram-k8", "gram-k8/../gram-k16", "../../etc/passwd", "/etc", "a/..", "a/../../b", "C:\\x", "a\0b", ""],
)
def test_names_that_are_paths_are_refused(name: str) -> None:
    for ask in (zoo.path, zoo.card, zoo.load, load_encoder, GramTransformer.from_pretrained):
        with pytest.raises(ValueError):
            ask(name)


def checkpoint(folder: Path, **changes: Any) -> Path:
    """A checkpoint of a graph transformer whose configuration has been changed, with a digest that fits."""
    GraphTransformer(num_node_types=3, hidden_channels=8, heads=2, num_layers=1).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    config.pop(checkpoints.DIGEST)
    config[checkpoints.DIGEST] = checkpoints._digest(config, (folder / checkpoints.WEIGHTS).read_bytes())
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_channels": 20_000}, "size mismatch"),
        ({"num_node_types": 2**28}, "size mismatch"),
        ({"num_node_types": 2**62}, "numbers of node types"),
        ({"num_layers": 10**9}, "num_layers must be an integer from 1 to 1,000"),
    ],
)
def test_a_configuration_cannot_ask_for_memory(tmp_path: Path, changes: dict[str, int], said: str) -> None:
    folder = checkpoint(tmp_path / "model", **changes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=said):
        GraphTransformer.from_pretrained(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024  # in KiB


HEADERS = {
    "a header longer than the file": struct.pack("<Q", 2**62) + b"{}",
    "no header": b"\0" * 4,
    "a shape of 2**40": b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}',
    "a shape that overflows": b'{"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,4]}}',
    "offsets beyond the end": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4096,4100]}}',
    "a nested header": b'{"a":' + b"[" * 100_000,
}


@pytest.mark.parametrize("what", HEADERS)
def test_absurd_headers_of_tensors_are_refused(tmp_path: Path, what: str) -> None:
    content = HEADERS[what]
    if content.startswith(b"{"):
        content = struct.pack("<Q", len(content)) + content + b"\0" * 4
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        load_tensors(tmp_path / "x.safetensors")


def test_json_bombs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[" * 200_000 + "]" * 200_000)
    (tmp_path / "model.safetensors").write_bytes(b"")
    for ask, place in ((read_json, path), (load_encoder, tmp_path), (zoo.load, tmp_path)):
        with pytest.raises(ValueError, match="nested too deeply"):
            ask(place)
    with path.open("wb") as file:
        file.truncate(MAX_JSON + 1)
    with pytest.raises(ValueError, match="limit"):
        read_json(path)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"epoch": 1}\n' + "[" * 200_000 + "\n")
    assert read_metrics(metrics) == [{"epoch": 1}]
    metrics.write_bytes(b"\xff\xfe")
    assert read_metrics(metrics) == []
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "x.safetensors", {"json": "[" * 200_000})
    with pytest.raises(ValueError, match="nested too deeply"):
        load_tensors(tmp_path / "x.safetensors")
    save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(1)}, {"b": [1]})
    assert load_tensors(tmp_path / "x.safetensors")[1] == {"b": [1]}


def npz(path: Path, **changes: Any) -> Path:
    arrays = {"edge_index": [[0], [1]], "x_indptr": [0, 1, 1], "x_indices": [0], "x_shape": [2, 3], "y": [0, 1]}
    np.savez(path, **{**arrays, **changes})
    return path


def test_archives_cannot_ask_for_memory_or_unpickle(tmp_path: Path, nothing_is_unpickled: None) -> None:
    assert load_node_graph(npz(tmp_path / "a.npz")).num_nodes == 2
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**56,)})
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("y.npy", header.getvalue())
    for file, named in (
        (npz(tmp_path / "large.npz", x_shape=[2, 2**40]), "x must have at most"),
        (npz(tmp_path / "object.npz", y=np.array([{"a": 1}], dtype=object)), r"object\.npz"),
        (tmp_path / "b.npz", r"b\.npz"),
    ):
        with pytest.raises(ValueError, match=named):
            load_node_graph(file)


TRAINING = "--epochs 1 --quiet --threads 1 --model.hidden_channels 8 --model.heads 2 --model.num_layers 1"
WRITERS = {
    "train": f"train in.csv --target y --cache ours --out ours {TRAINING}",
    "pretrain": "pretrain in.csv --out ours --epochs 1 --quiet --encoder LinearTransformer --eigenvectors 3",
    "compare": f"compare in.csv --target y --out ours --seeds 0 --encodings none {TRAINING}",
    "encode": "encode in.parquet ours --rows_per_shard 20 --quiet",
}


@pytest.fixture
def molecules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rdkit")
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    smiles = [f"{'C' * (n % 9 + 1)}O" for n in range(40)]
    Path("in.csv").write_text("\n".join(["smiles,y", *(f"{text},{n}.5" for n, text in enumerate(smiles))]))
    parquet.write_table(arrow.table({"smiles": smiles}), "in.parquet")


def identities(folder: Path) -> dict[Path, tuple[int, int, int]]:
    files = [(path, path.stat()) for path in folder.rglob("*")]
    return {path: (about.st_ino, about.st_mtime_ns, about.st_size) for path, about in files}


@pytest.mark.usefixtures("molecules")
@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("content", ["as it was", "anything"])
def test_nothing_is_written_through_links(tmp_path: Path, command: str, content: str) -> None:
    words = WRITERS[command].split()
    assert main(words) == 0
    for path in [path for path in Path("ours").rglob("*") if path.is_file()]:
        outside = tmp_path / "outside" / path
        outside.parent.mkdir(parents=True, exist_ok=True)
        path.rename(outside)
        if content == "anything" and path.name != "config.json":
            outside.write_bytes(b"precious")
        if path.name != "result.json":  # as if it had been stopped
            path.symlink_to(outside)
    before = identities(tmp_path / "outside")
    again = [*words, *["--resume"] * (command in ("train", "pretrain"))]
    for _ in range(2):
        main(again)
        assert identities(tmp_path / "outside") == before
        for lock in Path("ours").rglob(".lock"):  # the first run is refused for it
            lock.unlink()
    assert content == "anything" or main(again) == 0


@pytest.mark.usefixtures("molecules")
@pytest.mark.parametrize(
    ("command", "folder"),
    [("pretrain", "encoder"), ("compare", "none-s0"), ("train --seeds 0", "s0"), ("train --folds 2", "fold0")],
)
def test_folders_of_a_run_are_no_links(tmp_path: Path, command: str, folder: str) -> None:
    (tmp_path / "outside" / ".saving-12345678").mkdir(parents=True)
    Path("ours").mkdir()
    Path("ours", folder).symlink_to(tmp_path / "outside")
    first, *others = command.split()
    assert main([*WRITERS[first].split(), *others]) == 1
    assert len(list((tmp_path / "outside").rglob("*"))) == 1


@pytest.mark.usefixtures("molecules")
@pytest.mark.parametrize(
    "command", ["encode in.csv OUT.safetensors", "encode in.csv OUT.pt", "predict transformer-zinc in.csv OUT.csv"]
)
def test_a_chosen_file_may_be_a_link(command: str) -> None:
    *words, out = command.split()
    Path(out).symlink_to("real")
    assert main([*words, out, "--quiet"]) == 0
    assert Path(out).is_symlink() and Path("real").stat().st_size
