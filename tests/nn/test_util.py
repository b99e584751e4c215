"""Functions of pairs of nodes against numpy, pair by pair; and their invariance to signs."""

from __future__ import annotations

import numpy as np
import torch
from helpers import few, normal
from hypothesis import given
from hypothesis import strategies as st

from tg_lpe.nn._util import pair_forms

pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=9)


@few
@given(pairs, st.integers(0, 3))
def test_pair_by_pair(drawn: list[tuple[int, int]], k: int) -> None:
    pe = normal(6, k)
    index = torch.tensor(drawn, dtype=torch.int64).reshape(-1, 2).T
    got = pair_forms(pe, index)
    assert got.shape == (len(drawn), 2 * k)
    for row, (i, j) in zip(got.numpy(), drawn, strict=True):
        a, b = pe[i].numpy(), pe[j].numpy()
        assert np.array_equal(row, np.concatenate([np.abs(a - b), a * b]))
    assert torch.equal(pair_forms(pe, index.flip(0)), got), "an edge has no direction"
    signs = torch.tensor([-1.0, 1.0, -1.0], dtype=torch.float64)[:k]
    assert torch.equal(pair_forms(pe * signs, index), got), "a column has no sign"


def test_gradients() -> None:
    index = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
    assert torch.autograd.gradcheck(lambda pe: pair_forms(pe, index), normal(3, 2).requires_grad_())
