r"""Evidence and steps with a Gauss-Newton matrix of which only products are known.

With the diagonal D of the penalties, the low-rank approximation M of H = D + G
(:mod:`sklearn_gn.linalg.low_rank`) preconditions conjugate gradients for the steps.
What is missing of the trace of :math:`D H^{-1}` and of log det H is estimated from
probes w of covariance M, without bias: with x = H^{-1} w from conjugate gradients,

.. math::
    \mathrm{tr}(D H^{-1})_g = \mathrm{E} \sum_{i \in g} D_i x_i (M^{-1} w)_i, \qquad
    \log\det H - \log\det M = \mathrm{E}\; w^T M^{-1/2} \log(M^{-1/2} H M^{-1/2})
    M^{-1/2} w,

where the logarithm is taken of the tridiagonal matrix that the conjugate gradients are
equivalent to (Lanczos quadrature). Probes are added until gamma is known to half a
percent; in the iterations of a fit, where it only leads to the next penalties, to five.
"""

import numpy as np
from scipy.linalg import eigh_tridiagonal

from sklearn_gn.bayes import evidence
from sklearn_gn.linalg.factors import spectrum
from sklearn_gn.linalg.krylov import column_dot, conjugate_gradient, tridiagonal
from sklearn_gn.linalg.low_rank import LowRank, nystrom_factor

_FIRST_RANK, _LARGEST_RANK = 64, 256
_NEGLIGIBLE = 0.5  # eigenvalue, relative to the penalty, that ends the approximation
_PROBES = 4  # at a time
_MOST_PROBES = 64
_ROUGH, _ACCURATE = 0.05, 0.005  # standard error of gamma, relative
_PROBE_TOL = 1e-2  # relative residual of the solutions
_STEP_TOL = 1e-3
_MAX_CG = 200
FREE = 1e-6  # precision in place of none, relative to the curvature of a constant
_SEED = 0  # of test vectors and probes: the same in all iterations


def factor_of(gram, precision):
    """Return F, of shape (P, r), with F F^T about the matrix; it is computed once.

    It is exact where there are few rows, and otherwise the Nystrom approximation.
    ``precision`` (P,) is what will be added to the diagonal, in units of the matrix.
    """
    if gram.factor is None:
        few = gram.has_few_rows
        gram.factor = (
            gram.jacobian_rows().T if few else _nystroem_factor(gram, precision)
        )
    return gram.factor


def _nystroem_factor(gram, precision):
    """Return F, of shape (P, r), with F F^T about the matrix.

    The number of vectors is doubled until the smallest eigenvalue is negligible
    relative to the precision.
    """
    rng = np.random.RandomState(_SEED)
    size = len(gram)
    omega, y = np.empty((size, 0)), np.empty((size, 0))
    while True:
        n_more = max(y.shape[1], _FIRST_RANK)
        more = rng.standard_normal((size, min(n_more, size - y.shape[1])))
        more /= np.sqrt(precision)[:, None]
        omega = np.concatenate([omega, more], axis=1)
        y = np.concatenate([y, gram @ more], axis=1)
        factor = nystrom_factor(y, omega.T @ y)
        whitened = factor / np.sqrt(precision)[:, None]
        least = spectrum(whitened.T @ whitened)[-1]
        rank = y.shape[1]
        if least < _NEGLIGIBLE or rank >= min(_LARGEST_RANK, size):
            return factor


def _solve(product, near, right, tol, record=None):
    """Solve H x = w for columns w, with the preconditioner near to H."""
    x, *_ = conjugate_gradient(
        product,
        right,
        precondition=near.solve,
        tol=tol,
        max_iter=_MAX_CG,
        dot=column_dot,
        record=record,
    )
    return x


def curvature(gram, groups, alpha, beta, n_effective, floor, rough=False):
    """Return the curvature that the evidence takes, of a LargeGram.

    The matrix is multiplied by ``beta`` and ``n_effective``; ``floor`` is its shift at
    rounding level. ``rough`` allows a standard error of a twentieth of gamma.
    """
    if gram.has_few_rows:
        rows = np.sqrt(n_effective) * factor_of(gram, None).T
        n_free = int(np.count_nonzero(groups < 0))
        return evidence.dual_curvature(rows, groups, alpha, beta, n_free)
    scale = beta * n_effective
    precision = evidence.prior_precision(groups, alpha)
    diagonal = positive_precision(precision, scale) + scale * floor
    near = approximation(gram, diagonal, scale)

    def product(vectors):
        return scale * (gram @ vectors) + diagonal[:, None] * vectors

    rng = np.random.RandomState(_SEED)
    shares, logs = np.empty((0, len(alpha))), []
    known = near.factor.variances(near.whitened.T)
    gamma = evidence.group_sums(known, groups, len(alpha))
    while len(logs) < _MOST_PROBES:
        probes = near.sample(_PROBES, rng)
        nearly, steps = near.solve(probes), []
        x = _solve(product, near, probes, _PROBE_TOL, record=steps.append)
        missing = diagonal[:, None] * nearly * (nearly - x)
        shares = np.concatenate(
            [shares, [evidence.group_sums(m, groups, len(alpha)) for m in missing.T]]
        )
        sizes = np.sum(probes * nearly, axis=0)
        logs += [
            size * _log_quadratic_form(*tridiagonal(*column))
            for size, column in zip(sizes, np.transpose(steps, (2, 1, 0)), strict=True)
        ]
        error = np.std(shares.sum(axis=1), ddof=1) / np.sqrt(len(logs))
        if error <= (_ROUGH if rough else _ACCURATE) * (
            gamma.sum() + shares.mean(axis=0).sum()
        ):
            break
    gamma = np.maximum(gamma + shares.mean(axis=0), 0)
    penalised = groups >= 0
    log_det = near.log_det + float(np.mean(logs))
    log_det -= np.sum(np.log(alpha[groups[penalised]]))
    return evidence.Curvature(gamma, int(np.count_nonzero(~penalised)), log_det)


def _log_quadratic_form(diagonal, off_diagonal):
    """The first entry of the logarithm of a tridiagonal matrix."""
    if len(diagonal) == 0:
        return 0.0
    values, vectors = eigh_tridiagonal(diagonal, off_diagonal)
    return float(vectors[0] ** 2 @ np.log(values))


def positive_precision(precision, scale):
    """Return precisions of which those of free parameters are negligible, not zero."""
    return np.where(precision > 0, precision, FREE * scale)


def approximation(gram, diagonal, scale):
    """Return ``diagonal + scale F F^T``."""
    return LowRank.of(diagonal, np.sqrt(scale) * factor_of(gram, diagonal / scale))


def solver(gram, precision, scale, floor):
    """Return the function ``(shift, right) -> (H + shift)^-1 right`` of a LargeGram.

    H is the matrix times ``scale``, with ``precision`` (P,) on its diagonal; ``floor``
    is the least shift, at rounding level.
    """
    factor_of(gram, positive_precision(precision, scale) / scale)

    def solve(shift, right):
        diagonal = precision + shift + floor
        near = approximation(gram, diagonal, scale)

        def product(vectors):
            return scale * (gram @ vectors) + diagonal[:, None] * vectors

        return _solve(product, near, right[:, None], _STEP_TOL)[:, 0]

    return solve
