r"""What is stated, and whether it determines a solution, and has one.

A problem is read once, at points of its own, by whoever asks: units, known functions
and findings. :class:`Reading` knows what the residuals of a class are for plane waves,
which derivatives the equation depends on, and what conditions give at ends of axes.

A change of the weights along v changes the outputs at some points by ``T v`` and the
residuals by ``J v``. A solution is determined where no change of the outputs leaves the
residuals as they are. The largest one for residuals of length one is the largest
eigenvalue of ``T (J^T J)^-1 T^T``, which is small compared with the number of weights.

The rank is looked at where it is in question: an equation with k derivatives along an
axis needs k conditions at the ends of that axis. Fewer do where the equation is not
elliptic, such as one of transport at its outflow, and then the rank is full.
"""

import math
from functools import cached_property, lru_cache

import numpy as np

from sklearn_gn._caller import warn_user
from sklearn_gn.arrays import backend
from sklearn_gn.linalg.factors import Factor, joined_triangles
from sklearn_gn.pde.conditions import Dirichlet, Initial, Neumann, Points, Robin
from sklearn_gn.pde.domains import AT_ONCE
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
from sklearn_gn.pinn.pieces import factor_over_pieces
from sklearn_gn.pinn.windows import Pieces

VANISHED = 1e-2  # a positive coefficient, relative to its start
_FREE, _SURELY_FREE = 200.0, 1e4  # changes that residuals do not see
LARGEST_ERROR = 1e-2  # relative, beyond which a solution is not known
IN_SPITE_OF_IT = "error_estimate_ says how accurate the solution is nevertheless."


