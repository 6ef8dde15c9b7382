"""Minima along a path of penalties: without the rows of each fold, and of all rows.

All of them share the whitened features, and one preconditioner as long as it serves.
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.softmax_head import newton
from sklearn_gn.softmax_head.coordinates import coordinates_of
from sklearn_gn.softmax_head.head import (
    AffineHead,
    HeadOptions,
    batched_rows,
)

_KNOWN = 4  # minima from which the next one is extrapolated


class Minimum(NamedTuple):
    """The head of one penalty, and how it was found."""

    head: AffineHead  # of the features as given
    n_iter: int
    converged: bool


class PathProblem:
    """Rows, and fits of them with other weights.

    Parameters
    ----------
    X : ndarray of shape (n, d)
    label : ndarray of shape (n,)
    weight : ndarray of shape (n,)
        Their sum is one.
    n_columns : int
    intercept : bool
    least : float
        The smallest penalty of all fits.
    tol : float
    """

    def __init__(self, X, label, weight, n_columns, intercept, least, tol):
        self.coordinates = coordinates_of(X, weight, intercept, scaled=False)
        self.order, everything = np.random.RandomState(0).permutation(len(X)), np.inf
        rows, size = batched_rows(
            X,
            label,
            np.arange(len(X)),
            weight,
            everything,
            np.random.RandomState(0),
            np.dtype(np.float64),
            padded=False,
            coordinates=self.coordinates,
        )
        options = HeadOptions(
            alpha=np.float64(least),
            damping=None,
            rank=None,
            intercept=np.float64(intercept),
            tol=np.float64(tol),
            batch_size=size,
            seed=np.int32(0),
            solver=None,
            compiled=False,
        )
        self.data = newton.prepare(rows, options)
        shape = rows.x.shape[1], n_columns
        self.zero = AffineHead(np.zeros(shape), np.zeros(n_columns))

    def minima(self, weight, alphas, max_iter, net=None):
        """Yield the minima for the penalties, each from the one before.

        ``weight`` is that of the rows as given, and ``net`` a head to start from.
        """
        rows = self.data.rows._replace(weight=weight[self.order] / weight.sum())
        data, before, known = self.data._replace(rows=rows), None, []
        net = self.zero if net is None else self.coordinates.head(net)
        for alpha in alphas:
            options = newton.at_penalty(data.options, alpha)
            if before is None:
                state = newton.evaluated(data, net, alpha)
            else:
                state = newton.at_another_penalty(data, before, alpha)
            if len(known) > 1:
                further = newton.evaluated(data, extrapolated(known, alpha), alpha)
                if further.loss < state.loss:
                    kept = newton.preconditioned(state)
                    state = further._replace(**kept)
            largest = max(np.abs(part).max() for part in state.gradient)
            n_iter, stop = 0, "tol" if largest <= options.tol else None
            while stop is None and n_iter < max_iter:
                state, report = newton.newton_step(data, state, options)
                n_iter, stop = n_iter + 1, report.stop
            before = state
            known = [*known[1 - _KNOWN :], (alpha, state.net)]
            converged = stop in ("tol", "rounding", "line_search")
            yield Minimum(self.coordinates.given_head(state.net), n_iter, converged)


def extrapolated(known, alpha):
    """The head at a penalty by the polynomial in its logarithm through others."""
    at, nodes = np.log(alpha), np.log([a for a, _ in known])
    shares = [
        np.prod([(at - o) / (own - o) for o in np.delete(nodes, k)])
        for k, own in enumerate(nodes)
    ]
    parts = zip(*(net for _, net in known), strict=True)
    return AffineHead(*(np.tensordot(shares, each, axes=1) for each in parts))
