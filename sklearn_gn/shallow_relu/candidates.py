"""Rows at which a round of relocation may add a breakpoint, and its random numbers."""

from functools import cached_property

import numpy as np

from sklearn_gn.shallow_relu.search import N_CANDIDATES


class Draws:
    """Random numbers of a round, for all starts of one series or of several."""

    def __init__(self, seeds, n_starts):
        self._seeds, self._n_starts = seeds, n_starts

    @cached_property
    def _generators(self):
        return [np.random.default_rng(int(seed)) for seed in self._seeds]

    def uniform(self, n, *times):
        """Return numbers from [0, 1) of shape (*times, n_series * n_starts, n)."""
        shape = *times, self._n_starts, n
        return np.concatenate([g.random(shape) for g in self._generators], axis=-2)


def candidate_rows(running, uniform, part=None):
    """Return row numbers, a random one of every 1/M of the rows; all of fewer."""
    m, n = uniform.shape[-1], running.size(2)
    if part is None:
        part = np.arange(m)
    else:
        uniform = np.take_along_axis(uniform, part, axis=-1)
    more = np.where(n > m, uniform, 0)
    return np.floor((part + more) * (n / m)).astype(np.intp)


def candidates_of(n_sets, running, random, plan):
    """Return the candidates of every addition to some sets of breakpoints."""
    few, n = plan.n_candidates < N_CANDIDATES, running.size(0)
    if few:
        drawn = random.uniform(N_CANDIDATES, plan.n_added, 2)
        order = drawn[:, 1].argpartition(plan.n_candidates, axis=-1)
        return [*candidate_rows(running, drawn[:, 0], order[..., : plan.n_candidates])]
    if np.ndim(n) == 0 and n <= N_CANDIDATES:  # all rows
        return [np.broadcast_to(np.arange(n), (n_sets, n))] * plan.n_added
    drawn = random.uniform(N_CANDIDATES, plan.n_added)
    return [_distinct(candidate) for candidate in candidate_rows(running, drawn)]


def _distinct(candidate):
    """Return ascending candidates (B, M) without the columns that repeat the last."""
    new = np.any(candidate[:, 1:] > candidate[:, :-1], axis=0)
    return candidate[:, np.concatenate([[True], new])]
