"""Test whether there is a breakpoint at all, or one more.

Without a breakpoint its position means nothing, so that the largest F statistic over
all positions does not have an F distribution (Davies, "Hypothesis testing when a
nuisance parameter is present only under the alternative", 1987). Its distribution under
normal noise of one variance depends on the positions of the rows alone, and is drawn:
the products of the residual with the new pieces are jointly normal, with a covariance
that is known.
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.segmented.insertion import allowed, orthogonal_part
from sklearn_gn.segmented.problem import all_pieces, make_candidates
from sklearn_gn.segmented.products import Pieces, products, solve, target_products
from sklearn_gn.segmented.search import EXACT

MOST_POSITIONS = 200  # at which a breakpoint is tried
_RANK = 1e-10  # relative eigenvalue of a direction that counts


class BreakpointTest(NamedTuple):
    """Result of the test for a breakpoint."""

    statistic: float  # largest F statistic over the positions
    p_value: float
    breakpoint: float  # position of the largest statistic; NaN without a position


class Scan(NamedTuple):
    """Directions of the function space in which a breakpoint shows."""

    t: np.ndarray  # (c,)
    scores: np.ndarray  # (c, m) products of orthonormal directions with y
    covariance: np.ndarray  # (c m, c m) of the scores, for noise of variance one
    rss: float  # weighted mean of squares without a breakpoint


def with_positions(problem):
    """Return the problem with the positions as candidates that are tested."""
    table, form = problem.table, problem.form
    n = table.x.shape[1]
    rows = np.unique(np.linspace(0, n - 1, min(n, MOST_POSITIONS)).astype(np.intp))
    problem = problem._replace(candidates=make_candidates(table, form, rows))
    kept = allowed(problem, np.empty((1, 0)), problem.candidates.t)[0]
    return problem._replace(candidates=make_candidates(table, form, rows[kept]))


def scan(problem):
    """Return the scores of one series at all positions that are allowed."""
    table, form = problem.table, problem.form
    problem = with_positions(problem)
    knots = np.empty((1, 0))
    rows, t = problem.candidates.rows, problem.candidates.t
    pieces = all_pieces(problem, knots)
    found = solve(table, pieces, form.flat_end)
    one, zero = np.ones_like(t), np.zeros_like(t)
    new = [Pieces(rows, -t, one)] * form.ramp + [Pieces(rows, one, zero)] * form.step
    residual, _, _ = orthogonal_part(problem, pieces, found)
    scores = np.stack([residual[k][0] for k in range(len(new))], axis=-1)
    inner = np.block([[products(table, a, b)[0] for b in new] for a in new])
    cross = np.vstack([_cross(table, part, pieces) for part in new])
    if found.end is not None:  # of the pieces less their slopes at the end
        with_end = (cross @ found.end.coef[0])[:, None]
        slope = np.repeat([1.0, 0.0], [t.shape[1] * form.ramp, t.shape[1] * form.step])
        inner = inner - slope * with_end - (slope * with_end).T
        inner += np.outer(slope, slope) * found.end.square[0]
        cross = cross - np.outer(slope, found.end.with_pieces[0])
    half = cross @ found.half_inverse[0].T
    covariance = inner - half @ half.T
    return Scan(t[0], *_normalise(scores, covariance), float(found.rss[0]))


def _cross(table, part, pieces):
    targets = target_products(table, part)[0]
    return np.hstack([products(table, part, pieces)[0], targets[:, 1:]])


def _normalise(scores, covariance):
    """Make the directions of every position orthonormal."""
    c, m = scores.shape
    each = covariance.reshape(m, c, m, c)
    here = np.arange(c)
    blocks = each[:, here, :, here]  # (c, m, m)
    values, vectors = np.linalg.eigh(blocks)
    size = np.trace(blocks, axis1=1, axis2=2)[:, None]
    known = values > _RANK * size
    root = (
        vectors * np.where(known, 1 / np.sqrt(np.where(known, values, 1)), 0)[:, None]
    )
    scores = np.einsum("ci,cik->ck", scores, root)
    each = np.einsum("iajb,aik,bjl->akbl", each, root, root)
    return scores, each.reshape(c * m, c * m)


def reference_distribution(found, freedom, n_draws, rng):
    """Return draws of the largest share of the sum of squares, without a breakpoint.

    Parameters
    ----------
    found : Scan
    freedom : float
        Degrees of freedom without a breakpoint.
    n_draws : int
    rng : RandomState
    """
    values, vectors = np.linalg.eigh(found.covariance)
    kept = values > _RANK * values[-1]
    normal = rng.standard_normal((n_draws, int(kept.sum())))
    drawn = normal @ (vectors[:, kept] * np.sqrt(values[kept])).T
    explained = np.sum(drawn.reshape(n_draws, *found.scores.shape) ** 2, axis=2)
    rest = max(freedom - kept.sum(), 0)
    total = np.sum(normal**2, axis=1) + 2 * rng.standard_gamma(rest / 2, n_draws)
    return explained.max(axis=1) / total


def breakpoint_test(problem, n_rows, n_parameters, n_draws, rng):
    """Test one series for a breakpoint besides those that are known.

    Parameters
    ----------
    problem : Problem
    n_rows : float
        Sum of the weights.
    n_parameters : int
        Of the function without a breakpoint.
    n_draws : int
    rng : RandomState

    Returns
    -------
    BreakpointTest
        The breakpoint in the units of the search.
    """
    found = scan(problem)
    freedom, m = n_rows - n_parameters, found.scores.shape[1]
    if not len(found.t) or freedom <= m or found.rss <= EXACT:
        return BreakpointTest(0.0, 1.0, np.nan)
    share = np.sum(found.scores**2, axis=1) / found.rss
    best = int(np.argmax(share))
    drawn = reference_distribution(found, freedom, n_draws, rng)
    p_value = (1 + np.sum(drawn >= share[best])) / (1 + n_draws)
    left = max(1 - share[best], np.finfo(float).tiny)
    statistic = share[best] / m / left * (freedom - m)
    return BreakpointTest(float(statistic), float(p_value), float(found.t[best]))
