"""The search for many series of one feature at once, each from its own starts."""

import math

import numpy as np

from sklearn_gn.optim.solver import Report
from sklearn_gn.shallow_relu.candidates import Draws
from sklearn_gn.shallow_relu.one_feature import (
    ENGINE,
    START_STEPS,
    descend_all,
    relocate,
)
from sklearn_gn.shallow_relu.search import (
    N_KEPT,
    ROUND_TOL,
    Phase,
    SearchState,
    keep_better,
    round_plan,
)
from sklearn_gn.shallow_relu.sorted_rows import LEFT, RIGHT, StackedSums


def fit_many(prepared, nets, options):
    """Fit series of one padded length side by side, each from its own starts."""
    common, n_neurons = options[0], int(np.sum(nets[0].alive[0]))
    pairs = zip(prepared, nets, strict=True)
    starts = [ENGINE.start(data, net, common)[0] for data, net in pairs]
    running, n = [p.running for p in prepared], len(prepared)

    def separated(outcome):
        """Breakpoints, losses and steps by series."""
        knots, losses, count = outcome.starts, outcome.losses, outcome.n_steps
        knots = knots.reshape(n, -1, knots.shape[1])
        return knots, losses.reshape(n, -1), count.reshape(n, -1).max(axis=1)

    def all_starts(knots):
        sums = StackedSums.stack(running, knots.shape[1])
        return knots.reshape(-1, knots.shape[2]), sums

    found = descend_all(*all_starts(np.stack(starts)), START_STEPS, ROUND_TOL)
    knots, losses, counts = separated(found)
    kept = np.argsort(losses, axis=1, kind="stable")[:, :N_KEPT]
    knots = np.take_along_axis(knots, kept[:, :, None], axis=1)
    losses = np.take_along_axis(losses, kept, axis=1)
    history = [(_lowest_losses(knots, losses, prepared), counts)]
    for round_ in range(int(common.relocations)):
        random = Draws([o.seed ^ round_ for o in options], kept.shape[1])
        found = relocate(*all_starts(knots), random, round_plan(round_), n_neurons)
        *moved, counts = separated(found)
        knots, losses = keep_better(knots, losses, *moved)
        history.append((_lowest_losses(knots, losses, prepared), counts))
    found = descend_all(*all_starts(knots), START_STEPS, common.tol)
    knots, losses, counts = separated(found)
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


def _lowest_losses(knots, values, prepared):
    """Return the losses of the best starts of all series, without the penalties."""
    best = np.argmin(values, axis=1)
    t = knots[np.arange(len(best)), best]
    inside = np.sum((t > LEFT) & (t < RIGHT), axis=1)
    n = np.array([len(p.rows.x) for p in prepared])
    return values.min(axis=1) / np.exp(inside * np.log(n) / n)
