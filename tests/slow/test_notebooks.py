"""Every notebook runs from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("matplotlib")

RESET = "import torch; torch.set_grad_enabled(True)\n%reset -f"
SHORTER = {"learned_encodings": ("epochs=12", "epochs=3")}
"""Nine trainings, which would take half of the time of all notebooks."""
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def test_notebooks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one kernel, which imports torch once; it forgets all names, and that gradients are off, before each."""
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel's own backend puts pictures into the notebook
    notebooks = {path.stem: nbformat.read(path, as_version=4) for path in NOTEBOOKS}
    for name, (written, shorter) in SHORTER.items():
        (cell,) = (cell for cell in notebooks[name].cells if written in cell.source)
        cell.source = cell.source.replace(written, shorter)
    joined = nbformat.v4.new_notebook()
    joined.cells = [cell for one in notebooks.values() for cell in (nbformat.v4.new_code_cell(RESET), *one.cells)]
    client = nbclient.NotebookClient(
        joined, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    assert notebooks
    for name, notebook in notebooks.items():
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        assert any("image/png" in output.get("data", {}) for output in outputs), f"{name} draws something"
