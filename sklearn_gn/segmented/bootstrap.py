"""Test for a breakpoint under unequal and correlated noise, by a bootstrap.

The score statistic of a position is that of the products S of the residuals, without a
breakpoint, with the new columns less their projections on the old ones, ``S' V^-1 S``.
Its distribution is drawn with random signs of the residuals, which keep the variance of
every row (the wild bootstrap of Wu and of Liu, with the positions' statistics drawn
jointly as in Hansen, "Inference when a nuisance parameter is not identified under the
null hypothesis", 1996). Where the noise is correlated, the signs are those of the
innovations of an autoregression (Buhlmann, "Sieve bootstrap for time series", 1997).

For few rows V is estimated again from every draw, from its residuals about the old
columns (Davidson and Flachaire, "The wild bootstrap, tamed at last", 2008): the fit
takes a share of the residuals away, which V of many rows does not show.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_toeplitz

from sklearn_gn.segmented import least_squares
from sklearn_gn.segmented.existence import BreakpointTest, scan, with_positions

_MOST_BLOCKS = 4096  # of neighbouring rows with one sign
_FEW = 1000  # rows up to which V is estimated from every draw
_RANK = 1e-10  # relative eigenvalue of a direction that counts
_EXACT = 1e-13  # relative sum of squares that is rounding errors


def breakpoint_test(problem, rows, kind, n_draws, rng):
    """Test one series for a breakpoint besides those that are known.

    Parameters
    ----------
    problem : Problem
    rows : Rows
        Of shape (n,).
    kind : Covariance
        HC or HAC.
    n_draws : int
    rng : RandomState

    Returns
    -------
    BreakpointTest
        The breakpoint in the units of the search.
    """
    form, t = problem.form, with_positions(problem).candidates.t[0]
    old, extra = _null_space(form, rows, problem.known[0])
    found = least_squares.solve(old, rows.y, rows.weight)
    n_rows = rows.weight.sum()
    none = extra is None or not len(t) or n_rows <= found.rank + 2
    if none or found.rss <= _EXACT * (rows.weight @ rows.y**2):
        return BreakpointTest(0.0, 1.0, np.nan)
    factor = _inflation(kind.kind, old, found, rows.weight)
    residual = factor * found.residual
    phi = np.empty(0)
    if kind.kind.startswith("HAC"):
        phi = autoregression(residual, kind.lags)
    noise = Noise(np.concatenate([[1], -phi]), factor, np.sqrt(rows.weight))
    scores, later = [], []
    for columns in _new_columns(form, rows.x, t, extra):
        new = least_squares.solve(old, columns, rows.weight).residual
        scores.append((rows.weight * found.residual) @ new.T)
        later.append(noise.backward(noise.root * new))
    scores, later = np.stack(scores, axis=-1), np.stack(later, axis=-1)
    basis = found.half.T @ (noise.root[:, None] * old).T
    statistic, p_value = _compare(
        scores, later, noise.innovations(residual), noise, basis, n_draws, rng
    )
    plain = scan(problem)
    best = plain.t[np.argmax(np.sum(plain.scores**2, axis=1))]
    return BreakpointTest(statistic, p_value, float(best))


def _null_space(form, rows, known):
    """Return the columns without a breakpoint, and what is taken from each ramp.

    The second is None where one more breakpoint changes nothing.
    """
    columns = least_squares.design(form, rows.x, rows.linear, known)
    level = least_squares.end_slope(form, len(known), columns.shape[1])
    if level is None:
        return columns, None if form.flat_end else 0.0
    last = np.flatnonzero(level)[-1]
    others = columns - level * columns[:, [last]]
    return np.delete(others, last, axis=1), columns[:, last]


def _new_columns(form, x, t, extra):
    """Yield the new columns of all positions, of shape (c, n): ramps and steps."""
    if form.ramp:
        yield np.maximum(x - t[:, None], 0) - extra
    if form.step:
        yield (x >= t[:, None]).astype(float)


def _filtered(numerator, denominator, values):
    """The values after a linear filter, along their last axis."""
    from scipy.signal import lfilter  # slow to load, and rarely needed

    return lfilter(numerator, denominator, values)


class Noise(NamedTuple):
    """How residuals come from innovations."""

    filter: np.ndarray  # of the autoregression: innovations from noise
    factor: np.ndarray  # by which residuals are enlarged
    root: np.ndarray  # (n,) of the weights

    def innovations(self, residual):
        """Return the innovations of residuals (..., n)."""
        return _filtered(self.filter, 1, residual)

    def from_innovations(self, innovation):
        """Return the noise of innovations (..., n)."""
        return _filtered([1], self.filter, innovation)

    def backward(self, columns):
        """Return what a change of an innovation changes in products with columns."""
        return _filtered([1], self.filter, columns[:, ::-1])[:, ::-1]


def _inflation(kind, columns, found, weight):
    """Return the factors that undo what the fit has taken from the residuals."""
    n_rows = weight.sum()
    if kind == "HC0":
        return np.ones(len(weight))
    if kind in ("HC2", "HC3"):
        left = np.maximum(1 - np.sum((columns @ found.half) ** 2, axis=1), 1e-3)
        return left ** (-0.5 if kind == "HC2" else -1.0)
    return np.full(len(weight), np.sqrt(n_rows / (n_rows - found.rank)))


def autoregression(residual, lags):
    """Return the coefficients of the autoregression of residuals, by Yule and Walker.

    Its order, up to ``lags``, is chosen by the Bayesian information criterion.

    Parameters
    ----------
    residual : ndarray of shape (n,)
    lags : int or None
        If None, ``4 (n / 100)^(2 / 9)``, rounded down.
    """
    n = len(residual)
    most = int(4 * (n / 100) ** (2 / 9)) if lags is None else lags
    most = min(most, n // 4)
    covariance = [residual[k:] @ residual[: n - k] / n for k in range(most + 1)]
    best, answer = n * np.log(covariance[0]), np.empty(0)
    for order in range(1, most + 1):
        phi = solve_toeplitz(covariance[:order], covariance[1 : order + 1])
        variance = covariance[0] - phi @ covariance[1 : order + 1]
        value = n * np.log(variance) + np.log(n) * order
        if value < best:
            best, answer = value, phi
    return answer


def _in_blocks(terms):
    """Sum the terms (c, n, m) over blocks of neighbouring rows."""
    n = terms.shape[1]
    starts = np.unique(np.linspace(0, n, min(n, _MOST_BLOCKS) + 1).astype(np.intp))
    return np.add.reduceat(terms, starts[:-1], axis=1)


def _compare(scores, later, innovation, noise, basis, n_draws, rng):
    """Return the largest statistic, and its p-value from those of random signs.

    Parameters
    ----------
    scores : ndarray of shape (c, m)
    later : ndarray of shape (c, n, m)
        Derivatives of the scores by the innovations.
    innovation : ndarray of shape (n,)
    noise : Noise
    basis : ndarray of shape (r, n)
        Orthonormal basis of the old columns.
    n_draws : int
    rng : RandomState
    """
    terms = later * innovation[:, None]
    few = len(innovation) <= _FEW
    if not few:
        terms = _in_blocks(terms)
    c, n, m = terms.shape
    values, vectors = np.linalg.eigh(np.swapaxes(terms, 1, 2) @ terms)
    known = values > _RANK * values.sum(axis=1, keepdims=True)
    inverse = np.where(known, 1 / np.sqrt(np.where(known, values, 1)), 0)
    root = vectors * inverse[:, None]
    found = np.sum((scores[:, None] @ root)[:, 0] ** 2, axis=1)
    signs = rng.choice(np.array([-1.0, 1.0]), (n_draws, n))
    drawn = signs @ np.swapaxes(terms @ root, 0, 1).reshape(n, c * m)
    drawn = drawn.reshape(n_draws, c, m)
    if few:
        residual = noise.from_innovations(signs * innovation)
        residual = noise.factor * (residual - (residual @ basis.T) @ basis)
        square = noise.innovations(residual) ** 2
        statistics = _with_own_variance(drawn, square, later @ root, known)
    else:
        statistics = np.sum(drawn**2, axis=2)
    p_value = (1 + np.sum(statistics.max(axis=1) >= found.max())) / (1 + n_draws)
    return float(found.max() / m), float(p_value)


def _with_own_variance(drawn, square, later, known):
    """Return the statistics (n_draws, c), with V from the squared innovations."""
    c, n, m = later.shape
    products = later[..., :, None] * later[..., None, :]
    variance = square @ np.swapaxes(products, 0, 1).reshape(n, c * m * m)
    variance = variance.reshape(-1, c, m, m) + np.eye(m) * ~known[:, None]
    try:
        solved = np.linalg.solve(variance, drawn[..., None])
    except np.linalg.LinAlgError:  # a draw of so few rows that it leaves no residuals
        solved = np.linalg.pinv(variance, hermitian=True) @ drawn[..., None]
    return np.sum(drawn * solved[..., 0], axis=2)
