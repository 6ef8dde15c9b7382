r"""Newton's method for the affine softmax head, to the optimum.

The softmax Gauss-Newton matrix of an affine head is the exact Hessian. The features are
whitened, which costs one eigendecomposition and makes single precision enough for all
that is only approximate. There the Newton system is solved by conjugate gradients
(:mod:`sklearn_gn.softmax_head.whitening`); gradient and loss are computed in the
precision of the fit. At zero all probabilities are equal, so that the first system is
that of a regression on the classes, which its diagonal solves.

Where the penalty is chosen, the steps lead from one minimum to the next along a path of
penalties (:mod:`sklearn_gn.softmax_head.penalty`), without the rows of each fold. All
folds share the whitened features and the preconditioner.
"""

import math
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sklearn_gn.arrays.libraries import NumPy, in_either_library, library_of
from sklearn_gn.optim.line_search import backtrack, insufficient_decrease
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.softmax_head import penalty
from sklearn_gn.softmax_head.head import (
    AffineHead,
    BatchedRows,
    HeadOptions,
    divided,
    gradient_norms,
    head_report,
    objective,
    on_device,
    on_devices,
)
from sklearn_gn.softmax_head.whitening import (
    NewtonSettings,
    class_blocks,
    n_slots,
    whitened_newton_direction,
    whitened_rows,
)

_CG_ITERATIONS = 100
# Slope of a step, over the loss, that ends near enough to a minimum to leave rows out.
_SETTLED = 0.01
_FORCING = 0.1  # relative residual of a Newton system
_CHOSEN = 1e12  # minus the criterion of a head at the chosen penalty, at least


class NewtonState(NamedTuple):
    """Head, gradient, and what the next step is to know."""

    net: AffineHead
    loss: float
    gradient: AffineHead
    grad_norm: float
    criterion: float  # by which the best head is chosen: the loss, where it is resolved
    alpha: float
    path: tuple = ()  # penalties that were tried, with what was said of them
    slope: float = -math.inf  # of the last step; 0 where there is no better one
    anchor: tuple | None = None  # head and penalty of which the preconditioner is
    usual: int | None = 0  # CG iterations there; None until they are known
    last: int = 0
    last_step: AffineHead | None = None  # where damping makes steps short
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
    """The rows, and what is computed of them when it is needed."""

    rows: BatchedRows  # on the device
    options: HeadOptions  # with the first penalty
    memo: dict  # the whitened rows; the preconditioner with the head of its making
    whole: BatchedRows  # of which rows are those of a fold, with weights of zero
    folds: tuple = ()  # NewtonData without the rows of each fold
    judges: penalty.Judges | None = None
    n_judged: float = math.nan  # rows that are left out, by their counts
    factor: float = 1.0  # that a penalty grows by on these rows


def prepare(rows, options):
    """Whiten the rows, on the device, and divide those that choose a penalty."""
    placed = on_devices(rows, options)
    data = NewtonData(placed, options, {}, placed)
    if options.n_effective is None:
        whitened(data)
        return data
    n, d = int(rows.n_rows), rows.x.shape[1]
    all_weight = float(rows.weight[:n].sum())
    choosing = judging = n
    if options.mesh is None:
        choosing = penalty.n_choosing(n, d, int(rows.label[:n].max()) + 1)
        judging = min(n, 2 * choosing)
    fold = penalty.folds_of(rows.label[:choosing])
    further = penalty.unseen_fold(rows.label[:judging], fold)
    judged, memo = rows, data.memo
    if choosing < n:
        judged = penalty.first_rows(rows, judging)
        rows = penalty.first_rows(rows, choosing)
        placed, memo = on_device(rows, options), {}
    fold, further = (
        np.append(own, np.full(len(of.weight) - len(own), -1, np.int32))
        for own, of in ((fold, rows), (further, judged))
    )
    folds = []
    for k in range(fold.max() + 1):
        weight = np.where(fold == k, 0, rows.weight)
        own = placed._replace(weight=divided([weight], options)[0])
        factor = all_weight / float(weight.sum())
        folds.append(NewtonData(own, options, memo, placed, factor=factor))
    whitened(folds[0] if folds else data)
    if not folds:
        return data
    kind = rows.weight.dtype
    count = np.where(further >= 0, judged.weight, 0) * options.n_effective / all_weight
    x = placed.x if judged is rows else on_device(judged.x, options)
    arrays = divided([judged.label, count.astype(kind), further], options)
    shift = penalty.shifts_of(rows.label, rows.weight, fold) * options.intercept
    judges = penalty.Judges(x, *arrays, shift.astype(kind))
    return data._replace(folds=tuple(folds), judges=judges, n_judged=float(count.sum()))


