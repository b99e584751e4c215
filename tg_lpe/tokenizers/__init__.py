"""What transformers over tuples of nodes take as tokens."""

from tg_lpe.graph.tuples import NO_EDGE, SAME_NODE
from tg_lpe.tokenizers.tuple_tokens import TupleTokens, tuple_tokens

__all__ = ["NO_EDGE", "SAME_NODE", "TupleTokens", "tuple_tokens"]
