"""The shallow ReLU network ``u(x) = c0 + sum_i c_i relu(w_i . x + b_i)``.

The functions and matrices here are written once for both kinds of arrays: of NumPy they
compute with NumPy, of JAX, inside compiled functions, with JAX.
"""

from typing import Any, NamedTuple

import numpy as np

from sklearn_gn.arrays.libraries import namespace
from sklearn_gn.bayes.laplace import safe_norm

_FAR_HYPERPLANE = 1e8  # largest distance of a hyperplane, in units of the training data


class ShallowReLU(NamedTuple):
    """Parameters of a shallow ReLU network with q outputs.

    ``alive`` marks the neurons in use: arrays have room for a few neurons more than the
    network, so that neurons come and go without changing shapes (and recompiling).
    """

    hyperplanes: Any  # (n, 1 + d), rows r_i = (b_i, w_i), |w_i| = 1
    coef: Any  # (n, q), zero where not alive
    intercept: Any  # (q,)
    alive: Any  # (n,) bool


def preactivations(hyperplanes, x):
    """``w_i . x_k + b_i`` for all rows and neurons, of shape (m, n)."""
    return hyperplanes[:, 0][None, :] + x @ hyperplanes[:, 1:].T


def hidden_features(hyperplanes, x):
    """``relu(w_i . x_k + b_i)``, of shape (m, n)."""
    xp = namespace((hyperplanes, x))
    return xp.maximum(preactivations(hyperplanes, x), 0)


def predict(net, x):
    """Network outputs of shape (m, q), a linear term included."""
    values = net.intercept[None, :] + hidden_features(net.hyperplanes, x) @ net.coef
    return values + x @ net.slope if hasattr(net, "slope") else values


def unit_normals(hyperplanes, fallback):
    """Rescale every row (b, w) to ``|w| = 1``.

    A row whose normal vanished, or is not finite, has no hyperplane: the row of
    ``fallback`` stays in its place.
    """
    xp = namespace((hyperplanes, fallback))
    norm = xp.linalg.norm(hyperplanes[:, 1:], axis=1, keepdims=True)
    finite = xp.isfinite(hyperplanes).all(axis=1, keepdims=True)
    usable = (norm > xp.finfo(norm.dtype).tiny) & finite
    return xp.where(usable, hyperplanes / xp.where(usable, norm, 1), fallback)


def rescale(net):
    """The same function with ``|w_i| = 1``, the factors moved to the coefficients."""
    xp = namespace((net.hyperplanes, net.coef))
    norm = xp.linalg.norm(net.hyperplanes[:, 1:], axis=1, keepdims=True)
    unit = unit_normals(net.hyperplanes, fallback=net.hyperplanes)
    usable = norm > xp.finfo(norm.dtype).tiny
    coef = xp.where(usable, net.coef * norm, net.coef)
    return net._replace(hyperplanes=unit, coef=coef)


def output_weights(net):
    """``c_i |w_i|``, which a rescaling of (w_i, b_i) against c_i leaves as it is."""
    xp = namespace((net.hyperplanes, net.coef))
    return net.coef * xp.linalg.norm(net.hyperplanes[:, 1:], axis=1, keepdims=True)


def initial_networks(hyperplanes, n_spare, n_targets, dtype):
    """Return a stack of networks of hyperplanes (s, n, 1 + d), output layers zero."""
    n_starts, n, width = hyperplanes.shape
    spare = np.zeros((n_starts, n_spare, width))
    spare[..., 1] = 1.0
    return ShallowReLU(
        hyperplanes=np.concatenate([hyperplanes, spare], axis=1).astype(dtype),
        coef=np.zeros((n_starts, n + n_spare, n_targets), dtype),
        intercept=np.zeros((n_starts, n_targets), dtype),
        alive=np.tile(np.arange(n + n_spare) < n, (n_starts, 1)),
    )


# --- the matrices of the paper -------------------------------------------------------


