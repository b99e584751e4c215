"""Norms against PyTorch's and PyTorch Geometric's."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn
from helpers import few, normal, randomize_, relative_error
from hypothesis import given
from hypothesis import strategies as st

from tg_lpe.nn.attention import make_attention
from tg_lpe.nn.norms import NORMS, UnitColumns
from tg_lpe.ops.segment import RowGroups


@few
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any))
def test_graph_norm_is_that_of_pyg(sizes: list[int]) -> None:
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = normal(len(batch), 4).requires_grad_()
    ours, theirs = NORMS["graph"](4).double(), torch_geometric.nn.GraphNorm(4).double()
    randomize_(ours)
    theirs.load_state_dict(ours.state_dict())
    got = ours(x, RowGroups(batch, len(sizes)))
    expected = theirs(x, batch, batch_size=len(sizes))
    assert relative_error(got, expected) < 1e-12
    # Where a graph has a single node, the root of a tiny variance makes gradients large.
    grads = [torch.autograd.grad((out * normal(*out.shape, seed=1)).sum(), x)[0] for out in (got, expected)]
    assert relative_error(*grads) < 1e-9


@few
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any), st.integers(-5, 5))
def test_unit_columns(sizes: list[int], order: int) -> None:
    """Each column of each graph at length one, at any scale; a zero column stays zero."""
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = 10.0**order * normal(len(batch), 3)
    x[batch == batch[0], 1] = 0
    got = UnitColumns()(x, RowGroups(batch, len(sizes)))
    expected = x.clone()
    for graph, column in [(graph, column) for graph in batch.unique() for column in range(3)]:
        length = x[batch == graph, column].norm()
        expected[batch == graph, column] /= length if length > 0 else 1
    assert relative_error(got, expected) < 1e-12


def test_batch_and_layer_norm_are_those_of_torch() -> None:
    x, groups = 3 * normal(20, 4) + 1, RowGroups(torch.zeros(20, dtype=torch.int64), 1)
    for name, theirs in (
        ("batch", torch.nn.BatchNorm1d(4)),
        ("bounded", torch.nn.BatchNorm1d(4)),
        ("layer", torch.nn.LayerNorm(4)),
    ):
        ours = NORMS[name](4).double()
        theirs = theirs.double()
        for train in (True, False):
            assert torch.equal(ours.train(train)(x, groups), theirs.train(train)(x))
        assert list(ours.state_dict()) == list(theirs.state_dict())
    assert NORMS["none"](4)(x, groups) is x


def test_batch_norm_of_one_row_uses_running_statistics() -> None:
    norm, groups = NORMS["batch"](4).double().train(), RowGroups(torch.zeros(1, dtype=torch.int64), 1)
    norm.running_mean.fill_(2.0)
    norm.running_var.fill_(4.0)
    torch.testing.assert_close(
        norm(torch.full((1, 4), 6.0).double(), groups), torch.full((1, 4), 2.0).double(), rtol=1e-5, atol=0
    )
    assert norm(torch.zeros(0, 4).double(), groups).shape == (0, 4)


def test_running_norm_uses_the_same_statistics_in_training_and_evaluation() -> None:
    norm = NORMS["running"](3).double().train()
    randomize_(norm)
    batches = [scale * normal(size, 3, seed=size) + scale for size, scale in ((5, 1.0), (40, 2.0), (7, 0.5))]
    for number, batch in enumerate(batches, start=1):
        rows = batch.clone().requires_grad_()
        got = norm(rows)
        assert torch.equal(got, norm.eval()(rows))
        norm.train()
        of_batches = [(part.mean(0), part.var(0)) for part in batches[:number]]
        mean, variance = (torch.stack(parts).mean(0) for parts in zip(*of_batches, strict=True))
        expected = (batch - mean) / (variance + 1e-5).sqrt() * norm.weight + norm.bias
        assert relative_error(got, expected) < 1e-6  # the step is a float32
        # No gradient through the statistics: each row has that of a linear map of it.
        (grad,) = torch.autograd.grad(got.sum(), rows)
        assert relative_error(grad, (norm.weight / (variance + 1e-5).sqrt()).expand_as(rows)) < 1e-6


def test_running_norm_moves_a_hundredth_of_the_way_in_the_end() -> None:
    norm = NORMS["running"](2).double().train()
    norm.num_batches_tracked.fill_(500)
    x = normal(10, 2) * 3 + 5
    norm(x)
    assert relative_error(norm.running_mean, 0.01 * x.mean(0)) < 1e-6
    assert relative_error(norm.running_var, 0.99 + 0.01 * x.var(0)) < 1e-6
    before = norm.running_mean.clone()
    norm(x[:1]), norm(x[:0]), norm.eval()(x)
    assert torch.equal(norm.running_mean, before) and int(norm.num_batches_tracked) == 501


@pytest.mark.parametrize("name", ["bounded", "running"])
def test_rows_unlike_any_of_training_are_cut_off_in_evaluation(name: str) -> None:
    norm = randomize_(NORMS[name](3)).double()
    norm.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    norm.running_var.copy_(torch.tensor([4.0, 1.0, 0.25]))
    std = (norm.running_var + norm.eps).sqrt()
    z = torch.tensor([[29.0, -29.0, 0.0], [1e9, -1e9, 31.0]], dtype=torch.float64)
    got = norm.eval()(z * std + norm.running_mean)
    assert relative_error(got, z.clamp(-30, 30) * norm.weight + norm.bias) < 1e-12
    plain = torch.nn.functional.batch_norm(
        z[:1] * std + norm.running_mean, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
    )
    assert torch.equal(got[:1], plain), "all else keeps every bit"


def test_a_norm_of_ones_own_needs_no_reset_parameters() -> None:
    class Scale(torch.nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(channels, channels)

        def forward(self, x: torch.Tensor, graphs: RowGroups) -> torch.Tensor:
            return self.linear(x)

    NORMS.register(Scale, name="scale")
    for attention in ("edge", "gps", "hybrid", "spectral"):
        make_attention(attention, 8, 2, {"norm": "scale"}).reset_parameters()
