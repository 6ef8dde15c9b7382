r"""Test whether there is a breakpoint at all, or one more.

Without a breakpoint its position means nothing, so that the largest statistic over all
positions does not have the distribution of one (Davies, "Hypothesis testing when a
nuisance parameter is present only under the alternative", 1987).

- Under normal noise of one variance, the distribution of F depends on the positions of
  the rows alone, and is drawn: the products of the residual with the new pieces are
  jointly normal, with a covariance that is known. Davies' bound is that of the search
  penalty, :mod:`sklearn_gn.segmented.selection`. The score test is that of one column,
  the sum of the new ones of all positions (Muggeo, "Testing with a nuisance parameter
  present only under the alternative", 2016).
- Under unequal noise the statistic is ``S' V^-1 S`` of the products S of the residuals
  with the new columns less their projections on the old ones, and is drawn with random
  signs of the residuals (the wild bootstrap; Hansen, "Inference when a nuisance
  parameter is not identified under the null hypothesis", 1996); of correlated noise, of
  the innovations of an autoregression (Buhlmann, "Sieve bootstrap for time series").
  V is estimated again from every draw (Davidson and Flachaire, "The wild bootstrap,
  tamed at last", 2008), as the fit takes a share of the residuals away. Neighbouring
  rows of a long series share their signs.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import stdtr
from sklearn.utils import check_random_state

from sklearn_gn.arrays.backend import one_blas_thread
from sklearn_gn.data import dates
from sklearn_gn.linalg import factors
from sklearn_gn.segmented import least_squares
from sklearn_gn.segmented.noise import covariances, yule_walker
from sklearn_gn.segmented.preparation import (
    check_inside,
    check_is_plain,
    options_of,
    prepare,
    problem_of,
    read,
)
from sklearn_gn.segmented.problem import (
    DEPENDENT,
    Pieces,
    all_pieces,
    concatenate,
    feasible,
    powers_of,
    products,
    solve,
    spread,
)
from sklearn_gn.segmented.search import EXACT, insert
from sklearn_gn.segmented.selection import n_parameters

MOST_POSITIONS = 200  # at which a breakpoint is tried
_MOST_BLOCKS = 4096  # of neighbouring rows with one sign


class BreakpointTest(NamedTuple):
    """Result of the test for a breakpoint."""

    statistic: float  # largest F statistic over the positions
    p_value: float
    breakpoint: float  # position of the largest statistic; NaN without a position


def existence_test(model, X, y, sample_weight, method, n_draws, random_state):
    """Test rows of a user for a breakpoint, as the parameters of a model say."""
    check_is_plain(model, "breakpoint_test")
    both = model.degree == 2 or (model.degree == 1 and model.kinks and model.jumps)
    if method not in ("simulated", "davies", "score"):
        raise ValueError(f"method={method!r} must be 'simulated', 'davies' or 'score'.")
    if method != "simulated" and (both or model.covariance != "nonrobust"):
        raise ValueError(
            f"method={method!r} is for breakpoints that change the slope or the level, "
            "and for covariance='nonrobust': use method='simulated'."
        )
    rng = check_random_state(random_state)
    with one_blas_thread():
        data = read(model, X, y, sample_weight)
        prepared = prepare(data.x[:, 0], data.y, data.linear, data.weight)
        options, scaling = options_of(model, data.kinds[0]), prepared.scaling
        check_inside(prepared, options)
        problem = problem_of([prepared], options)
        rows = spread(0, problem.table.x.shape[1] - 1, MOST_POSITIONS)
        problem = problem.at(rows)
        possible = feasible(problem, problem.candidates.t[..., None])[0]
        problem, found = problem.at(rows[possible]), None
        if possible.any() and model.covariance == "nonrobust":
            n_rows = float(prepared.rows.weight.sum())
            found = plain_test(problem, n_rows, method, n_draws, rng)
        elif possible.any():
            noise = least_squares.Covariance(model.covariance, model.hac_lags)
            found = bootstrap_test(problem, prepared.rows, noise, n_draws, rng)
        if found is None:
            return BreakpointTest(0.0, 1.0, np.nan)
        t, _ = insert(problem, np.empty((1, 0)))
    t = scaling.to_user(t)[0]
    t = float(t) if data.kinds[0] is None else dates.from_days(t)
    return BreakpointTest(float(found[0]), float(found[1]), t)


def _inverse_root(matrices):
    """Return R with the inverse R R' of matrices (c, m, m), and what is not zero."""
    values, vectors = factors.eigenpairs(matrices)
    known = values > DEPENDENT * np.trace(matrices, axis1=1, axis2=2)[:, None]
    inverse = np.where(known, 1 / np.sqrt(np.where(known, values, 1)), 0)
    return vectors * inverse[:, None], known


