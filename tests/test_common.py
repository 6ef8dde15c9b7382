"""scikit-learn's own checks, over every estimator of the package."""

import importlib.util
import os

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import (
    estimator_checks_generator,
    parametrize_with_checks,
)

from sklearn_gn.solvers import (
    NETWORK_SOLVERS,
    PINN_SOLVERS,
    SHALLOW_RELU_SOLVERS,
    SOFTMAX_HEAD_SOLVERS,
    JointGN,
)
from tests._discovery import all_estimators

# Small settings: the checks fit hundreds of times.
DEFAULTS = {
    "ShallowReLURegressor": {
        "n_neurons": 2,
        "solver": JointGN(relocations=0),
        "n_init": 2,
        "max_iter": 4,
    },
    "FGNSoftmaxHead": {"max_iter": 10},
    "FGNSoftmaxHeadCV": {"Cs": [0.01, 1.0], "cv": 2, "tol": 1e-12},
    "PINNSolver": {"hidden_layer_sizes": (3,), "max_iter": 10},
    "VarProNetRegressor": {"hidden_layer_sizes": (3,), "n_init": 2, "max_iter": 4},
    "VarProNetClassifier": {"hidden_layer_sizes": (3,), "n_init": 2, "max_iter": 4},
}

# The other solvers go through the checks that depend on the solver.
SOLVERS = {
    "ShallowReLURegressor": (
        SHALLOW_RELU_SOLVERS,
        {"n_neurons": 3, "init": "uniform"},
    ),
    "FGNSoftmaxHead": (SOFTMAX_HEAD_SOLVERS, {"batch_size": 32}),
    "PINNSolver": (PINN_SOLVERS, {"hidden_layer_sizes": (4,)}),
    "VarProNetRegressor": (NETWORK_SOLVERS, {"hidden_layer_sizes": (4,)}),
    "VarProNetClassifier": (NETWORK_SOLVERS, {"hidden_layer_sizes": (4,)}),
}
HAVE_NO_SOLVER = {"SegmentedRegressor", "FGNSoftmaxHeadCV"}
LEARNING_RATES = {"adam": 0.1, "sgd": 0.1, "fgn": 0.5, "sgn": 0.5}
WEIGHTS = "check_sample_weight_equivalence_on_dense_data"
REPEATED = "check_fit_idempotent"
CHECKS_OF_SOLVERS = {
    WEIGHTS,
    REPEATED,
    "check_classifiers_train",
    "check_fit2d_1feature",
    "check_fit2d_1sample",
}
# The other checks of solvers are slow: every shape is compiled for. That fits repeat
# themselves is seen of one solver of each family where fits are resumed bit for bit.
# Weights are tested as exactly elsewhere: those of every solver of ShallowReLURegressor
# in shallow_relu/test_estimator.py, those of Adam in varpro/test_estimator.py.
QUICK = {
    ("FGNSoftmaxHead", "adam", WEIGHTS),
    ("FGNSoftmaxHead", "fgn", WEIGHTS),
    ("PINNSolver", "adam", WEIGHTS),  # its residuals are those of the other baselines
    ("VarProNetClassifier", "adam", REPEATED),
    ("VarProNetRegressor", "adam", WEIGHTS),
    ("VarProNetRegressor", "gn", WEIGHTS),
    ("VarProNetRegressor", "lbfgs_vpro", WEIGHTS),
}


def default_instances():
    return [cls(**DEFAULTS.get(name, {})) for name, cls in all_estimators()]


def other_solvers():
    for name, (solvers, settings) in SOLVERS.items():
        cls = dict(all_estimators())[name]
        names = set(solvers) - {cls().solver}
        if name == "VarProNetClassifier":  # the others are checked with the regressor
            names -= set(NETWORK_SOLVERS)
        for solver in sorted(names):
            rate = {}
            if solver in LEARNING_RATES:
                rate = {"learning_rate": LEARNING_RATES[solver]}
            # A first-order method needs its iterations to score above one half.
            max_iter = 100 if rate else 5
            given = {**settings, **rate}
            chosen = clone(solvers[solver])
            if "relocations" in chosen.get_params():  # which have tests of their own
                given["relocations"] = 0
            own = {name: given.pop(name) for name in chosen.get_params().keys() & given}
            chosen = chosen.set_params(**own) if own else solver
            estimator = cls(solver=chosen, max_iter=max_iter, **given)
            for instance, check in estimator_checks_generator(estimator):
                # The kinds of arrays that an estimator takes depend on no solver.
                kind = getattr(check, "keywords", {})
                kind = kind.get("readonly_memmap") or "X_dtype" in kind
                called = check.func.__name__
                if called in CHECKS_OF_SOLVERS and not kind:
                    is_quick = (name, solver, called) in QUICK
                    marks = [] if is_quick else [pytest.mark.slow]
                    title = f"{name}-{solver}-{called}"
                    yield pytest.param(instance, check, id=title, marks=marks)


# Stopping at max_iter is what the checks provoke.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(default_instances())
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("estimator", "check"), list(other_solvers()))
def test_checks_of_other_solvers(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "cls", [c for _, c in all_estimators() if hasattr(c, "fit_chunks")]
)
def test_rows_in_place_of_chunks_are_sent_to_fit(cls):
    X = np.eye(3)
    with pytest.raises(TypeError, match=r"fit_chunks\(\[\(X, y\), .*call fit\(X, y\)"):
        cls().fit_chunks(X, X[0])


def test_no_check_is_skipped_for_want_of_a_package():
    assert importlib.util.find_spec("pandas")
    assert importlib.util.find_spec("array_api_strict")
    assert os.environ["SCIPY_ARRAY_API"] == "1"
    assert set(SOLVERS) | HAVE_NO_SOLVER == set(dict(all_estimators()))


@pytest.mark.parametrize(("name", "cls"), all_estimators())
@pytest.mark.filterwarnings("ignore")
def test_scalars_among_fitted_attributes_print_as_plain_numbers(name, cls):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 1)), np.arange(40) % 2
    model = cls(**DEFAULTS.get(name, {})).fit(X, y)
    for attribute, value in vars(model).items():
        if attribute.endswith("_"):
            values = value.values() if isinstance(value, dict) else [value]
            assert not any(isinstance(v, np.generic) for v in values), attribute
