"""The command line as a user meets it: help, refusals in one line, and the files that it leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import randomize_
from safetensors.torch import load_file

from tg_lpe import GramTransformer, LinearTransformer, LinearTransformerPE
from tg_lpe.cli import main
from tg_lpe.datasets.molecules import read_molecules
from tg_lpe.training.run_folder import RunFolder

COMMANDS = ("train", "pretrain", "encode", "report", "demo")
LINES = ["CCO ethanol", "c1ccccc1", "C1CC(", "CC(=O)O acid", "N"]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """`--threads` is a setting of the process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def encoder(tmp_path: Path) -> str:
    randomize_(LinearTransformer(k=4)).save_pretrained(tmp_path / "encoder")
    return str(tmp_path / "encoder")


@pytest.fixture
def input_file(tmp_path: Path) -> str:
    (tmp_path / "in.smi").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return str(tmp_path / "in.smi")


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """The one line that a refusal says."""
    capsys.readouterr()
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith(f"tg-lpe {command[0]}: "), err
    return err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0 and all(f"\n    {command}" in text for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    text = capsys.readouterr().out
    assert (
        stopped.value.code == 0
        and f"usage: tg-lpe {command}" in text
        and "--out" in text + "--out" * (command == "encode")
    )


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2 and "required: COMMAND" in capsys.readouterr().err


def test_refusals_of_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "nowhere")
    assert "zinc needs --data DIR" in refused(capsys, "train", "zinc")
    assert "qm9 needs --data DIR" in refused(capsys, "pretrain", "qm9")
    assert missing in refused(capsys, "train", "zinc", "--data", missing)
    assert "or a folder or file that exists" in refused(capsys, "pretrain", missing)
    assert "--threads must be at least 1, got 0" in refused(capsys, "train", "nci", "--threads", "0")
    assert "--device plane cannot be used here" in refused(capsys, "train", "nci", "--device", "plane")
    assert "epochs must be at least 1, got 0" in refused(capsys, "train", "nci", "--epochs", "0")
    assert "lr must be positive and finite, got -1.0" in refused(capsys, "pretrain", "nci", "--lr", "-1")
    if not torch.cuda.is_available():
        assert "--device cuda cannot be used here" in refused(capsys, "pretrain", "nci", "--device", "cuda")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("train nci --pe none --pe-dim 4", "--pe-dim 4 would have no effect with --pe none"),
        ("train nci --pe laplacian --num-filters 9", "--num-filters 9 would have no effect with --pe laplacian"),
        (
            "train nci --pe random-walk --encoder gram-k8",
            "--encoder gram-k8 would have no effect with --pe random-walk",
        ),
        ("train nci --probes learned --no-ground", "--ground False would have no effect with --probes learned"),
        (
            "train nci --encoder gram-k8 --basis chebyshev",
            "--basis chebyshev would have no effect with --encoder gram-k8",
        ),
        ("train nci --encoder gram-k8 --pe-dim 5", "has pe_dim=8, got pe_dim=5"),
        ("pretrain nci --features", "--features would have no effect with eigenvectors"),
        ("pretrain nci --kernels heat --eigenvectors 3", "--eigenvectors 3 would have no effect with --kernels"),
    ],
)
def test_options_without_effect_are_refused(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, *command.split())


