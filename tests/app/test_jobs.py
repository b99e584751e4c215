"""Parquet in, Parquet out: shards equal the transform's own encodings, and a stopped job goes on where it was."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from children import exit_status, start_python
from helpers import randomize_
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe import AddPositionalEncoding, GramTransformer, LinearTransformer, LinearTransformerPE
from tg_lpe.app.cli import main
from tg_lpe.app.jobs import MANIFEST, EncodingJob, JobReport
from tg_lpe.app.tables import read_graphs
from tg_lpe.checkpoints.files import read_json, write_json
from tg_lpe.encoders import RandomWalk
from tg_lpe.graph.graph import Graph
from tg_lpe.transforms import AddLaplacianEigenvectors
from tg_lpe.transforms.base import Attribute, GraphTransform

pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SMILES = ["CCO", "c1ccccc1", "C1CC(", "CC(=O)O", None, "C[Si](C)C", "N", "C.C"]
BAD = (2, 4)


@pytest.fixture
def transform() -> AddPositionalEncoding:
    return AddPositionalEncoding(
        randomize_(GramTransformer(3, 2, num_filters=2, num_layers=4)), edge_attr_name="pe_edge"
    )


@pytest.fixture
def molecules(tmp_path: Path) -> Path:
    """Two files, in row groups of three."""
    pytest.importorskip("rdkit", reason="molecules need RDKit")
    (tmp_path / "in").mkdir()
    for number, rows in enumerate((slice(0, 5), slice(5, 8))):
        table = pa.table({"smiles": SMILES[rows], "id": list(range(8))[rows]})
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet", row_group_size=3)
    return tmp_path / "in"


def write_graphs(path: Path, graphs: list[Data], **columns: Any) -> Path:
    table = {
        "edge_index": [data.edge_index.tolist() for data in graphs],
        "num_nodes": [data.num_nodes for data in graphs],
    }
    pq.write_table(pa.table({**table, **columns}), path)
    return path


def rings(*sizes: int) -> list[Data]:
    return [Data(edge_index=torch.stack([torch.arange(n), (torch.arange(n) + 1) % n]), num_nodes=n) for n in sizes]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[!.]*"))  # a killed process leaves a hidden file


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def assert_same(got: Path, expected: Path) -> None:
    """The same shards; encodings up to rounding, which depends on where tensors lie in memory."""
    assert names(got) == names(expected) and read_json(got / MANIFEST) == read_json(expected / MANIFEST)
    for one, other in zip(rows_of(got), rows_of(expected), strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if name.startswith("pe") and value is not None:
                torch.testing.assert_close(torch.tensor(value), torch.tensor(other[name]), msg=name)
            else:
                assert value == other[name], name


def test_relative_paths_stay_the_same_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_graphs(Path("in.parquet"), rings(3, 4))
    job = EncodingJob("in.parquet", "out", AddPositionalEncoding(RandomWalk(2)))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert job.run(progress=False).num_rows == 2 and len(read_graphs(tmp_path / "out")) == 2


def test_molecules(tmp_path: Path, molecules: Path, transform: AddPositionalEncoding) -> None:
    from tg_lpe.app.molecules import ZINC_VOCABULARY, smiles_to_data

    job = EncodingJob(molecules, tmp_path / "out", transform, rows_per_shard=2)
    assert [(shard.start, shard.stop) for shard in job.shards] == [(0, 2), (2, 4), (4, 5), (0, 2), (2, 3)]
    assert job.run(progress=False) == JobReport(num_shards=5, num_rows=8, num_refused=2)
    assert names(tmp_path / "out") == [MANIFEST, *(f"part-{number:06}.parquet" for number in range(5))]
    rows = rows_of(tmp_path / "out")
    assert [row["smiles"] for row in rows] == SMILES and [row["id"] for row in rows] == list(range(8))
    assert [number for number, row in enumerate(rows) if row["reason"] is not None] == list(BAD)
    assert rows[4]["reason"] == "there is no SMILES"
    vocabulary = replace(ZINC_VOCABULARY, types=(*ZINC_VOCABULARY.types, "Si", "Si H1"))
    for number, row in enumerate(rows):
        written = [row[name] for name in ("num_nodes", "edge_index", "edge_attr", "pe", "pe_edge")]
        if number in BAD:
            assert written == [None] * 5
            continue
        data = smiles_to_data(row["smiles"], vocabulary)
        assert row["num_nodes"] == data.num_nodes and row["edge_index"] == data.edge_index.tolist()
        assert row["edge_attr"] == data.edge_attr.tolist()
        encoded = transform(data)
        torch.testing.assert_close(torch.tensor(row["pe"]), encoded.pe)
        torch.testing.assert_close(torch.tensor(row["pe_edge"]).view(-1, 2), encoded.pe_edge)
    read = read_graphs(tmp_path / "out")
    assert len(read) == 6 and read[0].pe.shape == (3, 3) and read[5].num_nodes == 2


def test_strings_without_the_mark_of_utf_8(tmp_path: Path, molecules: Path, transform: AddPositionalEncoding) -> None:
    pq.write_table(pa.table({"smiles": pa.array(["CCO", None], "binary")}), molecules / "1.parquet")
    assert EncodingJob(molecules, tmp_path / "out", transform).run(progress=False) == JobReport(2, 7, 3)


def test_a_reader_numbers_atoms(tmp_path: Path, molecules: Path) -> None:
    from tg_lpe.app.molecules import ZINC_VOCABULARY, MoleculeReader

    encoder = randomize_(GramTransformer(3, 0, num_filters=2, num_layers=4, num_node_types=28, num_edge_types=4))
    transform = AddPositionalEncoding(encoder)
    with pytest.raises(ValueError, match="the encoder reads atom types: pass reader"):
        EncodingJob(molecules, tmp_path / "out", transform)
    job = EncodingJob(molecules, tmp_path / "out", transform, reader=MoleculeReader(ZINC_VOCABULARY))
    assert job.run(progress=False).num_refused == 3
    rows = rows_of(tmp_path / "out")
    assert [row["x"] for row in rows[:2]] == [[[0], [0], [1]], [[0]] * 6] and "unknown atom type" in rows[5]["reason"]
    for row, data in zip([row for row in rows if row["reason"] is None], read_graphs(tmp_path / "out"), strict=True):
        torch.testing.assert_close(torch.tensor(row["pe"]), transform(data).pe)


def test_graphs(tmp_path: Path, transform: AddPositionalEncoding) -> None:
    graphs = [*rings(3, 4, 5), Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=0)]
    source = write_graphs(tmp_path / "in.parquet", graphs, edge_weight=[[1.0, 2.0, 3.0], [1.0] * 4, [0.5] * 5, []])
    assert EncodingJob(source, tmp_path / "out", transform).run(progress=False) == JobReport(1, 4, 0)
    for data, row in zip(read_graphs(tmp_path / "out"), rows_of(tmp_path / "out"), strict=True):
        torch.testing.assert_close(data.pe, transform(data).pe)
        assert row["reason"] is None and len(row["pe"]) == data.num_nodes


def test_malformed_graphs_are_named_and_the_others_encoded(tmp_path: Path) -> None:
    source = write_graphs(
        tmp_path / "in.parquet",
        [*rings(3, 4), Data(edge_index=torch.tensor([[0], [9]]), num_nodes=2), *rings(5)],
        edge_weight=[[1.0] * 3, [-1.0] * 4, [1.0], [2.0] * 5],
    )
    transform = AddPositionalEncoding(RandomWalk(4))
    assert EncodingJob(source, tmp_path / "out", transform).run(progress=False).num_refused == 2
    rows = rows_of(tmp_path / "out")
    assert [row["reason"] is None for row in rows] == [True, False, False, True]
    assert "edge_weight must be finite and not negative" in rows[1]["reason"] and "0..1" in rows[2]["reason"]
    torch.testing.assert_close(torch.tensor(rows[3]["pe"]), transform(rings(5)[0]).pe)


class OfSmallGraphs(AddLaplacianEigenvectors):
    """Refuses graphs of more than 50 nodes."""

    def compute(self, graph: Graph, features: Mapping[str, Tensor]) -> list[Attribute]:
        if graph.max_nodes > 50:
            raise ValueError("takes graphs of at most 50 nodes")
        return super().compute(graph, features)


@pytest.mark.parametrize("refused_by", ["transform", "encoder"])
def test_molecules_that_the_transform_refuses_are_named_and_the_others_encoded(tmp_path: Path, refused_by: str) -> None:
    pytest.importorskip("rdkit", reason="molecules need RDKit")
    from tg_lpe.app.molecules import AtomVocabulary, MoleculeReader

    transform: GraphTransform
    if refused_by == "transform":
        transform, reader = OfSmallGraphs(3, attr_name="pe"), None
        smiles, bad, said = ["CC", "C1", "C" * 60, "c1ccccc1", "C" * 61, None], (1, 2, 4, 5), "50 nodes"
    else:
        encoder = randomize_(GramTransformer(3, 0, num_filters=2, num_layers=4, num_node_types=3))
        transform, reader = AddPositionalEncoding(encoder), MoleculeReader(AtomVocabulary(("C", "O", "N", "F")))
        smiles, bad, said = ["CC", "CF", "CO", "CBr", "FC", "CN"], (1, 3, 4), "0..2"
    pq.write_table(pa.table({"smiles": smiles}), tmp_path / "in.parquet")
    job = EncodingJob(tmp_path / "in.parquet", tmp_path / "out", transform, reader=reader)
    assert job.run(progress=False) == JobReport(1, 6, len(bad))
    rows = rows_of(tmp_path / "out")
    assert [number for number, row in enumerate(rows) if row["reason"] is not None] == list(bad)
    assert said in rows[bad[-1 if reader else 1]]["reason"] and [row["smiles"] for row in rows] == smiles
    assert all(rows[number][name] is None for number in bad for name in ("num_nodes", "edge_index", "pe"))
    usable = [row for row in rows if row["reason"] is None]
    for row, data in zip(usable, read_graphs(tmp_path / "out"), strict=True):
        assert row["num_nodes"] == data.num_nodes and row["edge_index"] == data.edge_index.tolist()
        torch.testing.assert_close(torch.tensor(row["pe"]), transform(data).pe)


def test_a_bad_row_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rows are encoded in large batches, not one by one."""
    source = write_graphs(
        tmp_path / "in.parquet",
        rings(*[4] * 64),
        edge_weight=[[-1.0 if number == 21 else 1.0] * 4 for number in range(64)],
    )
    sizes: list[int] = []

    def encode_dataset(self: GraphTransform, dataset: Any, progress: bool = True) -> Any:
        sizes.append(len(dataset))
        return plain(self, dataset, progress)

    plain = GraphTransform.encode_dataset
    monkeypatch.setattr(GraphTransform, "encode_dataset", encode_dataset)
    done = EncodingJob(source, tmp_path / "out", AddPositionalEncoding(RandomWalk(4))).run(progress=False)
    assert done == JobReport(1, 64, 1) and rows_of(tmp_path / "out")[21]["pe"] is None
    assert len(sizes) == 13 and sum(sizes) == 64 + 2 * 63


