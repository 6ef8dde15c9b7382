"""Steps 2 and 3 of GNvpro: the reduced Jacobian and the reduced Gauss-Newton matrix.

The output layer W follows the weights theta, as the implicit function theorem says. The
Gauss-Newton matrix is projected on a Krylov space, formed, or replaced by its dual, the
Gram matrix of the rows. All three give a quadratic model in eigenvectors.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.arrays.blocks import (
    symmetric_product,
    transposed_product,
)
from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.arrays.parts import all_rows, n_devices, total
from sklearn_gn.arrays.trees import dimension
from sklearn_gn.bayes.low_rank import TOL as KRYLOV_TOL
from sklearn_gn.linalg.factors import eigenpairs, upper_factor
from sklearn_gn.linalg.large_gram import LARGEST_DENSE
from sklearn_gn.optim.multinomial import probabilities, to_columns
from sklearn_gn.optim.trust_region import SpectralModel, lanczos
from sklearn_gn.varpro.inner import (
    output_response,
    output_response_transposed,
    solve_hessian,
    solve_inner,
)
from sklearn_gn.varpro.problem import loss_curvature, penalty_matrix, penalty_product

_KRYLOV_DIMENSION = 20
_DENSE_FLOATS = 2**27  # of the Jacobian
_PULLED_TOGETHER = 8  # features whose derivatives are computed at a time


class ReducedModel(NamedTuple):
    """The quadratic model of the reduced objective."""

    spectral: SpectralModel
    gradient: jnp.ndarray  # (n,)
    inner_iterations: jnp.ndarray  # products, or unknowns of the inner problem
    factors: Any  # which the inner problems of the trials start with


def reduced_model(net, rows, penalties, settings):
    """Return the :class:`ReducedModel`, and the passes over the rows that it took."""
    model, form = settings.model, curvature_form(settings, rows, net)
    if form == "krylov":
        rank = krylov_dimension(settings, net, net.theta, rows)
        found = krylov_model(model, net, rows, penalties, rank)
        return found, 2 + 2 * int(found.inner_iterations)
    width, q = net.output.shape[0] - 1, net.output.shape[1]
    if form == "dual":
        return dual_model(model, net, rows, penalties), 2 + q + (width + 1) * q
    # Of many targets the derivatives of the features alone.
    few = model.loss == "squared" and width < q
    work = 2 + width if few else 2 + q + width * q
    return primal_model(model, net, rows, penalties), work


def krylov_dimension(settings, net, parameters, rows):
    """Return the largest dimension of the Krylov space for these parameters.

    No more than the rows determine: a Gauss-Newton matrix of k directions and penalties
    of two sizes have a Krylov space of at most 2 (k + 1) dimensions. Penalties of many
    sizes, as those of a neural ODE, set no such bound.
    """
    rank = _KRYLOV_DIMENSION if settings.rank is None else settings.rank
    rank = min(rank, LARGEST_DENSE)
    if getattr(settings.model.network, "plain_penalty", True):
        rank = min(rank, 2 * (rows.y.size + net.output.size + 1))
    return min(rank, dimension(parameters))


def curvature_form(settings, rows, net):
    """Return the form of the Gauss-Newton matrix: "krylov", "primal" or "dual"."""
    network, loss = settings.model.network, settings.model.loss
    curvature = settings.solver.curvature
    n = dimension(net.theta)
    (m, n_classes), (p, q) = rows.y.shape, net.output.shape
    if settings.rank is not None and curvature == "dense":
        raise ValueError(
            f"rank={settings.rank} is the dimension of a Krylov space, and "
            "GNvpro(curvature='dense') takes none: leave rank at None, or set "
            "curvature='krylov'."
        )
    if settings.rank is not None or curvature == "krylov":
        return "krylov"
    if n == 0 or not (loss == "squared" or net.output.size <= LARGEST_DENSE):
        return "krylov"
    n_dual = m * n_classes + net.output.size
    dual = getattr(network, "plain_penalty", True) and n_dual < n
    if curvature == "dense":
        return "dual" if dual else "primal"
    per_row = min(q, p - 1) if loss == "squared" else q
    affordable = m * per_row * n <= _DENSE_FLOATS
    if affordable and dual and n_dual <= LARGEST_DENSE:
        return "dual"
    return "primal" if affordable and n <= LARGEST_DENSE else "krylov"


class ReducedJacobian(NamedTuple):
    """The reduced Jacobian as a pair of functions on raveled parameters.

    ``forward(d)`` returns the changes of the values (m, q) and of W (p, q), and
    ``transposed(values, output)`` is its exact transpose.
    """

    forward: Any
    transposed: Any
    gradient: jnp.ndarray  # (n,)  of the reduced objective


def reduced_jacobian(model, theta, inner, rows, penalties):
    """Return the reduced Jacobian; W moves by the implicit function theorem.

    With e the weighted error and S the second derivative of the loss,

        d W = -(hess_WW)^-1 (d z^T e + z^T w S(d z W)),    d values = d z W + z d W.
    """
    flat, unravel = ravel_pytree(theta)
    w, z, e = inner.output[:-1], inner.z, inner.error  # the appended one does not move

    def bare(flat):
        return model.network.apply(unravel(flat), rows.x)

    _, push = jax.linearize(bare, flat)
    pull = jax.linear_transpose(push, flat)
    curve = partial(loss_curvature, model, inner.values)
    respond = partial(output_response, model, inner, rows, penalties)
    respond_transposed = partial(
        output_response_transposed, model, inner, rows, penalties
    )

    def pad(direct):
        return jnp.concatenate([direct, jnp.zeros((1, direct.shape[1]), direct.dtype)])

    def forward(d):
        dz = push(d)
        at_fixed = dz @ w
        change = -respond(pad(total(dz.T @ e)), curve(at_fixed))
        return at_fixed + z @ change, change

    def transposed(values, output):
        solved, fitted = respond_transposed(total(z.T @ values) + output)
        dz = (values - curve(fitted)) @ w.T - e @ solved[:-1].T
        (d,) = pull(dz)
        return total(d)

    # At the optimal W the derivative through it vanishes (envelope theorem).
    (gradient,) = total(pull(e @ w.T))
    smooth, _ = ravel_pytree(penalty_product(model, unravel(flat)))
    return ReducedJacobian(forward, transposed, gradient + penalties.hidden * smooth)


@partial(by_rows, compiled=jitted(static_argnames=("model", "rank")), static=("model",))
def krylov_model(model, net, rows, penalties, rank):
    """Return the model projected on a Krylov space of the gradient."""
    inner = solve_inner(model, net.theta, rows, penalties, net.output)
    jacobian = reduced_jacobian(model, net.theta, inner, rows, penalties)
    _, unravel = ravel_pytree(net.theta)

    def product(d):
        values, output = jacobian.forward(d)
        curved = rows.weight[:, None] * loss_curvature(model, inner.values, values)
        image = jacobian.transposed(curved, penalties.output * output)
        smooth, _ = ravel_pytree(penalty_product(model, unravel(d)))
        return image + penalties.hidden * smooth

    spectral, iterations = lanczos(
        product, jacobian.gradient, rank=rank, tol=KRYLOV_TOL
    )
    return _as_model(model, inner, spectral, jacobian, iterations)


def _as_model(model, inner, spectral, jacobian, inner_iterations):
    """The :class:`ReducedModel`, with factors that inner problems of trials can use."""
    factors = None if model.loss == "squared" else inner.factors
    count = jnp.int32(inner_iterations)
    return ReducedModel(spectral, jacobian.gradient, count, factors)


@partial(by_rows, compiled=jitted(static_argnames="model"), static=("model",))
def primal_model(model, net, rows, penalties):
    """Return the model in the eigenvectors of the reduced Gauss-Newton matrix.

    With ``J_W = -H^-1 (F + E)`` for the parts F (fit) and E (error) and the inner
    Hessian H, everything but the products with H^-1 cancels:

        J_red^T w S J_red + alpha_out J_W^T J_W = A - F^T H^-1 F + E^T H^-1 E.
    """
    inner = solve_inner(model, net.theta, rows, penalties, net.output)
    jacobian = reduced_jacobian(model, net.theta, inner, rows, penalties)
    fixed, fit, by_error = gauss_newton_parts(model, net.theta, inner, rows)

    def product(part):
        half = inner.factors.half(part)
        return symmetric_product(half.reshape(-1, part.shape[-1]).T)

    matrix = fixed - product(fit) + product(by_error)
    matrix = matrix + penalties.hidden * penalty_matrix(model, net.theta)
    values, vectors = eigenpairs((matrix + matrix.T) / 2)
    slopes = vectors.T @ jacobian.gradient
    spectral = SpectralModel(jnp.maximum(values, 0), slopes, vectors)
    return _as_model(model, inner, spectral, jacobian, inner.output.size)


@partial(by_rows, compiled=jitted(static_argnames="model"), static=("model",))
def dual_model(model, net, rows, penalties):
    """Return the same model by way of the rows, if these are fewer; needs ``B = I``.

    The rows of J_red, with those of ``sqrt(alpha_out) J_W`` below, have a Gram
    matrix whose eigenvectors give those of the Gauss-Newton matrix that are not in its
    null space. There only the penalty acts, and only its part of the gradient.
    """
    inner = solve_inner(model, net.theta, rows, penalties, net.output)
    jacobian = reduced_jacobian(model, net.theta, inner, rows, penalties)
    flat, _ = ravel_pytree(net.theta)
    jv = value_jacobian(model, net.theta, inner.output, rows.x)
    n = jv.shape[-1]
    _, fit, by_error = _response_parts(model, net.theta, inner, rows, jv)
    moved = -solve_hessian(model, inner, rows, penalties, total(fit + by_error))
    reduced = jv + jnp.einsum("ik,kqn->iqn", inner.z, moved)
    root = _curvature_roots(model, inner.values)
    reduced = jnp.einsum("icq,iqn->icn", root, reduced)
    reduced = (jnp.sqrt(rows.weight)[:, None, None] * reduced).reshape(-1, n)
    stacked = jnp.concatenate(
        [all_rows(reduced), jnp.sqrt(penalties.output) * moved.reshape(-1, n)]
    )
    gram, left = eigenpairs(symmetric_product(stacked))
    gram, left = gram[::-1][:n], left[:, ::-1][:, :n]
    usable = gram > gram.shape[0] * jnp.finfo(gram.dtype).eps * gram[0]
    scale = jnp.where(usable, lax.rsqrt(jnp.where(usable, gram, 1)), 0)
    basis = stacked.T @ (left * scale[None, :])
    # The part of the penalty's gradient that lies outside.
    outside = flat - basis @ (basis.T @ flat)
    length = jnp.linalg.norm(outside)
    slopes = basis.T @ jacobian.gradient
    slopes = jnp.append(slopes, penalties.hidden * length)
    last = outside / jnp.where(length > 0, length, 1)
    basis = jnp.concatenate([basis, last[:, None]], axis=1)
    values = jnp.append(jnp.where(usable, gram, 0), 0) + penalties.hidden
    spectral = SpectralModel(values, slopes, basis)
    return _as_model(model, inner, spectral, jacobian, inner.output.size)


def gauss_newton_parts(model, theta, inner, rows):
    """Return ``A = Jv^T w S Jv`` at fixed W, and the two parts of ``hess_WW J_W``.

    The parts, of shape (p, q, n), are ``z^T w S Jv`` and ``d z^T e``, whose sum is
    ``-hess_WW J_W``. For least squares the targets of each may be rotated, which
    changes no product over the targets, and then are fewer. All three are sums over the
    rows of all devices.
    """
    z, weight = inner.z, rows.weight
    q, width = inner.output.shape[1], inner.output.shape[0] - 1
    if model.loss == "squared" and width < q:
        # Neither W nor the error has more directions than rows.
        w, e = _few_targets(inner.output[:-1]), inner.error
        if n_devices() == 1:  # others would rotate the targets in another way
            e = _few_targets(e)
        dz = feature_jacobian(model, theta, rows.x)
        n = dz.shape[-1]
        scaled = weight[:, None, None] * dz
        contracted = jnp.einsum("ik,ian->kan", z, scaled)
        fit = jnp.einsum("kan,aq->kqn", contracted, w)
        by_error = jnp.einsum("ian,iq->aqn", dz, e)
        by_error = jnp.pad(by_error, ((0, 1), (0, 0), (0, 0)))
        rows_of = jnp.einsum("aq,ian->iqn", w, dz)
        rows_of = (jnp.sqrt(weight)[:, None, None] * rows_of).reshape(-1, n)
        return total((symmetric_product(rows_of.T), fit, by_error))
    jv = value_jacobian(model, theta, inner.output, rows.x)
    curved, fit, by_error = _response_parts(model, theta, inner, rows, jv)
    n = jv.shape[-1]
    if model.loss == "squared":
        rows_of = jnp.sqrt(weight)[:, None, None] * jv
        fixed = symmetric_product(rows_of.reshape(-1, n).T)
    else:
        fixed = transposed_product(jv.reshape(-1, n), curved.reshape(-1, n))
    return total((fixed, fit, by_error))


def _response_parts(model, theta, inner, rows, jv):
    """``w S Jv``, and the two parts of ``-hess_WW J_W``; see gauss_newton_parts.

    The derivatives of ``sum_i z_ik e_i`` are pulled back through the network, for some
    features at a time: from those of the features of every row, which fill the memory,
    it took up to fourteen times as long.
    """
    along = partial(loss_curvature, model, inner.values)
    curved = rows.weight[:, None, None] * jax.vmap(along, -1, -1)(jv)
    fit = jnp.einsum("ik,iqn->kqn", inner.z, curved)
    flat, unravel = ravel_pytree(theta)
    _, pull = jax.vjp(lambda f: model.network.apply(unravel(f), rows.x), flat)
    width, q = inner.output.shape[0] - 1, inner.output.shape[1]

    def of_number(number):
        k, column = number // q, number % q
        unit = jnp.arange(width, dtype=jnp.int32) == k
        error = lax.dynamic_index_in_dim(inner.error, column, 1)
        return pull(error * unit[None, :].astype(error.dtype))[0]

    numbers = jnp.arange(width * q, dtype=jnp.int32)
    by_error = lax.map(of_number, numbers, batch_size=_PULLED_TOGETHER)
    by_error = by_error.reshape(width, q, -1)  # the last feature is one
    return curved, fit, jnp.pad(by_error, ((0, 1), (0, 0), (0, 0)))


def value_jacobian(model, theta, output, x):
    """Return the derivative of the values at fixed W, of shape (m, q, n)."""
    flat, unravel = ravel_pytree(theta)

    def values(flat, row):
        z = model.network.apply(unravel(flat), row[None, :])
        return (z @ output[:-1])[0]

    backward = output.shape[1] <= flat.size
    derivative = jax.jacrev(values) if backward else jax.jacfwd(values)
    return jax.vmap(derivative, in_axes=(None, 0))(flat, x)


def feature_jacobian(model, theta, x):
    """Return the derivative of the features, of shape (m, p - 1, n)."""
    flat, unravel = ravel_pytree(theta)

    def bare(flat, row):
        return model.network.apply(unravel(flat), row[None, :])[0]

    return jax.vmap(jax.jacrev(bare), in_axes=(None, 0))(flat, x)


def _few_targets(a):
    """A matrix with ``a a^T`` that has no more columns than rows."""
    few, many = a.shape
    return upper_factor(a.T).T if few < many else a


def _curvature_roots(model, values):
    """``R`` with ``R^T R = S`` for every row, of shape (m, c, q)."""
    m, q = values.shape
    if model.loss == "squared":
        return jnp.broadcast_to(jnp.eye(q, dtype=values.dtype)[None], (m, q, q))
    root = jnp.sqrt(probabilities(values))
    eye = jnp.eye(root.shape[1], dtype=root.dtype)
    # (I - r r^T) diag(r) with |r| = 1.
    full = (eye[None] - root[:, :, None] * root[:, None, :]) * root[:, None, :]
    return to_columns(full)
