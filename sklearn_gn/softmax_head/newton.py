r"""Newton's method for the affine softmax head, to the optimum.

The softmax Gauss-Newton matrix of an affine head is the exact Hessian. In whitened
coordinates (:mod:`sklearn_gn.softmax_head.whitening`) conjugate gradients solve the
Newton system roughly, in single precision; gradient and loss are computed in the
precision of the fit. At zero all probabilities are equal, so that the first system is
that of a regression on the classes, which its diagonal solves.

Where the penalty is chosen, the steps lead from one minimum to the next along a path of
penalties (:mod:`sklearn_gn.softmax_head.penalty`), without the rows of each fold. All
folds share the coordinates.
"""

import math
import time
from typing import NamedTuple

import numpy as np

from sklearn_gn._typing import Array
from sklearn_gn.arrays.libraries import NumPy, in_either_library, library_of
from sklearn_gn.optim.line_search import backtrack, insufficient_decrease
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.softmax_head import penalty
from sklearn_gn.softmax_head.head import (
    AffineHead,
    HeadOptions,
    divided,
    first_rows,
    gradient_norms,
    head_report,
    on_devices,
)
from sklearn_gn.softmax_head.sparse_rows import SparseRows
from sklearn_gn.softmax_head.whitening import (
    Whitened,
    second_moments,
    whiten,
)

# Slope of a step, over the loss, that ends near enough to a minimum to leave rows out.
_SETTLED = 0.01
_FORCING = 0.25  # relative residual of a Newton system, ten times less near the end
_CHOSEN = 1e12  # minus the criterion of a head at the chosen penalty, at least


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
    judges: penalty.Judges | None = None
    n_judged: float = math.nan  # rows that are left out, by their counts


def prepare(rows, options, axis):
    """Whiten the rows, on the device, and divide those that choose a penalty.

    ``axis`` is that of :class:`~sklearn_gn.softmax_head.whitening.Units`. NumPy writes
    into the rows.
    """
    least, n_effective = options.alpha, options.n_effective
    if n_effective is not None:
        first = penalty.first_alpha(rows, options.intercept, n_effective)
        options = at_penalty(options, first)
        least = options.alpha * 10.0**-penalty.DECADES
    placed = on_devices(rows, options)
    ridge = least * max(int(rows.label.max()) + 1, 2)
    given = second_moments(placed, axis), ridge, options.intercept, axis
    z, *others = whiten(placed, *given)
    data = NewtonData(Whitened(placed._replace(x=z), *others), options)
    if n_effective is None:
        return data
    n, kind = int(rows.n_rows), rows.weight.dtype
    label, weight = rows.label[:n], rows.weight
    all_weight, several = float(weight[:n].sum()), options.mesh is not None
    fold, further = penalty.division(label, rows.x.shape[1], several)
    choosing, judging = len(fold), len(further)
    part, judged = data.space, data.space.rows
    if choosing < n:
        weight, judged = weight[:choosing], first_rows(judged, judging)
        own = first_rows(judged, choosing)
        part = part._replace(rows=own, single=part.single[:choosing])
    else:
        padding = 0, len(weight) - n
        fold, further = (
            np.pad(a, padding, constant_values=-1) for a in (fold, further)
        )
    folds = []
    for k in range(fold.max() + 1):
        kept = np.where(fold == k, 0, weight)
        own = part.rows._replace(weight=divided(kept, options))
        factor = all_weight / float(kept.sum())
        folds.append(NewtonData(part._replace(rows=own), options, factor))
    if not folds:
        return data
    counted = rows.weight[: len(further)] * n_effective / all_weight
    counted = np.where(further >= 0, counted, 0).astype(kind)
    shift = penalty.shifts_of(rows.label[: len(fold)], weight, fold) * options.intercept
    numbers = divided([rows.label[: len(further)], counted, further], options)
    judges = penalty.Judges(judged.x, *numbers, shift.astype(kind))
    n_judged = float(counted.sum())
    return data._replace(folds=tuple(folds), judges=judges, n_judged=n_judged)


def at_penalty(options, alpha):
    """The options with another penalty."""
    return options._replace(alpha=options.alpha.dtype.type(alpha))


class NewtonSettings(NamedTuple):
    """What the compiled functions need, as scalars."""

    alpha: np.ndarray
    damping: np.ndarray  # shift added to the Hessian
    intercept: np.ndarray
    cg_iterations: np.int32
    forcing: np.ndarray  # relative residual of the Newton system


