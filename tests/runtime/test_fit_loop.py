"""The fit loop: log, stopping, warnings, Ctrl-C, callbacks."""

import re
import time
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.callback import ProgressBar, ScoringMonitor
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import ShallowReLURegressor, VarProNetRegressor
from sklearn_gn.callbacks import (
    Checkpoint,
    EarlyStopping,
    LogWriter,
    TimeBudget,
    _Callback,
)
from sklearn_gn.optim.solver import Report
from sklearn_gn.runtime.fit_loop import FitRun
from sklearn_gn.shallow_relu.dense import ALGORITHMS
from sklearn_gn.solvers import SHALLOW_RELU_SOLVERS, Adam, JointGN, SgGN, Solver

SGGN = ALGORITHMS["sggn"]
SOLVERS = sorted(SHALLOW_RELU_SOLVERS)
quiet = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


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
    relocations = 4  # those of `make`

    def __init__(self, given, relocations=4):
        self.given = given
        self.relocations = relocations

    def algorithm(self, algorithms):
        return self.given


def raising(function, call, error):
    """The function, but its call of that number, from 0, raises an error."""
    numbers = iter(range(1_000_000))  # one that pickles

    def wrapper(*args, **kwargs):
        if next(numbers) == call:
            raise error
        return function(*args, **kwargs)

    return wrapper


def failing(name, call, error=None, *, algorithm=SGGN, **settings):
    """An estimator, one part of whose solver raises."""
    function = raising(getattr(algorithm, name), call, error or KeyboardInterrupt())
    return make(Given(replace(algorithm, **{name: function})), **settings)


def stopping(reason):
    """A solver that stops for a reason after its first iteration."""

    def step(rows, state, options):
        return state, Report(loss=state.loss, grad_norm=1.0, stop=reason)

    return Given(replace(SGGN, name="stopping", step=step))


# -- the log --------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@quiet
def test_log_has_one_row_an_iteration_for_every_solver(solver):
    X, y = data()
    model = make(solver).fit(X, y)
    frame = pd.DataFrame(model.convergence_log_)
    columns = (
        "iteration time loss val_loss grad_norm step_size damping gain_ratio "
        "inner_iterations"
    )
    assert list(frame.columns) == columns.split()
    assert len(frame) == model.n_iter_ <= 12
    assert list(frame["iteration"]) == list(range(1, model.n_iter_ + 1))
    assert np.all(np.diff(frame["time"]) >= 0)
    assert np.isfinite(frame[["loss", "grad_norm", "step_size"]]).all(axis=None)
    assert (frame["inner_iterations"] >= 1).all()
    assert model.loss_ <= frame["loss"].min() * (1 + 1e-9)


# -- stopping and warnings ------------------------------------------------------------


