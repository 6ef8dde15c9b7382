"""Checkpoints: resuming bit for bit, and the questions that a file answers."""

import pickle
import threading
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

from sklearn_gn import (
    FGNSoftmaxHead,
    PINNSolver,
    ShallowReLURegressor,
    VarProNetRegressor,
)
from sklearn_gn.callbacks import Checkpoint, EarlyStopping
from sklearn_gn.core import checkpoint
from sklearn_gn.pde import Box, Initial, Problem, d
from sklearn_gn.shallow_relu.algorithms import ALGORITHMS
from sklearn_gn.solvers import SHALLOW_RELU_SOLVERS, GNvpro, JointGN, SgGN, Solver

SOLVERS = sorted(SHALLOW_RELU_SOLVERS)
quiet = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
pytestmark = quiet


def data(n=30, d=2, seed=0):
    rng = np.random.RandomState(seed)
    return rng.randn(n, d), rng.randn(n)


def make(solver="sggn", relocations=4, **changes):
    if solver == "sggn":
        solver = SgGN(relocations=relocations)
    elif solver == "vpgn":
        solver = JointGN(relocations=relocations)
    settings = {"max_iter": 12, "random_state": 0, **changes}
    return ShallowReLURegressor(4, solver=solver, **{"alpha": 0.0, **settings})


class Given(Solver):
    """A solver that stands for an algorithm of the test."""

    name = "given"

    def __init__(self, given, relocations=4):
        self.given = given
        self.relocations = relocations

    def algorithm(self, algorithms):
        return self.given


# -- resuming -------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_resumed_fit_equals_the_uninterrupted_one_bit_for_bit(tmp_path, solver):
    X, y = data()
    path = tmp_path / "fit.ckpt"
    # Adam's rate follows max_iter, so both runs must announce the same number.
    whole = make(solver, n_init=2).fit(X, y)
    part = make(solver, n_init=2).set_callbacks(Checkpoint(path, every=0))
    killed = part.set_params(max_time=1e-9).fit(X, y)
    assert killed.n_iter_ < whole.n_iter_
    resumed = part.set_params(max_time=None).fit(X, y)
    np.testing.assert_array_equal(resumed.predict(X), whole.predict(X))
    assert resumed.n_iter_ == whole.n_iter_
    np.testing.assert_array_equal(
        resumed.convergence_log_["loss"], whole.convergence_log_["loss"]
    )


@pytest.mark.parametrize("seed", [None, np.random.RandomState(0)])
def test_resumed_fit_goes_on_with_its_own_draws_without_a_seed(tmp_path, seed):
    X, y = data()
    model = make(init="random", n_init=2, random_state=seed, max_iter=2)
    model.set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    first = model.fit(X, y).convergence_log_["loss"]
    second = model.set_params(max_iter=6).fit(X, y).convergence_log_["loss"]
    np.testing.assert_array_equal(second[:2], first)


def test_finished_fit_is_not_repeated_but_goes_on_with_a_larger_budget(tmp_path):
    X, y = data()
    model = make(max_iter=3).set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    first = model.fit(X, y).convergence_log_["time"]
    np.testing.assert_array_equal(model.fit(X, y).convergence_log_["time"], first)
    assert model.set_params(max_iter=5).fit(X, y).n_iter_ == 5


def lm_pressed(part, number, pressed):
    """LM, one part of which is interrupted once."""
    function = getattr(ALGORITHMS["lm"], part)

    def wrapper(*args):
        pressed.append(part)
        if len(pressed) == number:
            raise KeyboardInterrupt
        return function(*args)

    return Given(replace(ALGORITHMS["lm"], **{part: wrapper}))


class Counter(list):
    """A list whose content is no part of what is asked."""

    def __reduce__(self):
        return Counter, ()


@pytest.mark.parametrize(("part", "number"), [("step", 3), ("init", 2)])
def test_a_fit_that_ctrl_c_has_ended_is_resumed_bit_for_bit(part, number, tmp_path):
    X, y = data()
    settings = {"n_init": 2, "max_iter": 60, "tol": 1e-2}
    whole = make("lm", **settings).fit(X, y)
    model = make(lm_pressed(part, number, Counter()), **settings)
    model.set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    assert model.fit(X, y).stop_reason_ == "interrupted"
    assert model.n_iter_ < whole.n_iter_
    model.fit(X, y)
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))
    assert model.stop_reason_ == whole.stop_reason_
    for name in ("iteration", "loss", "damping"):
        np.testing.assert_array_equal(
            model.convergence_log_[name], whole.convergence_log_[name]
        )


