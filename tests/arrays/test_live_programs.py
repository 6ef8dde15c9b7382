"""The bound on compiled programs."""

import gc

import jax
import numpy as np
import pytest

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.arrays import programs

X = np.random.RandomState(0).randn(40, 12)
LABELS = np.arange(40) % 3
SOLVER = {"solver": "fgn", "alpha": 0.1, "max_iter": 1, "random_state": 0}


def alive():
    gc.collect()
    return len(jax.devices()[0].client.live_executables())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.slow
def test_a_search_keeps_a_bounded_number_of_programs(monkeypatch):
    FGNSoftmaxHead(**SOLVER).fit(X, LABELS)
    jax.clear_caches()
    before = alive()
    FGNSoftmaxHead(**SOLVER).fit(X, LABELS)
    of_one_fit = alive() - before
    assert of_one_fit >= 2
    monkeypatch.setattr(programs, "MOST", of_one_fit)
    monkeypatch.setattr(programs, "_counted", 0)
    counts = []
    for n_features in range(2, 8):  # each with programs of its own
        FGNSoftmaxHead(**SOLVER).fit(X[:, :n_features], LABELS)
        counts.append(alive() - before)
    assert max(counts) <= 2 * of_one_fit + 1
    monkeypatch.setattr(programs, "MOST", 500)
    for n_features in range(2, 5):
        FGNSoftmaxHead(**SOLVER).fit(X[:, :n_features], LABELS)
    assert alive() - before > 2 * of_one_fit + 1  # which is what the bound prevents
