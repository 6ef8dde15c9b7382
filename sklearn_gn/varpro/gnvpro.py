r"""The step of GNvpro: Gauss-Newton-Krylov variable projection for deep networks.

The method of Newman, Ruthotto, Hart and van Bloemen Waanders ("Train like a (Var)Pro").
The objective ``Phi(W, theta)`` of :mod:`sklearn_gn.varpro.problem` is solved for W, and
a Gauss-Newton method minimises what is left, ``Phi_red(theta) = Phi(W(theta), theta)``.
A step

1.  solves the inner problem, for all rows or a batch;
2.  linearises the values ``z W(theta)``, in which W moves with theta, as the implicit
    function theorem says;
3.  projects the reduced Gauss-Newton matrix on a Krylov space, forms it, or takes its
    dual, the Gram matrix of the rows: all give a quadratic model in eigenvectors;
4.  tries trust-region steps in these until one is accepted. The model stays while the
    radius shrinks, so that a rejected step costs only the next trial.

Without the projection it is Gauss-Newton in all weights together: W is one group of
weights among others, and their matrix is projected by the same function. After a fit
the same matrix gives the error bars of the network; those of a committee are in
:mod:`sklearn_gn.varpro.members`.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from scipy import linalg

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.blocks import sum_rows, symmetric_product
from sklearn_gn.arrays.collectives import all_rows, total
from sklearn_gn.arrays.trees import dimension
from sklearn_gn.bayes.laplace import degrees_of_freedom, factor_with_floor, safe_norm
from sklearn_gn.bayes.low_rank import TOL as KRYLOV_TOL
from sklearn_gn.linalg.factors import LARGEST_DENSE, eigenpairs, upper_factor
from sklearn_gn.optim.globalisation import TrustRadius, search_step
from sklearn_gn.optim.multinomial import all_classes, probabilities
from sklearn_gn.optim.solver import Report
from sklearn_gn.optim.trust_region import (
    SpectralModel,
    damped_coordinates,
    decrease,
    lanczos,
    radius_shift,
)
from sklearn_gn.varpro.problem import (
    Model,
    Net,
    Penalties,
    evaluate,
    features,
    loss_curvature,
    objective,
    of_rows,
    penalty_matrix,
    penalty_product,
    predict_values,
    solve_hessian,
    solve_inner,
)

_DENSE_FLOATS = 2**27  # of the Jacobian
_GROW = 0.75  # gain ratio from which the trust region grows; it shrinks below 0.25


# --- the quadratic model -------------------------------------------------------------


class QuadraticModel(NamedTuple):
    """The quadratic model of the objective at a network."""

    spectral: SpectralModel
    gradient: jnp.ndarray  # (n,)
    inner_iterations: jnp.ndarray  # products, or unknowns of the inner problem


def quadratic_model(net, rows, settings, projected):
    """Return the :class:`QuadraticModel`, and the passes over the rows that it took.

    In theta where W is ``projected`` out, or in all weights of the network.
    """
    model, rank = settings.model, settings.rank
    curvature = settings.solver.curvature if projected else "krylov"
    if rank is not None and curvature == "dense":
        raise ValueError(
            f"rank={rank} is the dimension of a Krylov space, and "
            "GNvpro(curvature='dense') takes none: leave rank at None, or set "
            "curvature='krylov'."
        )
    given = model, net, rows, settings.penalties
    (m, n_columns), (p, q), n = rows.y.shape, net.output.shape, dimension(net.theta)
    rotates = features_are_fewer(model, net.output)
    n_columns = p if rotates else n_columns
    n_dual = (m + p) * n_columns + p * q
    dual = n_dual < n and getattr(model.network, "plain_penalty", True)
    largest = max(n_dual if dual else n, 0 if model.loss == "squared" else p * q)
    affordable = m * n_columns * n <= _DENSE_FLOATS and largest <= LARGEST_DENSE
    automatic = curvature == "auto" and rank is None
    if curvature == "dense" or (automatic and affordable):
        return dense_model(*given, dual), 2 + (p - 1 if rotates else p * q)
    n = n if projected else dimension(net)
    rank = min(20 if rank is None else rank, LARGEST_DENSE, n)
    found = krylov_model(*given, projected, rank)
    return found, 2 + 2 * int(found.inner_iterations)


def features_are_fewer(model, output):
    """Whether the targets of least squares may be rotated into fewer directions."""
    return model.loss == "squared" and output.shape[0] < output.shape[1]


def reduced_jacobian(model, theta, inner, rows, penalties):
    """Return the reduced Jacobian as a function, its transpose, and the gradient.

    A step d (n,) changes the values (m, q) and the network. W moves by the implicit
    function theorem: with e the weighted error and S the second derivative of the loss,

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

    return forward, transposed, reduced_gradient(model, theta, inner, penalties, pull)


