r"""Whether equation, conditions and observations determine a solution, and have one.

A change of the weights along v changes the outputs at some points by ``T v`` and the
residuals by ``J v``. A solution is determined where no change of the outputs leaves the
residuals as they are. The largest one for residuals of length one is the largest
eigenvalue of ``T (J^T J)^-1 T^T``, which is small compared with the number of weights.

The rank is looked at where it is in question: an equation with k derivatives along an
axis needs k conditions at the ends of that axis. Fewer do where the equation is not
elliptic, such as one of transport at its outflow, and then the rank is full.
"""

import math

import numpy as np

from sklearn_gn._caller import warn_user
from sklearn_gn.arrays import backend
from sklearn_gn.linalg.factors import factor
from sklearn_gn.linalg.jacobian import Parameters
from sklearn_gn.pde.conditions import Dirichlet, Initial, Neumann, Points, Robin
from sklearn_gn.pde.given_values import N_POINTS, ROUNDING, carried_kinks
from sklearn_gn.pde.jumps import MOST_AXES
from sklearn_gn.pde.reading import (
    PlaneWaves,
    derivatives,
    residuals_of_waves,
    slopes_of_equation,
)
from sklearn_gn.pinn.model import MOST_WEIGHTS
from sklearn_gn.pinn.observation_weight import is_noise
from sklearn_gn.pinn.pieces import sums_over_pieces
from sklearn_gn.pinn.windows import Pieces

VANISHED = 1e-2  # a positive coefficient, relative to its start
_FREE, _SURELY_FREE = 200.0, 1e4  # changes that residuals do not see
IN_SPITE_OF_IT = "error_estimate_ says how accurate the solution is nevertheless."


def unidentified(solver, run):
    """What equation, conditions and observations leave open; "" if nothing is known."""
    model, net, problem, *_ = solver._fitted
    untrained_loss = solver._untrained_loss
    if isinstance(net, Pieces):  # windows of time go on from an initial condition
        return ""
    missing = missing_conditions(model)
    forgotten = forgotten_conditions(model, missing)
    if forgotten:
        return f"The solution is not determined. {_all_missing(forgotten)}"
    free = free_constants(run.val_loss, net, problem, untrained_loss)
    if free:
        free = ", ".join(f"the output {name!r}" for name in free)
        place = problem.domain.bounds.mean(axis=1).round(6).tolist()
        return (
            f"Any constant may be added to {free}: no residual changes. State "
            f"a value somewhere, such as Condition(lambda u, x: u(x), on=[{place}]), "
            "or name the output in up_to_constant of the problem if the constant does "
            "not matter."
        )
    small = len(missing) and problem.domain.dim <= MOST_AXES
    if not small or solver._sizes[0] > MOST_WEIGHTS:
        return ""
    with backend.scope(solver.dtype, solver.device):
        points = run.final_state.batches, run.data.fresh
        change = largest_free_change(model, net, *points, untrained_loss)
    second = model.classes[0].rows is not None  # the count of conditions is reliable
    is_free = change > (_FREE if second else _SURELY_FREE)
    return _open_by_conditions(missing, change) if is_free else ""


def _open_by_conditions(missing, change):
    """What conditions leave open, that allow for a large change of the solution."""
    too_few = {
        axis: (order, ends)
        for axis, (order, ends) in missing.items()
        if order is None or len(ends) < order
    }
    as_many_as_needed = (
        "The conditions are as many as the derivatives, but there may be further "
        "solutions, such as one with a thin layer at an end. Compare a fit with "
        "another random_state, solve a shorter part of the axis, or add what is known "
        "of the solution, such as a derivative that vanishes far away."
    )
    return (
        "The conditions do not determine the solution: a change as large as the "
        f"solution itself changes the residuals by only {1 / change:.1g} of those of "
        f"an untrained network. {_all_missing(too_few) or as_many_as_needed}"
    )


def _all_missing(missing):
    said = ""
    for axis, (order, ends) in missing.items():
        held = "none holds"
        if ends:
            held = f"{len(ends)} hold{'s' * (len(ends) == 1)} ({', '.join(ends)})"
        if order is None:
            said += f"At the ends of the axis {axis!r}, {held}. "
            continue
        needs = f"{order} derivatives along {axis!r} and needs {order} conditions"
        needs += " at the ends"
        if order == 1:
            needs = f"1 derivative along {axis!r} and needs a condition at an end"
        said += f"The equation has {needs} of this axis; {held}. "
    return said and (
        f"{said}State what is missing, such as Dirichlet, Neumann, or Initial with "
        "its order."
    )


