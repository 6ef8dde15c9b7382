r"""The cross-entropy of rows that are left out, from the minimum for all of them.

One Newton step leads to the minimum for all rows but one (Rad and Maleki, "A scalable
estimate of the out-of-sample prediction error via approximate leave-one-out
cross-validation", 2020). With the Hessian H of the sum over the rows, and the logits z,
the probabilities p and the gradient in the logits g of a row h, the logits without that
row are

.. math::
    z + A (I - W A)^{-1} g, \qquad A = (I \otimes h)^T H^{-1} (I \otimes h), \qquad
    W = \mathrm{diag}(p) - p p^T.

H is the whole Hessian. From its diagonal blocks alone, rows that waver between two
classes would get twice the A. With fewer rows than features, it is that of as many
coordinates as there are rows, in which their inner products are the same.
"""

import math

import numpy as np

from sklearn_gn.arrays.libraries import NumPy
from sklearn_gn.optim.multinomial import (
    all_classes,
    margins,
    probabilities,
    to_columns,
)
from sklearn_gn.softmax_head.blocks import in_whitened
from sklearn_gn.softmax_head.head import weights_once
from sklearn_gn.softmax_head.temperature import ITERATIONS, best_factor
from sklearn_gn.softmax_head.whitening import counted_weights, to_whitened

_COEFFICIENTS = 1024  # at most: the order of the Hessian
_WORK = 2**30  # multiply-adds of the Hessian
_EXACT = 2**26  # in the precision of the fit; more are single
_BLOCK = 2**18  # numbers of a block of rows, for each coefficient
_ROWS = 512  # that are left out, those which are predicted worst; others change little


def is_affordable(n_rows, n_features, n_columns):
    """Return whether the whole Hessian may be computed for each penalty."""
    order = n_columns * (min(n_rows, n_features) + 1)
    return order <= _COEFFICIENTS and n_rows * order**2 <= _WORK


def log_predictive(net, data, settings, n_effective, iterations=ITERATIONS):
    """Sum of the log probabilities of the labels, each by a head without its row.

    Parameters
    ----------
    net : AffineHead
        At the minimum of the objective.
    data : Whitened
    settings : NewtonSettings
    n_effective : float
        Number of rows, counted by their weights, which are repetitions.
    iterations : int
        As for :func:`~sklearn_gn.softmax_head.temperature.best_factor`.

    Returns
    -------
    value : float
        ``-inf`` where the Hessian is not positive definite to rounding.
    factor : float
        Of the logits, with which the sum is largest.
    """
    net, data, settings = NumPy.tree_map(np.asarray, (net, data, settings))
    label, intercept = data.rows.label, settings.intercept
    x, head = features(data, len(net.bias)), to_whitened(net, data.center, data.dual)
    count = n_effective * counted_weights(data.rows).astype(np.float64)
    with np.errstate(all="ignore"):
        logits = x @ head.weight.astype(x.dtype) + head.bias.astype(x.dtype)
        penalty = n_effective * in_whitened(settings.alpha, data.squares)[:, 0]
        if len(x) < x.shape[1]:
            x, penalty = in_row_space(x, penalty)
        h = np.append(x, np.full((len(count), 1), intercept, x.dtype), axis=1)
        inverse = inverse_hessian(h, count, logits, penalty, intercept)
        split = margins(all_classes(logits), label)
        worst = np.argsort(np.where(count > 0, -split.p_rest, 1), kind="stable")[:_ROWS]
        logits = logits.astype(np.float64)
        logits[worst] = logits_left_out(
            inverse, h[worst], count[worst], logits[worst], label[worst]
        )
        loss, factor = best_factor(logits, label, count, iterations)
    if not math.isfinite(loss):
        return -math.inf, 1.0
    return -float(loss), float(factor)


def features(data, n_columns):
    """The features in whitened coordinates, of few rows in the precision of the fit."""
    rows, order = data.rows, n_columns * (min(data.x.shape) + 1)
    if len(rows.x) * order**2 > _EXACT:
        return data.x
    counted = weights_once(rows)[:, None] > 0
    x = np.where(counted, rows.x - data.center[None, :], 0)
    return x @ data.basis if data.basis.ndim == 2 else x * data.basis[None, :]


def in_row_space(x, penalty):
    """As many coordinates as rows, with a penalty of one, for more features.

    Returns
    -------
    x : ndarray of shape (n, n)
    penalty : ndarray of shape (n,)
    """
    scaled = x / np.sqrt(np.where(penalty > 0, penalty, np.inf))
    squares, axes = np.linalg.eigh(scaled @ scaled.T)
    coordinates = axes * np.sqrt(np.maximum(squares, 0))[None, :]
    return coordinates.astype(x.dtype), np.ones(len(x))


def inverse_hessian(h, count, logits, penalty, intercept):
    """Inverse of the Hessian, of shape (m, d + 1, m, d + 1); NaN where there is none.

    Parameters
    ----------
    h : ndarray of shape (n, d + 1)
        Features, and a one for the intercept.
    count : ndarray of shape (n,)
        Repetitions of the rows.
    logits : ndarray of shape (n, m)
    penalty : ndarray of shape (d,)
    intercept : scalar
        1, or 0 where there is none.
    """
    k, m = h.shape[1], logits.shape[1]
    p, count = to_columns(probabilities(logits)), count.astype(h.dtype)
    hessian = np.zeros((m, k, m, k), h.dtype)
    size = max(1, _BLOCK // (m * k))
    for start in range(0, len(h), size):
        part = slice(start, start + size)
        for c in range(m):
            # Before the sum, so that nothing cancels where a probability is near one.
            curvature = -p[part, c : c + 1] * p[part, c:]
            curvature[:, 0] += p[part, c]
            curvature *= count[part, None]
            weighted = curvature[:, :, None] * h[part, None, :]
            product = h[part].T @ weighted.reshape(len(weighted), -1)
            hessian[c, :, c:] += product.reshape(k, m - c, k)
    for c in range(m):
        hessian[c:, :, c] = hessian[c, :, c:].transpose(1, 2, 0)
    diagonal = np.einsum("cjej->cej", hessian)  # a view
    own = np.einsum("ccj->cj", diagonal)
    largest = max(float(own.max()), float(np.finfo(h.dtype).tiny))
    own[:, :-1] += penalty.astype(h.dtype)
    own[:, -1] += (1 - intercept) * largest
    if m > 1:  # what moves all classes alike changes no probability, and may be free
        diagonal += largest / m
    factor = NumPy.cholesky(hessian.reshape(m * k, m * k))
    return NumPy.cholesky_inverse(factor).reshape(m, k, m, k)


def logits_left_out(inverse, h, count, logits, label):
    """Logits of some rows, each by the head without it.

    Of a row that counts less than once, all is left out.
    """
    m, k = inverse.shape[:2]
    leverage = np.empty((len(h), m, m))
    for c in range(m):
        image = h @ inverse[c, :, c:].reshape(k, -1)
        image = image.reshape(len(h), m - c, k) @ h[:, :, None]
        leverage[:, c, c:] = leverage[:, c:, c] = image[:, :, 0]
    split = margins(all_classes(logits), label)
    once = np.minimum(count, 1)[:, None]
    p = to_columns(probabilities(logits))
    gradient = once * to_columns(split.p_rest[:, None] * split.gradient)
    curved = leverage - np.einsum("ic,ice->ie", p, leverage)[:, None, :]
    system = np.eye(m) - (once * p)[:, :, None] * curved
    change = leverage @ np.linalg.solve(system, gradient[:, :, None])
    return logits + change[:, :, 0]
