"""The context that seeds the global generators."""

from __future__ import annotations

import pytest
import torch

from tg_lpe.data.seeding import seeded


def test_seeded_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    with seeded(3):
        assert torch.equal(torch.rand(3), first)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_seeded_draws_on_a_gpu() -> None:
    device = torch.device("cuda")
    before = torch.cuda.get_rng_state()
    drawn = []
    for _ in range(2):
        with seeded(3, device):
            drawn.append(torch.rand(4, device=device))
        with seeded(3):
            pass
    assert torch.equal(*drawn) and torch.equal(torch.cuda.get_rng_state(), before)
