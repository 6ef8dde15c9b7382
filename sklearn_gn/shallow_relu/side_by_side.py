"""The search for many series of one feature at once, each from its own starts."""

import math

import jax
import numpy as np

from sklearn_gn.core.solver import Report
from sklearn_gn.shallow_relu.search import (
    N_KEPT,
    ROUND_TOL,
    Phase,
    RoundPlan,
    SearchState,
    keep_better,
    round_plan,
)
from sklearn_gn.shallow_relu.segmented import ENGINE, descend_all, relocate_all
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
    knots, losses, counts = map(np.array, _descend_many(knots, running, ROUND_TOL))
    kept = np.argsort(losses, axis=1, kind="stable")[:, :N_KEPT]
    knots = np.take_along_axis(knots, kept[:, :, None], axis=1)
    losses = np.take_along_axis(losses, kept, axis=1)
    history = [(_lowest_losses(knots, losses, padded), counts)]
    for round_ in range(int(common.relocations)):
        found, new, counts = _relocate_many(
            knots,
            running,
            all_seeds ^ np.int32(round_),
            RoundPlan(*map(np.int32, round_plan(round_))),
            np.int32(n_neurons),
        )
        knots, losses = keep_better(knots, losses, found, np.array(new))
        history.append((_lowest_losses(knots, losses, padded), np.array(counts)))
    knots, losses, counts = map(np.array, _descend_many(knots, running, common.tol))
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


@jax.jit
def _descend_many(knots, running, tol):
    return jax.vmap(lambda t, s: descend_all(t, s, tol))(knots, running)


@jax.jit
def _relocate_many(knots, running, seeds, plan, n_neurons):
    return jax.vmap(lambda t, s, seed: relocate_all(t, s, seed, plan, n_neurons))(
        knots, running, seeds
    )


def _lowest_losses(knots, values, prepared):
    """Return the losses of the best starts of all series, without the penalties."""
    best = np.argmin(values, axis=1)
    t = knots[np.arange(len(best)), best]
    inside = np.sum((t > LEFT) & (t < RIGHT), axis=1)
    n = np.array([len(p.rows.x) for p in prepared])
    return values.min(axis=1) / np.exp(inside * np.log(n) / n)
