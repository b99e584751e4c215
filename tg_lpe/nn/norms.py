"""Normalisations of node and edge features by name, called as ``norm(x, graphs)``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tg_lpe.checkpoints.registry import Registry
from tg_lpe.nn import parallel
from tg_lpe.ops.segment import RowGroups

NORMS = Registry("norm")
"""Classes with ``__init__(channels)`` and ``forward(x, graphs)``, where ``graphs`` has the graph of each row."""

LARGEST = 30.0
"""Bounded norms clamp values to this number of standard deviations in evaluation."""


@NORMS.register(name="batch")
class RowBatchNorm(nn.BatchNorm1d):
    """Batch norm that uses running statistics for a training batch of fewer than two rows.

    A batch that is :func:`~tg_lpe.nn.parallel.divided` among processes is normalised as a whole; torch's
    ``SyncBatchNorm`` cannot replace this norm.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def forward(self, x: Tensor, graphs: RowGroups | None = None) -> Tensor:  # type: ignore[override]
        """Normalise ``x``, ``[num_rows, channels]``; ``graphs`` is not read."""
        if self.training and parallel.is_divided():
            return self._normalize_divided(x)
        if self.training and x.size(0) < 2:
            return nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return super().forward(x)

    def _normalize_divided(self, x: Tensor) -> Tensor:
        """Normalise the rows of this process by the statistics of all processes' rows."""
        mean, variance, biased, enough = _statistics(x.to(self.running_mean.dtype))
        with torch.no_grad():
            self.num_batches_tracked.add_(enough)
            share = 1 / self.num_batches_tracked.clamp(min=1) if self.momentum is None else self.momentum
            share = enough.to(mean.dtype) * share
            self.running_mean.lerp_(mean, share)
            self.running_var.lerp_(variance, share)
        mean = torch.where(enough, mean, self.running_mean)
        out = (x - mean) * (torch.where(enough, biased, self.running_var) + self.eps).rsqrt()
        return (out if self.weight is None else out * self.weight + self.bias).to(x.dtype)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute mean, unbiased and biased variance of all processes' rows, and whether there are at least two rows."""
    count, mean, squares = parallel.moments(x)
    return mean, squares / (count - 1).clamp(min=1), squares / count.clamp(min=1), count > 1


@NORMS.register(name="bounded")
class BoundedNorm(RowBatchNorm):
    """Batch norm that clamps values, in evaluation, to 30 standard deviations from the mean.

    In training, no value of a batch of ``n`` rows exceeds ``sqrt(n - 1)``. In evaluation, a graph unlike the training
    set can exceed it. If layers sum messages, its values grow from layer to layer: to 1e15 for perchlorate after nine
    layers trained on ZINC, whose molecules stay below 25. Values of up to 30 deviations do not change.
    """

    def forward(self, x: Tensor, graphs: RowGroups | None = None) -> Tensor:  # type: ignore[override]
        """Normalise ``x``, ``[num_rows, channels]``; ``graphs`` is not read."""
        return self._clamp(super().forward(x))

    def _clamp(self, out: Tensor) -> Tensor:
        """Clamp normalised rows in evaluation."""
        if self.training:
            return out
        bound = LARGEST * self.weight.abs()
        return out.clamp((self.bias - bound).to(out.dtype), (self.bias + bound).to(out.dtype))


@NORMS.register(name="running")
class RunningNorm(BoundedNorm):
    """Normalise by running statistics in training too, so that a row hardly depends on the other rows of the batch.

    Use it where a batch has few rows and its statistics are noise, such as for pooled features, which have one row for
    each graph. Before a training batch is normalised, the statistics move a hundredth of the way to those of the batch;
    for the first hundred batches they are the mean over batches. They have no gradient. In evaluation, values are
    clamped as in :class:`BoundedNorm`.

    Args:
        channels: width of the rows.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, momentum=0.01)

    def forward(self, x: Tensor, graphs: RowGroups | None = None) -> Tensor:  # type: ignore[override]
        """Normalise ``x``, ``[num_rows, channels]``; ``graphs`` is not read."""
        mean, variance = self.running_mean, self.running_var
        if self.training and (parallel.is_divided() or x.size(0) > 1):
            mean, variance = self._move(x.detach().to(mean.dtype))
        return self._clamp(nn.functional.batch_norm(x, mean, variance, self.weight, self.bias, eps=self.eps))

    def _move(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Move the statistics and return copies, which the backward pass can read after the next move."""
        if parallel.is_divided():
            with torch.no_grad():
                mean, variance, _, enough = _statistics(x)
            self.num_batches_tracked.add_(enough)
            step = enough / self.num_batches_tracked.clamp(min=1)
            step = enough * step.to(x.dtype).clamp(min=self.momentum or 0.0)
        else:
            variance, mean = torch.var_mean(x, dim=0)
            self.num_batches_tracked.add_(1)
            step = (1 / self.num_batches_tracked).to(x.dtype).clamp(min=self.momentum or 0.0)
        mean, variance = self.running_mean.lerp(mean, step), self.running_var.lerp(variance, step)
        self.running_mean.copy_(mean)
        self.running_var.copy_(variance)
        return mean, variance


@NORMS.register(name="layer")
class LayerNorm(nn.LayerNorm):
    """Layer norm of each row."""

    def forward(self, x: Tensor, graphs: RowGroups | None = None) -> Tensor:  # type: ignore[override]
        """Normalise ``x``, ``[num_rows, channels]``; ``graphs`` is not read."""
        return super().forward(x)


@NORMS.register(name="graph")
class GraphNorm(nn.Module):
    r"""Normalise over the rows of each graph; the share of the mean that is subtracted is learned.

    .. math:: y = \gamma \frac{x - \alpha \mu_g}{\sqrt{\overline{(x - \alpha \mu_g)^2} + \epsilon}} + \beta

    `GraphNorm: A Principled Approach to Accelerating Graph Neural Network Training
    <https://arxiv.org/abs/2009.03294>`_. The result for a graph is the same in training, in evaluation and in any
    batch.

    Args:
        channels: width of the rows.
        eps: added to the variance.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.channels, self.eps = channels, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.mean_scale = nn.Parameter(torch.ones(channels))

    def reset_parameters(self) -> None:
        """Reset the weights to normalisation without learned parameters."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.ones_(self.mean_scale)

    def forward(self, x: Tensor, graphs: RowGroups) -> Tensor:
        """Normalise ``x``, ``[num_rows, channels]``, graph by graph."""
        centred = x - graphs.gather(graphs.mean(x) * self.mean_scale)
        scale = (graphs.mean(centred.square()) + self.eps).rsqrt()
        return centred * graphs.gather(scale * self.weight) + self.bias

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"{self.channels}, eps={self.eps}"


class UnitColumns(nn.Module):
    """Scale each column to length one within each graph, as the paper's experiment does with encodings.

    Columns shorter than :attr:`floor` do not change, so a zero column stays zero, with a finite gradient.
    """

    floor = 1e-12

    def forward(self, x: Tensor, graphs: RowGroups) -> Tensor:
        """Scale ``x``, ``[num_rows, channels]``, graph by graph."""
        length = torch.threshold(graphs.sum(x.square()), self.floor**2, 1.0).sqrt()
        return x / graphs.gather(length)


@NORMS.register(name="none")
class NoNorm(nn.Module):
    """No normalisation.

    Args:
        channels: not read.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, graphs: RowGroups | None = None) -> Tensor:
        """Return ``x``."""
        return x