def test_weights_that_all_rows_have_wrong_are_the_reason_given(tmp_path: Path) -> None:
    source = write_graphs(tmp_path / "in.parquet", rings(3, 4), edge_weight=[[1] * 3, [1] * 4])
    with pytest.raises(ValueError, match=r"in.parquet: row 0: edge_weight must be floating point .*write .*float"):
        EncodingJob(source, tmp_path / "out", AddPositionalEncoding(RandomWalk(4))).run(progress=False)


@pytest.mark.parametrize("kind", ["molecules", "graphs"])
def test_a_shard_without_a_usable_row_has_the_columns_of_the_others(
    tmp_path: Path, transform: AddPositionalEncoding, kind: str
) -> None:
    if kind == "molecules":
        pytest.importorskip("rdkit")
        pq.write_table(pa.table({"smiles": ["CC", "C1", None]}), tmp_path / "in.parquet")
    else:
        write_graphs(
            tmp_path / "in.parquet", [*rings(3), *[Data(edge_index=torch.tensor([[7], [7]]), num_nodes=1)] * 2]
        )
    assert EncodingJob(tmp_path / "in.parquet", tmp_path / "out", transform, rows_per_shard=1).run().num_refused == 2
    schemas = [pq.read_schema(tmp_path / "out" / f"part-00000{number}.parquet") for number in range(3)]
    assert schemas[0] == schemas[1] == schemas[2]
    assert len(read_graphs(tmp_path / "out")) == 1


