r"""Newton's method for the affine softmax head, to the optimum.

Mini-batch FGN comes near the optimum quickly and then hovers. Here the full softmax
Gauss-Newton matrix, which for an affine head is the exact Hessian, takes over:

1.  a few passes of FGN over the rows replace the Newton steps that a line search would
    cut short (:mod:`sklearn_gn.softmax_head.start`);
2.  the features are whitened, which costs one eigendecomposition and makes single
    precision enough for all that is only approximate
    (:mod:`sklearn_gn.softmax_head.whitening`);
3.  Newton steps follow by conjugate gradients in single precision, preconditioned by
    one block a class, with gradient and loss in the precision of the fit.

Where the penalty is chosen, steps 3 lead from one minimum to the next along a path of
penalties (:mod:`sklearn_gn.softmax_head.penalty`), with many rows for a part of them,
and with very many features for those that are not left out to judge it.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.arrays.libraries import NumPy, in_either_library, library_of
from sklearn_gn.optim.line_search import backtrack, insufficient_decrease
from sklearn_gn.optim.solver import Algorithm
from sklearn_gn.softmax_head import penalty, start
from sklearn_gn.softmax_head.blocks import class_blocks, n_slots, some_rows
from sklearn_gn.softmax_head.head import (
    AffineHead,
    BatchedRows,
    HeadOptions,
    head_report,
    objective,
    on_device,
    on_devices,
)
from sklearn_gn.softmax_head.whitening import (
    NewtonSettings,
    whitened_newton_direction,
    whitened_rows,
)

_CG_ITERATIONS = 100
# Slope of a step, over the loss, that ends near enough to a minimum to leave rows out,
_SETTLED = 0.01
_ROUGHLY = 0.05  # and for the evidence
_STRIDES = {True: (1.0,), False: (0.5, 0.5, 1.0)}  # decades from penalty to penalty
_HIGHER = 10**0.5  # first penalty where the logits have a factor, over the usual one
_CHOSEN = 1e12  # minus the criterion of a head at the chosen penalty, at least


class NewtonState(NamedTuple):
    """Head, gradient, and the phase of the method."""

    net: AffineHead
    loss: float
    gradient: AffineHead | None  # None at zero, before the start
    grad_norm: float
    # The loss; in a search minus the log posterior at the end of a penalty, so that
    # what cuts it short leaves the best head so far.
    criterion: float
    alpha: float
    epoch: int  # of the start; past the last one: Newton
    searching: bool = False  # for the penalty
    path: tuple = ()  # penalties that were tried, with what :func:`judged` says of them
    likeliest: AffineHead | None = None  # the head of the best of them
    slope: float = -math.inf  # of the last step
    anchor: tuple | None = None  # head and penalty of which the preconditioner is
    usual: int = 0  # CG iterations there
    last: int = 0
    last_step: AffineHead | None = None  # where damping makes steps short


class NewtonData(NamedTuple):
    """The rows, and what is computed of them when it is needed."""

    rows: BatchedRows  # on the device
    scaling: start.Scaling
    options: HeadOptions  # with the first penalty
    memo: dict  # the whitened rows; the preconditioner by the head of its making
    part: "NewtonData | None" = None  # on which a penalty is searched for
    factor: float = 1.0  # that a penalty grows by on these rows
    test: BatchedRows | None = None  # rows that are left out, which judge a penalty,
    n_test: float = math.nan  # and their number, by the weights
    iterations: np.int32 = np.int32(penalty.ITERATIONS)  # for the factor of logits


def prepare(rows, options):
    """Put the rows on the device, and choose those which a penalty is searched for on.

    A penalty is searched for on a part of many rows. Where neither the Hessian nor, of
    a part, its diagonal blocks are affordable, a fifth of the rows judges it.
    """
    scaling = start.feature_scaling(rows, bool(options.intercept))
    data = NewtonData(on_devices(rows, options), scaling, options, {})
    if options.n_effective is None:
        return data
    if not switches.on("heads.temperature"):
        data = data._replace(iterations=np.int32(0))
    n_classes = int(rows.label[: int(rows.n_rows)].max()) + 1
    some, factor = penalty.part_of(rows, options)
    part, whole = data, some is None
    if whole:
        some, factor = rows, 1.0
    else:  # a factor of the logits is of its number of rows
        options = options._replace(compiled=not options.on_host)
        placed = on_device(some, options)
        part = data._replace(rows=placed, memo={}, iterations=np.int32(0))
    shape = *some.x.shape, 1 if n_classes < 3 else n_classes
    affordable = penalty.hessian_is_affordable(*shape)
    affordable = affordable or (not whole and penalty.evidence_is_affordable(*shape))
    out = None
    if not affordable and switches.on("heads.held_out"):
        out = penalty.left_out(some)
    if out is not None:
        fitted, test = penalty.divided_in_two(some, out, part.rows, options)
        share = float(some.weight[out].sum() / some.weight.sum())
        n_test = share * options.n_effective / factor
        # What is compiled has one array of features, whose axes are those of all rows.
        memo = part.memo if options.compiled else {}
        part = part._replace(rows=fitted, test=test, n_test=n_test, memo=memo)
        factor /= 1 - share
    elif whole:
        return data
    options = at_penalty(options, options.alpha * factor)
    options = options._replace(n_effective=options.n_effective / factor)
    return data._replace(part=part._replace(options=options, factor=factor))


def rows_and_options(data, state):
    """The data, and the options, of the present step.

    Steps of a search are not damped: where they are short, a path of rough minima would
    end at another penalty.
    """
    data = data.part if data.part and state.searching else data
    options = at_penalty(data.options, state.alpha * data.factor)
    return data, options._replace(damping=None) if state.searching else options


def at_penalty(options, alpha):
    """The options with another penalty."""
    return options._replace(alpha=options.alpha.dtype.type(alpha))


def whitened(data):
    """The rows with whitened features, which the first Newton step needs."""
    if "whitened" not in data.memo:
        rows = data.rows
        if data.test is not None and data.options.compiled:
            # Directions of the rows left out alone would be blown up.
            rows = rows._replace(weight=rows.weight + data.test.weight)
        data.memo["whitened"] = whitened_rows(rows, data.options)
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
    )


# --- the iteration -------------------------------------------------------------------


def init(data, net, options):
    """Evaluate a given head; of one that is zero the loss is known."""
    searching = options.n_effective is not None
    alpha = float(options.alpha)
    if searching and data.part:
        alpha *= _HIGHER if data.part.iterations else 1
        data, options = data.part, data.part.options
    zero = not (np.any(net.weight) or np.any(net.bias))
    started = zero and _has_start(data, net)
    net = on_device(net, options)
    loss, gradient, grad_norm = math.log(max(len(net.bias), 2)), None, math.nan
    if not started:
        found = objective(net, data.rows, options)
        loss, gradient = float(found.loss), found.gradient
        grad_norm = float(found.grad_norm)
    return NewtonState(
        net=net,
        loss=loss,
        gradient=gradient,
        grad_norm=grad_norm,
        criterion=_CHOSEN if searching else loss,
        alpha=alpha,
        epoch=0 if started else start.n_passes(net),
        searching=searching,
    )


def _has_start(data, net):
    """Whether passes of mini-batches begin, which are too small for several devices."""
    return data.options.mesh is None and start.pays(net, int(data.rows.n_rows))


def step(data, state, options):
    """A pass of the start while these last, then a Newton step.

    In a search for the penalty, the next one follows when the minimum for the present
    one is near.
    """
    del options  # those of the data have the same, with the penalty of their rows
    rows, options = rows_and_options(data, state)
    state, report = _step_at_penalty(rows, state, options)
    report = report._replace(extra=report.extra | {"alpha": state.alpha})
    if not state.searching or report.stop == "non_finite":
        return state, report
    settled = _SETTLED if _by_leave_one_out(rows, state.net) else _ROUGHLY
    if report.stop or -state.slope <= settled * abs(state.loss):
        state = _next_penalty(data, state)
    return state, report._replace(stop=None)


def _step_at_penalty(data, state, options):
    """A pass, of more damping where the loss does not fall, or a Newton step."""
    n_passes = start.n_passes(state.net)
    while state.epoch < n_passes:
        net, damping = start.run_pass(
            state.net, data.rows, data.scaling, state.epoch, options
        )
        state = state._replace(epoch=state.epoch + 1)
        evaluation = objective(net, data.rows, options)
        loss = float(evaluation.loss)
        if loss < state.loss:
            if loss > (1 - start.LEAST_FALL) * state.loss:
                state = state._replace(epoch=n_passes)
            columns = {"step_size": 1.0, "damping": damping}
            return _finish(state, net, evaluation, options, **columns)
    return _newton_step(data, state, options)


def _newton_step(data, state, options):
    settings = newton_settings(options)
    if state.gradient is None:  # no pass was any good
        found = objective(state.net, data.rows, options)
        state = state._replace(
            gradient=found.gradient, grad_norm=float(found.grad_norm)
        )
    # 1. The rows of the Hessian. NumPy takes some of them for the first step, which is
    # far from the minimum. Compiled, one program is quicker to have than two.
    rows = whitened(data)
    if state.anchor is None and not options.compiled:
        rows = some_rows(rows, len(state.net.bias))
    # 2. The preconditioner.
    inverses, state = _preconditioner(data, state, settings)
    # 3. The direction, and the step length near the least loss along it.
    direction, length, slope, iterations = whitened_newton_direction(
        state.net, state.gradient, rows, inverses, settings, state.last_step
    )
    length, slope, iterations = float(length), float(slope), int(iterations)
    usual = state.usual or iterations
    state = state._replace(slope=slope, last=iterations, usual=usual)
    # 4. The line search.
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
    """Inverses of the class blocks, built again when CG has become slow."""
    m = state.net.bias.shape[0]
    some = some_rows(whitened(data), m)
    slots = n_slots(some, m)
    if not slots:
        return None, state
    if state.anchor is None or state.last > 2 * state.usual + 5:
        state = state._replace(anchor=(state.net, settings.alpha), usual=0)
    if data.memo.get("anchor") is not state.anchor:
        data.memo["anchor"] = state.anchor
        net, alpha = state.anchor
        settings = settings._replace(alpha=alpha)
        data.memo["inverses"] = class_blocks(net, some, settings, slots, inverses=True)
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
    if options.n_effective is not None and stop != "non_finite":
        # Heads of different penalties do not compare: the last one is the best, but for
        # those of a search that do not end it.
        if not state.searching:
            criterion = min(state.criterion, -_CHOSEN) - 1
        else:
            criterion = math.inf if state.path else state.criterion - 1
    elif not resolved:
        # Rounding errors hide the fall of the loss, but the gradient fell.
        criterion = min(loss, math.nextafter(state.criterion, -math.inf))
    state = state._replace(
        net=net,
        loss=loss,
        gradient=evaluation.gradient,
        grad_norm=float(evaluation.grad_norm),
        criterion=criterion,
    )
    return state, head_report(evaluation, stop, options, **columns)


# --- the penalty ---------------------------------------------------------------------


def _next_penalty(data, state):
    """Extend the path by what is said of the head, and go on to the next penalty."""
    rows, options = rows_and_options(data, state)
    path = (*state.path, (state.alpha, *judged(rows, options, state)))
    # Where rows are left out one by one, a minimum costs less than to judge it.
    strides = _STRIDES[_by_leave_one_out(rows, state.net)]
    alpha, last = penalty.next_alpha(path, strides)
    best = penalty.best_penalty(path)
    likeliest = state.net if best == state.alpha else state.likeliest
    # From the nearer one of the last head and the best one.
    distances = [abs(math.log(alpha / known)) for known in (state.alpha, best)]
    net = state.net if distances[0] <= distances[1] else likeliest
    state = state._replace(alpha=alpha, searching=not last, path=path)
    rows, options = rows_and_options(data, state)
    if last and data.part:
        net = on_device(net, options)
        # Rows that are new are met by a pass.
        epoch = start.n_passes(net) - _has_start(data, net)
        state = state._replace(epoch=epoch, anchor=None)
    found = objective(net, rows.rows, options)
    return state._replace(
        net=net,
        likeliest=likeliest,
        loss=float(found.loss),
        gradient=found.gradient,
        grad_norm=float(found.grad_norm),
        slope=-math.inf,
        last_step=None,
        criterion=-penalty.log_posterior(path[-1], path[0][0]),
    )


def _by_leave_one_out(data, net):
    shape = *data.rows.x.shape, len(net.bias)
    return data.test is None and penalty.hessian_is_affordable(*shape)


def judged(data, options, state):
    """Log evidence of a head, and the log probability of rows that are left out.

    None stands for what costs too much, or is not needed. The third is the factor of
    the logits with which rows that are left out are most probable.
    """
    net, settings = state.net, newton_settings(options)
    if data.test is not None:
        prior = options.alpha.dtype.type(penalty.PRIOR / data.n_test)
        loss, factor = penalty.held_out_loss(net, data.test, prior, data.iterations)
        value = -float(loss) * data.n_test
        return None, value if math.isfinite(value) else -math.inf, float(factor)
    whole, n_effective = whitened(data), options.n_effective
    value = -math.inf
    if switches.on("heads.evidence"):
        known = net, whole, state.loss, settings, n_effective
        value, _ = penalty.log_evidence(*known)
    if not _by_leave_one_out(data, net):
        return value, None, 1.0
    if options.compiled and (options.on_host or options.mesh is not None):
        from sklearn_gn.arrays.devices import gathered

        net, whole = gathered((net, whole))
    given = net, whole, settings, n_effective, int(data.iterations)
    return value, *penalty.log_predictive(*given)


def penalty_of_best(state):
    """The penalty of the best head: of the path, until there is one at the chosen."""
    if state.path and state.criterion > -_CHOSEN:
        return penalty.best_penalty(state.path)
    return state.alpha


NEWTON = Algorithm("fgn_newton", init, step, prepare=prepare)
SMALL_ALGORITHMS = {NEWTON.name: replace(NEWTON, compiled=False)}
