"""Tasks and metrics against scikit-learn, ogb's Evaluator and plain loops, with ties and missing labels."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from helpers import few, refusals
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from tg_lpe.app.training import task_for
from tg_lpe.app.training.metrics import METRICS, Metric, hits_at
from tg_lpe.app.training.paired import figures_by_part
from tg_lpe.app.training.tasks import (
    TASKS,
    Binary,
    Multiclass,
    Multilabel,
    Regression,
    Task,
    make_task,
    masked_mean,
    register_task,
)
from tg_lpe.data import GraphSplits
from tg_lpe.testing.host_reads import HostReads

metrics = pytest.importorskip("sklearn.metrics")
NAN = math.nan


@st.composite
def scored(draw: st.DrawFn, columns: int = 1, missing: bool = False) -> tuple[Tensor, Tensor]:
    """Scores with many ties and labels 0, 1 and perhaps NaN, ``[num_rows, columns]``."""
    rows = draw(st.integers(1, 30))
    labels = st.sampled_from([0.0, 1.0, NAN] if missing else [0.0, 1.0])
    # Neighbours in float32 are different scores.
    scores = st.sampled_from([-2.0, 0.0, 0.5, 1.0, float(np.nextafter(np.float32(1.0), np.float32(2.0))), 1e30])
    shape = (rows, columns)
    size = rows * columns
    return (
        torch.tensor(draw(st.lists(scores, min_size=size, max_size=size))).view(shape),
        torch.tensor(draw(st.lists(labels, min_size=size, max_size=size))).view(shape),
    )


def ogb_evaluator(metric: str, columns: int) -> Any:
    """ogb's code on its own: constructed, it would read a table of its data sets."""
    evaluate = pytest.importorskip("ogb.graphproppred.evaluate")
    evaluator = evaluate.Evaluator.__new__(evaluate.Evaluator)
    evaluator.name, evaluator.eval_metric, evaluator.num_tasks = "any", metric, columns
    return evaluator


@few
@given(scored(), st.integers(1, 8))
def test_hits_are_ogbs(column: tuple[Tensor, Tensor], k: int) -> None:
    scores, labels = (part.double().flatten() for part in column)
    assume(0 < int(labels.sum()) < labels.numel())
    evaluate = pytest.importorskip("ogb.linkproppred.evaluate")
    theirs = evaluate.Evaluator.__new__(evaluate.Evaluator)  # constructed, it would read a table of its data sets
    theirs.K = k
    found = theirs._eval_hits(scores[labels == 1].numpy(), scores[labels == 0].numpy(), "numpy")[f"hits@{k}"]
    assert hits_at(scores, labels, k) == pytest.approx(found, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "theirs"), [("roc_auc", "rocauc"), ("average_precision", "ap"), ("rmse", "rmse"), ("accuracy", "acc")]
)
@few
@given(scored(columns=3, missing=True))
def test_several_columns_are_ogbs(name: str, theirs: str, columns: tuple[Tensor, Tensor]) -> None:
    predictions, labels = (part.double() for part in columns)
    if name == "accuracy":
        predictions = (predictions > 0).double()
    if name == "rmse":
        predictions = predictions.clamp(max=3.0)
    if name in ("rmse", "accuracy"):
        assume(bool((~labels.isnan()).any(0).all()))  # where ogb divides by zero, ours leaves the column out
    ours = METRICS[name](predictions, labels)
    evaluator = ogb_evaluator(theirs, 3)
    arguments = {"y_true": labels.numpy(), "y_pred": predictions.numpy()}
    if ours.mean is None:
        assert ours.undefined == [0, 1, 2]
        with pytest.raises(RuntimeError, match="No positively labeled data"):
            evaluator.eval(arguments)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert ours.mean == pytest.approx(float(evaluator.eval(arguments)[theirs]), rel=1e-12)


def test_mae_is_the_mean_over_columns_of_what_is_there() -> None:
    predictions = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    result = METRICS["mae"](predictions, torch.tensor([[0.0, NAN], [0.0, 1.0]]))
    assert result.columns == (2.0, 3.0) and result.mean == 2.5 and result.undefined == []
    assert METRICS["mae"](predictions, torch.tensor([[0.0, NAN], [0.0, NAN]])).undefined == [1]


