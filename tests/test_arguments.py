"""Arguments of a wrong kind are refused; the text "no" would count as true for every flag."""

from __future__ import annotations

import inspect
import math
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from helpers import refusals

from tg_lpe import GramTransformer, GraphTransformer, LinearTransformer
from tg_lpe.app.cli.parser import as_option
from tg_lpe.arguments import ArgumentError
from tg_lpe.encoders import ENCODERS, LaplacianEigenvectors, ResistiveEmbedding
from tg_lpe.models.registry import MODELS
from tg_lpe.nn.attention import ATTENTIONS, GLOBAL_ATTENTIONS

LAYER = {"hidden_channels": 8, "heads": 2}
"""The arguments that an attention layer needs."""


def flags() -> list[Any]:
    """Every registered class with each of its flags, and the arguments that it needs besides."""
    cases = []
    for registry, needed in ((ENCODERS, {}), (ATTENTIONS, LAYER), (GLOBAL_ATTENTIONS, LAYER)):
        for name in registry:
            for parameter in inspect.signature(registry[name]).parameters.values():
                if parameter.annotation in (bool, "bool"):
                    cases.append(pytest.param(registry[name], needed, parameter.name, id=f"{name}-{parameter.name}"))
    return cases


@pytest.mark.parametrize(("cls", "needed", "flag"), flags())
@pytest.mark.parametrize("value", ["no", 1, None])
def test_flags(cls: type, needed: dict[str, int], flag: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{flag} must be True or False, got {value!r}"):
        cls(**needed, **{flag: value})


WRONG: dict[str, tuple[object, ...]] = {
    "int": (np.int64(4), torch.tensor(4), 2.5, "2", -1, 0),
    "float": (np.float32(0.25), torch.tensor(0.25), "0.25", math.nan, math.inf, -0.1, True),
    "str": ("no name",),
}
MAY_BE_ZERO = {"columns", "edge_dim", "edge_out_channels", "in_channels", "num_largest", "pair_out_channels", "seed"}
BELOW_ONE = {"attention_dropout", "drop_path", "dropout", "tolerance"}


def wrong_for(name: str, parameter: inspect.Parameter) -> list[object]:
    """Values that an argument of a class may not have."""
    may_be_zero = parameter.name in MAY_BE_ZERO or name.startswith("Spectral")
    values = WRONG.get(re.split(r"\W", str(parameter.annotation))[0], ())
    too_large = [1.0] if parameter.name in BELOW_ONE else []
    return [value for value in values if value != 0 or not may_be_zero] + too_large


def wrong_values() -> list[Any]:
    """Every class with each argument that is a number or a name. Of layers, those that a model passes from options."""
    return [
        pytest.param(registry[name], needed, parameter.name, values, id=f"{name}-{parameter.name}")
        for registry, needed in ((ENCODERS, {}), (MODELS, {}), (ATTENTIONS, LAYER), (GLOBAL_ATTENTIONS, LAYER))
        for name in registry
        for parameter in inspect.signature(registry[name]).parameters.values()
        if parameter.name not in {*needed, "pair_channels"}
        if not str(parameter.annotation).startswith("float | Sequence")
        if (values := wrong_for(name, parameter))
    ]


@pytest.mark.parametrize(("cls", "needed", "name", "values"), wrong_values())
def test_wrong_values(cls: type, needed: dict[str, int], name: str, values: list[object]) -> None:
    """Numbers of other libraries, too, are refused at once: a checkpoint could not hold them after the training."""
    what = name.replace("num_node_types", "node types").replace("num_edge_types", "edge types")
    for value in values:
        with pytest.raises((ValueError, TypeError), match=f"{what}|{name}"):
            cls(**{**needed, name: value})


def test_every_kind_of_class_has_flags() -> None:
    """The test above would pass if it found none."""
    names = {case.id for case in flags()}
    cases = {f"{case.id}-{value!r}" for case in wrong_values() for value in case.values[3]}
    assert {"GraphTransformer-in_channels--1", "GramTransformer-num_node_types-0"} <= cases
    assert {"LaplacianEigenvectors-which-'no name'", "GramTransformer-direction--0.1", "hybrid-dropout-1.0"} <= cases
    assert {"LinearTransformer-update_incidence", "spectral-full"} <= names


test_seeds_widths_and_options = refusals(
    lambda cls, **arguments: cls(**arguments),
    *(
        ({"cls": cls, "seed": None}, "seed must")
        for cls in (GramTransformer, LinearTransformer, LaplacianEigenvectors, ResistiveEmbedding)
    ),
    *(
        ({"cls": ATTENTIONS[name], "hidden_channels": width, "heads": 1}, "hidden_channels must be an integer")
        for name in ATTENTIONS
        if name != "hybrid"  # whose parts it depends on
        for width in (0, "8")
    ),
    *(
        ({"cls": GraphTransformer, "attention_options": wrong}, "attention_options must")
        for wrong in (3, "rank", ["a"])
    ),
)


def test_an_error_that_names_arguments_for_python_and_for_a_command_line() -> None:
    """Braces in quoted values are kept, and the error passes between processes."""
    error = ArgumentError(
        "{} holds {resume}, {targets}, {encoder} or {folder}",
        "a{b}.csv",
        resume=True,
        targets=["the label", "y"],
        encoder=None,
        folder=...,
    )
    said = "holds resume=True, targets=['the label', 'y'], encoder=None or folder"
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert isinstance(same, ValueError) and str(same) == f"a{{b}}.csv {said}"
        assert same.told(as_option) == "a{b}.csv holds --resume, --target 'the label' y, --encoder none or --out"
        assert str(same.about("x{0}")) == f"x{{0}}: a{{b}}.csv {said}"
