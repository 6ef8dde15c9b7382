"""Hostile input: every case ends in finite predictions or in a clear ValueError."""

import time

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from benchmarks import _hostile_cases as hostile
from benchmarks.hostile import CASES, block, case_number
from sklearn_gn import FGNSoftmaxHead, VarProNetRegressor
from sklearn_gn.softmax_head.head import batched_rows

# 90 in all; the estimators that compile nothing here have the most.
EXAMPLES = {
    "FGNSoftmaxHead": 3,
    "PINNSolver": 3,
    "SegmentedRegressor": 40,
    "ShallowReLURegressor": 20,
    "VarProNetClassifier": 12,
    "VarProNetRegressor": 12,
}


def test_the_cases_are_of_every_estimator_and_of_few_shapes():
    assert set(EXAMPLES) == set(hostile.CLASSES)
    assert sum(EXAMPLES.values()) == 90
    assert len(set(hostile.SHAPES)) == len(hostile.SHAPES) <= 40
    assert CASES == 10_000


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_hostile_input_ends_in_numbers_or_in_a_clear_error(name):
    @seed(0)
    @settings(
        max_examples=EXAMPLES[name],
        derandomize=False,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data):
        case = hostile.draw(
            name,
            lambda options: data.draw(st.sampled_from(options)),
            shapes=hostile.FEW_SHAPES,
            solvers=hostile.FEW_SOLVERS[name],
            fixed=hostile.FEW_VALUES,
        )
        assert hostile.violation(case) is None, case

    check()


# -- the benchmark --------------------------------------------------------------------


def test_a_number_names_the_same_case_each_time():
    assert case_number("FGNSoftmaxHead", 3) == case_number("FGNSoftmaxHead", 3)
    assert case_number("FGNSoftmaxHead", 3) != case_number("FGNSoftmaxHead", 4)
    figures = block("SegmentedRegressor", 0, 5)
    assert (figures["cases"], figures["violations"], figures["found"]) == (5, 0, [])


def case(**choices):
    """A harmless case, with some choices changed."""
    return {
        "estimator": "SegmentedRegressor",
        "solver": None,
        "shape": (8, 1),
        "content": "normal",
        "x_exponent": 0,
        "y_exponent": 0,
        "y": "line",
        "kind": "float64",
        "layout": "C",
        "weights": None,
        "damage": None,
        "seed": 0,
        "parameters": {},
        **choices,
    }


@pytest.mark.parametrize(
    ("fit", "wrong"),
    [
        (lambda self, X, y, **words: self, "NotFittedError"),
        (lambda self, X, y, **words: [][0], "IndexError: list index out of range"),
        (lambda self, X, y, **words: np.linalg.inv(X.T * 0), "foreign ValueError"),
        (lambda self, X, y, **words: np.reshape(X, 3), "foreign ValueError"),
        (lambda self, X, y, **words: time.sleep(60), "Hang: more than 0.2 seconds"),
    ],
)
def test_violations_are_seen(monkeypatch, fit, wrong):
    monkeypatch.setattr(hostile.CLASSES["SegmentedRegressor"], "fit", fit)
    found = hostile.violation(case(), seconds=0.2)
    assert found.startswith(wrong)


def test_runtime_warnings_are_seen(monkeypatch):
    cls = hostile.CLASSES["SegmentedRegressor"]
    fit = cls.fit

    def overflowing(self, X, y, sample_weight=None):
        np.float64(1e308) * 10.0
        return fit(self, X, y, sample_weight)

    monkeypatch.setattr(cls, "fit", overflowing)
    assert hostile.violation(case()).startswith("RuntimeWarning overflow")


def test_predictions_that_are_no_numbers_are_seen(monkeypatch):
    cls = hostile.CLASSES["SegmentedRegressor"]
    monkeypatch.setattr(cls, "predict", lambda self, X: np.full(len(X), np.nan))
    assert "predictions at training rows" in hostile.violation(case())


# -- what was once wrong --------------------------------------------------------------