TASK_CASES: list[tuple[Task, Tensor]] = [
    (Regression(), torch.tensor([0.5, -1.0, 2.0, NAN, 3.0])),
    (Regression(loss_function="mse", metric="rmse"), torch.tensor([0.5, NAN, 2.0, NAN, 3.0])),
    (Regression(num_targets=2), torch.tensor([[0.5, NAN], [1.0, 2.0], [NAN, NAN], [3.0, 0.0], [1.0, 1.0]])),
    (Binary(), torch.tensor([0.0, 1.0, NAN, 1.0, 0.0])),
    (Multilabel(num_targets=2), torch.tensor([[0.0, NAN], [1.0, 1.0], [NAN, NAN], [1.0, 0.0], [0.0, 0.0]])),
    (Multiclass(num_classes=3), torch.tensor([0.0, 2.0, NAN, 1.0, 1.0])),
    (Multiclass(num_classes=4, balanced=True), torch.tensor([0.0, 2.0, NAN, 1.0, 1.0])),
    (Multiclass(num_classes=3, level="node"), torch.tensor([0.0, 2.0, 2.0, 1.0, 1.0])),
]
cases = pytest.mark.parametrize(("task", "target"), TASK_CASES, ids=lambda value: getattr(value, "name", ""))


def outputs(task: Task, rows: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, task.out_channels, generator=generator).requires_grad_()


def loss_by_hand(task: Task, prediction: Tensor, target: Tensor, factors: list[float] | None = None) -> Tensor:
    """Mean of the loss over the labels that are not missing, each times its row's factor, in a loop."""
    target = target.view(len(prediction), -1)
    losses, weights = [], []
    known = target[~target.isnan()]
    for row in range(len(prediction)):
        for column in range(task.num_targets):
            label = target[row, column]
            if label.isnan():
                continue
            balanced = isinstance(task, Multiclass) and task.balanced
            weights.append(1 - (known == label).double().mean() if balanced else torch.tensor(1.0))
            if isinstance(task, Multiclass):
                losses.append(-prediction[row].log_softmax(0)[int(label)])
            elif isinstance(task, Regression):
                error = prediction[row, column] - label
                losses.append(error.abs() if task.loss_function == "l1" else error**2)
            else:
                probability = prediction[row, column].sigmoid()
                losses.append(-(probability if label == 1 else 1 - probability).log())
            losses[-1] = losses[-1] * (1.0 if factors is None else factors[row])
    weight = torch.stack(weights).float()
    return (torch.stack(losses) * weight).sum() / weight.sum()


@cases
def test_loss_and_gradient_leave_missing_labels_out(task: Task, target: Tensor) -> None:
    prediction = outputs(task)
    loss = task.loss(prediction, target)
    expected = loss_by_hand(task, prediction, target)
    torch.testing.assert_close(loss, expected)
    [gradient] = torch.autograd.grad(loss, prediction)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, prediction)[0])
    factors = [0.0, 0.5, 2.0, 1.5, 1.0]
    weighted = task.loss(prediction, target, torch.tensor(factors))
    torch.testing.assert_close(weighted, loss_by_hand(task, prediction, target, factors))
    nothing = task.loss(prediction, torch.full_like(target, NAN))
    assert float(nothing.detach()) == 0 and not torch.autograd.grad(nothing, prediction)[0].any()


def test_a_batch_of_one_class_has_no_balanced_loss() -> None:
    """Where the benchmark's own lines have 0/0."""
    alone = outputs(Multiclass(num_classes=4))
    loss = Multiclass(num_classes=4, balanced=True).loss(alone, torch.ones(5))
    assert float(loss.detach()) == 0 and not torch.autograd.grad(loss, alone)[0].any()


@few
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_balanced_accuracy_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    classes, labels = torch.tensor(pairs, dtype=torch.float64).T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are predicted and never occur
        expected = metrics.balanced_accuracy_score(labels.numpy(), classes.numpy())
    assert METRICS["balanced_accuracy"](classes, labels).mean == pytest.approx(expected, rel=1e-12)


@cases
def test_a_loss_does_not_wait_for_the_device(task: Task, target: Tensor) -> None:
    prediction = outputs(task)
    with HostReads() as reads:
        task.loss(prediction, target).backward()
    assert not reads.seen
    with HostReads() as reads:
        float(task.loss(prediction, target).detach())
    assert reads.seen == ["aten::_local_scalar_dense"]


@cases
def test_figures_are_json_and_count_missing_labels(task: Task, target: Tensor) -> None:
    figures = task.evaluate(outputs(task), target)
    assert figures["num_missing"] == int(target.isnan().sum())
    assert figures["num_labels"] + figures["num_missing"] == 5 * task.num_targets
    assert set(task.figures) <= set(figures) and next(iter(figures)) == task.metric
    assert json.loads(json.dumps(figures)) == figures
    assert make_task(json.loads(json.dumps(task.to_dict()))) == task
    with pytest.raises(ValueError, match="column"):
        task.evaluate(outputs(task), torch.full_like(target, NAN))


