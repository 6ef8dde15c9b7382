"""Benchmarks of variable projection."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.utils import Bunch

from benchmarks import (
    _data,
    _surrogates,
    _varpro,
    varpro_images,
    varpro_tabular,
)
from sklearn_gn import VarProNetRegressor
from sklearn_gn.arrays import backend
from sklearn_gn.networks import MLP
from sklearn_gn.solvers import GNvpro


def test_a_surrogate_may_be_centred_by_its_training_rows():
    rng = np.random.default_rng(0)
    bunch = Bunch(data=rng.random((6, 2)), target=rng.random((6, 25)) + 1)
    bunch.update(train=[4, 0, 1], validation=[2], test=[3, 5])
    plain = _surrogates.surrogate("s", bunch).parts
    np.testing.assert_array_equal(plain["test"][0], bunch.data[[3, 5]])
    np.testing.assert_array_equal(plain["test"][1], bunch.target[[3, 5]])
    parts = _surrogates.surrogate("s", bunch, center=True, quick=True).parts
    assert parts["train"][1].shape == (3, 2)
    mean = bunch.target[[4, 0, 1]].mean(axis=0)
    expected = (bunch.target[[2]] - mean)[:, [0, 20]]
    np.testing.assert_allclose(parts["validation"][1], expected, rtol=1e-12)


def test_relative_error_is_the_mean_over_the_samples():
    target = np.array([[3.0, 4.0], [0.0, 2.0]])
    prediction = target + np.array([[0.0, 1.0], [1.0, 0.0]])
    assert math.isclose(_varpro.relative_error(target, prediction), (1 / 5 + 1 / 2) / 2)


@pytest.mark.parametrize(("higher", "best"), [(True, 3.0), (False, 1.0)])
def test_the_best_candidate_is_never_not_a_number(higher, best):
    problem = _varpro.Problem("p", {}, None, higher)
    assert problem.best([math.nan, 2.0, 1.0, 3.0], lambda figure: figure) == best


def points_of(*units, **columns):
    """Points of a fit with these work units."""
    return [
        {"iteration": k + 1, "work_units": float(work), "seconds": k + 1.0, "level": 0}
        | {name: values[k] for name, values in columns.items()}
        for k, work in enumerate(units)
    ]


def test_points_within_a_budget():
    points = points_of(45, 90, 140)
    assert _varpro.within(points, 139) == points[:2]
    assert _varpro.within(points, 140) == points
    assert _varpro.within(points, 1) == points[:1]


def test_iterations_within_a_budget():
    first, last = points_of(50, 100)
    assert not _varpro.spent(first, 100)
    assert _varpro.spent(last, 149)  # another would exceed it
    assert _varpro.following(9, last, 149) == 2
    assert not _varpro.spent(last, 200)
    assert _varpro.following(2, last, 200) == 4  # the budget allows twice as many
    assert _varpro.following(3, last, 200) == 3  # it stopped by itself after two


def test_the_middle_run_has_the_median_figure():
    recorded = [points_of(1, 2, test=[0.0, last]) for last in (0.3, 0.1, 0.4, 0.2)]
    assert _varpro.middle(recorded) == 3
    assert _varpro.curve(recorded[3]) == {
        "work_units": [1.0, 2.0],
        "seconds": [1.0, 2.0],
        "level": [0, 0],
        "test": [0.0, 0.2],
    }


def test_standing_is_that_on_the_same_seed():
    def answer(*tests):
        return {"runs": [{"seed": s, "test": test} for s, test in enumerate(tests)]}

    answers = {"ours": answer(0.1, 0.2, 0.4), "theirs": answer(0.2, 0.2, 0.2)}
    answers["fixed"] = {"runs": [{"seed": None, "test": 0.6}]}
    _varpro.add_standing(answers, "ours", "over", np.divide)
    over = [run["over"] for run in answers["theirs"]["runs"]]
    np.testing.assert_allclose(over, [2, 1, 0.5])
    assert math.isclose(answers["fixed"]["summary"]["over"]["median"], 3)
    assert "over" not in answers["ours"]["runs"][0]


def test_ahead_compares_with_what_the_other_had_by_then():
    ours = points_of(10, 20, 30, test=[0.5, 0.6, 0.7])
    theirs = points_of(15, 20, 29, 31, test=[0.4, 0.6, 0.65, 0.9])
    # Nothing yet, a tie, less.
    assert varpro_images.ahead(ours, theirs, "work_units") == 2 / 3
    assert varpro_images.ahead(ours, theirs, "seconds") == 2 / 3
    last = ours[-1]
    assert not varpro_images.beyond(last)({"work_units": 61.0, "seconds": 5.0})
    assert varpro_images.beyond(last)({"work_units": 61.0, "seconds": 6.0})


def test_seconds_of_a_recorder_leave_out_the_scoring():
    log = []
    run = SimpleNamespace(log=log, rows=None, options=None, final_state=None)
    run.final_state = SimpleNamespace(net=None)
    estimator = SimpleNamespace(_fit_run=run)
    iteration, fit = (SimpleNamespace(max_subtasks=n) for n in (0, 9))
    recorder = _varpro.Recorder(
        lambda model: {"test": len(log)}, until=lambda p: p["work_units"] > 6, every=2
    )
    answers = []
    for k in range(3):
        log.append({"iteration": k + 1, "work_units": 3 * k, "time": k + 1, "level": 0})
        recorder.seconds_scoring = 0.5 * k
        answers.append(
            recorder.on_fit_task_end(estimator, iteration, fitted_estimator=None)
        )
    recorder.seconds_scoring = 1.0
    recorder.on_fit_task_end(estimator, fit, fitted_estimator=None)
    recorder.on_fit_task_end(estimator, fit, fitted_estimator=None)
    assert answers == [False, False, False]
    kept = [(p["iteration"], p["seconds"], p["test"]) for p in recorder.points]
    assert kept == [(2, 1.5, 2), (3, 2.0, 3)]  # the end is recorded, once


def smooth_problem():
    """32 rows, which are training, validation and test data alike."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((32, 2))
    Y = np.column_stack([np.sin(X[:, 0]), X[:, 0] * X[:, 1]])
    parts = {name: (X, Y) for name in ("train", "validation", "test")}
    return _varpro.Problem("p", parts, _varpro.relative_error, higher=False)


