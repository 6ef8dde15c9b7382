r"""One damped Gauss-Newton step, and what it does to the loss.

The step that minimises

    1/2 |r + J v|^2 + lambda/2 |v - mu v_before|^2

is solved for in the smaller of two spaces, through the Gramian ``J J^T`` of the
residuals (dual) or the normal matrix ``J^T J`` of the weights (primal), or by conjugate
gradients on either without forming it. ``r`` has m entries, ``v`` as many as the
network has parameters, n.

The step is never recovered as ``-(J^T y + g) / lambda``, which cancels, but as ``-J^T
(J J^T + lambda I)^-1 r``.

Jacobians on a CPU that are not large are multiplied out, and their linear algebra is
that of NumPy. So are the networks of most (``numpy_residuals``): what remains to be
compiled are the residuals as functions of the network's derivatives at a point, for a
piece of the points (``pieces``).
"""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.arrays.devices import by_rows
from sklearn_gn.arrays.libraries import NumPy, library_of, namespace
from sklearn_gn.arrays.parts import all_rows, n_devices, own_rows, total
from sklearn_gn.arrays.trees import add, dimension, norm
from sklearn_gn.linalg import jacobian as operators
from sklearn_gn.linalg.factors import factor
from sklearn_gn.linalg.krylov import conjugate_gradient
from sklearn_gn.linalg.low_rank import nystrom, preconditioner
from sklearn_gn.pinn import numpy_residuals, pieces
from sklearn_gn.pinn.residuals import (
    class_losses,
    jacobian,
    residual_counts,
    residuals,
    rows_of_jacobian,
    second_derivative,
    with_class_weights,
)

_TRUSTED = 0.1  # gain ratio from which the predicted reduction counts as achieved
_SHORT = 0.75  # acceleration, as 2 |a| / |v|, that is used
_PART = 0.1  # of a step, over which its second difference is taken
DENSE = 10_000  # unknowns up to which the Gramian is formed
RANK = 1000  # of the preconditioner, unless given
_CG_TOL, _CG_ITERATIONS = 1e-10, 500
# Numbers in a Jacobian that is multiplied out. Beyond, the products of several threads
# are worth seconds of compilation.
_SMALL_JACOBIAN = 2**25


# --- the residuals to first order ----------------------------------------------------


class Linearisation(NamedTuple):
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


@partial(
    by_rows,
    compiled=partial(jit_by_size, largest=2**10, medium=2**15, static_argnames="model"),
    rows_out=rows_of_jacobian,
    static=("model",),
)
def weighted_jacobian(model, net, batches, balance):
    """Weighted batches, residuals, and the factors of their Jacobian.

    Compiled apart from what uses it: products that read the factors many times over
    would otherwise compute them again each time.
    """
    batches = with_class_weights(batches, balance)
    return batches, *jacobian(model, net, batches)


def linear_system(model, net, batches, balance):
    """Network, weighted batches, residuals and Jacobian; in NumPy where small."""
    n_residuals = sum(residual_counts(model.classes, batches))
    is_small = n_residuals * dimension(net) <= _SMALL_JACOBIAN
    if not (is_small and pieces.serve(batches)):
        return net, *weighted_jacobian(model, net, batches, balance)
    r, parts = jacobian_in_pieces(model, net, batches, balance)
    net, balance, scales = backend.views((net, balance, [b.scale for b in batches]))
    # The points stay the objects that they are, of which input rows are kept.
    batches = [b._replace(scale=s) for b, s in zip(batches, scales, strict=True)]
    batches = with_class_weights(batches, balance)
    return net, batches, r, operators.multiplied_out(parts)


def jacobian_in_pieces(model, net, batches, balance):
    """``weighted_jacobian`` in NumPy, with one part of a class for each piece."""
    parts = pieces.cut(model.classes, batches)
    found = [jacobian_of_piece(model, net, part, balance) for part in parts]
    r = pieces.joined(model, batches, parts, [r for r, _ in found])
    return r, pieces.joined_jacobians(batches, parts, [parts for _, parts in found])


