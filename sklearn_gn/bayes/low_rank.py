r"""Evidence and steps with a Gauss-Newton matrix of which only products are known.

The Nystroem approximation of a matrix G from products with r random vectors Omega,

.. math::
    G \approx Y (\Omega^T Y)^{-1} Y^T = F F^T, \qquad Y = G \Omega,

holds its leading eigenvectors. With the diagonal D of the penalties, M = D + F F^T has
a cheap inverse, and is so near to H = D + G that conjugate gradients with it need few
iterations (Frangella, Tropp and Udell, 2021). What is missing of the trace of
:math:`D H^{-1}` and of log det H is estimated from probes w of covariance M, without
bias: with x = H^{-1} w from conjugate gradients,

.. math::
    \mathrm{tr}(D H^{-1})_g = \mathrm{E} \sum_{i \in g} D_i x_i (M^{-1} w)_i, \qquad
    \log\det H - \log\det M = \mathrm{E}\; w^T M^{-1/2} \log(M^{-1/2} H M^{-1/2})
    M^{-1/2} w,

where the logarithm is taken of the tridiagonal matrix that the conjugate gradients are
equivalent to (Lanczos quadrature). Probes are added until gamma is known to half a
percent; in the iterations of a fit, where it only leads to the next penalties, to five.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh_tridiagonal, solve_triangular

from sklearn_gn.arrays.extremes import unbounded
from sklearn_gn.bayes import evidence

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

    It is exact where there are few rows, and otherwise the Nystroem approximation.

    Parameters
    ----------
    gram : LargeGram
    precision : ndarray of shape (P,)
        Positive, in the units of the matrix: what will be added to its diagonal.
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
        factor = _factor_of(omega, y)
        whitened = factor / np.sqrt(precision)[:, None]
        least = np.linalg.eigvalsh(whitened.T @ whitened)[0]
        rank = y.shape[1]
        if least < _NEGLIGIBLE or rank >= min(_LARGEST_RANK, size):
            return factor


def _factor_of(omega, y):
    values, vectors = np.linalg.eigh(omega.T @ y)
    kept = values > len(values) * np.finfo(np.float64).eps * values[-1]
    return y @ (vectors[:, kept] / np.sqrt(values[kept]))


class LowRank(NamedTuple):
    """The matrix M = D + F F^T."""

    root_diagonal: np.ndarray  # (P,)  D^{1/2}
    whitened: np.ndarray  # (P, r)  V = D^{-1/2} F
    root: np.ndarray  # (r, r)  the lower Cholesky factor of 1 + V^T V
    log_det: float

    @classmethod
    def of(cls, diagonal, factor):
        """Return the matrix of a positive diagonal and a factor."""
        root_diagonal = np.sqrt(diagonal)
        whitened = factor / root_diagonal[:, None]
        inner = evidence.plus_diagonal(whitened.T @ whitened, 1)
        root = np.tril(cho_factor(inner, lower=True, overwrite_a=True)[0])
        log_det = np.sum(np.log(diagonal)) + 2 * np.sum(np.log(np.diagonal(root)))
        return cls(root_diagonal, whitened, root, float(log_det))

    def explained(self, whitened, used):
        """Return E w of columns w, (r, s), with ``V (1 + V^T V)^-1 V^T = E^T E``."""
        right = self.whitened[used].T @ whitened
        return solve_triangular(self.root, right, lower=True, check_finite=False)

    def solve(self, right):
        """Return the product of M^-1 and vectors of shape (P, s)."""
        root_diagonal = self.root_diagonal[:, None]
        whitened = right / root_diagonal
        inner = cho_solve((self.root, True), self.whitened.T @ whitened)
        return (whitened - self.whitened @ inner) / root_diagonal

    def sample(self, n, rng):
        """Return n normal vectors of covariance M, of shape (P, n)."""
        size, rank = self.whitened.shape
        own = rng.standard_normal((size, n))
        both = own + self.whitened @ rng.standard_normal((rank, n))
        return self.root_diagonal[:, None] * both

    def variances(self, gradients, used=slice(None)):
        """Return ``t^T M^-1 t`` of columns t with entries in some parameters.

        Those beyond the range of floats are infinite.
        """
        whitened = gradients / self.root_diagonal[used, None]
        with np.errstate(over="ignore", invalid="ignore"):
            known = np.sum(self.explained(whitened, used) ** 2, axis=0)
            left = np.sum(whitened**2, axis=0) - known
        return unbounded(np.maximum(left, 0))


class Solutions(NamedTuple):
    """Solutions of H x = w, and the tridiagonal matrices of the iterations."""

    x: np.ndarray  # (P, s)
    preconditioned: np.ndarray  # (P, s)  M^-1 w
    tridiagonals: list  # (diagonal, off-diagonal) for each column


def conjugate_gradients(product, near, right, tol):
    """Solve H x = w for columns w with a preconditioner near to H.

    Parameters
    ----------
    product : callable
        Products of H and vectors of shape (P, s).
    near : LowRank
    right : ndarray of shape (P, s)
    tol : float
        Residual, relative to that at the start, in the norm of the inverse of M.

    Returns
    -------
    Solutions
    """
    x, r = np.zeros(right.shape), right.copy()
    first = z = near.solve(r)
    p, rho = z.copy(), np.sum(r * z, axis=0)
    target = tol**2 * rho
    lengths, ratios = [], []
    running = np.ones(right.shape[1], dtype=bool)
    for _ in range(_MAX_CG):
        running = running & (rho > target)
        if not running.any():
            break
        hp = product(p)
        curvature = np.sum(p * hp, axis=0)
        running = running & (curvature > 0)
        length = np.where(running, rho / np.where(running, curvature, 1), 0)
        x += length * p
        r -= length * hp
        z = near.solve(r)
        after = np.sum(r * z, axis=0)
        ratio = np.where(running, after / np.where(running, rho, 1), 0)
        p = z + ratio * p
        rho = after
        lengths.append(length)
        ratios.append(ratio)
    lengths, ratios = np.array(lengths), np.array(ratios)
    columns = zip(lengths.T, ratios.T, strict=True)
    return Solutions(x, first, [_tridiagonal(*column) for column in columns])


def _tridiagonal(lengths, ratios):
    """Lanczos matrix of the iterations that a column has taken."""
    n = int(np.count_nonzero(lengths))
    lengths, ratios = lengths[:n], np.maximum(ratios[: max(n - 1, 0)], 0)
    diagonal = 1 / lengths
    diagonal[1:] += ratios / lengths[:-1]
    return diagonal, np.sqrt(ratios) / lengths[:-1]


def curvature(gram, groups, alpha, beta, n_effective, floor, rough=False):
    """Return the curvature that the evidence takes.

    Parameters
    ----------
    gram : LargeGram
    groups : ndarray of shape (P,)
    alpha : ndarray of shape (G,)
    beta, n_effective : float
        The matrix is multiplied by both.
    floor : float
        Shift of it at rounding level.
    rough : bool, default=False
        Whether a standard error of a twentieth of gamma is enough.

    Returns
    -------
    Curvature
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
    rows = solve_triangular(near.root, near.whitened.T, lower=True)
    known = np.sum(rows**2, axis=0)
    gamma = evidence.group_sums(known, groups, len(alpha))
    while len(logs) < _MOST_PROBES:
        probes = near.sample(_PROBES, rng)
        found = conjugate_gradients(product, near, probes, _PROBE_TOL)
        missing = found.preconditioned * (found.preconditioned - found.x)
        missing = diagonal[:, None] * missing
        shares = np.concatenate(
            [shares, [evidence.group_sums(m, groups, len(alpha)) for m in missing.T]]
        )
        sizes = np.sum(probes * found.preconditioned, axis=0)
        logs += [
            size * _log_quadratic_form(*pair)
            for size, pair in zip(sizes, found.tridiagonals, strict=True)
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
    """Return the function ``(shift, right) -> (H + shift)^-1 right``.

    Parameters
    ----------
    gram : LargeGram
    precision : ndarray of shape (P,)
    scale : float
        The matrix is multiplied by it.
    floor : float
        Least shift, at rounding level.
    """
    factor_of(gram, positive_precision(precision, scale) / scale)

    def solve(shift, right):
        diagonal = precision + shift + floor
        near = approximation(gram, diagonal, scale)

        def product(vectors):
            return scale * (gram @ vectors) + diagonal[:, None] * vectors

        return conjugate_gradients(product, near, right[:, None], _STEP_TOL).x[:, 0]

    return solve
