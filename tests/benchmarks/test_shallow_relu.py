"""Benchmarks of shallow ReLU networks."""

import itertools
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import __main__ as runner
from benchmarks import (
    _data,
    _report,
    _tables,
    sggn,
    sggn_1d,
    sggn_large,
)
from sklearn_gn.solvers import JointGN


def test_problems_have_the_meshes_of_the_paper():
    problems = sggn.problems()
    rows = {name: problem.X.shape for name, problem in problems.items()}
    assert rows == {
        "step": (1000, 1),
        "peaks": (300, 1),
        "band": (40_000, 2),
        "random_horizontal": (40_000, 2),
        "random_vertical": (40_000, 2),
    }
    for problem in problems.values():
        # Cells of size h fill the domain, each with its midpoint.
        assert np.isclose(len(problem.X) * 0.01 ** problem.X.shape[1], problem.volume)
        assert np.isclose(
            problem.X[0, 0] - np.floor(problem.X[0, 0] / 0.5) * 0.5, 0.005
        )
        assert len(problem.y) == len(problem.X)


def test_step_has_ten_pieces_at_the_stated_jumps():
    X, y = sggn.step()
    jumps = X[np.flatnonzero(np.diff(y)), 0] + 0.005
    np.testing.assert_allclose(jumps, sggn.STEP_JUMPS, atol=1e-12)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(y)) + 1])
    assert tuple(y[starts]) == sggn.STEP_VALUES


def test_peaks_are_the_sum_of_the_papers_formula():
    X, y = sggn.peaks()
    x = X[:, 0]
    expected = (
        1 / (10_000 * (x + 0.986960440108935869) ** 2 + 1)
        + 1 / (1_000 * (x + 0.641592653589793238) ** 2 + 1)
        + 1 / (5_000 * (x - 0.921954445729288731) ** 2 + 1)
    )
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    is_peak = (y[1:-1] > y[:-2]) & (y[1:-1] > y[2:])
    np.testing.assert_allclose(x[1:-1][is_peak], [-0.987, -0.642, 0.922], atol=0.005001)


def test_band_holds_the_points_that_geometry_says():
    X, y = sggn.band()
    # In units of h/2 the coordinates are odd integers: no rounding.
    units = np.rint(X / 0.005).astype(int)
    np.testing.assert_allclose(X, 0.005 * units, atol=1e-12)
    inside = np.abs(units.sum(axis=1)) <= 100
    np.testing.assert_array_equal(y, np.where(inside, 1.0, -1.0))
    # Diagonals i + j = 149 .. 249 of a 200 x 200 square of cells.
    assert inside.sum() == sum(min(k, 398 - k) + 1 for k in range(149, 250)) == 17_650
    np.testing.assert_array_equal(y, y[::-1])  # symmetric about the origin


def test_lines_of_the_random_network_cross_the_domain():
    lines, coef, intercept = sggn.target_network()
    np.testing.assert_allclose(np.linalg.norm(lines[:, 1:], axis=1), 1)
    corners = np.array([[1, a, b] for a in (-1, 1) for b in (-1, 1)])
    sides = lines @ corners.T
    assert np.all((sides.min(axis=1) < 0) & (sides.max(axis=1) > 0))

    X, y = sggn.random_network(h=0.1)
    expected = [
        intercept
        + sum(c * max(0, line @ [1, *x]) for line, c in zip(lines, coef, strict=True))
        for x in X
    ]
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-10)


def test_kinks_are_apart_and_the_function_is_straight_between_them():
    rng = np.random.default_rng(0)
    for n in (1, 4, 14):
        sample = sggn_1d.draw(rng, 3000, n)
        ends = np.concatenate([[0], sample.kinks, [1]])
        assert np.diff(ends).min() >= sggn_1d.SPREAD / (n + 1)
        slopes = []
        for low, high in itertools.pairwise(ends):
            inside = (sample.x > low) & (sample.x < high)
            line = np.polyfit(sample.x[inside], sample.truth[inside], 1)
            straight = np.polyval(line, sample.x[inside])
            np.testing.assert_allclose(straight, sample.truth[inside], atol=1e-9)
            slopes.append(line[0])
        changes = np.abs(np.diff(slopes))
        assert (changes > sggn_1d.CHANGES[0] - 1e-6).all()
        assert (changes < sggn_1d.CHANGES[1] + 1e-6).all()
        noise = np.std(sample.y - sample.truth)
        assert math.isclose(noise, sggn_1d.NOISE, rel_tol=0.05)


def test_series_have_lengths_and_kinks_of_their_ranges():
    rng = np.random.default_rng(0)
    several = sggn_1d.draw_series(rng, 60, (20, 25), (1, 3))
    assert {len(s.x) for s in several} == set(range(20, 26))
    assert {len(s.kinks) for s in several} == {1, 2, 3}


