"""Learned positional encodings for PyTorch Geometric."""

from tg_lpe import constructions, zoo
from tg_lpe.encoders.gram_transformer import Encoding, GramTransformer
from tg_lpe.encoders.linear_transformer import LinearTransformer
from tg_lpe.graph.incidence import Incidence
from tg_lpe.models.graph_transformer import GraphTransformer
from tg_lpe.transforms import LinearTransformerPE

__all__ = [
    "Encoding",
    "GramTransformer",
    "GraphTransformer",
    "Incidence",
    "LinearTransformer",
    "LinearTransformerPE",
    "constructions",
    "zoo",
]

__version__ = "0.1.0"
