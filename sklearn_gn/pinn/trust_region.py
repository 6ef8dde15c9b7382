r"""The trust region of D-NGD, on Cholesky factors.

Of several radii the longest step is taken whose predicted reduction is achieved. The
step of a radius R minimises ``1/2 |r + J v|^2`` subject to ``|v| <= R``: it is the
damped step of the shift lambda for which ``|v(lambda)| = R``. Moré and Sorensen
("Computing a trust region step", SIAM Journal on Scientific and Statistical Computing,
1983) find that shift by Newton's method, with a factorisation for every shift tried.
Here one factorisation suffices for most radii:

- the shift is kept from iteration to iteration, and for the next radius it is moved by
  the derivative of the length;
- a length within ``_TOLERANCE`` of the radius is accepted, since radii are a quarter
  apart. The radius of a candidate is the length that it has.

The loop over radii runs in Python on compiled parts: a factor with its step
(:func:`damped`), and its acceleration with the loss (:func:`accelerated`).
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.core.compilation import jit_by_size
from sklearn_gn.core.devices import by_rows
from sklearn_gn.core.linear_algebra.trees import norm
from sklearn_gn.pinn.damped_step import (
    Candidate,
    Linearisation,
    LocalProblem,
    accelerated_step,
    by_factor,
    candidate,
    gradient_figures,
    linearise,
    no_step,
    shifted_solution,
    small_gramian,
)
from sklearn_gn.pinn.residuals import rows_of_jacobian

_SHORTEST, _LONGEST = 1 / 4, 4.0  # radii tried, relative to the last one
_RATIO = 16 ** (1 / 11)  # of neighbouring radii: there are twelve
_MIDDLE = _SHORTEST * _RATIO**6  # the first one tried
_SHRINK, _COLLAPSE = 0.5, 0.125  # where no step is trusted; where none lowers the loss
_LONGER = 0.5  # gain ratio below which the next radius is hardly ever trusted
_TOLERANCE = 0.2  # of the length of a step versus the radius
_FIRST_TOLERANCE = 0.5  # of the first one of an iteration
_FACTORS = 5  # at most, for one radius
_RETRIES, _RAISE = 10, 16.0  # of a factorisation that fails, with a larger shift
_LARGEST_CHANGE = 100.0  # of the shift from one factor to the next
_LEAST_DECAY = 0.02
_FIRST_SHIFT = 1e-3  # relative to the largest diagonal element of the Gramian


class Region(NamedTuple):
    """What is remembered from one iteration to the next."""

    radius: np.ndarray
    shift: np.ndarray  # expected to lead to the first radius tried; NaN: not known


class Quadratic(NamedTuple):
    """The quadratic model of the loss."""

    linear: Linearisation
    matrix: jnp.ndarray  # the smaller Gramian
    largest: jnp.ndarray  # diagonal element
    floor: jnp.ndarray  # shift at rounding level
    start: Candidate  # the step of length zero
    gradient_norm: jnp.ndarray
    gradient_decrease: jnp.ndarray


class Damped(NamedTuple):
    """The step of a shift, without acceleration."""

    shift: Any
    factor: jnp.ndarray  # lower triangular
    step: Any
    length: jnp.ndarray
    decay: jnp.ndarray  # -d log(length) / d log(shift), between 0 and 1


def first_region(net, dtype):
    """Return the region of the first step, as wide as the network's own length."""
    squares = sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(net))
    return Region(np.asarray(math.sqrt(squares), dtype), np.asarray(np.nan, dtype))


def search(model, net, batches, quadratic, region, *, geodesic):
    """Find the longest step whose predicted reduction is achieved.

    From the middle of the radii on, longer ones are tried while they are trusted and
    the gain ratio, which falls fast with the length, leaves hope for the next one; or
    shorter ones until one is trusted. If none is, the step with the least loss is
    taken, or that of length zero.

    Parameters
    ----------
    model : Model
    net : Parameters
    batches : tuple of Batch
        Weighted.
    quadratic : Quadratic
    region : Region
    geodesic : bool
        Whether steps are accelerated.

    Returns
    -------
    best : Candidate
    region : Region
        Of the next iteration.
    """
    shifts = _Shifts(net, quadratic, float(region.shift))
    radius, best, direction = float(region.radius), quadratic.start, 0
    target, tolerance, next_shift = _MIDDLE * radius, _FIRST_TOLERANCE, math.nan
    widest = _LONGEST * math.sqrt(_RATIO) * radius
    narrowest = _SHORTEST / math.sqrt(_RATIO) * radius
    while narrowest < target < widest:
        found = shifts.step_of_length(target, tolerance)
        if found is None:
            break
        new = accelerated(model, net, batches, quadratic.linear, found, geodesic)
        trusted, length = bool(new.trusted), float(found.length)
        if trusted or (not best.trusted and float(new.loss) < float(best.loss)):
            best, next_shift = new, _moved_shift(found, _MIDDLE * length)
        direction = direction or (1 if trusted else -1)
        interior = length < target / (1 + tolerance)
        at_limit = float(new.gain_ratio) < _LONGER
        if trusted != (direction > 0) or (trusted and (interior or at_limit)):
            break
        # At rounding level a step can stay longer than wanted: the target falls anyway.
        reached = length if direction > 0 else min(length, target)
        target, tolerance = reached * _RATIO**direction, _TOLERANCE
        shifts.aim_at(target, found)
    best = best._replace(inner_iterations=np.int32(shifts.n_factors))
    if best.trusted:
        radius = float(best.length)
    else:
        falls = float(best.loss) < float(quadratic.start.loss)
        radius *= _SHRINK if falls else _COLLAPSE
        next_shift = shifts.shift
    dtype = region.radius.dtype
    return best, Region(np.asarray(radius, dtype), np.asarray(next_shift, dtype))