def reduced_gradient(model, theta, inner, penalties, pull):
    """Return the gradient; its part in W vanishes at the optimum."""
    (gradient,) = total(pull(inner.error @ inner.output.T))
    smooth, _ = ravel_pytree(penalty_product(model, theta))
    return gradient + penalties.hidden * smooth


def full_jacobian(model, net, here, rows, penalties):
    """Return the same three in all weights."""
    flat, unravel = ravel_pytree(net)
    _, push = jax.linearize(lambda f: predict_values(model, unravel(f), rows.x), flat)
    pull = jax.linear_transpose(push, flat)

    def transposed(values, net):
        return total(pull(values)[0]) + ravel_pytree(net)[0]

    gradient = transposed(here.error, _penalised(model, net, penalties))
    return (lambda d: (push(d), unravel(d))), transposed, gradient


def _penalised(model, net, penalties):
    """The derivatives of the penalties."""
    smooth = penalty_product(model, net.theta)
    smooth = jax.tree.map(lambda leaf: penalties.hidden * leaf, smooth)
    return Net(smooth, penalties.output * net.output)


@of_rows("projected", "rank")
def krylov_model(model, net, rows, penalties, projected, rank):
    """Return the model projected on a Krylov space of the gradient."""
    if projected:
        here = solve_inner(model, net, rows, penalties)
        found = reduced_jacobian(model, net.theta, here, rows, penalties)
    else:
        here = evaluate(model, net, rows, penalties)
        found = full_jacobian(model, net, here, rows, penalties)
    forward, transposed, gradient = found

    def product(d):
        values, change = forward(d)
        curved = rows.weight[:, None] * loss_curvature(model, here.values, values)
        return transposed(curved, _penalised(model, change, penalties))

    spectral, iterations = lanczos(product, gradient, rank=rank, tol=KRYLOV_TOL)
    return QuadraticModel(spectral, gradient, iterations)


@of_rows("dual")
def dense_model(model, net, rows, penalties, dual):
    """Return the model in the eigenvectors of the reduced Gauss-Newton matrix.

    With the derivative D of the values at fixed W and the inner Hessian H, W moves by
    ``J_W = -H^-1 (F + E)``, and the matrix is ``K^T K + alpha B^T B`` for the rows K

        sqrt(w) R (D + z J_W),    sqrt(alpha_out) J_W,    where R^T R = S.

    Where targets are rotated, F and E have no columns in common. Their products cancel
    each other: E is left out of J_W, and has rows ``H^-1/2 E`` of its own.

    If the rows are fewer than the weights, and B = I, their ``dual`` ``K K^T`` has the
    same eigenvalues. There only the penalty acts on what is not in the span of the
    rows, and only its part of the gradient.
    """
    inner = solve_inner(model, net, rows, penalties)
    flat, unravel = ravel_pytree(net.theta)
    _, pull = jax.vjp(lambda f: features(model, unravel(f), rows.x), flat)
    gradient = reduced_gradient(model, net.theta, inner, penalties, pull)
    at_fixed, by_error = derivatives(model, net.theta, inner, rows, pull)
    n, weight, p = flat.size, rows.weight[:, None, None], None
    if model.loss != "squared":
        p = probabilities(inner.values)

    def root(u):
        """``R u`` of shape (m, c)."""
        if p is None:
            return u
        u = all_classes(u)
        return jnp.sqrt(p) * (u - jnp.sum(p * u, axis=1, keepdims=True))

    curve = partial(loss_curvature, model, inner.values)
    curved = weight * jax.vmap(curve, -1, -1)(at_fixed)
    fit, by_error = total((jnp.einsum("ik,iqn->kqn", inner.z, curved), by_error))
    rotated = features_are_fewer(model, inner.output)
    right = fit if rotated else fit + by_error
    change = -solve_hessian(model, inner, rows, penalties, right)
    moved = at_fixed + jnp.einsum("ik,kqn->iqn", inner.z, change)
    own = (jnp.sqrt(weight) * jax.vmap(root, -1, -1)(moved)).reshape(-1, n)
    shared = jnp.sqrt(penalties.output) * change.reshape(-1, n)
    if rotated:
        own_by_error = jnp.einsum("ak,kqn->aqn", inner.factors.root, by_error)
        shared = jnp.concatenate([shared, own_by_error.reshape(-1, n)])
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
    return QuadraticModel(spectral, gradient, unknowns)


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
    """Return value derivatives at fixed W (m, c, n), and ``E = dz^T e`` (p, q, n).

    For least squares the targets may be rotated, which changes no product over them:
    where the features are fewer, so are the directions of W.
    """
    output = inner.output
    eye = jnp.eye(len(output), dtype=output.dtype)
    if features_are_fewer(model, output):
        dz = value_jacobian(model, theta, eye[:, :-1], rows.x)  # the last one is zero
        at_fixed = jnp.einsum("qa,ian->iqn", upper_factor(output[:-1].T), dz)
        by_error = jnp.einsum("ian,iq->aqn", dz, inner.error)
        return at_fixed, jnp.pad(by_error, ((0, 1), (0, 0), (0, 0)))

    # The derivatives of sum_i z_ik e_i are pulled back through the network, for one
    # feature k at a time: from those of the features of every row, which fill the
    # memory, it took up to fourteen times as long.
    def of_feature(unit):
        of_target = jax.vmap(lambda e: pull(e[:, None] * unit[None, :])[0], 1)
        return of_target(inner.error)

    by_error = lax.map(of_feature, eye)
    return value_jacobian(model, theta, output, rows.x), by_error


