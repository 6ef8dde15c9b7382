r"""D-NGD: dual natural gradient descent for physics-informed networks.

The method of Jnini and Vella. Residuals r(theta) in R^m of a network with n parameters,
n mostly larger than m, are brought to zero by Levenberg-Marquardt steps,

    v = argmin 1/2 |r + J v|^2 + lambda/2 |v - mu v_before|^2,

which are solved for in the smaller of two spaces:

1.  the Jacobian in factors; its Gramian, ``K = J J^T`` (dual) or ``J^T J`` (primal);
2.  the step, ``v = -J^T (K + lambda I)^-1 r``, by an eigendecomposition, a Cholesky
    factor, or conjugate gradients with a Nystrom preconditioner;
3.  geodesic acceleration: with ``f_vv`` the second derivative of r along v, half of
    ``a = -J^T (K + lambda I)^-1 f_vv`` is added where a is short beside v;
4.  how far to go: a trust region, of which many radii are tried with one factor, each
    with its own acceleration; or a rule for lambda with a search along the step, as in
    the paper.

The step is never recovered as ``-(J^T y + g) / lambda``, which cancels. With momentum
mu this is SPRING (Goldshlager, Abrahamsen and Lin), where r becomes r + mu J v_before.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from sklearn_gn.core.globalisation import search_damping
from sklearn_gn.core.linear_algebra import jacobian as operators
from sklearn_gn.core.linear_algebra.damping import Nielsen
from sklearn_gn.core.linear_algebra.krylov import conjugate_gradient
from sklearn_gn.core.linear_algebra.nystrom import nystrom, preconditioner
from sklearn_gn.core.linear_algebra.trees import add, dimension, norm
from sklearn_gn.core.linear_algebra.trust_region import SpectralModel, radius_shift
from sklearn_gn.core.solver import Algorithm
from sklearn_gn.pinn.fit import begin, ended, prepare, renewed
from sklearn_gn.pinn.residuals import (
    class_losses,
    jacobian,
    residuals,
    second_derivative,
    weighted,
)

_N_RADII, _WIDEST = 12, 4.0  # radii from a quarter of the last one to four times it
_N_SHIFTS, _SHIFT_RATIO = 5, 8.0  # shifts where every one needs a factor of its own
_TRUSTED = 0.1  # gain ratio of a step that is taken at once
_SHORT = 0.75  # acceleration, as 2 |a| / |v|, that is used
_SHRINK, _COLLAPSE = 0.5, 0.125
_HALVINGS = 31  # step sizes 1, 1/2, 1/4, ... of the line search
_RISES = 3  # of them in a row, after which no lower loss is expected
_LOSS_BOUND = 1e-5  # of the damping that follows the loss
_SPECTRAL = 3000  # unknowns up to which a Gramian is diagonalised
_DENSE = 10_000  # unknowns up to which it is formed
_RANK = 1000  # of the preconditioner, unless given
_CG_TOL, _CG_ITERATIONS = 1e-10, 500
_RETRIES = 20  # of a factorisation that fails, each with four times the shift
_SMALLEST_STEP = 1e-12  # relative to the network


# --- 1. the Jacobian and its Gramian -------------------------------------------------


class Linear(NamedTuple):
    """The residuals to first order, and what a correction to the step is to remove."""

    r: jnp.ndarray  # (m,)
    parts: Any  # J
    row_scale: Any  # (m,) of Jacobi scaling, or None
    offset: Any  # mu v_before, or None

    @property
    def target(self):
        """``r + mu J v_before``."""
        if self.offset is None:
            return self.r
        return self.r + operators.forward(self.parts, self.offset)


@partial(jax.jit, static_argnames="model")
def factors(model, net, batches, balance):
    """Weighted batches, residuals, and the factors of their Jacobian.

    Compiled apart from what uses it: products that read the factors many times over
    would otherwise compute them again each time.
    """
    batches = weighted(batches, balance)
    return batches, *jacobian(model, net, batches)


def linearise(r, parts, before, *, momentum, jacobi):
    """Residuals and Jacobian at the network, and where the step starts."""
    row_scale = None
    if jacobi:  # the Gramian then has a diagonal of ones
        square = operators.row_squares(parts)
        row_scale = 1 / jnp.sqrt(jnp.where(square > 0, square, 1))
    offset = jax.tree.map(lambda v: momentum * v, before) if momentum else None
    return Linear(r, parts, row_scale, offset)


def is_dual(r, net):
    """Whether there are fewer residuals than parameters."""
    return r.shape[0] < dimension(net)


def scaled(linear, y):
    """Rows times their scale."""
    return y if linear.row_scale is None else linear.row_scale * y


def small_gramian(linear, net):
    """``K`` of shape (m, m) or ``J^T J`` of shape (n, n), whichever is smaller."""
    if is_dual(linear.r, net):
        matrix = operators.gramian(linear.parts)
        if linear.row_scale is None:
            return matrix
        return linear.row_scale[:, None] * matrix * linear.row_scale[None]
    return operators.normal_matrix(linear.parts, linear.row_scale)


@partial(jax.jit, static_argnames="model")
def gramian_eigenvalues(model, net, batches):
    """Eigenvalues of the smaller Gramian, descending."""
    r, parts = jacobian(model, net, batches)
    matrix = small_gramian(Linear(r, parts, None, None), net)
    return jnp.maximum(jnp.linalg.eigvalsh(matrix)[::-1], 0)


# --- 2. the damped step --------------------------------------------------------------
#
# Each of the following returns solve(shift, right): the correction v that minimises
# |right + J v|^2 + shift |v|^2, rows scaled, with the number of inner iterations.


def by_eigenvectors(linear, net, values, vectors):
    """Any number of shifts for one eigendecomposition."""

    def solve(shift, right):
        def inverse(b):
            return vectors @ ((vectors.T @ b) / (values + shift))

        return refined(linear, net, inverse, shift, right), 1

    return solve


def pull_back(linear, net, y):
    """``-J^T y``, with the rows scaled."""
    step = operators.transposed(linear.parts, scaled(linear, y), net)
    return jax.tree.map(jnp.negative, step)


def push(linear, v):
    """``J v``, with the rows scaled."""
    return scaled(linear, operators.forward(linear.parts, v))


def refined(linear, net, inverse, shift, right):
    """The correction from the inverse of the shifted Gramian, and a step of refinement.

    The refinement is through J itself: the Gramian knows its small eigenvalues only to
    rounding of the largest.
    """
    b = scaled(linear, right)
    if is_dual(linear.r, net):
        y = inverse(b)
        rest = b + push(linear, pull_back(linear, net, y)) - shift * y
        return pull_back(linear, net, y + inverse(rest))
    gradient, unravel = ravel_pytree(pull_back(linear, net, b))
    flat = inverse(gradient)
    back, _ = ravel_pytree(pull_back(linear, net, push(linear, unravel(flat))))
    return unravel(flat + inverse(gradient + back - shift * flat))


def by_cholesky(linear, net, matrix):
    """A factor for every shift."""
    eye = jnp.eye(matrix.shape[0], dtype=matrix.dtype)

    def solve(shift, right):
        factor = lax.linalg.cholesky(matrix + shift * eye, symmetrize_input=False)

        def inverse(b):
            half = lax.linalg.triangular_solve(
                factor, b[:, None], left_side=True, lower=True
            )
            return lax.linalg.triangular_solve(
                factor, half, left_side=True, lower=True, transpose_a=True
            )[:, 0]

        return refined(linear, net, inverse, shift, right), 1

    return solve


def by_conjugate_gradients(linear, net, rank):
    """No Gramian; preconditioned by its Nystrom approximation of some rank."""

    def product(y):
        return -push(linear, pull_back(linear, net, y))

    m = linear.r.shape[0]
    # Evenly spread over the rows, so that every residual class has its part.
    chosen = np.linspace(0, m - 1, min(rank, m)).astype(np.int32)
    columns = operators.columns(linear.parts, chosen, linear.row_scale)
    found = nystrom(columns, chosen)

    def solve(shift, right):
        y, count, _ = conjugate_gradient(
            lambda y: product(y) + shift * y,
            scaled(linear, right),
            precondition=preconditioner(found, shift),
            tol=_CG_TOL,
            max_iter=_CG_ITERATIONS,
        )
        return pull_back(linear, net, y), count

    return solve, found.values


def solution(linear, net, rank):
    """How to solve, eigenvalues that are known, and a shift at rounding level."""
    eps = jnp.finfo(linear.r.dtype).eps
    smaller = min(linear.r.shape[0], dimension(net))
    if rank is not None or smaller > _DENSE:
        solve, values = by_conjugate_gradients(linear, net, rank or _RANK)
        return solve, values, eps * values[-1]
    matrix = small_gramian(linear, net)
    return by_cholesky(linear, net, matrix), None, eps * jnp.max(matrix.diagonal())


# --- 3. its acceleration -------------------------------------------------------------


class Trial(NamedTuple):
    """A step that is tried."""

    step: Any
    loss: jnp.ndarray
    losses: jnp.ndarray  # (n_classes,)
    actual: jnp.ndarray  # decrease of the loss
    predicted: jnp.ndarray  # that of the linearised residuals
    gain: jnp.ndarray  # actual over predicted
    length: jnp.ndarray  # of the step without acceleration
    shift: jnp.ndarray
    inner: jnp.ndarray
    trusted: jnp.ndarray


def damped_step(model, net, batches, linear, solve, shift, geodesic):
    """The step and, where wanted and short, half its geodesic acceleration."""
    correction, inner = solve(shift, linear.target)
    step = correction if linear.offset is None else add(correction, 1, linear.offset)
    image = operators.forward(linear.parts, step)
    promised = -jnp.sum(image * (linear.r + image / 2))
    length = norm(correction)
    if geodesic:
        bent = second_derivative(model, net, batches, step)
        bend, more = solve(shift, bent)
        short = 2 * norm(bend) <= _SHORT * norm(step)
        step = jax.tree.map(lambda v, a: jnp.where(short, v + a / 2, v), step, bend)
        inner = inner + more
    return step, promised, length, jnp.int32(inner)


def tried(model, net, batches, linear, found, shift):
    """What a step does."""
    step, promised, length, inner = found
    new = residuals(model, add(net, 1, step), batches)
    # The difference of squares, without cancellation.
    actual = 0.5 * jnp.sum((linear.r - new) * (linear.r + new))
    gain = actual / jnp.where(promised > 0, promised, 1)
    losses = class_losses(model, batches, new)
    trusted = (gain >= _TRUSTED) & (actual > 0)
    return Trial(
        step=step,
        loss=jnp.sum(losses),
        losses=losses,
        actual=actual,
        predicted=promised,
        gain=gain,
        length=length,
        shift=shift,
        inner=inner,
        trusted=trusted,
    )


def staying(model, net, batches, linear):
    """The step of length zero."""
    losses = class_losses(model, batches, linear.r)
    zero = jnp.zeros_like(linear.r[0])
    still = jax.tree.map(jnp.zeros_like, net)
    count, no = jnp.int32(0), jnp.array(False)
    loss = jnp.sum(losses)
    return Trial(still, loss, losses, zero, zero, zero, zero, zero, count, no)


# --- 4. how far to go ----------------------------------------------------------------


def longest_trusted(attempt, scales, still):
    """The longest step that does what it promised, searched for from the middle.

    ``scales`` go from the shortest to the longest step. From the middle on longer ones
    are tried while they keep their promise, or shorter ones until one does. Where none
    does, it is the one with the least loss; else the step of length zero.
    """
    scales = jnp.asarray(scales)
    n = scales.shape[0]

    def unfinished(carry):
        k, _, alive, *_ = carry
        return alive & (k >= 0) & (k < n)

    def go_on(carry):
        k, direction, _, best, inner = carry
        new = attempt(scales[k])
        take = new.trusted | (~best.trusted & (new.loss < best.loss))
        best = jax.tree.map(lambda a, b: jnp.where(take, a, b), new, best)
        turn = jnp.where(new.trusted, jnp.int32(1), jnp.int32(-1))
        direction = jnp.where(direction == 0, turn, direction)
        alive = new.trusted == (direction > 0)
        return k + direction, direction, alive, best, inner + new.inner

    zero = jnp.int32(0)
    start = jnp.int32(n // 2), zero, jnp.array(True), still, zero
    *_, best, inner = lax.while_loop(unfinished, go_on, start)
    return best._replace(inner=inner)


class Outcome(NamedTuple):
    """What a compiled step returns."""

    net: Any
    trial: Trial
    moved: jnp.ndarray  # whether the loss fell
    memory: Any
    values: Any  # eigenvalues of the Gramian, ascending, or None
    slope: jnp.ndarray  # norm of the gradient
    promise: jnp.ndarray  # relative decrease along it, to first order in r
    length: jnp.ndarray  # of what was added to the network
    size: jnp.ndarray  # norm of the network


_COMPILED = ("model", "geodesic", "momentum", "jacobi", "rank")


def outcome(net, linear, trial, memory, values, base):
    """Take the trial if it lowers the loss."""
    moved = trial.loss < base
    step = jax.tree.map(lambda v: jnp.where(moved, v, jnp.zeros_like(v)), trial.step)
    trial = trial._replace(step=step)
    gradient = operators.transposed(linear.parts, linear.r, net)
    slope = norm(gradient)
    bend = jnp.sum(operators.forward(linear.parts, gradient) ** 2)
    promise = slope**4 / jnp.where(bend > 0, bend * jnp.sum(linear.r**2), 1)
    new, length = add(net, 1, step), norm(step)
    return Outcome(new, trial, moved, memory, values, slope, promise, length, norm(new))


@partial(jax.jit, static_argnames=_COMPILED)
def trust_region(model, net, here, before, memory, *, geodesic, momentum, jacobi, rank):
    """One step of the trust region; ``memory`` is the radius, or the shift."""
    batches, r, parts = here
    linear = linearise(r, parts, before, momentum=momentum, jacobi=jacobi)
    still = staying(model, net, batches, linear)
    smaller = min(linear.r.shape[0], dimension(net))
    spectral = rank is None and smaller <= _SPECTRAL
    if spectral:
        vectors, values = lax.linalg.eigh(
            small_gramian(linear, net), symmetrize_input=False
        )
        # Directions at rounding level would dominate without damping.
        floor = jnp.finfo(values.dtype).eps * values[-1]
        values = jnp.maximum(values, floor)
        solve = by_eigenvectors(linear, net, values, vectors)
        quadratic = quadratic_model(linear, net, values, vectors)
        scales = np.geomspace(1 / _WIDEST, _WIDEST, _N_RADII)
    else:
        solve, values, _ = solution(linear, net, rank)
        middle = (_N_SHIFTS - 1) / 2
        scales = _SHIFT_RATIO ** (middle - np.arange(_N_SHIFTS))

    def attempt(scale):
        shift = scale * memory
        if spectral:
            shift = jnp.maximum(radius_shift(quadratic, shift), floor)
        found = damped_step(model, net, batches, linear, solve, shift, geodesic)
        return tried(model, net, batches, linear, found, shift)

    best = longest_trusted(attempt, scales.astype(linear.r.dtype), still)
    lower = best.loss < still.loss
    if spectral:
        shorter = jnp.where(lower, _SHRINK, _COLLAPSE) * memory
        memory = jnp.where(best.trusted, best.length, shorter)
    else:
        longer = jnp.where(lower, best.shift, memory * _SHIFT_RATIO**3)
        memory = jnp.where(best.trusted, best.shift, longer)
    return outcome(net, linear, best, memory, values, still.loss)


def quadratic_model(linear, net, values, vectors):
    """The model of the loss in the eigenvectors of ``J^T J``."""
    target = scaled(linear, linear.target)
    if is_dual(linear.r, net):
        slopes = jnp.sqrt(values) * (vectors.T @ target)
    else:
        flat, _ = ravel_pytree(pull_back(linear, net, target))
        slopes = vectors.T @ flat
    return SpectralModel(values, slopes, vectors)


@partial(jax.jit, static_argnames=_COMPILED)
def line_search(model, net, here, before, memory, *, geodesic, momentum, jacobi, rank):
    """A step of given damping, and the best of many lengths along it.

    ``memory`` is the shift, negative where it follows the loss. The paper tries all
    lengths; here the rest is left out once the loss has risen some times in a row.
    """
    batches, r, parts = here
    linear = linearise(r, parts, before, momentum=momentum, jacobi=jacobi)
    still = staying(model, net, batches, linear)
    shift = jnp.where(memory < 0, jnp.minimum(still.loss, -memory), memory)
    solve, values, floor = solution(linear, net, rank)

    def attempt(shift):
        return damped_step(model, net, batches, linear, solve, shift, geodesic)

    found, shift = retried(attempt, shift, floor)
    step, promised, length, inner = found

    def shortened(size):
        part = jax.tree.map(lambda v: size * v, step)
        return tried(model, net, batches, linear, (part, promised, length, inner), size)

    def unfinished(carry):
        k, _, rises = carry
        return (k < _HALVINGS) & (rises < _RISES)

    def look(carry):
        k, best, rises = carry
        new = shortened(jnp.exp2(-k.astype(linear.r.dtype)))
        lower, found = new.loss < best.loss, best.loss < still.loss
        rises = jnp.where(found & ~lower, rises + 1, 0)
        best = jax.tree.map(lambda a, b: jnp.where(lower, a, b), new, best)
        return k + 1, best, rises

    zero = jnp.int32(0)
    _, best, _ = lax.while_loop(unfinished, look, (zero, still, zero))
    best = best._replace(shift=shift, inner=inner)
    return outcome(net, linear, best, memory, values, still.loss)


def retried(attempt, shift, floor):
    """The step, with a larger shift where the factorisation fails."""

    def failed(carry):
        count, _, found = carry
        return ~jnp.isfinite(found[1]) & (count < _RETRIES)

    def again(carry):
        count, shift, _ = carry
        shift = 4 * jnp.maximum(shift, floor)
        return count + 1, shift, attempt(shift)

    start = jnp.int32(0), shift, attempt(shift)
    _, shift, found = lax.while_loop(failed, again, start)
    return found, shift


@partial(jax.jit, static_argnames=_COMPILED)
def gain_ratio(model, net, here, before, memory, *, geodesic, momentum, jacobi, rank):
    """One trial, whose gain ratio decides on the next shift, after Nielsen."""
    batches, r, parts = here
    linear = linearise(r, parts, before, momentum=momentum, jacobi=jacobi)
    still = staying(model, net, batches, linear)
    solve, values, _ = solution(linear, net, rank)

    def attempt(shift):
        found = damped_step(model, net, batches, linear, solve, shift, geodesic)
        trial = tried(model, net, batches, linear, found, shift)
        return trial, trial.actual, trial.predicted

    found = search_damping(attempt, still, memory, max_trials=1)
    trial = found.candidate
    return outcome(net, linear, trial, found.damping, values, still.loss)


# --- the solver ----------------------------------------------------------------------


def init(points, net, options):
    """The state at the start."""
    return begin(points, net, options, first_memory(options, net))


_start_radius = jax.jit(norm)


def first_memory(options, net):
    """Radius or shift of the first step."""
    dtype = options.tol.dtype.type
    if options.damping == "loss":
        return dtype(-_LOSS_BOUND)
    if options.damping == "fixed":
        return dtype(options.shift)
    if options.damping == "gain_ratio":
        return Nielsen.start(np.asarray(1e-3, dtype))
    return np.asarray(_start_radius(net))


_RULES = {
    "trust_region": trust_region,
    "gain_ratio": gain_ratio,
    "loss": line_search,
    "fixed": line_search,
}


def step(points, state, options):
    """One Levenberg-Marquardt step."""
    state = renewed(points, state, options)
    if 0 < options.n_single == state.iteration:
        # Rounding in single precision has nothing to say about it.
        state = state._replace(memory=first_memory(options, state.net))
    model = options.models[state.stage]
    dtype = np.float32 if state.iteration < options.n_single else options.tol.dtype
    before = state.before
    if options.momentum and before is None:
        before = jax.tree.map(np.zeros_like, state.net)
    net, batches, balance, before, memory = _cast(
        (state.net, state.batches, state.balance, before, state.memory), dtype
    )
    found = _RULES[options.damping](
        model,
        net,
        factors(model, net, batches, balance),
        before,
        memory,
        geodesic=options.geodesic,
        momentum=options.momentum,
        jacobi=options.jacobi,
        rank=options.rank,
    )
    found = _cast(found, options.tol.dtype)
    losses = np.asarray(found.trial.losses) / state.balance
    values = found.values
    state = state._replace(
        net=found.net,
        memory=found.memory,
        before=found.trial.step if options.momentum else None,
        spectrum=None if values is None else np.asarray(values)[::-1],
    )
    return ended(
        points,
        state,
        options,
        losses,
        slope=float(found.slope),
        length=float(found.length),
        size=float(found.size),
        shift=float(found.trial.shift),
        gain=float(found.trial.gain),
        inner=int(found.trial.inner),
        stuck=stuck(state, options, found),
    )


def _cast(tree, dtype):
    """Floating-point arrays in another precision."""

    def convert(leaf):
        floating = jnp.issubdtype(jnp.result_type(leaf), np.floating)
        return leaf.astype(dtype) if floating else leaf

    return jax.tree.map(convert, tree)


def stuck(state, options, found):
    """Why no further step is to be expected on these points, or None."""
    if found.moved:
        return None
    if found.promise <= np.finfo(options.tol.dtype).eps:
        return "rounding"
    spectral = options.damping == "trust_region" and state.spectrum is not None
    if spectral and state.memory < _SMALLEST_STEP * found.size:
        return "line_search"
    return None


DNGD = Algorithm("dngd", init, step, prepare=prepare)
