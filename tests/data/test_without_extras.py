"""An environment with the hard dependencies alone: no RDKit, ogb, scikit-learn, torch-scatter, and no compiled part."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BLOCKER = """
import importlib.machinery, sys

class WithoutExtras(importlib.machinery.PathFinder):
    absent = {"rdkit", "ogb", "torch_scatter", "sklearn", "pandas", "matplotlib", "pyarrow", "ray"}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in cls.absent else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = WithoutExtras
"""

TRAINING = """
import torch
from torch_geometric.data import Data

import tg_lpe
import tg_lpe.data, tg_lpe.app.datasets, tg_lpe.transforms
from tg_lpe import LinearTransformerPE
from tg_lpe.data import GraphSplits, random_split
from tg_lpe.data.synthetic import complete_edges, csl_edges
from tg_lpe.app.training import TrainConfig, build_model, task_for, train

graphs = []
for number in range(30):
    edges = csl_edges(10, 2 + 2 * (number % 4)) if number % 2 else complete_edges(10)
    edge_index = torch.cat([edges, edges.flip(0)], 1)
    graphs.append(Data(x=torch.zeros(10, dtype=torch.int64), edge_index=edge_index, y=torch.tensor(number % 2)))
assert LinearTransformerPE(k=8, attr_name="pe")(graphs[0]).pe.shape == (10, 8)
assert len(LinearTransformerPE(k=8).encode_dataset(graphs, progress=False)) == 30

splits = GraphSplits.of(*random_split(graphs, seed=0), level="graph")
task = task_for(splits, "binary", metric="accuracy")
encoder = {"class": "GramTransformer", "num_layers": 4}
model = build_model(splits.spec, task, encoder, hidden_channels=16, heads=2, num_layers=1)
before = [parameter.clone() for parameter in model.encoder.parameters()]
config = TrainConfig(epochs=15, batch_size=8, lr=1e-2, precision="float32")
result = train(model, splits, task, config, progress=False)
assert result["test_accuracy"] == result["val_accuracy"] == 1.0, result
assert any(not torch.equal(a, b) for a, b in zip(before, model.encoder.parameters()))
"""

MOLECULES = """
try:
    import tg_lpe.app.molecules
except ModuleNotFoundError as error:
    assert "tg-lpe[molecules]" in str(error), error
else:
    raise SystemExit("imported without RDKit")
"""

EVERYTHING_ELSE = """
import importlib, pkgutil
import tg_lpe

# Molecules, test cases, and the library that is no Python module.
needs_more = ("tg_lpe.app.molecules", "tg_lpe.app.sklearn", "tg_lpe.app.comparison.fingerprint", "tg_lpe.testing.")
for module in pkgutil.walk_packages(tg_lpe.__path__, "tg_lpe.", onerror=lambda name: None):
    if not module.name.startswith(needs_more) and "._library" not in module.name:
        importlib.import_module(module.name)
"""


def test_hard_dependencies_alone(tmp_path: Path) -> None:
    """Training needs no more, molecules say what to install, and all other modules can be imported."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "TG_LPE_NO_CPU_KERNELS": "1", "OMP_NUM_THREADS": "1"}
    script = tmp_path / "script.py"
    script.write_text(BLOCKER + MOLECULES + TRAINING + EVERYTHING_ELSE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