def value_jacobian(model, theta, output, x):
    """Return the derivative of the values at fixed W, of shape (m, q, n)."""
    flat, unravel = ravel_pytree(theta)

    def values(flat, row):
        return (features(model, unravel(flat), row[None, :]) @ output)[0]

    derivative = jax.jacrev if output.shape[1] <= flat.size else jax.jacfwd
    return jax.vmap(derivative(values), in_axes=(None, 0))(flat, x)


# --- the step ------------------------------------------------------------------------


class TrialStep(NamedTuple):
    """A step that was tried."""

    net: Net  # after the step
    loss: jnp.ndarray
    predicted: jnp.ndarray  # decrease of the loss
    length: jnp.ndarray
    shift: jnp.ndarray  # of the Gauss-Newton matrix
    radius: jnp.ndarray


def gauss_newton(rows, state, settings, projected):
    """Take a step from a network whose loss is known, in the trust region.

    The state, the report and the number of passes over the rows are returned. With a
    fixed shift ``settings.damping`` rejected steps are halved.
    """
    found, passes = quadratic_model(state.net, rows, settings, projected)
    given = settings.model, state.net, found, rows, settings.penalties, projected
    cast = settings.tol.dtype.type
    # Half of a step as often as it has digits is none.
    eps, most = float(np.finfo(cast).eps), np.finfo(cast).nmant

    def trial(trust, _):
        sizes = cast(trust.radius), settings.damping, cast(trust.share)
        tried = try_step(*given, *sizes)
        predicted = float(tried.predicted)
        usable = predicted > floor and float(tried.length) > 0
        return tried, state.loss - float(tried.loss) if usable else -1.0, predicted

    floor, fixed = eps * abs(state.loss), settings.damping is not None
    trust = TrustRadius(float(state.radius), fixed)
    search = search_step(trial, None, trust, floor=floor, max_trials=most)
    best, gain, n_trials = search.candidate, float(search.gain_ratio), search.n_trials
    trust, stop = search.control, None
    radius, length = trust.radius, float(best.length)
    if search.accepted:
        # A step that did better than predicted is doubled while that lowers the loss;
        # with less, doubling never paid in fits of six kinds.
        while not fixed and gain > 1 and n_trials < most:
            trust = trust._replace(share=2 * trust.share)
            (longer, *_), n_trials = trial(trust, n_trials), n_trials + 1
            if not float(longer.loss) < float(best.loss):
                break
            best = longer
        if gain < 1 - _GROW:
            radius = length / 2
        elif gain > _GROW:
            radius = max(radius, 1.5 * float(best.length))
    else:  # no further iteration would find one
        # Where even the first step promised next to nothing, the loss is at rounding.
        flat = search.promised <= eps ** (2 / 3) * abs(state.loss)
        stop, gain = ("rounding", 0.0) if flat else ("line_search", math.nan)
        best = TrialStep(state.net, state.loss, 0.0, 0.0, math.nan, radius)
    report = Report(
        loss=float(best.loss),
        # That of BLAS, whose squares do not overflow.
        grad_norm=float(linalg.norm(np.asarray(found.gradient), check_finite=False)),
        step_size=float(best.length),
        damping=float(best.shift),
        gain_ratio=gain,
        inner_iterations=int(found.inner_iterations),
        stop=stop,
    )
    spectrum = np.sort(np.asarray(found.spectral.values))[::-1]
    state = state._replace(net=best.net, radius=radius, spectrum=spectrum)
    return state, report, passes + n_trials