def test_errors_are_those_of_the_data_and_of_the_true_function():
    sample = sggn_1d.Sample(
        None, None, y=np.array([1.0, 3.0]), truth=np.array([0.0, 1.0])
    )
    found = sggn_1d.errors(sample, np.array([1.0, 1.0]))
    assert found == {"mse": 2, "mse_over_noise": 2 / 2.5, "rmse_truth": math.sqrt(0.5)}


def fake_peer(package="json", most_seeds=None, model=True):
    """Predicts 0."""

    def fit(x, y, n_segments, seed):
        return np.zeros_like if model else None

    return sggn_1d.Peer(package, fit, most_seeds=most_seeds)


def test_peers_stand_beside_our_runs_of_their_seeds(monkeypatch):
    peers = {
        "all": fake_peer(),
        "one": fake_peer(most_seeds=1),
        "failing": fake_peer(model=False),
        "absent": fake_peer(package="no_such_package"),
    }
    monkeypatch.setattr(sggn_1d, "PEERS", peers)
    monkeypatch.setattr(sggn_1d, "version", lambda package: "1")
    sample = sggn_1d.draw(np.random.default_rng(0), 50, 1)
    methods, skipped = sggn_1d.beside(
        peers,
        lambda peer, seed: peer.run(sample, 2, seed),
        {4: (1e-9, 20.0), 5: (1e-9, 40.0)},
    )
    assert list(methods) == ["all", "one", "failing"]
    assert skipped == {"absent": "no_such_package is not installed"}
    assert [run["seed"] for run in methods["all"]["runs"]] == [4, 5]
    assert [run["seed"] for run in methods["one"]["runs"]] == [4]
    for run, error in zip(methods["all"]["runs"], (20, 40), strict=True):
        assert math.isclose(run["mse_over_ours"], np.mean(sample.y**2) / error)
        assert run["seconds_over_ours"] == run["seconds"] / 1e-9
    assert methods["failing"]["summary"]["mse_over_ours"]["median"] == math.inf


def fitted_kinks(*breakpoints, std=0.1):
    std = np.full(len(breakpoints), std)
    return SimpleNamespace(breakpoints_=np.array(breakpoints), breakpoint_std_=std)


def test_a_breakpoint_without_an_interval_does_not_cover():
    model = fitted_kinks(-1.0, 0.25, 0.9)
    model.breakpoint_std_[2] = np.nan
    sample = sggn_1d.Sample(np.array([0.2, 0.4, 0.8]), None, None, None)
    errors = sggn_1d.standardised_error(sample, model)
    np.testing.assert_allclose(errors, [0.5, -1.5, np.nan])
    assert sggn_1d.covered(errors) == 2 / 3
    assert sggn_1d.covered(np.array([1.95, -1.97])) == 0.5


def test_a_bootstrap_draws_series_from_the_fit(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=100)
    y = x + 0.3 * rng.standard_normal(100)
    sample = sggn_1d.Sample(np.array([0.31, 0.7]), x, y, None)
    model = fitted_kinks(0.3, 0.5, 0.7)
    model.predict = lambda X: X[:, 0]
    drawn = {}

    def fit_series(estimator, X, targets):
        drawn["x"], drawn["noise"] = X, np.array(targets) - x
        shifts = np.linspace(-0.05, 0.05, len(X))
        return [fitted_kinks(0.3 + s, 0.5, 0.7 - 2 * s) for s in shifts]

    monkeypatch.setattr(sggn_1d, "fit_series", fit_series)
    estimator = SimpleNamespace(n_neurons=5)
    ratio = sggn_1d.bootstrap_ratio(estimator, sample, model, 200, rng)
    deviation = np.linspace(-0.05, 0.05, 200).std(ddof=1)
    np.testing.assert_allclose(ratio, [10 * deviation, 20 * deviation])
    assert len(drawn["x"]) == 200
    expected = math.sqrt(np.sum((y - x) ** 2) / 90)
    assert math.isclose(drawn["noise"].std(), expected, rel_tol=0.03)


def test_a_quick_run_in_one_dimension(monkeypatch):
    monkeypatch.setattr(sggn_1d, "PEERS", {"pwlf_fitfast": fake_peer()})
    monkeypatch.setattr(sggn_1d, "version", lambda package: "1")
    monkeypatch.setattr(sggn_1d, "compiling", lambda call: 0.5)
    # Rounds of relocation are two thirds of the compilation.
    monkeypatch.setitem(sggn_1d.QUICK, "solver", JointGN(relocations=0))
    answers = sggn_1d.run(runner.parse(["sggn_1d", "--quick"]))["problems"]
    assert list(answers) == [
        "million",
        "three_thousand",
        "jumps",
        "series",
        "coverage",
    ]
    for answer in answers.values():
        (run,) = answer["methods"]["sggn"]["runs"]
        assert run["seconds"] > 0
        assert 0.3 < run.get("mse_over_noise", 1) < 1.5
    _report.tables({"problems": _report.plain(answers), "notes": []})


