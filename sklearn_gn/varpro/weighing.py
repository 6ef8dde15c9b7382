r"""Shares of the small and the wide members of a classifier in its predictions.

Small networks by the evidence do well where classes overlap, wide ones where the
classes are nearly separable, and rows that a fit has not seen tell which. Each wide
member is fitted without a quarter of the rows, another one for each member, before it
sees all of them. Of the small members, :mod:`sklearn_gn.varpro.calibration` tells the
values at left-out rows without fitting again.

With the probabilities p_i and q_i of the true class that both give to row i where it is
left out, the share s of the small members and the factor t of the wide members' logits
minimise

.. math::
    -\sum_i v_i \log(s p_i + (1 - s) q_i(t)) - \log s (1 - s) + 2 \log^2 t,

with rows counted by their weights v_i. The last terms keep few rows from deciding: they
are those of a few further rows that do not tell the two apart.
"""

import math

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from sklearn_gn.base import all_logits
from sklearn_gn.bayes.laplace import left_out_rows
from sklearn_gn.optim.solver import Rows

PARTS = 4  # of the rows, of which each wide member lacks one
_PULL = 2.0  # of the logarithm of the factor towards zero
_LARGEST = 4.0  # factor, and its inverse the smallest
_LEAST = 1e-4  # share
_LOWEST = math.log(1e-12)  # logarithm of a probability; further errors are as bad


def left_out_shares(rows, n_effective):
    """Return which share of each row each part leaves out, of shape (PARTS, m).

    Rows that stand for several are distributed like their copies, and so are those of
    each class.

    Parameters
    ----------
    rows : Rows
        Their weights sum to one; y holds the probabilities of the classes.
    n_effective : float
        Number of rows, counted by their weights.
    """
    order = np.argsort(np.argmax(rows.y, axis=1), kind="stable")
    count = np.maximum(rows.weight[order] * n_effective, np.finfo(np.float64).tiny)
    end = np.cumsum(count)
    whole, rest = np.divmod(np.concatenate([[0.0], end]), PARTS)
    part = np.arange(PARTS)[:, None]
    before = whole + np.clip(rest - part, 0, 1)  # rows of a part up to each row's end
    shares = np.empty((PARTS, len(count)))
    # Rounding would leave next to nothing of a row in the part after its own.
    shares[:, order] = np.round(np.diff(before, axis=1) / count, 9)
    return np.clip(shares, 0, 1)


def rows_without(rows, n_effective, number):
    """Return the rows without a part of them; its number is modulo PARTS."""
    share = left_out_shares(rows, n_effective)[number % PARTS]
    weight = rows.weight * (1 - share)
    kept = weight > 0
    weight = weight[kept] / np.sum(weight[kept])
    return Rows(rows.x[kept], rows.y[kept], weight)


def share_and_factor(small, wide, rows, n_effective):
    """Return the share of the small members and the factor of the wide ones' logits.

    Parameters
    ----------
    small : list of ndarrays of shape (m, k)
        Values of the small members at ``left_out_rows(rows)``, each row left out.
    wide : list of ndarrays of shape (m, k)
        Values of the wide members there; the first of them lacks the first part.
    rows : Rows
    n_effective : float
        Number of rows, counted by their weights.
    """
    shares = left_out_shares(rows, n_effective)[: len(wide)] * rows.weight
    y, lacking = left_out_rows(Rows(rows.x, rows.y, n_effective * shares.T))[1:]
    lacking = lacking.T
    p = np.mean([np.exp(_log_p(values, y)) for values in small], axis=0)
    logits = [all_logits(values) for values in wide]

    def best_share(log_factor):
        factor = math.exp(log_factor)
        q = np.exp([_log_p(factor * values, y) for values in logits])

        def loss(share):
            mean = share * p + (1 - share) * q
            own = -float(np.sum(lacking * np.log(mean)))
            return own - math.log(share) - math.log(1 - share)

        return minimize_scalar(loss, bounds=(_LEAST, 1 - _LEAST), method="bounded")

    log_factor = minimize_scalar(
        lambda x: best_share(x).fun + _PULL * x**2,
        bounds=(-math.log(_LARGEST), math.log(_LARGEST)),
        method="bounded",
    ).x
    return float(best_share(log_factor).x), math.exp(log_factor)


def _log_p(values, y):
    """Logarithm of the probability of the true class."""
    log_p = np.sum(y * log_softmax(all_logits(values), axis=1), axis=1)
    return np.maximum(log_p, _LOWEST)
