"""The search for many series of one feature at once, each from its own starts."""

import math

import jax
import numpy as np

from sklearn_gn.core.compilation import jit_by_size
from sklearn_gn.core.solver import Report
from sklearn_gn.shallow_relu.search import (
    N_KEPT,
    ROUND_TOL,
    Phase,
    SearchState,
    keep_better,
    round_plan,
)
from sklearn_gn.shallow_relu.segmented import (
    ENGINE,
    START_STEPS,
    Parts,
    descend_all,
    rearrange_all,
    relocate,
    shrink_all,
)
from sklearn_gn.shallow_relu.sorted_rows import LEFT, RIGHT


def fit_many(prepared, nets, options):
    """Fit series of one padded length side by side, each from its own starts.

    Parameters
    ----------
    prepared : list of Data
        What the engine of one feature makes of the rows.
    nets : list of ShallowReLU
        Stacks of as many starts for each series.
    options : list of FitOptions
        They differ in their seeds only.

    Returns
    -------
    list of pairs
        The network of every series, and its reports.
    """
    # Numbers of series up to a power of two share what is compiled.
    padding = (1 << (len(nets) - 1).bit_length()) - len(nets)
    padded = [*prepared, *prepared[:1] * padding]
    running = jax.tree.map(lambda *a: np.stack(a), *(p.running for p in padded))
    running = jax.device_put(running)
    common, n_neurons = options[0], int(np.sum(nets[0].alive[0]))
    all_seeds = np.array([o.seed for o in options] + [0] * padding, np.int32)
    starts = [ENGINE.start(None, net, common)[0] for net in nets]
    knots = np.stack([*starts, *starts[:1] * padding])
    knots, losses, counts = _descended(knots, running, ROUND_TOL)
    kept = np.argsort(losses, axis=1, kind="stable")[:, :N_KEPT]
    knots = np.take_along_axis(knots, kept[:, :, None], axis=1)
    losses = np.take_along_axis(losses, kept, axis=1)
    history = [(_lowest_losses(knots, losses, padded), counts)]
    for round_ in range(int(common.relocations)):
        seeds, plan = all_seeds ^ np.int32(round_), round_plan(round_)
        found = relocate(_MANY, knots, running, seeds, plan, n_neurons)
        knots, losses = keep_better(
            knots, losses, found.knots, np.array(found.penalised)
        )
        counts = np.array(found.count).max(axis=1)
        history.append((_lowest_losses(knots, losses, padded), counts))
    knots, losses, counts = _descended(knots, running, common.tol)
    answers = []
    for k, (data, option) in enumerate(zip(prepared, options, strict=True)):
        state = SearchState(
            None, math.inf, knots[k], losses[k], n_neurons, False, Phase.END
        )
        best = ENGINE.best_network(data, state, option)
        last = Report(
            loss=best.loss,
            grad_norm=best.grad_norm,
            inner_iterations=int(counts[k]) + best.n_steps,
            stop="rounding" if best.rounding else "tol",
        )
        ties = 0.5 * float(data.rows.tie_variance.sum())
        reports = [
            Report(float(loss[k]) + ties, math.nan, inner_iterations=int(count[k]))
            for loss, count in history
        ]
        answers.append((best.net, [*reports, last]))
    return answers


def _descended(knots, running, tol):
    """Breakpoints, penalised losses, and steps of every series."""
    found = _MANY.descend(knots, running, START_STEPS, tol)
    counts = np.array(found.count).max(axis=1)
    return np.array(found.knots), np.array(found.penalised), counts


@jit_by_size
def _rearrange_many(knots, running, seeds, plan):
    return jax.vmap(lambda t, s, seed: rearrange_all(t, s, seed, plan))(
        knots, running, seeds
    )


@jit_by_size
def _descend_many(knots, running, n_steps, tol):
    return jax.vmap(lambda t, s: descend_all(t, s, n_steps, tol))(knots, running)


@jit_by_size
def _shrink_many(knots, running, n_neurons):
    return jax.vmap(lambda t, s: shrink_all(t, s, n_neurons))(knots, running)


_MANY = Parts(_rearrange_many, _descend_many, _shrink_many)


def _lowest_losses(knots, values, prepared):
    """Return the losses of the best starts of all series, without the penalties."""
    best = np.argmin(values, axis=1)
    t = knots[np.arange(len(best)), best]
    inside = np.sum((t > LEFT) & (t < RIGHT), axis=1)
    n = np.array([len(p.rows.x) for p in prepared])
    return values.min(axis=1) / np.exp(inside * np.log(n) / n)
