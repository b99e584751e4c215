"""The command line: help, error messages of one line, and the files that it writes."""

from __future__ import annotations

import csv
import inspect
import io
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers import randomize_, unparsed
from pages import ROOT
from safetensors.torch import load_file

from tg_lpe import GramTransformer, LinearTransformer, LinearTransformerPE, __version__, zoo
from tg_lpe.app.cli import main, parse, short_warnings
from tg_lpe.app.molecules import read_molecules
from tg_lpe.app.training.config import TrainConfig
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.checkpoints.files import load_tensors
from tg_lpe.data import DataSpec
from tg_lpe.encoders import ENCODERS, RandomWalk, load_encoder, register

pytestmark = pytest.mark.usefixtures("threads")

COMMANDS = ("train", "compare", "pretrain", "encode", "predict", "report")
TINY = ["--epochs", "1", "--model.hidden_channels", "8", "--model.heads", "2", "--model.num_layers", "1", "--quiet"]
LINES = ["CCO ethanol", "c1ccccc1", "C1CC(", "CC(=O)O acid", "N"]


@pytest.fixture
def encoder(tmp_path: Path) -> str:
    randomize_(LinearTransformer(k=4)).save_pretrained(tmp_path / "encoder")
    return str(tmp_path / "encoder")


@pytest.fixture
def input_file(tmp_path: Path) -> str:
    (tmp_path / "in.smi").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return str(tmp_path / "in.smi")


