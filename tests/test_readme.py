"""The README is short, its figures come from benchmarks/results, and its statements about peers hold."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from pages import README, ROOT, no_downloads, python_blocks, ring, run_blocks
from torch_geometric.data import Batch
from torch_geometric.nn import GPSE
from torch_geometric.transforms import AddLaplacianEigenvectorPE

from tg_lpe.encoders import load_encoder

__all__ = ["no_downloads"]


def test_tables_are_those_of_the_results() -> None:
    script = [sys.executable, str(ROOT / "benchmarks" / "_readme.py"), "--check"]
    assert subprocess.run(script, check=False).returncode == 0, "run benchmarks/_readme.py"


def test_readme_is_short() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    first_screen = "\n".join(lines[:50])
    for wanted in ("pip install", "```python", "| encoding | equivariant?"):
        assert wanted in first_screen


@pytest.mark.usefixtures("no_downloads")
def test_python_runs() -> None:
    pytest.importorskip("rdkit")
    blocks = python_blocks(README)
    assert len(blocks) == 3
    names = run_blocks(blocks, "readme")
    assert names["dataset"][0].linear_transformer_pe.shape == (6, 16)
    assert names["prediction"].shape == (4, 1)
    assert bool(names["model"].predict(["CCO", "c1ccccc1"]).values.isfinite().all())


def test_eigenvectors_of_pyg_fail_on_small_graphs_draw_signs_and_take_a_batch_for_one_graph() -> None:
    with pytest.raises(RuntimeError, match="size"):
        AddLaplacianEigenvectorPE(k=6)(ring(6))
    peer = AddLaplacianEigenvectorPE(k=3, attr_name="pe")
    seen = {tuple(peer(ring(6)).pe[0].sign().tolist()) for _ in range(40)}
    assert len(seen) > 1
    batch = Batch.from_data_list([ring(6), ring(9)])
    assert not torch.allclose(peer(ring(6)).pe.abs(), peer(batch).pe[:6].abs(), atol=1e-3)


def test_gpse_is_large() -> None:
    peer = sum(parameter.numel() for parameter in GPSE().parameters())
    ours = sum(parameter.numel() for parameter in load_encoder("gram-k16").parameters())
    assert round(peer / 1e6) == 22 and ours == 1556


def results(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return content


def test_figures_in_sentences_are_those_of_the_results() -> None:
    performance = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").replace("\n", " ")
    step = {row["row"]: row["ratio_to_none"] for row in results("training")["results"]}["GramTransformer"]
    assert 1.05 < step < 1.15 and "a tenth of a training step" in README.read_text(encoding="utf-8")
    rows = results("scaling")["results"]
    grid = max((row for row in rows if row["graph"] == "grid"), key=lambda row: row["num_nodes"])
    assert f"grid of ten million nodes it takes {grid['times_floor']:.1f} times the floor" in performance
    error = results("large_graph")["relative_error_by_probes"]
    sizes = [f"{error[probes]:.2f}" for probes in ("16", "64", "256")]
    assert f"{sizes[0]} of the encoding's size with 16 probes, {sizes[1]} with 64, {sizes[2]} with 256" in performance
    far = [row["ns_per_edge_and_layer"] for row in rows if row["graph"] != "grid" and row["num_nodes"] >= 1e5]
    assert min(far) >= 3 and max(far) <= 8 and "3 to 8 ns an edge" in performance