@of_rows("projected")
def try_step(model, net, found, rows, penalties, projected, radius, damping, fraction):
    """Return a fraction of the step by a quadratic model, and the objective after it.

    The shift is ``damping``, or with None that with which the step is as long as the
    radius. Without a radius yet, which is NaN, the step may be as long as the
    parameters are: the model says nothing about steps that saturate the activations.
    """
    spectral, parameters = found.spectral, net.theta if projected else net
    flat, unravel = ravel_pytree(parameters)
    size = jnp.maximum(jnp.linalg.norm(flat), 1)
    radius = jnp.where(jnp.isnan(radius), size, radius)
    shift = radius_shift(spectral, radius) if damping is None else damping
    coordinates = fraction * damped_coordinates(spectral, shift)
    moved = unravel(flat + spectral.basis @ coordinates)
    if projected:
        inner = solve_inner(model, Net(moved, net.output), rows, penalties)
        moved, loss = Net(moved, inner.output), inner.loss
    else:
        loss = objective(model, moved, rows, penalties)
    predicted, length = decrease(spectral, coordinates), jnp.linalg.norm(coordinates)
    return TrialStep(moved, loss, predicted, length, shift, radius)


# --- error bars ----------------------------------------------------------------------


class ErrorBars(NamedTuple):
    """Standard deviations of the predicted means of a least-squares fit."""

    model: Model
    net: Net  # in a unit of the targets that keeps squares in the range of floats
    joint: bool  # whether of all weights, or else of those of the output layer
    root: Any  # factor of their Gauss-Newton matrix
    noise: np.ndarray  # (q,)  from roots of variances to standard deviations
    degrees_of_freedom: float

    @classmethod
    def of(cls, model, net, rows, penalties, n_samples, z=None):
        """Return those of a network that was fitted to rows.

        All weights count in a small network; in one of more than 2,000, or fitted to
        rows in chunks, whose features ``z`` are given, those of the output layer.
        """
        size = float(np.max(np.abs(net.output)))
        power = round(math.log2(size)) if 0 < size < math.inf else 0
        unit = net.output.dtype.type(2.0**power)
        net = Net(net.theta, net.output / unit)
        # Of tiny outputs it may exceed the floats, the largest of which holds as well.
        with np.errstate(over="ignore"):
            hidden = np.asarray(penalties.hidden / unit / unit)
        hidden = np.minimum(hidden, np.finfo(hidden.dtype).max)
        n_weights = net.output.size + dimension(net.theta)
        joint = n_weights <= LARGEST_DENSE and z is None
        penalties = Penalties(hidden, penalties.output)
        found = posterior(model, net, rows, penalties, joint, z)
        values = predict_values(model, net, rows.x) if z is None else z @ net.output
        (root, n_parameters), values = backend.to_numpy((found, values))
        error = (values - rows.y / unit).astype(np.float64)
        size = safe_norm(np.sqrt(rows.weight.astype(np.float64))[:, None] * error, 0)
        q = rows.y.shape[1] if joint else 1
        left = degrees_of_freedom(n_samples, q, float(n_parameters))
        noise = np.sqrt(q / left) * size * float(unit)
        return cls(model, net, joint, root, noise, left)

    def variances(self, x):
        """Return the variances for unit noise, of shape (m, q) or (m, 1)."""
        return predictive_variance(self.model, self.net, self.root, x, self.joint)


@partial(jax.jit, static_argnames=("model", "joint"))
def posterior(model, net, rows, penalties, joint, z=None):
    """Return the factor in (theta, W), or in W, and the effective parameters."""

    def of_block(block):
        x, weight = block
        jacobian = _jacobian(model, net, x, joint) if z is None else x[:, None, :]
        weighted = jnp.sqrt(weight)[:, None, None] * jacobian
        return symmetric_product(weighted.reshape(-1, jacobian.shape[-1]).T)

    matrix = sum_rows(of_block, (rows.x if z is None else z, rows.weight))
    n, k = dimension(net.theta), len(matrix)
    penalty = penalties.output * jnp.eye(k, dtype=net.output.dtype)
    if joint and n > 0:
        of_theta = penalties.hidden * penalty_matrix(model, net.theta)
        penalty = penalty.at[:n, :n].set(of_theta)
    root = factor_with_floor(matrix, penalty, ulps=k)
    return root, jnp.trace(root.solve(matrix))  # parameters that the data determine


@partial(jax.jit, static_argnames=("model", "joint"))
def predictive_variance(model, net, root, x, joint):
    """Return ``J (H^-1) J^T`` of each row and value, of shape (m, q) or (m, 1)."""
    jacobian = _jacobian(model, net, x, joint)
    m, q, k = jacobian.shape
    return root.variances(jacobian.reshape(-1, k).T).reshape(m, q)


def _jacobian(model, net, x, joint):
    """Derivatives of the values in all weights, or in those of one output."""
    z = features(model, net.theta, x)
    if not joint:
        return z[:, None, :]
    q = net.output.shape[1]
    jv = value_jacobian(model, net.theta, net.output, x)
    eye = jnp.eye(q, dtype=z.dtype)
    linear = jnp.einsum("ik,qs->iqks", z, eye).reshape(x.shape[0], q, -1)
    return jnp.concatenate([jv, linear], axis=2)
