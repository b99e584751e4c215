"""Names, files and objects that a comparison accepts as encodings."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import refusals

from tg_lpe.app.comparison import ENCODINGS, Candidate, candidates_of
from tg_lpe.encoders import HeatKernel, RandomWalk


def test_names_classes_objects_checkpoints_and_files(tmp_path: Path) -> None:
    file = tmp_path / "long_walks.yaml"
    file.write_text("encoder: {class: RandomWalk, steps: 24}\nencoder_lr: 0.5\nmodel: {attention: gps}\n")
    RandomWalk(steps=3).save_pretrained(tmp_path / "kept")
    walks = RandomWalk(steps=5)
    rows = candidates_of([None, "gram-k16", "heat-k8", "HeatKernel", RandomWalk, file, str(tmp_path / "kept")])
    assert list(rows) == ["none", "gram-k16", "heat-k8", "HeatKernel", "RandomWalk", "long_walks", "kept"]
    assert rows["none"] == Candidate() and rows["gram-k16"] is ENCODINGS["gram-k16"]
    assert (rows["heat-k8"].pretrained, rows["heat-k8"].encoder_lr) == ("heat-k8", 0)
    assert rows["HeatKernel"] == Candidate({"class": "HeatKernel"}) == candidates_of([HeatKernel])["HeatKernel"]
    assert rows["long_walks"] == Candidate(
        {"class": "RandomWalk", "steps": 24}, encoder_lr=0.5, model={"attention": "gps"}
    )
    assert candidates_of({"mine": walks, "again": Candidate(walks)})["mine"] == Candidate(walks)
    assert candidates_of() == ENCODINGS


test_refused_encodings = refusals(
    candidates_of,
    (("walks",), TypeError, "encodings"),
    (([],), "at least one"),
    (([3],), TypeError, "3"),
    ((["RandomWalks"],), "'RandomWalks'; did you mean RandomWalk"),
    ((["transformer-zinc12k"],), "transformer-zinc12k"),
    (([RandomWalk(2), RandomWalk(3)],), "'RandomWalk'"),
)
test_refused_options = refusals(
    Candidate,
    ({"encoder_lr": -1.0}, "encoder_lr"),
    ({"edge_encoding": None}, "edge_encoding"),
    ({"model": "gps"}, "model"),
)


@pytest.mark.parametrize("text", ["encoder: none\npretrained: gram-k16", "epochs: 3", "{", "- 1"])
def test_files_of_another_form_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "row.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"row\.yaml"):
        candidates_of([file])
