r"""D-NGD: dual natural gradient descent for physics-informed networks.

The method of Jnini and Vella. Residuals r(theta) in R^m of a network with n parameters,
n mostly larger than m, are brought to zero by Levenberg-Marquardt steps,

    v = argmin 1/2 |r + J v|^2 + lambda/2 |v|^2,

which are solved for in the smaller of two spaces:

1.  the Jacobian in factors; its Gramian, ``K = J J^T`` (dual) or ``J^T J`` (primal);
2.  the step, ``v = -J^T (K + lambda I)^-1 r``;
3.  geodesic acceleration: with ``f_vv`` the second derivative of r along v, half of
    ``a = -J^T (K + lambda I)^-1 f_vv`` is added where a is short beside v;
4.  how far to go: by default a trust region, of which many radii are tried with one
    eigendecomposition, each with its own acceleration; or a given rule for lambda with
    a search along the step, as in the paper.

The step is never recovered as ``-(J^T y + g) / lambda``, which cancels.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.curvature.jacobian import (
    gramian,
    normal_matrix,
    transposed,
)
from sklearn_gn.curvature.trust_region import SpectralModel, decrease, radius_shift
from sklearn_gn.solvers._base import Report, Solver
from sklearn_gn.solvers.pinn_residuals import jacobian, residuals, second_derivative

_RADII = 12
_WIDEST = 4.0  # radii from a quarter of the last one to four times it
_TRUSTED = 0.1  # gain ratio of a radius that is taken
_SHRINK, _COLLAPSE = 0.5, 0.125
_SHORT = 0.75  # acceleration, as 2 |a| / |v|, that is used
_SMALLEST_RADIUS = 1e-10
_PATIENCE = 5


class Points(NamedTuple):
    """What a fit is given."""

    batches: tuple  # of Batch: the first points
    fresh: tuple  # of Batch: points that are never trained on
    reference: Any  # (points, values) to compare with, or None


class Options(NamedTuple):
    """Settings, most of them as numpy scalars."""

    model: Any
    damping: str  # "trust_region", "gain_ratio", "loss" or "fixed"
    shift: np.ndarray  # of "fixed"; the bound of "loss"
    geodesic: bool
    tol: np.ndarray
    max_iter: np.int32
    renewal: int  # iterations for which points are kept; 0: for good
    sampler: Any  # draw(number, net) makes new batches
    seed: np.int32


class State(NamedTuple):
    """Network, its loss, the trust region and the points."""

    net: Any
    loss: float
    batches: tuple
    radius: float = math.nan
    iteration: int = 0
    waited: int = 0
    spectrum: np.ndarray | None = None


# --- 1. the Jacobian and its Gramian -------------------------------------------------


class Spectrum(NamedTuple):
    """Residuals, Jacobian, and the eigenpairs of its Gramian."""

    r: jnp.ndarray  # (m,)
    parts: Any
    values: jnp.ndarray  # (k,)  of J J^T or J^T J, k = min(m, n)
    vectors: jnp.ndarray  # (k, k)


def _is_dual(r, params):
    return r.shape[0] < ravel_pytree(params)[0].shape[0]


@partial(jax.jit, static_argnames="model")
def spectrum(model, params, batches):
    """Eigenpairs of the smaller Gramian."""
    r, parts = jacobian(model, params, batches)
    matrix = gramian(parts) if _is_dual(r, params) else normal_matrix(parts)
    vectors, values = lax.linalg.eigh(matrix, symmetrize_input=False)
    return Spectrum(r, parts, jnp.maximum(values, 0), vectors)


# --- 2. and 3. the step, and its acceleration ----------------------------------------


def damped_solution(found, params, shift, r):
    """``-J^T (J J^T + lambda I)^-1 r``, from the eigenpairs of either Gramian."""
    if _is_dual(r, params):
        y = found.vectors @ ((found.vectors.T @ r) / (found.values + shift))
        step = transposed(found.parts, y, params)
        return jax.tree.map(jnp.negative, step)
    flat, unravel = ravel_pytree(transposed(found.parts, r, params))
    inside = (found.vectors.T @ flat) / (found.values + shift)
    return unravel(-(found.vectors @ inside))


def quadratic_model(found, params):
    """The model of the loss in the eigenvectors of ``J^T J``."""
    if _is_dual(found.r, params):
        slopes = jnp.sqrt(found.values) * (found.vectors.T @ found.r)
    else:
        flat, _ = ravel_pytree(transposed(found.parts, found.r, params))
        slopes = found.vectors.T @ flat
    # What is at rounding level tells nothing, but would dominate without damping.
    return SpectralModel(found.values, slopes, found.vectors)


class Trial(NamedTuple):
    """A step that is tried."""

    net: Any
    loss: jnp.ndarray
    gain: jnp.ndarray  # decrease over that of the linearised residuals
    length: jnp.ndarray
    shift: jnp.ndarray


def norm(tree):
    """Euclidean norm of all numbers of a tree."""
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def add(tree, factor, other):
    """``tree + factor * other``."""
    return jax.tree.map(lambda a, b: a + factor * b, tree, other)


def accelerated(model, params, batches, found, shift, step):
    """The step with half its geodesic acceleration, if that is short."""
    bent = second_derivative(model, params, batches, step)
    bend = damped_solution(found, params, shift, bent)
    short = 2 * norm(bend) <= _SHORT * norm(step)
    return jax.tree.map(lambda v, a: jnp.where(short, v + a / 2, v), step, bend)


def loss_of(r):
    """Half the sum of squares."""
    return 0.5 * jnp.sum(r**2)


@partial(jax.jit, static_argnames=("model", "geodesic"))
def try_radii(model, params, batches, found, radii, geodesic):
    """The steps of all radii, with the loss where they lead."""
    quadratic = quadratic_model(found, params)
    floor = jnp.finfo(found.r.dtype).eps * jnp.max(found.values)

    def one(radius):
        shift = jnp.maximum(radius_shift(quadratic, radius), floor)
        step = damped_solution(found, params, shift, found.r)
        promised = decrease(quadratic, -quadratic.slopes / (quadratic.values + shift))
        length = norm(step)
        if geodesic:
            step = accelerated(model, params, batches, found, shift, step)
        net = add(params, 1, step)
        new = residuals(model, net, batches)
        # The difference of squares, without cancellation.
        actual = 0.5 * jnp.sum((found.r - new) * (found.r + new))
        gain = actual / jnp.where(promised > 0, promised, 1)
        return Trial(net, loss_of(new), gain, length, shift)

    return lax.map(one, radii)


# --- 4. how far to go ----------------------------------------------------------------


def radii_around(radius, dtype):
    """Radii to be tried, ascending."""
    return (radius * np.geomspace(1 / _WIDEST, _WIDEST, _RADII)).astype(dtype)


def choose(trials, loss, radius):
    """Number of the trial to take, or None, and the next radius.

    The longest step that does what it promised; else the best, and a smaller radius;
    else none, and one that is much smaller.
    """
    gain, losses = np.asarray(trials.gain), np.asarray(trials.loss)
    trusted = np.flatnonzero((gain >= _TRUSTED) & (losses < loss))
    if len(trusted):
        best = trusted[-1]
        return best, float(trials.length[best])
    best = np.argmin(np.where(np.isfinite(losses), losses, np.inf))
    if losses[best] < loss:
        return best, _SHRINK * radius
    return None, _COLLAPSE * radius


def init(points, net, options):
    """Loss of the start."""
    net = jax.device_put(net)
    loss = total_loss(options.model, net, points.batches)
    return State(net, float(loss), points.batches)


@partial(jax.jit, static_argnames="model")
def total_loss(model, net, batches):
    """Half the sum of squares of all residuals."""
    return loss_of(residuals(model, net, batches))


@partial(jax.jit, static_argnames="model")
def class_losses(model, net, batches):
    """The same, class by class."""
    return [
        loss_of(residuals(model._replace(classes=(known,)), net, (batch,)))
        for known, batch in zip(model.classes, batches, strict=True)
    ]


def prepare(points, options):
    """Put points on the device."""
    del options
    return jax.device_put(points)


def renewed(state, options):
    """New points every few iterations; the radius stays."""
    every = int(options.renewal)
    if not every or state.iteration == 0 or state.iteration % every:
        return state
    batches = options.sampler.draw(state.iteration // every, state.net)
    batches = jax.device_put(batches)
    loss = total_loss(options.model, state.net, batches)
    return state._replace(batches=batches, loss=float(loss))


def step(points, state, options):
    """One step of the trust region."""
    state = renewed(state, options)
    model, dtype = options.model, np.asarray(options.tol).dtype
    found = spectrum(model, state.net, state.batches)
    radius = state.radius
    if math.isnan(radius):
        radius = float(norm(state.net))
    trials = try_radii(
        model,
        state.net,
        state.batches,
        found,
        radii_around(radius, dtype),
        options.geodesic,
    )
    best, radius = choose(trials, state.loss, radius)
    return finish(points, state._replace(radius=radius), options, found, trials, best)


def finish(points, state, options, found, trials, best):
    """State and report after the trials."""
    stop = None
    loss, waited = state.loss, state.waited
    trial = None
    if best is not None:
        trial = jax.tree.map(lambda leaf: leaf[best], trials)
        fell = state.loss - float(trial.loss) > float(options.tol) * state.loss
        waited = 0 if fell else waited + 1
        loss = float(trial.loss)
        state = state._replace(net=trial.net)
    elif state.radius < _SMALLEST_RADIUS * float(norm(state.net)):
        stop = "line_search"
    state = state._replace(
        loss=loss,
        waited=waited,
        iteration=state.iteration + 1,
        spectrum=np.asarray(found.values)[::-1],
    )
    extra = dict(log_columns(points, state, options))
    report = Report(
        loss=loss,
        grad_norm=float(norm(transposed(found.parts, found.r, state.net))),
        step_size=float(trial.length) if trial else 0.0,
        damping=float(trial.shift) if trial else math.nan,
        gain_ratio=float(trial.gain) if trial else math.nan,
        stop=stop,
        extra=extra,
    )
    return state, report


def log_columns(points, state, options):
    """The loss on fresh points, and the losses of the classes."""
    del points
    losses = class_losses(options.model, state.net, state.batches)
    for known, value in zip(options.model.classes, losses, strict=True):
        yield f"loss_{known.residual.name}", float(value)


DNGD = Solver("dngd", init, step, prepare=prepare)
