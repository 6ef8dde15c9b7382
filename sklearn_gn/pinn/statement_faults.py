"""What in the statement of a problem keeps a network from solving it.

To be asked of fits that end unsolved: each of these may be meant, and do no harm.
"""

import numpy as np

from sklearn_gn.pde.conditions import Dirichlet, Initial, Neumann, Robin
from sklearn_gn.pde.initial_breaks import carried_kinks
from sklearn_gn.pinn import determination
from sklearn_gn.pinn.control import VANISHED

_CONTRADICTED = 0.5  # noise, relative to the deviation of the observations
_ABSENT = 1e-9  # size of a derivative's factor, relative to the largest one

IN_SPITE_OF_IT = "error_estimate_ says how accurate the solution is nevertheless."


def fault_of_statement(solver, stuck):
    """What in the problem of an unsolved fit is at fault; "" if that is not known."""
    problem = solver.problem_
    rng = np.random.RandomState(0)
    return (
        (_contradicted_observations(solver) if stuck else "")
        or determination.too_many_conditions(problem, rng)
        or _too_many_on_a_face(problem)
        or ("" if "loss_data" in solver.convergence_log_ else growing_waves(problem))
        or _kinks(problem)
        or (_integral_over_time(problem) if stuck else "")
    )


def _contradicted_observations(solver):
    """Observations that equation and conditions miss by as much as they vary."""
    spread = solver._target_spread
    if spread is None or not np.isfinite(solver.noise_std_):
        return ""
    largest = float(np.max(spread))
    if not solver.noise_std_ > _CONTRADICTED * largest:
        return ""
    return (
        "Observations and problem contradict one another: the solution misses the "
        f"observations by {solver.noise_std_:.3g} (root mean square), and their "
        f"standard deviation is {largest:.3g}. Check that X and y have the units of "
        "the domain, the equation and the given values, and that the columns of X are "
        f"{solver.problem_.domain.axes}; then the signs and the known coefficients of "
        "the equation."
    )


def vanished_coefficients(solver):
    """What to say of positive coefficients that have gone to zero; "" if none have."""
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
    domain, rng = problem.domain, np.random.RandomState(0)
    if domain.dim == 1 or problem.unknown or problem.depends_on:
        return ""
    factors = determination.factors_of_derivatives(problem, rng)
    if factors is None or np.any(factors[..., 3:] != 0):
        return ""
    n_outputs, faces = len(problem.outputs), domain.patches()

    def named(on):
        if isinstance(on, str):
            return faces if on == "boundary" else (on,)
        known = isinstance(on, tuple) and all(isinstance(name, str) for name in on)
        return on if known else ()

    _, *kinds = problem.residual_classes()
    for face in faces:
        given = [
            kind
            for (_, condition), kind in zip(
                problem._named_conditions(), kinds, strict=True
            )
            if isinstance(condition, (Dirichlet, Neumann, Robin))
            and face in named(condition.on)
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
    domain, rng = problem.domain, np.random.RandomState(0)
    given = any(isinstance(condition, Initial) for condition in problem.conditions)
    if domain.axes != (domain.time,) or problem.unknown or not given:
        return ""
    if not determination.has_integral(problem, rng):
        return ""
    t = domain.time
    return (
        "An equation with an integral is not divided into windows of time, which lead "
        "along a solution that changes fast. If the integral is from the start to "
        f"{t}, state it as an output of its own: outputs=('u', 'v'), the further "
        f"equation d(u['v'], {t!r})({t}) - u['u']({t}), and the initial value 0 of 'v'."
    )


def _kinks(problem):
    axis, places = carried_kinks(problem)
    if not places:
        return ""
    where = ", ".join(f"{place:.4g}" for place in places)
    return (
        f"The initial values have a kink at {axis} = {where}, which a smooth network "
        "follows slowly, all the more where waves carry it through the domain: more "
        "time gains little. If it is not meant, make the values smooth. "
        f"{IN_SPITE_OF_IT}"
    )


# --- equations that are followed in the wrong direction of time -----------------------
#
# Along waves of space ``exp(i k x)``, an equation ``a u_t + b u_xx + ...`` changes the
# solution by ``exp(b k**2 / a * t)``: short waves decay where a and b have opposite
# signs, and grow without bound where they have the same one. Conditions at the last
# time exchange the two. ``a u_tt + b u_xx`` lets waves pass where the signs are
# opposite, and else they grow in both directions.


def growing_waves(problem):
    """What to say of an equation along which short waves grow; "" if none do.

    With observations such an equation is an inverse problem, and no mistake.
    """
    domain = problem.domain
    single = len(problem.outputs) == problem.residual_classes()[0].n_outputs == 1
    fixed = problem.transform or problem.periodic or problem.unknown
    plain = single and not fixed and problem.n_laplacian_directions is None
    if domain.time is None or domain.dim == 1 or not plain:
        return ""
    rng = np.random.RandomState(0)
    ends = determination.conditions_at_ends(problem, rng)[domain.time]
    if len(set(ends)) != 1:
        return ""
    factors = determination.factors_of_derivatives(problem, rng)
    axis = None if factors is None else _growing(factors, domain, ends)
    return "" if axis is None else _message(domain, axis, ends)


def _growing(factors, domain, ends):
    """The axis of space along which short waves grow; None if there is none."""
    of_time = domain.axes.index(domain.time)
    orders = determination.highest_orders(factors)
    order = orders[of_time]
    if order not in (1, 2) or len(ends) != order:
        return None
    along = [k for k in range(domain.dim) if k != of_time]
    if max(orders[along]) != 2:
        return None
    forwards = order == 2 or ends[0].endswith("=min")
    for k in along:
        product = factors[:, of_time, order] * factors[:, k, 2]
        product = product if forwards else -product
        if product.min() > _ABSENT * np.abs(factors).max() ** 2:
            return k
    return None


def _message(domain, axis, ends):
    t, x = domain.time, domain.axes[axis]
    order = len(ends)  # of the equation in time
    first = ", ".join([repr(t)] * order)
    pair = f"d(u, {first}) and d(u, {x!r}, {x!r})"
    if ends[0].endswith("=max"):
        return (
            f"The solution is given at {ends[0]}, but the signs of {pair} are those of "
            f"diffusion, which runs forwards from {t}=min: backwards short waves grow "
            "without bound, and there is a solution for special values only. State "
            "Initial values, or check the signs."
        )
    kind, right = {
        1: (
            "diffusion backwards in time",
            f"that of diffusion is d(u, {t!r})(x) - k * d(u, {x!r}, {x!r})(x)",
        ),
        2: (
            "a potential that is given on one side only",
            f"that of a wave is d(u, {t!r}, {t!r})(x) - c**2 * d(u, {x!r}, {x!r})(x)",
        ),
    }[order]
    return (
        f"Short waves grow without bound from {ends[0]} on: {pair} have the same sign, "
        f"which is {kind}. There is a solution for special values only, and small "
        f"errors spoil it. Check the signs of the residual; {right}."
    )
