"""The API reference: a class shows its arguments, and its example is short and runs."""

from __future__ import annotations

import doctest
import inspect
import sys
from typing import Any

import pytest
import torch

import tg_lpe
from tg_lpe import data, encoders, models, transforms, zoo
from tg_lpe.app import prediction, training
from tg_lpe.nn import attention

FIRST = [
    *(getattr(transforms, name) for name in transforms.__all__),
    *encoders.ENCODERS.values(),
    models.GraphTransformer,
    models.TupleTransformer,
    data.GraphSplits,
    training.TrainConfig,
    prediction.Predictor,
    encoders.load_encoder,
    zoo.load,
]
"""Classes and functions that users meet first."""


@pytest.mark.parametrize("cls", FIRST, ids=lambda cls: cls.__name__)
def test_the_example_runs(cls: Any) -> None:
    if cls in (prediction.Predictor, zoo.load):
        pytest.importorskip("rdkit")
    text = inspect.getdoc(cls) or ""
    module = sys.modules[cls.__module__]
    examples = doctest.DocTestParser().get_doctest(text, {}, cls.__name__, module.__file__, None)
    lines = sum(example.source.count("\n") + example.want.count("\n") for example in examples.examples)
    assert 0 < lines <= 10
    said: list[str] = []
    outcome = doctest.DocTestRunner(verbose=False).run(examples, out=said.append)
    assert outcome.failed == 0, "".join(said)


PUBLIC = sorted(
    {
        value
        for module in (tg_lpe, data, encoders, models, prediction, training, transforms, attention)
        for value in (getattr(module, name) for name in module.__all__)
        if inspect.isclass(value)
    },
    key=lambda cls: cls.__qualname__,
)


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda cls: cls.__name__)
def test_a_class_shows_the_arguments_of_its_constructor(cls: type) -> None:
    """Documentation tools read ``__signature__``, else ``__new__``, else ``__init__``."""
    if cls.__init__ in (torch.nn.Module.__init__, object.__init__):
        return  # it has no arguments of its own
    own = inspect.signature(cls.__init__)
    shown = getattr(cls, "__signature__", own if cls.__new__ is object.__new__ else inspect.signature(cls.__new__))
    assert [name for name in own.parameters if name != "self"] == [p for p in shown.parameters if p != "self"]