# --- outputs to which something may be added ------------------------------------------


def free_constants(loss_at, net, problem, untrained_loss):
    """Names of outputs to which any constant may be added without changing the loss."""
    loss, found = loss_at(net), []
    for k, name in enumerate(problem.outputs):
        if name in problem.up_to_constant or not math.isfinite(loss):
            continue
        # At least one: beside a solution of zero no change would count.
        own = slice(k, None, len(problem.outputs))  # in each region
        size = max(np.linalg.norm(net.layers[-1][:, own]), 1.0)
        changes = []
        for share in (1, -0.5):
            last = np.array(net.layers[-1])
            last[-1, own] += share * size
            moved = Parameters((*net.layers[:-1], last), net.extra)
            changes.append(abs(loss_at(moved) - loss))
        if max(changes) <= ROUNDING * untrained_loss:
            found.append(name)
    return found


def free_functions_of_time(model, batches):
    """Which outputs (q,) any function of time may be added to, such as a pressure.

    Neither another wave of such an output in time alone, nor another level of a smooth
    one changes the residuals.
    """
    domain, q = model.problem.domain, len(model.problem.outputs)
    if domain.time is None or domain.dim == 1:
        return np.zeros(q, bool)
    # Two pairs of fields for each output.
    vectors = np.tile(np.pi / np.ptp(domain.bounds, axis=1), (q, 2, 2, q, 1))
    vectors, levels = vectors * np.arange(1, 1 + q)[:, None], np.zeros((q, 2, 2, q))
    in_time = np.equal(domain.axes, domain.time)
    for k in range(q):
        vectors[k, 0, :, k] *= in_time * [[1.0], [3.0]]
        levels[k, 1, 1, k] = 1
    one, free = np.ones((4 * q, q)), np.ones(q, bool)
    fields = vectors.reshape(4 * q, q, -1), one, one, levels.reshape(4 * q, q)
    for kind, batch in zip(model.classes, batches, strict=True):
        few = Points(np.asarray(batch.x[:N_POINTS]), np.asarray(batch.data[:N_POINTS]))
        given = model.problem, kind.residual, few, PlaneWaves(*fields)
        found = residuals_of_waves(*given, directions=batch.axes)
        found = found.reshape(len(few.x), q, 2, 2, -1)
        change = np.abs(np.diff(found, axis=3)).max(axis=(0, 2, 3, 4), initial=0)
        free &= change <= ROUNDING * max(np.abs(found).max(initial=0), 1)
    return free


def missing_conditions(model):
    """Axes that may lack conditions: number of derivatives, end of each condition."""
    problem, rows = model.problem, model.classes[0].rows
    second = rows is not None
    if second:  # at most second derivatives
        orders = np.zeros(problem.domain.dim, int)
        orders[list(rows.first)] = 1
        orders[[i for group in rows.second for i, j in group if i == j]] = 2
    else:
        _, orders = factors_of_derivatives(problem)
    both = conditions_at_ends(problem).items()
    ends, found = {name: [end for end, _ in pairs] for name, pairs in both}, {}
    for k, name in enumerate(problem.domain.axes):
        order = None if orders is None else int(orders[k])
        enough = order == 0 or (second and len(ends[name]) >= order)
        if name not in problem.periodic and not enough:
            found[name] = order, ends[name]
    return found


def forgotten_conditions(model, missing):
    """Those of ``missing`` on which the problem certainly has no condition."""
    problem = model.problem
    observed = model.classes[-1].residual.name == "data"
    if observed or problem.transform is not None:
        return {}
    known = {name: entry for name, entry in missing.items() if entry[0] is not None}
    if not problem.conditions:
        return known
    time = problem.domain.time
    if time not in known or known[time][1]:
        return {}
    k = problem.domain.axes.index(time)
    times = [x[:, k] for x in _points_of_conditions(problem).values()]
    least = ROUNDING * np.ptp(problem.domain.bounds[k])
    return {} if any(np.ptp(t) <= least for t in times) else {time: known[time]}