def test_a_recorded_fit_ends_with_the_figures_of_its_model():
    problem = smooth_problem()
    X, Y = problem.train
    estimator = VarProNetRegressor(
        network=MLP((3,)),
        solver=GNvpro(curvature="krylov"),
        alpha=1e-6,
        tol=0.0,
        random_state=0,
    )
    until = partial(_varpro.spent, units=100)
    model, recorder = _varpro.recorded_fit(estimator, problem, until=until)
    assert model.stop_reason_ == "callback"
    last = recorder.points[-1]
    assert last["work_units"] == model.convergence_log_["work_units"][-1] <= 100
    error = _varpro.relative_error(Y, model.predict(X))
    assert last["test"] == pytest.approx(error, rel=1e-9)
    assert recorder.trials_per_step >= 1
    # The inner problems that are timed are those of the fit.
    with backend.scope("float64"):
        for net in recorder.nets:
            start = np.zeros_like(net.output)
            output, seconds = _varpro._timed_solution(
                recorder.settings, recorder.rows, net.theta, start
            )
            np.testing.assert_allclose(output, net.output, rtol=1e-6, atol=1e-8)
            assert seconds > 0
    assert 0 < _varpro.inner_seconds(recorder, "float64")


@pytest.mark.parametrize(("batch_size", "every"), [(None, 3), (16, 1), (16, 3)])
def test_inner_problems_of_all_iterations_count(monkeypatch, batch_size, every):
    problem = smooth_problem()
    X, Y = problem.train
    estimator = VarProNetRegressor(
        hidden_layer_sizes=(3,),
        solver=GNvpro(curvature="krylov", batch_size=batch_size),
        max_iter=9,
        tol=0.0,
        random_state=0,
    )
    model, recorder = _varpro.recorded_fit(estimator, problem, every=every)
    # The last network is evaluated on all rows, whether it was recorded before or not.
    last = _varpro.relative_error(Y, model.predict(X))
    assert recorder.points[-1]["test"] == pytest.approx(last, rel=1e-9)

    def a_second(options, rows, theta, start):
        return start, 1.0

    monkeypatch.setattr(_varpro, "_timed_solution", a_second)
    expected = 9 * (1 + recorder.trials_per_step)
    if batch_size is not None:
        expected += 9 * (1 + np.mean(recorder.evaluated[1:]))
        assert every > 1 or not all(recorder.evaluated)
    assert _varpro.inner_seconds(recorder, "float64") == pytest.approx(expected)


def test_a_standardised_regressor_predicts_in_the_users_units():
    rng = np.random.default_rng(0)
    X = rng.uniform(5, 9, (20, 3))
    Y = 100 + X @ rng.standard_normal((3, 2)) * 50
    model = _surrogates.Standardised(LinearRegression(), X, Y)
    inputs, targets = model.rows
    np.testing.assert_allclose(inputs.std(axis=0), 1)
    np.testing.assert_allclose(targets.mean(axis=0), 0, atol=1e-10)
    assert math.isclose(np.mean(targets.var(axis=0)), 1)
    assert model.fit() > 0
    np.testing.assert_allclose(model.predict(X), Y)


def test_a_task_splits_by_the_seed_or_as_usual():
    X, y = np.arange(16.0).reshape(8, 2), np.arange(8.0)
    task = varpro_tabular.Task("t", (X, y), {})
    first, again, other = (task.split(seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.X_test, again.X_test)
    assert not np.array_equal(first.X_test, other.X_test)
    assert sorted([*first.y_train, *first.y_test]) == y.tolist()
    usual = _data.Split(X[:6], y[:6], X[6:], y[6:])
    assert varpro_tabular.Task("t", usual, {}).split(3) is usual
