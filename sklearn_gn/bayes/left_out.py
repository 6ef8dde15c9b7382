r"""Errors at rows that a fit has not seen, without fitting again.

The evidence takes the noise for normal. Where some residuals are far, a network that
follows them has a high evidence and predicts other rows badly. Rows that are left out
tell, whatever the noise: with the variance :math:`v = j^T H^{-1} j` of a prediction,
the error at row i, left out once, is

.. math::
    r_i / (1 - \beta v_i),

exactly so for a linear model whose penalties stay, and to first order for a network.
"""

import math

import numpy as np

from sklearn_gn.data.rows_source import RowSource
from sklearn_gn.optim.solver import Rows

MOST_ROWS = 4000  # whose errors are looked at; every k-th of more
# In standard errors. One, the usual rule, lets go of networks that pay on tables of
# less than 200 rows, zero keeps some that follow a few far rows (100 tables of R's
# packages, two splits each).
CLEAR = 0.5
# The same where the evidence speaks for the simpler model: with less, some pass that
# follow noise (58 tables, three splits and starts each; simulated noise).
AGAINST_EVIDENCE = 2.0


def some_of(rows):
    """Return the rows that are looked at; of rows in chunks, some of their sample."""
    rows = rows.sample if isinstance(rows, RowSource) else rows
    some = slice(None, None, max(1, -(-len(rows.x) // MOST_ROWS)))
    return Rows(*(array[some] for array in rows))


def errors(residuals, leverage, weight, n_effective):
    """Return the errors at left-out rows, of shape (m, k).

    Parameters
    ----------
    residuals : ndarray of shape (m, k)
        Of the fit to all rows.
    leverage : ndarray of shape (m,) or (m, k)
        Inverse noise variance times variance of the prediction: the derivative of a
        prediction in an observation that counts once.
    weight : ndarray of shape (m,)
        Of all rows, they sum to one.
    n_effective : float
        Number of rows, counted by their weights.
    """
    # A row that stands for several is left out once only.
    once = np.minimum(weight * n_effective, 1)[:, None]
    left = 1 - once * leverage.reshape(len(leverage), -1)
    return residuals / np.maximum(left, np.finfo(np.float64).eps)


def are_clearly_lower(squares, others, weight, n_effective, clear=CLEAR):
    """Whether square errors are lower by some standard errors of their difference.

    Of two models that rows do not tell apart, the simpler one is the better choice
    (Breiman et al., Classification and Regression Trees, 1984, section 3.4.3).

    Parameters
    ----------
    squares, others : ndarray of shape (m,)
        Square errors of two models at the same rows.
    weight : ndarray of shape (m,)
    n_effective : float
        Number of all rows, counted by their weights, which sum to one.
    clear : float
        Number of standard errors.
    """
    gain, n_looked_at = others - squares, n_effective * np.sum(weight)
    mean, variance = _moments(gain, weight)
    return bool(mean > clear * math.sqrt(variance / n_looked_at))


def spread(squares, weight):
    """Return the variance of square errors over that of normal noise; at least one."""
    mean, variance = _moments(squares, weight)
    return max(1.0, variance / (2 * mean**2)) if mean > 0 else 1.0


def _moments(values, weight):
    """Weighted mean and variance."""
    weight = weight / np.sum(weight)
    mean = weight @ values
    return mean, weight @ (values - mean) ** 2
