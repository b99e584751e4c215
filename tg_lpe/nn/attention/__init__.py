"""Attention layers, one file each."""

from tg_lpe.nn.attention.edge import EdgeAttention, EdgeAttentionLayer

__all__ = ["EdgeAttention", "EdgeAttentionLayer"]