def test_the_missing_shards_alone_are_encoded(
    tmp_path: Path, molecules: Path, transform: AddPositionalEncoding
) -> None:
    out = tmp_path / "out"
    assert EncodingJob(molecules, out, transform, rows_per_shard=2).run((1, 2), progress=False).num_shards == 2
    assert names(out) == [MANIFEST, "part-000001.parquet", "part-000003.parquet"]
    first = (out / "part-000001.parquet").stat().st_mtime_ns
    (out / "part-000003.parquet").unlink()
    assert EncodingJob(molecules, out, transform, rows_per_shard=2).run(progress=False).num_shards == 4
    assert (out / "part-000001.parquet").stat().st_mtime_ns == first
    again = tmp_path / "again"
    EncodingJob(molecules, again, transform, rows_per_shard=2).run(progress=False)
    assert_same(out, again)
    assert EncodingJob(molecules, out, transform, rows_per_shard=2).run() == JobReport(0, 0, 0)


def test_another_job_is_refused(tmp_path: Path, molecules: Path, transform: AddPositionalEncoding) -> None:
    from tg_lpe.app.molecules import ZINC_VOCABULARY, MoleculeReader

    out = tmp_path / "out"
    EncodingJob(molecules, out, transform, rows_per_shard=2).run(progress=False)
    before = {name: (out / name).read_bytes() for name in names(out)}
    other = AddPositionalEncoding(
        randomize_(GramTransformer(3, 2, num_filters=2, num_layers=4), seed=1), "pe", "pe_edge"
    )
    reader = MoleculeReader(ZINC_VOCABULARY)
    for job, said in (
        (EncodingJob(molecules, out, other, rows_per_shard=2), "transform"),
        (EncodingJob(molecules, out, transform, rows_per_shard=3), "rows_per_shard"),
        (EncodingJob(molecules, out, transform, rows_per_shard=2, reader=reader), "reader"),
        (EncodingJob(molecules / "0.parquet", out, transform, rows_per_shard=2), "inputs"),
    ):
        with pytest.raises(ValueError, match=f"another job: {said}"):
            job.run()
    write_json(out / MANIFEST, {**read_json(out / MANIFEST), "release": {"tg_lpe": "0.0.1"}})
    with pytest.raises(ValueError, match="another job: release"):
        EncodingJob(molecules, out, transform, rows_per_shard=2).run()
    (out / MANIFEST).unlink()
    with pytest.raises(ValueError, match=MANIFEST):
        EncodingJob(molecules, out, transform, rows_per_shard=2).run()
    del before[MANIFEST]
    assert {name: (out / name).read_bytes() for name in names(out)} == before


