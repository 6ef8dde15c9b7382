r"""Newton's method for the affine softmax head, to the optimum.

The softmax Gauss-Newton matrix of an affine head is the exact Hessian. In whitened
coordinates (:mod:`sklearn_gn.softmax_head.whitening`) conjugate gradients solve the
Newton system roughly, in single precision; gradient and loss are computed in that of
the fit only at the end, where single precision does not resolve them. At zero all
probabilities are equal, so that the first system is a regression on the classes, which
its diagonal solves.

Where the penalty is chosen, the steps lead from one minimum to the next along a path of
penalties (:mod:`sklearn_gn.softmax_head.penalty`), without the rows of each fold. All
folds share the coordinates.
"""

import math
import sys
import time
from typing import Any, NamedTuple

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn._typing import Array
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.libraries import NumPy, in_either_library
from sklearn_gn.arrays.trees import add
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.softmax_head import penalty
from sklearn_gn.softmax_head.head import (
    AffineHead,
    HeadOptions,
    head_report,
    on_devices,
)
from sklearn_gn.softmax_head.sparse_rows import Combination
from sklearn_gn.softmax_head.whitening import Whitened, whiten

# Slope of a next step, over the loss, where a minimum serves to leave rows out.
_SETTLED = 1e-4


class NewtonState(NamedTuple):
    """Head, gradient, and what the next step is to know."""

    net: AffineHead
    loss: float
    gradient: AffineHead
    grad_max: float  # its largest component, in the features
    criterion: float  # by which the best head is chosen: the loss, where it is resolved
    alpha: float
    lost: float = 0.0  # by rounding in a component of the gradient
    path: tuple = ()  # penalties that were tried, with what was said of them
    slope: float = -math.inf  # expected of the next step; 0: there is no better one
    last_step: AffineHead | None = None
    next_seconds: float = 0.0  # that the next step is expected to take

    @property
    def settled(self):
        """Whether the minimum is near enough to leave rows out."""
        return -self.slope <= _SETTLED * abs(self.loss)


class Search(NamedTuple):
    """A search for the penalty: one head for each fold that has begun."""

    heads: tuple  # of NewtonState
    net: AffineHead  # without the first fold, at the penalty of the last step
    # Minus the log posterior at the end of a penalty, so that what cuts the search
    # short leaves the best head so far.
    criterion: float
    alpha: float
    path: tuple = ()
    likeliest: tuple = ()  # the heads of the best penalty
    next_seconds: float = 0.0

    @property
    def loss(self):
        """The objective of the first fold."""
        return self.heads[0].loss


class NewtonData(NamedTuple):
    """The rows of a fit, on the device, and of a search for the penalty its folds."""

    space: Any  # Whitened or SparseRows
    options: HeadOptions  # with the first penalty
    rough: Any = None  # NewtonData of the same rows in single precision
    lost: float = 0.0  # by rounding in a component of a gradient
    factor: float = 1.0  # that a penalty grows by on these rows
    settled: float = 0.0  # slope of a step, over the loss, that need not be smaller
    folds: tuple = ()  # NewtonData without the rows of each fold
    own: Array | None = None  # numbers of the rows that are left out; None of all
    judges: penalty.Judges | None = None
    n_judged: float = math.nan  # rows that are left out, by their counts
    known: tuple = ()  # (penalty, head, loss) of the last minima on these rows


def prepare(rows, options, axis):
    """Whiten the rows, on the device; NumPy writes into them."""
    placed = on_devices(rows, options)
    z, *others = whiten(placed, options.intercept, axis)
    return left_out(Whitened(z, placed.label, placed.weight, *others), rows, options)


