"""The settings of a run, as the compiled functions and the search read them."""

from typing import NamedTuple

import numpy as np

_LARGEST_INT = np.iinfo(np.int32).max
# Of solver objects without such a parameter.
_OTHER_SETTINGS = {
    "relocations": 0,
    "active_tol": 1e-10,
    "rank_tol": 1e-12,
    "learning_rate": 0.01,
}


class FitOptions(NamedTuple):
    """Settings of a run.

    Numbers are traced, so that other values compile nothing. ``damping=None`` selects
    a solver's own rule, which is another compiled function than that of a fixed shift.
    """

    alpha: float  # penalty of the output layer, part of the objective
    damping: float | None  # fixed shift of the Gauss-Newton matrix
    rank: int  # most directions kept in a solve
    rank_tol: float  # least relative singular value kept in a solve
    active_tol: float  # least relative |c_i| of an active neuron
    tol: float  # relative decrease of the loss that ends the descent
    relocations: int  # rounds of the global search
    max_iter: int  # most iterations of the run
    learning_rate: float  # of first-order solvers
    seed: int  # of the random draws of the search
    ends: tuple | None = None  # between which the breakpoints of one feature lie


def solver_setting(solver, name):
    """Return a parameter of a solver object, or what stands for it."""
    return getattr(solver, name, _OTHER_SETTINGS[name])


def fit_options(parameters, solver, rng):
    """Return the settings of a run."""
    cast = np.dtype(parameters.dtype).type
    rank, damping = parameters.rank, parameters.damping
    rank_tol = max(solver_setting(solver, "rank_tol"), np.finfo(cast).eps)
    return FitOptions(
        alpha=cast(0 if parameters.alpha == "auto" else parameters.alpha),
        damping=None if damping is None else cast(damping),
        rank=np.int32(_LARGEST_INT if rank is None else min(rank, _LARGEST_INT)),
        rank_tol=cast(rank_tol),
        active_tol=cast(solver_setting(solver, "active_tol")),
        tol=cast(parameters.tol),
        relocations=np.int32(min(solver_setting(solver, "relocations"), _LARGEST_INT)),
        max_iter=np.int32(min(parameters.max_iter, _LARGEST_INT)),
        learning_rate=cast(solver_setting(solver, "learning_rate")),
        seed=np.int32(rng.randint(_LARGEST_INT)),
    )