def jacobian_of_piece(model, net, piece, balance):
    """The same for a single piece, of one part a class."""
    if numpy_residuals.serve(model, piece):
        piece = [batch._replace(scale=np.asarray(batch.scale)) for batch in piece]
        piece = with_class_weights(piece, np.asarray(balance))
        return numpy_residuals.jacobian(model, net, piece)
    return backend.views(weighted_jacobian(model, net, piece, balance)[1:])


def dense_jacobian_of_piece(model, net, piece, balance):
    """Residuals of a piece and all columns of their Jacobian, in NumPy."""
    r, parts = jacobian_of_piece(model, net, piece, balance)
    (part,) = operators.multiplied_out(parts)
    return r, np.hstack([part.dense, part.extra]) if part.extra.size else part.dense


def linearise(r, parts, previous_step, *, momentum, jacobi):
    """The linearisation, with a share of the previous step and the scale of rows."""
    row_scale = None
    if jacobi:
        square = operators.row_squares(parts)
        xp = namespace(r)
        row_scale = 1 / xp.sqrt(xp.where(square > 0, square, 1))
    offset = None
    if momentum:
        offset = library_of(r).tree_map(lambda v: momentum * v, previous_step)
    return Linearisation(r, parts, row_scale, offset)


# --- the Gramian ---------------------------------------------------------------------


def is_dual(r, net):
    """Whether there are fewer residuals than parameters."""
    return n_devices() * r.shape[0] < dimension(net)


def small_gramian(linear, net):
    """``J J^T`` of shape (m, m) or ``J^T J`` of shape (n, n), whichever is smaller."""
    if is_dual(linear.r, net):
        matrix = operators.gramian(linear.parts)
        if linear.row_scale is None:
            return matrix
        scale = all_rows(linear.row_scale)
        return scale[:, None] * matrix * scale[None]
    return operators.normal_matrix(linear.parts, linear.row_scale)


# --- its inverse ---------------------------------------------------------------------
#
# Each of the following returns solve(shift, right): the correction v that minimises
# |right + J v|^2 + shift |v|^2, rows scaled, with the number of inner iterations.


def solver_for(linear, net, rank):
    """Return ``solve``, eigenvalues or None, and a shift at rounding level."""
    eps = jnp.finfo(linear.r.dtype).eps
    if rank is not None or min(n_devices() * linear.r.shape[0], dimension(net)) > DENSE:
        solve, values = by_conjugate_gradients(linear, net, rank or RANK)
        return solve, values, eps * values[-1]
    matrix = small_gramian(linear, net)
    return by_cholesky(linear, net, matrix), None, eps * jnp.max(matrix.diagonal())


def by_cholesky(linear, net, matrix):
    """Solve with a Cholesky factor for every shift."""

    def solve(shift, right):
        return by_factor(linear, net, factor(matrix, shift))(shift, right)

    return solve


def by_factor(linear, net, found, refine=True):
    """Solve with the Factor of the shift, and refine if this is true."""

    def solve(shift, right):
        b = right_hand_side(linear, net, right)
        _, correction = _solve(linear, net, found, shift, b, refine)
        return correction, 1

    return solve


def shifted_solution(linear, net, found, shift, b, refine):
    """The correction v of a shift, and ``v^T (J^T J + shift I)^-1 v``.

    The latter is half of minus the derivative of ``|v|^2`` by the shift.
    """
    unknowns, v = _solve(linear, net, found, shift, b, refine)
    half = found.whiten(unknowns)
    slope = (half**2).sum()
    if is_dual(linear.r, net):
        slope = (unknowns**2).sum() - shift * slope
    return v, slope