def test_a_column_of_one_class_is_named() -> None:
    task = Multilabel(num_targets=3)
    labels = torch.tensor([[0.0, 1.0, NAN], [1.0, 1.0, NAN], [0.0, 1.0, 1.0]])
    figures = task.evaluate(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)), labels)
    assert figures["undefined_columns"] == [1, 2]
    with pytest.raises(ValueError, match="average precision"):
        Multilabel(num_targets=2).evaluate(torch.zeros(3, 2), labels[:, 1:])


def test_a_nan_prediction_gives_no_good_figure() -> None:
    broken = torch.tensor([NAN, 1.0, 0.0])
    labels = torch.tensor([1.0, 0.0, 1.0])
    assert math.isnan(Binary().evaluate(broken, labels)["roc_auc"])
    assert math.isnan(Binary().evaluate(broken, labels)["average_precision"])
    assert math.isnan(Regression().evaluate(broken, labels)["mae"])
    both = Multiclass(num_classes=2).evaluate(torch.full((2, 2), NAN), torch.tensor([0.0, 1.0]))
    assert both["accuracy"] == 0
    predictions, labels = torch.tensor([[NAN], [-1.0], [2.0], [NAN]]), torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    for kind in (Binary, Multilabel):
        assert kind(metric="accuracy").evaluate(predictions, labels)["accuracy"] == 0.5


test_refused_arguments = refusals(
    lambda task, **arguments: task(**arguments),
    ({"task": Regression, "level": "edge"}, "level"),
    ({"task": Regression, "metric": "roc_auc"}, "metric"),
    ({"task": Regression, "num_targets": 0}, "num_targets"),
    ({"task": Regression, "loss_function": "huber"}, "huber"),
    ({"task": Regression, "mean": [1.0]}, "mean="),
    ({"task": Regression, "mean": [1.0], "std": [0.0]}, "std"),
    ({"task": Regression, "mean": [1.0, 2.0], "std": [1.0, 1.0]}, "mean"),
    ({"task": Regression, "mean": [NAN], "std": [1.0]}, "mean"),
    ({"task": Regression, "mean": 0.5, "std": 1.0}, TypeError, "mean"),
    ({"task": Regression, "mean": ["0.5"], "std": [1.0]}, TypeError, "mean"),
    ({"task": Binary, "num_targets": 2}, "num_targets"),
    ({"task": Multiclass, "num_classes": 1}, "num_classes"),
    ({"task": Multiclass, "num_classes": 3, "num_targets": 3}, r"got 3; write y.argmax\(1\)"),
    ({"task": Multiclass, "num_classes": 2, "balanced": "no"}, "balanced"),
    ({"task": lambda: make_task({"name": "ranking"})}, "task"),
    ({"task": lambda: make_task({"name": "binary", "num_classes": 2})}, "num_classes"),
)
test_refused_labels = refusals(
    lambda task, *labels: task.check(torch.tensor(labels)),
    ((Binary(), 0.0, 2.0, NAN), "0 or 1, .* 0, 2"),
    ((Multiclass(num_classes=2), 0.0, 2.0), "0..1, .* 0, 2"),
    ((Multiclass(num_classes=2), 0.5), r"0\.5"),
    ((Multiclass(num_classes=2), -1.0, 1.0), "0..1, .* -1, 1"),
    ((Regression(), math.inf), "finite"),
)
test_refused_shapes = refusals(
    lambda of, outputs, labels: of(torch.zeros(outputs), torch.zeros(labels)),
    ((Regression().loss, (3, 2), 3), "num_rows"),
    ((Regression().loss, (3, 1), 4), "labels"),
    ((Multilabel(num_targets=2).loss, (3, 2), (2, 3)), r"\(2, 3\)"),
    ((METRICS["mae"], (3, 1), 3), r"\(3, 1\) and \(3,\)"),
    ((lambda *columns: hits_at(*columns, 0), 2, 2), "k"),
)


def test_the_scale_of_labels_may_be_tensors() -> None:
    task = Regression(mean=torch.tensor([0.5]), std=[torch.tensor(2.0)])
    assert task == Regression(mean=[0.5], std=[2.0]) and make_task(task.to_dict()) == task


def splits_with(labels: list[list[float]]) -> GraphSplits:
    edge = torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(x=torch.ones(2, 3), edge_index=edge, y=torch.tensor([row])) for row in labels]
    return GraphSplits.of(graphs, graphs, graphs, level="graph")


