"""The benchmark of default settings, on small data."""

import numpy as np
import pytest

from benchmarks import defaults


def test_networks_without_noise_are_recovered_by_defaults():
    (answer,) = defaults.recovery(quick=True).values()
    assert answer["recovered"] == 2
    assert answer["seconds"] <= answer["most_seconds"]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_table_has_every_regressor_and_its_standing():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = np.abs(X[:, 0]) + 0.1 * rng.standard_normal(60)
    problems = {"kink": defaults.table_answer("kink", X, y, quick=True)}
    methods = problems["kink"]["methods"]
    assert set(methods) == set(defaults.regressors(0))
    assert {len(answer["runs"]) for answer in methods.values()} == {defaults.FOLDS}
    standing = defaults.standing(problems)
    r2 = {m: np.mean([run["r2"] for run in a["runs"]]) for m, a in methods.items()}
    ours = r2.pop(defaults.OURS)
    level = ours >= max(r2.values()) - defaults.LEVEL
    assert standing["level_or_ahead"] == (["kink"] if level else [])
    assert standing["below_ridge"] == pytest.approx(r2["ridge"] - ours)
