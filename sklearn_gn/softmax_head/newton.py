r"""Newton's method for the affine softmax head, to the optimum.

The softmax Gauss-Newton matrix of an affine head is the exact Hessian. In whitened
coordinates (:mod:`sklearn_gn.softmax_head.whitening`) conjugate gradients solve the
Newton system roughly, in single precision; gradient and loss are computed in the
precision of the fit, but for the rough minima that choose a penalty. At zero all
probabilities are equal, so that the first system is a regression on the classes, which
its diagonal solves.

Where the penalty is chosen, the steps lead from one minimum to the next along a path of
penalties (:mod:`sklearn_gn.softmax_head.penalty`), without the rows of each fold. All
folds share the coordinates.
"""

import math
import sys
import time
from typing import NamedTuple

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn._typing import Array
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.libraries import NumPy, in_either_library, library_of
from sklearn_gn.arrays.trees import add
from sklearn_gn.optim.line_search import backtrack
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.softmax_head import penalty
from sklearn_gn.softmax_head.head import (
    AffineHead,
    HeadOptions,
    head_report,
    on_devices,
)
from sklearn_gn.softmax_head.sparse_rows import SparseRows
from sklearn_gn.softmax_head.whitening import Whitened, second_moments, whiten

# Slope of a step, over the loss, that ends near enough to a minimum to leave rows out.
_SETTLED = 0.01


class NewtonState(NamedTuple):
    """Head, gradient, and what the next step is to know."""

    net: AffineHead
    loss: float
    gradient: AffineHead
    grad_max: float  # its largest component, in the features
    criterion: float  # by which the best head is chosen: the loss, where it is resolved
    alpha: float
    path: tuple = ()  # penalties that were tried, with what was said of them
    slope: float = -math.inf  # of the last step; 0 where there is no better one
    last_step: AffineHead | None = None
    # Inverses of the blocks of the Hessian, and CG iterations since they were made.
    inverses: Array | None = None
    spent: int = 0
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

    space: Whitened | SparseRows
    options: HeadOptions  # with the first penalty
    factor: float = 1.0  # that a penalty grows by on these rows
    folds: tuple = ()  # NewtonData without the rows of each fold
    own: Array | None = None  # numbers of the rows that are left out; None of all
    judges: penalty.Judges | None = None
    n_judged: float = math.nan  # rows that are left out, by their counts
    known: tuple = ()  # (penalty, head, loss) of the last minima on these rows
    before: NewtonState | None = None  # the last of them, whose preconditioner serves


def prepare(rows, options, axis):
    """Whiten the rows, on the device; NumPy writes into them."""
    placed = on_devices(rows, options)
    moments = second_moments(placed, axis)
    z, *others = whiten(placed, moments, options.intercept, axis)
    return left_out(Whitened(placed._replace(x=z), *others), rows, options)


def left_out(space, rows, options):
    """The data of a fit, and without the rows of each fold of a search."""
    data = NewtonData(space, options)
    if options.n_effective is None:
        return data
    n, length, weight = int(rows.n_rows), len(rows.weight), rows.weight
    fold = np.pad(penalty.folds_of(rows.label[:n]), (0, length - n), constant_values=-1)
    if fold.max() < 0:
        return data
    # Rough minima are what is compared, in single precision; steps are not damped.
    rough = space
    if isinstance(space, Whitened):
        x = space.single
        rough = Whitened(space.rows._replace(x=x), x, space.squares, None, None)
    cast, folds = np.float32, []
    alpha, intercept = cast(options.alpha), cast(options.intercept)
    given = options._replace(alpha=alpha, intercept=intercept, damping=0.0)
    for k in range(fold.max() + 1):
        kept = np.where(fold == k, 0, weight)
        share = float(kept.sum())
        part = on_devices((kept / share).astype(cast), options)
        if isinstance(space, Whitened):
            without = rough._replace(rows=rough.rows._replace(weight=part))
        else:
            without = rough._replace(weight=part, intercept=intercept)
        folds.append(NewtonData(without, given, 1 / share))
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
    if data.folds:
        rough, alpha = data.folds[0], float(data.options.alpha)
        state = evaluated(rough, in_precision_of(rough.options, net), alpha)
        return Search((state,), net, sys.float_info.max, alpha)
    if options.n_effective is None:
        return first_state(data, net, float(options.alpha))
    alpha = float(data.options.alpha) / 10  # the prior alone chooses
    return evaluated(data, net, alpha)._replace(path=((alpha, 0.0, 1.0),))


