"""Steps 2 and 3 of GNvpro: the reduced Jacobian and the reduced Gauss-Newton matrix.

The output layer W follows the weights theta, as the implicit function theorem says. The
Gauss-Newton matrix is projected on a Krylov space, formed, or replaced by its dual, the
Gram matrix of the rows. All three give a quadratic model in eigenvectors.

Without variable projection W is one group of weights among others: its Gauss-Newton
matrix is projected by the same function.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays.blocks import symmetric_product
from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.arrays.parts import all_rows, total
from sklearn_gn.arrays.trees import dimension
from sklearn_gn.bayes.low_rank import TOL as KRYLOV_TOL
from sklearn_gn.linalg.factors import eigenpairs, upper_factor
from sklearn_gn.linalg.large_gram import LARGEST_DENSE
from sklearn_gn.optim.trust_region import SpectralModel, lanczos
from sklearn_gn.varpro.inner import solve_hessian, solve_inner
from sklearn_gn.varpro.problem import (
    Net,
    curvature_root,
    evaluate,
    features,
    loss_curvature,
    penalty_matrix,
    penalty_product,
)

_DENSE_FLOATS = 2**27  # of the Jacobian


class QuadraticModel(NamedTuple):
    """The quadratic model of the objective at a network."""

    spectral: SpectralModel
    gradient: jnp.ndarray  # (n,)
    inner_iterations: jnp.ndarray  # products, or unknowns of the inner problem
    factors: Any  # which the inner problems of the trials start with


def quadratic_model(net, rows, settings, projected):
    """Return the :class:`QuadraticModel`, and the passes over the rows that it took.

    In theta where W is ``projected`` out, or in all weights of the network.
    """
    given = settings.model, net, rows, settings.penalties
    p, q = net.output.shape
    form = curvature_form(settings, rows, net) if projected else "krylov"
    if form == "krylov":
        n = dimension(net.theta if projected else net)
        rank = min(20 if settings.rank is None else settings.rank, LARGEST_DENSE, n)
        found = krylov_model(*given, projected, rank)
        return found, 2 + 2 * int(found.inner_iterations)
    # Of many targets the derivatives of the features alone.
    few = settings.model.loss == "squared" and p < q
    return dense_model(*given, form == "dual"), 2 + (p - 1 if few else p * q)


def curvature_form(settings, rows, net):
    """Return the form of the Gauss-Newton matrix: "krylov", "primal" or "dual"."""
    curvature, (p, q) = settings.solver.curvature, net.output.shape
    (m, n_classes), n = rows.y.shape, dimension(net.theta)
    if settings.rank is not None and curvature == "dense":
        raise ValueError(
            f"rank={settings.rank} is the dimension of a Krylov space, and "
            "GNvpro(curvature='dense') takes none: leave rank at None, or set "
            "curvature='krylov'."
        )
    squared = settings.model.loss == "squared"
    n_rows = m * (min(q, p) if squared else n_classes)
    n_dual = n_rows + 2 * p * q
    dual = n_dual < n and getattr(settings.model.network, "plain_penalty", True)
    order = n_dual if dual else n
    largest = order if squared else max(order, p * q)
    affordable = n_rows * n <= _DENSE_FLOATS and largest <= LARGEST_DENSE
    automatic = curvature == "auto" and settings.rank is None
    if curvature == "dense" or (automatic and affordable):
        return "dual" if dual else "primal"
    return "krylov"


# --- in a Krylov space ---------------------------------------------------------------


class Linearisation(NamedTuple):
    """The values and the weights as linear functions of a step d (n,).

    ``forward(d)`` returns the changes of the values (m, q) and of the network, and
    ``transposed(values, net)`` is its exact transpose.
    """

    forward: Any
    transposed: Any
    gradient: jnp.ndarray  # (n,)  of the objective


def reduced_jacobian(model, theta, inner, rows, penalties):
    """Return the reduced Jacobian; W moves by the implicit function theorem.

    With e the weighted error and S the second derivative of the loss,

        d W = -(hess_WW)^-1 (d z^T e + z^T w S(d z W)),    d values = d z W + z d W.
    """
    flat, unravel = ravel_pytree(theta)
    w, z, weight = inner.output, inner.z, rows.weight[:, None]
    _, push = jax.linearize(lambda f: features(model, unravel(f), rows.x), flat)
    pull = jax.linear_transpose(push, flat)
    curve = partial(loss_curvature, model, inner.values)
    solve = partial(solve_hessian, model, inner, rows, penalties)

    def forward(d):
        dz = push(d)
        at_fixed = dz @ w
        change = dz.T @ inner.error + z.T @ (weight * curve(at_fixed))
        change = -solve(total(change))
        return at_fixed + z @ change, Net(unravel(d), change)

    def transposed(values, net):
        solved = solve(total(z.T @ values) + net.output)
        dz = (values - weight * curve(z @ solved)) @ w.T - inner.error @ solved.T
        return total(pull(dz)[0]) + ravel_pytree(net.theta)[0]

    gradient = reduced_gradient(model, theta, inner, penalties, pull)
    return Linearisation(forward, transposed, gradient)


def reduced_gradient(model, theta, inner, penalties, pull):
    """Return the gradient, in which that of W vanishes at its optimum."""
    (gradient,) = total(pull(inner.error @ inner.output.T))
    smooth, _ = ravel_pytree(penalty_product(model, theta))
    return gradient + penalties.hidden * smooth


def full_jacobian(model, net, here, rows, penalties):
    """Return the Jacobian in all weights."""
    flat, unravel = ravel_pytree(net)

    def values(flat):
        net = unravel(flat)
        return features(model, net.theta, rows.x) @ net.output

    _, push = jax.linearize(values, flat)
    pull = jax.linear_transpose(push, flat)

    def transposed(values, net):
        return total(pull(values)[0]) + ravel_pytree(net)[0]

    gradient = transposed(here.error, _penalised(model, net, penalties))
    return Linearisation(lambda d: (push(d), unravel(d)), transposed, gradient)


def _penalised(model, net, penalties):
    """The derivatives of the penalties."""
    smooth = penalty_product(model, net.theta)
    smooth = jax.tree.map(lambda leaf: penalties.hidden * leaf, smooth)
    return Net(smooth, penalties.output * net.output)


@partial(
    by_rows,
    compiled=jitted(static_argnames=("model", "projected", "rank")),
    static=("model",),
)
def krylov_model(model, net, rows, penalties, projected, rank):
    """Return the model projected on a Krylov space of the gradient."""
    if projected:
        here = solve_inner(model, net, rows, penalties)
        jacobian = reduced_jacobian(model, net.theta, here, rows, penalties)
    else:
        here = evaluate(model, net, rows, penalties)
        jacobian = full_jacobian(model, net, here, rows, penalties)

    def product(d):
        values, change = jacobian.forward(d)
        curved = rows.weight[:, None] * loss_curvature(model, here.values, values)
        return jacobian.transposed(curved, _penalised(model, change, penalties))

    gradient = jacobian.gradient
    spectral, iterations = lanczos(product, gradient, rank=rank, tol=KRYLOV_TOL)
    return QuadraticModel(spectral, gradient, iterations, here.factors)


# --- as a matrix ---------------------------------------------------------------------


@partial(by_rows, compiled=jitted(static_argnames=("model", "dual")), static=("model",))
def dense_model(model, net, rows, penalties, dual):
    """Return the model in the eigenvectors of the reduced Gauss-Newton matrix.

    With the derivative D of the values at fixed W, the change of W is that of a fit and
    that by the error, ``J_W = -H^-1 (F + E)``, for the inner Hessian H. The products of
    the two cancel in the matrix, which is ``K^T K + alpha B^T B`` for the rows K

        sqrt(w) R (D - z H^-1 F),    sqrt(alpha_out) H^-1 F,    H^-1/2 E,

    where ``R^T R = S``. If these are fewer than the weights, and B = I, its ``dual``
    ``K K^T`` has the same eigenvalues. There only the penalty acts on what is not in
    the span of the rows, and only its part of the gradient.
    """
    inner = solve_inner(model, net, rows, penalties)
    flat, unravel = ravel_pytree(net.theta)
    _, pull = jax.vjp(lambda f: features(model, unravel(f), rows.x), flat)
    gradient = reduced_gradient(model, net.theta, inner, penalties, pull)
    at_fixed, by_error = derivatives(model, net.theta, inner, rows, pull)
    n, weight = flat.size, rows.weight[:, None, None]

    def of_each(function, derivative):
        return jax.vmap(partial(function, model, inner.values), -1, -1)(derivative)

    curved = weight * of_each(loss_curvature, at_fixed)
    fit, by_error = total((jnp.einsum("ik,iqn->kqn", inner.z, curved), by_error))
    fit = solve_hessian(model, inner, rows, penalties, fit)
    own = of_each(curvature_root, at_fixed - jnp.einsum("ik,kqn->iqn", inner.z, fit))
    own = (jnp.sqrt(weight) * own).reshape(-1, n)
    fit = jnp.sqrt(penalties.output) * fit.reshape(-1, n)
    shared = jnp.concatenate([fit, inner.factors.half(by_error).reshape(-1, n)])
    if dual:
        rows_of = jnp.concatenate([all_rows(own), shared])
        spectral = _dual_eigenvectors(rows_of, gradient, flat, penalties.hidden)
    else:
        matrix = total(symmetric_product(own.T)) + symmetric_product(shared.T)
        matrix = matrix + penalties.hidden * penalty_matrix(model, net.theta)
        values, vectors = eigenpairs(matrix)
        slopes = vectors.T @ gradient
        spectral = SpectralModel(jnp.maximum(values, 0), slopes, vectors)
    unknowns = jnp.int32(inner.output.size)
    return QuadraticModel(spectral, gradient, unknowns, inner.factors)


def _dual_eigenvectors(rows, gradient, flat, alpha):
    """The model of ``rows^T rows + alpha I``, by way of ``rows rows^T``."""
    gram, left = eigenpairs(symmetric_product(rows))
    usable = gram > gram.shape[0] * jnp.finfo(gram.dtype).eps * gram[-1]
    scale = jnp.where(usable, lax.rsqrt(jnp.where(usable, gram, 1)), 0)
    basis = rows.T @ (left * scale[None, :])
    # The part of the penalty's gradient that lies outside.
    outside = flat - basis @ (basis.T @ flat)
    length = jnp.linalg.norm(outside)
    last = outside / jnp.where(length > 0, length, 1)
    values = jnp.append(jnp.where(usable, gram, 0), 0) + alpha
    slopes = jnp.append(basis.T @ gradient, alpha * length)
    return SpectralModel(values, slopes, jnp.concatenate([basis, last[:, None]], 1))


def derivatives(model, theta, inner, rows, pull):
    """Return those of the values at fixed W (m, c, n), and ``E = dz^T e`` (p, q, n).

    For least squares the targets may be rotated, which changes no product over them:
    where the features are fewer, so are the directions of W.
    """
    output, (p, q) = inner.output, inner.output.shape
    eye = jnp.eye(p, dtype=output.dtype)
    if model.loss == "squared" and p < q:
        dz = value_jacobian(model, theta, eye, rows.x)
        at_fixed = jnp.einsum("qa,ian->iqn", upper_factor(output.T), dz)
        return at_fixed, jnp.einsum("ian,iq->aqn", dz, inner.error)

    # The derivatives of sum_i z_ik e_i are pulled back through the network, for one
    # feature k at a time: from those of the features of every row, which fill the
    # memory, it took up to fourteen times as long.
    def of_feature(unit):
        return jax.vmap(lambda error: pull(error[:, None] * unit[None, :])[0], 1)(
            inner.error
        )

    by_error = lax.map(of_feature, eye)
    return value_jacobian(model, theta, output, rows.x), by_error


def value_jacobian(model, theta, output, x):
    """Return the derivative of the values at fixed W, of shape (m, q, n)."""
    flat, unravel = ravel_pytree(theta)

    def values(flat, row):
        return (features(model, unravel(flat), row[None, :]) @ output)[0]

    derivative = jax.jacrev if output.shape[1] <= flat.size else jax.jacfwd
    return jax.vmap(derivative(values), in_axes=(None, 0))(flat, x)