def test_solvers_are_compared_by_the_number_of_features():
    sizes = {"a": {"features": 2}, "b": {"features": 2}, "c": {"features": 11}}
    own = {"r2": 0.5, "loss": 0.4, "seconds": 2.0}
    runs = [
        sggn_large.compare({"table": name, "r2": r2, "loss": 0.2, "seconds": 3.0}, own)
        for name, r2 in (("a", 0.6), ("b", 0.25), ("c", 0.5))
    ]
    groups = sggn_large.by_features(runs, sizes)
    assert list(groups) == ["2", "9 and more"]
    assert groups["2"] == {
        "tables": 2,
        "better_r2": 1,
        "r2_over_sggn": pytest.approx(-0.075),
        "loss_over_sggn": 0.5,
        "seconds_over_sggn": 1.5,
    }
    assert groups["9 and more"]["better_r2"] == 0


FAKE_LINEAR_TREE = """
class LinearTreeRegressor:
    def __init__(self, base):
        self.base = base
    def fit(self, X, y):
        self.model = self.base.fit(X, y)
    def score(self, X, y):
        return self.model.score(X, y)
"""


@pytest.mark.slow
def test_linear_trees_are_fitted_in_their_environment(tmp_path, monkeypatch):
    (tmp_path / "lineartree.py").write_text(FAKE_LINEAR_TREE)
    metadata = tmp_path / "linear_tree-3.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: linear-tree\nVersion: 3\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    X = np.random.default_rng(0).standard_normal((30, 2))
    y = X @ [1.0, 2.0]
    data = _data.Split(X[:20], y[:20], X[20:], y[20:])
    run, versions = sggn_large.linear_tree(
        sys.executable, "LinearTreeRegressor", data, seed=3
    )
    assert run["seed"] == 3
    assert math.isclose(run["score"], 1)
    assert run["seconds"] > 0
    assert versions["linear-tree"] == "3"


def test_linear_trees_that_are_not_there_are_skipped(tmp_path):
    args = SimpleNamespace(peers=tmp_path)
    methods, skipped = sggn_large.linear_tree_answers(args, {})
    assert methods == {}
    assert set(skipped) == {"linear_tree", "linear_boost"}


@pytest.mark.slow
def test_a_quick_run_with_several_features(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(60, 3))
    y = np.abs(X[:, 0] - 0.5) + 0.01 * rng.standard_normal(60)
    monkeypatch.setattr(_data, "diamonds", lambda data_dir: (X, y))
    tables = {"small": (X, y), "other": (X[:, ::-1], y)}
    monkeypatch.setattr(_tables, "tables", lambda data_dir, names=None: tables)
    monkeypatch.setattr(sggn_large, "THINNED", 1)
    monkeypatch.setattr(sggn_large, "compile_seconds", lambda *args: 0.5)
    # As many neurons and, padded, as many rows as the fits of the diamonds.
    monkeypatch.setattr(sggn_large, "TABLE_NEURONS", (4,))
    monkeypatch.setattr(sggn_large, "FOLDS", 3)
    monkeypatch.setattr(sggn_large, "TABLE_RELOCATIONS", 0)
    words = ["sggn_large", "--quick", "--data", str(tmp_path), "--only"]
    args = runner.parse([*words, "diamonds", "tables"])
    answers = sggn_large.run(args)["problems"]
    diamonds = answers["diamonds"]
    assert set(diamonds["methods"]) == {
        *sggn_large.OURS,
        *("mlp_adam", "mlp_lbfgs", "hist_gradient_boosting"),
    }
    assert answers["tables"]["rows"]["other"] == {"rows": 60, "features": 3}
    runs = answers["tables"]["methods"]["vpgn_4"]["runs"]
    assert [run["table"] for run in runs] == ["small", "other"]
    assert {"r2_over_sggn", "loss_over_sggn", "seconds_over_sggn"} <= set(runs[0])
    assert answers["tables"]["by_features"]["vpgn_4"]["3-4"]["tables"] == 2
    _report.tables({"problems": _report.plain(answers), "notes": []})


@pytest.mark.slow
def test_memory_is_that_of_a_fresh_process():
    args = runner.parse(["sggn_large", "--quick", "--only", "million_rows"])
    answer = sggn_large.run(args)["problems"]["million_rows"]
    (run,) = answer["methods"]["vpgn"]["runs"]
    assert 0.05 < run["before_gb"] <= run["peak_gb"] < 4
    assert answer["rows"] == sggn_large.QUICK_ROWS
