"""Positional encodings: every one is an :class:`~tg_lpe.Encoder`."""

from tg_lpe.encoders.base import Encoder, Encoding
from tg_lpe.encoders.gram_transformer import GramTransformer
from tg_lpe.encoders.linear_transformer import LinearTransformer
from tg_lpe.encoders.registry import ENCODERS, load_encoder, make_encoder, register

__all__ = [
    "ENCODERS",
    "Encoder",
    "Encoding",
    "GramTransformer",
    "LinearTransformer",
    "load_encoder",
    "make_encoder",
    "register",
]
