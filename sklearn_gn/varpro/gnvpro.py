r"""GNvpro: Gauss-Newton-Krylov variable projection for deep networks.

The method of Newman, Ruthotto, Hart and van Bloemen Waanders ("Train like a (Var)Pro").
A network ``x -> W^T z(x; theta)`` ends in an affine layer, for which the problem

    Phi(W, theta) = sum_i w_i L(W^T z_i, y_i) + alpha/2 |B theta|^2
                    + alpha_output/2 |W|^2,       sum_i w_i = 1,

is convex. It is solved for W, and a Gauss-Newton method minimises what is left,
``Phi_red(theta) = Phi(W(theta), theta)``:

1.  the inner problem, by the SVD for least squares, by Newton's method for the
    cross-entropy;
2.  the Jacobian of the values ``z W(theta)``, in which W moves with theta as the
    implicit function theorem says;
3.  the reduced Gauss-Newton matrix, projected on a Krylov space or formed;
4.  a trust-region step in its eigenvectors; one that is turned down costs only the
    next trial.

Features z have a one appended, so that the last row of W is the bias; it is penalised
like the others.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.core.affine import all_classes, to_columns
from sklearn_gn.core.linear_algebra.blocks import (
    sum_rows,
    symmetric_product,
    symmetric_product_of,
    transposed_product,
)
from sklearn_gn.core.linear_algebra.krylov import conjugate_gradient, lanczos
from sklearn_gn.core.linear_algebra.trees import dimension
from sklearn_gn.core.linear_algebra.trust_region import (
    SpectralModel,
    damped_coordinates,
    decrease,
    radius_shift,
)
from sklearn_gn.core.softmax import covariance_product
from sklearn_gn.core.solver import Algorithm, Report

INNER_TOL = 1e-10  # of the gradient of the inner problem, absolute or relative
_INNER_ITERATIONS = 100
_INNER_CG = 500
_DIRECT_UNKNOWNS = 3000  # of the inner problem, whose Hessian is factored up to this
_STALE = 16  # part of the order of a factor, in iterations that make a new one pay
_FORCING = 0.1  # relative residual of the first systems
_KRYLOV_TOL = 1e-2
_REJECT, _SHRINK, _GROW = 1e-4, 0.1, 0.75  # gain ratios of the trust region
_TRIALS = 40
_ROUNDING = 8  # of the trace of a matrix, in units in the last place
_FLAT = 1e-2  # promised decrease, in roots of the rounding unit, that is none
_PATIENCE = 3  # iterations with hardly any decrease after which a level ends
_JUDGED_EVERY = 20  # work units on batches after which all rows judge
_DENSE_COLUMNS = 1500  # parameters, or rows of the dual, up to which "auto" is dense
_DENSE_FLOATS = 2**27  # of the Jacobian


class Rows(NamedTuple):
    """Weighted examples; padding has weight zero."""

    x: jnp.ndarray  # (m, d)
    y: jnp.ndarray  # (m, q) targets, or probabilities of the C classes
    weight: jnp.ndarray  # (m,), sum one


class Net(NamedTuple):
    """Parameters of the network and its output layer."""

    theta: Any
    output: jnp.ndarray  # (p, q)  the last row is the bias


class Model(NamedTuple):
    """What is fixed when functions are compiled."""

    network: Any
    loss: str  # "squared" or "cross_entropy"


class Penalties(NamedTuple):
    """Factors of the two penalties."""

    alpha: jnp.ndarray
    alpha_output: jnp.ndarray


class Options(NamedTuple):
    """Settings, most of them as numpy scalars."""

    model: Model
    curvature_solver: str
    alpha: np.ndarray
    alpha_output: np.ndarray
    gcv: bool  # whether alpha_output is chosen by generalised cross-validation
    n_samples: np.ndarray  # that this needs: the sum of the weights as given
    damping: np.ndarray  # fixed shift; negative: the trust region
    rank: np.int32
    tol: np.ndarray
    max_iter: np.int32
    learning_rate: np.ndarray
    batch_size: np.int32  # 0: all rows
    iterations_per_batch: np.int32
    seed: np.int32


# --- values and losses ---------------------------------------------------------------


def features(model, theta, x):
    """Features with a one appended, of shape (m, p)."""
    z = model.network.apply(theta, x)
    return jnp.concatenate([z, jnp.ones((z.shape[0], 1), z.dtype)], axis=1)


def losses(model, values, y):
    """L of each row, of shape (m,)."""
    if model.loss == "squared":
        return 0.5 * jnp.sum((values - y) ** 2, axis=1)
    return -jnp.sum(y * jax.nn.log_softmax(all_classes(values), axis=1), axis=1)


def error(model, values, y):
    """Derivative of L in the values, of shape (m, q)."""
    if model.loss == "squared":
        return values - y
    return to_columns(jax.nn.softmax(all_classes(values), axis=1) - y)


def curvature(model, values, u):
    """Second derivative of L in the values, times u of the same shape."""
    if model.loss == "squared":
        return u
    p = jax.nn.softmax(all_classes(values), axis=1)
    return to_columns(covariance_product(p, all_classes(u)))


def penalty(model, theta, output, penalties):
    """Both penalties."""
    rough = sum(jnp.sum(r**2) for r in jax.tree.leaves(roughness(model, theta)))
    return 0.5 * (penalties.alpha * rough + penalties.alpha_output * jnp.sum(output**2))


def roughness(model, theta):
    """``B theta``; the parameters themselves for networks that do not say."""
    known = getattr(model.network, "roughness", None)
    return theta if known is None else known(theta)


def penalty_product(model, direction):
    """``B^T B d``, for a direction like the parameters."""
    apply = partial(roughness, model)
    transposed = jax.linear_transpose(apply, direction)
    (image,) = transposed(apply(direction))
    return image


def penalty_matrix(model, theta):
    """``B^T B``, of shape (n, n)."""
    flat, unravel = ravel_pytree(theta)
    product = jax.vmap(lambda d: ravel_pytree(penalty_product(model, unravel(d)))[0])
    return product(jnp.eye(flat.size, dtype=flat.dtype))


@partial(jax.jit, static_argnames="model")
def objective(model, net, rows, penalties):
    """Phi of the network as it is."""
    values = features(model, net.theta, rows.x) @ net.output
    mean = rows.weight @ losses(model, values, rows.y)
    return mean + penalty(model, net.theta, net.output, penalties)


# --- 1. the inner problem ------------------------------------------------------------


class Inner(NamedTuple):
    """Solution of the inner problem, and what its Hessian is solved with."""

    output: jnp.ndarray  # (p, q)
    loss: jnp.ndarray
    z: jnp.ndarray  # (m, p)
    values: jnp.ndarray  # (m, q)
    error: jnp.ndarray  # (m, q)  weighted
    factors: Any


class SquaresFactors(NamedTuple):
    """SVD ``sqrt(w) z = U diag(s) V^T`` of the weighted features."""

    left: jnp.ndarray  # (m, p)
    s: jnp.ndarray  # (p,)
    right: jnp.ndarray  # (p, p)
    inverse: jnp.ndarray  # (p,)  1 / (s^2 + alpha_output)

    def half(self, right):
        """``R right`` of (p, q, r) for ``R^T R``, the inverse Hessian."""
        image = self.right.T @ right.reshape(right.shape[0], -1)
        return (jnp.sqrt(self.inverse)[:, None] * image).reshape(right.shape)


def solve_squares(z, rows, alpha_output):
    """Ridge regression by the SVD."""
    factors = squares_factors(z, rows.weight)
    factors = with_penalty(factors, alpha_output)
    right = jnp.sqrt(rows.weight)[:, None] * rows.y
    image = factors.left.T @ right
    output = factors.right @ ((factors.s * factors.inverse)[:, None] * image)
    return output, factors


def squares_factors(z, weight):
    """SVD of the weighted features, of which there are p, with zeros where m < p."""
    a = jnp.sqrt(weight)[:, None] * z
    m, p = a.shape
    if m < p:
        a = jnp.concatenate([a, jnp.zeros((p - m, p), a.dtype)])
    q, r = jnp.linalg.qr(a)
    u, s, vt = jnp.linalg.svd(r)
    return SquaresFactors((q @ u)[:m], s, vt.T, jnp.zeros_like(s))


def with_penalty(factors, alpha_output):
    """Factors for another penalty; without one, null directions are left out."""
    s = factors.s
    keep = s > s.shape[0] * jnp.finfo(s.dtype).eps * s[0]
    total = s**2 + alpha_output
    usable = (total > 0) & (keep | (alpha_output > 0))
    inverse = jnp.where(usable, 1 / jnp.where(usable, total, 1), 0)
    return factors._replace(inverse=inverse)


def generalised_cross_validation(factors, rows, n_samples):
    """The penalty of least generalised cross-validation score (Golub et al. 1979).

    ``|b - A x|^2 / (1 - tr(influence) / n)^2`` over a logarithmic grid.
    """
    s2 = factors.s**2
    right = jnp.sqrt(rows.weight)[:, None] * rows.y
    image = jnp.sum((factors.left.T @ right) ** 2, axis=1)
    outside = jnp.maximum(jnp.sum(right**2) - jnp.sum(image), 0)
    exponents = jnp.linspace(-15, 1, 97, dtype=s2.dtype)
    grid = s2[0] * 10.0**exponents

    def score(alpha):
        left_over = alpha / (s2 + alpha)
        residual = outside + jnp.sum(image * left_over**2)
        freedom = jnp.maximum(n_samples - jnp.sum(1 - left_over), 0)
        return residual / jnp.maximum(freedom / n_samples, 1e-8) ** 2

    return grid[jnp.argmin(lax.map(score, grid))]


class EntropyFactors(NamedTuple):
    """``R`` with ``R^T R = H^-1`` for the inner Hessian; if large, of a block a class.

    Products with it are many times faster than substitutions in a Cholesky factor.
    """

    root: jnp.ndarray  # (qp, qp), or (q, p, p)

    def solve(self, right):
        """Solve for ``right`` of shape (p, q), with the whole also (p, q, r)."""
        columns = jnp.swapaxes(right, 0, 1)  # class by class
        if self.root.ndim == 2:
            flat = columns.reshape(self.root.shape[0], *columns.shape[2:])
            # On a CPU, XLA takes thirty times as long for root^T @ vector.
            solved = ((self.root @ flat).T @ self.root).T.reshape(columns.shape)
        else:
            image = jnp.einsum("cjk,ck->cj", self.root, columns)
            solved = jnp.einsum("cjk,cj->ck", self.root, image)
        return jnp.swapaxes(solved, 0, 1)

    def half(self, right):
        """``R right`` of (p, q, r), class by class in (qp, r), for the whole root."""
        flat = jnp.swapaxes(right, 0, 1).reshape(self.root.shape[0], -1)
        return self.root @ flat


def _is_direct(output):
    return output.size <= _DIRECT_UNKNOWNS


def entropy_hessian(z, values, weight):
    """Exact Hessian of the inner problem without penalty, W raveled class by class."""
    probability = to_columns(jax.nn.softmax(all_classes(values), axis=1))
    p, q = z.shape[1], probability.shape[1]

    def scaled_features(own, probability, scaled):
        of_classes = probability[own, None, :] * scaled[None]
        return of_classes.reshape(-1, scaled.shape[1])

    def between_classes(rows):
        probability, scaled = rows
        terms = [(probability.T, scaled.T)]
        return symmetric_product_of(scaled_features, q, p, terms)

    scaled = jnp.sqrt(weight)[:, None] * z
    hessian = -sum_rows(between_classes, (probability, scaled))
    blocks = lax.map(lambda share: (scaled * share[:, None]).T @ scaled, probability.T)
    classes = jnp.arange(q, dtype=jnp.int32)
    hessian = hessian.reshape(q, p, q, p).at[classes, :, classes, :].add(blocks)
    return hessian.reshape(q * p, q * p)


def entropy_factors(z, values, weight, alpha_output):
    """Root of the inverse of the inner Hessian, or of the blocks on its diagonal."""
    probability = to_columns(jax.nn.softmax(all_classes(values), axis=1))
    if z.shape[1] * probability.shape[1] <= _DIRECT_UNKNOWNS:
        hessian = entropy_hessian(z, values, weight)
        # Where the network is certain, this is what large terms leave of each other.
        scale = weight @ jnp.sum(z**2, axis=1)
        return EntropyFactors(_inverse_root(hessian, alpha_output, scale))
    share = (probability * (1 - probability) * weight[:, None]).T

    def factor(share):
        block = (z * share[:, None]).T @ z
        return _inverse_root(block, alpha_output, jnp.trace(block))

    return EntropyFactors(lax.map(factor, share))


def _inverse_root(matrix, shift, scale):
    """``R`` with ``R^T R`` the inverse; with a shift at rounding level at least.

    ``scale`` is the trace, or that of the terms which the matrix is the difference of.

    Without a penalty the Hessian is singular: a constant may be added to all classes.
    """
    floor = _ROUNDING * jnp.finfo(matrix.dtype).eps * scale
    eye = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    matrix = matrix + jnp.maximum(shift, floor) * eye
    factor = lax.linalg.cholesky(matrix, symmetrize_input=False)
    return lax.linalg.triangular_solve(factor, eye, left_side=True, lower=True)


def entropy_cg(model, z, values, weight, alpha_output, factors, right, tol):
    """Solve with the inner Hessian by conjugate gradients; (p, q), and iterations."""

    def product(v):
        change = curvature(model, values, z @ v)
        return z.T @ (weight[:, None] * change) + alpha_output * v

    tol = jnp.asarray(tol, right.dtype)
    x, iterations, _ = conjugate_gradient(
        product, right, precondition=factors.solve, tol=tol, max_iter=_INNER_CG
    )
    return x, iterations


def solve_entropy(model, z, rows, alpha_output, start, factors=None):
    """Multinomial logistic regression by Newton's method, from a given start.

    Systems are solved by conjugate gradients with the factors of an earlier Hessian,
    if given of other features, until these take more iterations than new factors cost.
    A step is halved until the loss falls. Ends where no component of the gradient
    exceeds ``INNER_TOL``, absolute or relative to the first, or at rounding.
    """
    weight, y, eps = rows.weight, rows.y, float(jnp.finfo(z.dtype).eps)

    def objective(output):
        mean = weight @ losses(model, z @ output, y)
        return mean + 0.5 * alpha_output * jnp.sum(output**2)

    def gradient(output):
        e = weight[:, None] * error(model, z @ output, y)
        return z.T @ e + alpha_output * output

    def factors_at(output):
        return entropy_factors(z, z @ output, weight, alpha_output)

    def size(g):
        return jnp.max(jnp.abs(g))

    def unfinished(carry):
        _, _, g, _, _, count, stuck = carry
        return (size(g) > goal) & (count < _INNER_ITERATIONS) & ~stuck

    def newton(carry):
        output, loss, g, factors, fresh, count, _ = carry
        factors = lax.cond(fresh, factors_at, lambda output: factors, output)
        # Exact enough for quadratic convergence.
        forcing = jnp.clip(size(g) / size(first), INNER_TOL, _FORCING)
        step, iterations = entropy_cg(
            model, z, z @ output, weight, alpha_output, factors, -g, forcing
        )
        slope = jnp.sum(step * g)

        def too_long(search):
            length, new = search
            allowed = loss + 1e-4 * length * slope + 4 * eps * jnp.abs(loss)
            return ~(new <= allowed) & (length > 1e-9)

        def shorter(search):
            length, _ = search
            return length / 2, objective(output + length / 2 * step)

        one = jnp.ones_like(loss)
        length, new = lax.while_loop(too_long, shorter, (one, objective(output + step)))
        good = (new <= loss + 4 * eps * jnp.abs(loss)) & (slope < 0)
        moved = jnp.where(good, output + length * step, output)
        following = gradient(moved)
        # At rounding the gradient no longer falls.
        flat = -slope <= eps * jnp.abs(loss)
        flat = flat & (size(following) >= size(g) / 2)
        stuck = jnp.where(good, flat, fresh)
        stale = ~good | (iterations > factors.root.shape[-1] // _STALE)
        loss = jnp.where(good, new, loss)
        return moved, loss, following, factors, stale, count + 1, stuck

    first = gradient(start)
    goal = INNER_TOL * jnp.maximum(1, size(first))
    stale = jnp.bool_(factors is None)
    if factors is None:
        shapes = jax.eval_shape(factors_at, start)
        factors = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    zero, no = jnp.int32(0), jnp.bool_(False)
    carry = start, objective(start), first, factors, stale, zero, no
    output, *_ = lax.while_loop(unfinished, newton, carry)
    return output, factors_at(output)


def solve_inner(model, theta, rows, penalties, start, factors=None):
    """The optimal output layer, with the value of the reduced objective."""
    z, alpha_output = features(model, theta, rows.x), penalties.alpha_output
    if model.loss == "squared":
        output, factors = solve_squares(z, rows, alpha_output)
    else:
        output, factors = solve_entropy(model, z, rows, alpha_output, start, factors)
    values = z @ output
    loss = rows.weight @ losses(model, values, rows.y)
    loss = loss + penalty(model, theta, output, penalties)
    weighted = rows.weight[:, None] * error(model, values, rows.y)
    return Inner(output, loss, z, values, weighted, factors)


def factors_to_start(model, inner):
    """What the inner problems of the trials start with; least squares need nothing."""
    return None if model.loss == "squared" else inner.factors


def inner_solve(model, inner, rows, penalties, right):
    """Solve with the Hessian of the inner problem; (p, q), if direct also (p, q, r)."""
    f = inner.factors
    if model.loss == "squared":
        flat = right.reshape(right.shape[0], -1)
        solved = f.right @ (f.inverse[:, None] * (f.right.T @ flat))
        return solved.reshape(right.shape)
    if _is_direct(inner.output):
        return f.solve(right)
    alpha_output = penalties.alpha_output
    solved, _ = entropy_cg(
        model, inner.z, inner.values, rows.weight, alpha_output, f, right, INNER_TOL
    )
    return solved


def inner_response(model, inner, rows, penalties, right, change):
    """The inner Hessian's solution for ``right + z^T (w change)``.

    ``right`` has the shape (p, q), ``change`` (m, q). For least squares the second part
    comes from the SVD, in which the condition number is not squared.
    """
    if model.loss == "squared":
        f = inner.factors
        image = f.left.T @ (jnp.sqrt(rows.weight)[:, None] * change)
        fitted = f.right @ ((f.s * f.inverse)[:, None] * image)
        return inner_solve(model, inner, rows, penalties, right) + fitted
    right = right + inner.z.T @ (rows.weight[:, None] * change)
    return inner_solve(model, inner, rows, penalties, right)


def inner_response_transposed(model, inner, rows, penalties, output):
    """Transpose of :func:`inner_response`, from (p, q) to (p, q) and (m, q)."""
    solved = inner_solve(model, inner, rows, penalties, output)
    if model.loss == "squared":
        f = inner.factors
        image = (f.s * f.inverse)[:, None] * (f.right.T @ output)
        return solved, jnp.sqrt(rows.weight)[:, None] * (f.left @ image)
    return solved, rows.weight[:, None] * (inner.z @ solved)


# --- 2. the reduced Jacobian ---------------------------------------------------------


class Jacobian(NamedTuple):
    """The reduced Jacobian as a pair of functions on raveled parameters.

    ``forward(d)`` are the changes of the values (m, q) and of W (p, q);
    ``transposed(values, output)`` is the exact transpose.
    """

    forward: Any
    transposed: Any
    gradient: jnp.ndarray  # (n,)  of the reduced objective


def reduced_jacobian(model, theta, inner, rows, penalties):
    """Linearise the features once; W follows by implicit differentiation.

    With e the weighted error and S the second derivative of the loss,

        d W = -(hess_WW)^-1 (d z^T e + z^T w S(d z W)),    d values = d z W + z d W.
    """
    flat, unravel = ravel_pytree(theta)
    w, z, e = inner.output[:-1], inner.z, inner.error  # the appended one does not move

    def bare(flat):
        return model.network.apply(unravel(flat), rows.x)

    _, push = jax.linearize(bare, flat)
    pull = jax.linear_transpose(push, flat)
    bend = partial(curvature, model, inner.values)
    respond = partial(inner_response, model, inner, rows, penalties)
    respond_transposed = partial(
        inner_response_transposed, model, inner, rows, penalties
    )

    def pad(direct):
        return jnp.concatenate([direct, jnp.zeros((1, direct.shape[1]), direct.dtype)])

    def forward(d):
        dz = push(d)
        at_fixed = dz @ w
        change = -respond(pad(dz.T @ e), bend(at_fixed))
        return at_fixed + z @ change, change

    def transposed(values, output):
        solved, fitted = respond_transposed(z.T @ values + output)
        dz = (values - bend(fitted)) @ w.T - e @ solved[:-1].T
        (d,) = pull(dz)
        return d

    # At the optimal W the derivative through it vanishes (envelope theorem).
    (gradient,) = pull(e @ w.T)
    smooth, _ = ravel_pytree(penalty_product(model, unravel(flat)))
    return Jacobian(forward, transposed, gradient + penalties.alpha * smooth)


# --- 3. the reduced Gauss-Newton matrix ----------------------------------------------


@partial(jax.jit, static_argnames=("model", "rank"))
def krylov_model(model, net, rows, penalties, rank):
    """Projection of the reduced Gauss-Newton matrix on a Krylov space."""
    inner = solve_inner(model, net.theta, rows, penalties, net.output)
    jacobian = reduced_jacobian(model, net.theta, inner, rows, penalties)
    _, unravel = ravel_pytree(net.theta)

    def product(d):
        values, output = jacobian.forward(d)
        bent = rows.weight[:, None] * curvature(model, inner.values, values)
        image = jacobian.transposed(bent, penalties.alpha_output * output)
        smooth, _ = ravel_pytree(penalty_product(model, unravel(d)))
        return image + penalties.alpha * smooth

    spectral, iterations = lanczos(
        product, jacobian.gradient, rank=rank, tol=_KRYLOV_TOL
    )
    factors = factors_to_start(model, inner)
    return spectral, jacobian.gradient, iterations, factors


def value_jacobian(model, theta, output, x):
    """Derivative of the values at fixed W, of shape (m, q, n)."""
    flat, unravel = ravel_pytree(theta)

    def values(flat, row):
        z = model.network.apply(unravel(flat), row[None, :])
        return (z @ output[:-1])[0]

    backward = output.shape[1] <= flat.size
    derivative = jax.jacrev(values) if backward else jax.jacfwd(values)
    return jax.vmap(derivative, in_axes=(None, 0))(flat, x)


def feature_jacobian(model, theta, x):
    """Derivative of the features, of shape (m, p - 1, n)."""
    flat, unravel = ravel_pytree(theta)

    def bare(flat, row):
        return model.network.apply(unravel(flat), row[None, :])[0]

    return jax.vmap(jax.jacrev(bare), in_axes=(None, 0))(flat, x)


def _holds_features(m, width, n):
    """Whether the Jacobian of the features is small enough to be kept."""
    return m * width * n <= _DENSE_FLOATS


def _error_part(model, theta, inner, rows):
    """``d z^T e`` for every parameter, of shape (p, q, n)."""
    flat, unravel = ravel_pytree(theta)
    width, q = inner.output.shape[0] - 1, inner.output.shape[1]
    if _holds_features(rows.x.shape[0], width, flat.size):
        dz = feature_jacobian(model, theta, rows.x)
        part = jnp.einsum("ian,iq->aqn", dz, inner.error)
        return jnp.concatenate([part, jnp.zeros((1, q, flat.size), part.dtype)])
    _, pull = jax.vjp(lambda f: model.network.apply(unravel(f), rows.x), flat)

    def one(index):
        unit = jnp.arange(width, dtype=jnp.int32) == index // q
        column = lax.dynamic_index_in_dim(inner.error, index % q, 1)
        (row,) = pull(column * unit[None, :].astype(column.dtype))
        return row

    part = lax.map(one, jnp.arange(width * q, dtype=jnp.int32))
    part = part.reshape(width, q, -1)
    return jnp.concatenate([part, jnp.zeros((1, q, part.shape[-1]), part.dtype)])


def _few_targets(a):
    """A matrix with ``a a^T`` that has no more columns than rows."""
    few, many = a.shape
    return jnp.linalg.qr(a.T, mode="r").T if few < many else a


def gauss_newton_parts(model, theta, inner, rows):
    """``A = Jv^T w S Jv`` at fixed W, and the two parts of ``hess_WW J_W``.

    Returns
    -------
    fixed : array of shape (n, n)
    fit, by_error : arrays of shape (p, q, n)
        ``z^T w S Jv`` and ``d z^T e``, whose sum is ``-hess_WW J_W``. For least squares
        each may be turned by an orthogonal matrix of the targets, which leaves its
        products over them as they are, and have fewer.
    """
    z, weight = inner.z, rows.weight
    q, width = inner.output.shape[1], inner.output.shape[0] - 1
    if model.loss == "squared" and width < q:
        # Neither W nor the error has more directions than rows.
        w, e = _few_targets(inner.output[:-1]), _few_targets(inner.error)
        dz = feature_jacobian(model, theta, rows.x)
        n = dz.shape[-1]
        scaled = weight[:, None, None] * dz
        contracted = jnp.einsum("ik,ian->kan", z, scaled)
        fit = jnp.einsum("kan,aq->kqn", contracted, w)
        by_error = jnp.einsum("ian,iq->aqn", dz, e)
        by_error = jnp.pad(by_error, ((0, 1), (0, 0), (0, 0)))
        rows_of = jnp.einsum("aq,ian->iqn", w, dz)
        rows_of = (jnp.sqrt(weight)[:, None, None] * rows_of).reshape(-1, n)
        return symmetric_product(rows_of.T), fit, by_error
    jv = value_jacobian(model, theta, inner.output, rows.x)
    n = jv.shape[-1]
    along = jax.vmap(
        lambda u: curvature(model, inner.values, u), in_axes=-1, out_axes=-1
    )
    bent = weight[:, None, None] * along(jv)
    if model.loss == "squared":
        rows_of = jnp.sqrt(weight)[:, None, None] * jv
        fixed = symmetric_product(rows_of.reshape(-1, n).T)
    else:
        fixed = transposed_product(jv.reshape(-1, n), bent.reshape(-1, n))
    fit = jnp.einsum("ik,iqn->kqn", z, bent)
    return fixed, fit, _error_part(model, theta, inner, rows)


@partial(jax.jit, static_argnames="model")
def primal_model(model, net, rows, penalties):
    """Eigenpairs of the reduced Gauss-Newton matrix itself.

    With ``J_W = -H^-1 (F + E)`` for the parts F (fit) and E (error) and the inner
    Hessian H, everything but the products with H^-1 cancels:

        J_red^T w S J_red + alpha_output J_W^T J_W = A - F^T H^-1 F + E^T H^-1 E.
    """
    inner = solve_inner(model, net.theta, rows, penalties, net.output)
    jacobian = reduced_jacobian(model, net.theta, inner, rows, penalties)
    fixed, fit, by_error = gauss_newton_parts(model, net.theta, inner, rows)

    def product(part):
        half = inner.factors.half(part)
        return symmetric_product(half.reshape(-1, part.shape[-1]).T)

    matrix = fixed - product(fit) + product(by_error)
    matrix = matrix + penalties.alpha * penalty_matrix(model, net.theta)
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    slopes = vectors.T @ jacobian.gradient
    spectral = SpectralModel(jnp.maximum(values, 0), slopes, vectors)
    solved = jnp.int32(inner.output.size)
    return spectral, jacobian.gradient, solved, factors_to_start(model, inner)


@partial(jax.jit, static_argnames="model")
def dual_model(model, net, rows, penalties):
    """The same by way of the rows, where these are fewer; needs ``B = I``.

    The rows of J_red, with those of ``sqrt(alpha_output) J_W`` below, have a Gram
    matrix whose eigenvectors give those of the Gauss-Newton matrix that are not in its
    null space. On that, the penalty alone acts, and of the gradient only its part.
    """
    inner = solve_inner(model, net.theta, rows, penalties, net.output)
    jacobian = reduced_jacobian(model, net.theta, inner, rows, penalties)
    flat, _ = ravel_pytree(net.theta)
    jv = value_jacobian(model, net.theta, inner.output, rows.x)
    n = jv.shape[-1]
    along = jax.vmap(
        lambda u: curvature(model, inner.values, u), in_axes=-1, out_axes=-1
    )
    fit = jnp.einsum("ik,iqn->kqn", inner.z, rows.weight[:, None, None] * along(jv))
    by_error = _error_part(model, net.theta, inner, rows)
    moved = -inner_solve(model, inner, rows, penalties, fit + by_error)
    reduced = jv + jnp.einsum("ik,kqn->iqn", inner.z, moved)
    root = _curvature_roots(model, inner.values)
    reduced = jnp.einsum("icq,iqn->icn", root, reduced)
    stacked = jnp.concatenate(
        [
            (jnp.sqrt(rows.weight)[:, None, None] * reduced).reshape(-1, n),
            jnp.sqrt(penalties.alpha_output) * moved.reshape(-1, n),
        ]
    )
    gram, left = jnp.linalg.eigh(stacked @ stacked.T)
    gram, left = gram[::-1][:n], left[:, ::-1][:, :n]
    usable = gram > gram.shape[0] * jnp.finfo(gram.dtype).eps * gram[0]
    scale = jnp.where(usable, lax.rsqrt(jnp.where(usable, gram, 1)), 0)
    basis = (stacked.T @ left) * scale[None, :]
    # What of the penalty's gradient lies outside.
    outside = flat - basis @ (basis.T @ flat)
    length = jnp.linalg.norm(outside)
    outside = outside / jnp.where(length > 0, length, 1)
    basis = jnp.concatenate([basis, outside[:, None]], axis=1)
    slopes = basis.T @ jacobian.gradient
    slopes = slopes.at[-1].set(penalties.alpha * length)
    values = jnp.append(jnp.where(usable, gram, 0), 0) + penalties.alpha
    spectral = SpectralModel(values, slopes, basis)
    solved = jnp.int32(inner.output.size)
    return spectral, jacobian.gradient, solved, factors_to_start(model, inner)


def _curvature_roots(model, values):
    """``R`` with ``R^T R = S`` for every row, of shape (m, c, q)."""
    m, q = values.shape
    if model.loss == "squared":
        return jnp.broadcast_to(jnp.eye(q, dtype=values.dtype)[None], (m, q, q))
    root = jnp.sqrt(jax.nn.softmax(all_classes(values), axis=1))
    eye = jnp.eye(root.shape[1], dtype=root.dtype)
    # (I - r r^T) diag(r) with |r| = 1.
    full = (eye[None] - root[:, :, None] * root[:, None, :]) * root[:, None, :]
    return to_columns(full)


def form_of_curvature(options, rows, net):
    """How the Gauss-Newton matrix is met: "krylov", "primal" or "dual"."""
    network, loss = options.model
    n = dimension(net.theta)
    (m, n_classes), (p, q) = rows.y.shape, net.output.shape
    inner_is_direct = loss == "squared" or _is_direct(net.output)
    if options.curvature_solver == "krylov" or not inner_is_direct or n == 0:
        return "krylov"
    n_dual = m * n_classes + net.output.size
    dual = getattr(network, "plain_penalty", True) and n_dual < n
    if options.curvature_solver == "dense":
        return "dual" if dual else "primal"
    per_row = min(q, p - 1) if loss == "squared" else q
    affordable = m * per_row * n <= _DENSE_FLOATS
    if affordable and dual and n_dual <= _DENSE_COLUMNS:
        return "dual"
    return "primal" if affordable and n <= _DENSE_COLUMNS else "krylov"


# --- 4. the step ---------------------------------------------------------------------


def step_coordinates(spectral, flat, radius, damping):
    """Coordinates of the step for a radius or a fixed shift; the shift; the radius.

    Without a radius yet, the step may be as long as the parameters are: the model says
    nothing about steps that saturate the activations.
    """
    size = jnp.maximum(jnp.linalg.norm(flat), 1)
    radius = jnp.where(jnp.isnan(radius), size, radius)
    fixed = damping >= 0
    shift = jnp.where(fixed, damping, radius_shift(spectral, radius))
    return damped_coordinates(spectral, shift), shift, radius


class Trial(NamedTuple):
    """A step that is tried."""

    net: Net
    loss: jnp.ndarray
    predicted: jnp.ndarray
    length: jnp.ndarray
    shift: jnp.ndarray
    radius: jnp.ndarray


@partial(jax.jit, static_argnames="model")
def try_step(model, net, spectral, factors, rows, penalties, radius, damping, fraction):
    """The step for a radius, or a fixed shift, and the objective where it leads."""
    flat, unravel = ravel_pytree(net.theta)
    coordinates, shift, radius = step_coordinates(spectral, flat, radius, damping)
    coordinates = fraction * coordinates
    theta = unravel(flat + spectral.basis @ coordinates)
    inner = solve_inner(model, theta, rows, penalties, net.output, factors)
    return Trial(
        net=Net(theta, inner.output),
        loss=inner.loss,
        predicted=decrease(spectral, coordinates),
        length=jnp.linalg.norm(coordinates),
        shift=shift,
        radius=radius,
    )


class State(NamedTuple):
    """Network, objective, trust region, and the place in the schedule."""

    net: Net
    loss: float
    radius: float = math.nan
    waited: int = 0
    lowest: float = math.inf  # loss of the level, for methods whose loss may rise
    level: int = 0
    iteration: int = 0
    work: float = 0.0
    judged: float = 0.0  # work when all rows judged last
    looked: int = 0  # and the iteration
    spectrum: np.ndarray | None = None
    memory: Any = None  # what an optimiser carries from step to step


@partial(jax.jit, static_argnames="model")
def inner_problem(model, net, rows, penalties):
    """Optimal output layer and objective."""
    inner = solve_inner(model, net.theta, rows, penalties, net.output)
    return Net(net.theta, inner.output), inner.loss


@partial(jax.jit, static_argnames="model")
def best_penalty(model, theta, rows, n_samples):
    """``alpha_output`` by generalised cross-validation."""
    factors = squares_factors(features(model, theta, rows.x), rows.weight)
    return generalised_cross_validation(factors, rows, n_samples)


def chosen_penalties(theta, rows, options, share=1.0):
    """The penalties as given, or with the better one for a share of the rows."""
    alpha_output = options.alpha_output
    if options.gcv:
        n_samples = (options.n_samples * share).astype(alpha_output.dtype)
        alpha_output = best_penalty(options.model, theta, rows, n_samples)
    return Penalties(options.alpha, alpha_output)


def prepare(rows, options):
    """Put the rows on the device."""
    del options
    return jax.device_put(rows)


def init(rows, net, options):
    """Make the output layer optimal, on the first batch where there are several."""
    net, model = jax.device_put(net), options.model
    if not jax.tree.leaves(net.theta):  # then it is the solution
        options = options._replace(batch_size=np.int32(0))
    batch, share = current_batch(rows, options, 0)
    penalties = chosen_penalties(net.theta, batch, options, share)
    started, loss = inner_problem(model, net, batch, penalties)
    work = share
    if batch is not rows:  # all of them may prefer that of a former fit
        given, loss = (objective(model, n, rows, penalties) for n in (net, started))
        net, loss = (started, loss) if loss < given else (net, given)
        work = share + 2
    else:
        net = started
    level_of = getattr(model.network, "level_of", None)
    level = 0 if level_of is None else level_of(net.theta)
    return State(net, float(loss), work=work, level=level)


# A schedule of batches, each kept for some iterations, and one of levels.


def n_batches(rows, options):
    """Batches of a sweep over the rows that have weight; 1 where it is all of them."""
    size = int(options.batch_size)
    if size == 0:  # the weights stay on the device
        return 1
    return max(1, -(-np.count_nonzero(rows.weight) // size))


def current_batch(rows, options, iteration):
    """The rows of an iteration: all, or a batch of them, and their share of all.

    Sweeps draw new batches from the rows that have weight; the last batch of a sweep is
    filled up from the first.
    """
    count, size = n_batches(rows, options), int(options.batch_size)
    if count == 1:
        return rows, 1.0
    sweep, batch = divmod(iteration // int(options.iterations_per_batch), count)
    rng = np.random.RandomState((int(options.seed) + sweep) % 2**32)
    order = rng.permutation(np.flatnonzero(rows.weight))
    chosen = order[np.arange(batch * size, (batch + 1) * size) % len(order)]
    return take(rows, chosen.astype(np.int32)), size / len(order)


@jax.jit
def take(rows, order):
    """Some of the rows, with weights of sum one."""
    x, y, weight = (a[order] for a in rows)
    return Rows(x, y, weight / jnp.sum(weight))


def patience(rows, options, state):
    """Iterations without a lower loss after which a level ends.

    With batches they make a sweep at least, in which all rows judge a few times.
    """
    count = n_batches(rows, options)
    if count == 1:
        return _PATIENCE
    between = _JUDGED_EVERY * state.iteration / max(1.0, state.work)
    return max(count * int(options.iterations_per_batch), _PATIENCE * between)


def on_all_rows(judge, rows, before, state, report, options):
    """State and report of an iteration on a batch, with the loss on all rows.

    Losses of different batches do not compare, nor does the end of one end a fit: that
    does a sweep without a lower loss on all rows. These judge when the work has grown
    by a quarter, later whenever ``_JUDGED_EVERY`` units are spent, and before a finer
    level. Until then the last loss stands.

    Parameters
    ----------
    judge : callable
        :func:`look`, or the like.
    before : State
        That before the iteration.
    """
    finite = math.isfinite(state.loss)
    state = state._replace(loss=before.loss, waited=before.waited)
    due = state.work - before.judged >= min(_JUDGED_EVERY, before.judged / 4)
    due = due or level_ends(state, options, patience(rows, options, state))
    if finite and not due:
        extra = {**columns(state), "judged": False}
        return state, report._replace(loss=before.loss, stop=None, extra=extra)
    net, loss = judge(rows, state, options)
    tol = float(options.tol)
    fell = loss < (1 - tol) * before.lowest or tol == 0
    waited = 0 if fell else before.waited + state.iteration - before.looked
    tired = waited >= patience(rows, options, state) and on_last_level(state, options)
    stop = "tol" if tired else None
    stop = stop if math.isfinite(loss) else "non_finite"
    work = state.work + 1
    state = state._replace(
        net=net,
        loss=loss,
        lowest=min(loss, before.lowest),
        waited=waited,
        work=work,
        judged=work,
        looked=state.iteration,
    )
    return state, report._replace(loss=loss, stop=stop, extra=columns(state))


def look(rows, state, options, *, optimal=inner_problem):
    """The network that all rows make of that of a batch, and its loss; None if known.

    ``optimal(model, net, rows, penalties)`` returns both.
    """
    if n_batches(rows, options) == 1 or state.judged == state.work:
        return None
    penalties = chosen_penalties(state.net.theta, rows, options)
    net, loss = optimal(options.model, state.net, rows, penalties)
    return net, float(loss)


def n_levels(options):
    """Number of levels of the network; one for networks that do not say."""
    return getattr(options.model.network, "n_levels", 1)


def on_last_level(state, options):
    """Whether there is no finer network to come."""
    return state.level + 1 >= n_levels(options)


def level_ends(state, options, patience):
    """Whether the next iteration belongs to a finer level."""
    if on_last_level(state, options):
        return False
    share = -(-int(options.max_iter) // n_levels(options))
    return state.waited >= patience or state.iteration >= share * (state.level + 1)


def next_level(state, options):
    """The same function on a finer network; its loss differs a little."""
    theta = options.model.network.refine(jax.tree.map(np.asarray, state.net.theta))
    net = Net(jax.device_put(theta), state.net.output)
    return state._replace(
        net=net,
        level=state.level + 1,
        waited=0,
        lowest=math.inf,
        radius=math.nan,
        memory=None,
    )


def step(rows, state, options):
    """One accepted step."""
    if not jax.tree.leaves(state.net.theta):
        return output_layer_only(state)
    refined = level_ends(state, options, patience(rows, options, state))
    if refined:
        state = next_level(state, options)
    before, model, net = state, options.model, state.net
    batch, share = current_batch(rows, options, state.iteration)
    penalties = chosen_penalties(net.theta, batch, options, share)
    if refined or options.gcv or batch is not rows:  # another objective than before
        net, loss = inner_problem(model, net, batch, penalties)
        state = state._replace(net=net, loss=float(loss), work=state.work + share)
    kind = form_of_curvature(options, batch, net)
    if kind == "krylov":
        spectral, gradient, inner, factors = krylov_model(
            model, net, batch, penalties, int(options.rank)
        )
        work = 2 + 2 * int(inner)
    else:
        form = primal_model if kind == "primal" else dual_model
        spectral, gradient, inner, factors = form(model, net, batch, penalties)
        work = dense_work(kind, model.loss, net, batch)
    attempt = partial(try_step, model, net, spectral, factors, batch, penalties)
    trial, state, trials, gain = accepted_trial(state, attempt, options)
    state = state._replace(work=state.work + share * (work + trials))
    found = finish(state, options, trial, gain, inner, gradient, spectral)
    if batch is rows:
        return found
    return on_all_rows(look, rows, before, *found, options)


def dense_work(kind, loss, net, rows):
    """Passes over the rows that a dense Gauss-Newton matrix takes."""
    width, q = net.output.shape[0] - 1, net.output.shape[1]
    if kind == "primal" and loss == "squared" and width < q:
        return 2 + width  # derivatives of the features alone
    keep = _holds_features(rows.x.shape[0], width, dimension(net.theta))
    return 2 + q + (width if keep else width * q)


def output_layer_only(state):
    """State and report where there are no other weights: the start is the solution."""
    report = Report(loss=state.loss, grad_norm=0.0, stop="tol", extra=columns(state))
    return state, report


def accepted_trial(state, attempt, options):
    """Try steps until one is good; the Krylov space or the eigenvectors stay.

    ``attempt(radius, damping, fraction)`` makes a :class:`Trial`.

    Returns
    -------
    trial : Trial or None
    state : State
        With the new radius.
    trials : int
    gain : float
        Actual over predicted decrease. Where no step is good, 0 at rounding, else NaN.
    """
    radius, fraction, promised = state.radius, 1.0, None
    fixed = float(options.damping) >= 0
    cast = np.asarray(options.alpha).dtype.type
    eps = float(np.finfo(cast).eps)
    for trials in range(1, _TRIALS + 1):
        trial = attempt(cast(radius), options.damping, cast(fraction))
        predicted, length = float(trial.predicted), float(trial.length)
        actual = state.loss - float(trial.loss)
        gain = actual / predicted if predicted > 0 else math.nan
        promised = predicted if promised is None else promised
        if not predicted > eps * abs(state.loss) or not length > 0:
            break
        if fixed:
            if gain > _REJECT:
                return trial, state, trials, gain
            fraction /= 2
            continue
        radius = float(trial.radius)
        if not gain >= _REJECT:
            radius = min(radius, length) / 2
            continue
        if gain < _SHRINK:
            radius = length / 2
        elif gain > _GROW:
            if gain > 1:  # with less, doubling never paid in fits of six kinds
                longer = lengthened(trial, attempt, cast, radius, trials, options)
                trial, trials = longer
            radius = max(radius, 1.5 * float(trial.length))
        return trial, state._replace(radius=radius), trials, gain
    # Where even the first step promised next to nothing, the loss is at rounding.
    flat = promised <= math.sqrt(eps) * _FLAT * abs(state.loss)
    return None, state._replace(radius=radius), trials, 0.0 if flat else math.nan


def lengthened(trial, attempt, cast, radius, trials, options):
    """A step that did better than promised is doubled while that lowers the loss."""
    fraction = 1.0
    while trials < _TRIALS:
        fraction *= 2
        longer = attempt(cast(radius), options.damping, cast(fraction))
        trials += 1
        if not float(longer.loss) < float(trial.loss):
            break
        trial = longer
    return trial, trials


def columns(state):
    """Further columns of the log."""
    return {"work_units": state.work, "level": state.level, "judged": True}


def finish(state, options, trial, gain, inner, gradient, spectral):
    """State and report after the trials."""
    stop = None
    last = on_last_level(state, options)
    if trial is None:
        loss, waited = state.loss, _PATIENCE
        if last:
            stop = "rounding" if gain == 0 else "line_search"
    else:
        loss = float(trial.loss)
        fell = state.loss - loss > float(options.tol) * abs(state.loss)
        waited = 0 if fell else state.waited + 1
        if waited >= _PATIENCE and last:
            stop = "tol"
        state = state._replace(net=trial.net)
    if not math.isfinite(loss):
        stop = "non_finite"
    state = state._replace(
        loss=loss,
        waited=waited,
        iteration=state.iteration + 1,
        spectrum=np.sort(np.asarray(spectral.values))[::-1],
    )
    report = Report(
        loss=loss,
        grad_norm=float(np.linalg.norm(gradient)),
        step_size=float(trial.length) if trial else 0.0,
        damping=float(trial.shift) if trial else math.nan,
        gain_ratio=gain,
        inner_iterations=int(inner),
        stop=stop,
        extra=columns(state),
    )
    return state, report


# --- before and after the fit ------------------------------------------------------


@partial(jax.jit, static_argnames="model")
def predict_features(model, theta, x):
    """Features without the appended one."""
    return model.network.apply(theta, x)


@partial(jax.jit, static_argnames="model")
def predict_values(model, net, x):
    """Values of the output layer."""
    return features(model, net.theta, x) @ net.output


class Posterior(NamedTuple):
    """Gauss-Newton covariance of the weights, for unit noise and one sample."""

    root: jnp.ndarray  # Cholesky factor of the Gauss-Newton matrix with penalties
    freedom: jnp.ndarray  # degrees of freedom that the model takes


def _joint_rows(model, net, x, whole):
    """Derivatives of the values in all weights, or in those of one output."""
    z = features(model, net.theta, x)
    if not whole:
        return z[:, None, :]
    q = net.output.shape[1]
    jv = value_jacobian(model, net.theta, net.output, x)
    eye = jnp.eye(q, dtype=z.dtype)
    linear = jnp.einsum("ik,qr->iqkr", z, eye).reshape(x.shape[0], q, -1)
    return jnp.concatenate([jv, linear], axis=2)


def both_penalties(model, net, penalties, k):
    """Second derivative of the penalties in (theta, W), or in k output weights."""
    matrix = penalties.alpha_output * jnp.eye(k, dtype=net.output.dtype)
    n = dimension(net.theta)
    if n == 0 or k < n + net.output.size:
        return matrix
    of_theta = penalties.alpha * penalty_matrix(model, net.theta)
    return matrix.at[:n, :n].set(of_theta)


@partial(jax.jit, static_argnames=("model", "whole"))
def posterior(model, net, rows, penalties, whole):
    """The Gauss-Newton matrix in (theta, W), or in W for given features."""
    jacobian = _joint_rows(model, net, rows.x, whole)
    k = jacobian.shape[-1]
    weighted = jnp.sqrt(rows.weight)[:, None, None] * jacobian
    weighted = weighted.reshape(-1, k)
    matrix = symmetric_product(weighted.T)
    total = matrix + both_penalties(model, net, penalties, k)
    # Enough to factor a singular matrix: directions without information keep a
    # variance that is large, not infinite.
    floor = k * jnp.finfo(matrix.dtype).eps * jnp.trace(matrix)
    total = total + floor * jnp.eye(k, dtype=matrix.dtype)
    root = lax.linalg.cholesky(total, symmetrize_input=False)
    half = lax.linalg.triangular_solve(root, matrix, left_side=True, lower=True)
    back = lax.linalg.triangular_solve(
        root, half, left_side=True, lower=True, transpose_a=True
    )
    return Posterior(root, jnp.trace(back))


@partial(jax.jit, static_argnames=("model", "whole"))
def predictive_variance(model, net, root, x, whole):
    """``J (H^-1) J^T`` of each row and value, of shape (m, q) or (m, 1)."""
    jacobian = _joint_rows(model, net, x, whole)
    m, q, k = jacobian.shape
    half = lax.linalg.triangular_solve(
        root, jacobian.reshape(-1, k).T, left_side=True, lower=True
    )
    return jnp.sum(half**2, axis=0).reshape(m, q)


GNVPRO = Algorithm("gnvpro", init, step, prepare=prepare, look=look)