def _points_of_conditions(problem):
    """Points (n, d) of each condition, by its name."""
    points, dim = problem.probes(N_POINTS, np.random.RandomState(0)), problem.domain.dim
    del points["interior"]
    return {name: drawn.x.reshape(-1, dim) for name, drawn in points.items()}


def factors_of_derivatives(problem):
    """Factors (n, d, powers) of the derivatives about a smooth field, highest orders.

    The factors are None where they are not known. The orders (d,) along the axes are
    None too where the equation depends on more than derivatives at its point.
    """
    if problem.residual_classes()[0].n_points > 1 or problem.domain.dim > MOST_AXES:
        return None, None
    points = problem.probes(N_POINTS, np.random.RandomState(0))["interior"].x[:, 0]
    slopes = slopes_of_equation(problem, points, np.ones(len(problem.outputs)))
    every = derivatives(problem.domain.dim)
    if not np.isfinite(slopes).all():
        return None, None
    highest = len(every[-1])
    along = [
        [every.index((k,) * power) for power in range(highest + 1)]
        for k in range(problem.domain.dim)
    ]
    factors = np.swapaxes(slopes, 2, 3)[..., along].reshape(-1, len(along), highest + 1)
    seen = np.any(factors != 0, axis=0)
    orders = np.max(seen * np.arange(highest + 1), axis=1)
    return factors, None if seen[:, -1].any() else orders


def conditions_at_ends(problem):
    """Names of the ends of each axis at which conditions hold, each with its values.

    What compares two ends has half of its values at each, and a single point has none.
    """
    axes, bounds = problem.domain.axes, problem.domain.bounds
    (_, *kinds), ends = problem.residual_classes(), {name: [] for name in axes}
    for kind, x in zip(kinds, _points_of_conditions(problem).values(), strict=True):
        n_values = kind.n_outputs / kind.condition.n_fields
        for k, name in enumerate(axes):
            there = np.abs(x[:, [k]] - bounds[k]) <= ROUNDING * np.ptp(bounds[k])
            for held, word in zip(there.T, ("min", "max"), strict=True):
                if held.any():
                    covers = len(axes) == 1 or np.ptp(x[held], axis=0).any()
                    ends[name].append((f"{name}={word}", n_values * covers))
    return ends


def too_many_conditions(problem):
    """What to do about an equation, not solved, with too many conditions."""
    if found := _too_many_on_a_face(problem):
        return found
    _, *conditions = problem.residual_classes()
    names = ", ".join(repr(kind.name) for kind in conditions)
    for axis, (n_given, n_needed) in numbers_of_conditions(problem).items():
        if n_given > n_needed and not problem.unknown:
            where = "" if problem.domain.dim == 1 else f" at the ends of {axis!r}"
            return (
                f"The conditions give {n_given:g} values{where} ({names}), and the "
                f"derivatives of the equation need at most {n_needed}: if they "
                "contradict one another, there is no solution. Leave out what is not "
                "needed, or make a coefficient Unknown that a further condition "
                "determines."
            )
    return ""


def warn_of_redundant_derivatives(problem):
    """Warn of derivatives at the start of time that the equation gives by itself."""
    domain, (_, *kinds) = problem.domain, problem.residual_classes()
    orders = [kind.condition.order for kind in kinds]
    _, along = factors_of_derivatives(problem)
    if along is None or domain.time is None:
        return
    highest = int(along[domain.axes.index(domain.time)])
    for order, kind in zip(orders, kinds, strict=True):
        if order >= max(highest, 1):
            plural = "s" * (highest != 1)
            warn_user(
                f"{kind.name}: order={order} is not needed. The equation has {highest} "
                f"derivative{plural} along {domain.time!r} and gives that of order "
                f"{order} at the start by itself: with another value there is no "
                "solution. Leave this condition out."
            )


def numbers_of_conditions(problem):
    """Values that are given along each axis, and those that the equation needs.

    Those at its ends; all, of an ordinary differential equation. Empty if not known.
    """
    _, orders = factors_of_derivatives(problem)
    if orders is None:
        return {}
    if problem.domain.dim == 1:
        (_, *kinds), every = problem.residual_classes(), _points_of_conditions(problem)
        both = zip(kinds, every.values(), strict=True)
        values = [
            k.n_outputs / k.condition.n_fields * len(np.unique(x)) for k, x in both
        ]
        given = [sum(values)]
    else:
        both = conditions_at_ends(problem).values()
        given = [sum(n_values for _, n_values in ends) for ends in both]
    needed = (problem.n_network_outputs * orders).tolist()  # of each region
    pairs = zip(given, needed, strict=True)
    return dict(zip(problem.domain.axes, pairs, strict=True))


