r"""The multinomial cross-entropy, and the parts of Newton's method for it.

A model gives m columns of values for n rows. For two classes m is 1: the column is the
logit of the second class, that of the first is zero. This is the parametrisation of
``LogisticRegression``, in which a penalty has its usual meaning. Otherwise there is one
column a class.

The cross-entropy of a row is written in two ways. With the probabilities p it is
``-log p_t`` for the true class t, with the second derivative ``diag(p) - p p^T`` in the
logits. With the margin of the competitors j over the true class,

    s = log sum_{j != t} exp(z_j) - z_t,

it is softplus(s): ``p_rest = sigmoid(s)`` is the probability of an error, ``rho`` the
softmax over the competitors, and ``a`` (-1 at t, rho elsewhere) the gradient of s. All
is computed from log-sum-exp, so that margins of either sign and any size are exact to
rounding.

Multinomial regression by Newton's method has three parts here, which the softmax head,
its baseline and the inner problem of variable projection share: the product with the
Hessian (:func:`hessian_product`), the Newton system by conjugate gradients
(:func:`newton_direction`), and the line search (:func:`backtrack` with
:func:`insufficient_decrease`).
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn._typing import Array
from sklearn_gn.arrays.libraries import library_of, namespace
from sklearn_gn.linalg.krylov import conjugate_gradient

_ARMIJO = 1e-4  # part of the slope by which a step has to lower the loss
_HALVINGS = 30


# --- values and logits ---------------------------------------------------------------


def all_classes(values):
    """Logits of all C classes from the m columns."""
    if values.shape[1] > 1:
        return values
    xp = namespace(values)
    return xp.concatenate([xp.zeros_like(values), values], axis=1)


def to_columns(by_class):
    """Transpose of :func:`all_classes`: sum the classes into the free columns.

    Takes arrays of shape (..., C) and returns shape (..., m).
    """
    return by_class if by_class.shape[-1] > 2 else by_class[..., 1:]


def probabilities(values):
    """Softmax over all C classes, of shape (n, C)."""
    return library_of(values).softmax(all_classes(values))


def is_true_class(label, n_classes):
    """Mask of shape (n, C)."""
    classes = namespace(label).arange(n_classes, dtype=label.dtype)
    return label[:, None] == classes[None, :]


# --- the cross-entropy by its margin -------------------------------------------------


class Margins(NamedTuple):
    """The cross-entropy of n rows as true class against the rest."""

    margin: Array  # (n,)  s
    p_true: Array  # (n,)  sigmoid(-s)
    p_rest: Array  # (n,)  sigmoid(s)
    rho: Array  # (n, C)  softmax over the competitors, 0 at the true class
    gradient: Array  # (n, C)  a, the gradient of the margin in the logits


def margins(logits, label):
    """Split the rows of the given logits (n, C) and labels (n,)."""
    library = library_of((logits, label))
    competitors = library.with_label(logits, label, -library.xp.inf)
    log_sum, rho = library.logsumexp_and_softmax(competitors)
    margin = log_sum - library.at_label(logits, label)
    p_rest, p_true = library.sigmoid_and_complement(margin)
    return Margins(
        margin=margin,
        p_true=p_true,
        p_rest=p_rest,
        rho=rho,
        gradient=library.with_label(rho, label, -1),
    )


def cross_entropy(margin):
    """softplus(s), exactly the cross-entropy."""
    return library_of(margin).softplus(margin)


def root_curvature(margin):
    """``sqrt(p_true p_rest)``, which does not underflow before it has to."""
    xp = namespace(margin)
    half = xp.exp(-xp.abs(margin) / 2)
    return half / (1 + half * half)


# --- Newton's method -----------------------------------------------------------------


def covariance_product(p, u):
    """``(diag(p) - p p^T) u`` for each row, arrays of shape (n, C)."""
    mean = library_of((p, u)).row_products(p, u)
    return p * (u - mean[:, None])


def hessian_product(forward, transposed, p, weight, direction):
    """Product with the Hessian of the weighted cross-entropy, without a penalty.

    Parameters
    ----------
    forward : callable
        Maps a change of the parameters to that of the values, of shape (n, m).
    transposed : callable
        Its transpose, from (n, m) to the parameters.
    p : array of shape (n, C)
        Probabilities of the classes.
    weight : array of shape (n,)
    direction : tree of arrays
        Change of the parameters.

    Returns
    -------
    tree of arrays
    """
    change = covariance_product(p, all_classes(forward(direction)))
    return transposed(to_columns(change * weight[:, None]))


def newton_direction(
    product, gradient, *, precondition=None, start=None, forcing, max_iter
):
    """Solve the Newton system inexactly by conjugate gradients.

    Parameters
    ----------
    product : callable
        Product with the Hessian, penalty and damping included.
    gradient : tree of arrays
    precondition : callable, default=None
        Approximate inverse of the Hessian.
    start : tree of arrays, default=None
        First guess of the direction.
    forcing : scalar
        Relative residual at which the iteration ends.
    max_iter : int or scalar

    Returns
    -------
    direction : tree of arrays
    iterations : scalar
    """
    library = library_of(gradient)
    right = library.tree_map(library.xp.negative, gradient)
    forcing = library.xp.asarray(forcing, library.leaves(right)[0].dtype)
    direction, iterations, _ = conjugate_gradient(
        product,
        right,
        start=start,
        precondition=precondition,
        tol=forcing,
        max_iter=max_iter,
    )
    return direction, iterations


def insufficient_decrease(new, loss, length, slope, rounding=0.0):
    """Whether a step fails Armijo's condition, or ends where the loss is NaN.

    ``slope`` is the derivative along the direction, ``rounding`` what two losses that
    are alike may differ by. Works on numbers and on traced arrays.
    """
    return (new > loss + _ARMIJO * length * slope + rounding) | (new != new)


def backtrack(evaluate, rejected, length, *, halvings=_HALVINGS, while_loop=None):
    """Halve a step until it is no longer rejected.

    Parameters
    ----------
    evaluate : callable
        Maps a step length to what is there: a loss, or a tree that has it.
    rejected : callable
        Says of a length, and what was evaluated there, whether to go on.
    length : scalar
        The first one.
    halvings : int, default=30
        The most there are.
    while_loop : callable, default=None
        That of NumPy where ``evaluate`` is a call of a compiled function. If None,
        that of the library of what is evaluated.

    Returns
    -------
    length : scalar
        The last one; it may still be rejected.
    evaluated : tree
    """

    def unfinished(search):
        length, evaluated, count = search
        return rejected(length, evaluated) & (count < halvings)

    def halve(search):
        length, _, count = search
        return length / 2, evaluate(length / 2), count + 1

    search = length, evaluate(length), np.int32(0)
    while_loop = while_loop or library_of(search).while_loop
    length, evaluated, _ = while_loop(unfinished, halve, search)
    return length, evaluated
