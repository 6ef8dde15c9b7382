"""The benchmark of default settings, on small data."""

import numpy as np
import pytest

from benchmarks import defaults


def test_networks_without_noise_are_recovered_by_defaults():
    (answer,) = defaults.recovery(quick=True).values()
    assert answer["recovered"] == 2
    assert answer["seconds"] <= answer["most_seconds"]


def test_a_table_has_every_regressor_and_its_standing():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = np.abs(X[:, 0]) + 0.1 * rng.standard_normal(60)
    answers = defaults.rows(X, y, classes=False, quick=True)
    searched = {f"{name}_searched" for name in defaults.SPACES}
    assert set(answers) == {*defaults.regressors(), *searched}
    slow = {"varpro_net", "random_forest"}  # here
    methods = {m: answers[m]() for m in answers if m not in {*searched, *slow}}
    assert {len(answer["runs"]) for answer in methods.values()} == {defaults.FOLDS}
    standing = defaults.standing({"kink": {"methods": methods}})
    r2 = {m: np.mean([run["r2"] for run in a["runs"]]) for m, a in methods.items()}
    peers = [value for m, value in r2.items() if m not in defaults.OURS]
    for ours in set(defaults.OURS) - slow:
        level = r2[ours] >= max(peers) - defaults.LEVEL
        assert standing[ours]["level_or_ahead"] == (["kink"] if level else [])
        assert standing[ours]["below_ridge"] == pytest.approx(r2["ridge"] - r2[ours])


def test_a_classifier_stands_below_a_peer_of_higher_log_loss():
    def problem(**losses):
        runs = {m: {"runs": [{"log_loss": loss}]} for m, loss in losses.items()}
        return {"methods": runs}

    ours = dict.fromkeys(defaults.OUR_CLASSIFIERS, 0.2)
    problems = {"a": problem(**ours, mlp=0.1), "b": problem(**ours, mlp=0.3)}
    standing = defaults.standing_of_classifiers(problems)
    assert set(standing) == set(defaults.OUR_CLASSIFIERS)
    assert all(answer["mlp"] == ["b"] for answer in standing.values())


@pytest.mark.slow
def test_a_slow_peer_has_one_fold():
    X, y = np.random.default_rng(0).standard_normal((2, 60, 1))
    ridge, data = defaults.regressors()["ridge"], (X, y[:, 0])
    found = defaults.limited_row(ridge, *data, limit=60)
    first = defaults.row(ridge, *data)["runs"][0]
    assert [run["r2"] for run in found["runs"]] == [first["r2"]]


def test_a_peer_that_is_too_slow_is_named_as_skipped():
    X, y = np.random.default_rng(0).standard_normal((2, 60, 1))
    ridge, data = defaults.regressors()["ridge"], (X, y[:, 0])
    found = defaults.row(ridge, *data)
    problem = {"methods": {}, "skipped": {}}
    late = defaults.limited_row(ridge, *data, limit=0)
    defaults.add_row(problem, "table", "ridge", lambda: late)
    assert problem == {"methods": {}, "skipped": {"ridge": problem["skipped"]["ridge"]}}
    assert not defaults.wanted(set(), {"table"}, problem, "table", "ridge")
    assert defaults.wanted({"ridge"}, {"table"}, problem, "table", "ridge")
    defaults.add_row(problem, "table", "ridge", lambda: found)
    assert problem == {"methods": {"ridge": found}, "skipped": {}}


def test_a_search_names_the_parameters_it_chose(monkeypatch):
    space = defaults.SPACES["hist_gradient_boosting"]
    monkeypatch.setitem(space, "max_iter", [5, 10])
    X, y = np.random.default_rng(0).standard_normal((2, 60, 1))
    answers = defaults.rows(X, y[:, 0], classes=False, quick=True)
    answer = answers["hist_gradient_boosting_searched"]()
    assert set(answer["settings"]) == set(defaults.SPACES["hist_gradient_boosting"])
    assert answer["search_seconds"] > 0
