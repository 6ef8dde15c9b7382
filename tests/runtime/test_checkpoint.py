"""Checkpoints: resuming bit for bit, and the questions that a file answers."""

import json
import pickle
import re
import threading
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from joblib import parallel_backend
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import sklearn_gn
from sklearn_gn import (
    FGNSoftmaxHead,
    PINNSolver,
    ShallowReLURegressor,
    VarProNetRegressor,
)
from sklearn_gn.callbacks import Checkpoint, EarlyStopping
from sklearn_gn.networks import MLP
from sklearn_gn.pde import Box, Initial, Problem, d
from sklearn_gn.runtime import checkpoint, fingerprint
from sklearn_gn.solvers import (
    LM,
    SHALLOW_RELU_SOLVERS,
    GNvpro,
    JointGN,
    SgGN,
    Solver,
)

# SgGN is searched around like the joint step, and LM of the hidden layer is LM.
SOLVERS = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in ("sggn", "lm_hidden")))
    for name in sorted(SHALLOW_RELU_SOLVERS)
]
quiet = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
pytestmark = quiet


def data(n=30, d=2, seed=0):
    rng = np.random.RandomState(seed)
    return rng.randn(n, d), rng.randn(n)


def make(solver="lm", **changes):
    if solver in ("sggn", "vpgn"):  # of fewer rounds than by default
        solver = {"sggn": SgGN, "vpgn": JointGN}[solver](relocations=4)
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
@pytest.mark.repeats
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


def in_turn(**changes):
    """An estimator whose starts run one after the other."""
    words = {"alpha": 1e-2, "max_iter": 200, "tol": 1e-2, "random_state": 0}
    return VarProNetRegressor(hidden_layer_sizes=(3,), **{**words, **changes})


class Interrupting:
    """Presses Ctrl-C at the beginning of an iteration."""

    def __init__(self, number):
        self.number = number

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context):
        if context.task_name == "iteration" and context.task_id == self.number:
            raise KeyboardInterrupt

    def on_fit_task_end(self, estimator, context):
        pass


@pytest.mark.parametrize("in_second_start", [False, True])
def test_a_fit_that_ctrl_c_has_ended_is_resumed_bit_for_bit(in_second_start, tmp_path):
    X, y = data()
    number = in_turn().fit(X, y).n_iter_ if in_second_start else 1
    whole = in_turn(n_init=2).fit(X, y)
    file = Checkpoint(tmp_path / "fit.ckpt")
    model = in_turn(n_init=2).set_callbacks(file, Interrupting(number))
    assert model.fit(X, y).stop_reason_ == "interrupted"
    assert model.n_iter_ == number < whole.n_iter_
    model.set_callbacks(file).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))
    assert model.stop_reason_ == whole.stop_reason_
    for name in ("iteration", "loss", "damping"):
        np.testing.assert_array_equal(
            model.convergence_log_[name], whole.convergence_log_[name]
        )


def test_starts_that_max_iter_has_cut_off_are_made_up_for(tmp_path):
    X, y = data()
    whole, first = in_turn(n_init=3).fit(X, y), in_turn().fit(X, y).n_iter_
    model = in_turn(n_init=3).set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    model.set_params(max_iter=first).fit(X, y)
    assert model.stop_reason_ == "max_iter"
    model.set_params(max_iter=200).fit(X, y)
    np.testing.assert_array_equal(
        model.convergence_log_["loss"], whole.convergence_log_["loss"]
    )
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))


@pytest.mark.slow
def test_a_fit_on_batches_is_resumed_bit_for_bit_between_two_evaluations(tmp_path):
    X, y = data(70)
    settings = {
        "hidden_layer_sizes": (4,),
        "solver": GNvpro(batch_size=20),
        "tol": 0.0,
        "max_iter": 12,
        "random_state": 0,
    }
    model = VarProNetRegressor(**settings)
    whole = clone(model).fit(X, y)
    model.set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    for n_iter in range(1, 13):
        model.set_params(max_iter=n_iter).fit(X, y)
    log, expected = model.convergence_log_, whole.convergence_log_
    assert log.keys() == expected.keys()
    for name in set(log) - {"time"}:
        np.testing.assert_array_equal(log[name], expected[name])
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))


# -- signatures -----------------------------------------------------------------------


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


def test_the_same_signature_gives_the_finished_answer(fitted):
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
        ("solver", LM(hidden_only=True)),
        ("init", np.ones((4, 3))),
        ("solver", "vpgn"),
        ("random_state", 1),
        ("dtype", "float32"),
    ],
)
def test_other_parameters_are_refused(name, value, fitted):
    with refused(f".*the parameter '{name}'.*"):
        fitted(parameters={name: value})


