"""The contract of the algorithms.

An algorithm is a pair of functions

    state = init(rows, net, options)
    state, report = step(rows, state, options)

``state`` is a NamedTuple of arrays and plain numbers with at least the field ``net``,
the current parameters; it is all that a checkpoint has to store. ``report`` is a
:class:`Report` of plain Python values. The loop around ``step`` belongs to the
estimators, so that the log, callbacks, time budgets and Ctrl-C work alike for every
solver.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Rows(NamedTuple):
    """Weighted rows of a least-squares problem; padding has weight zero."""

    x: Any  # (m, d)
    y: Any  # (m, q) targets, or probabilities of the classes
    weight: Any  # (m,), sum one


class RowsToDivide(Rows):
    """Rows in the memory of the host that a fit divides among devices.

    Attributes
    ----------
    mesh : Mesh or None
        Of the devices.
    """

    mesh = None


class Report(NamedTuple):
    """One iteration as the log shows it, in plain Python values."""

    loss: float
    grad_norm: float
    step_size: float = float("nan")
    damping: float = float("nan")
    gain_ratio: float = float("nan")
    inner_iterations: int = 1
    accepted: bool = True  # if False, the step was rejected and gets no row of the log
    stop: str | None = None  # value of a StopReason; None to go on
    # Further columns of the log. If "evaluated_on_all_rows" is False, this iteration
    # took a batch, and the loss is that of an earlier one.
    extra: dict | None = None


@dataclass(frozen=True)
class Algorithm:
    """A named pair of ``init`` and ``step``.

    Parameters
    ----------
    name : str
        Short form of the solver.
    init, step : callables
        See above.
    n_spare : int, default=0
        Neurons beyond those of the network, kept in the arrays for solvers that add
        neurons on the way.
    side_by_side : bool, default=False
        Whether all starts run at the same time; ``init`` gets them as one stack then.
    prepare : callable, optional
        ``prepare(rows, options)`` returns what ``init`` and ``step`` get in place of
        the rows: copies on the device, Gram matrices, coordinates. It is called once,
        and again where a checkpoint is resumed.
    evaluate_last : callable, optional
        For solvers that do not evaluate every iterate on all rows:
        ``evaluate_last(rows, state, options)`` returns the last network and its loss,
        or None where the last report has them.
    compiled : bool, default=True
        Whether its functions are compiled by JAX. If not, a fit does not load JAX.
    """

    name: str
    init: Callable
    step: Callable
    n_spare: int = 0
    side_by_side: bool = False
    prepare: Callable = lambda rows, options: rows
    evaluate_last: Callable = lambda rows, state, options: None
    compiled: bool = True


def has_mini_batches(solver):
    """Whether a solver takes small batches, each of them once an epoch."""
    return not hasattr(solver, "iterations_per_batch")