def objective(data, net, alpha):
    """Loss and gradient of a head on the rows, with the penalty of all rows."""
    alpha = data.options.alpha.dtype.type(alpha * data.factor)
    return data.space.evaluate(net, alpha, data.options.intercept)


def evaluated(data, net, alpha, before=None):
    """The state of a head at a penalty, with the preconditioner of one before."""
    found = objective(data, net, alpha)
    loss, grad_max = float(found.loss), float(found.grad_max)
    state = NewtonState(net, loss, found.gradient, grad_max, loss, alpha)
    if before is not None:
        state = state._replace(inverses=before.inverses, spent=before.spent)
    return state


def first_state(data, net, alpha):
    """The state to start from at a penalty: beyond the minima before, or a head.

    The head is that of the last minimum, and its loss is no lower.
    """
    if len(data.known) > 1:
        last, known, loss = data.known[-1]
        loss += (alpha - last) / 2 * float(np.sum(data.space.squares * known.weight**2))
        further = in_precision_of(data.options, extrapolated(data.known, alpha))
        state = evaluated(data, further, alpha, data.before)
        if state.loss <= loss:
            return state
    return evaluated(data, net, alpha, data.before)


def with_minimum(data, state):
    """The data with a minimum more, for a polynomial of degree three through four."""
    known = [each for each in data.known if each[0] != state.alpha]
    known = (*known[-3:], (state.alpha, state.net, state.loss))
    return data._replace(known=known, before=state)


def extrapolated(known, alpha):
    """The head at a penalty by the polynomial in its logarithm through others."""
    at, nodes = np.log(alpha), np.log([a for a, *_ in known])
    shares = [
        np.prod([(at - o) / (own - o) for o in np.delete(nodes, k)])
        for k, own in enumerate(nodes)
    ]
    parts = zip(*(net for _, net, _ in known), strict=True)
    return AffineHead(*(np.tensordot(shares, each, axes=1) for each in parts))


def step(data, state, options):
    """A Newton step, or, in a search for the penalty, one of each fold."""
    began = time.perf_counter()
    if isinstance(state, Search):
        state, report = _search(data, state)
    else:
        before = state.criterion
        state, report = newton_step(data, state)
        if state.path and report.stop != "non_finite":
            # Heads of different penalties do not compare: the last one is the best.
            state = state._replace(criterion=before - 1)
    seconds = time.perf_counter() - began
    if isinstance(state, Search):  # whose best head is evaluated on all rows at the end
        seconds *= 2
    return state._replace(next_seconds=seconds), report