def newton_settings(options, state):
    """The scalars of a Newton step.

    A system is solved roughly, but where the loss hardly resolves a step, which then is
    to bring the gradient down.
    """
    cast, eps = options.alpha.dtype.type, np.finfo(options.alpha.dtype).eps
    near = -state.slope <= math.sqrt(eps) * abs(state.loss)
    return NewtonSettings(
        alpha=options.alpha,
        damping=cast(options.damping),
        intercept=options.intercept,
        cg_iterations=np.int32(min(options.rank, np.iinfo(np.int32).max)),
        forcing=np.float32(_FORCING / 10 if near else _FORCING),
    )


# --- the iteration -------------------------------------------------------------------


def init(data, net, options):
    """Evaluate the head to start from."""
    if data.folds:
        state = evaluated(data.folds[0], net, float(data.options.alpha))
        return Search((state,), state.net, _CHOSEN, state.alpha)
    if options.n_effective is None:
        return evaluated(data, net, float(options.alpha))
    # The prior alone chooses.
    alpha = penalty.likeliest_alpha(float(data.options.alpha))
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
    if before is None:
        return state
    return state._replace(inverses=before.inverses, spent=before.spent)


def at_another_penalty(data, state, alpha):
    """The state of the same head there, which takes no look at the rows."""
    change = data.options.alpha.dtype.type((alpha - state.alpha) * data.factor)
    of = data.space
    found = with_penalty(state.net, state.gradient, change * of.squares, of.dual)
    added, gradient, grad_max = found
    loss = state.loss + float(added)
    return state._replace(
        loss=loss,
        gradient=gradient,
        grad_max=float(grad_max),
        criterion=loss,
        alpha=alpha,
        slope=-math.inf,
    )


@in_either_library
def with_penalty(net, gradient, change, dual):
    """What a change of the penalty adds to the loss; the gradient, and its size."""
    gradient = gradient._replace(weight=gradient.weight + change * net.weight)
    added = (change * net.weight**2).sum() / 2
    return added, gradient, gradient_norms(gradient, dual)[1]


def step(data, state, options):
    """A Newton step, or, in a search for the penalty, one of each fold."""
    began = time.perf_counter()
    if isinstance(state, Search):
        state, report = _search(data, state)
    else:
        before = state.criterion
        state, report = newton_step(data, state, options)
        if state.path and report.stop != "non_finite":
            # Heads of different penalties do not compare: the last one is the best.
            state = state._replace(criterion=min(before, -_CHOSEN) - 1)
    return state._replace(next_seconds=time.perf_counter() - began), report


def newton_step(data, state, options):
    """A Newton step at the penalty of the state."""
    options = at_penalty(options, state.alpha * data.factor)
    settings = newton_settings(options, state)
    # 1. The direction.
    state, direction, slope, iterations = data.space.direction(state, settings)
    slope, iterations = float(slope), int(iterations)
    eps = float(np.finfo(options.alpha.dtype).eps)
    rounding = 8 * eps * abs(state.loss)
    resolved = -slope > rounding
    # 2. Its length. Where the loss no longer resolves it, the whole step is taken if it
    # leads to a gradient of half the size.
    cast = options.alpha.dtype.type

    def evaluate_at(length):
        net = move(state.net, direction, np.asarray(length, cast))
        return net, objective(data, net, state.alpha)

    def rejected(length, found):
        loss, size = float(found[1].loss), float(found[1].grad_max)
        if resolved:
            return insufficient_decrease(loss, state.loss, length, slope)
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
        options._replace(alpha=options.alpha.dtype.type(state.alpha)),
        step_size=length,
        damping=options.damping or math.nan,
        inner_iterations=iterations,
    )
    return state, report


@in_either_library
def move(net, direction, length):
    """The head a step further."""
    return library_of((net, direction)).tree_map(
        lambda p, d: p + length * d, net, direction
    )


# --- the penalty ---------------------------------------------------------------------