def small_folder(path: Path) -> Path:
    path.mkdir()
    molecules = [f"{'C' * n}{end}" for n in range(2, 8) for end in ("O", "N", "C(=O)O")]
    for name, part in {"train": molecules[:12], "val": molecules[12:15], "test": molecules[15:]}.items():
        (path / f"{name}.smi").write_text("\n".join(part) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def train(tmp_path: Path) -> list[str]:
    """A training of an epoch on a few molecules."""
    data = small_folder(tmp_path / "molecules")
    return [
        "train",
        str(data),
        "--computed",
        "penalised_logp",
        "--cache",
        str(tmp_path / "cache"),
        "--threads",
        "1",
        *TINY,
    ]


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """The one-line error message."""
    capsys.readouterr()
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith(f"tg-lpe {command[0]}: "), err
    return err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], []):
        assert main(words) == 0
        text = capsys.readouterr().out
        assert "usage: tg-lpe" in text and all(f"\n  {command}" in text for command in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tg-lpe {__version__}\n"
    assert main(["tran", "nci"]) == 2
    assert "COMMAND must be one of train, compare" in capsys.readouterr().err


def test_help_needs_neither_torch_nor_pyg() -> None:
    """Help must be instant; ``python -X importtime`` shows slow imports."""
    run = "import sys, tg_lpe.app.cli as c; c.main(['--help']); print({'torch', 'torch_geometric'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def test_the_reader_of_the_output_has_enough() -> None:
    """As with head: no message, and none of Python's when it ends."""
    run = f'set -o pipefail; "{sys.executable}" -m tg_lpe.app.cli --help | true'
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(["bash", "-c", run], capture_output=True, text=True, env={**os.environ, **path}, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (1, "")


def test_characters_that_a_terminal_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("tg_lpe.app.cli.zoo.run", lambda args: print("0.35 ± 0.01"))
    assert main(["zoo"]) == 0 and out.buffer.getvalue() == b"0.35 \\xb1 0.01\n"  # type: ignore[attr-defined]


def no_threads() -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda: torch.empty(2**55), "allocate memory"),
        (lambda: np.empty(2**59, np.int8), "Unable to allocate"),
        (no_threads, "can't start new thread"),
    ],
)
def test_too_little_memory(
    run: Callable[[], object], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tg_lpe.app.cli.zoo.run", lambda args: run())
    assert said in refused(capsys, "zoo")


@pytest.mark.parametrize("command", [*COMMANDS, "zoo"])
def test_help_of_every_command(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0 and f"usage: tg-lpe {command}" in text
    assert ("--out" in text) == (command not in ("encode", "predict", "zoo"))
    assert "default: null" not in text, "an option without a default says what its absence means"
    assert "`" not in text and not re.search(r":(class|func|meth|mod):", text)
    if command == "train":
        assert re.search(r'^ +- "spectral": ', text, re.MULTILINE), "each item of a list starts a line"
    if command == "zoo":
        return
    with pytest.raises(SystemExit) as stopped:
        main([command])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and "required: " in error and f"{command}." not in error, error


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("train zinc", "--data DIR"),
        ("train zinc --data nowhere", "nowhere"),
        ("pretrain nowhere", "existing file or folder"),
        ("train nci --threads 0", "--threads"),
        ("train nci --device plane", "--device plane"),
        ("train nci --epochs 0", "epochs"),
        ("train qm9", "--data DIR"),
        ("train qm9 --data .", "--target gap"),
        ("train qm9 --data . --target gapp", "--target gapp"),
        ("train graphs.pt", "supported are .smi"),
        ("train mine.csv --data .", "--data . would have no effect with mine.csv"),
        ("train nci --data .", "--data . would have no effect with nci"),
        ("pretrain nci --read_features", "--read_features would have no effect with eigenvectors"),
        ("pretrain nci --kernels heat --eigenvectors 3", "--eigenvectors 3 would have no effect with --kernels"),
        ("pretrain nci --encoder none", "--encoder none has nothing to pretrain"),
        ("train nci --encoder none --edge_encoding false", "--edge_encoding false would have no effect with --encoder"),
        ("train pattern --features ogb", "--features ogb would have no effect with pattern; it is for molecules"),
        ("train graph.npz --graphs 9", "--graphs 9 would have no effect with graph.npz; it is for molecules"),
        ("train pattern --canonical false", "--canonical False would have no effect with pattern"),
        ("encode in.smi out.pt --rows_per_shard 0", "--rows_per_shard 0 would have no effect with in.smi"),
        ("train pattern --directed", "--directed would have no effect with pattern; it is for .npz files"),
        ("train nci --graphs 0", "--graphs must be 1 to "),
        ("train pattern --split random", "--split random would have no effect with pattern"),
        ("train absent.npz", "there is no file absent.npz"),
        ("train graph.npz --target size", "--target size would have no effect with graph.npz"),
        pytest.param("pretrain nci --device cuda", "--device cuda", marks=WITHOUT_GPU),
    ],
)
def test_refusals_in_one_line(
    command: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("graphs.pt").touch()
    Path("mine.csv").write_text("smiles,y\nCC,1.5\n", encoding="utf-8")
    assert named in refused(capsys, *command.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graphs.pt", "mine.csv"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("train nci --encoder none --encoder.k 3", "arguments: --encoder.k 3"),
        ("train nci --encoder RandomWalk --encoder.num_node_types 9", "arguments: --encoder.num_node_types 9"),
        ("train nci --encoder RandomWalk --encoder.steps few", "encoder.steps"),
        ("train nci --task multilabel --task.num_targets 3", "arguments: --task.num_targets 3"),
        ("train nci --encoder heat-k8", "heat-k8 is a checkpoint: use --pretrained heat-k8"),
        ("train nci --encoder my.Walk", "--encoder my.Walk cannot be imported: No module named 'my'"),
        ("train nci --task clustering", "--task must be one of regression, multilabel, binary, multiclass"),
        ("train nci --seeds 0,1", "Got value: 0,1"),
        ("train nci --mdel.num_layers 3", "arguments: --mdel.num_layers 3; did you mean --model.num_layers?"),
        ("train nci --epoch 3", "unrecognized arguments: --epoch 3; did you mean --epochs?"),
        ("train nci --preset san", "--preset san is for zinc12k, pattern, cluster, molhiv, got nci"),
        ("pretrain zinc12k --preset san", "--preset san is for training, got pretrain"),
        ("pretrain nci --preset paper --kernels heat", "pretrains on eigenvectors, so --kernels must not be given"),
        ("train nci --patience 9", "--patience would have no effect with --schedule one-cycle: --schedule plateau"),
        ("train zinc12k --preset san --warmup 0.2", "--warmup would have no effect with --schedule plateau"),
        ("train --target logp mine.csv", "required: source"),
        ("train nci --encoder GramTransformer --pretrained gram-k8", "--encoder and --pretrained exclude each other"),
        ("train nci --start san-zinc12k --preset paper", "--start and --preset exclude each other"),
        ("train nci --start nowhere", "'nowhere' is no checkpoint"),
        ("train nci --encoder RandomWlk", "did you mean RandomWalk?"),
        ("pretrain nci --encoder.num_filters 3", "arguments: --encoder.num_filters 3"),
        ("pretrain nci --encoder GramTransformer --encoder.out_channels 3", "--encoder.out_channels 3"),
    ],
)
def test_arguments_that_do_not_parse(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(command.split())
    name, error = command.split()[0], capsys.readouterr().err
    assert stopped.value.code == 2 and error.startswith(f"tg-lpe {name}: ") and said in error, error
    assert error.endswith(f"All options: tg-lpe {name} --help\n")


def test_warnings_are_a_line_without_their_place() -> None:
    usual = warnings.formatwarning
    with short_warnings():
        assert warnings.formatwarning("it is not read", UserWarning, "data.py", 9) == "it is not read\n"
    assert warnings.formatwarning is usual


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_every_encoder_lists_its_own_arguments(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Except the sizes of the data, which come from the data."""
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--encoder", name, "--help"])
    shown = capsys.readouterr().out
    sizes = set(DataSpec().to_dict())
    arguments = set(inspect.signature(ENCODERS[name]).parameters)
    assert stopped.value.code == 0 and all(f"--encoder.{argument}" in shown for argument in arguments - sizes)
    assert not any(f"--encoder.{size} " in shown for size in sizes)


def test_what_is_typed_wins_over_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever it stands: the source comes first in the usage."""
    (tmp_path / "c.yaml").write_text("source: nci\nlr: 0.5\nencoder: LaplacianEigenvectors\n", encoding="utf-8")
    config, typed = ["--config", str(tmp_path / "c.yaml")], ["pattern", "--lr", "0.25", "--encoder", "RandomWalk"]
    for words in ([*config, *typed], [*typed, *config], [typed[0], *config, *typed[1:]]):
        shown = printed_config(capsys, "train", *words)
        assert "source: pattern" in shown and "lr: 0.25" in shown and "RandomWalk" in shown and "nci" not in shown
    assert "source: nci" in printed_config(capsys, "train", *config)
    shown = printed_config(capsys, "train", *config, "--pretrained", "gram-k16")
    assert "pretrained: gram-k16" in shown and "Laplacian" not in shown
    (tmp_path / "c.yaml").write_text("source: nci\npretrained: gram-k16\n", encoding="utf-8")
    shown = printed_config(capsys, "train", *config, "--encoder", "RandomWalk")
    assert "RandomWalk" in shown and "gram-k16" not in shown


OWN_ENCODER = """
from tg_lpe.encoders import RandomWalk, register

@register
class {name}(RandomWalk):
    pass
"""


def printed_config(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--print_config"])
    printed = capsys.readouterr()
    assert stopped.value.code == 0, printed.err
    return printed.out


def test_names_in_a_configuration_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names and imports in a file work as on the command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("Walker", "Strider"):
        (tmp_path / f"house_{name}.py").write_text(OWN_ENCODER.format(name=name), encoding="utf-8")
    file = tmp_path / "run.yaml"
    file.write_text("encoder: none\ntask: binary\n", encoding="utf-8")
    shown = printed_config(capsys, "train", "nci", "--config", str(file))
    assert "encoder:\n  class: none\n" in shown and "task:\n  class: binary\n" in shown
    file.write_text("encoder: {class: RandomWalk, steps: 5}\n", encoding="utf-8")
    assert "steps: 5" in printed_config(capsys, "train", "nci", "--config", str(file))
    file.write_text("import: house_Walker\nencoder: Walker\n", encoding="utf-8")
    assert "class: Walker" in printed_config(capsys, "train", "nci", "--config", str(file))
    around = ["--encoder", "Whitened", "--encoder.encoder", "RandomWalk", "--encoder.encoder.steps", "5"]
    for words in (["--import", "house_Strider", "--encoder", "Strider"], around):
        again = printed_config(capsys, "train", "nci", *words)
        file.write_text(again, encoding="utf-8")
        assert printed_config(capsys, "train", "nci", "--config", str(file)) == again
    assert "steps: 5" in again
    assert "class: none" in printed_config(capsys, "train", "nci", "--config", str(file), "--encoder", "none")
    for text, said in {
        "encoder: Wlak": "--encoder must be one of",
        "encoder: {class: RandomWalk, k: 3}": "'encoder.k'",
        "import: nowhere_to_be_found": "No module named 'nowhere_to_be_found'",
        "encoder: [": "cannot be read as YAML",
        "epochs: many": "Got value: many",
        "preset: essay": "--preset must be one of",
    }.items():
        file.write_text(text, encoding="utf-8")
        assert said in unparsed(capsys, "train", "nci", "--config", str(file))


def test_options_inside_an_argument_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    """An explicit option keeps the preset's others, except those of another attention."""

    def model(*options: str) -> dict[str, Any]:
        return yaml.safe_load(printed_config(capsys, "train", "zinc12k", *options))["model"]

    assert model("--model.readout.pooling", "both", "--model.readout.hidden", "[8,4]")["readout"] == {
        "pooling": "both",
        "hidden": [8, 4],
    }
    given = model("--preset", "san", "--model.readout.pooling", "max", "--model.attention_options.gamma", "0.5")
    assert given["readout"] == {"hidden": "pyramid", "pooling": "max"}
    assert given["attention_options"] == {"full": True, "gamma": 0.5, "dropout": 0.0}
    assert model("--preset", "san", "--model.readout", "mlp")["readout"] == {"hidden": "mlp", "pooling": "sum"}
    assert not model("--preset", "san", "--model.attention", "hybrid").get("attention_options")
    assert "--model.readout.hidden" in unparsed(
        capsys, "train", "zinc12k", "--model.readout", "paper", "--model.readout.pooling", "max"
    )


def test_a_preset_is_a_set_of_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Defaults depend on the data and the encoder, and explicit options override them."""

    def shown(*command: str) -> dict[str, Any]:
        return yaml.safe_load(printed_config(capsys, *command))

    zinc, qm9 = (shown("train", "--preset", "paper", name) for name in ("zinc", "qm9-solubility"))
    assert (zinc["epochs"], qm9["epochs"]) == (2000, 1000) and zinc["schedule"] == "decay" and zinc["batch_size"] == 200
    assert zinc["clip_jointly"] is True
    assert zinc["model"]["pe_options"] == {"norm": "unit"} and zinc["model"]["readout"]["hidden"] == "paper"
    encoder = zinc["encoder"]
    assert encoder["class"] == "LinearTransformer" and encoder["probes"] == "learned"
    assert encoder["out_channels"] == 6 and qm9["encoder"]["out_channels"] == 3
    changes = ["--epochs", "7", "--model.heads", "4", "--encoder.k", "5"]
    given = shown("train", "qm9-solubility", "--preset", "paper", *changes)
    assert given["epochs"] == 7 and given["model"] == {**qm9["model"], "heads": 4}
    assert given["encoder"] == {**qm9["encoder"], "k": 5}
    laplacian = shown("train", "qm9-solubility", "--preset", "paper", "--encoder", "LaplacianEigenvectors")
    assert laplacian["encoder"]["k"] == 3 and laplacian["edge_encoding"] is False
    none = shown("train", "qm9-solubility", "--preset", "paper", "--encoder", "none")
    assert none["edge_encoding"] is True and none["encoder"] == {"class": "none"}
    assert not shown("train", "zinc", "--preset", "paper", "--pretrained", "gram-k8").get("encoder")
    pretrain = shown("pretrain", "qm9-solubility", "--preset", "paper", "--encoder.seed", "3")
    assert pretrain["eigenvectors"] == 3 and pretrain["batch_size"] == 400
    assert pretrain["encoder"]["update_incidence"] is True
    (tmp_path / "run.yaml").write_text("preset: paper\nencoder: LaplacianEigenvectors\nepochs: 9\n", encoding="utf-8")
    file = shown("train", "qm9-solubility", "--config", str(tmp_path / "run.yaml"))
    assert {**file, "epochs": 1000} == laplacian and file["epochs"] == 9
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(file), encoding="utf-8")
    assert shown("train", "--config", str(tmp_path / "run.yaml")) == file
    assert shown("train", "nci")["batch_size"] == TrainConfig().batch_size, "a preset leaves no trace"


def test_the_preset_of_spectral_attention(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*command: str) -> dict[str, Any]:
        return yaml.safe_load(printed_config(capsys, "train", *command, "--preset", "san"))

    zinc, pattern = shown("zinc12k"), shown("pattern", "--graphs", "50")
    assert zinc["schedule"] == "plateau" and (zinc["patience"], pattern["patience"]) == (25, 10)
    assert zinc["model"]["attention_options"] == {"full": True, "gamma": 1e-5, "dropout": 0.0}
    assert pattern["model"]["readout"] == {"hidden": "pyramid"} and pattern["graphs"] == 50
    assert pattern["model"]["pe_options"]["merge"] == "concat"
    assert zinc["encoder"]["class"] == "SpectralEncoder" and zinc["encoder"]["row_norm"]
    wide = shown("zinc12k", "--encoder.tokens", "eigenspaces")
    assert wide["encoder"] == {**zinc["encoder"], "tokens": "eigenspaces"}
    other = shown("zinc12k", "--encoder", "SpectralKernel")
    assert other["model"] == zinc["model"] and other["encoder"]["class"] == "SpectralKernel"


def test_the_preset_of_the_paper_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [str(small_folder(tmp_path / "molecules")), "--cache", str(tmp_path / "cache")]
    common += ["--preset", "paper", "--threads", "1", "--quiet", "--epochs", "1"]
    assert main(["pretrain", *common, "--out", str(tmp_path / "pretrain")]) == 0
    assert "6 eigenvectors, LinearTransformer: test loss" in capsys.readouterr().out
    start = ["--pretrained", str(tmp_path / "pretrain" / "encoder"), "--computed", "penalised_logp"]
    assert main(["train", *common, *start, "--model.hidden_channels", "16", "--out", str(tmp_path / "train")]) == 0


def test_columns_of_a_file_and_their_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    molecules = [f"{'C' * n}{end}" for n in range(2, 9) for end in ("O", "N", "C(=O)O")]
    rows = [f"{text},{len(text)}.5,{int('N' in text)},{int('=' in text)}" for text in molecules]
    (tmp_path / "own.csv").write_text("smiles,size,amine,acid\n" + "\n".join(rows) + "\n", encoding="utf-8")
    common = ["train", str(tmp_path / "own.csv"), "--cache", str(tmp_path / "cache"), "--threads", "1", "--quiet"]
    common += ["--epochs", "2", "--encoder", "none", "--model.hidden_channels", "8", "--model.num_layers", "1"]
    said = refused(capsys, *common)
    assert "'size', 'amine', 'acid'" in said and "--target amine" not in said and "targets=" not in said
    assert "--target" in said and "--computed penalised_logp" in said
    assert "nothing" in refused(capsys, *common, "--target", "nothing")
    assert "classes or values: choose --task binary or regression\n" in refused(capsys, *common, "--target", "amine")

    words = ["--target", "size", "--task", "regression", "--task.metric", "rmse", "--out", str(tmp_path / "run")]
    capsys.readouterr()
    assert main([*common, *words]) == 0 and "test RMSE" in capsys.readouterr().out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {"test_rmse", "test_mae", "val_rmse", "test_rmse_relabelled"} <= set(result)


def test_refusals_of_encoding(
    tmp_path: Path, encoder: str, input_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    missing, out, pretrained = str(tmp_path / "missing.smi"), str(tmp_path / "out.pt"), ["--pretrained", encoder]
    for words, named in (
        ([input_file, "out.npz"], "out.npz"),
        ([input_file, out, "--pretrained", "no-such-encoder"], "no-such-encoder"),
        ([input_file, out, "--encoder", "GramTransformer"], "weights"),
        ([input_file, out, "--encoder", "none"], "encodes nothing"),
        ([missing, out, *pretrained], missing),
        ([input_file, out, *pretrained, "--k", "9"], "k must lie in 1..4"),
        ([input_file, out, *pretrained, "--edges"], "edge_out_channels=0"),
    ):
        assert named in refused(capsys, "encode", *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder", "in.smi"]


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_encode(tmp_path: Path, encoder: str, input_file: str, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / f"out{suffix}"
    assert main(["encode", input_file, str(out), "--pretrained", encoder, "--k", "3", "--quiet"]) == 0
    said = capsys.readouterr()
    assert said.out == f"4 molecules, 14 atoms, 3 columns: {out}\n"
    assert "left out:" in said.err and "C1CC(" in said.err
    tensors = torch.load(out, weights_only=True) if suffix == ".pt" else load_file(out)
    if suffix == ".pt":
        types = tensors.pop("atom_types")
        assert "LinearTransformerPE(k=3" in tensors.pop("encoder")
    else:
        types = load_tensors(out)[1]["atom_types"]
    assert set(tensors) == {"linear_transformer_pe", "x", "edge_index", "node_ptr", "edge_ptr", "line"}
    assert [LINES[line - 1] for line in tensors["line"]] == [LINES[i] for i in (0, 1, 3, 4)]

    transform = LinearTransformerPE.from_pretrained(encoder, k=3)
    dataset = read_molecules(input_file, progress=False)[0]
    for number, data in enumerate(dataset):
        nodes = slice(*tensors["node_ptr"][number : number + 2].tolist())
        edges = slice(*tensors["edge_ptr"][number : number + 2].tolist())
        assert torch.equal(tensors["edge_index"][:, edges], data.edge_index)
        assert torch.equal(tensors["x"][nodes], data.x)
        expected = transform(data).linear_transformer_pe
        assert torch.allclose(tensors["linear_transformer_pe"][nodes], expected, atol=1e-5)
    assert [types[i] for i in tensors["x"][:3, 0]] == ["C", "C", "O"]


def test_encoding_edges(tmp_path: Path, input_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    encoder, out = str(tmp_path / "encoder"), str(tmp_path / "out.safetensors")
    # Bond types have the same numbers everywhere: an encoder that reads them alone needs no list of atom types.
    randomize_(GramTransformer(6, 3, num_filters=2, num_layers=3, num_edge_types=4)).save_pretrained(encoder)
    assert main(["encode", input_file, out, "--pretrained", encoder, "--edges", "--k", "2", "--quiet"]) == 0
    assert capsys.readouterr().out == f"4 molecules, 14 atoms, 2 columns, 3 for each bond: {out}\n"
    assert load_file(out)["linear_transformer_edge_pe"].size(1) == 3


@pytest.mark.parametrize("place", ["run folder", "card", "both", "zoo"])
def test_atom_types_of_a_gram_encoder(
    tmp_path: Path, input_file: str, place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The atom types come from the card of the encoder, or else from the run folder that holds it."""
    folder = tmp_path / "shipped" / "run"
    encoder, out = folder / "encoder", tmp_path / "out.pt"
    gram = randomize_(GramTransformer(4, 2, num_layers=3, num_edge_types=4, num_node_types=6))
    gram.save_pretrained(encoder)
    name = str(encoder)
    command = ["encode", input_file, str(out), "--edges", "--quiet", "--pretrained"]
    said = refused(capsys, *command, name)
    assert "reads atom types" in said and all(str(file) in said for file in (folder / "config.json", encoder / "card"))
    own = list(read_molecules(input_file, progress=False)[1].types)
    types = ["Br", *(name for name in reversed(own) if not name.startswith("N"))]  # which the pretraining had
    right, wrong = ({"data": {"atom_types": listed}} for listed in (types, own))
    if place == "run folder":
        (folder / "config.json").write_text(json.dumps({"train": {}, **right}), encoding="utf-8")
        (encoder / "card.json").write_text(json.dumps({"data": {"source": "zinc"}}), encoding="utf-8")
    else:
        (encoder / "card.json").write_text(json.dumps({"class": "GramTransformer", **right}), encoding="utf-8")
    if place == "both":
        (folder / "config.json").write_text(json.dumps({"train": {}, **wrong}), encoding="utf-8")
    if place == "zoo":
        monkeypatch.setattr("tg_lpe.checkpoints.zoo._FOLDER", folder)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps({"train": {}, **wrong}), encoding="utf-8")
        name = "encoder"
    assert main([*command, name]) == 0
    tensors = torch.load(out, weights_only=True)
    assert tensors["atom_types"] == types and tensors["line"].tolist() == [1, 2, 4], "there was no nitrogen"
    transform = LinearTransformerPE(encoder=gram, edge_attr_name="edge_pe")
    for number, data in enumerate(read_molecules(input_file, progress=False)[0][:3]):
        data.x = torch.tensor([[types.index(own[atom])] for atom in data.x[:, 0]])
        expected = transform(data)
        nodes, edges = (slice(*tensors[key][number : number + 2].tolist()) for key in ("node_ptr", "edge_ptr"))
        assert torch.allclose(tensors["linear_transformer_pe"][nodes], expected.linear_transformer_pe, atol=1e-6)
        assert torch.allclose(tensors["linear_transformer_edge_pe"][edges], expected.edge_pe, atol=1e-6)


def train_ring(tmp_path: Path, **masks: np.ndarray) -> list[Path]:
    """The run folders of two seeds, 5 and 6, on a ring of 30 nodes in two classes."""
    ring = np.array([np.arange(30), (np.arange(30) + 1) % 30])
    np.savez(tmp_path / "ring.npz", edge_index=ring, y=np.arange(30) % 2, x=np.ones((30, 1)), **masks)
    command = ["train", str(tmp_path / "ring.npz"), "--task", "multiclass", "--encoder", "none", *TINY[2:]]
    assert main([*command, "--out", str(tmp_path / "run"), "--seeds", "5", "6", "--threads", "1"]) == 0
    return [tmp_path / "run" / "s5", tmp_path / "run" / "s6"]


def test_published_splits_of_one_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = np.random.default_rng(0).permuted(np.tile(np.arange(30) % 3, (4, 1)), axis=1)
    masks = {f"{name}_mask": part == number for number, name in enumerate(("train", "val", "test"))}
    for number, run in enumerate(train_ring(tmp_path, **masks), 1):
        config = json.loads((run / "config.json").read_text())
        data, loop = config["data"], config["loop"]
        assert data["split"] == {"kind": "published", "number": number} and data["num_labelled_val"] == 10
        assert (loop["epochs"], loop["lr"]) == (300, 3e-3), "an epoch is one step"
    said = refused(capsys, "train", str(tmp_path / "ring.npz"), "--split", "random", "--task", "multiclass")
    assert "--split random would have no effect" in said and "whose split is published" in said


def test_seeds_on_one_graph_share_the_split_that_is_drawn(tmp_path: Path) -> None:
    rows = [(run / "predictions_test.csv").read_text().splitlines() for run in train_ring(tmp_path)]
    assert [line.split(",")[:2] for line in rows[0]] == [line.split(",")[:2] for line in rows[1]]


def test_directions_of_one_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first, middle and last nodes of paths of three; in both directions first and last are alike."""
    first = 3 * np.arange(40)
    edge_index = np.array([np.concatenate([first, first + 1]), np.concatenate([first + 1, first + 2])])
    np.savez(tmp_path / "paths.npz", edge_index=edge_index, y=np.arange(120) % 3)
    command = ["train", str(tmp_path / "paths.npz"), "--task", "multiclass", "--epochs", "60", "--lr", "0.01"]
    command += ["--encoder", "DirectedWalk", "--encoder.steps", "2", "--threads", "1", "--quiet"]
    command += ["--model.hidden_channels", "16", "--model.num_layers", "1", "--out", str(tmp_path / "run")]
    assert "--directed" in refused(capsys, *command)
    assert "--task" in refused(capsys, *command[:2], "--encoder", "none", "--out", str(tmp_path / "other"))
    for other in (["GramTransformer", "--encoder.direction", "0.1"], ["Whitened", "--encoder.encoder", "DirectedWalk"]):
        assert "--directed" in refused(capsys, *command[:8], "--encoder", *other, "--out", str(tmp_path / "other"))
    assert main([*command, "--directed"]) == 0, capsys.readouterr().err
    config, result = (json.loads((tmp_path / "run" / f"{name}.json").read_text()) for name in ("config", "result"))
    assert result["test_accuracy"] > 0.9 and result["test_accuracy_relabelled"] == result["test_accuracy"]
    assert config["data"]["split"] == {"kind": "random", "seed": 0}


def test_atom_types_of_a_pretrained_encoder_in_training(
    train: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training numbers atom types as the encoder's pretraining did, or says that it cannot."""
    data = Path(train[1])
    folder = RunFolder(tmp_path / "pretrained")
    encoder = str(folder.path / "encoder")
    randomize_(LinearTransformer(k=4, probes="features", num_node_types=3)).save_pretrained(encoder)
    train += ["--pretrained", encoder]
    pretrain = ["pretrain", str(data), *train[4:8], "--epochs", "1", "--pretrained", encoder, "--eigenvectors", "4"]
    assert "reads atom types" in refused(capsys, *train) and "reads atom types" in refused(capsys, *pretrain)
    types = ["N", "O", "C"]
    assert list(read_molecules(data / "train.smi", progress=False)[1].types) != types
    folder.config.write_text(json.dumps({"data": {"atom_types": types, "bond_types": ["NONE", "SINGLE"]}}))
    assert "--features types, got --features ogb" in refused(capsys, *train, "--features", "ogb")
    for number, command in enumerate((train, pretrain)):
        out = tmp_path / f"run{number}"
        assert main([*command, "--out", str(out)]) == 0
        assert json.loads((out / "config.json").read_text())["data"]["atom_types"] == types
    (data / "atom_dict.txt").write_text("C\nN\nO\n", encoding="utf-8")
    assert "N, O, C, but atom_dict.txt" in refused(capsys, *train, "--out", str(tmp_path / "other"))


def test_progress_into_a_file_is_a_line_per_epoch(
    train: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    command = [*(word for word in train if word != "--quiet"), "--encoder", "none", "--epochs", "2"]
    with caplog.at_level("INFO", logger="tg_lpe"):
        assert main([*command, "--out", str(tmp_path / "loud")]) == 0
        assert "\r" not in capsys.readouterr().err, "no bar where stderr is no terminal"
        assert [text.partition(":")[0] for text in caplog.messages if "epoch" in text] == ["epoch 1/2", "epoch 2/2"]
        caplog.clear()
        assert main([*command, "--quiet", "--out", str(tmp_path / "quiet")]) == 0
        command[1] = f"{tmp_path}/./molecules"
        assert main([*command, "--quiet", "--resume", "--out", str(tmp_path / "quiet")]) == 0, "the same path"
    assert not any("epoch" in text for text in caplog.messages)


@pytest.mark.parametrize(
    "command", [["encode", "no-such-file.smi", "OUT.pt"], ["report", "no-such-run", "--out", "OUT.html"]], ids=" ".join
)
def test_what_cannot_be_written_is_found_before_any_work(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out,) = (word for word in command if word.startswith("OUT"))
    (tmp_path / out).mkdir()
    assert f"{out}: it is a folder" in refused(capsys, *(word.replace("OUT", f"{tmp_path}/OUT") for word in command))
    (tmp_path / "file").touch()
    said = refused(capsys, *(word.replace("OUT", f"{tmp_path}/file/OUT") for word in command))
    assert f"{out}: Not a directory" in said


def test_an_error_inside_training_keeps_its_traceback(
    train: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors in input are one line; errors in the user's own code keep their traceback."""

    def wrong(*args: Any, **kwargs: Any) -> None:
        raise TypeError("from inside")

    monkeypatch.setattr(RandomWalk, "encode", wrong)
    with pytest.raises(RuntimeError, match="training with RandomWalk failed: from inside"):
        main([*train, "--encoder", "RandomWalk", "--out", str(tmp_path / "run")])


def test_options_of_a_task_that_the_source_names() -> None:
    def task(*words: str) -> dict[str, Any]:
        module, args = parse("train", words)
        return dict(module.task_arguments(args))

    assert task("molhiv", "--task.metric", "roc_auc") == {"name": "binary", "metric": "roc_auc"}
    given = task("cluster", "--task.metric", "accuracy")
    assert given == {"name": "multiclass", "balanced": True, "metric": "accuracy"}
    assert task("cluster")["metric"] == task("pattern")["metric"] == "balanced_accuracy"
    assert task("mine.csv", "--task.metric", "rmse") == {"metric": "rmse"} and task("mine.csv") == {}
    given = task("mine.csv", "--task.loss_function", "mse", "--out", "pattern", "--quiet")
    assert given == {"loss_function": "mse"}, "an option is not taken for the source"
    assert task("nci", "--task", "regression", "--task.loss_function", "mse")["mean"] is None


def test_molecules_are_read_as_the_encoder_was_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.smi").write_text("C[C]([N])C\nCC(N)C\n", encoding="utf-8")
    out = tmp_path / "out.safetensors"
    assert main(["encode", str(tmp_path / "in.smi"), str(out), "--pretrained", "transformer-qm9", "--quiet"]) == 0
    tensors, _ = load_tensors(out)
    first, second = tensors["linear_transformer_pe"].chunk(2)
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


@pytest.fixture
def labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of molecules with a class and a value, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [f"{'C' * length}{end},{length % 2},{length / 7}" for length in range(1, 15) for end in ("O", "N")]
    Path("mine.csv").write_text("smiles,class,value\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return "mine.csv"


def test_a_folder_with_the_name_of_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("RandomWalk").mkdir()
    assert parse("encode", ["in.smi", "out.pt", "--encoder", "RandomWalk"])[1].encoder["class"] == "RandomWalk"


@pytest.mark.parametrize(
    ("command", "out"),
    [
        *((command, out) for command in ("train", "pretrain") for out in ("mine.csv", "mine.csv/run")),
        *((command, "/proc/self/run") for command in ("train", "pretrain", "compare")),
    ],
)
def test_a_run_folder_that_cannot_be_written_is_refused_before_data_is_read(
    labelled: str, capsys: pytest.CaptureFixture[str], command: str, out: str
) -> None:
    said = refused(capsys, command, "missing.csv", "--out", out)
    assert (f"cannot write {out}" if out.startswith("/") else f"{out}/config.json: Not a directory") in said


def test_runs_in_place_of_encoders(labelled: str, capsys: pytest.CaptureFixture[str]) -> None:
    begin = ["pretrain", labelled, "--kernels", "heat", "--encoder", "GramTransformer", "--encoder.num_layers", "2"]
    assert main([*begin, "--epochs", "1", "--quiet", "--out", "before"]) == 0
    train = ["train", labelled, "--target", "value", *TINY]
    assert main([*train, "--pretrained", "before", "--out", "after"]) == 0
    assert json.loads(Path("after/config.json").read_text())["pretrained"] == str(Path("before/encoder"))
    assert type(load_encoder("before")) is GramTransformer
    with pytest.raises(ValueError, match="tg_lpe"):
        load_encoder("after")
    for name in ("after", "transformer-zinc12k"):
        said = refused(capsys, *train, "--pretrained", name, "--out", "third")
        assert f"--pretrained takes an encoder, but {name} is a trained model: use --start {name}" in said

    Path("after/notes.txt").write_text("", encoding="utf-8")
    Path("folder").mkdir()
    capsys.readouterr()
    assert main(["report", "before", "mine.csv", "folder", "after", "./after/", "--out", "page.html"]) == 0
    shown = capsys.readouterr()
    assert "GramTransformer from before" in shown.out and "(2)" not in shown.out, "a folder named twice is one run"
    assert shown.out.endswith("report: page.html\n") and "constant (median" in shown.out
    assert "left out: mine.csv is no run folder: it is a file" in shown.err
    assert "left out: folder is no run folder: it has no config.json" in shown.err
    assert "mine.csv" in shown.out and Path("page.html").exists()
    assert "mine.csv is no run folder: it is a file" in refused(capsys, "report", "mine.csv")
    assert "it does not exist" in refused(capsys, "report", "after", "nowhere")
    assert "--out" in refused(capsys, "report", "after", "--out", "page.csv")


@pytest.mark.parametrize("encoder", ["RandomWalk", "LaplacianEigenvectors"])
@pytest.mark.parametrize("target", [["--kernels", "heat"], ["--eigenvectors", "4"]])
def test_nothing_to_pretrain(
    labelled: str, capsys: pytest.CaptureFixture[str], encoder: str, target: list[str]
) -> None:
    main(["pretrain", labelled, *target, "--encoder", encoder, "--quiet", "--out", "before"])
    assert re.search(f"{encoder} (has no parameters to learn|cannot be pretrained)", capsys.readouterr().err)


def test_training_again_into_one_folder(labelled: str, capsys: pytest.CaptureFixture[str]) -> None:
    """After a failure in the first epoch the corrected command works; after a success another folder is asked for."""
    train = ["train", labelled, "--target", "value", *TINY, "--out", "run", "--encoder", "none"]
    assert main([*train, "--lr", "1e30", "--clip", "1e30", "--precision", "float32"]) == 1
    assert "training diverged in epoch 1" in capsys.readouterr().err
    assert main(train) == 0
    capsys.readouterr()
    main(train)
    assert "--resume continues it, another --out starts a new one" in capsys.readouterr().err


def test_options_beside_a_printed_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which holds ``encoder: null`` and ``task: null``; a preset in a file chooses the class as a typed one does."""

    def printed(*words: str) -> str:
        return printed_config(capsys, "train", "nci", *words)

    file, preset = tmp_path / "printed.yaml", tmp_path / "preset.yaml"
    file.write_text(printed(), encoding="utf-8")
    assert "num_filters: 3" in printed("--config", str(file), "--encoder.num_filters", "3")
    assert "metric: rmse" in printed("--config", str(file), "--task.metric", "rmse")
    preset.write_text("preset: paper\n", encoding="utf-8")
    assert "LinearTransformer" in printed("--config", str(preset), "--encoder.num_blocks", "2")


def table_of(file: str) -> list[dict[str, str]]:
    """The rows of a csv file by column."""
    with Path(file).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_labels_of_another_size(labelled: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The run says so, and predicts in the units of the labels."""
    rows = Path(labelled).read_text(encoding="utf-8").splitlines()
    far = [",".join([*row.split(",")[:2], str(1000.5 + 10 * number)]) for number, row in enumerate(rows[1:])]
    Path("far.csv").write_text("\n".join([rows[0], *far]) + "\n", encoding="utf-8")
    assert main(["train", "far.csv", "--target", "value", *TINY, "--encoder", "none", "--out", "run"]) == 0
    out, err = capsys.readouterr()
    assert "labels are standardised: mean 11" in err
    result = json.loads(Path("run/result.json").read_text())
    assert result["test_mae"] < 300 and f"training labels)  {result['test_mae_constant']:.4f}" in out
    assert json.loads(Path("run/config.json").read_text())["task"]["std"][0] > 50
    assert all(700 < float(row["predicted_value"]) < 1600 for row in table_of("run/predictions_test.csv"))


def test_labels_of_a_published_set_are_learned_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures in papers are of such trainings; other columns of the same files are one's own."""
    rows = [f"{'C' * length}O,{length / 70},{length}" for length in range(1, 15)]
    for part in ("train", "val", "test"):
        (tmp_path / f"{part}.csv").write_text("smiles,y,own\n" + "\n".join(rows) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    common = ["train", "zinc12k", "--data", str(tmp_path), "--cache", "cache", *TINY, "--encoder", "none"]
    own = ["--target", "own", "--task", "regression"]
    for number, (options, scaled) in enumerate((([], False), (["--task.loss_function", "mse"], False), (own, True))):
        assert main([*common, *options, "--out", f"run{number}"]) == 0
        assert ("mean" in json.loads(Path(f"run{number}/config.json").read_text())["task"]) == scaled


def test_properties_of_qm9_have_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Units appear on the terminal, in tables, in the run's description and in predictions."""
    rows = [f"{'C' * length}O,{length / 70},{length / 9},{length / 50}" for length in range(1, 31)]
    properties = tmp_path / "properties.csv"
    properties.write_text("smiles,gap,mu,homo\n" + "\n".join(rows) + "\n", encoding="utf-8")
    common = ["train", "qm9", "--data", str(properties), "--cache", str(tmp_path / "cache"), *TINY, "--encoder", "none"]
    tables = []
    for name, options in {"energies": ["gap", "homo", "--task.metric", "mae"], "several": ["gap", "mu"]}.items():
        assert main([*common, "--out", str(tmp_path / name), "--target", *options]) == 0
        said = capsys.readouterr().out
        assert main(["report", str(tmp_path / name), "--out", str(tmp_path / "report.html")]) == 0
        tables.append(capsys.readouterr().out)
        assert tables[-1].splitlines()[0] in said
    assert "qm9, gap, homo (MAE, Hartree)" in tables[0] and "(MAE in standard deviations)" in tables[1]
    assert "MAE, gap in Hartree" in tables[1] and "MAE, mu in Debye" in tables[1]
    config = json.loads((tmp_path / "several" / "config.json").read_text())
    assert config["data"]["target"]["units"] == ["Hartree", "Debye"] and "mean" in config["task"]
    result = json.loads((tmp_path / "several" / "result.json").read_text())
    assert "test_mae" not in result and set(result["test_mae_columns"]) == {"gap", "mu"}
    row = json.loads((tmp_path / "several" / "metrics.jsonl").read_text())
    assert row["val_scaled_mae"] == result["val_scaled_mae"] and set(row["val_mae_columns"]) == {"gap", "mu"}
    predicted = str(tmp_path / "predicted.csv")
    assert main(["predict", str(tmp_path / "several"), str(properties), predicted, "--quiet"]) == 0
    assert "gap in Hartree; mu in Debye" in capsys.readouterr().out
    predictor = zoo.load(tmp_path / "several")
    assert predictor.predict(["CCO"]).units == predictor.units == ("Hartree", "Debye")
    assert "gap in Hartree; mu in Debye" in repr(predictor)


def test_classes_by_name(labelled: str) -> None:
    """Words are numbered by name; the run, its checkpoint and the predictions have the names."""
    rows = Path(labelled).read_text(encoding="utf-8").splitlines()
    named = [row.split(",")[0] + "," + ("toxic", "safe", "n/a")[number % 3] for number, row in enumerate(rows[1:])]
    Path("named.csv").write_text("smiles,tox\n" + "\n".join(named) + "\n", encoding="utf-8")
    train = ["train", "named.csv", "--target", "tox", *TINY, "--encoder", "none", "--out", "run"]
    assert main(train) == 0
    config = json.loads(Path("run/config.json").read_text())
    assert config["data"]["target"]["classes"] == [["safe", "toxic"]] and config["task"]["num_classes"] == 2
    assert main(["predict", "run", labelled, "predicted.csv", "--quiet"]) == 0
    predicted = table_of("predicted.csv")
    assert len(predicted) == len(rows) - 1
    for row in predicted:
        assert row["predicted_class"] == ("safe" if float(row["tox_safe"]) > float(row["tox_toxic"]) else "toxic")


def test_molecules_by_their_canonical_smiles(labelled: str) -> None:
    """Predictions do not depend on spellings."""
    train = ["train", labelled, "--target", "value", *TINY, "--encoder", "none"]
    for out, words, said in (("run", [], True), ("spelled", ["--canonical", "false"], False)):
        assert main([*train, "--out", out, *words]) == 0
        config = json.loads(Path(out, "config.json").read_text())
        assert config["data"]["canonical"] is said
    assert main([*train, "--out", "spelled", "--resume", "--canonical", "false"]) == 0
    assert main([*train, "--out", "spelled", "--resume"]) == 1
    Path("xylene.smi").write_text("Cc1ccccc1C\nCc1c(C)cccc1\n", encoding="utf-8")
    assert main(["predict", "run", "xylene.smi", "predicted.csv", "--quiet"]) == 0
    first, second = (float(row["value"]) for row in table_of("predicted.csv"))
    assert first == pytest.approx(second, rel=1e-4)


def test_models_have_run_folders_of_their_own(labelled: str) -> None:
    train = ["train", labelled, "--target", "value", *TINY, "--encoder", "none"]
    for model in ("GraphTransformer", "TupleTransformer"):
        assert main([*train, "--model", model]) == 0
    assert {path.name for path in Path("runs").iterdir()} == {"mine-none-s0", "mine-TupleTransformer-none-s0"}


def test_arguments_of_an_encoder_stay_with_its_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments from a configuration or a start do not apply to another class, even with equal names."""
    config = tmp_path / "walk.yaml"
    config.write_text("encoder: {class: SpectralEncoder, num_layers: 3, out_channels: 12}\n")

    def encoder_of(*words: str) -> dict[str, Any]:
        return dict(yaml.safe_load(printed_config(capsys, "train", "nci", *words))["encoder"])

    (tmp_path / "seed.yaml").write_text("seed: 3\n", encoding="utf-8")
    assert encoder_of("--config", str(tmp_path / "seed.yaml"), "--encoder.num_filters", "5")["num_filters"] == 5
    assert encoder_of("--config", str(config))["num_layers"] == 3
    assert encoder_of("--config", str(config), "--encoder", "SpectralEncoder")["num_layers"] == 3
    assert encoder_of("--config", str(config), "--encoder", "GramTransformer")["num_layers"] == 16
    start = ["--start", "tuple-zinc12k", "--model", "TupleTransformer"]
    assert encoder_of(*start)["num_layers"] == 16
    assert encoder_of(*start, "--encoder", "SpectralEncoder")["num_layers"] == 2


def test_an_encoder_around_another(train: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A class or a checkpoint inside; it is fitted to the training part, used, saved, and started from."""
    out = tmp_path / "run"
    assert main([*train, "--encoder", "Whitened", "--encoder.encoder", "gram-k8", "--out", str(out)]) == 0
    assert "Whitened takes its statistics from the training part" in capsys.readouterr().err
    trained = json.loads((out / "config.json").read_text())["encoder"]
    assert trained["class"] == "Whitened" and trained["encoder"]["class"] == "GramTransformer"
    assert main([*train, "--start", str(out), "--out", str(tmp_path / "again")]) == 0
    assert "statistics" not in capsys.readouterr().err
    states = [load_file(folder / "model.safetensors")["encoder.node_map"] for folder in (out, tmp_path / "again")]
    assert torch.equal(*states) and bool(states[0].any())
    (tmp_path / "in.smi").write_text("CCO\n", encoding="utf-8")
    assert main(["encode", str(tmp_path / "in.smi"), str(tmp_path / "o.pt"), "--pretrained", str(out)]) == 0
    wrong = ["encode", str(tmp_path / "in.smi"), str(tmp_path / "p.pt"), "--encoder", "Whitened"]
    assert "has no statistics yet" in refused(capsys, *wrong)
    assert main(["report", str(tmp_path / "run"), str(tmp_path / "again"), "--out", str(tmp_path / "report.html")]) == 0


def test_encoders_side_by_side(train: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, run = tmp_path / "run", [*train, "--encoder", "Combined"]
    parts = '["gram-k8", {"class": "RandomWalk", "steps": 3}]'
    assert main([*run, "--encoder.encoders", parts, "--out", str(out)]) == 0
    encoder = zoo.load(out).model.encoder
    assert [type(part).__name__ for part in encoder.encoders] == ["GramTransformer", "RandomWalk"]
    assert "encoder.encoders" in unparsed(capsys, *run, "--encoder.encoders", "RandomWalk")


def test_an_argument_that_an_encoder_requires(capsys: pytest.CaptureFixture[str]) -> None:
    @register
    class Steps(RandomWalk):
        def __init__(self, length: int) -> None:
            super().__init__(length)

    words = ["nci", "--encoder", "Steps"]
    assert parse("train", [*words, "--encoder.length", "3"])[1].encoder.length == 3
    assert "required: encoder.length" in unparsed(capsys, "train", *words)
