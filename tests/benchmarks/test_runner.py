"""The runner, the report and the times that it takes."""

import json
import math
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import Ridge

from benchmarks import __main__ as runner
from benchmarks import _report, _timing, sggn
from sklearn_gn import ShallowReLURegressor
from sklearn_gn.solvers import JointGN, SgGN

ROOT = Path(__file__).parents[2]


def small_sggn(monkeypatch, method):
    """Leave one problem on a coarse mesh and two methods of the experiment."""
    peaks = sggn.problems(h=0.05)["peaks"]._replace(n_neurons=3, max_iter=3)
    monkeypatch.setattr(sggn, "problems", lambda h: {"peaks": peaks})
    monkeypatch.setattr(sggn, "METHODS", ("auto", method))


def test_every_experiment_is_listed_and_can_run(capsys):
    runner.main([])
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"sggn", "first_answer", "cross_validation"} <= set(names)
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


def test_quick_run_writes_a_complete_result(tmp_path, monkeypatch):
    small_sggn(monkeypatch, "lm_hidden")
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
    assert set(problem["methods"]) == {"auto", "lm_hidden"}
    assert [run["seed"] for run in problem["methods"]["auto"]["runs"]] == [0, 1]
    assert len(problem["methods"]["lm_hidden"]["runs"]) == 1
    for method in problem["methods"].values():
        for run in method["runs"]:
            assert {"J", "iterations", "steps", "seconds", "stop_reason"} <= set(run)
            assert run["J"] == run["loss"] * problem["volume"]
        low, middle, high = (
            method["summary"]["J"][k] for k in ("min", "median", "max")
        )
        assert 0 <= low <= middle <= high
    aim = problem["target_auto"]
    assert aim["passed"] == (aim["value"] <= aim["at_most"])
    for private in (f'"{platform.node()}"', str(ROOT)):
        assert private not in out.read_text()


def test_a_run_of_some_problems_leaves_the_others_in_the_file(tmp_path, monkeypatch):
    def run(args):
        problems = {
            name: {"description": name, "methods": {}, "of_run": len(runs)}
            for name in args.only or ("a", "b")
        }
        runs.append(args.only)
        return {"problems": problems, "notes": []}

    runs, out = [], str(tmp_path / "result.json")
    monkeypatch.setitem(sys.modules, "benchmarks.sggn", SimpleNamespace(run=run))
    runner.main(["sggn", "--out", out])
    runner.main(["sggn", "--out", out, "--only", "b"])
    kept = json.loads(Path(out).read_text())["problems"]
    assert {name: p["of_run"] for name, p in kept.items()} == {"a": 0, "b": 1}


def test_quick_run_keeps_the_committed_results():
    assert runner.parse(["sggn", "--quick"]).out is None
    assert runner.parse(["sggn"]).out == ROOT / "benchmarks" / "results" / "sggn.json"


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


@pytest.mark.parametrize(
    ("bound", "passed"),
    [
        ({"at_most": 2.0}, True),
        ({"at_most": 1.9}, False),
        ({"at_least": 2.0}, True),
        ({"at_least": 2.1}, False),
    ],
)
def test_target_compares_the_statistic_with_the_bound(bound, passed):
    methods = {"m": {"summary": _report.summary([{"J": 1.0}, {"J": 2.0}])}}
    aim = _report.target(methods, "m", "J", "max", **bound)
    assert aim["passed"] is passed


@pytest.mark.parametrize("bound", [{"at_most": 1.0}, {"at_least": 1.0}])
def test_a_figure_that_is_not_a_number_misses_its_target(bound):
    methods = {"m": {"summary": _report.summary([{"J": math.nan}])}}
    assert _report.target(methods, "m", "J", "median", **bound)["passed"] is False


def test_settings_are_changes_and_objects_are_text():
    assert _report.settings(Ridge(alpha=2.0, solver="auto")) == {"alpha": 2.0}
    model = GaussianProcessRegressor(2.0 * RBF(3.0), n_restarts_optimizer=1)
    expected = {"kernel": "1.41**2 * RBF(length_scale=3)", "n_restarts_optimizer": 1}
    assert _report.settings(model) == expected


def test_settings_of_a_solver_stand_beside_the_others():
    model = ShallowReLURegressor(5, solver=SgGN(relocations=3))
    expected = {"n_neurons": 5, "solver": "sggn", "solver__relocations": 3}
    assert _report.settings(model) == expected
    default = ShallowReLURegressor(solver=JointGN(relocations=3))
    assert _report.settings(default) == {"solver__relocations": 3}


def test_nested_intervals_count_once():
    assert _timing.covered([(0.0, 4.0), (1.0, 2.0), (3.0, 5.0), (7.0, 8.0)]) == 6.0


def test_a_call_that_compiles_is_made_again():
    compiled, calls = jax.jit(lambda x: 2 * x), []

    def call():
        calls.append(float(compiled(np.float32(len(calls)))))
        return len(calls)

    assert [_timing.warm(call)[0] for _ in range(2)] == [2, 3]
    assert calls == [0, 2, 4]