def left_out(space, rows, options):
    """The data of a fit, and without the rows of each fold of a search."""
    data = in_both_precisions(space, options)
    if options.n_effective is None:
        return data
    n, length, weight = int(rows.n_rows), len(rows.weight), rows.weight
    fold = np.pad(penalty.folds_of(rows.label[:n]), (0, length - n), constant_values=-1)
    if fold.max() < 0:
        return data
    # Rough minima are what is compared; steps are not damped.
    rough, folds = data.rough, []
    given = rough.options._replace(damping=0.0)
    for k in range(fold.max() + 1):
        kept = np.where(fold == k, 0, weight)
        share = float(kept.sum())
        part = on_devices((kept / share).astype(np.float32), options)
        without = rough.space._replace(weight=part)
        folds.append(NewtonData(without, given, factor=1 / share, settled=_SETTLED))
    # The rows that are left out, and others, up to one of a few numbers of rows.
    counts = np.where(fold >= 0, weight * options.n_effective, 0).astype(weight.dtype)
    own, numbers = None, [rows.label, counts, fold]
    if options.mesh is None:
        own = np.argsort(fold < 0, kind="stable")
        own = own[: backend.row_bucket(int(np.count_nonzero(fold >= 0)))]
        numbers = [array[own] for array in numbers]
    numbers = on_devices(numbers, options)
    shift = penalty.shifts_of(rows.label[:n], weight[:n], fold[:n]) * options.intercept
    judges = penalty.Judges(*numbers, shift.astype(weight.dtype))
    n_judged = float(counts.sum())
    return data._replace(folds=tuple(folds), own=own, judges=judges, n_judged=n_judged)


def in_both_precisions(space, options):
    """The data of a fit, also in single precision for as much as that resolves.

    Its rounding changes no component of the gradient by more than its epsilon times the
    largest standard deviation, by the inequality of Cauchy and Schwarz.
    """
    cast, (rough, largest) = np.float32, space.in_single()
    lost = np.finfo(cast).eps * max(1.0, largest)
    alpha, intercept = cast(options.alpha), cast(options.intercept)
    tol = cast(max(options.tol, lost))
    given = options._replace(alpha=alpha, intercept=intercept, tol=tol)
    return NewtonData(space, options, NewtonData(rough, given, lost=lost))


class NewtonSettings(NamedTuple):
    """What the compiled functions need, as scalars."""

    alpha: np.ndarray
    damping: np.ndarray  # shift added to the Hessian
    intercept: np.ndarray
    cg_iterations: np.int32
    last: np.ndarray  # relative residual of a system whose step is the last one


moved_by = in_either_library(add)


# --- the iteration -------------------------------------------------------------------


def init(data, net, options):
    """Evaluate the head to start from."""
    alpha = float(options.alpha)
    if data.folds:
        state = evaluated(data.folds[0], net, alpha)
        return Search((state,), net, sys.float_info.max, alpha)
    if options.n_effective is not None:  # the prior alone chooses
        state = evaluated(data.rough, net, alpha / 10)
        return state._replace(path=((alpha / 10, 0.0, 1.0),))
    return first_state(data, net, alpha)


def head_for(data, net):
    """A head in the precision of the data."""
    kind = data.options.alpha.dtype
    if net.bias.dtype != kind:
        net = NumPy.tree_map(lambda array: np.asarray(array, kind), net)
        if isinstance(net, Combination):
            net = net._replace(image=data.space.heads.image(net.rows, net.start)[0])
    return net


def objective(data, net, alpha):
    """Loss and gradient of a head on the rows, with the penalty of all rows."""
    alpha = data.options.alpha.dtype.type(alpha * data.factor)
    return data.space.evaluate(net, alpha, data.options.intercept)


def evaluated(data, net, alpha):
    """The state of a head at a penalty."""
    net = head_for(data, net)
    found = objective(data, net, alpha)
    loss, grad_max = float(found.loss), float(found.grad_max)
    return NewtonState(net, loss, found.gradient, grad_max, loss, alpha, data.lost)


def with_minimum(data, state):
    """The data with a minimum more, for a parabola through three."""
    known = [each for each in data.known if each[0] != state.alpha][-2:]
    return data._replace(known=(*known, (state.alpha, state.net, state.loss)))