def plain_test(problem, n_rows, method, n_draws, rng):
    """Return statistic and p-value under normal noise of one variance, or None."""
    table, form, (rows, t, *_) = problem.table, problem.form, problem.candidates
    pieces = all_pieces(problem, np.empty((1, 0)))
    found, degree = solve(table, pieces, form.flat_end), len(pieces.coef) - 1
    powers = [*range(1, 1 + form.ramp), *[0] * form.step]
    m, c, freedom = len(powers), t.shape[1], n_rows - n_parameters(problem, 0)
    if freedom <= m or found.rss[0] <= EXACT:
        return None
    new = concatenate(*(Pieces(rows, powers_of(t, j, degree)) for j in powers))
    (inner,), (targets,) = products(table, new, new)
    (cross,), _ = products(table, new, pieces)
    cross = np.hstack([cross, targets[:, 1:]])
    scores = targets[:, 0] - cross @ found.coef[0, :, 0]
    if found.end is not None:  # of the pieces less their slopes at the end
        slope = new.coef[1, 0]
        scores = scores - slope * found.end.with_target[0, 0]
        with_end = np.outer(cross @ found.end.coef[0], slope)
        inner = inner - with_end - with_end.T
        inner += np.outer(slope, slope) * found.end.square[0]
        cross = cross - np.outer(slope, found.end.with_pieces[0])
    half, here = cross @ found.half_inverse[0].T, np.arange(c)
    inner = (inner - half @ half.T).reshape(m, c, m, c)
    # The directions of every position become orthonormal: their products with y, and
    # the covariance of these for noise of variance one.
    root, _ = _inverse_root(inner[:, here, :, here])
    scores = np.einsum("ic,cik->ck", scores.reshape(m, c), root)
    covariance = np.einsum("iajb,aik,bjl->akbl", inner, root, root)
    covariance = covariance.reshape(c * m, c * m)
    share = np.sum(scores**2, axis=1).max() / found.rss[0]
    if method == "score":  # of the mean of the new columns
        lengths = np.sqrt(np.maximum(inner[0, here, 0, here], 0))
        size = lengths @ covariance @ lengths
        share = (lengths @ scores[:, 0]) ** 2 / size / found.rss[0]
    left = max(1 - share, np.finfo(float).tiny)
    statistic = share / m / left * (freedom - m)
    if method == "simulated":
        # Draws of the largest share of the sum of squares, without a breakpoint.
        values, vectors = factors.eigenpairs(covariance)
        kept = values > DEPENDENT * values[-1]
        normal = rng.standard_normal((n_draws, int(kept.sum())))
        drawn = normal @ (vectors[:, kept] * np.sqrt(values[kept])).T
        explained = np.sum(drawn.reshape(n_draws, c, m) ** 2, axis=2)
        rest = rng.standard_gamma(max(freedom - kept.sum(), 0) / 2, n_draws)
        shares = explained.max(axis=1) / (np.sum(normal**2, axis=1) + 2 * rest)
        return statistic, (1 + np.sum(shares >= share)) / (1 + n_draws)
    p_value = 2 * stdtr(freedom - 1, -np.sqrt(statistic))
    if method == "davies":
        angles = np.arccos(np.clip(np.diagonal(covariance, 1), -1, 1))
        p_value += angles.sum() / np.pi * left ** (freedom / 2 - 1)
    return statistic, min(p_value, 1.0)


