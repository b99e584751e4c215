"""One table in every dialect and container: it is read, trained on and predicted for alike."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("rdkit")

from rdkit import Chem

from tg_lpe import zoo
from tg_lpe.app.cli import main
from tg_lpe.app.molecules import MoleculeFile, MoleculeSplits, load_molecules
from tg_lpe.app.prediction import predict_file

ROWS = [
    ("CCO", 1.5, "éthanol"),
    ("CCN", -2.0, "amine, ethyl"),
    ("CC(=O)O", 0.25, "acid; acetic"),
    ("c1ccccc1", 3.0, 'a "ring"'),
    ("CCCC", 0.125, ""),
    ("CC(C)O", 7.5, "iso"),
    ("CCCl", -0.5, "x"),
    ("CCOC", 12.0, "y"),
    ("C1CCCCC1", 4.5, "z"),
    ("CC#N", 0.75, "nitrile"),
]


def table(separator: str = ",", end: str = "\n", header: str = "smiles") -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator=end)
    writer.writerow([header, "y", "name"])
    writer.writerows((smiles, y, name) for smiles, y, name in ROWS)
    return text.getvalue()


def zipped(content: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("mine.csv", content)
        file.writestr("__MACOSX/._mine.csv", b"\0")
    return archive.getvalue()


def structures() -> bytes:
    text = io.StringIO()
    with Chem.SDWriter(text) as writer:
        for smiles, y, name in ROWS:
            molecule = Chem.MolFromSmiles(smiles)
            molecule.SetProp("y", str(y))
            molecule.SetProp("name", name)
            writer.write(molecule)
    return text.getvalue().encode()


def parquet(text: str = "string") -> bytes:
    pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    smiles, y, name = zip(*ROWS, strict=True)
    file = io.BytesIO()
    names, strings = (pa.array(words, "string").cast(text) for words in (name, smiles))
    pq.write_table(
        pa.table({"name": names, "smiles": strings, "y": y, "edge": [[1, 2]] * len(y)}), file, row_group_size=3
    )
    return file.getvalue()


PLAIN = table().encode()
FORMS: dict[str, Callable[[], bytes]] = {
    "commas.csv": lambda: PLAIN,
    "semicolons.csv": lambda: table(";").encode(),
    "tabs.tsv": lambda: table("\t").encode(),
    "tabs.csv": lambda: table("\t").encode(),
    "tabs.txt": lambda: table("\t").encode(),
    "semicolons.txt": lambda: table(";").encode(),
    "bars.csv": lambda: table("|").encode(),
    "windows ends.csv": lambda: table("\t", end="\r\n").encode("utf-16"),
    "old ends.csv": lambda: table(end="\r").encode(),
    "marked.csv": lambda: table().encode("utf-8-sig"),
    "utf-16.txt": lambda: table("\t").encode("utf-16"),
    "mine.csv.gz": lambda: gzip.compress(PLAIN),
    "mine.csv.bz2": lambda: bz2.compress(PLAIN),
    "mine.tsv.xz": lambda: lzma.compress(table("\t").encode()),
    "mine.csv.zip": lambda: zipped(PLAIN),
    "mine.sdf": structures,
    "mine.sdf.gz": lambda: gzip.compress(structures()),
    "mine.parquet": parquet,
    "unmarked.parquet": lambda: parquet("binary"),
    "MINE.CSV": lambda: PLAIN,
    "Mine.Sdf.GZ": lambda: gzip.compress(structures()),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that all others are compared with."""
    path = tmp_path_factory.mktemp("plain") / "plain.csv"
    path.write_bytes(PLAIN)
    return path


@pytest.fixture(scope="module")
def expected(plain: Path) -> dict[str, list[str]]:
    """Predictions for the plain file, by SMILES."""
    return predictions(plain, plain.parent)


@pytest.fixture(scope="module")
def expected_splits(plain: Path) -> MoleculeSplits:
    return load_molecules(plain, targets=["y"], cache_dir=plain.parent, progress=False)


def predictions(source: Path | str, folder: Path) -> dict[str, list[str]]:
    predict_file(zoo.load("transformer-zinc"), source, folder / "out.csv", progress=False)
    with (folder / "out.csv").open(newline="", encoding="utf-8") as file:
        return {
            row["smiles"]: [row["name"], format(float(row["y"])), row["penalised logP"]] for row in csv.DictReader(file)
        }


@pytest.mark.parametrize("name", FORMS)
def test_a_table_is_read_alike(
    tmp_path: Path, name: str, expected: dict[str, list[str]], expected_splits: MoleculeSplits
) -> None:
    (tmp_path / name).write_bytes(FORMS[name]())
    splits = load_molecules(tmp_path / name, targets=["y"], cache_dir=tmp_path / "cache", progress=False)
    for part in ("train", "val", "test"):
        for key in ("x", "edge_index", "edge_attr", "y"):
            assert torch.equal(getattr(splits, part)._data[key], getattr(expected_splits, part)._data[key]), (part, key)
    assert predictions(tmp_path / name, tmp_path) == expected


