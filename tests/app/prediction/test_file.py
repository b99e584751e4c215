"""Files of molecules: one row for each, in order, whatever the format; nothing is left behind by a failure."""

from __future__ import annotations

import csv
import lzma
import tracemalloc
from pathlib import Path

import pytest

from tg_lpe import zoo
from tg_lpe.app.cli import main
from tg_lpe.app.prediction import Predictor, predict_file

pytest.importorskip("rdkit")

SMILES = ["CCO", "c1ccccc1", "C1CC(", "CC(=O)O", "C[Si](C)C", "N"]
SMI = "# a comment\nCCO ethanol\n\nc1ccccc1 benzene\nC1CC( broken\nCC(=O)O acid\nC[Si](C)C silane\nN\n"
LINES = [2, 4, 5, 6, 7, 8]
BAD = {5: "RDKit cannot read it as SMILES", 7: "unknown atom type 'Si'"}


@pytest.fixture(scope="module")
def zinc() -> Predictor:
    return zoo.load("transformer-zinc")


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("name", ["in.smi", "in.smi.xz"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_row_for_each_molecule(tmp_path: Path, zinc: Predictor, name: str, num_workers: int) -> None:
    content = SMI.encode()
    (tmp_path / name).write_bytes(lzma.compress(content) if name.endswith("xz") else content)
    out, refused = tmp_path / "out.csv", tmp_path / "refused.csv"
    done = predict_file(
        zinc, tmp_path / name, out, refused=refused, batch_size=2, num_workers=num_workers, progress=False
    )
    assert done == (6, 2, 4)
    head, *rows = rows_of(out)
    assert head == ["line", "smiles", "name", "penalised logP", "outside"]
    assert [row[2] for row in rows] == ["ethanol", "benzene", "broken", "acid", "silane", ""]
    assert [int(row[0]) for row in rows] == LINES and [row[1] for row in rows] == SMILES
    expected = zinc.predict(SMILES, on_error="nan").values[:, 0].tolist()
    for row, value in zip(rows, expected, strict=True):
        assert (row[3] == "") == (row[4] == "") == (int(row[0]) in BAD)
        assert not row[3] or float(row[3]) == pytest.approx(value, rel=1e-4, abs=1e-4)
    listed = rows_of(refused)
    assert listed[0] == ["line", "smiles", "reason"] and {int(row[0]): row[2] for row in listed[1:]} == BAD
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "out.csv", "refused.csv"])


def test_columns_of_a_csv_file(tmp_path: Path, zinc: Predictor) -> None:
    (tmp_path / "in.csv").write_text('id,structure,note\n7,CCO,"a, b"\n8,CCN,\n', encoding="utf-8")
    done = predict_file(zinc, tmp_path / "in.csv", tmp_path / "out.csv", smiles_column="structure", progress=False)
    head, *rows = rows_of(tmp_path / "out.csv")
    assert done == (2, 0, 2) and head == ["line", "smiles", "id", "note", "penalised logP", "outside"]
    assert [row[:4] for row in rows] == [["2", "CCO", "7", "a, b"], ["3", "CCN", "8", ""]]
    assert all("3 atoms" in row[-1] for row in rows)
    with pytest.raises(ValueError, match="no column 'nothing'"):
        predict_file(zinc, tmp_path / "in.csv", tmp_path / "out.csv", smiles_column="nothing")


def test_columns_that_the_file_has_already_are_kept(tmp_path: Path, zinc: Predictor) -> None:
    """The file has labels, an earlier prediction, and columns with equal names and without a name."""
    (tmp_path / "in.csv").write_text("penalised logP,smiles,line,,\n1.5,CCO,x,a,b\n2.5,C1CC(,y,,\n", encoding="utf-8")
    predict_file(zinc, tmp_path / "in.csv", tmp_path / "out.csv", progress=False)
    head, *rows = rows_of(tmp_path / "out.csv")
    assert head == ["predicted_line", "smiles", "penalised logP", "line", "", "", "predicted_penalised logP", "outside"]
    assert [row[:6] for row in rows] == [["2", "CCO", "1.5", "x", "a", "b"], ["3", "C1CC(", "2.5", "y", "", ""]]
    assert float(rows[0][6]) == pytest.approx(float(zinc.predict(["CCO"])[0]), rel=1e-5) and rows[1][6:] == ["", ""]
    predict_file(zinc, tmp_path / "out.csv", tmp_path / "again.csv", progress=False)
    assert rows_of(tmp_path / "again.csv")[0][-2:] == ["predicted_predicted_penalised logP", "predicted_outside"]


