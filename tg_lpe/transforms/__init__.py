"""PyTorch Geometric transforms: thin, they call the encoder."""

from tg_lpe.transforms.linear_transformer_pe import LinearTransformerPE

__all__ = ["LinearTransformerPE"]