def test_settings_of_a_solver_object_are_parts_of_the_signature(tmp_path):
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


def test_rows_that_are_held_out_are_parts_of_the_signature(tmp_path):
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
    settings["alpha"] = 1e-3  # fixed, so that the loss falls from fit to fit
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


def test_validation_data_of_classifiers_are_parts_of_the_signature(tmp_path):
    X, y = data()
    model = FGNSoftmaxHead(max_iter=2, random_state=0)
    model.set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    model.fit(X, y > 0, X_val=X, y_val=y > 0)
    with refused("the validation data"):
        model.fit(X, y > 0, X_val=X, y_val=y > 0.1)


def test_parameters_whose_value_is_not_known_are_named(tmp_path):
    X, y = data()
    model = make(Given(threading.Lock()))
    model.solver.algorithm = lambda algorithms: algorithms["lm"]
    model.set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    with pytest.raises(
        ValueError, match=r"the parameter 'solver' holds .*cannot pickle"
    ):
        model.fit(X, y)


# -- files ----------------------------------------------------------------------------


def stored(path, value):
    """What comes back of a value that is saved."""
    checkpoint.save(path, {"signature": {}, "value": value})
    return checkpoint.load(path)["value"]


class Point(NamedTuple):
    x: float
    y: tuple


class Colour(Enum):
    RED = "red"


def test_values_come_back_with_their_types_and_bits(tmp_path):
    value = {
        "numbers": [1, True, None, 0.1, 5e-324, -0.0, np.inf, -np.inf, 2**70],
        "scalars": (np.float32(0.1), np.int64(3), np.float64(np.pi), np.bool_(True)),
        "orders": (np.eye(3, 2), np.asfortranarray(np.eye(3, 2)), np.zeros((0, 2))),
        "nested": Point(Point(1.0, ()), ([("a", {3: Colour.RED})],)),
    }
    again = stored(tmp_path / "fit.ckpt", value)
    assert repr(again) == repr(value)  # with types, signs of zero and all digits
    assert type(again["nested"].x) is Point
    assert [type(v) for v in again["scalars"]] == [type(v) for v in value["scalars"]]
    assert again["orders"][1].flags.f_contiguous
    assert np.isnan(stored(tmp_path / "fit.ckpt", np.nan))


def header_of(path):
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file}
    return json.loads(arrays.pop("header").tobytes()), arrays