test_a_dataset_that_leaves_the_task_open = refusals(
    lambda labels, name=None: task_for(splits_with(labels), name),
    (([[0.0], [1.0]],), "task="),
    (([[0.0, 1.0], [1.0, NAN]],), "task="),
    (([[0.0], [7.0]],), "task='multiclass'"),
    (([[-1.0], [1.0]],), "task='regression', or number classes from 0"),
    (([[1.0], [2.0], [3.0]], "multiclass"), "no label of y is 0: .* num_classes=4"),
    (([[0.5], [math.inf]],), "y"),
    (([[0.0], [math.inf]], "multiclass"), "y"),
    (([[0.0], [2.0]], "binary"), "0 or 1"),
)


def test_the_task_of_a_dataset() -> None:
    plain = {"mean": None, "std": None}
    assert task_for(splits_with([[0.5], [1.0]]), **plain) == Regression()
    wide = splits_with([[0.5, 1.0]])
    assert task_for(wide, metric="rmse", **plain) == Regression(num_targets=2, metric="rmse")
    assert task_for(wide, **plain).metric == "scaled_mae"
    assert task_for(splits_with([[0.0], [1.0], [2.0], [NAN]]), "multiclass") == Multiclass(num_classes=3)
    assert task_for(splits_with([[0.0], [3.0]]), "multiclass", num_classes=9) == Multiclass(num_classes=9)
    assert task_for(splits_with([[0.0], [1.0]]), "regression") == Regression(mean=[0.5], std=[0.5])


def test_a_regression_is_told_apart_by_column() -> None:
    """The figure that chooses is in deviations of each column; the others are told column by column, not averaged."""
    labels = torch.tensor([[1.0, 100.0], [3.0, 300.0]])
    task = task_for(splits_with(labels.tolist()), "regression")
    assert task == Regression(num_targets=2, metric="scaled_mae", mean=(2.0, 200.0), std=(1.0, 100.0))
    figures = task.evaluate(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), labels)  # the first column is right
    assert figures["columns"] == {"mae": [0.0, 100.0], "rmse": [0.0, 100.0], "r2": [1.0, 0.0], "spearman": [1.0, 0.0]}
    assert figures["scaled_mae"] == 0.5 and "mae" not in figures and "rmse" not in figures
    assert Regression(num_targets=2, metric="mae").evaluate(labels + 2, labels)["mae"] == 2.0
    assert "columns" not in Regression().evaluate(labels[:, :1], labels[:, :1])


def test_the_constant_of_a_regression_is_the_median() -> None:
    labels = torch.tensor([[1.0, 10.0], [2.0, NAN], [90.0, 30.0], [NAN, 50.0]])
    task = Regression(num_targets=2, mean=[3.0, 10.0], std=[2.0, 5.0])
    constant = task.constant(labels)
    assert constant is not None and task.predict(constant).tolist() == [[2.0, 30.0]]


