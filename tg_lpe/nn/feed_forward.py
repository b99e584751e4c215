"""The feed-forward net of attention layers."""

from __future__ import annotations

from torch import nn


def feed_forward(channels: int, dropout: float) -> nn.Sequential:
    """Return a net with one hidden layer of twice the width, with ReLU and dropout."""
    return nn.Sequential(
        nn.Linear(channels, 2 * channels), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * channels, channels)
    )
