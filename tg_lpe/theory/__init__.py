"""Build and run the transformers of the lemmas in "Graph Transformers Dream of Electric Flow".

`The paper <https://arxiv.org/abs/2410.16699>`_ proves that a linear transformer can compute electric flow, effective
resistance, heat kernels and Laplacian eigenvectors from the incidence matrix alone. For each lemma, one function
returns a transformer with its weights, and another bounds its error after a number of layers. Functions such as
:func:`effective_resistance` compute a quantity with these layers to a tolerance.

:mod:`tg_lpe.theory.wl` computes Weisfeiler-Leman colourings. No other part of the package imports this one.
"""

from tg_lpe.theory import wl
from tg_lpe.theory.bounds import (
    chebyshev_filter_bound,
    electric_flow_bound,
    fast_electric_flow_bound,
    fast_heat_kernel_bound,
    heat_kernel_bound,
    layers_needed,
    resistive_embedding_bound,
    spectral_bounds,
    spectral_interval,
    subspace_iteration_bound,
)
from tg_lpe.theory.constructions import (
    bottom_eigenvectors,
    electric_flow,
    fast_electric_flow,
    fast_electric_flow_input,
    fast_electric_flow_output,
    fast_heat_kernel,
    fast_heat_kernel_input,
    from_incidence,
    heat_kernel_layers,
    inverse_eigenvectors,
    orthogonalize,
    resistive_embedding_layers,
    top_eigenvectors,
)
from tg_lpe.theory.efficient import EfficientTransformer
from tg_lpe.theory.filtered import chebyshev_filter
from tg_lpe.theory.full import FullTransformer
from tg_lpe.theory.functions import (
    effective_resistance,
    electric_current,
    electric_potential,
    heat_kernel,
    laplacian_eigenvectors,
    remove_component_means,
    resistive_embedding,
)
from tg_lpe.theory.primal import AuditedPrimalAttention, DualAttention, KernelSVDAttention

__all__ = [
    "AuditedPrimalAttention",
    "DualAttention",
    "KernelSVDAttention",
    "EfficientTransformer",
    "FullTransformer",
    "bottom_eigenvectors",
    "chebyshev_filter",
    "chebyshev_filter_bound",
    "effective_resistance",
    "electric_current",
    "electric_flow",
    "electric_flow_bound",
    "electric_potential",
    "fast_electric_flow",
    "fast_electric_flow_bound",
    "fast_electric_flow_input",
    "fast_electric_flow_output",
    "fast_heat_kernel",
    "fast_heat_kernel_bound",
    "fast_heat_kernel_input",
    "from_incidence",
    "heat_kernel",
    "heat_kernel_bound",
    "heat_kernel_layers",
    "inverse_eigenvectors",
    "laplacian_eigenvectors",
    "layers_needed",
    "orthogonalize",
    "remove_component_means",
    "resistive_embedding",
    "resistive_embedding_bound",
    "resistive_embedding_layers",
    "spectral_bounds",
    "spectral_interval",
    "subspace_iteration_bound",
    "top_eigenvectors",
    "wl",
]