def test_refusals_of_encoding(
    tmp_path: Path, encoder: str, input_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.pt")
    assert "must end in .pt or .safetensors, got out.npz" in refused(capsys, "encode", input_file, "out.npz")
    said = refused(capsys, "encode", input_file, out, "--encoder", "no-such-encoder")
    assert "'no-such-encoder' is no checkpoint" in said
    missing = str(tmp_path / "missing.smi")
    assert missing in refused(capsys, "encode", missing, out, "--encoder", encoder)
    assert "k must lie in 1..4" in refused(capsys, "encode", input_file, out, "--encoder", encoder, "--k", "9")
    said = refused(capsys, "encode", input_file, out, "--encoder", encoder, "--edges")
    assert "needs an encoder with edge channels" in said
    assert said.endswith("got a LinearTransformer of edge_out_channels=0\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder", "in.smi"]


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_encode(tmp_path: Path, encoder: str, input_file: str, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / f"out{suffix}"
    assert main(["encode", input_file, str(out), "--encoder", encoder, "--k", "3", "--quiet"]) == 0
    said = capsys.readouterr()
    assert said.out == f"4 molecules, 14 atoms, 3 columns: {out}\n"
    assert "left out:" in said.err and "C1CC(" in said.err
    tensors = torch.load(out, weights_only=True) if suffix == ".pt" else load_file(out)
    if suffix == ".pt":
        types = tensors.pop("atom_types")
        assert "LinearTransformerPE(k=3" in tensors.pop("encoder")
    else:
        from tg_lpe.hub.files import load_tensors

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


def test_strict_encoding_stops(
    tmp_path: Path, encoder: str, input_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.pt"
    assert main(["encode", input_file, str(out), "--encoder", encoder, "--strict", "--quiet"]) == 1
    said = capsys.readouterr().err
    assert "unusable" in said and "C1CC(" in said and "Traceback" not in said
    assert not out.exists()


def test_encoding_from_atom_types(tmp_path: Path, input_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers of atom types mean what they meant in pretraining, whatever occurs in this file."""
    folder = RunFolder(tmp_path / "run")
    encoder, out = folder.path / "encoder", tmp_path / "out.safetensors"
    randomize_(LinearTransformer(k=4, probes="features", num_node_types=3)).save_pretrained(encoder)
    said = refused(capsys, "encode", input_file, str(out), "--encoder", str(encoder), "--quiet")
    assert "reads atom types" in said and str(folder.config) in said and str(encoder / "card.json") in said
    own = list(read_molecules(input_file, progress=False)[1].types)
    types = ["Br", *reversed([t for t in own if t != "N"])][:3]
    folder.config.write_text(json.dumps({"pretrain": {}, "data": {"atom_types": types}}), encoding="utf-8")
    assert main(["encode", input_file, str(out), "--encoder", str(encoder), "--quiet"]) == 0
    got = load_file(out)
    assert got["line"].tolist() == [1, 2, 4], "nitrogen was not in the pretraining"
    assert [types[i] for i in got["x"][:3, 0]] == ["C", "C", "O"]


def test_encoding_edges(tmp_path: Path, input_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    encoder, out = tmp_path / "encoder", tmp_path / "out.safetensors"
    # Bond types have the same numbers everywhere: an encoder that reads them alone needs no list of atom types.
    gram = randomize_(GramTransformer(6, 3, num_filters=2, num_layers=3, num_edge_types=4))
    gram.save_pretrained(encoder)
    command = ["encode", input_file, str(out), "--encoder", str(encoder), "--quiet"]
    assert main(command) == 0
    assert capsys.readouterr().out == f"4 molecules, 14 atoms, 6 columns: {out}\n"
    nodes_alone = load_file(out)
    assert "linear_transformer_edge_pe" not in nodes_alone
    assert main([*command, "--edges", "--k", "2"]) == 0
    assert capsys.readouterr().out == f"4 molecules, 14 atoms, 2 columns, 3 for each bond: {out}\n"
    tensors = load_file(out)
    assert set(tensors) == {*nodes_alone, "linear_transformer_edge_pe"}
    assert tensors["linear_transformer_edge_pe"].shape == (tensors["edge_index"].size(1), 3)
    for number, data in enumerate(read_molecules(input_file, progress=False)[0]):
        nodes, edges = (slice(*tensors[key][number : number + 2].tolist()) for key in ("node_ptr", "edge_ptr"))
        with torch.no_grad():
            node, edge = gram(None, data.edge_index, data.edge_attr, num_nodes=data.num_nodes)
        assert torch.equal(tensors["edge_index"][:, edges], data.edge_index)
        assert torch.allclose(tensors["linear_transformer_pe"][nodes], node[:, :2], atol=1e-6)
        assert torch.allclose(tensors["linear_transformer_edge_pe"][edges], edge, atol=1e-6)
        assert torch.allclose(nodes_alone["linear_transformer_pe"][nodes], node, atol=1e-6)


@pytest.mark.parametrize("place", ["run folder", "card", "both", "zoo"])
def test_atom_types_of_a_gram_encoder(
    tmp_path: Path, input_file: str, place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the run folder that the encoder lies in, or from its own card, which comes first."""
    folder = tmp_path / "shipped" / "run"
    encoder, out = folder / "encoder", tmp_path / "out.pt"
    gram = randomize_(GramTransformer(4, 2, num_layers=3, num_edge_types=4, num_node_types=6, end_features=True))
    gram.save_pretrained(encoder)
    name = str(encoder)
    command = ["encode", input_file, str(out), "--edges", "--quiet", "--encoder"]
    assert "reads atom types" in refused(capsys, *command, name)
    own = list(read_molecules(input_file, progress=False)[1].types)
    types = ["Br", *reversed(own)]
    right, wrong = ({"data": {"atom_types": listed}} for listed in (types, own))
    if place == "run folder":
        (folder / "config.json").write_text(json.dumps({"train": {}, **right}), encoding="utf-8")
        (encoder / "card.json").write_text(json.dumps({"data": {"source": "zinc"}}), encoding="utf-8")
    else:
        (encoder / "card.json").write_text(json.dumps({"class": "GramTransformer", **right}), encoding="utf-8")
    if place == "both":
        (folder / "config.json").write_text(json.dumps({"train": {}, **wrong}), encoding="utf-8")
    if place == "zoo":
        monkeypatch.setattr("tg_lpe.hub.zoo._FOLDER", folder)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps({"train": {}, **wrong}), encoding="utf-8")
        name = "encoder"
    assert main([*command, name]) == 0
    tensors = torch.load(out, weights_only=True)
    assert tensors["atom_types"] == types and tensors["line"].tolist() == [1, 2, 4, 5]
    transform = LinearTransformerPE(encoder=gram, edge_attr_name="edge_pe")
    for number, data in enumerate(read_molecules(input_file, progress=False)[0]):
        data.x = torch.tensor([[types.index(own[atom])] for atom in data.x[:, 0]])
        expected = transform(data)
        nodes, edges = (slice(*tensors[key][number : number + 2].tolist()) for key in ("node_ptr", "edge_ptr"))
        assert torch.allclose(tensors["linear_transformer_pe"][nodes], expected.linear_transformer_pe, atol=1e-6)
        assert torch.allclose(tensors["linear_transformer_edge_pe"][edges], expected.edge_pe, atol=1e-6)


def small_folder(path: Path) -> Path:
    path.mkdir()
    molecules = [f"{'C' * n}{end}" for n in range(2, 8) for end in ("O", "N", "C(=O)O")]
    for name, part in {"train": molecules[:12], "val": molecules[12:15], "test": molecules[15:]}.items():
        (path / f"{name}.smi").write_text("\n".join(part) + "\n", encoding="utf-8")
    return path


def test_pretrain_train_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = small_folder(tmp_path / "molecules")
    common = ["--data", str(data), "--cache", str(tmp_path / "cache"), "--threads", "1", "--quiet", "--epochs", "1"]
    runs = {name: str(tmp_path / name) for name in ("pretrain", "none", "lt")}
    pretrain = ["pretrain", str(data), *common, "--eigenvectors", "3", "--probes", "features"]
    assert main([*pretrain, "--out", runs["pretrain"]]) == 0
    assert "3 eigenvectors, features probes: test loss" in capsys.readouterr().out

    train = ["train", str(data), *common]
    from_encoder = ["--pe", "linear-transformer", "--encoder", f"{runs['pretrain']}/encoder", "--out", runs["lt"]]
    said = refused(capsys, *train, *from_encoder, "--pe-dim", "2")
    assert "has pe_dim=3, got pe_dim=2" in said
    assert main([*train, *from_encoder]) == 0, "a refused run does not occupy its folder"
    assert "test MAE" in capsys.readouterr().out
    assert main([*train, "--pe", "none", "--out", runs["none"]]) == 0
    assert "already holds a run" in refused(capsys, *train, "--pe", "none", "--out", runs["none"])
    assert main([*train, "--pe", "none", "--out", runs["none"], "--resume"]) == 0
    assert "is complete already" in capsys.readouterr().err

    smiles, encoded = tmp_path / "some.smi", tmp_path / "some.pt"
    smiles.write_text("CCO\n", encoding="utf-8")
    assert main(["encode", str(smiles), str(encoded), "--encoder", f"{runs['pretrain']}/encoder", "--quiet"]) == 0
    assert torch.load(encoded, weights_only=True)["linear_transformer_pe"].shape == (3, 3)

    pytest.importorskip("matplotlib")
    page, figures = tmp_path / "report.html", tmp_path / "report.json"
    capsys.readouterr()
    assert main(["report", *runs.values(), runs["none"], "--out", str(page), "--json", str(figures)]) == 0
    table = capsys.readouterr().out
    assert table.endswith(f"report: {page}\n") and "linear-transformer from pretrain" in table and "none" in table
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [run["name"] for run in json.loads(figures.read_text())["runs"]] == ["pretrain", "none", "lt"]
    assert "is no run folder" in refused(capsys, "report", str(tmp_path))
