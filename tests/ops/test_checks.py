"""Checks of values that are read together."""

from __future__ import annotations

import pytest
import torch

from tg_lpe.ops.checks import ValueChecks
from tg_lpe.testing.host_reads import HostReads


def test_all_is_read_at_once() -> None:
    checks = ValueChecks()
    with HostReads() as reads:
        checks.in_range("types", torch.tensor([0, 2, 1]), 3)
        checks.in_range("small types", torch.tensor([0, 1], dtype=torch.int32), 3)
        checks.in_range("nothing", torch.zeros(0, dtype=torch.int64), 0)
        position = checks.also_read(torch.tensor(5), torch.tensor(True))
        assert checks.run()[position:] == [5, 1]
    assert reads.seen == ["tolist"]
    assert ValueChecks().run() == []


def test_what_waits_is_counted() -> None:
    values, mask = torch.arange(4), torch.tensor([True, False, True, True])
    with HostReads() as reads:
        values[mask], values.unique(), mask.any().item(), mask.nonzero(), torch.bincount(values)
        values[mask] = 0
        torch.repeat_interleave(values)
    assert len(reads.seen) == 7
    with HostReads() as reads:
        values[values], torch.where(mask, values, 0), torch.repeat_interleave(values, output_size=1)
        values[1:] = 2
    assert reads.seen == []


def test_the_first_that_fails_is_named() -> None:
    checks = ValueChecks()
    checks.in_range("good types", torch.tensor([0, 2]), 3)
    checks.in_range("types", torch.tensor([0, 3]), 3)
    checks.finite("values", torch.tensor([torch.inf]))
    with pytest.raises(ValueError, match=r"^types must lie in 0..2, got 0..3$"):
        checks.run()
    checks = ValueChecks()
    checks.finite("values", torch.tensor([torch.nan]))
    with pytest.raises(ValueError, match="values must"):
        checks.run()
    checks = ValueChecks()
    checks.in_range("types", torch.tensor([-1]), 3)
    with pytest.raises(ValueError, match=r"got -1..-1"):
        checks.run()


def test_what_held_before_is_not_asked_again() -> None:
    types, first = torch.tensor([0, 2]), ValueChecks()
    first.in_range("types", types, 3)
    first.run()
    again = ValueChecks(first.passed)
    again.in_range("types", types, 3)
    assert again.run() == []
    again.in_range("types", types, 2)
    with pytest.raises(ValueError, match="types must"):
        again.run()
    assert len(first.passed) == 1
