"""Units of labels, as figures and sentences have them."""

from __future__ import annotations

import pytest

from tg_lpe.data.units import common_unit, in_mev, units_text


def test_energies_are_told_in_mev_too() -> None:
    assert in_mev(0.004, "Hartree") == " (108.8 meV)" and in_mev(-1.0, "Hartree") == " (-27,211 meV)"
    assert in_mev(0.004, "Debye") == in_mev(0.004, "") == ""


def test_columns_of_one_unit_stand_together() -> None:
    told = units_text(["homo", "mu", "gap"], ["Hartree", "Debye", "Hartree"])
    assert told == "homo, gap in Hartree (1 Hartree = 27,211.4 meV); mu in Debye"
    assert (
        common_unit(["Hartree", "Hartree"]) == "Hartree" and common_unit(["Hartree", "Debye"]) == common_unit([]) == ""
    )
    with pytest.raises(ValueError, match="zip"):
        units_text(["homo", "gap"], ["Hartree"])
