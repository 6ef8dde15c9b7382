"""The code of CONTRIBUTING.md runs, and its solver is one like the others."""

import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


@pytest.fixture(scope="module")
def names():
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    found = {}
    exec(code, found)
    return found


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_solver_of_the_example_descends(names):
    model, X, y = (names[name] for name in ("model", "X", "y"))
    loss = clone(model).fit(X, y).convergence_log_["loss"]
    assert len(loss) == 50
    assert (np.diff(loss) < 0).all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_grid_reaches_its_parameter(names):
    model, X, y = (names[name] for name in ("model", "X", "y"))
    grid = {"solver__learning_rate": [1e-4, 0.05]}
    search = GridSearchCV(model, grid, cv=2).fit(X[::-1], y[::-1])
    rates = [p["solver__learning_rate"] for p in search.cv_results_["params"]]
    assert rates == [1e-4, 0.05]
    scores = search.cv_results_["mean_test_score"]
    assert scores[0] != scores[1]


def test_the_files_that_it_names_exist():
    package = Path(__file__).parents[1] / "sklearn_gn"
    for name in re.findall(r"`([a-z_]+/[a-z_]+\.py)`", TEXT):
        assert (package / name).exists(), name