class _Shifts:
    """Moré and Sorensen's iteration for the shift that belongs to a length."""

    def __init__(self, net, quadratic, shift):
        self.net, self.quadratic = net, quadratic
        self.floor, self.n_factors = float(quadratic.floor), 0
        if not math.isfinite(shift):
            shift = _FIRST_SHIFT * float(quadratic.largest)
        self.shift = max(shift, self.floor)

    def step_of_length(self, length, tolerance):
        """The damped step of about this length; shorter if there is none as long.

        None where the Gramian cannot be factored.
        """
        for _ in range(_FACTORS):
            found = self._damped()
            if found is None:
                return None
            short = float(found.length) < length / (1 + tolerance)
            long = float(found.length) > length * (1 + tolerance)
            if not long and not (short and self.shift > self.floor):
                break
            self.aim_at(length, found)
        return found

    def aim_at(self, length, found):
        """Move the shift towards a length, from that of a step."""
        self.shift = max(_moved_shift(found, length), self.floor)

    def _damped(self):
        """The damped step, of a larger shift where the factorisation fails."""
        matrix = self.quadratic.matrix
        dtype = matrix.dtype.type
        for _ in range(_RETRIES):
            self.n_factors += 1
            found = damped(self.net, self.quadratic.linear, matrix, dtype(self.shift))
            if math.isfinite(float(found.length)):
                return found._replace(shift=dtype(self.shift))
            self.shift = self.floor = _RAISE * self.shift
        return None


def _moved_shift(found, length):
    """The shift expected to lead to another length.

    To the right Newton's method for ``1/|v(lambda)|``, which does not overshoot; to the
    left, where it may leave the positive numbers, for the logarithms.
    """
    shift, size = float(found.shift), float(found.length)
    if not size > 0 or not length > 0:
        return shift
    decay = min(max(float(found.decay), _LEAST_DECAY), 1.0)
    ratio = size / length
    change = 1 + (ratio - 1) / decay if ratio > 1 else ratio ** (1 / decay)
    return shift * min(max(change, 1 / _LARGEST_CHANGE), _LARGEST_CHANGE)


# --- compiled parts ------------------------------------------------------------------


def _rows_of_model(model, net, batches, r, parts, previous_step, **options):
    """Which arrays of the quadratic model have rows: those of the residuals."""
    rows = rows_of_jacobian(model, net, batches, None)[2]
    others = (False,) * (len(Quadratic._fields) - 1)
    return Quadratic(Linearisation(True, rows, True, False), *others)


@partial(
    by_rows,
    compiled=partial(
        jit_by_size,
        largest=2**17,
        medium=2**24,
        static_argnames=("model", "momentum", "jacobi"),
    ),
    rows_out=_rows_of_model,
    static=("model",),
)
def quadratic_model(model, net, batches, r, parts, previous_step, *, momentum, jacobi):
    """The Gramian, and what else the steps of all radii have in common."""
    linear = linearise(r, parts, previous_step, momentum=momentum, jacobi=jacobi)
    matrix = small_gramian(linear, net)
    local = LocalProblem(model, net, batches, linear, geodesic=False)
    # The trace bounds the largest eigenvalue.
    floor = jnp.finfo(matrix.dtype).eps * jnp.trace(matrix)
    largest = jnp.max(matrix.diagonal())
    figures = gradient_figures(r, parts, net)
    return Quadratic(linear, matrix, largest, floor, no_step(local), *figures)


@partial(by_rows, compiled=partial(jit_by_size, largest=2**19, medium=2**24))
def damped(net, linear, matrix, shift):
    """The step of a shift; NaN where the factorisation fails."""
    eye = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    factor = lax.linalg.cholesky(matrix + shift * eye, symmetrize_input=False)
    step, slope = shifted_solution(linear, net, factor, shift)
    length = norm(step)
    square = length**2
    decay = shift * slope / jnp.where(square > 0, square, 1)
    return Damped(shift, factor, step, length, decay)


@partial(
    by_rows,
    compiled=partial(
        jit_by_size, largest=2**19, medium=2**24, static_argnames=("model", "geodesic")
    ),
    static=("model",),
)
def accelerated(model, net, batches, linear, found, geodesic):
    """A step with its acceleration, and its effect on the loss."""
    local = LocalProblem(model, net, batches, linear, geodesic)
    solve = by_factor(linear, net, found.factor)
    step = accelerated_step(local, solve, found.shift, found.step, 1)
    return candidate(local, step, found.shift)