def test_a_job_that_came_to_nothing_leaves_the_folder_to_the_next(tmp_path: Path, molecules: Path) -> None:
    transform = AddPositionalEncoding(RandomWalk(4), attr_name="id")
    with pytest.raises(ValueError, match="has a column 'id', which would be written"):
        EncodingJob(molecules, tmp_path / "out", transform).run(progress=False)
    EncodingJob(molecules, tmp_path / "out", AddPositionalEncoding(RandomWalk(4))).run(progress=False)
    assert rows_of(tmp_path / "out")[0]["pe"] is not None


def test_refusals(tmp_path: Path, molecules: Path, transform: AddPositionalEncoding) -> None:
    from tg_lpe.app.molecules import MoleculeReader

    out = tmp_path / "out"
    pq.write_table(pa.table({"smiles": ["C"], "reason": ["none"]}), tmp_path / "reason.parquet")
    pq.write_table(pa.table({"smiles": [1, 2]}), tmp_path / "numbers.parquet")
    graphs = write_graphs(tmp_path / "graphs.parquet", rings(3))
    (tmp_path / "some").mkdir()
    write_graphs(tmp_path / "some" / "0.parquet", rings(3), edge_weight=[[1.0] * 3])
    write_graphs(tmp_path / "some" / "1.parquet", rings(3))
    weighted = AddPositionalEncoding(RandomWalk(4), edge_weight="weight")
    for source, change, said in (
        (molecules, {"transform": RandomWalk(4)}, "transform"),
        *((molecules, {"rows_per_shard": rows}, "rows_per_shard") for rows in (0, 2.5, "3", True)),
        (molecules, {"out": molecules}, "out"),
        (molecules, {"smiles_column": "structure"}, "'structure'"),
        (tmp_path / "reason.parquet", {}, "'reason'"),
        (tmp_path / "numbers.parquet", {}, "int64"),
        (molecules, {"transform": weighted}, "edge weights"),
        (graphs, {"transform": weighted}, "'weight'"),
        (tmp_path / "some", {}, "1.parquet .*'edge_weight'"),
        (graphs, {"reader": MoleculeReader(None)}, "reader"),
        (graphs, {"out": ""}, "out"),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            EncodingJob(source, **{"out": out, "transform": transform, **change})
    for given, part, said in (
        (transform, (2, 2), "part"),
        (AddPositionalEncoding(RandomWalk(4), attr_name=None), (0, 1), "new attribute"),
    ):
        with pytest.raises(ValueError, match=said):
            EncodingJob(molecules, out, given).run(part)
    job = EncodingJob(graphs, out, transform)
    write_graphs(graphs, [])
    with pytest.raises(ValueError, match=r"was changed: it ends before row 1"):
        job.encode(job.shards[0])


def test_a_column_of_a_later_file_stops_the_first_shard(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_graphs(tmp_path / "in" / "0.parquet", rings(3))
    write_graphs(tmp_path / "in" / "1.parquet", rings(3), pe=[1.0])
    with pytest.raises(ValueError, match=r"1\.parquet has a column 'pe'"):
        EncodingJob(tmp_path / "in", tmp_path / "out", AddPositionalEncoding(RandomWalk(2))).run(progress=False)
    assert names(tmp_path / "out") == [MANIFEST]


def test_an_output_that_cannot_be_written_is_refused_before_the_input_is_read(tmp_path: Path) -> None:
    source = write_graphs(tmp_path / "graphs.parquet", rings(3))
    (tmp_path / "file").touch()
    job = EncodingJob(source, tmp_path / "file" / "out", AddPositionalEncoding(RandomWalk(2)))
    source.unlink()  # reading it would raise another error
    with pytest.raises(OSError, match="cannot write"):
        job.start()


def test_a_job_that_is_killed_goes_on(tmp_path: Path, transform: AddPositionalEncoding) -> None:
    source = write_graphs(tmp_path / "in.parquet", rings(*range(3, 83)))
    transform._on_device[torch.device("cpu")].save_pretrained(tmp_path / "encoder")
    out, straight = tmp_path / "out", tmp_path / "straight"
    options = ["--pretrained", str(tmp_path / "encoder"), "--edges", "--rows_per_shard", "1", "--quiet"]
    words = ["-m", "tg_lpe.app.cli", "encode", str(source), str(out), *options]
    process = start_python(*words, said=tmp_path / "said")
    deadline = time.monotonic() + 120
    while len(list(out.glob("part-*.parquet"))) < 3:
        assert process.is_alive() and time.monotonic() < deadline, (tmp_path / "said").read_text()
        time.sleep(0.001)
    process.kill()
    assert exit_status(process) == -signal.SIGKILL
    done = len(list(out.glob("part-*.parquet")))
    assert 3 <= done < 80
    assert main(["encode", str(source), str(out), *options]) == 0
    assert main(["encode", str(source), str(straight), *options]) == 0
    assert names(out) == names(straight)
    assert_same(out, straight)


def test_the_command_line(tmp_path: Path, molecules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    randomize_(LinearTransformer(k=4)).save_pretrained(tmp_path / "encoder")
    options = ["--pretrained", str(tmp_path / "encoder"), "--k", "3", "--rows_per_shard", "2", "--quiet"]
    out = tmp_path / "out"
    for part, shards in ((0, 3), (1, 2)):
        assert main(["encode", str(molecules), str(out), *options, "--part", f"{part}/2"]) == 0
        assert capsys.readouterr().out.startswith(f"{shards} of 5 shards encoded")
    expected = LinearTransformerPE.from_pretrained(tmp_path / "encoder", k=3)
    data = read_graphs(out)[0]
    torch.testing.assert_close(data.linear_transformer_pe, expected(data).linear_transformer_pe)

    def refused(*arguments: str) -> str:
        assert main(["encode", *arguments, *options]) == 1
        return capsys.readouterr().err

    assert "--part must be I/N, such as 0/2, got one" in refused(str(molecules), str(out), "--part", "one")
    assert "OUT must be a folder" in refused(str(molecules), "out.pt")
    assert "no effect with --ray" in refused(str(molecules), str(out), "--ray", "--part", "0/2")


@pytest.fixture
def ray_cluster() -> Iterator[None]:
    """Two processes of Ray on this machine."""
    pytest.importorskip("ray.data", reason="needs Ray: pip install 'tg-lpe[ray]'")
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def test_ray_writes_what_one_process_writes(
    tmp_path: Path, transform: AddPositionalEncoding, ray_cluster: None
) -> None:
    source = write_graphs(
        tmp_path / "in.parquet", [*rings(3, 4, 5), Data(edge_index=torch.tensor([[7], [7]]), num_nodes=1)]
    )
    alone, cluster = tmp_path / "alone", tmp_path / "cluster"
    expected = EncodingJob(source, alone, transform, rows_per_shard=2).run(progress=False)
    assert EncodingJob(source, cluster, transform, rows_per_shard=2).run_on_ray() == expected == JobReport(2, 4, 1)
    assert_same(cluster, alone)
    (cluster / "part-000001.parquet").unlink()
    assert EncodingJob(source, cluster, transform, rows_per_shard=2).run_on_ray() == JobReport(1, 2, 1)
    assert EncodingJob(source, cluster, transform, rows_per_shard=2).run_on_ray() == JobReport(0, 0, 0)