def at_penalty(options, alpha):
    """The options with another penalty."""
    return options._replace(alpha=options.alpha.dtype.type(alpha))


def whitened(data):
    """The rows with whitened features; those of all rows after a search of a part."""
    if "whitened" not in data.memo:
        data.memo["whitened"] = whitened_rows(data.whole, data.options)
    return data.memo["whitened"]._replace(rows=data.rows)


def newton_settings(options):
    """The scalars of a Newton step from the options of the fit."""
    cast = options.alpha.dtype.type
    rank = _CG_ITERATIONS if options.rank is None else options.rank
    return NewtonSettings(
        alpha=options.alpha,
        damping=cast(options.damping or 0),
        intercept=options.intercept,
        cg_iterations=np.int32(min(rank, np.iinfo(np.int32).max)),
        forcing=np.float32(_FORCING),
    )


# --- the iteration -------------------------------------------------------------------


def init(data, net, options):
    """Evaluate the head to start from."""
    net = on_device(net, options)
    if data.folds:
        state = evaluated(data.folds[0], net, float(options.alpha))
        return Search((state,), state.net, _CHOSEN, state.alpha)
    if options.n_effective is None:
        return evaluated(data, net, float(options.alpha))
    alpha = penalty.likeliest_alpha(float(options.alpha))  # the prior alone chooses
    return evaluated(data, net, alpha)._replace(path=((alpha, 0.0, 1.0),))


def evaluated(data, net, alpha):
    """The state of a head at a penalty."""
    found = objective(net, data.rows, at_penalty(data.options, alpha * data.factor))
    loss, grad_norm = float(found.loss), float(found.grad_norm)
    return NewtonState(net, loss, found.gradient, grad_norm, loss, alpha)


def at_another_penalty(data, state, alpha):
    """The state of the same head there, which takes no look at the rows."""
    change = data.options.alpha.dtype.type((alpha - state.alpha) * data.factor)
    added, gradient, grad_norm = with_penalty(state.net, state.gradient, change)
    loss = state.loss + float(added)
    return NewtonState(
        state.net,
        loss,
        gradient,
        float(grad_norm),
        loss,
        alpha,
        **preconditioned(state),
    )


@in_either_library
def with_penalty(net, gradient, change):
    """What a change of the penalty adds to the loss; the gradient, and its norm."""
    weight = gradient.weight + change * net.weight
    gradient = gradient._replace(weight=weight)
    added = change / 2 * (net.weight**2).sum()
    return added, gradient, gradient_norms(gradient)[0]


def preconditioned(state):
    """What a state hands on with its preconditioner."""
    return {"anchor": state.anchor, "usual": state.usual, "last": state.last}


def step(data, state, options):
    """A Newton step, or, in a search for the penalty, one of each fold."""
    began = time.perf_counter()
    if isinstance(state, Search):
        state, report = _search(data, state)
    else:
        before = state.criterion
        options = at_penalty(options, state.alpha)
        state, report = newton_step(data, state, options)
        if state.path and report.stop != "non_finite":
            # Heads of different penalties do not compare: the last one is the best.
            state = state._replace(criterion=min(before, -_CHOSEN) - 1)
    return state._replace(next_seconds=time.perf_counter() - began), report


def newton_step(data, state, options):
    """A Newton step at the penalty of the options."""
    settings = newton_settings(options)
    rows = whitened(data)
    inverses, state = _preconditioner(data, state, settings)
    # 1. The direction, and the step length near the least loss along it.
    direction, length, slope, iterations = whitened_newton_direction(
        state.net, state.gradient, rows, inverses, settings, state.last_step
    )
    length, slope, iterations = float(length), float(slope), int(iterations)
    usual = iterations if state.usual is None else state.usual
    state = state._replace(slope=slope, last=iterations, usual=usual)
    # 2. The line search.
    eps = float(np.finfo(data.rows.x.dtype).eps)
    rounding = 8 * eps * abs(state.loss)
    moved = _line_search(data, state, direction, length, slope, rounding, options)
    columns = {
        "step_size": moved[2] if moved else 0.0,
        "damping": math.nan if options.damping is None else options.damping,
        "inner_iterations": iterations,
    }
    if moved:
        if options.damping:
            state = state._replace(last_step=direction)
        resolved = -slope > rounding
        return _finish(state, *moved[:2], options, resolved=resolved, **columns)
    evaluation = objective(state.net, data.rows, options)
    # A system that CG cannot even begin with says nothing about the loss.
    flat = iterations and abs(slope) <= math.sqrt(eps) * max(abs(state.loss), eps)
    stop = "rounding" if flat else "line_search"
    return _finish(state, state.net, evaluation, options, stop=stop, **columns)


