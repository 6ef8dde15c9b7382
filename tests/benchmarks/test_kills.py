"""Fits that are killed and interrupted; all solvers are in the benchmark."""

import numpy as np
import pytest

from benchmarks import _kills, kills


@pytest.mark.parametrize(
    ("name", "solver"), [("ShallowReLURegressor", "default"), ("PINNSolver", "dngd")]
)
@pytest.mark.slow
def test_kills_and_interrupts_lose_nothing(name, solver):
    found = kills.worker(name, solver, 2, seed=1)
    assert (found["kills"], found["interrupts"]) == (2, 2)
    wrong = ("lost", "unequal", "left_files", "unusable")
    assert [found[key] for key in wrong] == [0, 0, 0, 0]
    assert found["ends"] >= 1


def test_fits_that_differ_are_seen():
    whole = {"loss": np.array([3.0, 2.0, np.nan]), "answer": np.ones(2)}
    assert _kills.equal(whole, {k: v.copy() for k, v in whole.items()})
    assert not _kills.equal(whole, {**whole, "answer": np.ones(2) + 1e-15})
    assert not _kills.equal(whole, {"loss": whole["loss"]})
    assert _kills.usable({**whole, "loss": np.array([3.0, 1.0])}, whole)
    assert not _kills.usable({**whole, "loss": np.array([3.1, 1.0])}, whole)
    assert not _kills.usable({**whole, "answer": np.array([np.nan])}, whole)


def test_all_solvers_have_a_share_of_the_fifty():
    for name in kills.NAMES:
        parts = kills.spread(kills.N, len(_kills.solvers(name)))
        assert sum(parts) == kills.N
        assert min(parts) >= 4