def by_conjugate_gradients(linear, net, rank):
    """Solve without a Gramian, preconditioned by its Nystrom approximation."""

    def product(y):
        return -all_rows(_push(linear, _pull_back(linear, net, own_rows(y))))

    m, count = linear.r.shape[0], n_devices()
    # Evenly spread over the rows, so that every residual class has its part.
    chosen = np.linspace(0, m - 1, min(-(-rank // count), m)).astype(np.int32)
    columns = operators.columns(linear.parts, chosen, linear.row_scale)
    chosen = (m * np.arange(count, dtype=np.int32)[:, None] + chosen).ravel()
    approximation = nystrom(all_rows(columns), chosen)

    def solve(shift, right):
        y, count, _ = conjugate_gradient(
            lambda y: product(y) + shift * y,
            all_rows(_scaled(linear, right)),
            precondition=preconditioner(approximation, shift),
            tol=_CG_TOL,
            max_iter=_CG_ITERATIONS,
        )
        return _pull_back(linear, net, own_rows(y)), count

    return solve, approximation.values


def right_hand_side(linear, net, right):
    """What the smaller Gramian is solved for, as a vector."""
    b = _scaled(linear, right)
    if is_dual(linear.r, net):
        return all_rows(b)
    return library_of(b).ravel(_pull_back(linear, net, b))[0]


def _solve(linear, net, found, shift, b, refine):
    """Solution of the smaller system, and the correction v that follows from it.

    Refinement goes through J itself: the Gramian knows its small eigenvalues only to
    rounding of the largest.
    """
    if is_dual(linear.r, net):

        def product(y):
            return -all_rows(_push(linear, _pull_back(linear, net, own_rows(y))))

        y = _linear_solution(found, shift, b, product, refine)
        return y, _pull_back(linear, net, own_rows(y))
    ravel = library_of(b).ravel
    unravel = ravel(net)[1]

    def product(flat):
        back = _pull_back(linear, net, _push(linear, unravel(flat)))
        return -ravel(back)[0]

    flat = _linear_solution(found, shift, b, product, refine)
    return flat, unravel(flat)


def _linear_solution(found, shift, b, product, refine):
    """The solution of ``(A + shift I) y = b``, for ``product(y) = A y``."""

    def refined(y):
        return y + found.solve(b - product(y) - shift * y)

    return library_of(found).cond(refine, refined, lambda y: y, found.solve(b))


def _scaled(linear, y):
    """Rows times their scale."""
    return y if linear.row_scale is None else linear.row_scale * y


def _pull_back(linear, net, y):
    """``-J^T y``, with the rows scaled."""
    step = operators.transposed(linear.parts, _scaled(linear, y), net)
    library = library_of(y)
    return library.tree_map(library.xp.negative, step)


def _push(linear, v):
    """``J v``, with the rows scaled."""
    return _scaled(linear, operators.forward(linear.parts, v))


# --- a step and its acceleration -----------------------------------------------------


class LocalProblem(NamedTuple):
    """What a step is computed from."""

    model: Any
    net: Any
    batches: tuple  # weighted
    linear: Linearisation
    geodesic: bool  # whether steps are accelerated


class DampedStep(NamedTuple):
    """A step before the loss has been evaluated."""

    step: Any
    predicted: jnp.ndarray  # reduction, by the linearised residuals
    length: jnp.ndarray  # of the step without momentum and acceleration
    inner_iterations: jnp.ndarray
    image: jnp.ndarray  # J v for the step without acceleration


class Candidate(NamedTuple):
    """A step with its effect on the loss."""

    step: Any
    loss: jnp.ndarray
    losses: jnp.ndarray  # (n_classes,)
    actual: jnp.ndarray  # reduction of the loss
    predicted: jnp.ndarray  # that of the linearised residuals
    gain_ratio: jnp.ndarray  # actual over predicted
    length: jnp.ndarray
    shift: jnp.ndarray
    inner_iterations: jnp.ndarray
    trusted: jnp.ndarray  # whether the predicted reduction is achieved


def damped_step(local, solve, shift):
    """The step of a shift and, where wanted and short, its acceleration."""
    correction, inner = solve(shift, local.linear.target)
    return accelerated_step(local, solve, shift, correction, inner, by_derivative)


def by_derivative(local, step, image):
    """The second derivative of the residuals along a step."""
    del image
    return second_derivative(local.model, local.net, local.batches, step)


def by_difference(local, step, image):
    """The same by ``2/h^2 (r(theta + h v) - r - h J v)``, of Transtrum and Sethna."""
    there = residuals_of(local, _PART, step)
    return 2 / _PART**2 * (there - local.linear.r - _PART * image)


def residuals_of(local, size, step):
    """The residuals a step of this size away."""
    evaluate = pieces.residuals if library_of(local.linear.r) is NumPy else residuals
    return evaluate(local.model, add(local.net, size, step), local.batches)


def accelerated_step(local, solve, shift, correction, inner, curvature):
    """A step and, where wanted and short, half its geodesic acceleration."""
    linear, library = local.linear, library_of(local.linear.r)
    step = correction if linear.offset is None else add(correction, 1, linear.offset)
    image = operators.forward(linear.parts, step)
    predicted = -total((image * (linear.r + image / 2)).sum())
    length = norm(correction)
    if local.geodesic:
        acceleration, more = solve(shift, curvature(local, step, image))
        short = 2 * norm(acceleration) <= _SHORT * norm(step)
        step = library.tree_map(
            lambda v, a: library.xp.where(short, v + a / 2, v), step, acceleration
        )
        inner = inner + more
    return DampedStep(step, predicted, length, library.xp.int32(inner), image)


def gradient_figures(r, parts, net):
    """Norm of the gradient, and the relative decrease along it, to first order in r."""
    gradient = operators.transposed(parts, r, net)
    gradient_norm = norm(gradient)
    curvature, square = total(
        ((operators.forward(parts, gradient) ** 2).sum(), (r**2).sum())
    )
    product = namespace(r).where(curvature > 0, curvature * square, 1)
    decrease = gradient_norm**4 / product
    return gradient_norm, decrease


def candidate(local, damped, shift):
    """Evaluate the loss after a step."""
    return _evaluated(local, damped, shift, residuals_of(local, 1, damped.step))


def corrected_candidate(local, solve, damped, shift):
    """The same, with the step corrected where that lowers the loss.

    The correction removes what separates the residuals after the step from those that
    the linear model predicts. It takes residuals and a solve, and no factor.
    """
    linear, library = local.linear, library_of(local.linear.r)
    new = residuals_of(local, 1, damped.step)
    first = _evaluated(local, damped, shift, new)
    correction, _ = solve(shift, new - (linear.r + damped.image))
    damped = damped._replace(step=add(damped.step, 1, correction))
    second = candidate(local, damped, shift)
    both, lower = (first, second), second.loss < first.loss
    return library.cond(lower, lambda both: both[1], lambda both: both[0], both)


def _evaluated(local, damped, shift, new):
    """The candidate of a step after which the residuals are ``new``."""
    linear, (step, predicted, length, inner, _) = local.linear, damped
    xp = namespace(linear.r)
    # The difference of squares, without cancellation.
    actual = 0.5 * total(((linear.r - new) * (linear.r + new)).sum())
    gain_ratio = actual / xp.where(predicted > 0, predicted, 1)
    losses = class_losses(local.model, local.batches, new)
    return Candidate(
        step=step,
        loss=losses.sum(),
        losses=losses,
        actual=actual,
        predicted=predicted,
        gain_ratio=gain_ratio,
        length=length,
        shift=shift,
        inner_iterations=inner,
        trusted=(gain_ratio >= _TRUSTED) & (actual > 0),
    )


def no_step(local):
    """The candidate of length zero."""
    library = library_of(local.linear.r)
    losses = class_losses(local.model, local.batches, local.linear.r)
    zero = library.xp.zeros_like(local.linear.r[0])
    step = library.tree_map(library.xp.zeros_like, local.net)
    return Candidate(
        step=step,
        loss=losses.sum(),
        losses=losses,
        actual=zero,
        predicted=zero,
        gain_ratio=zero,
        length=zero,
        shift=zero,
        inner_iterations=library.xp.int32(0),
        trusted=library.xp.bool_(False),
    )
