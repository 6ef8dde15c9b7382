r"""D-NGD: dual natural gradient descent for physics-informed networks.

The method of Jnini and Vella. Residuals r(theta) in R^m of a network with n parameters,
n mostly larger than m, are brought to zero by Levenberg-Marquardt steps,

    v = argmin 1/2 |r + J v|^2 + lambda/2 |v - mu v_before|^2.

An iteration is the function :func:`step`:

1.  the collocation points, drawn anew where it is time (``iteration``);
2.  the residuals, and the Jacobian in factors (``residuals``), multiplied out where it
    is small (``damped_step``); small networks compute in NumPy (``numpy_residuals``);
3.  the Gramian, ``K = J J^T`` (dual) or ``J^T J`` (primal), and the damped step, ``v =
    -J^T (K + lambda I)^-1 r``, by a Cholesky factor, or by conjugate gradients with a
    Nystrom preconditioner (``damped_step``);
4.  the geodesic acceleration: with ``f_vv`` the second derivative of r along v, half of
    ``a = -J^T (K + lambda I)^-1 f_vv`` is added where a is short compared with v
    (``damped_step``); in the trust region f_vv is a difference of residuals;
5.  the damping: a trust region, of which several radii are tried, each with its own
    factor and acceleration, and a correction by the residuals after the step
    (``trust_region``); or a rule for lambda, with a line search as in the paper
    (``damping_rules``);
6.  the network is changed if the loss falls;
7.  the state is updated, and it is decided whether to stop (``iteration``).

With momentum mu this is SPRING (Goldshlager, Abrahamsen and Lin), where r becomes r +
mu J v_before.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays.devices import by_rows, jitted
from sklearn_gn.arrays.libraries import in_either_library
from sklearn_gn.arrays.trees import add, dimension, norm
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.pinn import iteration
from sklearn_gn.pinn.damped_step import (
    DENSE,
    Candidate,
    LocalProblem,
    gradient_figures,
    linear_system,
    linearise,
    no_step,
    weighted_jacobian,
)
from sklearn_gn.pinn.damping_rules import RULES, initial_damping
from sklearn_gn.pinn.iteration import on_devices
from sklearn_gn.pinn.residuals import residual_counts
from sklearn_gn.pinn.trust_region import (
    Region,
    quadratic_model,
    search,
)

_SMALLEST_STEP = 1e-12  # relative to the network


def init(points, net, settings):
    """Return the state at the start."""
    state = iteration.initial_state(points, net, settings)
    return state._replace(memory=_first_memory(settings, net, state.batches))


def step(points, state, settings):
    """Make one Levenberg-Marquardt step."""
    solver = settings.steps.solver
    n_single = solver.single_precision_iter
    # 1. The points.
    state = iteration.with_due_points(points, state, settings)
    if 0 < n_single == state.iteration or state.memory is None:
        # Rounding in single precision has nothing to say about the damping.
        state = state._replace(memory=_first_memory(settings, state.net, state.batches))
    in_double = state.iteration >= n_single
    previous_step = state.previous_step
    if solver.momentum and previous_step is None:
        previous_step = jax.tree.map(np.zeros_like, state.net)
    net, batches, balance, previous_step, memory = _cast(
        (state.net, state.batches, state.balance, previous_step, state.memory),
        settings.dtype if in_double else np.float32,
    )
    model = settings.models[state.stage]
    batches = on_devices(batches, settings)
    # 2 to 6. Residuals and Jacobian; damped steps, as the damping rule tries them, and
    # the change of network.
    options = {
        "geodesic": bool(solver.geodesic_acceleration),
        "momentum": float(solver.momentum),
        "jacobi": bool(solver.jacobi_scaling),
    }
    if isinstance(memory, Region):
        system = linear_system(model, net, batches, balance)
        result = update_in_region(model, *system, previous_step, memory, **options)
    else:
        jacobian = weighted_jacobian(model, net, batches, balance)
        options |= {"rule": _rule(settings), "rank": settings.steps.rank}
        result = update(model, net, jacobian, previous_step, memory, **options)
    # 7. State and report.
    result = _cast(result, settings.dtype)
    best, eigenvalues = result.best_step, result.eigenvalues
    state = state._replace(
        net=result.net,
        memory=result.memory,
        previous_step=best.step if solver.momentum else None,
        spectrum=None if eigenvalues is None else np.asarray(eigenvalues)[::-1],
    )
    summary = iteration.StepSummary(
        class_losses=np.asarray(best.losses) / state.balance,
        gradient_norm=float(result.gradient_norm),
        step_norm=float(result.step_norm),
        network_norm=float(result.network_norm),
        damping=float(best.shift),
        gain_ratio=float(best.gain_ratio),
        inner_iterations=int(best.inner_iterations),
        no_progress=_no_progress(state, settings, result),
        decisive=in_double,
    )
    return iteration.finish_iteration(points, state, settings, summary)


def gramian_eigenvalues(model, net, batches):
    """Eigenvalues of the smaller Gramian, descending; of the functions of a step."""
    balance = np.ones(len(batches), net.extra.dtype)
    net, batches, r, parts = linear_system(model, net, batches, balance)
    quadratic = quadratic_model(
        model, net, batches, r, parts, None, momentum=0.0, jacobi=False
    )
    matrix = np.asarray(quadratic.matrix)
    if not np.isfinite(matrix).all():
        return np.full(len(matrix), np.nan)
    return np.maximum(np.linalg.eigvalsh(matrix)[::-1], 0)


class UpdateResult(NamedTuple):
    """What an update returns."""

    net: Any
    best_step: Candidate
    accepted: jnp.ndarray  # whether the loss fell
    memory: Any
    eigenvalues: Any  # of the Gramian, ascending, or None
    gradient_norm: jnp.ndarray
    # Relative decrease along the gradient, to first order in r.
    gradient_decrease: jnp.ndarray
    step_norm: jnp.ndarray  # of what was added to the network
    network_norm: jnp.ndarray


def update_in_region(
    model, net, batches, r, parts, previous_step, region, *, geodesic, momentum, jacobi
):
    """Change the network by the step that the trust region finds, if the loss falls."""
    quadratic = quadratic_model(
        model, net, batches, r, parts, previous_step, momentum=momentum, jacobi=jacobi
    )
    best, region = search(model, net, batches, quadratic, region, geodesic=geodesic)
    accepted = float(best.loss) < float(quadratic.start.loss)
    if not accepted:
        best = best._replace(step=quadratic.start.step)
    new, step_norm, network_norm = _moved(net, best.step)
    return UpdateResult(
        net=new,
        best_step=best,
        accepted=accepted,
        memory=region,
        eigenvalues=None,
        gradient_norm=quadratic.gradient_norm,
        gradient_decrease=quadratic.gradient_decrease,
        step_norm=step_norm,
        network_norm=network_norm,
    )


@in_either_library
def _moved(net, step):
    """The network after a step, and the lengths of step and network."""
    new = add(net, 1, step)
    return new, norm(step), norm(new)


@partial(
    by_rows,
    compiled=jitted(
        static_argnames=("model", "rule", "rank", "geodesic", "momentum", "jacobi")
    ),
    static=("model",),
)
def update(
    model,
    net,
    jacobian,
    previous_step,
    memory,
    *,
    rule,
    rank,
    geodesic,
    momentum,
    jacobi,
):
    """Change the network by the step that a damping rule finds, if the loss falls."""
    batches, r, parts = jacobian
    linear = linearise(r, parts, previous_step, momentum=momentum, jacobi=jacobi)
    local = LocalProblem(model, net, batches, linear, geodesic)
    # 3 to 5. Damped steps with their acceleration, as the rule tries them.
    best, memory, eigenvalues = RULES[rule](local, memory, rank)
    # 6. The network is changed if the loss falls.
    accepted = best.loss < no_step(local).loss
    taken = jax.tree.map(lambda v: jnp.where(accepted, v, jnp.zeros_like(v)), best.step)
    new = add(net, 1, taken)
    gradient_norm, decrease = gradient_figures(r, parts, net)
    return UpdateResult(
        net=new,
        best_step=best._replace(step=taken),
        accepted=accepted,
        memory=memory,
        eigenvalues=eigenvalues,
        gradient_norm=gradient_norm,
        gradient_decrease=decrease,
        step_norm=norm(taken),
        network_norm=norm(new),
    )


def _rule(settings):
    if settings.steps.damping is not None:
        return "fixed"
    rule = settings.steps.solver.damping_rule
    return "shift_ladder" if rule == "trust_region" else rule


def _first_memory(settings, net, batches):
    """Region or shift of the first step."""
    rule, model = settings.steps.solver.damping_rule, settings.models[0]
    n_residuals = sum(residual_counts(model.classes, batches))
    factored = settings.steps.rank is None and min(n_residuals, dimension(net)) <= DENSE
    if settings.steps.damping is None and rule == "trust_region" and factored:
        squares = sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(net))
        first = np.sqrt(squares), np.nan  # as wide as the network's own length
        return Region(*(np.asarray(value, settings.dtype) for value in first))
    return initial_damping(_rule(settings), settings.steps.damping, settings.dtype)


def _cast(tree, dtype):
    """Floating-point arrays in another precision."""

    def convert(leaf):
        floating = jnp.issubdtype(jnp.result_type(leaf), np.floating)
        return leaf.astype(dtype) if floating else leaf

    return jax.tree.map(convert, tree)


def _no_progress(state, settings, result):
    """Why no further step is to be expected on these points, or None."""
    if result.accepted:
        return None
    if result.gradient_decrease <= np.finfo(settings.dtype).eps:
        return "rounding"
    region = state.memory
    if isinstance(region, Region) and (
        region.radius < _SMALLEST_STEP * result.network_norm
    ):
        return "line_search"
    return None


DNGD = Algorithm("dngd", init, step, prepare=iteration.prepare)
