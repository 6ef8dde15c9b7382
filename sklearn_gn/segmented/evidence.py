r"""Evidence of a number of breakpoints: the probability of the data, given the number.

The coefficients other than the intercept have Zellner's prior, of a size g that
maximises the evidence (Liang, Paulo, Molina, Clyde and Berger, "Mixtures of g priors
for Bayesian variable selection", 2008), the intercept and the logarithm of the noise a
flat one. Breakpoints are uniform in the range that is allowed. With p coefficients,
sums of squares T about the mean and R of the residuals, the evidence over that of the
mean is, for given breakpoints,

.. math::
    \log B = \frac{n - 1 - p}2 \log(1 + g) - \frac{n - 1}2 \log(1 + g R / T).

The integral over kinks is Laplace's, with the Gauss-Newton matrix of R; of jumps, which
have finitely many positions, the largest term stands for the sum.
"""

import numpy as np
from scipy.special import gammaln

from sklearn_gn.segmented import least_squares


def log_evidence(form, rows, t, free, low, high):
    """Return the logarithm of the evidence of a fit over that of the mean.

    Parameters
    ----------
    form : Form
    rows : Rows
        Of one series, of shape (n,).
    t : ndarray of shape (k,)
        Breakpoints, ascending.
    free : ndarray of shape (k,)
        Whether a breakpoint is estimated.
    low, high : float
        Range of the breakpoints.
    """
    rows = type(rows)(*(a[None] for a in rows[:4]))
    t, found = least_squares.fit_rows(form, rows, t[None], free)
    n, p = float(rows.weight.sum()), float(found.rank[0]) - 1
    mean = np.sum(rows.weight * rows.y) / n
    total = float(np.sum(rows.weight * (rows.y - mean) ** 2))
    if total == 0:
        return 0.0  # the mean of a constant target leaves nothing to explain
    tiny = np.finfo(float).tiny
    rss = float(np.clip(found.rss[0], 1e-25 * total + tiny, total + tiny))
    if p <= 0 or n - 1 <= p:
        g = 0.0
    else:
        g = max((total - rss) / p / rss * (n - 1 - p) - 1, 0)
    value = (n - 1 - p) / 2 * np.log1p(g) - (n - 1) / 2 * np.log1p(g * rss / total)
    n_free = int(np.sum(free))
    at = least_squares.moving(form, free)
    if len(at):
        columns = least_squares.jacobian(form, rows.x, rows.linear, t, free, found.coef)
        half = least_squares.solve_columns(form, columns, rows, t.shape[1]).half[0]
        inverse = (half @ half.T)[-len(at) :, -len(at) :]
        log_det = np.linalg.slogdet(inverse)[1]
        precision = (n - 1) * g / (total + g * rss) + tiny
        width = (len(at) * np.log(2 * np.pi / precision) + log_det) / 2
        volume = len(at) * np.log(high - low) - gammaln(len(at) + 1)
        return float(value + min(width - volume, 0))
    places = np.count_nonzero((rows.x[0, 1:] > low) & (rows.x[0, :-1] < high))
    places = max(places, n_free)
    return float(
        value - gammaln(places + 1) + gammaln(n_free + 1) + gammaln(places - n_free + 1)
    )


def evidence_path(prepared, options, found):
    """Return minus twice the log evidence, by series and number of breakpoints."""
    values = np.full(found.rss.shape, np.inf)
    for b, each in enumerate(prepared):
        known = each.scaling.x(options.known)
        low, high = np.clip(each.scaling.x(np.array(options.bounds)), -1, 1)
        for k in np.flatnonzero(np.isfinite(found.rss[b])):
            t = np.concatenate([found.knots[k][b], known])
            order = np.argsort(t, kind="stable")
            free = (np.arange(len(t)) < k)[order]
            values[b, k] = -2 * log_evidence(
                options.form, each.rows, t[order], free, low, high
            )
    return values
