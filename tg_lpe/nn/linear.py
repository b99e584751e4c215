"""Linear maps of the features of a batch."""

from __future__ import annotations

from torch import Tensor, nn

from tg_lpe.ops.products import linear


class Linear(nn.Linear):
    """Linear map like torch's, computed by :func:`tg_lpe.ops.products.linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Map the rows of ``input``, ``[..., in_features]``."""
        return linear(input, self.weight, self.bias)


def feed_forward(channels: int, dropout: float) -> nn.Sequential:
    """Return a net with one hidden layer of twice the width, with ReLU and dropout."""
    return nn.Sequential(Linear(channels, 2 * channels), nn.ReLU(), nn.Dropout(dropout), Linear(2 * channels, channels))
