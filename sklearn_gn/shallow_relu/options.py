"""The settings of a run, as the compiled functions and the search read them."""

from typing import NamedTuple


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