class Reading:
    """The residual classes of a problem, points of each, and what they show."""

    def __init__(self, problem):
        self.problem, rng = problem, np.random.RandomState(0)
        self.interior, *self.conditions = problem.residual_classes()
        n = max(4, min(N_POINTS, AT_ONCE // problem.domain.dim))
        self.drawn = problem.probes(n, rng)
        self.x = self.drawn["interior"].x[:, 0]
        # Values that each condition gives at a place.
        both = ((kind, kind.condition.n_fields) for kind in self.conditions)
        self.n_values = {kind.name: kind.n_outputs / n for kind, n in both}
        # Axes from which Laplacians are estimated.
        self.directions = problem._draw_directions(rng)
        # Two slow waves (2, d): terms of one may cancel, as in resonance.
        slow = np.pi / np.ptp(problem.domain.bounds, axis=1)
        self.slow = slow / [np.ones(len(slow)), np.arange(2, 2 + len(slow))]

    def residuals(self, kind, waves, unknown=None):
        """Residuals (n, m, k) of a class for plane waves as fields."""
        given = self.problem, kind, self.drawn[kind.name], waves, unknown
        return residuals_of_waves(*given, self.directions)

    @cached_property
    def factors(self):
        """Factors (n, m, d, powers) of the derivatives along axes; None: not known.

        They are those about a smooth field, at points (n,), of each output in each
        residual (m,).
        """
        dim, q = self.problem.domain.dim, len(self.problem.outputs)
        if self.interior.n_points > 1 or dim > MOST_AXES:
            return None
        slopes = slopes_of_equation(self.problem, self.x, np.ones(q))
        if not np.isfinite(slopes).all():
            return None
        every = derivatives(dim)
        powers = range(1 + len(every[-1]))
        along = [[every.index((k,) * power) for power in powers] for k in range(dim)]
        factors = np.swapaxes(slopes, 2, 3)[..., along]
        return factors.reshape(len(slopes), -1, dim, len(powers))

    @cached_property
    def orders(self):
        """Highest derivative (d,) along each axis; None: not known, or not local."""
        if self.factors is None:
            return None
        seen = np.any(self.factors != 0, axis=(0, 1))
        highest = np.max(seen * np.arange(seen.shape[1]), axis=1)
        return None if seen[:, -1].any() else highest

    @cached_property
    def ends(self):
        """Ends of each axis at which conditions hold, by its name, with their values.

        What compares two ends has half of its values at each, and a single point has
        none.
        """
        axes, bounds = self.problem.domain.axes, self.problem.domain.bounds
        ends = {name: [] for name in axes}
        for condition, n_values in self.n_values.items():
            x = self.drawn[condition].x.reshape(-1, len(axes))
            for k, name in enumerate(axes):
                there = np.abs(x[:, [k]] - bounds[k]) <= ROUNDING * np.ptp(bounds[k])
                for held, word in zip(there.T, ("min", "max"), strict=True):
                    if held.any():
                        covers = len(axes) == 1 or np.ptp(x[held], axis=0).any()
                        ends[name].append((f"{name}={word}", n_values * covers))
        return ends

    @property
    def numbers_of_conditions(self):
        """Values that are given along each axis, and those that the equation needs.

        Those at its ends; all, of an ordinary differential equation. Empty if not
        known.
        """
        if self.orders is None:
            return {}
        given = [sum(n for _, n in ends) for ends in self.ends.values()]
        if len(given) == 1:
            every = {name: len(np.unique(own.x)) for name, own in self.drawn.items()}
            given = [sum(n * every[name] for name, n in self.n_values.items())]
        # By the outputs of all regions.
        needed = (self.problem.n_network_outputs * self.orders).tolist()
        both = zip(given, needed, strict=True)
        return dict(zip(self.problem.domain.axes, both, strict=True))


def read(problem):
    """The reading of a problem, as it was stated before it got units and functions."""
    return _reading(getattr(problem, "stated", None) or problem)


_reading = lru_cache(maxsize=4)(Reading)


# --- what is left open ---------------------------------------------------------------


def unidentified(solver, run):
    """What equation, conditions and observations leave open; "" if nothing is known."""
    model, net, problem, *_ = solver._fitted
    if isinstance(net, Pieces):  # windows of time go on from an initial condition
        return ""
    missing = missing_conditions(model)
    if forgotten := forgotten_conditions(model, missing):
        return f"The solution is not determined. {_all_missing(forgotten)}"
    free, _ = free_parts(model, run.final_state.batches)
    free &= ~np.isin(problem.outputs, problem.up_to_constant)
    if free.any():
        names = np.array(problem.outputs)[free].tolist()
        free = ", ".join(f"the output {name!r}" for name in names)
        place = problem.domain.bounds.mean(axis=1).round(6).tolist()
        return (
            f"Any constant may be added to {free}: no residual changes. State "
            f"a value somewhere, such as Condition(lambda u, x: u(x), on=[{place}]), "
            "or name the output in up_to_constant of the problem if the constant does "
            "not matter."
        )
    small = missing and problem.domain.dim <= MOST_AXES
    if not small or solver._sizes[0] > MOST_WEIGHTS:
        return ""
    with backend.scope(solver.dtype, solver.device):
        points = run.final_state.batches, run.data.fresh
        change = largest_free_change(model, net, *points, solver._untrained_loss)
    second = model.classes[0].rows is not None  # the count of conditions is reliable
    if change > (_FREE if second else _SURELY_FREE):
        return _open_by_conditions(missing, change)
    return _left_open_by_observations(solver, _too_few(missing))


def _left_open_by_observations(solver, missing):
    """What to say of missing conditions that observations do not make up for.

    They do where each place of the domain is known better than by observing it once,
    or the variance is a hundredth of the solution's squared range.
    """
    has_functions = hasattr(solver._posterior, "waves")  # which no condition determines
    if not missing or has_functions or not np.isfinite(solver.noise_std_).all():
        return ""
    problem = solver.problem_
    X = problem.domain.sample(N_POINTS, np.random.RandomState(0), "sobol")
    both = solver.predict(X, return_std=True)
    values, std = (a.reshape(len(X), -1) for a in both)
    std[:, np.isin(problem.outputs, problem.up_to_constant)] = 0
    known = np.ravel(solver._for_outputs(solver.noise_std_, 0.0))
    known = np.maximum(known, math.sqrt(LARGEST_ERROR) * np.ptp(values, axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):  # of an output that is zero
        place, output = np.unravel_index(np.argmax(std / known), std.shape)
    if not std[place, output] > known[output]:
        return ""
    where = zip(problem.domain.axes, X[place], strict=True)
    return (
        "The observations do not make up for the missing conditions: the standard "
        f"deviation of {problem.outputs[output]!r} is {std[place, output]:.2g} at "
        f"{', '.join(f'{axis} = {c:.3g}' for axis, c in where)}, and the solution has "
        f"a range of {np.ptp(values[:, output]):.2g}. {_all_missing(missing)}"
    )


def _too_few(missing):
    """Axes whose conditions are fewer than the derivatives, or whose number is open."""
    return {
        axis: (order, ends)
        for axis, (order, ends) in missing.items()
        if order is None or len(ends) < order
    }


def _open_by_conditions(missing, change):
    """What conditions leave open, that allow for a large change of the solution."""
    as_many_as_needed = (
        "The conditions are as many as the derivatives, but there may be further "
        "solutions, such as one with a thin layer at an end. Compare a fit with "
        "another random_state, solve a shorter part of the axis, or add what is known "
        "of the solution, such as a derivative that vanishes far away."
    )
    return (
        "The conditions do not determine the solution: a change as large as the "
        f"solution itself changes the residuals by only {1 / change:.1g} of those of "
        f"an untrained network. {_all_missing(_too_few(missing)) or as_many_as_needed}"
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


def free_parts(model, batches):
    """Whether any constant, and any function of time, may be added to outputs, (2, q).

    Another level of such an output that is a smooth wave, or another wave of it in time
    alone, changes no residual.
    """
    problem, reading = model.problem, read(model.problem)
    domain, q = problem.domain, len(problem.outputs)
    # Two pairs of fields for each output.
    vectors = np.tile(np.pi / np.ptp(domain.bounds, axis=1), (q, 2, 2, q, 1))
    vectors, levels = vectors * np.arange(1, 1 + q)[:, None], np.zeros((q, 2, 2, q))
    in_time = np.equal(domain.axes, domain.time or "")
    for k in range(q):
        levels[k, 0, 1, k] = 1
        vectors[k, 1, :, k] *= in_time * [[1.0], [3.0]]
    sizes = np.tile(problem.scale or 1.0, (4 * q, q))[:, :q]
    levels = np.array(problem.center or 0.0) + sizes * levels.reshape(4 * q, q)
    waves = PlaneWaves(vectors.reshape(4 * q, q, -1), sizes, sizes, levels)
    kinds = reading.interior, *reading.conditions
    found = [reading.residuals(kind, waves) for kind in kinds]
    if model.classes[-1].name == "data":
        own = (np.asarray(a[:N_POINTS]) for a in (batches[-1].x, batches[-1].data))
        given = reading.problem, model.classes[-1], Points(*own), waves
        found.append(residuals_of_waves(*given))
    free = np.ones((2, q), bool)
    free[1] &= in_time.any() and domain.dim > 1
    for r in found:
        r = r.reshape(len(r), q, 2, 2, -1)
        change = np.abs(np.diff(r, axis=3)).max(axis=(0, 3), initial=0)
        size = np.abs(r).max(axis=(0, 1, 2, 3), initial=np.finfo(float).tiny)
        free &= (change <= ROUNDING * size).all(axis=2).T
    return free


# --- conditions and derivatives -------------------------------------------------------


def missing_conditions(model):
    """Axes that may lack conditions: number of derivatives, end of each condition."""
    problem, rows, reading = model.problem, model.classes[0].rows, read(model.problem)
    orders, found = None if rows is not None else reading.orders, {}
    if rows is not None:  # at most second derivatives
        orders = np.zeros(problem.domain.dim, int)
        orders[list(rows.first)] = 1
        orders[[i for group in rows.second for i, j in group if i == j]] = 2
    for k, (name, given) in enumerate(reading.ends.items()):
        order = None if orders is None else int(orders[k])
        enough = order == 0 or (rows is not None and len(given) >= order)
        if name not in problem.periodic and not enough:
            found[name] = order, [end for end, _ in given]
    return found


def forgotten_conditions(model, missing):
    """Those of ``missing`` on which the problem certainly has no condition."""
    problem = model.problem
    observed = model.classes[-1].name == "data"
    if observed or problem.transform is not None:
        return {}
    known = {name: entry for name, entry in missing.items() if entry[0] is not None}
    if not problem.conditions:
        return known
    time, reading = problem.domain.time, read(problem)
    if time not in known or known[time][1]:
        return {}
    k = problem.domain.axes.index(time)
    least = ROUNDING * np.ptp(problem.domain.bounds[k])
    times = [reading.drawn[kind.name].x[..., k] for kind in reading.conditions]
    return {} if any(np.ptp(t) <= least for t in times) else {time: known[time]}


def too_many_conditions(problem):
    """What to do about an equation, not solved, with too many conditions."""
    domain, reading = problem.domain, read(problem)
    if problem.unknown or reading.orders is None:
        return ""
    # Conditions of value and slope together on one face in space.
    given, n_outputs = [], len(problem.outputs)
    is_plain = not problem.depends_on and max(reading.orders) <= 2 and domain.dim > 1
    for face in domain._faces_of_space() if is_plain else ():
        given = [
            kind
            for kind in reading.conditions
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
    names = ", ".join(repr(kind.name) for kind in reading.conditions)
    for axis, (n_given, n_needed) in reading.numbers_of_conditions.items():
        if n_given > n_needed:
            where = "" if domain.dim == 1 else f" at the ends of {axis!r}"
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
    time, reading = problem.domain.time, read(problem)
    if reading.orders is None or time is None:
        return
    highest = int(reading.orders[problem.domain.axes.index(time)])
    for kind in reading.conditions:
        order = kind.condition.order
        if order >= max(highest, 1):
            plural = "s" * (highest != 1)
            warn_user(
                f"{kind.name}: order={order} is not needed. The equation has {highest} "
                f"derivative{plural} along {time!r} and gives that of order {order} at "
                "the start by itself: with another value there is no solution. Leave "
                "this condition out."
            )


def largest_free_change(model, net, batches, fresh, untrained_loss):
    """Largest change that the residuals do not see, relative to the solution."""
    from sklearn_gn.pinn.solution import output_slopes

    roots = [factor_over_pieces(model, net, p, batches) for p in (batches, fresh)]
    n = len(roots[0]) - 1
    root = joined_triangles(*roots)
    x = fresh[0].x[:N_POINTS, 0]
    both = backend.to_numpy(output_slopes(model, net, x))
    values, slopes = (np.array(a, np.float64) for a in both)
    free = np.isin(model.problem.outputs, model.problem.up_to_constant)
    for a in (values, slopes):
        a[:, free] -= a[:, free].mean(axis=0)
    largest = np.linalg.norm(root[:, :n], axis=0).max()
    floor = math.sqrt(n * np.finfo(net.extra.dtype).eps) * largest
    root = joined_triangles(root, floor * np.eye(n, n + 1))[:n, :n]
    seen = Factor(root.T).whiten(slopes.reshape(-1, n).T)
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
    problem, spread, domain = (
        solver.problem_,
        solver._target_spread,
        solver.problem_.domain,
    )
    if stuck and spread is not None and np.isfinite(solver.noise_std_).all():
        largest, missed = float(np.max(spread)), float(np.max(solver.noise_std_))
        if not is_noise(missed**2, largest**2):
            return (
                "Observations and problem contradict one another: the solution misses "
                f"the observations by {missed:.3g} (root mean square), and their "
                f"standard deviation is {largest:.3g}. Check that X and y have the "
                "units of the domain, the equation and the given values, and that the "
                f"columns of X are {domain.axes}; then the signs and the known "
                "coefficients of the equation."
            )
    found = kinks_left_open(problem) or too_many_conditions(problem)
    if not (found or "loss_data" in solver.convergence_log_):
        found = growing_waves(problem)
    if found:
        return found
    axis, places = carried_kinks(problem)
    if places:
        where = ", ".join(f"{place:.4g}" for place in places)
        return (
            f"The initial values have a kink at {axis} = {where}, which a smooth "
            "network follows slowly, all the more where waves carry it through the "
            "domain: more time gains little. If it is not meant, make the values "
            f"smooth. {IN_SPITE_OF_IT}"
        )
    t, reading = domain.time, read(problem)
    given = any(isinstance(condition, Initial) for condition in problem.conditions)
    keeps_one_piece = stuck and domain.axes == (t,) and given and not problem.unknown
    # An integral: it depends on more than derivatives at a point.
    if not keeps_one_piece or reading.factors is None or reading.orders is not None:
        return ""
    return (
        "An equation with an integral is not divided into windows of time, which lead "
        "along a solution that changes fast. If the integral is from the start to "
        f"{t}, state it as an output of its own: outputs=('u', 'v'), the further "
        f"equation d(u['v'], {t!r})({t}) - u['u']({t}), and the initial value 0 of 'v'."
    )


# --- equations whose solutions have kinks or jump ------------------------------------
#
# Without second derivatives nothing decides how the solution goes on where the
# characteristics of a nonlinear equation meet. There a network may follow any of many
# weak solutions, and each of them looks, but for the residuals in a narrow layer, as if
# it were the one that is meant.


def kinks_left_open(problem):
    """What to do about such an equation, which a fit has not solved, or ""."""
    domain, reading, q = problem.domain, read(problem), len(problem.outputs)
    in_time = domain.axes == (domain.time,)  # which is followed from its start
    if in_time or problem.unknown or reading.orders is None or max(reading.orders) != 1:
        return ""
    given = (slopes_of_equation(problem, reading.x, k * np.ones(q)) for k in (1, 2))
    one, other = (slopes[:, :, 1 : 1 + domain.dim] for slopes in given)
    if np.allclose(one, other, rtol=ROUNDING):
        return ""
    return (
        "The equation has no second derivatives, and the factors of the first ones "
        "depend on the solution: where its characteristics meet, the solution has a "
        "kink or jumps, and the equation alone does not say which one is meant, so "
        "that there is no error_estimate_. For the limit of small viscosity state a "
        "viscosity, such as - 0.005 * laplacian(u)(x) after d(u, 't')(x), or a "
        "sequence of problems with smaller and smaller ones. Or end the domain before "
        "the kink."
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
    domain, reading = problem.domain, read(problem)
    single = len(problem.outputs) == reading.interior.n_outputs == 1
    told = problem.transform is None and not problem.unknown
    if domain.time is None or domain.dim == 1 or not (single and told):
        return ""
    ends, orders = [end for end, _ in reading.ends[domain.time]], reading.orders
    if len(set(ends)) != 1 or orders is None:
        return ""
    factors, of_time = reading.factors[:, 0], domain.axes.index(domain.time)
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