def test_labels_are_scaled() -> None:
    """The loss uses scaled labels; predictions and metrics are in the labels' units; missing labels stay missing."""

    def of_training(labels: Tensor) -> dict[str, Any]:
        found = Regression.arguments_for(labels, labels)
        return {name: found[name] for name in ("mean", "std")}

    labels = torch.tensor([[300.0, 0.5], [340.0, torch.nan], [torch.nan, 1.5]], dtype=torch.float64)
    found = of_training(labels)
    assert found == {"mean": [320.0, 1.0], "std": [20.0, 0.5]}
    assert of_training(labels[:, 1:]) == {"mean": [1.0], "std": [0.5]}
    assert of_training(torch.full((3, 1), 7.0)) == {"mean": [7.0], "std": [1.0]}
    constant = torch.full((33, 1), 0.1, dtype=torch.float64)  # whose deviation from its mean is rounding noise
    assert of_training(torch.cat([300 * torch.ones(33, 1), constant], dim=1))["std"] == [1.0, 1.0]
    scaled, plain = Regression(num_targets=2, **found), Regression(num_targets=2)
    assert make_task(scaled.to_dict()) == scaled and make_task(json.loads(json.dumps(scaled.to_dict()))) == scaled
    assert "mean" not in plain.to_dict()
    out = torch.tensor([[-1.0, 0.0], [2.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    assert scaled.predict(out).tolist() == [[300.0, 1.0], [360.0, 1.5], [320.0, 1.5]]
    assert float(scaled.loss(out, labels)) == (0 + 1 + 1 + 0) / 4
    assert scaled.evaluate(out, labels)["columns"]["mae"] == [10.0, 0.25]
    assert scaled.evaluate(out, labels)["columns"] == plain.evaluate(scaled.predict(out), labels)["columns"]
    assert scaled.evaluate(out, labels)["scaled_mae"] == 0.5
    one = Regression(mean=[320.0], std=[20.0])
    assert one.predict(torch.tensor([1.0])).tolist() == [340.0]


def test_figures_of_labels_in_float64_are_not_rounded_to_float32() -> None:
    """Energies near -1e5 that differ by hundredths: float32 would round predictions to multiples of 0.008."""
    out = torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    labels = out.double() * 0.01 - 123456.789
    task = Regression(mean=[-123456.789], std=[0.01])
    figures = task.evaluate(out, labels)
    assert figures["mae"] < 1e-9 and figures["r2"] == pytest.approx(1.0, abs=1e-9)
    assert float(figures_by_part(task, out, labels).abs().max()) < 1e-9


def test_a_loss_of_ones_own_is_given_the_labels_as_they_are() -> None:
    class Own(Regression):
        def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
            return (prediction - target).square().mean()

    labels = torch.full((3, 1), 300.0)
    assert Own.arguments_for(labels, labels) == {"num_targets": 1}


def test_a_users_own_task() -> None:
    try:

        @register_task
        @dataclass(frozen=True, kw_only=True)
        class Huber(Regression):
            """Quadratic for small errors, absolute for large ones."""

            delta: float = 1.0
            name: ClassVar[str] = "huber"

            def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
                prediction, target = self.rows(prediction, target)
                labelled = ~target.isnan()
                known = torch.where(labelled, target, prediction.detach())
                return masked_mean(F.huber_loss(prediction, known, reduction="none", delta=self.delta), labelled)

        task = task_for(splits_with([[0.5], [1.0]]), "huber", metric="rmse", delta=0.1)
        assert task == Huber(metric="rmse", delta=0.1) and make_task(task.to_dict()) == task
        labels = torch.tensor([0.5, NAN, 3.0])
        expected = F.huber_loss(torch.zeros(2), torch.tensor([0.5, 3.0]), delta=0.1)
        torch.testing.assert_close(task.loss(torch.zeros(3, 1), labels), expected)
        with pytest.raises(ValueError, match="taken"):

            @register_task
            class Other(Regression):
                name = "huber"
    finally:
        TASKS.pop("huber", None)


def test_a_users_own_metric_may_be_defined_again() -> None:
    def define(factor: float) -> None:
        def own(predictions: Tensor, labels: Tensor) -> Any:
            return factor * (predictions - labels).abs().max()

        METRICS.register(Metric("own", "own", "min", own), name="own")

    try:
        for factor in (1.0, 2.0):  # as when a cell of a notebook runs again
            define(factor)
        scores = METRICS["own"](torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]))
        assert json.dumps([scores.mean, *scores.columns]) == "[4.0, 4.0]"  # though it returns a tensor
        with pytest.raises(ValueError, match="taken"):
            METRICS.register(Metric("own", "other", "min", METRICS["mae"].column), name="own")
    finally:
        METRICS.pop("own", None)


@few
@given(
    st.lists(
        st.tuples(st.sampled_from([-2.0, 0.0, 0.5, 3.0, 1e6]), st.sampled_from([-1.0, 0.25, 2.0, 9.0])), min_size=2
    )
)
def test_correlation_of_ranks_is_scipys_and_r2_is_numpys(pairs: list[tuple[float, float]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    predictions, labels = (torch.tensor(column) for column in zip(*pairs, strict=True))
    predicted, true = predictions.numpy().astype(float), labels.numpy().astype(float)
    if len(set(true)) == 1:
        assert METRICS["r2"](predictions, labels).mean is METRICS["spearman"](predictions, labels).mean is None
        return
    expected = 1 - ((predicted - true) ** 2).mean() / true.var()
    assert METRICS["r2"](predictions, labels).mean == pytest.approx(expected, rel=1e-9)
    found = METRICS["spearman"](predictions, labels).mean
    constant = len(set(predicted)) == 1
    assert found == pytest.approx(0.0 if constant else stats.spearmanr(predicted, true).statistic, abs=1e-12)


def test_figures_without_units_can_choose_the_epoch() -> None:
    labels = torch.tensor([[1.0], [2.0], [4.0], [NAN]])
    for name in ("r2", "spearman"):
        task = Regression(metric=name)
        assert task.figures[0] == task.column_figures[0] == name
        assert task.evaluate(labels, labels)[name] == pytest.approx(1.0)
        assert math.isnan(task.evaluate(labels * NAN, labels)[name])
        assert task.undefined_columns(torch.ones(3, 1), name) == [0]
    assert {"mae", "rmse", "r2", "spearman"} <= set(Regression().evaluate(labels, labels))
