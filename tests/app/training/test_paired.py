"""Paired differences of errors, against scipy and against many draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers import refusals
from scipy import stats

from tg_lpe.app.training import figures_by_part, make_task, paired_difference


def errors(num_seeds: int, num_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw correlated, heavy-tailed errors of a model and of a reference."""
    draw = np.random.default_rng(seed)
    hard = draw.exponential(size=num_rows) ** 2
    noise = draw.exponential(0.2, size=(2, num_seeds, num_rows))
    return hard + noise[0], hard + 0.1 + noise[1]


def test_mean_and_its_error_are_those_of_a_paired_t_test() -> None:
    model, reference = errors(1, 501, 0)
    difference = paired_difference(model, reference)
    test = stats.ttest_rel(model[0], reference[0])
    assert difference.mean_error is not None
    assert difference.mean / difference.mean_error == pytest.approx(test.statistic)
    assert difference.num_rows == 501 and difference.seed_error is None
    assert paired_difference(model[0], reference[0]) == difference


def test_seeds_of_a_row_are_one_observation() -> None:
    model, reference = errors(3, 400, 1)
    difference = paired_difference(torch.tensor(model), torch.tensor(reference))
    rows = (model - reference).mean(0)
    assert difference.mean_error == pytest.approx(stats.sem(rows))
    assert difference.by_seed == pytest.approx((model - reference).mean(1))
    assert difference.seed_error == pytest.approx(stats.sem((model - reference).mean(1)))
    again = paired_difference(np.concatenate([model, model]), np.concatenate([reference, reference]))
    assert again.mean_error == pytest.approx(difference.mean_error)


def test_what_is_hard_for_both_does_not_count() -> None:
    model, reference = errors(1, 1000, 2)
    difference = paired_difference(model, reference)
    apart = math.hypot(stats.sem(model[0]), stats.sem(reference[0]))
    assert difference.mean_error is not None and difference.mean_error < apart / 4


def test_one_row_has_no_error() -> None:
    assert paired_difference([2.0], [0.5])[:2] == (1.5, None)


test_unfit_errors_are_refused = refusals(
    paired_difference,
    (([1.0, 2.0], [1.0]), "shape"),
    (([], []), "row"),
    (([[[1.0]]], [[[1.0]]]), "num_rows"),
    (([float("nan"), 1.0], [1.0, 1.0]), "errors"),
    (([1.0, 1.0], [1.0, float("inf")]), "reference"),
)


def test_parts_of_a_mean_are_the_rows() -> None:
    task = make_task({"name": "regression"})
    outputs, targets = torch.randn(50, 1), torch.randn(50, 1)
    targets[::7] = math.nan
    known = ~targets.isnan()
    assert figures_by_part(task, outputs, targets).tolist() == pytest.approx((outputs - targets).abs()[known].tolist())


def test_parts_of_a_mean_are_weighted_by_their_rows() -> None:
    task = make_task({"name": "regression", "level": "node"})
    outputs, targets, part = torch.randn(6, 1), torch.randn(6, 1), torch.tensor([0, 0, 0, 0, 2, 2])
    errors = (outputs - targets).abs().flatten().double()
    figures = figures_by_part(task, outputs, targets, part)
    assert figures.numel() == 2 and float(figures.mean()) != pytest.approx(float(errors.mean()), rel=1e-6)
    assert figures.tolist() == pytest.approx(
        [float(2 * errors.mean() - errors[4:].mean()), float(2 * errors.mean() - errors[:4].mean())]
    )


def test_error_of_a_figure_that_is_no_mean_is_its_deviation_over_draws() -> None:
    name = "average_precision"
    task = make_task({"name": "binary", "metric": name})
    draw = torch.Generator().manual_seed(0)

    def once() -> tuple[float, float, float]:
        targets = (torch.rand(100, 1, generator=draw) < 0.4).float()
        models = [targets + torch.randn(100, 1, generator=draw) for _ in range(2)]
        pair = paired_difference(*(figures_by_part(task, outputs, targets) for outputs in models))
        plain = [task.evaluate(outputs, targets)[name] for outputs in models]
        return pair.mean, float(pair.mean_error or 0), plain[0] - plain[1]

    draws = np.array([once() for _ in range(60)])
    assert draws[:, 0] == pytest.approx(draws[:, 2], abs=0.03)
    assert np.sqrt((draws[:, 1] ** 2).mean()) == pytest.approx(draws[:, 2].std(ddof=1), rel=0.25)


def test_many_rows_are_joined_to_parts() -> None:
    task = make_task({"name": "regression"})
    outputs, targets = torch.randn(2500, 1), torch.randn(2500, 1)
    figures = figures_by_part(task, outputs, targets)
    assert figures.numel() == 1000
    assert float(figures.mean()) == pytest.approx(float((outputs - targets).abs().mean()), rel=0.02)


def test_a_figure_that_is_not_defined_is_refused() -> None:
    task = make_task({"name": "binary"})
    with pytest.raises(ValueError, match="both classes"):
        figures_by_part(task, torch.randn(4, 1), torch.ones(4, 1))
    with pytest.raises(ValueError, match=r"part must have shape \[4\]"):
        figures_by_part(task, torch.randn(4, 1), torch.ones(4, 1), torch.zeros(3))
    one_positive = torch.tensor([[1.0], [0.0], [0.0]])
    assert bool(figures_by_part(task, torch.randn(3, 1), one_positive).isfinite().all())


def test_error_of_other_rows_and_other_seeds() -> None:
    difference = paired_difference(*errors(3, 50, 3))
    assert difference.error == pytest.approx(math.hypot(difference.mean_error or 0, difference.seed_error or 0))
    assert paired_difference([1.0], [2.0]).error is None
