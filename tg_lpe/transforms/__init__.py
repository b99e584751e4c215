"""PyTorch Geometric transforms: thin, they call the encoder or the constructions."""

from tg_lpe.transforms.constructions import (
    AddEffectiveResistance,
    AddHeatKernelPE,
    AddLaplacianEigenvectors,
    AddResistiveEmbeddingPE,
)
from tg_lpe.transforms.linear_transformer_pe import LinearTransformerPE
from tg_lpe.transforms.positional_encoding import AddPositionalEncoding

__all__ = [
    "AddEffectiveResistance",
    "AddHeatKernelPE",
    "AddLaplacianEigenvectors",
    "AddPositionalEncoding",
    "AddResistiveEmbeddingPE",
    "LinearTransformerPE",
]