def newton_step(data, state):
    """A Newton step at the penalty of the state."""
    options = data.options
    # 1. The direction.
    cast = options.alpha.dtype.type
    settings = NewtonSettings(
        alpha=cast(state.alpha * data.factor),
        damping=cast(options.damping),
        intercept=options.intercept,
        cg_iterations=np.int32(min(options.rank, np.iinfo(np.int32).max)),
        last=np.float32(min(float(options.tol) / (2 * state.grad_max or 1), 0.5)),
    )
    state, direction, slope, iterations = data.space.direction(state, settings)
    slope, iterations = float(slope), int(iterations)
    eps = float(np.finfo(options.alpha.dtype).eps)
    rounding = 8 * eps * abs(state.loss)
    resolved = -slope > rounding
    # 2. Its length. Where the loss no longer resolves it, the whole step is taken if it
    # leads to a gradient of half the size.

    def evaluate_at(length):
        net = moved_by(state.net, np.float64(length), direction)
        return net, objective(data, net, state.alpha)

    def rejected(length, found):
        loss, size = float(found[1].loss), float(found[1].grad_max)
        if resolved:  # by Armijo's condition, which NaN fails
            return not loss <= float(state.loss) + 1e-4 * length * slope
        return not (size <= state.grad_max / 2 and loss <= state.loss + rounding)

    moved, evaluation, stop = False, None, None
    if slope < 0:
        most, loop = 30 if resolved else 0, NumPy.while_loop
        length, found = backtrack(
            evaluate_at, rejected, 1.0, halvings=most, while_loop=loop
        )
        moved, (net, evaluation) = not rejected(length, found), found
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
    elif float(evaluation.grad_max) <= float(options.tol):
        stop = "tol"
    if resolved or not moved:
        criterion = loss
    else:  # rounding errors hide the fall of the loss, but the gradient fell
        criterion = min(loss, math.nextafter(criterion, -math.inf))
    state = state._replace(
        net=net,
        loss=loss,
        gradient=evaluation.gradient,
        grad_max=float(evaluation.grad_max),
        criterion=criterion,
        slope=0.0 if stop else slope,
        spent=state.spent + iterations,
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
            heads.append(evaluated(fold, heads[-1].net, search.alpha, heads[-1]))
        if heads[k].settled:
            continue
        heads[k], report = newton_step(fold, heads[k])
        if report.stop == "non_finite":
            break
    # Before a penalty has been judged, the last head is the best.
    criterion = math.inf if search.path else math.nextafter(search.criterion, 0)
    net = in_precision_of(data.options, heads[0].net)
    search = search._replace(heads=tuple(heads), net=net, criterion=criterion)
    if report.stop == "non_finite":
        return search, report
    if len(heads) == len(data.folds) and all(state.settled for state in heads):
        search = _next_penalty(data, search)
    return search, report._replace(stop=None)


def in_precision_of(options, net):
    """A head in the precision of the fit, or of its folds, as arrays of NumPy."""
    kind = options.alpha.dtype
    return library_of(net).tree_map(lambda array: np.asarray(array, kind), net)


def _next_penalty(data, search):
    """Extend the path by what is said of the heads, and go on to the next penalty."""
    heads, before = search.heads, search.alpha
    nets = [in_precision_of(data.options, state.net) for state in heads]
    logits = tuple(data.space.logits(net, data.own) for net in nets)
    temperature = switches.on("heads.temperature")
    loss, factor = penalty.left_out_loss(logits, data.judges, temperature)
    judged = -float(loss) if math.isfinite(loss) else -math.inf
    path = (*search.path, (before, judged, float(factor)))
    alpha, last = penalty.next_alpha(path)
    criteria = [-value for value in penalty.log_posteriors(path)]
    best = heads if criteria[-1] == min(criteria) else search.likeliest
    if last:
        net = in_precision_of(data.options, best[0].net)
        if isinstance(data.space, SparseRows):  # whose logits are those of the folds
            image, _ = data.space.heads.image(net.rows, net.start)
            net = net._replace(image=image)
        state = evaluated(data, net, alpha, heads[0])
        least = min(criteria) if math.isfinite(min(criteria)) else 0.0
        return state._replace(path=path, criterion=least)
    folds = zip(data.folds, best, strict=True)
    return search._replace(
        heads=tuple(evaluated(f, state.net, alpha, state) for f, state in folds),
        criterion=criteria[-1],
        alpha=alpha,
        path=path,
        likeliest=best,
    )


def penalty_of_best(state):
    """The penalty of the best head: of the path, until there is one at the chosen."""
    if not state.path:
        return state.alpha
    judged = penalty.log_posteriors(state.path)
    best = int(np.argmax(judged))
    return state.path[best][0] if state.criterion >= -judged[best] else state.alpha


# --- a path of penalties -------------------------------------------------------------


def minima(data, weight, alphas, net, max_iter, before=None):
    """Yield the minima for ever smaller penalties, of the rows that have a weight.

    With the state of each come its number of steps and whether it is a minimum. That
    ``before``, of other weights, has a preconditioner that may serve here too.
    """
    rows, own = data.space.rows, np.flatnonzero(weight)
    rows = rows._replace(x=rows.x[own], label=rows.label[own], weight=weight[own])
    space = data.space._replace(rows=rows, single=data.space.single[own])
    data = data._replace(space=space, before=before)
    for alpha in alphas:
        state, n_iter = first_state(data, net, alpha), 0
        stop = "tol" if state.grad_max <= data.options.tol else None
        while stop is None and n_iter < max_iter:
            state, report = newton_step(data, state)
            n_iter, stop = n_iter + 1, report.stop
        net, data = state.net, with_minimum(data, state)
        yield state, n_iter, stop in ("tol", "rounding", "line_search")


NEWTON = Algorithm("fgn_newton", init, step)