def largest_free_change(model, net, batches, fresh, untrained_loss):
    """Largest change that the residuals do not see, relative to the solution."""
    from sklearn_gn.pinn.solution import output_slopes

    both = (sums_over_pieces(model, net, p, batches)[0] for p in (batches, fresh))
    gramian = sum(both, np.float64(0))
    x = fresh[0].x[:N_POINTS, 0]
    both = backend.to_numpy(output_slopes(model, net, x))
    values, slopes = (np.array(a, np.float64) for a in both)
    free = np.isin(model.problem.outputs, model.problem.up_to_constant)
    for a in (values, slopes):
        a[:, free] -= a[:, free].mean(axis=0)
    slopes = slopes.reshape(-1, len(gramian))
    floor = len(gramian) * np.finfo(net.extra.dtype).eps * gramian.diagonal().max()
    seen = factor(gramian, floor).whiten(slopes.T)
    units = (model.problem.scale or 1.0) * np.ones(values.shape)
    size, unit = np.sum(values**2), np.sum(units**2)
    # Changes cannot be relative to a solution that is zero.
    is_zero = size <= ROUNDING**2 * unit
    square = np.linalg.norm(seen, 2) ** 2 / (unit if is_zero else size)
    return math.sqrt(square * 2 * untrained_loss)


# --- what keeps a network from solving a statement ------------------------------------
#
# To be asked of fits that end unsolved: each of these may be meant, and do no harm.


def fault_of_statement(solver, stuck):
    """What in the problem of an unsolved fit is at fault; "" if that is not known."""
    problem = solver.problem_
    found = (_contradicted_observations(solver) if stuck else "") or (
        too_many_conditions(problem)
    )
    if not (found or "loss_data" in solver.convergence_log_):
        found = growing_waves(problem)
    axis, places = ("", []) if found else carried_kinks(problem)
    if places:
        where = ", ".join(f"{place:.4g}" for place in places)
        return (
            f"The initial values have a kink at {axis} = {where}, which a smooth "
            "network follows slowly, all the more where waves carry it through the "
            "domain: more time gains little. If it is not meant, make the values "
            f"smooth. {IN_SPITE_OF_IT}"
        )
    return found or (_integral_over_time(problem) if stuck else "")


def _contradicted_observations(solver):
    """Observations that equation and conditions miss by as much as they vary."""
    spread = solver._target_spread
    if spread is None or not np.isfinite(solver.noise_std_).all():
        return ""
    largest, missed = float(np.max(spread)), float(np.max(solver.noise_std_))
    if is_noise(missed**2, largest**2):
        return ""
    return (
        "Observations and problem contradict one another: the solution misses the "
        f"observations by {missed:.3g} (root mean square), and their "
        f"standard deviation is {largest:.3g}. Check that X and y have the units of "
        "the domain, the equation and the given values, and that the columns of X are "
        f"{solver.problem_.domain.axes}; then the signs and the known coefficients of "
        "the equation."
    )


def vanished_coefficients(solver):
    """What to say of positive coefficients that went to zero, where y is given."""
    if "loss_data" not in solver.convergence_log_:
        return ""
    found = [
        name
        for name, known in solver._fitted.model.problem.unknown.items()
        if known.positive
        and np.any(solver.coefficients_[name] < VANISHED * np.asarray(known.initial))
        and np.any(solver.coefficients_std_[name] > solver.coefficients_[name])
    ]
    if not found:
        return ""
    return (
        f"The positive coefficients {found} have fallen from their start to nearly "
        "zero, where the solution no longer depends on them: either they are zero, or "
        "the fit is in a minimum of its own, and the other coefficients and all "
        "standard deviations are wrong. Fit again with another random_state and other "
        "starts, Unknown(initial, positive=True), and take the fit of the smallest "
        "noise_std_."
    )


