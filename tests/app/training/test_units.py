"""Units of labels, as figures and sentences have them."""

from __future__ import annotations

from tg_lpe import zoo
from tg_lpe.app.training.units import figures_text


def test_figures_of_a_card_have_units() -> None:
    content = {
        "task": {"metric": "mae"},
        "data": {"target": {"columns": ["gap"], "units": ["Hartree"]}},
        "metrics": {"test_mae": 0.004, "val_mae": 0.0039, "by_column": [0.004]},
    }
    assert figures_text(content) == "test_mae 0.0040 Hartree, val_mae 0.0039 Hartree"
    assert figures_text({**content, "task": {"metric": "scaled_mae"}}) == "test_mae 0.0040, val_mae 0.0039"
    assert "Hartree" not in figures_text(zoo.card("transformer-qm9"))
