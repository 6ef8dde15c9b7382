r"""The penalty that is chosen along a path, by rows that are left out or the evidence.

Where the whole Hessian is affordable, each minimum says how well it would predict its
own rows without them (:mod:`sklearn_gn.softmax_head.leave_one_out`), which chooses as
cross-validation does. Elsewhere a fifth of the rows is left out and chooses
(:mod:`sklearn_gn.softmax_head.part`). Both choose the factor of the logits with it
(:mod:`sklearn_gn.softmax_head.temperature`). The evidence, by blocks of the Hessian,
chooses where a fifth is too few rows, and where a part of many rows is enough.

With n rows, counted by their weights, and W normal a priori with precision
``a = n alpha``, Laplace's approximation of the evidence (MacKay, "The evidence
framework applied to classification networks", 1992) is

.. math::
    \log p(y) \approx -n J(W) - \frac12 \log\det H + \frac12 N \log a,

at the minimum of the objective J, with the Hessian H of n J. For the determinant stands
that of the diagonal blocks of H, one a class (:mod:`sklearn_gn.softmax_head.blocks`).
Of three and more classes it is counted (C - 1) / C times: logits that move together
change no probability, so of C directions only C - 1 have curvature, and the blocks
count all of them.

The curvature moves with W and alpha, which MacKay's fixed point leaves out; where
classes are nearly separated, it ends far from the maximum. So the evidence is evaluated
along a path of penalties, a decade or half of one apart, each minimum started from the
one before.
The vertex of the parabola through the three highest points is taken.

Where few rows are separated, Laplace's approximation grows without end as alpha falls.
So a weak prior is added in the comparison: the coefficients of features of size one are
of size one, and alpha within a decade. With more rows the evidence outweighs it.
"""

import math

import numpy as np

from sklearn_gn.bayes import evidence
from sklearn_gn.softmax_head.blocks import (
    affordable_rows,
    class_blocks,
    exact_blocks,
    kronecker_blocks,
)

_FIRST = 10.0  # precision of the coefficients, for features of size one
_DECADES = 8  # of the path on either side of its start
_ROWS_OF_BLOCK = 4  # at most, in features
_BLOCK_COST = 64  # products with the Hessian that the blocks may cost
_EXACT = 2**31  # multiply-adds of blocks of all rows in the precision of the fit


def first_alpha(X, weight, n_effective, intercept):
    """Penalty to start from: large for coefficients and features of size one.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
    weight : ndarray of shape (n_samples,)
    n_effective : float
        Number of rows, counted by their weights.
    intercept : bool
        Whether the size of a feature is that of its deviation from the mean.
    """
    share = weight / weight.sum()
    with np.errstate(over="ignore"):
        center = share @ X if intercept else 0.0
        size = np.mean(share @ (X - center) ** 2)
    return _FIRST * np.clip(size, 1e-200, 1e200) / n_effective if size > 0 else 1.0


def is_affordable(n_rows, n_features, n_columns):
    """Return whether a block for each class may be computed for each penalty."""
    slots = affordable_rows(n_rows, n_features, _BLOCK_COST)
    return slots > 0 or _is_exact(n_rows, n_features, n_columns)


def _is_exact(n_rows, n_features, n_columns):
    return n_rows * (n_features + 1) ** 2 * n_columns <= _EXACT


def log_evidence(data, net, loss, settings, n_effective, gamma=True):
    """Logarithm of the evidence, and the number of well-determined parameters.

    Parameters
    ----------
    data : Whitened
    net : AffineHead
        At the minimum of the objective.
    loss : float
        The objective there.
    settings : NewtonSettings
    n_effective : float
        Number of rows, counted by their weights.
    gamma : bool, default=True
        Whether the second result is wanted.

    Returns
    -------
    log_evidence : float
        ``-inf`` where a block is not positive definite to rounding.
    gamma : float
        Intercepts included. None if it is not wanted.
    """
    (n, d), m = data.rows.x.shape, len(net.bias)
    settings = settings._replace(damping=0 * settings.damping)
    if _is_exact(n, d, m):
        blocks = exact_blocks(
            net, data.rows, data.center, settings.alpha, settings.intercept
        )
    elif slots := min(affordable_rows(n, d, _BLOCK_COST), _ROWS_OF_BLOCK * d):
        wanted = {"inverses": False, "gamma": gamma}
        blocks = class_blocks(net, data, settings, slots, **wanted)
    else:
        blocks = kronecker_blocks(net, data, settings)
    share = 1.0 if m == 1 else (m - 1) / m
    n_free = (m if m == 1 else m - 1) * float(settings.intercept)
    # From the mean to the sum over the rows: every intercept has its factor n.
    log_det = share * float(blocks.log_det) + n_free * math.log(n_effective)
    curvature = evidence.Curvature(None, n_free, log_det)
    value = evidence.log_evidence_of_classes(curvature, n_effective * loss)
    value = value if math.isfinite(value) else -math.inf
    return value, share * float(blocks.gamma) + n_free if gamma else None


def log_posterior(point, first):
    """What a penalty is judged by, with its prior: log-normal, of one decade.

    Parameters
    ----------
    point : tuple
        A penalty, the log evidence there, the log probability of rows that are left
        out, which counts instead, or None, and more.
    first : float
        The penalty of :func:`first_alpha`.
    """
    alpha, value, held_out, *_ = point
    value = value if held_out is None else held_out
    return value - math.log10(_FIRST * alpha / first) ** 2 / 2


def best_penalty(path):
    """Return the penalty of the highest :func:`log_posterior` on a path."""
    first = path[0][0]
    return max(path, key=lambda point: log_posterior(point, first))[0]


def next_alpha(path, strides=(1.0,)):
    """Penalty to try next, and whether it is the last one.

    Parameters
    ----------
    path : sequence of tuples
        The points of :func:`log_posterior`, in the order in which they were tried.
    strides : tuple of float, default=(1.0,)
        Decades from a penalty to the next beyond all others; the last one is repeated.

    Returns
    -------
    alpha : float
    last : bool
    """
    first = path[0][0]
    steps, values = zip(
        *sorted(
            (math.log10(point[0] / first), log_posterior(point, first))
            for point in path
        ),
        strict=True,
    )
    best = int(np.argmax(values))
    stride = strides[min(len(path), len(strides)) - 1]
    if values[best] == -math.inf:
        return first, True
    if best == 0 and steps[0] > 0.5 - _DECADES:
        return first * 10 ** (steps[0] - stride), False
    if best == len(path) - 1 and steps[-1] < _DECADES - 0.5:
        return first * 10 ** (steps[-1] + stride), False
    top = slice(best - 1, best + 2)
    step = steps[best]
    if 0 < best < len(path) - 1 and np.isfinite(values[top]).all():
        bend, slope, _ = np.polyfit(np.array(steps[top]) - step, values[top], 2)
        step = step - slope / (2 * bend) if bend < 0 else step
    return first * 10**step, True
