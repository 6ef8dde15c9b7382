"""What an equation, its conditions and observations leave open."""

import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.pinn import determination
from sklearn_gn.pinn.windows import Pieces

_FREE, _SURELY_FREE = 200.0, 1e4  # changes that residuals do not see


def what_is_left_open(solver, run):
    """What equation, conditions and observations leave open; "" if nothing is known."""
    fitted, state = solver._fitted, run.final_state
    untrained_loss = solver._untrained_loss
    model, net, problem = fitted.model, fitted.net, fitted.problem
    if isinstance(net, Pieces):  # windows of time go on from an initial condition
        return ""
    rng = np.random.RandomState(0)
    missing = determination.missing_conditions(model, rng)
    forgotten = determination.forgotten_conditions(model, missing, rng)
    if forgotten:
        return f"The solution is not determined. {_all_missing(forgotten)}"
    free = determination.free_constants(run.val_loss, net, problem, untrained_loss)
    if free:
        place = problem.domain.bounds.mean(axis=1).round(6).tolist()
        return (
            f"Any constant may be added to {_listed(free)}: no residual changes. State "
            f"a value somewhere, such as Condition(lambda u, x: u(x), on=[{place}]), "
            "or name the output in up_to_constant of the problem if the constant does "
            "not matter."
        )
    small = len(missing) and problem.domain.dim <= determination.MOST_AXES
    if not small or solver._sizes[0] > determination.LARGEST_NETWORK:
        return ""
    with backend.scope(solver.dtype, solver.device):
        change = determination.largest_free_change(
            model, net, state.batches, run.data.fresh, untrained_loss
        )
    second = model.classes[0].rows is not None  # the count of conditions is reliable
    if change <= (_FREE if second else _SURELY_FREE):
        return ""
    return _open_by_conditions(missing, change)


def _open_by_conditions(missing, change):
    """What conditions leave open, that allow for a large change of the solution."""
    too_few = {
        axis: (order, ends)
        for axis, (order, ends) in missing.items()
        if order is None or len(ends) < order
    }
    return (
        "The conditions do not determine the solution: a change as large as the "
        f"solution itself changes the residuals by only {1 / change:.1g} of those of "
        f"an untrained network. {_all_missing(too_few) or _AS_MANY_AS_NEEDED}"
    )


_AS_MANY_AS_NEEDED = (
    "The conditions are as many as the derivatives, but there may be further "
    "solutions, such as one with a thin layer at an end. Compare a fit with another "
    "random_state, solve a shorter part of the axis, or add what is known of the "
    "solution, such as a derivative that vanishes far away."
)


def _all_missing(missing):
    if not missing:
        return ""
    found = " ".join(_missing(*entry) for entry in missing.items())
    return (
        f"{found} State what is missing, such as Dirichlet, Neumann, or Initial with "
        "its order."
    )


def _missing(axis, entry):
    order, ends = entry
    held = "none holds"
    if ends:
        held = f"{len(ends)} hold{'s' * (len(ends) == 1)} ({', '.join(ends)})"
    if order is None:
        return f"At the ends of the axis {axis!r}, {held}."
    if order == 1:
        needs = f"1 derivative along {axis!r} and needs a condition at an end"
    else:
        needs = (
            f"{order} derivatives along {axis!r} and needs {order} conditions at the "
            "ends"
        )
    return f"The equation has {needs} of this axis; {held}."


def _listed(names):
    return ", ".join(f"the output {name!r}" for name in names)
