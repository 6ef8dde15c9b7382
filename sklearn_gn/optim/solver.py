"""The contract of the algorithms.

An algorithm is a pair of functions

    state = init(rows, net, options)
    state, report = step(rows, state, options)

``net`` are the parameters to start from; shallow networks come as a stack of all
starts. ``state`` is a NamedTuple of arrays and plain numbers with at least the field
``net``, the current parameters; it is all that a checkpoint has to store. ``report`` is
a :class:`Report` of plain Python values. The loop around ``step`` belongs to the
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

    def every(self, k):
        """Return every k-th row, with weights of sum one, and their share of these."""
        if k == 1:
            return self, 1.0
        x, y, weight = (array[::k] for array in self)
        share = weight.sum()
        return self._replace(x=x, y=y, weight=weight / share), share


class RowsToDivide(Rows):
    """Rows in the memory of the host that a fit divides among devices."""

    mesh: Any = None  # of the devices


class Continued(NamedTuple):
    """A start that goes on with the best network of those before it."""

    net: Any = None  # None until it begins


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
    """A named pair of ``init`` and ``step``."""

    name: str  # short form of the solver
    init: Callable
    step: Callable
    n_spare: int = 0  # neurons kept in the arrays for solvers that add some on the way
    # What ``init`` and ``step`` get in place of the rows, such as copies on the device
    # or Gram matrices; made once, and again where a checkpoint is resumed.
    prepare: Callable = lambda rows, options: rows
    # Of solvers that do not evaluate every iterate on all rows: the last network and
    # its loss, or None where the last report has them.
    evaluate_last: Callable | None = None
    compiled: bool = True  # whether JAX compiles its functions; else it is not loaded


def has_mini_batches(solver):
    """Whether a solver takes small batches, each of them once an epoch."""
    return not hasattr(solver, "iterations_per_batch")
