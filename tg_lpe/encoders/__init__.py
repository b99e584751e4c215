"""Positional encodings, all subclasses of :class:`~tg_lpe.Encoder`."""

from tg_lpe.encoders.base import Encoder, Encoding, Inputs
from tg_lpe.encoders.centralities import Centralities
from tg_lpe.encoders.combined import Combined
from tg_lpe.encoders.cycle_counts import CycleCounts
from tg_lpe.encoders.directed_walk import DirectedWalk
from tg_lpe.encoders.effective_resistance import EffectiveResistance
from tg_lpe.encoders.electric_flow import ElectricFlow
from tg_lpe.encoders.from_transform import FromTransform
from tg_lpe.encoders.gram_transformer import GramTransformer
from tg_lpe.encoders.heat_kernel import HeatKernel
from tg_lpe.encoders.laplacian import LaplacianEigenvectors
from tg_lpe.encoders.linear_transformer import LinearTransformer
from tg_lpe.encoders.lpe import LPE
from tg_lpe.encoders.magnetic_laplacian import MagneticLaplacian
from tg_lpe.encoders.personalized_pagerank import PersonalizedPageRank
from tg_lpe.encoders.positions import Positions
from tg_lpe.encoders.ppgn import PPGN
from tg_lpe.encoders.precompute import precomputed_of, store_precomputed
from tg_lpe.encoders.r_pearl import RPEARL
from tg_lpe.encoders.random_walk import RandomWalk
from tg_lpe.encoders.registry import ENCODERS, as_encoder, load_encoder, make_encoder, register, without_edges
from tg_lpe.encoders.resistive_embedding import ResistiveEmbedding
from tg_lpe.encoders.rrwp import RRWP
from tg_lpe.encoders.shortest_path import ShortestPath
from tg_lpe.encoders.sign_net import SignNet
from tg_lpe.encoders.spe import SPE
from tg_lpe.encoders.spectral import SpectralEncoder, SpectralKernel
from tg_lpe.encoders.whitened import Whitened

__all__ = [
    "ENCODERS",
    "LPE",
    "PPGN",
    "RPEARL",
    "RRWP",
    "SPE",
    "Centralities",
    "Combined",
    "CycleCounts",
    "DirectedWalk",
    "EffectiveResistance",
    "ElectricFlow",
    "Encoder",
    "Encoding",
    "FromTransform",
    "GramTransformer",
    "HeatKernel",
    "Inputs",
    "LaplacianEigenvectors",
    "LinearTransformer",
    "MagneticLaplacian",
    "PersonalizedPageRank",
    "Positions",
    "RandomWalk",
    "ResistiveEmbedding",
    "ShortestPath",
    "SignNet",
    "SpectralEncoder",
    "SpectralKernel",
    "Whitened",
    "as_encoder",
    "load_encoder",
    "make_encoder",
    "precomputed_of",
    "register",
    "store_precomputed",
    "without_edges",
]