def _search(data, search):
    """A step of each fold, and the next penalty when all have settled."""
    heads, report = list(search.heads), None
    # Steps are not damped: where they are short, rough minima would be compared.
    options = data.options._replace(damping=0.0)
    for k, fold in enumerate(data.folds):
        if k == len(heads):  # one after the other, from the head of the fold before
            if not heads[-1].settled:
                break
            heads.append(evaluated(fold, heads[-1].net, search.alpha, heads[-1]))
        if heads[k].settled:
            continue
        heads[k], report = newton_step(fold, heads[k], options)
        if report.stop == "non_finite":
            break
    criterion = math.inf if search.path else search.criterion - 1
    search = search._replace(heads=tuple(heads), net=heads[0].net, criterion=criterion)
    if report.stop == "non_finite":
        return search, report
    if len(heads) == len(data.folds) and all(state.settled for state in heads):
        search = _next_penalty(data, search)
    return search, report._replace(stop=None)


def _next_penalty(data, search):
    """Extend the path by what is said of the heads, and go on to the next penalty."""
    heads, before = search.heads, search.alpha
    judged = penalty.judged([state.net for state in heads], data.judges)
    path = (*search.path, (before, *judged))
    alpha, last = penalty.next_alpha(path)
    best = heads if penalty.best_penalty(path) == before else search.likeliest
    criterion = -penalty.log_posterior(path[-1], path[0][0])
    if last:
        state = evaluated(data, best[0].net, alpha, heads[0])
        return state._replace(path=path, criterion=criterion)
    folds = zip(data.folds, best, strict=True)
    return search._replace(
        heads=tuple(at_another_penalty(fold, state, alpha) for fold, state in folds),
        criterion=criterion,
        alpha=alpha,
        path=path,
        likeliest=best,
    )


def with_searched_penalty(rows, options):
    """The options of sparse rows, with the penalty and the factor that a part chooses.

    What is carried over from the part is ``n alpha``, which does not depend on the
    number of rows, and the factor of the logits.
    """
    part = penalty.part_of(rows)
    share = float(part.weight.sum() / rows.weight.sum())
    of_part = options._replace(n_effective=options.n_effective * share)
    data, n_classes = prepare(part, of_part, axis=0), int(part.label.max()) + 1
    shape = data.space.single.shape[1], 1 if n_classes == 2 else n_classes
    zeros = np.zeros(shape, rows.weight.dtype)
    state = init(data, AffineHead(zeros, np.zeros(shape[1], zeros.dtype)), of_part)
    while isinstance(state, Search):
        state, report = step(data, state, of_part)
        if report.stop:
            break
    alpha = penalty_of_best(state)
    factor = penalty.factor_at(alpha, state.path)
    options = at_penalty(options, alpha * share)
    return options._replace(factor=factor, n_effective=None)


def penalty_of_best(state):
    """The penalty of the best head: of the path, until there is one at the chosen."""
    if state.path and state.criterion > -_CHOSEN:
        return penalty.best_penalty(state.path)
    return state.alpha


# --- a path of penalties -------------------------------------------------------------


def minima(data, weight, alphas, net, max_iter, before=None):
    """Yield the minima for penalties, each from those before, of rows of other weights.

    With the state of each come its number of steps and whether it is a minimum. That
    ``before``, of other weights, has a preconditioner that may serve here too.
    """
    rows = data.space.rows._replace(weight=weight)
    data = data._replace(space=data.space._replace(rows=rows))
    state, known = None, []
    for alpha in alphas:
        if state is None:
            state = evaluated(data, net, alpha, before)
        else:
            state = at_another_penalty(data, state, alpha)
        if len(known) > 1:
            further = evaluated(data, extrapolated(known, alpha), alpha, state)
            state = further if further.loss < state.loss else state
        n_iter, stop = 0, "tol" if state.grad_max <= data.options.tol else None
        while stop is None and n_iter < max_iter:
            state, report = newton_step(data, state, data.options)
            n_iter, stop = n_iter + 1, report.stop
        known = [*known[-3:], (alpha, state.net)]  # for a polynomial of degree three
        yield state, n_iter, stop in ("tol", "rounding", "line_search")


def extrapolated(known, alpha):
    """The head at a penalty by the polynomial in its logarithm through others."""
    at, nodes = np.log(alpha), np.log([a for a, _ in known])
    shares = [
        np.prod([(at - o) / (own - o) for o in np.delete(nodes, k)])
        for k, own in enumerate(nodes)
    ]
    parts = zip(*(net for _, net in known), strict=True)
    return AffineHead(*(np.tensordot(shares, each, axes=1) for each in parts))


NEWTON = Algorithm("fgn_newton", init, step)