def bootstrap_test(problem, rows, kind, n_draws, rng):
    """Return statistic and p-value under noise of a kind, or None."""
    from scipy.signal import lfilter  # slow to load, and rarely needed

    form, t = problem.form, problem.candidates.t[0]
    known, extra = problem.known[0], None if form.flat_end else 0.0
    old = least_squares.design(form, rows.x, rows.linear, known)
    space = least_squares.coefficient_space(form, len(known), old.shape[1])
    if space is not None:  # what is taken from each ramp, and the level lines
        extra = old[:, form.slope + form.ramp * len(known)]
        old = old @ space
    found = least_squares.solve(old, rows.y, rows.weight)
    n_rows = rows.weight.sum()
    none = extra is None or n_rows <= found.rank + 2
    if none or found.rss <= EXACT * (rows.weight @ rows.y**2):
        return None
    # What undoes what the fit has taken from the residuals.
    power = {"HC0": 0.0, "HC2": -0.5, "HC3": -1.0}.get(kind.kind)
    if power is None:
        factor = np.sqrt(n_rows / (n_rows - found.rank))
    else:
        factor = np.maximum(1 - np.sum((old @ found.half) ** 2, axis=1), 1e-3) ** power
    residual = factor * found.residual
    phi = np.empty(0)
    if kind.kind.startswith("HAC"):
        phi, _ = yule_walker(covariances(residual, kind.lags), len(residual))
    whiten, root = np.concatenate([[1], -phi]), np.sqrt(rows.weight)
    scores, later = [], []
    ramps, steps = np.maximum(rows.x - t[:, None], 0) - extra, rows.x >= t[:, None]
    added = [ramps**power for power in range(1, 1 + form.ramp)]
    for columns in added + [steps.astype(float)] * form.step:
        new = least_squares.solve(old, columns, rows.weight).residual
        scores.append((rows.weight * found.residual) @ new.T)
        # What a change of an innovation changes in products with the columns.
        later.append(lfilter([1], whiten, (root * new)[:, ::-1])[:, ::-1])
    scores, later = np.stack(scores, axis=-1), np.stack(later, axis=-1)
    innovation = lfilter(whiten, 1, residual)
    n = len(innovation)
    starts = np.unique(np.linspace(0, n, min(n, _MOST_BLOCKS) + 1).astype(np.intp))

    def blocks(size):
        """Return sums of columns, times such sizes, over blocks of neighbours."""
        return np.add.reduceat(later * size[:, None], starts[:-1], axis=1)

    terms = blocks(innovation)
    inverse, known = _inverse_root(np.swapaxes(terms, 1, 2) @ terms)
    statistic = np.sum((scores[:, None] @ inverse)[:, 0] ** 2, axis=1).max()
    c, n, m = terms.shape
    signs = rng.choice(np.array([-1.0, 1.0]), (n_draws, n))
    drawn = signs @ np.swapaxes(terms @ inverse, 0, 1).reshape(n, c * m)
    # V of every draw: its fit takes a part of the signed innovations away.
    basis = found.half.T @ (root[:, None] * old).T
    back = innovation * lfilter([1], whiten, basis[:, ::-1])[:, ::-1]
    taken = signs @ np.add.reduceat(back, starts[:-1], axis=1).T
    whole = blocks(factor * innovation) @ inverse
    parts = [blocks(each) @ inverse for each in lfilter(whiten, 1, factor * basis)]
    variance = np.swapaxes(whole, 1, 2) @ whole + np.eye(m) * ~known[:, None]
    for j, part in enumerate(parts):
        both = np.swapaxes(whole[..., None] * part[..., None, :], 0, 1)
        both = both + np.swapaxes(both, -1, -2)
        own, shape = taken[:, j, None, None, None], (n_draws, c, m, m)
        variance = variance - own * (signs @ both.reshape(n, -1)).reshape(shape)
        for k, other in enumerate(parts):
            product = np.swapaxes(part, 1, 2) @ other
            variance = variance + own * taken[:, k, None, None, None] * product
    drawn = drawn.reshape(n_draws, c, m)
    solved = factors.solve_general(variance, drawn[..., None])
    if np.isnan(solved).any():  # a draw of so few rows that it leaves no residuals
        solved = np.linalg.pinv(variance, hermitian=True) @ drawn[..., None]
    drawn = np.sum(drawn * solved[..., 0], axis=2)
    return statistic / m, (1 + np.sum(drawn.max(axis=1) >= statistic)) / (1 + n_draws)