def first_state(data, net, alpha):
    """The state to start from at a penalty: beyond the minima before, or a head.

    A parabola leads through the last minima, unless the loss of the last one is lower.
    Heads grow like the inverse of a large penalty and like the logarithm of a small
    one. In between, it is the curvature along the first axis where classes are alike.
    """
    if (known := data.known)[1:]:
        squares = np.asarray(data.space.squares)
        between = np.max(1 / squares, where=squares > 0, initial=0)
        between /= len(known[0][1].bias)
        at, *nodes = np.log1p(between / np.array([alpha, *(a for a, *_ in known)]))
        shares = [
            np.prod([(at - o) / (own - o) for o in np.delete(nodes, k)])
            for k, own in enumerate(nodes)
        ]
        parts = zip(*(net for _, net, _ in known), strict=True)
        found = [np.tensordot(shares, each, axes=1) for each in parts]
        if len(found[1]) > 1:  # rounding of what all classes share would grow
            found = [each - each.mean(axis=-1, keepdims=True) for each in found]
        state = evaluated(data.rough, AffineHead(*found), alpha)
        last, before, loss = known[-1]
        if state.loss <= loss + (alpha - last) / 2 * np.sum(squares * before.weight**2):
            return state
    return evaluated(data.rough, net, alpha)


def step(data, state, options):
    """A Newton step, or, in a search for the penalty, one of each fold."""
    began = time.perf_counter()
    state, report = (_search if isinstance(state, Search) else finer_step)(data, state)
    # The best head of a search is evaluated on all rows at the end.
    seconds = (time.perf_counter() - began) * (2 if isinstance(state, Search) else 1)
    return state._replace(next_seconds=seconds), report


def finer_step(data, state):
    """A Newton step: in single precision while the gradient falls, then in full.

    A head is a minimum where rounding cannot lift its gradient above the tolerance.
    """
    if not state.lost:
        return newton_step(data, state)
    if state.slope < 0:
        found, report = newton_step(data.rough, state)
        if report.stop or not found.grad_max < state.grad_max:
            found = found._replace(slope=0.0)
        ended = found.grad_max + found.lost <= data.options.tol
        return found, report._replace(stop="tol" if ended else None)
    finer = evaluated(data, state.net, state.alpha)
    return newton_step(data, finer._replace(criterion=state.criterion, path=state.path))


def newton_step(data, state):
    """A Newton step at the penalty of the state."""
    options = data.options
    # 1. The direction.
    cast, tol = options.alpha.dtype.type, float(options.tol)
    # It need not be more exact than what makes it the last one.
    settled = data.settled * abs(state.loss) / -(state.slope or -math.inf)
    last = max(tol / (2 * state.grad_max or 1), math.sqrt(settled) / 2)
    settings = NewtonSettings(
        alpha=cast(state.alpha * data.factor),
        damping=cast(options.damping),
        intercept=options.intercept,
        cg_iterations=np.int32(min(options.rank, np.iinfo(np.int32).max)),
        last=np.float32(min(last, 0.5)),
    )
    direction, slope, iterations = data.space.direction(state, settings)
    slope, iterations = float(slope), int(iterations)
    eps = float(np.finfo(options.alpha.dtype).eps)
    rounding = 8 * eps * abs(state.loss)
    # 2. Its length: halved until Armijo's condition holds. Where the loss no longer
    # resolves it, the whole step is taken if it leads to a gradient of half the size.
    resolved, moved, stop = -slope > rounding, False, None
    for halvings in range((31 if resolved else 1) if slope < 0 else 0):
        length = 0.5**halvings
        net = moved_by(state.net, np.float64(length), direction)
        evaluation = objective(data, net, state.alpha)
        loss, size = float(evaluation.loss), float(evaluation.grad_max)
        if resolved:  # NaN is no descent
            moved = loss <= state.loss + 1e-4 * length * slope
        else:
            moved = size <= state.grad_max / 2 and loss <= state.loss + rounding
        if moved:
            break
    # 3. The new state.
    criterion = state.criterion
    if not moved:
        net, length = state.net, 0.0
        evaluation = objective(data, net, state.alpha)
        # A system that CG cannot even begin with says nothing about the loss.
        flat = iterations and abs(slope) <= math.sqrt(eps) * max(abs(state.loss), eps)
        stop = "rounding" if flat else "line_search"
    loss = float(evaluation.loss)
    if not math.isfinite(loss):
        stop = "non_finite"
    elif float(evaluation.grad_max) <= tol:
        stop = "tol"
    if moved:  # to a better head, also where rounding hides the fall of the loss
        criterion = min(loss, math.nextafter(criterion, -math.inf))
    state = state._replace(
        net=net,
        loss=loss,
        gradient=evaluation.gradient,
        grad_max=float(evaluation.grad_max),
        criterion=criterion,
        # The Newton decrement falls like the square of the gradient.
        slope=0.0 if stop else slope * float(evaluation.grad_max / state.grad_max) ** 2,
        last_step=direction if moved else state.last_step,
    )
    report = head_report(
        evaluation,
        stop,
        state.alpha,
        step_size=length,
        damping=options.damping or math.nan,
        inner_iterations=iterations,
    )
    return state, report


