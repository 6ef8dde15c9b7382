r"""The penalty of a head of sparse features, chosen by rows that are left out.

The evidence asks for the Hessian of a class, which has the order of the rows here, and
on words, most of which say nothing, it prefers penalties that predict new rows badly.
So a part of the rows is taken, some of them are left out, and the minimum is followed
along a path of falling penalties, each started from the one before, while the
cross-entropy of what was left out falls.

Each penalty is judged at the best factor of its logits
(:mod:`sklearn_gn.softmax_head.temperature`). With ten texts of a class, the penalty
that separates the classes best leaves logits of a third of the right size.

The Gram matrix of the part is small and dense. What is carried over to all rows is
``n alpha``, the precision of the coefficients a priori, which does not depend on the
number of rows, and the factor. With many more rows than the part has, the best factor
is nearer to one, but the log loss is lower with this factor than without.
"""

import math

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.softmax_head.row_space import (
    Combination,
    RowHead,
    RowSpace,
    sparse_rows,
)
from sklearn_gn.softmax_head.sparse_newton import evaluated, step
from sklearn_gn.softmax_head.temperature import ITERATIONS, PRIOR, best_factor

_ROWS = 2000  # of the part
_CLASSES = 128  # of the part
_IN_FOUR = 4  # rows of a class, one is left out
_LEAST = 20  # rows that are left out, fewer of which say nothing
_PATH = 10.0 ** np.arange(2, -3.1, -0.5)  # for rows of mean squared length one
_GAIN = 0.01  # of the cross-entropy, for which a smaller penalty is worth its steps
_RISES = 2  # in a row, after which no smaller penalty is tried
_STEPS = 20  # at most, for a penalty
_SOLVED = 1e-3  # relative fall of the loss in a step that is not worth another


def held_out_penalty(X, label, weight, n_effective, options, dtype):
    """Choose the penalty of all rows, and the factor of the logits.

    Parameters
    ----------
    X : sparse matrix of shape (n_samples, n_features)
        In CSR format.
    label : ndarray of int of shape (n_samples,)
    weight : ndarray of shape (n_samples,)
        Their sum is one.
    n_effective : float
        Number of rows, counted by their weights.
    options : HeadOptions
    dtype : dtype

    Returns
    -------
    alpha : float
        Where too few rows can be left out, the mean squared length of the rows over
        ``n_effective``: for lengths of one the default of ``LogisticRegression``.
    factor : float
        One there.
    """
    train, test, number = part_of(label)
    few = len(test) < _LEAST or number.max() == 0
    few = few or not switches.on("heads.held_out")
    if few:
        train, number = np.arange(len(label)), np.zeros_like(label)
    n_classes = number.max() + 1
    columns = 1 if n_classes == 2 else n_classes
    share = weight[train] / weight[train].sum()
    intercept = bool(options.intercept)
    rows = sparse_rows(X[train], number[train], share, columns, intercept, dtype)
    precisions = _PATH * spread(rows)
    if few:
        return spread(rows) / n_effective, 1.0
    test_share = weight[test] / weight[test].sum()
    prior = PRIOR / (n_effective * weight[test].sum())
    n_part = n_effective * weight[train].sum()
    iterations = ITERATIONS if switches.on("heads.temperature") else 0
    losses, factors = [], []
    for logits in minima(DensePart(rows, X[test]), precisions / n_part, options):
        loss, factor = best_factor(logits, number[test], test_share, iterations, prior)
        losses.append(float(loss))
        factors.append(float(factor))
        if len(losses) - np.argmin(losses) > _RISES:
            break
    chosen = np.argmax(np.array(losses) <= (1 + _GAIN) * min(losses))
    return precisions[chosen] / n_effective, factors[chosen]


def part_of(label):
    """Choose rows to fit and rows to leave out, of some classes; the choice is fixed.

    Returns
    -------
    train, test : ndarray of int
        Numbers of rows.
    number : ndarray of int of shape (n_samples,)
        Numbers of the chosen classes.
    """
    counts = np.bincount(label)
    classes = np.flatnonzero(counts >= _IN_FOUR)
    if len(classes) > _CLASSES:
        classes = classes[np.linspace(0, len(classes) - 1, _CLASSES).astype(int)]
    number = np.full(len(counts), -1)
    number[classes] = np.arange(len(classes))
    number = number[label]
    rng = np.random.RandomState(0)
    chosen = rng.permutation(np.flatnonzero(number >= 0))[:_ROWS]
    chosen = chosen[np.argsort(number[chosen], kind="stable")]
    place = np.arange(len(chosen)) - np.searchsorted(number[chosen], number[chosen])
    out = place % _IN_FOUR == _IN_FOUR - 1
    return chosen[~out], chosen[out], number


def minima(space, alphas, options):
    """Yield the logits of the rows left out, at the minimum for each penalty."""
    n, columns = len(space.rows.label), space.rows.n_columns
    own = np.zeros((n, columns), space.rows.x.dtype)
    net = RowHead(Combination(own, 0.0), own[0])
    for alpha in alphas:
        alpha = options.alpha.dtype.type(alpha)
        here = options._replace(alpha=alpha, damping=None, rank=None, tol=0)
        state = minimum(space, evaluated(space, net, here, own), here)
        net, own = state.net, state.own
        yield space.test_logits(net)


def minimum(space, state, options):
    """Take Newton steps while they pay."""
    for _ in range(_STEPS):
        before = state.loss
        state, report = step(space, state, options)
        if report.stop or not before - state.loss > _SOLVED * abs(before):
            break
    return state


class DensePart(RowSpace):
    """Few rows, whose Gram matrix is held, and others to predict.

    Parameters
    ----------
    rows : SparseRows
    test : sparse matrix of shape (n_test, n_features)
    """

    def __init__(self, rows, test):
        self.rows, self.start = rows, None
        gram = (rows.x @ rows.x.T).toarray()
        self._grams = {a.dtype: a for a in (gram.astype(np.float32), gram)}
        self._cross = (
            test[:, rows.columns] @ rows.x[:, : len(rows.columns)].T
        ).toarray()
        if rows.intercept:
            self._cross = self._cross - rows.weight @ gram

    def image(self, c):
        """Return the logits of a combination, and a bound of its coefficients."""
        image = self._grams[c.rows.dtype] @ self._balanced(c.rows)
        return self._centred(image), math.inf

    def test_logits(self, head):
        """Return the logits of the other rows."""
        return self._cross @ self._balanced(head.weight.rows) + head.bias


def spread(rows):
    """Mean squared length of rows, from their mean where there is an intercept."""
    squares = rows.weight @ np.asarray(rows.x.power(2).sum(axis=1))
    if rows.intercept:
        mean = rows.x.T @ rows.weight
        squares = squares - mean @ mean
    return float(squares) if squares > 0 else 1.0
