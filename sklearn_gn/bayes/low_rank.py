r"""Evidence and steps with a Gauss-Newton matrix known by its products only.

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
TOL = 1e-2  # relative residual of the solutions
FREE = 1e-6  # precision in place of none, relative to the curvature of a constant


def factor_of(gram, precision):
    """Return F, of shape (P, r), with F F^T about the matrix; it is computed once.

    It is exact where there are few rows, and otherwise the Nystrom approximation, whose
    number of vectors is doubled until the smallest eigenvalue is negligible.
    ``precision`` (P,) is what will be added to the diagonal, in units of the matrix.
    """
    if gram.factor is not None:
        return gram.factor
    if gram.has_few_rows:
        gram.factor = gram.jacobian_rows().T
        return gram.factor
    rng = np.random.RandomState(0)  # test vectors are the same in all iterations
    size = len(gram)
    omega, y = np.empty((size, 0)), np.empty((size, 0))
    least, rank = np.inf, 0
    while least >= _NEGLIGIBLE and rank < min(_LARGEST_RANK, size):
        n_more = max(y.shape[1], _FIRST_RANK)
        more = rng.standard_normal((size, min(n_more, size - y.shape[1])))
        more /= np.sqrt(precision)[:, None]
        omega = np.concatenate([omega, more], axis=1)
        y = np.concatenate([y, gram @ more], axis=1)
        gram.factor = nystrom_factor(y, omega.T @ y)
        whitened = gram.factor / np.sqrt(precision)[:, None]
        least, rank = spectrum(whitened.T @ whitened)[-1], y.shape[1]
    return gram.factor


def _solve(gram, diagonal, scale, near, right, record=None):
    """Solve (scale G + diagonal) x = w for columns w, with a preconditioner near it."""

    def product(vectors):
        return scale * (gram @ vectors) + diagonal[:, None] * vectors

    given = {"tol": TOL, "max_iter": len(right), "dot": column_dot, "record": record}
    return conjugate_gradient(product, right, precondition=near.solve, **given)[0]


def curvature(gram, groups, alpha, beta, n_effective, floor, error=0.005):
    """Return the curvature that the evidence takes, of a LargeGram.

    The relative standard error of gamma is at most ``error``.
    """
    if gram.has_few_rows:
        rows = np.sqrt(n_effective) * factor_of(gram, None).T
        n_free = int(np.count_nonzero(groups < 0))
        return evidence.dual_curvature(rows, groups, alpha, beta, n_free)
    scale = beta * n_effective
    precision = evidence.prior_precision(groups, alpha)
    diagonal = positive_precision(precision, scale) + scale * floor
    near = approximation(gram, diagonal, scale)
    rng = np.random.RandomState(0)  # probes are the same in all iterations
    shares, logs = np.empty((0, len(alpha))), []
    known = near.factor.variances(near.whitened.T)
    gamma = evidence.group_sums(known, groups, len(alpha))
    while len(logs) < _MOST_PROBES:
        probes = near.sample(_PROBES, rng)
        nearly, steps = near.solve(probes), []
        x = _solve(gram, diagonal, scale, near, probes, record=steps.append)
        missing = diagonal[:, None] * nearly * (nearly - x)
        more = [evidence.group_sums(m, groups, len(alpha)) for m in missing.T]
        shares = np.concatenate([shares, more])
        sizes = np.sum(probes * nearly, axis=0)
        for size, column in zip(sizes, np.transpose(steps, (2, 1, 0)), strict=True):
            diagonal_of, off_diagonal = tridiagonal(*column)
            values, vectors = np.ones(1), np.ones((1, 1))  # of no iteration
            if len(diagonal_of):
                values, vectors = eigh_tridiagonal(diagonal_of, off_diagonal)
            logs.append(size * float(vectors[0] ** 2 @ np.log(values)))
        known_to = np.std(shares.sum(axis=1), ddof=1) / np.sqrt(len(logs))
        if known_to <= error * (gamma.sum() + shares.mean(axis=0).sum()):
            break
    gamma = np.maximum(gamma + shares.mean(axis=0), 0)
    penalised = groups >= 0
    log_det = near.log_det + float(np.mean(logs))
    log_det -= np.sum(np.log(alpha[groups[penalised]]))
    return evidence.Curvature(gamma, int(np.count_nonzero(~penalised)), log_det)


def positive_precision(precision, scale):
    """Return precisions; free parameters have a negligible one, not zero."""
    return np.where(precision > 0, precision, FREE * scale)


def approximation(gram, diagonal, scale):
    """Return ``diagonal + scale F F^T``."""
    return LowRank.of(diagonal, np.sqrt(scale) * factor_of(gram, diagonal / scale))


def solver(gram, precision, scale, floor):
    """Return the function ``(shift, right) -> (H + shift)^-1 right`` of a LargeGram."""
    factor_of(gram, positive_precision(precision, scale) / scale)

    def solve(shift, right):
        diagonal = precision + shift + floor
        near = approximation(gram, diagonal, scale)
        return _solve(gram, diagonal, scale, near, right[:, None])[:, 0]

    return solve
