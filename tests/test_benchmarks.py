import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as runner
from benchmarks import _report, _timing, sggn

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
    aim = problem["target"]
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


def test_nested_intervals_count_once():
    assert _timing.covered([(0.0, 4.0), (1.0, 2.0), (3.0, 5.0), (7.0, 8.0)]) == 6.0


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