def with_header(path, header, arrays):
    np.savez(
        path, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays
    )
    return path.rename(path.with_suffix("")).read_bytes()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The bytes of a checkpoint by what is wrong with them."""
    X, y = data()
    path = tmp_path_factory.mktemp("written") / "fit.ckpt"
    make().set_callbacks(Checkpoint(path)).fit(X, y)
    content, (header, arrays) = path.read_bytes(), header_of(path)
    assert (header["format"], header["version"]) == ("sklearn_gn checkpoint", 3)
    assert arrays
    middle = content.index(arrays["1"].tobytes())
    flipped = bytes([content[middle] ^ 1])
    other = path.with_name("other.npz")
    command = {"class": ["os", "system"], "fields": {"command": "exit"}}
    return {
        "whole": content,
        "empty": b"",
        "a text": b"a text",
        "a pickle": pickle.dumps({"signature": {}}),
        "cut off": content[: len(content) // 2],
        "one bit": content[:middle] + flipped + content[middle + 1 :],
        "another archive": with_header(other, {"a": 1}, {}),
        "a later version": with_header(other, {**header, "version": 4}, arrays),
        "code": with_header(other, {**header, "snapshot": command}, {}),
    }


WRONG = ["empty", "a text", "a pickle", "cut off", "one bit", "another archive", "code"]


@pytest.mark.parametrize("kind", [*WRONG, "a later version"])
def test_other_files_are_refused(kind, written, tmp_path):
    path = tmp_path / "fit.ckpt"
    path.write_bytes(written[kind])
    with pytest.raises(ValueError, match=r"fit\.ckpt' is not a checkpoint") as e:
        make().set_callbacks(Checkpoint(path)).fit(*data())
    assert "resume=False to replace it" in str(e.value)
    if kind == "a later version":
        assert "version 4 of the format, this is 3" in str(e.value)


def test_a_damaged_file_is_refused_by_fit_and_can_be_replaced(written, tmp_path):
    X, y = data()
    path = tmp_path / "fit.ckpt"
    path.write_bytes(written["one bit"])
    with pytest.raises(ValueError, match="is not a checkpoint of this version"):
        make().set_callbacks(Checkpoint(path)).fit(X, y)
    make().set_callbacks(Checkpoint(path, resume=False)).fit(X, y)
    assert make().set_callbacks(Checkpoint(path)).fit(X, y).n_iter_ > 0


def test_files_of_another_version_of_the_package_are_refused(monkeypatch, tmp_path):
    X, y = data()
    file = Checkpoint(tmp_path / "fit.ckpt")
    make().set_callbacks(file).fit(X, y)
    monkeypatch.setattr(sklearn_gn, "__version__", "99.0.1")
    with refused("the version of sklearn_gn"):
        make().set_callbacks(file).fit(X, y)


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "fit.ckpt"
    stored(path, 1)
    before = path.read_bytes()
    for value in (threading.Lock(), np.array([None]), local_tuple()(1)):
        with pytest.raises(TypeError, match=r"does not store|is no named tuple"):
            stored(path, value)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def local_tuple():
    class Local(NamedTuple):
        weight: np.ndarray

    return Local


class OwnNetwork(MLP):
    """A network whose parameters are of a class that no other process can find."""

    def init(self, key, x):
        return local_tuple()(super().init(key, x))

    def apply(self, params, x):
        return super().apply(params.weight, x)


def test_networks_that_cannot_be_saved_are_refused_before_the_fit(tmp_path):
    X, y = data()
    model = VarProNetRegressor(network=OwnNetwork((3,)), alpha=(0.01, 1e-4))
    model.set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    with pytest.raises(ValueError, match=r"cannot be saved: .*Local' is no named"):
        model.fit(X, y)
    assert not list(tmp_path.iterdir())


def test_what_killed_writers_left_is_removed_and_no_more(tmp_path):
    path = tmp_path / "fit.ckpt"
    left = tmp_path / "fit.ckpt.abc.partial"
    left.write_bytes(b"half")
    others = {tmp_path / "other.ckpt.abc.partial", tmp_path / "fit.ckpt.partial"}
    for other in others:
        other.touch()
    with checkpoint._temporary(path) as alive:
        checkpoint.check_place(path)
        assert set(tmp_path.iterdir()) == {Path(alive.name), *others}
    checkpoint.check_place(path)
    assert set(tmp_path.iterdir()) == others


def test_files_that_cannot_be_written_or_read_are_named_before_the_fit(
    monkeypatch, tmp_path
):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    X, y = data()
    path = tmp_path / "fit.ckpt"
    model = make().set_callbacks(Checkpoint(path))
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.NamedTemporaryFile", refuse)
        with pytest.raises(PermissionError, match=r"fit\.ckpt' cannot be written"):
            model.fit(X, y)
    path.touch()
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        with pytest.raises(PermissionError, match=r"fit\.ckpt' cannot be read .Perm"):
            model.fit(X, y)
    with pytest.raises(IsADirectoryError, match="is a folder: give the path of a file"):
        make().set_callbacks(Checkpoint(tmp_path)).fit(X, y)


def test_each_fit_of_a_search_has_a_file(tmp_path):
    X, y = data()
    grid = {"damping": [0.1, 1.0], "max_iter": [2, 3]}
    # Threads, in which the fits share the callback.
    search = GridSearchCV(make("lm"), grid, cv=2, n_jobs=2)
    search.estimator.set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    with parallel_backend("threading"):
        first = search.fit(X, y).cv_results_["mean_test_score"]
        seconds = search.best_estimator_.convergence_log_["time"]
        files = {path: path.read_bytes() for path in tmp_path.iterdir()}
        assert len(files) == 2 * 4 + 1  # with the fit to all rows
        assert all(re.fullmatch(r"fit-[0-9a-f]{12}\.ckpt", f.name) for f in files)
        again = search.fit(X, y).cv_results_["mean_test_score"]
    np.testing.assert_array_equal(again, first)
    # All is read, nothing is fitted.
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    found = search.best_estimator_.convergence_log_["time"]
    np.testing.assert_array_equal(found, seconds)


def test_rows_are_hashed_once(monkeypatch, tmp_path):
    X, y = data()
    hashed, original = [], fingerprint.digest
    monkeypatch.setattr(
        fingerprint, "digest", lambda value: hashed.append(value) or original(value)
    )
    make().set_callbacks(Checkpoint(tmp_path / "fit.ckpt", every=0)).fit(X, y)
    assert [np.shape(value[0]) for value in hashed if type(value) is tuple] == [X.shape]


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