def weighted_tangent(hyperplanes, rows, alive=None):
    """Return the columns of the output layer, and of the hidden one without c.

    They are 1 and the hidden features, (m, 1 + n), and the products of every neuron
    that is on with (1, x), (m, n (1 + d)), times roots of the weights.
    """
    xp = namespace((hyperplanes, rows.x))
    z = preactivations(hyperplanes, rows.x)
    if alive is not None:
        z = xp.where(alive[None, :], z, -1)
    ones, root = xp.ones_like(z[:, :1]), xp.sqrt(rows.weight)[:, None]
    y = xp.concatenate([ones, rows.x], axis=1)
    slopes = (z > 0).astype(z.dtype)
    hidden = slopes[:, :, None] * y[:, None, :]
    features = xp.concatenate([ones, xp.maximum(z, 0)], axis=1)
    return root * features, root * hidden.reshape(rows.x.shape[0], -1)


def mass_design(net, rows):
    """Square root of the mass matrix A(r): rows ``sqrt(mu_k) (1, relu(r_i . y_k))``."""
    return weighted_tangent(net.hyperplanes, rows, net.alive)[0]


def layer_design(net, rows, active):
    """Square root of the layer Gauss-Newton matrix H(r) on the active set.

    With one output its rows are ``sqrt(mu_k) (h_k kron y_k)`` up to the sign of c_i;
    with several, neuron i contributes the direction of row i of the coefficients.
    """
    xp = namespace((net.coef, rows.x, active))
    _, hidden = weighted_tangent(net.hyperplanes, rows, active)
    size = xp.linalg.norm(net.coef, axis=1)
    direction = net.coef / xp.where(active, size, 1)[:, None]
    direction = xp.repeat(direction, net.hyperplanes.shape[1], axis=0)
    return (hidden[:, None] * direction.T[None]).reshape(-1, hidden.shape[1])


def active_set(net, active_tol):
    """Neurons whose ``|c_i|`` is at least ``active_tol`` times the largest.

    The factor ``|c_i|`` makes the Gauss-Newton matrix singular at zero.
    """
    xp = namespace(net.coef)
    size = xp.linalg.norm(net.coef, axis=1)
    return net.alive & (size > 0) & (size >= active_tol * xp.max(size))


def residual(net, rows):
    """Weighted residual ``sqrt(mu_k) (u(x_k) - t_k)``, of shape (m, q)."""
    xp = namespace((net.coef, rows.x))
    return xp.sqrt(rows.weight)[:, None] * (predict(net, rows.x) - rows.y)


def joint_design(net, rows):
    """Return weighted columns of the output layer, of the hidden one, and residuals."""
    columns = weighted_tangent(net.hyperplanes, rows, net.alive)
    return *columns, residual(net, rows)


# --- hyperplanes in the units of a fit, and of the user ------------------------------


def hyperplanes_to_scaled(units, hyperplanes):
    """Return hyperplanes of the user's units in the units of a fit, ``|w| = 1``.

    Those far from all data are moved to where they are as good: the rounding errors
    of their hidden features would exceed the other features.
    """
    # Products may leave the range of floats, quotients of them need not: hence
    # mantissas and exponents, relative to the largest component of the normal.
    b, w = hyperplanes[:, :1], hyperplanes[:, 1:]
    sizes = w, units.x_scale, units.x_center, b
    (w, ew), (s, es), (c, ec), (b, eb) = map(np.frexp, sizes)
    exponent = np.where(w != 0, ew + es, np.iinfo(ew.dtype).min)
    largest = exponent.max(axis=1, keepdims=True)
    normal = np.ldexp(w * s, np.where(w != 0, exponent - largest, 0))
    with np.errstate(over="ignore", under="ignore"):
        terms = np.ldexp(np.c_[b, w * c], np.c_[eb, ew + ec] - largest)
    bound = np.finfo(float).max / (1 + terms.shape[1])
    bias = np.sum(np.clip(terms, -bound, bound), axis=1, keepdims=True)
    rows = np.concatenate([bias, normal], axis=1) / safe_norm(normal, 1)[:, None]
    rows[:, 0] = np.clip(rows[:, 0], -_FAR_HYPERPLANE, _FAR_HYPERPLANE)
    return rows


def hyperplanes_to_user(units, hyperplanes):
    """Return hyperplanes in units of a fit in the user's, ``|w| = 1``."""
    # Relative to the smallest scale, so that no ratio of scales can overflow.
    unit = units.x_scale.min()
    normal = hyperplanes[:, 1:] * (unit / units.x_scale)
    bias = hyperplanes[:, 0] * unit - normal @ units.x_center
    norm = safe_norm(normal, 1)
    rows = np.concatenate([bias[:, None], normal], axis=1) / norm[:, None]
    return rows, norm / unit
