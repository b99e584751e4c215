"""Tokens of transformers over tuples of nodes."""

from tg_lpe.graph.tuples import NO_EDGE, SAME_NODE
from tg_lpe.tokenizers.tuple_embedding import TupleEmbedding, node_pairs
from tg_lpe.tokenizers.tuple_tokens import TupleTokens, tuple_tokens

__all__ = ["NO_EDGE", "SAME_NODE", "TupleEmbedding", "TupleTokens", "node_pairs", "tuple_tokens"]
