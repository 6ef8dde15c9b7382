r"""D-NGD: dual natural gradient descent for physics-informed networks.

The method of Jnini and Vella. Residuals r(theta) in R^m of a network with n parameters,
n mostly larger than m, are brought to zero by Levenberg-Marquardt steps,

    v = argmin 1/2 |r + J v|^2 + lambda/2 |v|^2.

An iteration is the function :func:`step`:

1.  the collocation points, drawn anew where it is time (``iteration``);
2.  the residuals, and the Jacobian in factors (``residuals``), multiplied out where it
    is small (``pieces``);
3.  the Gramian, ``K = J J^T`` (dual) or ``J^T J`` (primal), whichever is smaller; where
    both are large, or a rank is given, a Nystrom approximation, with which conjugate
    gradients are preconditioned (:func:`quadratic_model`);
4.  the damped step, ``v = -J^T (K + lambda I)^-1 r``, never ``-(J^T y + g) / lambda``,
    which cancels. Half of its geodesic acceleration is added where that is short, and a
    correction by what the linear model has not foreseen where that lowers the loss
    (:func:`trial`): fits of many problems take half as many iterations with it;
5.  how far to go: several radii of a trust region are tried; with a given damping or
    the rule of the paper, a line search (:func:`search_along`);
6.  the network is changed if the loss falls;
7.  the state is updated, and it is decided whether to stop (``iteration``).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays.collectives import all_rows, n_devices, own_rows, total
from sklearn_gn.arrays.libraries import NumPy, in_either_library, library_of, namespace
from sklearn_gn.arrays.trees import add, dimension, norm, select
from sklearn_gn.linalg import jacobian as operators
from sklearn_gn.linalg.factors import factor, spectrum
from sklearn_gn.linalg.krylov import conjugate_gradient
from sklearn_gn.linalg.low_rank import Diagonalised, nystrom, preconditioner
from sklearn_gn.optim.radius_search import Region, Shifts, longest_trusted
from sklearn_gn.optim.solver import Algorithm, Report
from sklearn_gn.pinn import iteration, pieces
from sklearn_gn.pinn.model import cast
from sklearn_gn.pinn.residuals import class_losses, residuals, rows_of_jacobian
from sklearn_gn.pinn.windows import FALL

_LOSS_BOUND = 1e-5  # of the damping that follows the loss
DENSE = 10_000  # unknowns up to which the Gramian is formed
RANK = 1000  # of the preconditioner, unless given
_CG_ITERATIONS = 500
_TRUSTED = 0.1  # gain ratio from which the predicted reduction counts as achieved
_SHORT = 0.75  # acceleration, as 2 |a| / |v|, that is used
_PART = 0.1  # of a step, over which its second difference is taken


def step(points, state, settings):
    """Make one Levenberg-Marquardt step."""
    solver, damping = settings.steps.solver, settings.steps.damping
    # 1. The points.
    state = iteration.with_due_points(points, state, settings)
    region = state.memory
    if region is None or 0 < solver.single_precision_iter == state.iteration:
        # As wide as the network's own length. Rounding in single precision has nothing
        # to say about it.
        squares = sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(state.net))
        region = Region(np.sqrt(squares), np.asarray(np.nan))
    in_double = state.iteration >= solver.single_precision_iter
    precision = settings.dtype if in_double else np.float32
    net, batches, region = cast((state.net, state.batches, region), precision)
    model = settings.models[state.stage]
    # 2 and 3. Residuals, Jacobian and Gramian.
    batches = iteration.on_devices(batches, settings)
    net, batches, quadratic = _linear_system(settings, model, net, batches)
    # 4 and 5. Damped steps, as far as they lower the loss.
    system, losses = (model, net, batches, quadratic), quadratic.losses
    in_region = damping is None and solver.damping_rule == "trust_region"
    shift = region.shift if in_region else damping
    if shift is None:
        shift = min(float(losses.sum()), _LOSS_BOUND)
    geodesic = bool(solver.geodesic_acceleration)
    evaluate = partial(trial, *system, geodesic=geodesic, corrected=in_region)
    shifts = Shifts(evaluate, shift, quadratic.floor, quadratic.largest)
    if in_region:
        best, region = longest_trusted(shifts, region, float(losses.sum()))
    else:
        best = search_along(*system, shifts.trial())
    # 6 and 7. The network, the state and the report.
    step_norm, figures, at_minimum = 0.0, (shifts.shift, 0.0), False
    if best is not None:
        net, step_norm = _moved(net, best.step)
        losses, figures = best.losses, (best.shift, best.gain_ratio)
        # A step with no more damping than rounding hardly lowers the loss.
        left = losses.sum() > FALL * quadratic.losses.sum()
        at_minimum = bool(left and best.shift <= dimension(net) * shifts.floor)
    network_norm = float(norm(net))
    no_progress = None
    if best is None and quadratic.gradient_decrease <= np.finfo(settings.dtype).eps:
        no_progress = "rounding"
    elif best is None and region.radius < np.finfo(settings.dtype).eps * network_norm:
        no_progress = "line_search"
    # Each product of a weight with its slope may be rounded.
    eps = np.finfo(quadratic.r.dtype).eps
    rounding_loss = 0.5 * eps * float(quadratic.floor) * network_norm**2
    net, region = cast((net, region), settings.dtype)
    report = Report(
        float(losses.sum()),
        float(quadratic.gradient_norm),
        float(step_norm),
        *map(float, figures),
        inner_iterations=shifts.inner_iterations,
    )
    summary = iteration.StepSummary(
        report, np.asarray(losses), rounding_loss, at_minimum, no_progress, in_double
    )
    state = state._replace(net=net, memory=region)
    return iteration.finish_iteration(points, state, settings, summary)


def gramian_eigenvalues(settings, net, batches):
    """Eigenvalues of the smaller Gramian, or its approximation, descending."""
    model = settings.models[-1]
    curvature = _linear_system(settings, model, net, batches)[2].curvature
    if isinstance(curvature, Diagonalised):
        return np.asarray(curvature.values)[::-1]
    return spectrum(np.asarray(curvature))


def _linear_system(settings, model, net, batches):
    """Network, points and quadratic model, its Gramian formed where it is small."""
    net, batches, r, parts = pieces.linear_system(model, net, batches)
    is_small = min(len(r), dimension(net)) <= DENSE
    rank = settings.steps.rank or (None if is_small else RANK)
    return net, batches, quadratic_model(model, net, batches, r, parts, rank=rank)


@in_either_library
def _moved(net, step):
    """The network after a step, and the length of the step."""
    return add(net, 1, step), norm(step)


class Quadratic(NamedTuple):
    """The quadratic model of the loss."""

    r: jnp.ndarray  # (m,)
    parts: Any  # J
    curvature: Any  # the smaller Gramian, or eigenpairs of its approximation
    largest: jnp.ndarray  # diagonal element, or curvature along the gradient
    floor: jnp.ndarray  # shift at rounding level
    losses: jnp.ndarray  # (n_classes,)
    gradient: Any  # J^T r
    gradient_norm: jnp.ndarray
    # Relative decrease along the gradient, to first order in r.
    gradient_decrease: jnp.ndarray


class Candidate(NamedTuple):
    """A step with its effect on the loss."""

    step: Any
    losses: jnp.ndarray  # (n_classes,)
    loss: jnp.ndarray
    predicted: jnp.ndarray  # reduction, by the linearised residuals
    gain_ratio: jnp.ndarray  # actual over predicted reduction
    length: jnp.ndarray  # of the step without acceleration
    shift: jnp.ndarray
    inner_iterations: jnp.ndarray  # factors, or iterations of conjugate gradients
    decay: jnp.ndarray  # -d log(length) / d log(shift), between 0 and 1
    trusted: jnp.ndarray  # whether the predicted reduction is achieved


# --- the quadratic model -------------------------------------------------------------


@partial(
    in_either_library,
    rows_out=lambda model, net, batches, r, parts, **options: Quadratic._make(
        (*rows_of_jacobian(model, net, batches), *(False,) * 7)
    ),
    deciding=lambda model, net, batches, r, *rest, **options: r,
    static=("model",),
    largest=2**17,
    medium=2**24,
    counted=lambda model, net, batches, r, parts, **options: (
        net,
        batches,
        r,
        operators.without_dense(parts),
    ),
    static_argnames=("model", "rank"),
)
def quadratic_model(model, net, batches, r, parts, *, rank=None):
    """The Gramian, or an approximation of a rank, and what all steps share."""
    eps = np.finfo(r.dtype).eps
    if rank is not None:
        m, count = r.shape[0], n_devices()
        # Evenly spread over the rows, so that every residual class has its part.
        chosen = np.linspace(0, m - 1, min(-(-rank // count), m)).astype(np.int32)
        columns = all_rows(operators.columns(parts, chosen))
        chosen = (m * np.arange(count, dtype=np.int32)[:, None] + chosen).ravel()
        curvature = nystrom(columns, chosen)
    else:
        dual = n_devices() * r.shape[0] < dimension(net)
        curvature = operators.gramian(parts) if dual else operators.normal_matrix(parts)
    gradient = operators.transposed(parts, r, net)
    gradient_norm = norm(gradient)
    bend, square = total(
        ((operators.forward(parts, gradient) ** 2).sum(), (r**2).sum())
    )
    if rank is not None:  # the curvature along the gradient
        largest = bend / namespace(r).where(gradient_norm > 0, gradient_norm**2, 1)
        floor = eps * largest
    else:
        largest = curvature.diagonal().max()
        floor = eps * curvature.trace()  # it bounds the largest eigenvalue
    product = namespace(r).where(bend > 0, bend * square, 1)
    losses = class_losses(model, batches, r)
    decrease = gradient_norm**4 / product
    given = r, parts, curvature, largest, floor, losses
    return Quadratic(*given, gradient, gradient_norm, decrease)


@partial(
    in_either_library,
    deciding=lambda model, net, batches, quadratic, *rest, **options: (
        quadratic.r,
        quadratic.curvature,
    ),
    static=("model",),
    largest=2**19,
    medium=2**24,
    counted=lambda model, net, batches, quadratic, *rest, **options: (
        net,
        batches,
        quadratic._replace(parts=operators.without_dense(quadratic.parts)),
    ),
    static_argnames=("model", "geodesic", "corrected"),
)
def trial(model, net, batches, quadratic, shift, *, geodesic, corrected=True):
    """The step of a shift and its effect on the loss; NaN where there is no factor.

    The second derivative of its acceleration is a difference of residuals, ``2/h^2
    (r(theta + h v) - r - h J v)``, as in Transtrum and Sethna.
    """
    r, parts, curvature = quadratic.r, quadratic.parts, quadratic.curvature
    library, is_diagonal = library_of(r), isinstance(curvature, Diagonalised)
    residuals_of = pieces.residuals if library is NumPy else residuals
    # Whether the residuals are the unknowns, and not the weights.
    dual = is_diagonal or len(curvature) < dimension(net)
    eps, (flat, unravel) = np.finfo(r.dtype).eps, library.ravel(quadratic.gradient)

    # Of residuals, and of the weights, to the unknowns of the system and back.
    def pulled_back(right):
        if dual:
            return all_rows(right)
        return library.ravel(operators.transposed(parts, right, net))[0]

    def change(unknowns):
        if dual:
            found = operators.transposed(parts, own_rows(unknowns), net)
        else:
            found = unravel(unknowns)
        return library.tree_map(library.xp.negative, found)

    def product(y):
        return shift * y - pulled_back(operators.forward(parts, change(y)))

    right = pulled_back(r) if dual else flat
    if is_diagonal:
        inverse = partial(
            conjugate_gradient,
            product,
            precondition=preconditioner(curvature, shift),
            tol=np.sqrt(eps),
            max_iter=_CG_ITERATIONS,
        )
        unknowns, inner = inverse(right)[:2]
    else:
        solve = factor(curvature, shift).solve
        inverse, unknowns, inner = lambda b: (solve(b), 0), solve(right), 0
        # Where rounding errors of the Gramian are seen, which the Jacobian has not.
        unknowns = library.cond(
            quadratic.floor > np.sqrt(eps) * shift,
            lambda y: y + solve(right - product(y)),
            lambda y: y,
            unknowns,
        )
    step = change(unknowns)
    # Half of minus the derivative of |v|^2 by the shift is v^T (J^T J + shift)^-1 v.
    slope = (unknowns * inverse(unknowns)[0]).sum()
    if dual:
        slope = (unknowns**2).sum() - shift * slope
    length = norm(step)
    decay = shift * slope / library.xp.where(length > 0, length**2, 1)
    image = operators.forward(parts, step)
    predicted = -total((image * (r + image / 2)).sum())
    if geodesic:
        there = residuals_of(model, add(net, _PART, step), batches)
        bend = 2 / _PART**2 * (there - r - _PART * image)
        acceleration, more = inverse(pulled_back(bend))[:2]
        acceleration, inner = change(acceleration), inner + more
        short = 2 * norm(acceleration) <= _SHORT * length
        step = select(short, add(step, 0.5, acceleration), step)

    def evaluated(step):
        new = residuals_of(model, add(net, 1, step), batches)
        losses = class_losses(model, batches, new)
        # The difference of squares, without cancellation.
        actual = 0.5 * total(((r - new) * (r + new)).sum())
        gain_ratio = actual / library.xp.where(predicted > 0, predicted, 1)
        trusted = (gain_ratio >= _TRUSTED) & (actual > 0)
        return new, Candidate(
            *(step, losses, losses.sum(), predicted, gain_ratio, length, shift),
            *(library.xp.int32(inner), decay, trusted),
        )

    new, found = evaluated(step)
    if not (geodesic and corrected):
        return found
    correction = change(inverse(pulled_back(new - (r + image)))[0])
    _, second = evaluated(add(step, 1, correction))
    lower, both = second.loss < found.loss, (found, second)
    return library.cond(lower, lambda x: x[1], lambda x: x[0], both)


def search_along(model, net, batches, quadratic, full):
    """Return the best of many lengths of a step; None if none lowers the loss."""
    before = lowest = float(quadratic.losses.sum())
    best, dtype = None, quadratic.r.dtype
    for k in range(0 if full is None else np.finfo(dtype).nmant):
        size = dtype.type(2.0**-k)
        step = library_of(full.step).tree_map(lambda v, size=size: size * v, full.step)
        losses = iteration.losses_of_classes(model, _moved(net, step)[0], batches)
        if losses.sum() < lowest:
            lowest, gain_ratio = losses.sum(), (before - losses.sum()) / full.predicted
            best = full._replace(step=step, losses=losses, gain_ratio=gain_ratio)
        elif best is not None:
            break
    return best


DNGD = Algorithm("dngd", iteration.initial_state, step, prepare=iteration.prepare)