def test_starts_that_max_iter_has_cut_off_are_made_up_for(tmp_path):
    X, y = data()
    settings = {"n_init": 3, "max_iter": 200, "tol": 1e-2}
    whole = make("lm", **settings).fit(X, y)
    first = make("lm", **{**settings, "n_init": 1}).fit(X, y).n_iter_
    model = make("lm", **settings).set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    model.set_params(max_iter=first).fit(X, y)
    assert model.stop_reason_ == "max_iter"
    model.set_params(max_iter=200).fit(X, y)
    np.testing.assert_array_equal(
        model.convergence_log_["loss"], whole.convergence_log_["loss"]
    )
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))


def test_a_fit_on_batches_is_resumed_bit_for_bit_between_two_evaluations(tmp_path):
    X, y = data(70)
    settings = {
        "hidden_layer_sizes": (4,),
        "solver": GNvpro(batch_size=20),
        "tol": 0.0,
        "max_iter": 24,
        "random_state": 0,
    }
    model = VarProNetRegressor(**settings)
    whole = clone(model).fit(X, y)
    model.set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    for n_iter in range(1, 25):
        model.set_params(max_iter=n_iter).fit(X, y)
    log, expected = model.convergence_log_, whole.convergence_log_
    assert log.keys() == expected.keys()
    for name in set(log) - {"time"}:
        np.testing.assert_array_equal(log[name], expected[name])
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))


# -- questions ------------------------------------------------------------------------


def refused(changed):
    return pytest.raises(ValueError, match=rf"has changed: {changed}\. Give another")


@pytest.fixture
def fitted(tmp_path):
    """A finished fit with a checkpoint, and a function that fits again."""
    X, y = data(30, seed=1)
    words = {"X_val": X, "y_val": y, "sample_weight": np.ones(30)}
    file = Checkpoint(tmp_path / "fit.ckpt")
    model = make(tol=1e-2, max_iter=100).set_callbacks(file)

    def fit(X=None, y=None, parameters=(), **changes):
        X, y = (a if b is None else b for a, b in zip(data(), (X, y), strict=True))
        changed = clone(model).set_params(**dict(parameters)).set_callbacks(file)
        return changed.fit(X, y, **{**words, **changes})

    assert fit().stop_reason_ == "tol"
    return fit


def test_the_same_question_gives_the_finished_answer(fitted):
    time = fitted().convergence_log_["time"]
    np.testing.assert_array_equal(fitted().convergence_log_["time"], time)
    budgets = {"max_iter": 200, "max_time": 1e3, "verbose": False}
    again = fitted(parameters=budgets).convergence_log_["time"]
    np.testing.assert_array_equal(again, time)
    copy = {"init": "".join(["au", "to"]), "tol": np.float64(1e-2)}
    again = fitted(data()[0].copy(), parameters=copy).convergence_log_["time"]
    np.testing.assert_array_equal(again, time)


def test_other_data_are_refused(fitted):
    X, y = data()
    for other in (-y, 2 * y):  # the second only in the units of the user
        with refused("the training data"):
            fitted(y=other)
    with refused("the training data, the sample weights"):
        fitted(X[:-1], y[:-1], sample_weight=np.ones(29))
    with refused("the sample weights"):
        fitted(sample_weight=np.arange(30) + 1.0)
    for other in ({"y_val": -data(30, seed=1)[1]}, {"X_val": data(30, seed=2)[0]}):
        with refused("the validation data"):
            fitted(**other)
    with refused("the validation data"):
        fitted(X_val=None, y_val=None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("damping", 0.1),
        ("solver", SgGN(relocations=3)),
        ("init", np.ones((4, 3))),
        ("solver", "vpgn"),
        ("random_state", 1),
        ("dtype", "float32"),
    ],
)
def test_other_parameters_are_refused(name, value, fitted):
    with refused(f".*the parameter '{name}'.*"):
        fitted(parameters={name: value})


def test_settings_of_a_solver_object_are_parts_of_the_question(tmp_path):
    X, y = data()
    file = Checkpoint(tmp_path / "fit.ckpt")
    make("lm", max_iter=3).set_callbacks(file).fit(X, y)
    equal = make(SHALLOW_RELU_SOLVERS["lm"], max_iter=4).set_callbacks(file)
    assert equal.fit(X, y).n_iter_ == 4
    other = SHALLOW_RELU_SOLVERS["lm_hidden"]
    with refused("the parameter 'solver'"):
        make(other, max_iter=4).set_callbacks(file).fit(X, y)


def test_other_rules_of_early_stopping_are_refused(tmp_path):
    X, y = data()
    model = make(max_iter=100)
    file = Checkpoint(tmp_path / "fit.ckpt")
    rule = EarlyStopping("loss", n_iter_no_change=2, min_delta=0.5)
    assert model.set_callbacks(file, rule).fit(X, y).stop_reason_ == "early_stopping"
    rule = EarlyStopping("loss", n_iter_no_change=3, min_delta=0.5)
    with refused("the rules of early stopping"):
        model.set_callbacks(file, rule).fit(X, y)


