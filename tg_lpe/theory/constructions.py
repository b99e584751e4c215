"""Build the transformers of the lemmas: their weights, with corrections of misprints.

`Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, sections 3, 4, 10 and 11.
Eigenvectors use eq. (6): each column of ``Phi`` is scaled to length one at the end of a layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.theory.efficient import EfficientTransformer
from tg_lpe.theory.full import FullTransformer


def electric_flow(k: int, num_layers: int, step_size: float) -> EfficientTransformer:
    """Build the transformer of Lemma 1: each layer is a step of gradient descent on the energy of an electric flow.

    ``Phi_(l+1) = Phi_l - delta (L Phi_l - Psi)`` by eqs. (10) and (11), as weights of eq. (7), Lemma 9. All layers
    share their weights.

    Input: demands ``Psi``, ``[n, k]``, whose sum over each connected component is zero
    (:func:`~tg_lpe.theory.remove_component_means`). Output: potentials ``L^+ Psi``, ``[n, k]``. Error:
    :func:`~tg_lpe.theory.electric_flow_bound`, which corrects the printed bound.

    Args:
        k: number of demands.
        num_layers: ``L``.
        step_size: ``delta``, positive, and at most ``1 / lambda_max`` of every graph it runs on.
    """
    if not step_size > 0:
        raise ValueError(f"step_size must be positive, got {step_size}")
    model = EfficientTransformer(k, 2 * k, 1, [0] * num_layers, blockwise=True)
    psi, phi = range(2)
    with torch.no_grad():
        model.alpha_q.fill_(1.0)
        model.alpha_k.fill_(1.0)
        model.w_v[0, phi, phi] = -step_size
        model.w_r[0, phi, psi] = step_size
    return model


def fast_electric_flow(num_layers: int) -> FullTransformer:
    """Build the transformer of Lemma 4: ``L`` layers replace ``2^L`` layers of Lemma 1, for all demands at once.

    ``Z^T = [Gamma, I, Phi]``: each layer squares ``Gamma`` and multiplies ``Phi`` by ``I + Gamma``, so that
    ``Phi_L = delta (I + M) (I + M^2) (I + M^4) ... = delta (I + M + ... + M^(2^L - 1))`` with ``M = I^ - delta L``,
    ``I^`` the projection off the constant vector of each component. (Eq. (13) ends its sum at ``2^t``; the product over
    ``l = 0..t`` gives ``2^(t+1) - 1``.)

    Input: :func:`fast_electric_flow_input`. Output: ``L^+``, the last ``n`` rows of ``Z_L``
    (:func:`fast_electric_flow_output`). Error: :func:`~tg_lpe.theory.fast_electric_flow_bound`.

    Corrections: the third block row of ``W^V`` must be ``[0, 0, I]`` (printed: ``[I, 0, 0]``, which adds ``Gamma^2`` to
    ``Phi``), and ``Phi_0`` must be ``delta I^`` (printed: ``delta I``, whose residual along the constant vector stays).
    Blocks of weights are multiples of the identity, so that one transformer works for graphs of all sizes.
    """
    model = FullTransformer(3, 1, [0] * num_layers, blockwise=True)
    gamma, ones, phi = range(3)
    with torch.no_grad():
        model.w_v[0, gamma, gamma] = 1.0
        model.w_v[0, phi, phi] = 1.0
        model.w_q[0] = torch.eye(3)
        model.w_k[0, ones, gamma] = 1.0
        model.w_r[0, gamma, gamma] = -1.0
    return model


def fast_electric_flow_input(laplacian: Tensor, projection: Tensor, step_size: Tensor | float) -> Tensor:
    """Return the input ``Z_0`` of :func:`fast_electric_flow`, ``[..., 3 n, n]``.

    Args:
        laplacian: ``L``, ``[..., n, n]``.
        projection: ``I^``, ``[..., n, n]``: the identity minus ``1 1^T / n`` for each component of ``n`` nodes.
        step_size: ``delta``, at most ``1 / lambda_max``; ``[..., 1, 1]`` if graphs have different steps.
    """
    n = laplacian.size(-1)
    identity = torch.eye(n, dtype=laplacian.dtype, device=laplacian.device).expand_as(laplacian)
    return torch.cat([projection - step_size * laplacian, identity, step_size * projection], dim=-2)


def fast_electric_flow_output(z: Tensor) -> Tensor:
    """Return the output ``Phi_L``, ``[..., n, n]``, in ``Z_L``, ``[..., 3 n, n]``."""
    return z[..., -z.size(-1) :, :]


def resistive_embedding_layers(k: int, num_layers: int, lambda_max: float) -> EfficientTransformer:
    """Build the transformer of Lemma 2: each layer adds a term of the power series of the square root of ``L^+``.

    With ``delta = 1 / lambda_max`` and ``alpha_l = sqrt(delta) C(2l, l) / 4^l``, layer ``l`` computes
    ``Lambda <- (I - delta L) Lambda`` and ``Phi <- Phi + alpha_l Lambda``, eq. (12), as weights of eq. (7). Layers do
    not share weights.

    Input: demands ``Psi``, ``[n, k]``, whose sum over each connected component is zero. Output: ``sqrt(L^+) Psi``,
    ``[n, k]``. Squared distances between the rows of ``sqrt(L^+)`` are effective resistances (Fact 1). Error:
    :func:`~tg_lpe.theory.resistive_embedding_bound`.

    Correction: the weights printed for this lemma in Lemma 9 have ``1 / lambda_max`` in place of ``alpha_l``.

    Args:
        k: number of demands.
        num_layers: ``L``.
        lambda_max: a positive upper bound of the Laplacian eigenvalues of every graph it runs on.
    """
    if not lambda_max > 0:
        raise ValueError(f"lambda_max must be positive, got {lambda_max}")
    delta = 1 / lambda_max
    model = EfficientTransformer(k, 2 * k, num_layers, blockwise=True)
    psi, phi = range(2)
    # C(2l, l) / 4^l is the product of (2i - 1) / 2i for i = 1..l.
    step = torch.arange(1, max(num_layers, 1), dtype=torch.float64)
    alpha = delta**0.5 * torch.cat([step.new_ones(1), (1 - 0.5 / step).cumprod(0)])[:num_layers]
    with torch.no_grad():
        model.alpha_q.fill_(1.0)
        model.alpha_k.fill_(1.0)
        model.w_v[:, psi, psi] = -delta
        model.w_r[:, phi, psi] = alpha
    return model


def heat_kernel_layers(k: int, num_layers: int, s: float, num_steps: int = 1) -> EfficientTransformer:
    """Build the transformer of Lemma 3: each layer adds a term of the power series of ``exp(-s L)``.

    Layer ``l`` computes ``Phi <- Phi + (-s)^l / l! Lambda`` and ``Lambda <- L Lambda``, as weights of eq. (7). Here
    ``Lambda`` is stored as ``(-s L)^l / l! Psi``, so that it does not overflow: the factor ``-s / (l + 1)`` moves from
    ``W^R`` into ``W^V``, and the terms are the same.

    The terms grow to ``exp(s lambda_max)`` before they shrink, and rounding errors grow with them. For a large
    temperature, use several steps: the series runs once for each part of ``s``, and a layer between two runs copies
    ``Phi`` to ``Lambda``.

    Input: ``Psi``, ``[n, k]``. (The lemma assumes that its columns sum to zero, which is not needed here.) Output:
    ``exp(-s L) Psi``, ``[n, k]``. Error: :func:`~tg_lpe.theory.heat_kernel_bound`.

    Args:
        k: number of columns.
        num_layers: ``L``, number of layers of each step.
        s: temperature, not negative.
        num_steps: number of parts of ``s``, at least 1; there are ``num_steps (L + 1) - 1`` layers in all.
    """
    if not s >= 0 or num_steps < 1:
        raise ValueError(f"s must not be negative, and num_steps at least 1, got {s} and {num_steps}")
    once = range(num_layers)
    schedule = [*once, *[num_layers, *once] * (num_steps - 1)]
    model = EfficientTransformer(k, 2 * k, num_layers + 1, schedule, blockwise=True)
    psi, phi = range(2)
    factor = -s / num_steps / torch.arange(1, num_layers + 1, dtype=torch.float64)
    with torch.no_grad():
        model.alpha_q[:-1] = 1.0
        model.alpha_k[:-1] = 1.0
        model.w_v[:-1, psi, psi] = factor
        model.w_r[:, psi, psi] = -1.0
        model.w_r[:-1, phi, psi] = 1.0
        model.w_r[-1, psi, phi] = 1.0
        model.w_r[-1, phi, phi] = -1.0
    return model


def fast_heat_kernel(num_layers: int) -> FullTransformer:
    """Build the transformer of Lemma 5: each layer cubes ``Z``, so that ``Z_L = (I - 3^-L s L)^(3^L)``.

    Input: :func:`fast_heat_kernel_input`. Output: ``exp(-s L)``, ``[n, n]``. Error:
    :func:`~tg_lpe.theory.fast_heat_kernel_bound`, sharper than the printed bound.
    """
    model = FullTransformer(1, 1, [0] * num_layers, blockwise=True)
    with torch.no_grad():
        for weight, value in ((model.w_v, 1.0), (model.w_q, 1.0), (model.w_k, 1.0), (model.w_r, -1.0)):
            weight.fill_(value)
    return model


def fast_heat_kernel_input(laplacian: Tensor, num_layers: int, s: Tensor | float) -> Tensor:
    """Return the input ``Z_0 = I - 3^-L s L`` of :func:`fast_heat_kernel`, ``[..., n, n]``.

    Args:
        laplacian: the Laplacian, ``[..., n, n]``.
        num_layers: number of layers ``L``, with ``s lambda_max <= 3^L``.
        s: temperature; ``[..., 1, 1]`` if graphs have different temperatures.
    """
    identity = torch.eye(laplacian.size(-1), dtype=laplacian.dtype, device=laplacian.device)
    return identity - s * 3.0**-num_layers * laplacian


def orthogonalize(k: int, index: int | None = None) -> EfficientTransformer:
    """Build the layer of Lemma 8, which makes column ``index`` orthogonal to all later columns; or every column.

    It computes ``phi_i <- phi_i - sum_(j > i) <phi_i, phi_j> phi_j``, scaled to length one, as weights of eq. (7) with
    ``alpha^Q alpha^K = 0``: only ``Phi`` may enter the similarity. (Lemma 9 prints 1.)

    Input: ``Phi``, ``[n, k]``, whose columns after ``index`` are orthonormal. Output: ``Phi`` with column ``index``
    orthogonal to them, and the other columns unchanged. It is exact.

    Without ``index``, ``k`` parallel heads do this for all columns, of length one, at once: the QR step in one layer
    that section 4 describes after Lemma 6. The last ``i`` columns span what they did, for every ``i``.

    Correction: heads read columns that are not orthogonal yet, so one layer is a QR decomposition for two columns only.
    No heads are one for three: the last column to be orthogonalised is a combination of all columns that is quadratic
    in their inner products, heads are linear in these. ``k - 1`` such layers in sequence are exact for ``k`` columns.

    Args:
        k: number of columns.
        index: ``i``, from 0; all columns if absent.
    """
    if index is not None and not 0 <= index < k:
        raise ValueError(f"index must lie in 0..{k - 1}, got {index}")
    heads = list(range(k)) if index is None else [index]
    model = EfficientTransformer(k, k, len(heads), [list(range(len(heads)))], normalize_phi="columns")
    with torch.no_grad():
        for weight, column in enumerate(heads):
            _orthogonalize(model, weight, column)
    return model


def top_eigenvectors(k: int, num_iterations: int, shift: float = 0.0, parallel: bool = False) -> EfficientTransformer:
    """Build the transformer of Lemma 6: ``k + 1`` layers are one step of subspace iteration, ``Phi <- QR(L Phi)``.

    The first layer multiplies by ``L``, eq. (14). Then ``k`` layers of Lemma 8, for ``i = k, k - 1, ..., 1``,
    orthogonalise, in this order as each reads later columns: column ``k`` converges to the eigenvector of the largest
    eigenvalue, column ``k - 1`` to the next. All iterations share their weights.

    Input: ``Phi_0``, ``[n, k]``, of full column rank. Output: orthonormal columns, ``[n, k]``. Layers:
    ``num_iterations (k + 1)``. Error: :func:`~tg_lpe.theory.subspace_iteration_bound`.

    Correction: ``W^R`` of eq. (14) must be zero on the incidence block (printed: ``I``, which doubles ``B``).

    Args:
        k: number of eigenvectors.
        num_iterations: number of steps of subspace iteration.
        shift: iterate ``L + shift I``, which has the same eigenvectors. It must be positive if ``k`` includes
            eigenvectors of eigenvalue zero.
        parallel: orthogonalise in one layer of ``k`` heads (:func:`orthogonalize`), so that an iteration takes two
            layers. The spans and their bound are the same, but rounding is larger (up to 1e-6 was seen) until the
            columns converge, and with that become orthonormal.
    """
    return _subspace_iteration(k, num_iterations, value=1.0, residual=shift - 1, parallel=parallel)


def bottom_eigenvectors(k: int, num_iterations: int, mu: float, parallel: bool = False) -> EfficientTransformer:
    """Build the transformer of Corollary 7: subspace iteration on ``mu I - L``, for the bottom eigenvectors of ``L``.

    Otherwise as :func:`top_eigenvectors`: column ``k`` converges to the eigenvector of the smallest eigenvalue, which
    is constant on each component.

    Correction: with ``W^R = (mu - 1) I``, ``W^V`` must be ``-I`` on the ``Phi`` block (printed: ``I``).

    Args:
        k: number of eigenvectors.
        num_iterations: number of steps of subspace iteration.
        mu: at least ``lambda_max`` of every graph it runs on; larger if ``k`` includes the eigenvectors of
            ``lambda_max``, which ``lambda_max I - L`` maps to zero.
        parallel: as for :func:`top_eigenvectors`.
    """
    return _subspace_iteration(k, num_iterations, value=-1.0, residual=mu - 1, parallel=parallel)


def inverse_eigenvectors(num_nodes: int, k: int, num_layers: int, num_iterations: int) -> FullTransformer:
    """Build the transformer after Corollary 7: ``L^+`` by Lemma 4, then subspace iteration, ``Phi <- QR(L^+ Phi)``.

    ``Z^T = [Gamma, I, L^+, Phi]``, and each column of ``Phi`` is scaled to length one. In each iteration, a layer
    multiplies by ``L^+ = Z^T W^Q^T W^K Z``, and ``k`` layers of Lemma 8 orthogonalise.

    Input: :func:`fast_electric_flow_input` above ``Phi_0^T``, ``[3 n + k, n]``. Output: the last ``k`` rows of ``Z_L``.
    Column ``k`` converges to the eigenvector of the smallest non-zero eigenvalue: unlike ``mu I - L`` of Corollary 7,
    ``L^+`` is zero on the null space. Error: :func:`~tg_lpe.theory.subspace_iteration_bound` with the ratio
    ``f(lambda_(k+1)) / f(lambda_k)`` of non-zero eigenvalues, where ``f(x) = (1 - (1 - delta x)^(2^L)) / x`` is what
    Lemma 4 computes of ``L``. It falls, so the limit is the same for any number of layers of Lemma 4.

    Args:
        num_nodes: ``n``.
        k: number of eigenvectors, fewer than ``n``.
        num_layers: layers of Lemma 4, at least 1; more widen the gaps between eigenvalues.
        num_iterations: number of steps of subspace iteration, of ``k + 1`` layers each.
    """
    n, flow, steps = num_nodes, fast_electric_flow(1), top_eigenvectors(k, num_iterations).full(0)
    schedule = [[0]] * num_layers + [[1 + index for index in heads] for heads in steps.heads]
    model = FullTransformer(3 * n + k, k + 2, schedule, 3 * n, "columns")
    with torch.no_grad():
        for weight, of_flow, of_step in zip(model.parameters(), flow.parameters(), steps.parameters(), strict=True):
            weight[0, : 3 * n, : 3 * n] = torch.kron(of_flow[0], torch.eye(n))
            weight[1:, 3 * n :, 3 * n :] = of_step
        model.w_q[1, range(n), range(n, 2 * n)] = 1.0
        model.w_k[1, range(n), range(2 * n, 3 * n)] = 1.0
    return model


def from_incidence(model: FullTransformer, num_nodes: int, step_size: float) -> EfficientTransformer:
    """Put the layer of section 3.4, which computes ``L`` from ``B``, before a transformer of Lemma 4 or 5.

    The layer multiplies the first block by ``I - step_size L``, as weights of eq. (7) with ``alpha^Q alpha^K = 1``: the
    similarity is ``L = B B^T`` (printed: ``B^T B``). So these lemmas, which Lemma 9 leaves out, fit eq. (7) too.

    Input, for :meth:`EfficientTransformer.run`: the transposed input of the lemma for ``L = 0``, ``[I^, I, delta I^]``
    for Lemma 4, ``I`` for Lemma 5. Output: the last ``n`` columns of ``Phi``.

    Args:
        model: :func:`fast_electric_flow` or :func:`fast_heat_kernel`.
        num_nodes: ``n``.
        step_size: ``delta`` for Lemma 4, ``3^-L s`` for Lemma 5.
    """
    schedule = [[0], *([1 + index for index in heads] for heads in model.heads)]
    result = EfficientTransformer(num_nodes, model.height * num_nodes, 1 + len(model.w_v), schedule, blockwise=True)
    with torch.no_grad():
        result.alpha_q[0] = result.alpha_k[0] = 1.0
        result.w_v[0, 0, 0] = -step_size
        for weight, own in zip(result.parameters(), model.parameters(), strict=False):
            weight[1:] = own
    return result


def _subspace_iteration(k: int, count: int, value: float, residual: float, parallel: bool) -> EfficientTransformer:
    """Use weight 0 for ``(1 + residual) Phi + value L Phi``, and weight ``i + 1`` to orthogonalise column ``i``."""
    backwards = list(range(k, 0, -1))
    schedule = [0, *([backwards] if parallel else backwards)] * count
    model = EfficientTransformer(k, k, k + 1, schedule, normalize_phi="columns")
    column = range(k)
    with torch.no_grad():
        model.alpha_q[0] = model.alpha_k[0] = 1.0
        model.w_v[0, column, column] = value
        model.w_r[0, column, column] = residual
        for index in column:
            _orthogonalize(model, index + 1, index)
    return model


def _orthogonalize(model: EfficientTransformer, weight: int, index: int) -> None:
    """Set Lemma 8's ``W^V = -A`` and ``W^Q = W^K = H``, with ``H^T H = H``."""
    model.w_v[weight, index, index] = -1.0
    after = range(index + 1, model.k)
    model.w_q[weight, after, after] = 1.0
    model.w_k[weight, after, after] = 1.0