def test_standard_output(plain: Path, expected: dict[str, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "transformer-zinc", str(plain), "-", "--quiet", "--threads", "1", "--workers", "0"]) == 0
    out, error = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["smiles"] for row in rows] == [smiles for smiles, _, _ in ROWS] and "10 molecules" in error
    assert {row["smiles"]: row["penalised logP"] for row in rows} == {
        smiles: cells[2] for smiles, cells in expected.items()
    }


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.xlsx", b"", r"a\.xlsx: the suffix is '\.xlsx', supported are \.smi, \.csv"),
        ("a.csv", table().encode("cp1252"), r"a\.csv is not readable as \.csv in UTF-8: .* byte 0xe9"),
        ("a.csv", gzip.compress(PLAIN), r"a\.csv is not readable as \.csv in UTF-8"),
        ("a.csv.gz", gzip.compress(PLAIN)[:-9], r"a.csv.gz is not readable as \.csv\.gz"),
        ("a.csv.bz2", PLAIN, r"a.csv.bz2 is not readable as \.csv\.bz2"),
        ("a.csv.zip", PLAIN, r"a.csv.zip is not readable as \.csv\.zip"),
        ("a.parquet", PLAIN, "a.parquet is damaged or not a Parquet file"),
        (
            "a.csv",
            b"structure;y\nC;1\n",
            "a.csv needs a column named 'smiles'; .*separated by ';', are 'structure', 'y'",
        ),
        ("a.csv", b"smiles;y\nC;1\nC;1;2\n", "a.csv is not readable .* Expected 2 fields in line 3, saw 3"),
        ("a.csv", b"", "a.csv is not readable"),
        ("a.csv", b"\nsmiles,y\nC,1\n", "a.csv is not readable"),
        ("a.csv", b"smiles,y,y\nC,1,2\n", "more than one column 'y'; there are"),
        ("a.csv", b'smiles,note,y\nC,"fine",1\n\nCC,"open,2\nCCC,x,3', "a.csv is not readable .* inside string"),
        ("a.txt", b"CCO 1\nCCN 2\n", "a.txt has no columns"),
        (
            "a.sdf",
            2 * f"{Chem.MolToMolBlock(Chem.MolFromSmiles('CCO'))}> <y>\n1\n\n".encode(),
            r"a.sdf:1: several structures .* \$\$\$\$",
        ),
    ],
)
def test_what_is_not_read_is_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        load_molecules(tmp_path / name, targets=["y"], cache_dir=tmp_path / "cache", progress=False)


def test_decimal_commas_are_not_guessed(tmp_path: Path) -> None:
    for content, at in (
        ("smiles;y\nC;1,5\nCC;2.5\nCCC;3\n", "'1,5' in a.csv:2"),
        ("smiles;y\nC;1,5\nCC;1,5\nCCC;2,5\n", "'1,5'.*with a decimal point"),
        ('smiles,y\nC,"1,500"\nCC,2\n', "'1,500'"),
    ):
        (tmp_path / "a.csv").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=f"column 'y'.*{at}"):
            load_molecules(tmp_path / "a.csv", targets=["y"], cache_dir=tmp_path / "cache", progress=False)


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    """As if no cell had a line end; and inside structures."""
    (tmp_path / "a.csv").write_text('smiles;note\nC;"two\nlines"\n\nCC;x\nCCC\n', encoding="utf-8")
    (table,) = MoleculeFile(tmp_path / "a.csv").tables(["note"])
    rows = [(2, "C", "two\nlines"), (4, "CC", "x"), (5, "CCC", "")]
    assert list(table.itertuples(name=None)) == rows
    (tmp_path / "b.csv").write_text(",\nsmiles,y\n,\nC,1\n", encoding="utf-8")
    (table,) = MoleculeFile(tmp_path / "b.csv").tables(["y"])
    assert list(table.itertuples(name=None)) == [(4, "C", "1")]
    blocks = structures().decode().replace("V2000", "V9999", 1)
    (tmp_path / "a.sdf").write_text(blocks, encoding="utf-8")
    (table,) = MoleculeFile(tmp_path / "a.sdf").tables()
    assert table.iloc[:3, 0].tolist() == ["?", "CCN", "CC(=O)O"]
    starts = [0, *(at + 1 for at, line in enumerate(blocks.splitlines()) if line == "$$$$")]
    assert table.index.tolist() == [at + 1 for at in starts[:-1]]
    block = Chem.MolToMolBlock(Chem.MolFromSmiles("OCC"))
    (tmp_path / "a.mol").write_text(block, encoding="utf-8")
    (table,) = MoleculeFile(tmp_path / "a.mol").tables()
    assert list(table.itertuples(name=None)) == [(1, "CCO")]


def test_parts_of_a_folder_in_formats_of_their_own(tmp_path: Path) -> None:
    for part, name in (("train", "semicolons.csv"), ("val", "mine.sdf"), ("test", "mine.parquet")):
        suffix = Path(name).suffix.upper() if part == "val" else Path(name).suffix
        (tmp_path / f"{part}{suffix}").write_bytes(FORMS[name]())
    splits = load_molecules(tmp_path, cache_dir=tmp_path / "cache", targets=["y"], progress=False)
    assert splits.train.y.tolist() == splits.val.y.tolist() == splits.test.y.tolist() == [y for _, y, _ in ROWS]
