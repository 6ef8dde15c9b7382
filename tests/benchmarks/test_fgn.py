"""Benchmarks of the softmax heads."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import BaseEstimator

from benchmarks import __main__ as runner
from benchmarks import (
    _data,
    _report,
    fgn_heads,
    fgn_mechanism,
)
from sklearn_gn import solvers
from sklearn_gn.arrays import backend
from sklearn_gn.softmax_head import minibatch

ROOT = Path(__file__).parents[2]


def small_heads(**changes):
    sizes = {"n_train": 60, "n_test": 40, "n_features": 5, "n_classes": 7, "rank": 4}
    return _data.cars_like(0, **sizes, separation=1.0, **changes)


class Halving(BaseEstimator):
    """Has the gap ``2^-n_iter``, and stops at a number of iterations."""

    solver = "halving"

    def __init__(self, max_iter=1, last=10**6):
        self.max_iter = max_iter
        self.last = last

    def fit(self, X, y):
        self.n_iter_ = min(self.max_iter, self.last)
        return self


class HalvingProblem:
    data = small_heads()
    rows = {"float64": data.X_train}

    def __init__(self, seconds):
        self.seconds = seconds  # of an iteration
        self.fits = []

    def fit(self, estimator, dtype):
        model = estimator.fit(self.rows[dtype], self.data.y_train)
        self.fits.append(model.n_iter_)
        return model, self.seconds * model.n_iter_

    def gap(self, model):
        return 2.0**-model.n_iter_

    def scores(self, model):
        return 1 - self.gap(model), 1.0


def search_of(estimator, seconds=1.0, limit=60):
    problem = HalvingProblem(seconds)
    return fgn_heads.Search("halving", estimator, "float64", problem, limit), problem


@pytest.mark.parametrize("iterations", [1, 2, 3, 5, 11, 20])
def test_search_finds_the_fewest_iterations(iterations):
    search, problem = search_of(Halving())
    reached = partial(fgn_heads.Fit.within, gap=2.0**-iterations)
    fit = search.least(reached)
    assert (fit.max_iter, fit.n_iter, fit.seconds) == (iterations,) * 3
    assert len(problem.fits) == len(set(problem.fits))  # none is fitted twice
    assert search.least(reached) is fit
    assert search.best().n_iter == max(problem.fits)


@pytest.mark.parametrize(
    ("estimator", "seconds", "gap", "fits"),
    [
        (Halving(), 15.0, 2.0**-21, [1, 2, 4]),  # the next would exceed the limit
        (Halving(last=6), 1.0, 2.0**-7, [1, 2, 4, 6]),  # stopped by itself
        (Halving(), 1.0, 0.0, [1, 2, 4, 8, 16, 32]),  # at the minimum
    ],
)
def test_search_ends(estimator, seconds, gap, fits):
    search, problem = search_of(estimator, seconds)
    assert search.least(partial(fgn_heads.Fit.within, gap=gap)) is None
    assert problem.fits == fits
    assert search.why_not()


def test_objective_is_the_sum_over_rows_and_gradient_its_derivative():
    data, alpha = small_heads(), 0.03
    codes = data.y_train
    rng = np.random.default_rng(1)
    coef, intercept = rng.standard_normal((7, 5)), rng.standard_normal(7)

    def objective(coef, intercept):
        return fgn_heads.objective(coef, intercept, data.X_train, codes, alpha)

    losses = [
        math.log(sum(math.exp(w @ x + b) for w, b in zip(coef, intercept, strict=True)))
        - (coef[k] @ x + intercept[k])
        for x, k in zip(data.X_train, codes, strict=True)
    ]
    expected = sum(losses) / len(losses) + alpha / 2 * sum(w**2 for w in coef.flat)
    assert math.isclose(objective(coef, intercept), expected, rel_tol=1e-10)

    by_coef, by_intercept = fgn_heads.gradient(
        coef, intercept, data.X_train, codes, alpha
    )
    step, direction = 1e-5, rng.standard_normal((7, 5))
    up, down = (objective(coef + s * direction, intercept) for s in (step, -step))
    slope = np.sum(by_coef * direction)
    assert math.isclose((up - down) / (2 * step), slope, rel_tol=1e-7)
    up, down = (objective(coef, intercept + s * direction[:, 0]) for s in (step, -step))
    slope = by_intercept @ direction[:, 0]
    assert math.isclose((up - down) / (2 * step), slope, rel_tol=1e-7)


def test_a_result_has_every_figure_of_every_method(monkeypatch):
    full = fgn_heads.methods

    def two(alpha, n):
        table = full(alpha, n)
        kept = {"fgn_newton", "newton-cg", "newton-cholesky"}
        return {name: method for name, method in table.items() if name in kept}

    monkeypatch.setattr(fgn_heads, "methods", two)
    monkeypatch.setattr(fgn_heads, "compile_seconds", lambda *args: 0.5)
    monkeypatch.setattr(fgn_heads, "LARGEST_HESSIAN", 41)
    monkeypatch.setattr(fgn_heads, "MANY_CLASSES", 7)
    answer = fgn_heads.run_problem(small_heads(), 1e-2, repetitions=2, limit=20)
    assert set(answer["methods"]) == {"fgn_newton", "newton-cg"}
    compiling = {name: m["compile_seconds"] for name, m in answer["methods"].items()}
    assert compiling == {"fgn_newton": 0.5, "newton-cg": 0.0}
    assert "42 rows" in answer["skipped"]["newton-cholesky"]
    assert answer["reference"]["gap_at_most"] <= fgn_heads.CERTAIN
    assert abs(answer["reference"]["least_gap"]) <= float(fgn_heads.GAPS[-1])
    for method in answer["methods"].values():
        assert len(method["runs"]) == 2
        assert method["not_reached"].keys() <= {"accuracy"}
        for run in method["runs"]:
            assert 0 < run["iterations_1e-4"] <= run["iterations_1e-8"]
            assert run["accuracy"] <= run["top5"] <= 1
    ours, peer = (answer["methods"][name] for name in ("fgn_newton", "newton-cg"))
    least = peer["summary"]["seconds_1e-8"]["median"]
    for run in ours["runs"]:
        assert run["speedup_1e-8"] == least / run["seconds_1e-8"]
    assert "speedup_1e-8" not in peer["summary"]
    assert _report.tables({"problems": {"p": answer}, "notes": []})


def test_a_users_features_take_the_place_of_the_data_sets(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **small_heads()._asdict())
    args = runner.parse(["fgn_heads", "--quick", "--features", str(path)])
    ((name, load),) = fgn_heads.data_sets(args).items()
    assert name == "mine"
    np.testing.assert_array_equal(load().X_train, small_heads().X_train)
    assert runner.parse(["fgn_heads"]).data == ROOT / "benchmarks" / "data"


def test_traces_are_those_of_the_papers_formulas():
    answer = fgn_mechanism.trace_problem()
    assert answer["target"]["passed"]
    xi = np.array(answer["dispersion"])
    np.testing.assert_allclose(xi[[0, -1]], [0, 1 - 1 / 9], rtol=0, atol=1e-12)
    expected = {
        "retained": 0.24 * (2 - xi),
        "dropped": 0.4 * xi,
        "full": 0.48 + 0.16 * xi,
    }
    for name, values in expected.items():
        np.testing.assert_allclose(answer[name], values, rtol=0, atol=1e-12)


def test_decrease_is_that_of_the_papers_construction():
    answer = fgn_mechanism.decrease_problem()
    assert answer["target"]["passed"]
    A = np.array([[-1, 1.25], *([1, 3 * t] for t in np.linspace(-1, 1, 9))])
    unit = 0.7 * 0.3 * (2**2 + (-3 - 1.25) ** 2) / 2  # rho = e_1
    for k in (0, 30, 77, 100):
        alpha = fgn_mechanism.ALPHA[k]
        rho = (1 - alpha) * np.eye(9)[0] + alpha / 9
        assert math.isclose(answer["dispersion"][k], 1 - rho @ rho, abs_tol=1e-12)
        p = np.array([0.7, *(0.3 * rho)])
        g = A.T @ (p - np.eye(10)[0])
        full = A.T @ (np.diag(p) - np.outer(p, p)) @ A
        v = A[1:].T @ rho - A[0]
        for scale, fractions in answer["fraction"].items():
            shift = float(scale) * unit * np.eye(2)

            def decrease(d, full=full + shift, g=g):
                return -(g @ d + d @ full @ d / 2)

            by_fgn, by_full = (
                decrease(-np.linalg.solve(matrix + shift, g))
                for matrix in (0.7 * 0.3 * np.outer(v, v), full)
            )
            assert math.isclose(fractions[k], by_fgn / by_full, rel_tol=1e-9)
    assert all(math.isclose(f[0], 1) for f in answer["fraction"].values())


def test_steps_are_timed_in_turn_and_their_memory_counted(monkeypatch):
    taken = []
    original = fgn_mechanism.Stepper.seconds

    def watched(stepper, n_steps):
        taken.append((stepper, n_steps))
        return original(stepper, n_steps)

    monkeypatch.setattr(fgn_mechanism.Stepper, "seconds", watched)
    monkeypatch.setattr(fgn_mechanism, "ROUNDS", 2)
    monkeypatch.setattr(fgn_mechanism, "MANY_CLASSES", 40)
    sizes = fgn_mechanism.Sizes(64, 48, 32, (40,), most_steps=4, least_steps=4)
    ((name, answer),) = fgn_mechanism.step_problems(sizes).items()
    assert name == "steps_40"
    steppers = [stepper for stepper, _ in taken]
    assert steppers == 4 * steppers[:4]  # two rounds of warm-up and two that count
    assert len(set(steppers)) == 4
    assert {n_steps for _, n_steps in taken} == {2}

    methods = answer["methods"]
    # More classes than rows of a batch: the package keeps no Grams.
    assert methods["fgn"]["settings"] == {"same_as": "fgn_uncached"}
    assert methods["fgn"]["runs"] == methods["fgn_uncached"]["runs"]
    for method in methods.values():
        assert len(method["runs"]) == 2
        for run, by_adam, by_fgn in zip(
            method["runs"], methods["adam"]["runs"], methods["fgn"]["runs"], strict=True
        ):
            seconds = run["seconds_per_step"]
            assert run["over_adam"] == seconds / by_adam["seconds_per_step"]
            assert run["over_fgn"] == seconds / by_fgn["seconds_per_step"]
    memory = {m: methods[m]["summary"]["memory_mib"]["median"] for m in methods}
    assert min(memory.values()) > 64 * 48 * 4 / 2**20  # the features
    grams = 2 * 32 * 32 * 4 / 2**20
    assert 0 < memory["fgn_cached"] - memory["fgn_uncached"] <= 1.1 * grams
    assert _report.tables({"problems": {name: answer}, "notes": []})


def test_an_epoch_of_steps_is_that_of_the_solver(monkeypatch):
    # The solver would factor so small a system.
    monkeypatch.setattr(minibatch, "LARGEST_GRAM", 0)
    monkeypatch.setattr(minibatch, "_CG_ITERATIONS", fgn_mechanism.CG_ITERATIONS)
    sizes = fgn_mechanism.Sizes(64, 48, 32, (3,), most_steps=4, least_steps=4)
    options = fgn_mechanism.options_of(solvers.FGN(), sizes.batch_size)
    with backend.scope("float32"):
        rows = fgn_mechanism.labelled(fgn_mechanism.features(sizes), 3, sizes)
        data = minibatch.ALGORITHMS["fgn"].prepare(rows, options)
        stepper = fgn_mechanism.Stepper("fgn", 3, data, sizes.batch_size)
        state = minibatch.ALGORITHMS["fgn"].init(data, stepper.carry[0], options)
        stepper.seconds(2)
        state, _ = minibatch.ALGORITHMS["fgn"].step(data, state, options)
        ours, expected = backend.to_numpy((stepper.carry[0], state.net))
    assert np.bincount(rows.label).tolist() == [22, 21, 21]
    assert np.abs(expected.weight).max() > 0
    for array, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-7)
