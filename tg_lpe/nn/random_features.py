"""Softmax attention by positive random features: linear in the number of tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tg_lpe.nn.tuples import Attention, padded_tokens
from tg_lpe.ops.operator import checkpointed
from tg_lpe.ops.segment import RowGroups

MAX_FEATURES = 2**22
"""Most features of tokens that are computed at once, for each head: 16 MiB in float32."""


class RandomFeatures(nn.Module):
    r"""Positive random features of the softmax kernel.

    `Rethinking Attention with Performers <https://arxiv.org/abs/2009.14794>`_, lemma 1 and section 2.4: ``exp(q^T k)``
    is the mean of ``exp(w^T q - |q|^2 / 2) exp(w^T k - |k|^2 / 2)`` over normal vectors ``w``. Groups of ``width``
    vectors are orthogonal, which lowers the variance. The vectors are not trained.

    Args:
        num_features: number of vectors.
        width: width of queries and keys.
    """

    projection: Tensor

    def __init__(self, num_features: int, width: int) -> None:
        super().__init__()
        self.register_buffer("projection", torch.empty(num_features, width))
        self.reset_parameters()

    def extra_repr(self) -> str:
        """Show the arguments."""
        return ", ".join(str(size) for size in self.projection.shape)

    def reset_parameters(self) -> None:
        """Draw the vectors again."""
        num_features, width = self.projection.shape
        device = self.projection.device
        blocks = torch.randn(-(-num_features // width), width, width, device=device, dtype=torch.float32)
        directions, upper = torch.linalg.qr(blocks)
        # Without the signs, the orthogonal matrices would not be uniformly distributed.
        directions = directions * upper.diagonal(dim1=1, dim2=2).sign().unsqueeze(1)
        lengths = torch.randn(num_features, width, device=device, dtype=torch.float32).norm(dim=1, keepdim=True)
        with torch.no_grad():
            self.projection.copy_(lengths * directions.mT.flatten(0, 1)[:num_features])

    def forward(self, rows: Tensor) -> Tensor:
        """Return the logarithms of the features, ``[..., num_features]``, of queries or keys ``[..., width]``."""
        return rows @ self.projection.to(rows.dtype).mT - rows.square().sum(-1, keepdim=True) / 2


class RandomFeatureAttention(Attention):
    r"""Attend from each token to all tokens of its graph by random features, at linear cost.

    `Rethinking Attention with Performers <https://arxiv.org/abs/2009.14794>`_, eq. (4). It approaches
    :class:`~tg_lpe.nn.tuples.FullAttention` as the number of features grows, slowly if scores are large. Features are
    computed in float32 at least. On large graphs they are computed in chunks, and again in the backward pass.

    Args:
        graphs: the graph of each token.
        features: the random features, of the width of a head.
    """

    def __init__(self, graphs: RowGroups, features: RandomFeatures) -> None:
        self.features, self.at_once = features, max(1, MAX_FEATURES // features.projection.size(0))
        self.rows, masks = padded_tokens(graphs, lambda _: self.at_once)
        self.masks = [mask[:, None, :, None] for mask in masks]

    def __call__(self, query_key_value: Tensor, dropout: float = 0.0) -> Tensor:
        """Attend by random features, see :class:`~tg_lpe.nn.tuples.Attention`; there are no weights to drop."""
        dtype = query_key_value.dtype
        with torch.autocast(query_key_value.device.type, enabled=False):
            rows = query_key_value.to(torch.promote_types(dtype, torch.float32))
            outputs = []
            for mask, padded in zip(self.masks, self.rows.pad(rows), strict=True):
                query, key, value = padded.permute(2, 0, 3, 1, 4)
                scale = query.size(-1) ** -0.25
                outputs.append(self._attend(query * scale, key * scale, value, mask).transpose(1, 2).to(dtype))
        return self.rows.unpad(outputs) if outputs else query_key_value[:, 0]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Attend in one bucket; result, queries, keys and values are ``[num_graphs, heads, max_tokens, width]``."""
        values = torch.cat([value, mask.to(value.dtype).expand(*value.shape[:-1], 1)], -1)
        at_once = max(1, self.at_once // query.size(0))
        if query.size(2) <= at_once:
            return self._mean(query, *self._sums(key, values, mask))
        chunks = zip(*(rows.split(at_once, 2) for rows in (key, values, mask)), strict=True)
        sums, peaks = zip(*(checkpointed(self._sums, *chunk) for chunk in chunks), strict=True)
        peak = torch.stack(peaks).amax(0)
        scaled = [part * (part_peak - peak).exp().mT for part, part_peak in zip(sums, peaks, strict=True)]
        total = torch.stack(scaled).sum(0)
        return torch.cat([checkpointed(self._mean, rows, total, peak) for rows in query.split(at_once, 2)], 2)

    def _sums(self, key: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Sum features times values over keys; features are divided by their largest value to avoid overflow.

        Returns:
            Sums ``[num_graphs, heads, num_features, width + 1]``, and the logarithm of each feature's largest value,
            ``[num_graphs, heads, 1, num_features]``.
        """
        logarithms = self.features(key).masked_fill(~mask, -torch.inf)
        # All tokens of a chunk may be padding.
        peak = logarithms.detach().amax(2, keepdim=True).clamp(min=torch.finfo(key.dtype).min)
        return (logarithms - peak).exp().mT @ values, peak

    def _mean(self, query: Tensor, total: Tensor, peak: Tensor) -> Tensor:
        """Return weighted means of the values, ``[num_graphs, heads, num_queries, width]``.

        The denominator is not zero, because the feature with a query's largest weight has a sum of at least one.
        """
        logarithms = self.features(query) + peak
        weights = (logarithms - logarithms.detach().amax(3, keepdim=True)).exp()
        numerator = weights @ total
        return numerator[..., :-1] / numerator[..., -1:]
