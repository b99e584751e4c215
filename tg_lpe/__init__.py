"""Learned positional encodings for PyTorch Geometric."""

from tg_lpe import encoders, models, plot, zoo
from tg_lpe.encoders import Encoder, Encoding, GramTransformer, LinearTransformer
from tg_lpe.graph.incidence import Incidence
from tg_lpe.models.graph_transformer import GraphTransformer
from tg_lpe.transforms import AddPositionalEncoding, LinearTransformerPE

__all__ = [
    "AddPositionalEncoding",
    "Encoder",
    "Encoding",
    "GramTransformer",
    "GraphTransformer",
    "Incidence",
    "LinearTransformer",
    "LinearTransformerPE",
    "encoders",
    "models",
    "plot",
    "zoo",
]

__version__ = "0.2.0.dev0"
