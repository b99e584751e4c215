"""Learned positional encodings for PyTorch Geometric."""

from tg_lpe.gram_transformer import Encoding, GramTransformer
from tg_lpe.graph_transformer import GraphTransformer
from tg_lpe.incidence import Incidence
from tg_lpe.linear_transformer import LinearTransformer
from tg_lpe.transforms import LinearTransformerPE

__all__ = ["Encoding", "GramTransformer", "GraphTransformer", "Incidence", "LinearTransformer", "LinearTransformerPE"]

__version__ = "0.1.0"