def _preconditioner(data, state, settings):
    """Inverses of the class blocks, built when CG takes more than they cost.

    Until then the variances of the features do, times the mean curvature of a class.
    """
    slots, cost = n_slots(data.whole.x.shape, len(state.net.bias))
    known = state.usual is not None
    if slots and known and state.last > 2 * state.usual + cost:
        state = state._replace(anchor=(state.net, settings.alpha), usual=None)
    if not slots or state.anchor is None:
        return None, state
    if data.memo.get("anchor") is not state.anchor:
        data.memo["anchor"] = state.anchor
        net, alpha = state.anchor
        settings = settings._replace(alpha=alpha)
        data.memo["inverses"] = class_blocks(net, whitened(data), settings, slots)
    return data.memo["inverses"], state


def _line_search(data, state, direction, length, slope, rounding, options):
    """Head, evaluation and length of a step, halved until the loss falls enough.

    Where the loss no longer resolves the step, a gradient of half the size decides.
    None if no step is good.
    """
    if not slope < 0:
        return None
    cast = data.rows.x.dtype.type

    def evaluate_at(length):
        net = move(state.net, direction, np.asarray(length, cast))
        return net, objective(net, data.rows, options)

    def too_long(length, found):
        loss = float(found[1].loss)
        return insufficient_decrease(loss, state.loss, length, slope)

    def no_smaller_gradient(length, found):
        halved = float(found[1].grad_norm) <= state.grad_norm / 2
        return not (halved and float(found[1].loss) <= state.loss + rounding)

    resolved = -slope > rounding
    rejected = too_long if resolved else no_smaller_gradient
    search = {"while_loop": NumPy.while_loop} | ({} if resolved else {"halvings": 0})
    # In single precision, a minimum that the loss does not resolve has no length.
    length = length if resolved else 1.0
    length, found = backtrack(evaluate_at, rejected, length, **search)
    return None if rejected(length, found) else (*found, length)


@in_either_library
def move(net, direction, length):
    """The head a step further."""
    return library_of((net, direction)).tree_map(
        lambda p, d: p + length * d, net, direction
    )


def _finish(state, net, evaluation, options, *, stop=None, resolved=True, **columns):
    """State and report of an evaluated head."""
    loss = criterion = float(evaluation.loss)
    if not math.isfinite(loss):
        stop = "non_finite"
    elif float(evaluation.grad_max) <= float(options.tol):
        stop = "tol"
    if not resolved:
        # Rounding errors hide the fall of the loss, but the gradient fell.
        criterion = min(loss, math.nextafter(state.criterion, -math.inf))
    state = state._replace(
        net=net,
        loss=loss,
        gradient=evaluation.gradient,
        grad_norm=float(evaluation.grad_norm),
        criterion=criterion,
        slope=0.0 if stop else state.slope,
    )
    return state, head_report(evaluation, stop, options, **columns)


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
        # Steps are not damped: where they are short, rough minima would be compared.
        options = at_penalty(fold.options, search.alpha * fold.factor)
        options = options._replace(damping=None)
        # The preconditioner of the fold before serves this one too.
        state = heads[k]._replace(**preconditioned(heads[k - 1]))
        heads[k], report = newton_step(fold, state, options)
        if report.stop == "non_finite":
            break
    criterion = math.inf if search.path else search.criterion - 1
    net, alpha = heads[0].net, search.alpha
    search = search._replace(heads=tuple(heads), net=net, criterion=criterion)
    report = report._replace(extra=report.extra | {"alpha": alpha})
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
        state = evaluated(data, best[0].net, alpha)
        return state._replace(path=path, criterion=criterion)
    folds = zip(data.folds, best, strict=True)
    return search._replace(
        heads=tuple(at_another_penalty(fold, state, alpha) for fold, state in folds),
        criterion=criterion,
        alpha=alpha,
        path=path,
        likeliest=best,
    )


def searched_penalty(rows, options):
    """The penalty of a search by itself, and the factor of the logits."""
    data = prepare(rows, options)
    n_classes = int(rows.label.max()) + 1
    shape = rows.x.shape[1], 1 if n_classes == 2 else n_classes
    zeros = np.zeros(shape, rows.x.dtype)
    state = init(data, AffineHead(zeros, np.zeros(shape[1], zeros.dtype)), options)
    while isinstance(state, Search):
        state, report = step(data, state, options)
        if report.stop:
            break
    alpha = penalty_of_best(state)
    return alpha, penalty.factor_at(alpha, state.path)


def penalty_of_best(state):
    """The penalty of the best head: of the path, until there is one at the chosen."""
    if state.path and state.criterion > -_CHOSEN:
        return penalty.best_penalty(state.path)
    return state.alpha


NEWTON = Algorithm("fgn_newton", init, step, prepare=prepare)
SMALL_ALGORITHMS = {NEWTON.name: replace(NEWTON, compiled=False)}
