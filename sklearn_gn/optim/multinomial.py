r"""The multinomial cross-entropy, and the parts of Newton's method for it.

A model gives m columns of values for n rows: for two classes the logit of the second
one, otherwise one column a class. This is the parametrisation of
``LogisticRegression``, in which a penalty has its usual meaning.

The cross-entropy of a row is written in two ways. With the probabilities p it is
``-log p_t`` for the true class t, with the second derivative ``diag(p) - p p^T`` in the
logits. With the margin of the competitors j over the true class,

    s = log sum_{j != t} exp(z_j) - z_t,

it is softplus(s): ``p_rest = sigmoid(s)`` is the probability of an error, ``rho`` the
softmax over the competitors, and ``a`` (-1 at t, rho elsewhere) the gradient of s. All
is computed from log-sum-exp, so that margins of either sign and any size are exact to
rounding.

The softmax head, its baseline and the inner problem of variable projection share the
product with the Hessian, and the Newton system by conjugate gradients.
"""

from typing import NamedTuple

from sklearn_gn._typing import Array
from sklearn_gn.arrays.libraries import library_of, namespace
from sklearn_gn.linalg.krylov import conjugate_gradient

# --- values and logits ---------------------------------------------------------------


def all_classes(values):
    """Logits of all C classes from the m columns."""
    if values.shape[1] > 1:
        return values
    xp = namespace(values)
    return xp.concatenate([xp.zeros_like(values), values], axis=1)


def to_columns(by_class):
    """Transpose of :func:`all_classes`: sums (..., C) into the free columns."""
    return by_class if by_class.shape[-1] > 2 else by_class[..., 1:]


def probabilities(values):
    """Softmax over all C classes, of shape (n, C)."""
    return library_of(values).softmax(all_classes(values))


# --- the cross-entropy by its margin -------------------------------------------------


class Margins(NamedTuple):
    """The cross-entropy of n rows as true class against the rest."""

    margin: Array  # (n,)  s
    p_true: Array  # (n,)  sigmoid(-s)
    p_rest: Array  # (n,)  sigmoid(s)
    rho: Array  # (n, C)  softmax over the competitors, 0 at the true class
    label: Array  # (n,)

    @property
    def gradient(self):
        """The gradient of the margin in the logits, a, of shape (n, C)."""
        return library_of(self).with_label(self.rho + 0, self.label, -1)


def margins(logits, label):
    """Split the rows of logits (n, C), which NumPy changes, by labels (n,)."""
    library = library_of((logits, label))
    own = library.at_label(logits, label)
    competitors = library.with_label(logits, label, -library.xp.inf)
    log_sum, rho = library.logsumexp_and_softmax(competitors)
    margin = log_sum - own
    p_rest, p_true = library.sigmoid_and_complement(margin)
    return Margins(margin, p_true, p_rest, rho, label)


def cross_entropy(margin):
    """softplus(s), exactly the cross-entropy."""
    return library_of(margin).softplus(margin)


def root_curvature(margin):
    """``sqrt(p_true p_rest)``, which does not underflow before it has to."""
    xp = namespace(margin)
    half = xp.exp(-xp.abs(margin) / 2)
    return half / (1 + half * half)


# --- Newton's method -----------------------------------------------------------------


def bounding_curvature(margin):
    """The curvature of the parabola that bounds the loss of a margin, 1/4 at zero.

    Jaakkola and Jordan, "Bayesian parameter estimation via variational methods" (2000):
    of the parabolas that touch ``log(1 + exp(f))`` at f and lie nowhere below it, the
    flattest has curvature ``tanh(f / 2) / (2 f)``. A Gauss-Newton step with it in place
    of the second derivative is never too long for margins linear in the parameters.
    """
    xp = namespace(margin)
    size = xp.maximum(xp.abs(margin), 1e-3)  # below, it is that of zero
    return xp.tanh(size / 2) / (2 * size)


def covariance_product(p, u):
    """``(diag(p) - p p^T) u`` for each row, also of the free columns alone."""
    mean = library_of((p, u)).row_products(p, u)
    return p * (u - mean[:, None])


def hessian_product(forward, transposed, p, weight, direction):
    """Product with the Hessian of the weighted cross-entropy, without a penalty."""
    change = covariance_product(p, all_classes(forward(direction)))
    return transposed(to_columns(change * weight[:, None]))


def newton_direction(
    product, gradient, *, precondition=None, start=None, forcing, max_iter
):
    """Newton direction to a relative residual ``forcing``, and its iterations."""
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
