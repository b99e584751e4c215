"""Attention layers, one file each; :func:`register_attention` says what a layer is."""

from tg_lpe.nn.attention.edge import EdgeAttention, EdgeAttentionLayer
from tg_lpe.nn.attention.gps import GPSLayer
from tg_lpe.nn.attention.neighbourhoods import Neighbourhoods
from tg_lpe.nn.attention.registry import ATTENTIONS, make_attention, make_shared, register_attention
from tg_lpe.nn.attention.spectral import SpectralAttention, SpectralAttentionLayer

__all__ = [
    "ATTENTIONS",
    "EdgeAttention",
    "EdgeAttentionLayer",
    "GPSLayer",
    "Neighbourhoods",
    "SpectralAttention",
    "SpectralAttentionLayer",
    "make_attention",
    "make_shared",
    "register_attention",
]
