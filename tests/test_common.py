"""scikit-learn's own checks, over every estimator of the package."""

import importlib.util
import os

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from sklearn_gn.solvers import SHALLOW_RELU_SOLVERS, SOFTMAX_HEAD_SOLVERS
from sklearn_gn.utils.discovery import all_estimators

# Small settings: the checks fit hundreds of times.
SETTINGS = {
    "ShallowReLURegressor": [
        {"n_neurons": 4, "relocations": 2, "max_iter": 20},
        *(
            {
                "n_neurons": 3,
                "relocations": 0,
                # A first-order method needs its iterations to score above one half.
                "max_iter": 100 if solver == "adam" else 5,
                "learning_rate": 0.1,
                "solver": solver,
            }
            for solver in sorted(SHALLOW_RELU_SOLVERS)
            if solver != "sggn"
        ),
    ],
    "FGNSoftmaxHead": [
        {"solver": solver, "max_iter": 60, "batch_size": 32, "learning_rate": rate}
        for solver, rate in [
            ("fgn_newton", None),
            ("fgn", 0.5),
            ("sgn", 0.5),
            ("adam", 0.05),
        ]
    ],
}


def test_every_solver_is_checked():
    for name, solvers in [
        ("ShallowReLURegressor", SHALLOW_RELU_SOLVERS),
        ("FGNSoftmaxHead", SOFTMAX_HEAD_SOLVERS),
    ]:
        default = dict(all_estimators())[name]().solver
        checked = {settings.get("solver", default) for settings in SETTINGS[name]}
        assert checked == set(solvers)


def instances():
    for name, estimator in all_estimators():
        for settings in SETTINGS.get(name, [{}]):
            yield estimator(**settings)


# Stopping at max_iter is what the checks provoke.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(list(instances()))
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_no_check_is_skipped_for_want_of_a_package():
    assert importlib.util.find_spec("pandas")
    assert importlib.util.find_spec("array_api_strict")
    assert os.environ["SCIPY_ARRAY_API"] == "1"
    assert {"FGNSoftmaxHead", "ShallowReLURegressor"} <= set(dict(all_estimators()))