# --- the penalty ---------------------------------------------------------------------


def _search(data, search):
    """A step of each fold, and the next penalty when all have settled."""
    heads, report = list(search.heads), None
    for k, fold in enumerate(data.folds):
        if k == len(heads):  # one after the other, from the head of the fold before
            if not heads[-1].settled:
                break
            heads.append(evaluated(fold, heads[-1].net, search.alpha))
        if heads[k].settled:
            continue
        heads[k], report = newton_step(fold, heads[k])
        if report.stop == "non_finite":
            break
    # Before a penalty has been judged, the last head is the best.
    criterion = math.inf if search.path else math.nextafter(search.criterion, 0)
    search = search._replace(heads=tuple(heads), net=heads[0].net, criterion=criterion)
    if report.stop == "non_finite":
        return search, report
    if len(heads) == len(data.folds) and all(state.settled for state in heads):
        search = _next_penalty(data, search)
    return search, report._replace(stop=None)


def _next_penalty(data, search):
    """Extend the path by what is said of the heads, and go on to the next penalty."""
    heads, before = search.heads, search.alpha
    kind, space = data.options.alpha.dtype, data.rough.space
    logits = tuple(space.logits(state.net, data.own).astype(kind) for state in heads)
    temperature = switches.on("heads.temperature")
    loss, factor = penalty.left_out_loss(logits, data.judges, temperature)
    judged = -float(loss) if math.isfinite(loss) else -math.inf
    path = (*search.path, (before, judged, float(factor)))
    alpha, last = penalty.next_alpha(path)
    criteria = [-value for value in penalty.log_posteriors(path)]
    best = heads if criteria[-1] == min(criteria) else search.likeliest
    if last:
        state = evaluated(data.rough, best[0].net, alpha)
        least = min(criteria) if math.isfinite(min(criteria)) else 0.0
        # Heads of different penalties do not compare: the last one is the best.
        return state._replace(path=path, criterion=math.nextafter(least, -math.inf))
    folds = zip(data.folds, best, strict=True)
    return search._replace(
        heads=tuple(evaluated(f, state.net, alpha) for f, state in folds),
        criterion=criteria[-1],
        alpha=alpha,
        path=path,
        likeliest=best,
    )


# --- a path of penalties -------------------------------------------------------------


def minima(data, weight, alphas, net, max_iter):
    """Yield the minima for ever smaller penalties, of the rows that have a weight.

    With the head of each come its number of steps and whether it is a minimum.
    """
    space, own = data.space, np.flatnonzero(weight)
    x, label, single = space.x[own], space.label[own], space.single[own]
    space = space._replace(x=x, label=label, weight=weight[own], single=single)
    data = in_both_precisions(space, data.options)
    for alpha in alphas:
        state, n_iter, stop = first_state(data, net, alpha), 0, None
        while not (found := state.grad_max + state.lost <= data.options.tol):
            if stop is not None or n_iter == max_iter:
                break
            state, report = finer_step(data, state)
            n_iter, stop = n_iter + 1, report.stop
        net, data = state.net, with_minimum(data, state)
        yield net, n_iter, found or stop in ("rounding", "line_search")


NEWTON = Algorithm("fgn_newton", init, step)
