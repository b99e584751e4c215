"""Eqs. (2), (3) and (6) against the paper's formula in numpy, letter by letter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import normal, randomize_, refusals, relative_error
from torch import Tensor

from tg_lpe.checkpoints.checkpoint import CheckpointMixin
from tg_lpe.theory import EfficientTransformer, FullTransformer, fast_electric_flow, fast_heat_kernel
from tg_lpe.theory.full import attention, full_layer, normalize_rows

MATRICES = ("w_v", "w_q", "w_k", "w_r")


def literal(z: np.ndarray, v: np.ndarray, q: np.ndarray, k: np.ndarray, r: np.ndarray) -> np.ndarray:
    """``Z + W^V Z Z^T W^Q^T W^K Z + W^R Z`` of one graph."""
    return z + v @ z @ z.T @ q.T @ k @ z + r @ z


def weights(*shape: int, seed: int = 0) -> list[Tensor]:
    return [0.3 * normal(*shape, seed=seed + number) for number in range(4)]


def loaded(height: int, num_weights: int, schedule: list[int] | None = None, **options) -> FullTransformer:
    return randomize_(FullTransformer(height, num_weights, schedule, **options), scale=0.3)


@pytest.mark.parametrize("shape", [(5, 7), (5, 1), (3, 5, 7), (2, 3, 5, 4)])
def test_a_layer_is_eq_3(shape: tuple[int, ...]) -> None:
    z, given = normal(*shape, seed=9), weights(5, 5)
    got = full_layer(z, *given).reshape(-1, *shape[-2:])
    for own, expected in zip(got, z.reshape(-1, *shape[-2:]), strict=True):
        assert relative_error(own, literal(expected.numpy(), *(w.numpy() for w in given))) < 1e-13
    rest = z + given[3] @ z
    assert relative_error(attention(z, *given[:3]), full_layer(z, *given) - rest) < 1e-12


def test_each_of_several_models_has_its_own_weights() -> None:
    z, given = normal(2, 3, 5, 4, seed=9), weights(2, 5, 5)
    for model, own in enumerate(full_layer(z, *given)):
        assert relative_error(own, full_layer(z[model], *(w[model] for w in given))) < 1e-13


def test_blockwise_weights_are_kronecker_products() -> None:
    for model in (loaded(3, 2, [0, 1, 0], blockwise=True), fast_electric_flow(3), fast_heat_kernel(3)):
        z = 0.3 * normal(2, 4 * model.height, 4, seed=5)
        written = FullTransformer(4 * model.height, len(model.w_v), model.schedule)
        for name in MATRICES:
            blocks = [torch.kron(w, torch.eye(4).double()) for w in getattr(model, name).detach()]
            getattr(written, name).data = torch.stack(blocks)
        for first, second in zip(model.trace(z), written.trace(z), strict=True):
            assert relative_error(first, second) < 1e-12


@pytest.mark.parametrize("schedule", [None, [2, 0, 0, 1], [], [[0, 2], 1, [1, 1, 0]]])
def test_layers_take_their_weights_from_the_schedule(schedule: list[int | list[int]] | None) -> None:
    model, z = loaded(5, 3, schedule), normal(5, 4)
    expected = [z.numpy()]
    for heads in range(3) if schedule is None else schedule:
        before, after = expected[-1], expected[-1]
        for index in heads if isinstance(heads, list) else [heads]:
            own = literal(before, *(getattr(model, name)[index].detach().numpy() for name in MATRICES))
            after = after + own - before
        expected.append(after)
    states = list(model.trace(z))
    assert len(states) == len(expected) == model.num_layers + 1
    for got, wanted in zip(states, expected, strict=True):
        assert relative_error(got, wanted) < 1e-12
    assert torch.equal(model(z), states[-1])


@pytest.mark.parametrize("how", [None, "frobenius", "columns"])
@pytest.mark.parametrize("incidence", [False, True])
def test_normalisations(how: str | None, incidence: bool) -> None:
    d = 4
    options = {"num_edges": d, "normalize_phi": how, "normalize_incidence": incidence}
    model, z = loaded(7, 3, **options), normal(2, 7, 5)
    for got, expected in zip(model(z), z.numpy(), strict=True):
        for index in range(3):
            expected = literal(expected, *(getattr(model, name)[index].detach().numpy() for name in MATRICES))
            b, phi = expected[:d], expected[d:]
            if incidence:
                b = b / np.linalg.norm(b)
            if how == "frobenius":
                phi = phi / np.linalg.norm(phi)
            if how == "columns":
                phi = phi / np.linalg.norm(phi, axis=1, keepdims=True)
            expected = np.concatenate([b, phi])
        assert relative_error(got, expected) < 1e-12


def test_gradients() -> None:
    given = [w.requires_grad_() for w in weights(4, 4)]
    z = (0.5 * normal(2, 4, 3, seed=7)).requires_grad_()
    assert torch.autograd.gradcheck(full_layer, (z, *given))
    stacked = [w.detach().expand(2, 4, 4).clone().requires_grad_() for w in given]
    assert torch.autograd.gradcheck(full_layer, (z, *stacked))
    blocks = [w.requires_grad_() for w in weights(2, 2)]
    square = (0.5 * normal(6, 3, seed=8)).requires_grad_()
    assert torch.autograd.gradcheck(lambda *args: full_layer(*args, True), (square, *blocks))
    rows = lambda z: normalize_rows(z, 2, "columns", True)  # noqa: E731
    assert torch.autograd.gradcheck(rows, (z,))


@pytest.mark.parametrize(
    "model",
    [
        loaded(4, 2, [1, 0, 1], num_edges=2, normalize_phi="frobenius"),
        loaded(4, 2, [1, 0, 1], blockwise=True),
        EfficientTransformer(2, 4, 2, [1, 0, 1], "columns", True),
        EfficientTransformer(2, 4, 2, [1, 0, 1], blockwise=True),
    ],
)
def test_round_trip(tmp_path: Path, model: CheckpointMixin) -> None:
    randomize_(model).save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert repr(again) == repr(model) and again.schedule == [1, 0, 1]
    assert all(torch.equal(one, other) for one, other in zip(again.parameters(), model.parameters(), strict=True))


test_refusals = refusals(
    FullTransformer,
    ((4, 1, None, 0, "rows"), "normalize_phi"),
    *(((4, 2, schedule), "schedule") for schedule in ([[0, 2]], [-1], [0, []])),
    ({"height": 4, "num_weights": 1, "blockwise": True, "normalize_phi": "columns"}, "blockwise"),
    ({"height": 4, "num_weights": 1, "blockwise": True, "normalize_incidence": True}, "blockwise"),
)
test_refused_shapes = refusals(
    lambda z, blockwise: FullTransformer(4, 1, blockwise=blockwise)(z),
    ((normal(5, 3), False), "z"),
    ((normal(4), False), "z"),
    ((normal(4, 3), True), "z"),
)
