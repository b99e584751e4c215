"""Linear map of the features of a batch."""

from __future__ import annotations

from torch import Tensor, nn

from tg_lpe.ops.products import linear


class Linear(nn.Linear):
    """Linear map like torch's, computed by :func:`tg_lpe.ops.products.linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Map the rows of ``input``, ``[..., in_features]``."""
        return linear(input, self.weight, self.bias)