def test_one_warning_counts_what_lies_outside(
    tmp_path: Path, zinc: Predictor, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in.smi").write_text("CCO\nCC(=O)Nc1ccc(O)cc1\n" * 300, encoding="utf-8")
    done = predict_file(zinc, tmp_path / "in.smi", tmp_path / "out.csv", progress=False)
    assert done == (600, 0, 300)
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "300 of 600 molecules" in record.getMessage() and "'outside'" in record.getMessage()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("in.smi", b"", "holds no molecule"),
        ("in.smi.xz", lzma.compress(b"CCO\n" * 1000)[:-20], "in.smi.xz is not readable"),
    ],
)
def test_a_failure_leaves_what_was_there(tmp_path: Path, zinc: Predictor, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "out.csv").write_text("before", encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        predict_file(zinc, tmp_path / name, tmp_path / "out.csv", progress=False, batch_size=2)
    assert (tmp_path / "out.csv").read_text(encoding="utf-8") == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "out.csv"])


@pytest.mark.parametrize(
    ("out", "refused"), [("in.csv", None), ("in.csv", "refused.csv"), ("out.csv", "in.csv"), ("out.csv", "./out.csv")]
)
def test_no_file_is_written_over_by_another(tmp_path: Path, zinc: Predictor, out: str, refused: str | None) -> None:
    (tmp_path / "in.csv").write_text("smiles,name\nCCO,a\n", encoding="utf-8")
    listed = None if refused is None else f"{tmp_path}/{refused}"
    with pytest.raises(ValueError, match="source, out and refused"):
        predict_file(zinc, tmp_path / "in.csv", tmp_path / out, refused=listed, progress=False)
    assert (tmp_path / "in.csv").read_text(encoding="utf-8") == "smiles,name\nCCO,a\n"
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


@pytest.mark.parametrize("place", ["out.csv", "in.smi/out.csv"])
@pytest.mark.parametrize("which", ["out", "refused"])
def test_what_cannot_be_written_is_found_before_any_work(
    tmp_path: Path, zinc: Predictor, which: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Predictor, "predict", lambda *_, **__: pytest.fail("predicted"))
    (tmp_path / "in.smi").write_text("CCO\n", encoding="utf-8")
    (tmp_path / "out.csv").mkdir()
    given = {"out": tmp_path / "new" / "a.csv", which: tmp_path / place}
    with pytest.raises((ValueError, OSError), match=f"cannot write .*{place}: "):
        predict_file(zinc, tmp_path / "in.smi", **given, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.smi", "out.csv"]


def test_memory_does_not_grow_with_the_file(tmp_path: Path, zinc: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Python's own objects; a molecule is 250 bytes long here, so 2,000 more of them are half a megabyte."""
    from tg_lpe.app.molecules import files

    monkeypatch.setattr(Predictor, "_run", lambda self, chunk: chunk.batch.new_zeros(chunk.num_graphs, 1).float())
    monkeypatch.setattr(files, "CHUNK", 200)
    peaks = []
    for number in (400, 2_400, 2_400):
        (tmp_path / "in.smi").write_text(f"CCO {'x' * 250}\n" * number, encoding="utf-8")
        tracemalloc.start()
        predict_file(zinc, tmp_path / "in.smi", tmp_path / "out.csv", progress=False)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert min(peaks[1:]) - peaks[0] < 250_000, peaks


def test_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    source, out = tmp_path / "in.smi", tmp_path / "out.csv"
    source.write_text(SMI, encoding="utf-8")
    command = ["predict", "transformer-zinc", str(source), str(out), "--threads", "1", "--workers", "0"]
    with caplog.at_level("INFO"):
        assert main(command) == 0
    said = f"6 molecules, 2 of them refused: {out}; --refused FILE lists them with the reasons\n"
    assert capsys.readouterr().out == said
    assert "predicted 6 of 6 molecules" in caplog.text, "a line where there is no terminal"
    assert len(rows_of(out)) == 7
    for words, said in (
        ([*command, "--batch_size", "0"], "batch_size"),
        (["predict", "transformer-zinc", str(source), "out.txt"], "OUT must end in .csv"),
    ):
        assert main([*words, "--quiet"]) == 1
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