def test_rows_that_are_held_out_are_parts_of_the_question(tmp_path):
    X, y = data()
    file = Checkpoint(tmp_path / "fit.ckpt")
    model = make(early_stopping=True, random_state=None).set_callbacks(file).fit(X, y)
    with refused("the validation data"):  # they are drawn anew
        model.fit(X, y)


@pytest.mark.parametrize("seed", [0, None])
def test_warm_start_from_another_network_is_refused(seed, tmp_path):
    X, y = data()
    file = Checkpoint(tmp_path / "fit.ckpt")
    settings = {"hidden_layer_sizes": (3,), "max_iter": 3, "random_state": seed}
    model = VarProNetRegressor(warm_start=True, **settings).set_callbacks(file)
    first = model.fit(X, y).convergence_log_["loss"]
    # Whoever begins again without a network goes on with the file.
    fresh = VarProNetRegressor(warm_start=True, **settings).set_callbacks(file)
    assert fresh.set_params(max_iter=4).fit(X, y).n_iter_ == 4
    np.testing.assert_array_equal(fresh.convergence_log_["loss"][:3], first)
    with refused(r"the network to start from \(warm_start=True\)"):
        model.fit(X, y)
    file.resume = False
    assert model.fit(X, y).loss_ < first[-1]


def test_local_functions_can_be_resumed(tmp_path):
    def fit(rate, max_iter):
        def residual(u, x):
            return d(u, "t") + rate * u

        problem = Problem(residual, Box(t=(0, 1)), (Initial(lambda x: 1.0),))
        words = {"hidden_layer_sizes": (4,), "random_state": 0, "max_iter": max_iter}
        solver = PINNSolver(problem, n_interior=20, **words)
        return solver.set_callbacks(Checkpoint(tmp_path / "fit.ckpt")).fit()

    first = fit(1.0, 2).convergence_log_["loss"]
    np.testing.assert_array_equal(fit(1.0, 3).convergence_log_["loss"][:2], first)
    with refused("the parameter 'problem'"):
        fit(2.0, 3)


def test_validation_data_of_classifiers_are_parts_of_the_question(tmp_path):
    X, y = data()
    model = FGNSoftmaxHead(max_iter=2, random_state=0)
    model.set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    model.fit(X, y > 0, X_val=X, y_val=y > 0)
    with refused("the validation data"):
        model.fit(X, y > 0, X_val=X, y_val=y > 0.1)


def test_parameters_whose_value_is_not_known_are_named(tmp_path):
    X, y = data()
    model = make(Given(threading.Lock()))
    algorithm = ALGORITHMS["sggn"]
    model.solver.algorithm = lambda algorithms: algorithm
    model.set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    with pytest.raises(
        ValueError, match=r"the parameter 'solver' holds .*cannot pickle"
    ):
        model.fit(X, y)


# -- files ----------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"a text", pickle.dumps({"log": []})])
def test_other_files_are_refused(content, tmp_path):
    path = tmp_path / "fit.ckpt"
    path.write_bytes(content)
    X, y = data()
    with pytest.raises(ValueError, match="is not a checkpoint of this version"):
        make().set_callbacks(Checkpoint(path)).fit(X, y)
    make().set_callbacks(Checkpoint(path, resume=False)).fit(X, y)
    assert make().set_callbacks(Checkpoint(path)).fit(X, y).n_iter_ > 0


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "fit.ckpt"
    checkpoint.save(path, {"question": {}, "number": 1})
    with pytest.raises(TypeError, match="cannot pickle"):
        checkpoint.save(path, {"question": {}, "number": threading.Lock()})
    assert checkpoint.load(path)["number"] == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named_before_the_fit(tmp_path):
    X, y = data()
    model = make().set_callbacks(Checkpoint(tmp_path / "folder" / "fit.ckpt"))
    with pytest.raises(FileNotFoundError, match=r"folder .*does not exist"):
        model.fit(X, y)


def test_a_full_disk_ends_no_fit(monkeypatch, tmp_path):
    def full(*args):
        raise OSError("No space left on device")

    X, y = data()
    monkeypatch.setattr("os.replace", full)
    model = make().set_callbacks(Checkpoint(tmp_path / "fit.ckpt", every=0))
    with pytest.warns(UserWarning, match="could not be written .No space left"):
        model.fit(X, y)
    np.testing.assert_array_equal(model.predict(X), make().fit(X, y).predict(X))
    assert not list(tmp_path.iterdir())


def test_where_there_is_no_file_there_is_no_snapshot(tmp_path):
    assert checkpoint.load(tmp_path / "fit.ckpt") is None
