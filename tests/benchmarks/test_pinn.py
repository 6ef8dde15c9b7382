"""Benchmarks of differential equations."""

import json
import math
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import __main__ as runner
from benchmarks import (
    _pinn,
    _pinn_peers,
    _report,
    pinn_heat,
    pinn_kovasznay,
    pinn_peers,
    pinn_step,
)
from benchmarks._peers import _common
from sklearn_gn import PINNSolver
from sklearn_gn.pde.problems import Kovasznay
from sklearn_gn.solvers import DNGD

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
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
    in_time = last >= 0  # on a busy machine, the first iteration may be late
    assert not in_time or ours["error_0.05"] == curve["error"][last]
    # No iteration is that short; the fit does not take that long.
    assert not problem["target_0.001"]["passed"]
    assert problem["target_0.05"]["passed"] == in_time
    assert "target_7" not in problem
    assert _report.tables({"problems": {"p": problem}, "notes": []})


class FakeStepper:
    """Takes as long as it says; a millisecond where damping follows the loss."""

    n_factors = 3

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
        parts = sum(run[f"{part}_seconds"] for part in ("jacobian", "gramian"))
        assert math.isclose(run["trials_seconds"], 0.009 - parts, rel_tol=1e-12)
        rate = 35**2 * 39 * 1e-9 / run["gramian_seconds"]
        assert math.isclose(run["gramian_gflops"], rate, rel_tol=1e-12)
        assert math.isclose(run["gemm_share"], rate / 10, rel_tol=1e-12)
        least = run["gramian_seconds"] + run["cholesky_seconds"]
        over = other["over_gramian_cholesky"]
        assert math.isclose(over, 0.001 / least, rel_tol=1e-12)
        assert math.isclose(run["over_gramian_cholesky"], 0.009 / least, rel_tol=1e-12)
        assert run["factors"] == 3


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
        "max_iter": None,
        "tol": None,
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
    np.testing.assert_allclose(_common.exact_velocity(X), velocity, rtol=1e-10)
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
        time.sleep(0.4)
        return 2.0

    curve.add(slow, lambda X: np.hstack([1.5 * velocity, X]))
    (point,) = curve.points
    assert (point["loss"], curve.done, curve.due()) == (2.0, False, False)
    assert math.isclose(point["error"], 0.5)
    assert point["seconds"] <= curve.seconds < 0.4


def test_a_quick_case_leaves_the_case_as_it_is():
    case = _pinn.quick_case(pinn_heat.CASE)
    assert case.solver.hidden_layer_sizes == (6,)
    assert case.solver.problem is pinn_heat.CASE.solver.problem
    assert pinn_heat.CASE.solver.n_interior == 900