@pytest.mark.parametrize(
    "choices",
    [
        {"weights": "1e308"},
        {"weights": "5e-324"},
        {"weights": "1e-300 to 1e300"},
        {"y_exponent": 150},
        {"y_exponent": 200},
        {"x_exponent": -200, "y_exponent": 200},
        {"damage": "largest float in y"},
        {"parameters": {"max_breakpoints": 10**6}, "content": "ties"},
        {"parameters": {"criterion": "cv"}, "y_exponent": 200},
        {"content": "scales by column", "shape": (20, 3), "seed": 1},
        # Segments of no weight to rounding.
        {"weights": "1e-300 to 1e300", "shape": (12, 1), "parameters": {"degree": 0}},
    ],
)
def test_segments_of_extreme_numbers(choices):
    assert hostile.violation(case(**choices)) is None


def test_norms_of_gradients_whose_squares_overflow_come_without_a_warning():
    choices = {"solver": "gn", "shape": (3, 5), "y_exponent": 100, "kind": "int64"}
    choices |= {"x_exponent": 8, "weights": "1e-300 to 1e300", "y": "noise"}
    choices |= {"layout": "F", "parameters": {"scale": False}}
    choices |= {"estimator": "VarProNetRegressor"}
    assert hostile.violation(case(**choices)) is None


def test_labels_of_mixed_types_are_named():
    y = np.array(["a", 1] * 4, dtype=object)
    with pytest.raises(ValueError, match=r"labels of the types \['int', 'str'\]"):
        FGNSoftmaxHead().fit(np.eye(8), y)


class NaNFeatures:
    """A network whose features are NaN beyond a place."""

    def __init__(self, place):
        self.place = place

    def init(self, key, x):
        return {"w": np.ones((x.shape[1], 2))}

    def apply(self, params, x):
        z = x @ params["w"]
        return jnp.where(x[:, :1] > self.place, jnp.nan, jnp.tanh(z))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_network_of_the_users_that_gives_nan_is_named():
    X = np.linspace(-1, 1, 8)[:, None]
    words = {"scale": False, "max_iter": 1, "tol": 1e9}
    everywhere = VarProNetRegressor(NaNFeatures(-2.0), **words)
    with pytest.raises(ValueError, match="network to start from is NaN"):
        everywhere.fit(X, X[:, 0])
    far = VarProNetRegressor(NaNFeatures(2.0), **words)
    with pytest.raises(ValueError, match=r"gives NaN at 1 of 2 rows, .* row 1"):
        far.fit(X, X[:, 0]).predict([[0.0], [3.0]])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n_neurons", [2, "auto"])
@pytest.mark.repeats
def test_a_cell_beyond_single_precision_counts_as_a_limit(n_neurons):
    rng = np.random.RandomState(0)
    X, y = rng.standard_normal((8, 2)), rng.standard_normal(8)
    X[0, 1], weight = 1e80, np.where(np.arange(8) > 0, 1.0, 1e-200)
    model = hostile.CLASSES["ShallowReLURegressor"](
        n_neurons, solver="kfra", alpha=0, dtype="float32", random_state=0
    )
    model.fit(X, y, sample_weight=weight)
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_pinn_score_without_targets_is_refused():
    X = np.linspace(0, 1, 8)[:, None]
    words = {"hidden_layer_sizes": (3,), "max_iter": 1, "tol": 1e9, "random_state": 0}
    model = hostile.CLASSES["PINNSolver"](**words).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="X and y belong together: y is missing"):
        model.score(X)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_far_points_in_single_precision():
    X = np.linspace(0, 1, 8)[:, None]
    words = {"hidden_layer_sizes": (3,), "max_iter": 1, "tol": 1e9, "random_state": 0}
    model = hostile.CLASSES["PINNSolver"](dtype="float32", **words).fit(X, X[:, 0])
    assert np.isfinite(model.predict([[1e200], [-1e200]])).all()


def test_numbers_without_differences_are_refused():
    X = np.arange(8.0)[:, None]
    y = np.where(np.arange(8) % 2, 1.7e308, -1.7e308)
    with pytest.raises(ValueError, match=r"y holds a number of size 1.7e\+308"):
        hostile.CLASSES["SegmentedRegressor"]().fit(X, y)


def test_batches_have_rows_whose_weights_underflow():
    rows, _ = batched_rows(
        np.eye(3),
        np.arange(3),
        np.arange(3),
        np.array([1.0, 0.0, 0.0]),
        8,
        np.random.RandomState(0),
        "float64",
    )
    found = np.sort(np.ravel(rows.weight))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-12)
