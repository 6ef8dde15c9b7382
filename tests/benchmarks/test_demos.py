"""The demos: references against other resolutions, exact solutions, rows of both."""

import ast
import json
import math
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from benchmarks import pinn_defaults, pinn_demos
from benchmarks._demos import DEMOS, TEXTBOOK, classical, references
from benchmarks._demos.common import largest_error, relative_error
from benchmarks._demos.worker import demo_of
from sklearn_gn.pde import Field

pytestmark = pytest.mark.usefixtures("float64")
PEERS = Path(pinn_demos.__file__).parent / "_peers"


def test_deepxde_has_every_demo():
    tree = ast.parse((PEERS / "deepxde_demos.py").read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(DEMOS) <= names
    assert (len(DEMOS), len(TEXTBOOK)) == (43, 18)


@pytest.mark.parametrize(
    "name",
    [
        "elasticity",
        "textbook_kdv_soliton",
        "textbook_stokes",
        "textbook_stefan",
        "textbook_vibrating_beam",
    ],
)
def test_sources_belong_to_the_exact_solution(name):
    problem = demo_of(name).problem
    points = problem.probes(4, np.random.RandomState(0))["interior"]
    field = Field(
        problem.exact, problem.domain.axes, problem.domain.time, problem.outputs
    )
    kind = problem.residual_classes()[0]
    fields = (field,) * kind.n_points
    residual = jax.jit(jax.vmap(lambda x, data: kind.function(fields, x, data, {})))
    np.testing.assert_allclose(residual(points.x, points.data), 0, atol=1e-11)


def test_series_converge():
    rng = np.random.RandomState(0)
    X = rng.uniform(-1, 1, (50, 2))
    X = X[(X > 0).sum(axis=1) < 2]
    coarse, fine = (references.poisson_on_the_l(X, n) for n in (20, 30))
    np.testing.assert_allclose(coarse, fine, atol=1e-7)
    edge = np.array([[-1.0, 0.3], [0.5, -1.0], [-0.2, 1.0], [0.0, 0.37]])
    np.testing.assert_allclose(references.poisson_on_the_l(edge, 20), 0, atol=1e-7)


def test_cosines_of_two_chemicals_converge():
    (X, coarse), (_, fine) = (
        references.gray_scott(0.04, 0.06, 1e-3, n) for n in (32, 96)
    )
    fine = fine.reshape(96, -1, 2)[1::3].reshape(coarse.shape)
    np.testing.assert_allclose(coarse, fine, atol=2e-4)
    start = 1 - np.exp(-100 * (X[::21, 0] - 0.5) ** 2) / 2
    np.testing.assert_allclose(coarse[::21, 0], start, atol=1e-12)


def test_differentiation_of_chebyshev():
    x, first = references.chebyshev(12, 0, 2)
    np.testing.assert_allclose(first @ x**3, 3 * x**2, atol=1e-11)


def test_an_american_put_is_that_of_a_tree():
    s, value = references.smoothed_put(400, 200, 1e-12)
    payoff = np.maximum(1 - s, 0)
    assert (value >= payoff).all()
    # Cox, Ross and Rubinstein: up and down by the same factor, in 400 steps.
    n, r = 400, 0.05
    up, discount = np.exp(0.2 / np.sqrt(n)), np.exp(-r / n)
    chance = (1 / discount - 1 / up) / (up - 1 / up)
    of_tree = []
    for start in (0.85, 1.0, 1.2):
        price = start * up ** np.arange(-n, n + 1, 2.0)
        option = np.maximum(1 - price, 0)
        for _ in range(n):
            price = price[1:] / up
            option = discount * (chance * option[1:] + (1 - chance) * option[:-1])
            option = np.maximum(option, 1 - price)
        of_tree.append(option[0])
    np.testing.assert_allclose(np.interp((0.85, 1, 1.2), s, value), of_tree, atol=2e-4)


def test_smoothing_keeps_a_put_above_nothing():
    s, value = references.smoothed_put(200, 100, 1e-8)
    # Where nothing else is left, the excess a has a' = 1e-8 / (2 a) - 0.05 a.
    far = (s > 2.25) & (s < 2.5)
    wanted = np.sqrt(1e-8 / 0.1 * (1 - np.exp(-0.1)))
    np.testing.assert_allclose(value[far], wanted, rtol=0.02)


def test_errors():
    problem = demo_of("ode_system").problem
    values = np.array([[1.0, np.nan], [2.0, 4.0]])
    found = np.array([[1.5, 7.0], [2.0, 4.0]])
    expected = 0.5 / math.sqrt(1 + 4 + 16)
    np.testing.assert_allclose(relative_error(problem, found, values), expected)
    np.testing.assert_allclose(largest_error({"c": 1.5}, {"c": 2.0}), 0.25)


def test_classical_methods_are_as_accurate_as_they_are_asked_to_be():
    names = {*DEMOS, *(f"textbook_{name}" for name in TEXTBOOK)}
    assert set(classical.ROWS) <= names
    for name in ("ode_system", "poisson_robin", "heat"):
        found = classical.figures(name, 1e-6, 10.0)
        assert found["as_accurate"]
        assert found["error"] <= 1e-6


def test_rows_that_a_file_has_are_kept(tmp_path):
    def row(given):
        run = {"seed": 0, "given": given, "error": 1.0}
        methods = {"default": {"runs": [run]}}
        return {"description": "", "methods": methods, "target_solved": {}}

    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"problems": {"a": row(60.0), "b": row(5.0)}}))
    kept = pinn_demos.kept_rows(path, 60.0, 0)
    assert list(kept) == ["a"]
    assert set(kept["a"]) == {"description", "methods", "skipped"}
    assert pinn_demos.kept_rows(path, 60.0, 1) == {}


