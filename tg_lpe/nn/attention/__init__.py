"""Attention layers, see :func:`register_attention`."""

from tg_lpe.nn.attention.bias import BiasAttention, BiasAttentionLayer
from tg_lpe.nn.attention.edge import EdgeAttention, EdgeAttentionLayer
from tg_lpe.nn.attention.gatedgcn import GatedGCN
from tg_lpe.nn.attention.global_attention import (
    GLOBAL_ATTENTIONS,
    Performer,
    SGFormer,
    SoftmaxAttention,
    register_global_attention,
)
from tg_lpe.nn.attention.gps import GPSLayer
from tg_lpe.nn.attention.hybrid import HybridLayer
from tg_lpe.nn.attention.pairs import PairAttention, PairAttentionLayer
from tg_lpe.nn.attention.primal import PrimalAttention
from tg_lpe.nn.attention.registry import ATTENTIONS, AttentionLayer, SharedState, make_attention, register_attention
from tg_lpe.nn.attention.spectral import SpectralAttention, SpectralAttentionLayer

__all__ = [
    "ATTENTIONS",
    "AttentionLayer",
    "GLOBAL_ATTENTIONS",
    "BiasAttention",
    "BiasAttentionLayer",
    "EdgeAttention",
    "EdgeAttentionLayer",
    "GPSLayer",
    "GatedGCN",
    "HybridLayer",
    "PairAttention",
    "PairAttentionLayer",
    "Performer",
    "PrimalAttention",
    "SGFormer",
    "SharedState",
    "SoftmaxAttention",
    "SpectralAttention",
    "SpectralAttentionLayer",
    "make_attention",
    "register_attention",
    "register_global_attention",
]
