r"""D-NGD: dual natural gradient descent for physics-informed networks.

The method of Jnini and Vella. Residuals r(theta) in R^m of a network with n parameters,
n mostly larger than m, are brought to zero by Levenberg-Marquardt steps,

    v = argmin 1/2 |r + J v|^2 + lambda/2 |v|^2.

An iteration is the function :func:`step`:

1.  the collocation points, drawn anew where it is time (``iteration``);
2.  the residuals, and the Jacobian in factors (``residuals``), multiplied out where it
    is small (``pieces``);
3.  the Gramian, ``K = J J^T`` (dual) or ``J^T J`` (primal), or its approximation where
    it is large (``damped_step.quadratic_model``);
4.  the damped step, ``v = -J^T (K + lambda I)^-1 r``, and its geodesic acceleration:
    with ``f_vv`` the second derivative of r along v, half of ``a = -J^T (K + lambda
    I)^-1 f_vv`` is added where a is short compared with v (``damped_step.trial``);
5.  how far to go: a trust region, of which several radii are tried; or, with a damping
    that is given or that of the paper, a line search (``damped_step``);
6.  the network is changed if the loss falls;
7.  the state is updated, and it is decided whether to stop (``iteration``).
"""

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays.libraries import in_either_library
from sklearn_gn.arrays.trees import add, dimension, norm
from sklearn_gn.linalg.factors import spectrum
from sklearn_gn.optim.radius_search import Region, longest_trusted
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.pinn import iteration
from sklearn_gn.pinn.damped_step import (
    DENSE,
    RANK,
    quadratic_model,
    search_along,
    shifts_of,
)
from sklearn_gn.pinn.pieces import linear_system

_SMALLEST_STEP = 1e-12  # relative to the network
_LOSS_BOUND = 1e-5  # of the damping that follows the loss


def init(points, net, settings):
    """Return the state at the start."""
    return iteration.initial_state(points, net, settings)


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
    net, batches, balance, region = _cast(
        (state.net, state.batches, state.balance, region),
        settings.dtype if in_double else np.float32,
    )
    model = settings.models[state.stage]
    # 2 and 3. Residuals, Jacobian and Gramian.
    batches = iteration.on_devices(batches, settings)
    net, batches, r, parts = linear_system(model, net, batches, balance)
    rank = _rank(settings, r, net)
    quadratic = quadratic_model(model, net, batches, r, parts, rank=rank)
    # 4 and 5. Damped steps, as far as they lower the loss.
    system = model, net, batches, quadratic
    geodesic = bool(solver.geodesic_acceleration)
    if damping is None and solver.damping_rule == "trust_region":
        shifts = shifts_of(*system, float(region.shift), geodesic=geodesic)
        lowest = float(quadratic.losses.sum())
        best, region = longest_trusted(shifts, region, lowest)
    else:
        if damping is None:
            damping = min(float(quadratic.losses.sum()), _LOSS_BOUND)
        best = search_along(*system, float(damping), geodesic=geodesic)
    # 6 and 7. The network, the state and the report.
    losses, step_norm, figures = quadratic.losses, 0.0, (0.0, 0.0, 0)
    if best is not None:
        net, step_norm = _moved(net, best.step)
        losses = best.losses
        figures = best.shift, best.gain_ratio, best.inner_iterations
    network_norm = float(norm(net))
    no_progress = None
    if best is None and quadratic.gradient_decrease <= np.finfo(settings.dtype).eps:
        no_progress = "rounding"
    elif best is None and region.radius < _SMALLEST_STEP * network_norm:
        no_progress = "line_search"
    net, region = _cast((net, region), settings.dtype)
    summary = iteration.StepSummary(
        np.asarray(losses) / state.balance,
        float(quadratic.gradient_norm),
        float(step_norm),
        network_norm,
        *map(float, figures[:2]),
        inner_iterations=int(figures[2]),
        no_progress=no_progress,
        decisive=in_double,
    )
    state = state._replace(net=net, memory=region)
    return iteration.finish_iteration(points, state, settings, summary)


def gramian_eigenvalues(settings, net, batches):
    """Eigenvalues of the smaller Gramian, or its approximation, descending."""
    model = settings.models[-1]
    balance = np.ones(len(batches), net.extra.dtype)
    net, batches, r, parts = linear_system(model, net, batches, balance)
    rank = _rank(settings, r, net)
    quadratic = quadratic_model(model, net, batches, r, parts, rank=rank)
    if rank is None:
        return spectrum(np.asarray(quadratic.curvature))
    return np.asarray(quadratic.curvature.values)[::-1]


def _rank(settings, r, net):
    """Columns from which the Gramian is approximated; None where it is formed."""
    is_small = min(len(r), dimension(net)) <= DENSE
    return settings.steps.rank or (None if is_small else RANK)


@in_either_library
def _moved(net, step):
    """The network after a step, and the length of the step."""
    return add(net, 1, step), norm(step)


def _cast(tree, dtype):
    """Floating-point arrays in another precision."""

    def convert(leaf):
        floating = jnp.issubdtype(jnp.result_type(leaf), np.floating)
        return leaf.astype(dtype) if floating else leaf

    return jax.tree.map(convert, tree)


DNGD = Algorithm("dngd", init, step, prepare=iteration.prepare)