def test_targets_are_over_the_demos_alone():
    def row(error, peer=None, **words):
        run = {"error": error, "solved": True, "misled": False, **words}
        methods = {"default": {"runs": [run]}}
        if peer is not None:
            methods["deepxde"] = {"runs": [{"error": peer}]}
        return {"methods": methods}

    rows = {
        "a": row(1e-6, 1e-2),
        "b": row(0.5, 1.0, solved=False, misled=True),
        "textbook_c": row(1.0, solved=False, misled=True),
    }
    found = pinn_demos.targets(rows)
    values = {name: aim["value"] for name, aim in found.items()}
    assert values["target_solved"] == 0.5
    assert values["target_misled"] == 1
    np.testing.assert_allclose(values["target_median"], (1e-4 + 0.5) / 2)
    np.testing.assert_allclose(values["target_largest"], 0.5)
    assert not any(aim["passed"] for aim in found.values())


def test_default_fits_are_compared_with_those_of_chosen_settings(tmp_path, monkeypatch):
    """At the seconds of the committed file; rows that are there are not run again."""
    tasks = []

    def answer(command, task):
        tasks.append(task)
        return {"error": 1e-8 if task["changes"] else 1e-6, "seconds": 1.0}

    monkeypatch.setattr(pinn_defaults, "answer_of", answer)
    out, written = tmp_path / "rows.json", []
    args = SimpleNamespace(
        seeds=[0], only=None, quick=False, seconds=None, out=out, write=written.append
    )
    found = pinn_defaults.run(args)["problems"]
    chosen = found["kovasznay"]["chosen_seconds"]
    assert len(tasks) == 2 * len(pinn_defaults.CASES)
    assert tasks[0]["seconds"] == round(chosen) > 100
    assert [task["changes"] for task in tasks[:2]] == [{}, {"tol": 0.0}]
    assert found["kovasznay"]["target"]["method"] == "one parameter"
    assert found["kovasznay"]["target"]["passed"]
    assert found["kovasznay"]["target"]["at_most"] == found["kovasznay"]["chosen_error"]
    del written[-1]["problems"]["heat"]
    out.write_text(json.dumps(written[-1]))
    del tasks[:]
    pinn_defaults.run(args)
    assert [task["name"] for task in tasks] == ["heat", "heat"]