def _too_many_on_a_face(problem):
    """Conditions of value and slope together on one face in space."""
    domain, orders = problem.domain, None
    if domain.dim > 1 and not (problem.unknown or problem.depends_on):
        _, orders = factors_of_derivatives(problem)
    if orders is None or max(orders) > 2:
        return ""
    n_outputs, (_, *kinds) = len(problem.outputs), problem.residual_classes()
    for face in domain._faces_of_space():
        given = [
            kind
            for kind in kinds
            if isinstance(kind.condition, (Dirichlet, Neumann, Robin))
            and face in kind.condition.faces(domain)
        ]
        n_values = sum(kind.n_outputs for kind in given)
        if n_values > n_outputs:
            names = ", ".join(repr(kind.name) for kind in given)
            outputs = "one output" if n_outputs == 1 else f"{n_outputs} outputs"
            return (
                f"The conditions {names} give {n_values} values on the face "
                f"{face!r} for {outputs}, and an equation with second derivatives "
                "takes one for each: if they contradict one another, there is no "
                "solution. Leave out what is not needed, or give each a part of the "
                "boundary by `on`."
            )
    return ""


def _integral_over_time(problem):
    """An integral, which keeps the time of an evolution in one piece."""
    domain = problem.domain
    given = any(isinstance(condition, Initial) for condition in problem.conditions)
    if domain.axes != (domain.time,) or problem.unknown or not given:
        return ""
    factors, orders = factors_of_derivatives(problem)
    if factors is None or orders is not None:
        return ""  # it depends on derivatives at a point alone
    t = domain.time
    return (
        "An equation with an integral is not divided into windows of time, which lead "
        "along a solution that changes fast. If the integral is from the start to "
        f"{t}, state it as an output of its own: outputs=('u', 'v'), the further "
        f"equation d(u['v'], {t!r})({t}) - u['u']({t}), and the initial value 0 of 'v'."
    )


# --- equations that are followed in the wrong direction of time -----------------------
#
# Along waves of space ``exp(i k x)``, an equation ``a u_t + b u_xx + ...`` changes the
# solution by ``exp(b k**2 / a * t)``: short waves decay where a and b have opposite
# signs, and grow without bound where they have the same one. Conditions at the last
# time exchange the two. ``a u_tt + b u_xx`` lets waves pass where the signs are
# opposite, and else they grow in both directions.


def growing_waves(problem):
    """What to say of an equation along which short waves grow; "" if none do."""
    domain = problem.domain
    single = len(problem.outputs) == problem.residual_classes()[0].n_outputs == 1
    fixed = problem.transform or problem.periodic or problem.unknown
    plain = single and not fixed and problem.n_laplacian_directions is None
    if domain.time is None or domain.dim == 1 or not plain:
        return ""
    ends = [end for end, _ in conditions_at_ends(problem)[domain.time]]
    factors, orders = factors_of_derivatives(problem)
    if len(set(ends)) != 1 or orders is None:
        return ""
    of_time = domain.axes.index(domain.time)
    order, along = orders[of_time], np.delete(np.arange(domain.dim), of_time)
    if order not in (1, 2) or len(ends) != order or max(orders[along]) != 2:
        return ""
    sign = 1 if order == 2 or ends[0].endswith("=min") else -1
    for k in along:
        product = sign * factors[:, of_time, order] * factors[:, k, 2]
        if product.min() <= ROUNDING * np.abs(factors).max() ** 2:
            continue
        first, x = ", ".join([repr(domain.time)] * order), repr(domain.axes[k])
        in_time, in_space = f"d(u, {first})", f"d(u, {x}, {x})"
        if sign < 0:
            return (
                f"The solution is given at {ends[0]}, but the signs of {in_time} and "
                f"{in_space} are those of diffusion, which runs forwards from "
                f"{domain.time}=min: backwards short waves grow without bound, and "
                "there is a solution for special values only. State Initial values, or "
                "check the signs."
            )
        kind, law, factor = (
            ("diffusion backwards in time", "diffusion", "k"),
            ("a potential that is given on one side only", "a wave", "c**2"),
        )[order - 1]
        return (
            f"Short waves grow without bound from {ends[0]} on: {in_time} and "
            f"{in_space} have the same sign, which is {kind}. There is a solution for "
            "special values only, and small errors spoil it. Check the signs of the "
            "residual; "
            f"that of {law} is {in_time}(x) - {factor} * {in_space}(x)."
        )
    return ""
