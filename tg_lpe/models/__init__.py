"""Models that use positional encodings, all subclasses of :class:`~tg_lpe.models.Model`."""

from tg_lpe.models.base import Model
from tg_lpe.models.graph_transformer import GraphTransformer
from tg_lpe.models.registry import MODELS, make_model, register
from tg_lpe.models.tuple_transformer import TupleTransformer

__all__ = ["MODELS", "GraphTransformer", "Model", "TupleTransformer", "make_model", "register"]
