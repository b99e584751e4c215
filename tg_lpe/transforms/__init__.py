"""PyTorch Geometric transforms that add positional encodings to graphs."""

from tg_lpe.transforms.effective_resistance import AddEffectiveResistance
from tg_lpe.transforms.laplacian_eigenvectors import AddLaplacianEigenvectors
from tg_lpe.transforms.linear_transformer_pe import LinearTransformerPE
from tg_lpe.transforms.positional_encoding import AddPositionalEncoding

__all__ = [  # in the order of the reference
    "LinearTransformerPE",
    "AddPositionalEncoding",
    "AddLaplacianEigenvectors",
    "AddEffectiveResistance",
]
