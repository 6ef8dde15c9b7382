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


class Report(NamedTuple):
    """One iteration as the log shows it."""

    loss: float
    grad_norm: float
    step_size: float = float("nan")
    damping: float = float("nan")
    gain_ratio: float = float("nan")
    inner_iterations: int = 1
    accepted: bool = True  # False: nothing changed, a trial was turned down
    stop: str | None = None  # "tol", "rounding", "line_search", "singular", ...
    extra: dict | None = None  # further columns of the log; "judged": is loss new?


@dataclass(frozen=True)
class Algorithm:
    """A named pair of ``init`` and ``step``.

    ``prepare`` makes from the rows, once and with the same options, what ``init`` and
    ``step`` get in their place: copies on the device, Gram matrices, coordinates. It is
    made again when a checkpoint is resumed. ``n_spare`` neurons beyond those of the
    network are kept in the arrays for solvers that add neurons on the way. A solver
    that runs its starts ``side_by_side`` gets all of them as one stack in ``init``.
    One that does not judge every iterate has ``look(rows, state, options)``: the last
    network and its loss, or None where the last report has them.
    """

    name: str
    init: Callable
    step: Callable
    n_spare: int = 0
    side_by_side: bool = False
    prepare: Callable = lambda rows, options: rows
    look: Callable = lambda rows, state, options: None