def test_convergence_is_not_warned_about():
    model = make("lm", max_iter=500, tol=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(*data())
    assert model.converged_
    assert model.stop_reason_ in ("tol", "rounding")


@pytest.mark.parametrize("solver", SOLVERS)
def test_max_iter_stops_every_solver_and_warns(solver):
    X, y = data()
    with pytest.warns(ConvergenceWarning, match=r"\(max_iter\) after 2 iterations"):
        model = make(solver, max_iter=2).fit(X, y)
    assert model.n_iter_ == 2
    assert not model.converged_


@pytest.mark.parametrize("solver", SOLVERS)
def test_max_time_stops_every_solver_and_warns(solver):
    X, y = data()
    with pytest.warns(ConvergenceWarning, match=r"\(max_time\).*Raise max_time"):
        model = make(solver, max_time=1e-9).fit(X, y)
    assert model.stop_reason_ == "max_time"
    assert model.n_iter_ == 1


def test_warning_points_at_the_call_of_fit():
    X, y = data()
    with pytest.warns(ConvergenceWarning) as record:
        make(max_iter=1).fit(X, y)
    assert record[0].filename == __file__


@pytest.mark.parametrize(
    ("stop", "advice"),
    [
        ("line_search", "No step along the search direction"),
        ("singular", "Raise damping or lower rank"),
        ("non_finite", "Check the scale of X and y"),
    ],
)
def test_every_cause_has_its_advice(stop, advice):
    X, y = data()
    with pytest.warns(ConvergenceWarning, match=advice):
        model = make(stopping(stop)).fit(X, y)
    assert model.stop_reason_ == stop
    assert np.isfinite(model.predict(X)).all()


# -- Ctrl-C and errors ----------------------------------------------------------------


def after(n_iter, **settings):
    """Predictions of the best network of the first iterations."""
    X, y = data()
    model = make(max_iter=n_iter, **settings)
    with pytest.warns(ConvergenceWarning):
        return model.fit(X, y).predict(X)


def interrupted(model, **words):
    X, y = data()
    with pytest.warns(ConvergenceWarning, match=r"\(interrupted\).*best model so far"):
        model.fit(X, y, **words)
    assert model.stop_reason_ == "interrupted"
    assert not model.converged_
    assert np.isfinite(model.loss_)
    return model


@pytest.mark.parametrize("call", [1, 2, 5])
def test_ctrl_c_in_a_step_keeps_the_best_model(call):
    model = interrupted(failing("step", call))
    assert model.n_iter_ == call
    np.testing.assert_allclose(model.predict(data()[0]), after(call), rtol=1e-10)


def test_ctrl_c_ends_a_cross_validation():
    with pytest.raises(KeyboardInterrupt):
        cross_val_score(failing("step", 2), *data(), cv=3)


def test_ctrl_c_in_the_first_step_keeps_the_start():
    model = interrupted(failing("step", 0))
    assert model.n_iter_ == 0
    assert all(len(column) == 0 for column in model.convergence_log_.values())
    assert np.isfinite(model.predict(data()[0])).all()


def test_the_warning_after_ctrl_c_counts_the_first_iteration():
    def step(*arguments):
        time.sleep(0.2)
        raise KeyboardInterrupt

    model = make(Given(replace(SGGN, name="slow", step=step)))
    with pytest.warns(ConvergenceWarning, match="0 iterations") as record:
        model.fit(*data())
    seconds = re.search("and (.*) s at loss", str(record[0].message)).group(1)
    assert float(seconds) >= 0.2


def test_the_warning_names_a_long_first_iteration():
    def step(*arguments):
        time.sleep(1.1)
        return SGGN.step(*arguments)

    model = make(Given(replace(SGGN, name="slow", step=step)), max_time=1.0)
    with pytest.warns(
        ConvergenceWarning, match="Raise max_time. The .* took .* mostly for comp"
    ):
        model.fit(*data())


def test_ctrl_c_that_compiled_code_turns_into_another_error_is_one():
    text = "static arguments should be comparable: KeyboardInterrupt"
    assert interrupted(failing("step", 2, ValueError(text))).n_iter_ == 2
    error = RuntimeError("unrelated")
    error.__cause__ = KeyboardInterrupt()
    assert interrupted(failing("step", 2, error)).n_iter_ == 2


@pytest.mark.parametrize("call", [1, 3])
def test_ctrl_c_while_an_iteration_is_recorded_drops_that_iteration(call, monkeypatch):
    function = raising(FitRun._compared, call, KeyboardInterrupt())
    monkeypatch.setattr(FitRun, "_compared", function)
    model = interrupted(make())
    monkeypatch.undo()
    assert model.n_iter_ == call - 1
    if call > 1:
        np.testing.assert_allclose(
            model.predict(data()[0]), after(call - 1), rtol=1e-10
        )


def test_ctrl_c_between_two_starts_keeps_the_first():
    X, y = data()
    words = {"alpha": 1e-2, "tol": 1e-2, "random_state": 0}  # starts run by turns
    alone = VarProNetRegressor(hidden_layer_sizes=(3,), **words).fit(X, y)
    two = VarProNetRegressor(hidden_layer_sizes=(3,), n_init=2, **words)
    model = interrupted(two.set_callbacks(Interrupting("begin", alone.n_iter_)))
    assert model.n_iter_ == alone.n_iter_
    np.testing.assert_allclose(model.predict(X), alone.predict(X), rtol=1e-8)


def test_ctrl_c_in_the_last_evaluation_keeps_the_best_model():
    model = interrupted(failing("evaluate_last", 0, max_iter=3))
    np.testing.assert_allclose(model.predict(data()[0]), after(3), rtol=1e-10)


def test_ctrl_c_while_the_fitted_attributes_are_set_keeps_the_model(monkeypatch):
    name = "_set_fitted"
    function = raising(getattr(ShallowReLURegressor, name), 0, KeyboardInterrupt())
    monkeypatch.setattr(ShallowReLURegressor, name, function)
    model = interrupted(make(max_iter=3))
    assert model.n_iter_ == 3
    np.testing.assert_allclose(model.predict(data()[0]), after(3), rtol=1e-10)


class Interrupting(_Callback):
    """Presses Ctrl-C at a hook."""

    def __init__(self, hook, number):
        super().__init__()
        self.hook, self.number = hook, number

    def press(self, hook, context):
        is_fit = context.task_name != "iteration"
        if hook == self.hook and self.number == ("fit" if is_fit else context.task_id):
            raise KeyboardInterrupt

    def on_fit_task_begin(self, estimator, context):
        self.press("begin", context)

    def on_fit_task_end(self, estimator, context):
        self.press("end", context)


@pytest.mark.parametrize(
    ("hook", "number", "n_iter"),
    [("begin", 2, 2), ("end", 0, 1), ("end", 2, 3), ("end", "fit", 4)],
)
def test_ctrl_c_in_a_callback_keeps_the_best_model(hook, number, n_iter):
    model = make(max_iter=4).set_callbacks(Interrupting(hook, number))
    assert interrupted(model).n_iter_ == n_iter
    np.testing.assert_allclose(model.predict(data()[0]), after(n_iter), rtol=1e-10)
    assert not hasattr(model, "_fit_run")


def before_there_is_a_model():
    return {
        "in prepare": failing("prepare", 0),
        "in init": failing("init", 0),
        "in a callback": make().set_callbacks(Interrupting("begin", "fit")),
    }


@pytest.mark.parametrize("place", before_there_is_a_model())
def test_ctrl_c_before_there_is_a_model_leaves_nothing(place):
    X, y = data()
    model = before_there_is_a_model()[place]
    before = dict(vars(model))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert vars(model) == before
    with pytest.raises(NotFittedError):
        model.predict(X)


@quiet
def test_a_fit_that_fails_leaves_the_model_of_the_former_one():
    X, y = data()
    model = make(max_iter=2).fit(X, y)
    before, predicted = dict(vars(model)), model.predict(X)
    for error in (KeyboardInterrupt(), RuntimeError("broken")):
        model.set_params(solver=failing("init", 0, error).solver)
        with pytest.raises(type(error)):
            model.fit(X[:, :1], np.c_[y, y])
        assert vars(model).keys() == before.keys()
        np.testing.assert_array_equal(model.predict(X), predicted)


@quiet
def test_checkpoint_is_written_after_an_interruption(tmp_path):
    X, y = data()
    path = tmp_path / "fit.ckpt"
    failing("step", 2).set_callbacks(Checkpoint(path)).fit(X, y)
    assert list(tmp_path.iterdir()) == [path]
    assert np.load(path).files


def test_errors_leave_no_trace_on_the_estimator():
    X, y = data()
    model = failing("step", 2, RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        model.fit(X, y)
    assert vars(model).keys() == model.get_params(deep=False).keys()


def test_a_reason_that_nobody_knows_is_an_error():
    X, y = data()
    with pytest.raises(ValueError, match=r"one of \['tol'.*got 'boredom'"):
        make(stopping("boredom")).fit(X, y)


# -- the result -----------------------------------------------------------------------


@quiet
def test_best_iterate_is_returned_not_the_last():
    X, y = data()
    model = make(Adam(learning_rate=1.0), max_iter=30).fit(X, y)
    log = model.convergence_log_["loss"]
    assert log[-1] > model.loss_
    assert model.loss_ <= log.min() * (1 + 1e-9)


@quiet
def test_verbose_prints_progress(capsys):
    X, y = data()
    make(max_iter=3).fit(X, y)
    assert capsys.readouterr().out == ""
    make(max_iter=3, verbose=2).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "iteration    1  loss" in lines[0]
    assert lines[-1].endswith("(max_iter)")


# -- callbacks ------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@quiet
def test_callback_can_stop_every_solver(solver):
    class StopAtThree:
        def setup(self, estimator, context):
            self.seen = 0

        def teardown(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context):
            pass

        def on_fit_task_end(self, estimator, context):
            self.seen += 1
            return self.seen == 3

    X, y = data()
    model = make(solver).set_callbacks(StopAtThree()).fit(X, y)
    assert model.n_iter_ == 3
    assert model.stop_reason_ == "callback"


@quiet
def test_scikit_learn_s_callbacks_work():
    X, y = data()
    monitor = ScoringMonitor(scoring="r2")
    model = make().set_callbacks(monitor, ProgressBar()).fit(X, y)
    scores = pd.DataFrame(monitor.get_logs().data)["r2"].dropna()
    assert len(scores) >= model.n_iter_
    assert scores.max() == pytest.approx(model.score(X, y))


@quiet
@pytest.mark.parametrize("n_jobs", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_callbacks_work_inside_a_search(n_jobs):
    X, y = data()
    # With the penalty of the evidence, the processes of the search load no JAX.
    model = make("vpgn", alpha="auto", max_iter=3)
    model.set_callbacks(TimeBudget(100), EarlyStopping("loss"))
    search = GridSearchCV(
        make_pipeline(StandardScaler(), model),
        {"shallowreluregressor__damping": [0.0, 0.1]},
        cv=2,
        n_jobs=n_jobs,
    )
    assert np.isfinite(search.fit(X, y).cv_results_["mean_test_score"]).all()


def test_parameters_and_callbacks_stop_alike():
    X, y = data(80)
    X_val, y_val = data(30, seed=1)
    words = make("lm", early_stopping=True, n_iter_no_change=2, max_iter=500)
    words.fit(X, y, X_val=X_val, y_val=y_val)
    objects = make("lm", max_iter=500)
    objects.set_callbacks(EarlyStopping(n_iter_no_change=2))
    objects.fit(X, y, X_val=X_val, y_val=y_val)
    assert words.stop_reason_ == objects.stop_reason_ == "early_stopping"
    np.testing.assert_allclose(words.predict(X), objects.predict(X), rtol=1e-8)
    assert not hasattr(words, "_skl_callbacks")


def test_early_stopping_needs_validation_data_and_valid_parameters():
    X, y = data()
    with pytest.raises(ValueError, match="give X_val"):
        make().set_callbacks(EarlyStopping()).fit(X, y)
    with pytest.raises(ValueError, match="monitor must be"):
        EarlyStopping("accuracy")
    with pytest.raises(ValueError, match=r"n_iter_no_change must be .* >= 1, got 0"):
        EarlyStopping(n_iter_no_change=0)
    with pytest.raises(ValueError, match="min_delta must be a number >= 0, got -1"):
        EarlyStopping(min_delta=-1)
    for seconds in (0, float("nan"), "60", None):
        with pytest.raises(
            ValueError, match=f"seconds must be .* > 0, got {seconds!r}"
        ):
            TimeBudget(seconds)
    with pytest.raises(ValueError, match=r"write must be a function .*, got 3"):
        LogWriter(3)


def test_early_stopping_refuses_foreign_estimators():
    X, y = data()
    model = LogisticRegression().set_callbacks(EarlyStopping())
    with pytest.raises(TypeError, match="estimators of sklearn_gn, got Logistic"):
        model.fit(X, y > 0)


@quiet
def test_scores_on_held_out_rows_by_the_monitor_of_scikit_learn():
    X, y = data()
    held_out = {"held out": lambda model, *_: model.score(X[:10], y[:10])}
    monitor = ScoringMonitor(scoring=held_out)
    model = make("lm", max_iter=4).set_callbacks(monitor).fit(X, y)
    scores = monitor.get_logs().data_as_pandas["held out"].to_numpy()
    assert len(scores) >= 4
    assert scores[-1] == pytest.approx(model.score(X[:10], y[:10]))


@quiet
def test_early_stopping_ends_a_start_and_not_the_fit():
    X, y = data(80)
    words = {"alpha": 1e-3, "max_iter": 500, "random_state": 0}
    words |= {"early_stopping": True, "n_iter_no_change": 2}
    model = VarProNetRegressor(hidden_layer_sizes=(5,), n_init=3, **words).fit(
        X, y
    )  # starts by turns
    assert model.stop_reason_ == "early_stopping"
    one = clone(model).set_params(n_init=1).fit(X, y)
    assert model.n_iter_ > one.n_iter_ + 4
    best = model.convergence_log_["val_loss"].min()
    assert best <= one.convergence_log_["val_loss"].min()


def test_callbacks_show_their_settings():
    assert repr(TimeBudget(3)) == "TimeBudget(seconds=3)"
    assert "every=30.0" in repr(Checkpoint("x"))


@quiet
def test_clone_keeps_callbacks_and_parameters():
    copy = clone(make(damping=0.5).set_callbacks(TimeBudget(1e-9)))
    assert copy.get_params()["damping"] == 0.5
    assert copy.fit(*data()).stop_reason_ == "max_time"


@quiet
def test_a_log_writer_gets_every_row_once(tmp_path):
    X, y = data()
    path, rows = tmp_path / "fit.ckpt", []
    writer = LogWriter(rows.append)
    make(max_iter=5).set_callbacks(writer, Checkpoint(path)).fit(X, y)
    assert len(rows) == 5
    model = make(max_iter=9).set_callbacks(writer, Checkpoint(path)).fit(X, y)
    for name, column in model.convergence_log_.items():
        np.testing.assert_array_equal([row[name] for row in rows], column)
