"""Units of labels, as figures and sentences have them."""

from __future__ import annotations

import pytest

from tg_lpe import zoo
from tg_lpe.app.training.units import common_unit, figures_text, units_text


def test_columns_of_one_unit_stand_together() -> None:
    told = units_text(["homo", "mu", "gap"], ["Hartree", "Debye", "Hartree"])
    assert told == "homo, gap in Hartree; mu in Debye"
    assert (
        common_unit(["Hartree", "Hartree"]) == "Hartree" and common_unit(["Hartree", "Debye"]) == common_unit([]) == ""
    )
    with pytest.raises(ValueError, match="zip"):
        units_text(["homo", "gap"], ["Hartree"])


def test_figures_of_a_card_have_units() -> None:
    content = {
        "task": {"metric": "mae"},
        "data": {"target": {"columns": ["gap"], "units": ["Hartree"]}},
        "metrics": {"test_mae": 0.004, "val_mae": 0.0039, "by_column": [0.004]},
    }
    assert figures_text(content) == "test_mae 0.0040 Hartree, val_mae 0.0039 Hartree"
    assert figures_text({**content, "task": {"metric": "scaled_mae"}}) == "test_mae 0.0040, val_mae 0.0039"
    assert "Hartree" not in figures_text(zoo.card("transformer-qm9"))
