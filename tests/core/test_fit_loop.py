"""The fit loop: log, stopping, warnings, callbacks, checkpoints, Ctrl-C."""

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.callback import ProgressBar, ScoringMonitor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.callbacks import (
    Checkpoint,
    EarlyStopping,
    TimeBudget,
    ValidationMonitor,
)
from sklearn_gn.core.data import canonical_rows
from sklearn_gn.core.fit_loop import LOG_COLUMNS
from sklearn_gn.core.solver import Report
from sklearn_gn.shallow_relu.algorithms import SGGN
from sklearn_gn.solvers import SHALLOW_RELU_SOLVERS, Adam, JointGN, SgGN, Solver

SOLVERS = sorted(SHALLOW_RELU_SOLVERS)
quiet = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def data(n=40, d=2, seed=0):
    rng = np.random.RandomState(seed)
    return rng.randn(n, d), rng.randn(n)


def make(solver="sggn", relocations=4, **changes):
    if solver == "sggn":
        solver = SgGN(relocations=relocations)
    elif solver == "vpgn":
        solver = JointGN(relocations=relocations)
    settings = {"max_iter": 12, "random_state": 0, **changes}
    return ShallowReLURegressor(4, solver=solver, **settings)


class Given(Solver):
    """A solver that stands for an algorithm of the test."""

    name = "given"
    relocations = 4  # those of `make`

    def __init__(self, given):
        self.given = given

    def algorithm(self, algorithms):
        return self.given


@pytest.fixture
def interrupting():
    """A solver that raises in its third step whatever it is given."""

    def install(error):
        count = iter(range(100))

        def step(rows, state, options):
            if next(count) == 2:
                raise error
            return SGGN.step(rows, state, options)

        solver = replace(SGGN, name="interrupting", step=step)
        return make(Given(solver))

    return install


# -- the log --------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@quiet
def test_log_has_one_row_an_iteration_for_every_solver(solver):
    X, y = data()
    model = make(solver).fit(X, y)
    frame = pd.DataFrame(model.convergence_log_)
    assert tuple(frame.columns) == LOG_COLUMNS
    assert len(frame) == model.n_iter_ <= 12
    assert list(frame["iteration"]) == list(range(1, model.n_iter_ + 1))
    assert np.all(np.diff(frame["time"]) >= 0)
    assert np.isfinite(frame[["loss", "grad_norm", "step_size"]]).all(axis=None)
    assert (frame["inner_iterations"] >= 1).all()
    assert model.loss_ <= frame["loss"].min() * (1 + 1e-9)


@quiet
def test_gradient_norm_is_that_of_the_returned_loss():
    X, y = data()
    model = make(relocations=0, max_iter=1).fit(X, y)
    log = model.convergence_log_
    # The gain ratio times the promised decrease is the decrease.
    assert log["gain_ratio"][0] > 0
    assert log["grad_norm"][0] > 0


# -- stopping and warnings ------------------------------------------------------------


def test_convergence_is_not_warned_about():
    X = np.linspace(0, 1, 50)[:, None]
    model = make(relocations=0, max_iter=500, tol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, np.abs(X[:, 0] - 0.4))
    assert model.converged_
    assert model.stop_reason_ in ("tol", "rounding")


@pytest.mark.parametrize("solver", SOLVERS)
def test_max_iter_stops_every_solver_and_warns(solver):
    X, y = data()
    with pytest.warns(ConvergenceWarning, match=r"\(max_iter\) after 2 iterations"):
        model = make(solver, max_iter=2, relocations=0).fit(X, y)
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
    def step(rows, state, options):
        return state, Report(loss=state.loss, grad_norm=1.0, stop=stop)

    solver = replace(SGGN, name="failing", step=step)
    X, y = data()
    with pytest.warns(ConvergenceWarning, match=advice):
        model = make(Given(solver)).fit(X, y)
    assert model.stop_reason_ == stop
    assert np.isfinite(model.predict(X)).all()


def test_ctrl_c_keeps_the_best_model(interrupting):
    X, y = data()
    model = interrupting(KeyboardInterrupt())
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.fit(X, y)
    reference = make(max_iter=2)
    with pytest.warns(ConvergenceWarning):
        reference.fit(X, y)
    np.testing.assert_array_equal(model.predict(X), reference.predict(X))
    assert model.stop_reason_ == "interrupted"


def test_errors_leave_no_trace_on_the_estimator(interrupting):
    X, y = data()
    model = interrupting(RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        model.fit(X, y)
    assert not hasattr(model, "_fit_run")
    assert not hasattr(model, "_skl_callbacks")
    assert not hasattr(model, "_network")


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
def test_callbacks_work_inside_a_search():
    X, y = data()
    model = make(max_iter=3).set_callbacks(TimeBudget(100), EarlyStopping("loss"))
    search = GridSearchCV(
        make_pipeline(StandardScaler(), model),
        {"shallowreluregressor__damping": [0.0, 0.1]},
        cv=2,
        n_jobs=2,
    )
    assert np.isfinite(search.fit(X, y).cv_results_["mean_test_score"]).all()


def test_parameters_and_callbacks_stop_alike():
    X, y = data(80)
    X_val, y_val = data(30, seed=1)
    words = make(early_stopping=True, n_iter_no_change=2, max_iter=50)
    words.fit(X, y, X_val=X_val, y_val=y_val)
    objects = make(max_iter=50).set_callbacks(EarlyStopping(n_iter_no_change=2))
    objects.fit(X, y, X_val=X_val, y_val=y_val)
    assert words.stop_reason_ == objects.stop_reason_ == "early_stopping"
    np.testing.assert_array_equal(words.predict(X), objects.predict(X))
    assert not hasattr(words, "_skl_callbacks")


def test_early_stopping_needs_validation_data_and_a_known_column():
    X, y = data()
    with pytest.raises(ValueError, match="give X_val"):
        make().set_callbacks(EarlyStopping()).fit(X, y)
    with pytest.raises(ValueError, match="monitor must be"):
        EarlyStopping("accuracy")
    with pytest.raises(ValueError, match="seconds must be positive, got 0"):
        TimeBudget(0)


def test_early_stopping_refuses_foreign_estimators():
    X, y = data()
    model = LogisticRegression().set_callbacks(EarlyStopping())
    with pytest.raises(TypeError, match="estimators of sklearn_gn, got Logistic"):
        model.fit(X, y > 0)


@quiet
def test_validation_monitor_scores_the_model_of_every_step():
    X, y = data()
    monitor = ValidationMonitor(X[:10], y[:10])
    model = make(relocations=0, max_iter=4).set_callbacks(monitor).fit(X, y)
    assert monitor.history_["step"] == [1, 2, 3, 4]
    assert monitor.history_["score"][-1] == pytest.approx(model.score(X[:10], y[:10]))


def test_validation_monitor_works_with_scikit_learn_s_estimators():
    X, y = data()
    monitor = ValidationMonitor(X, y > 0)
    LogisticRegression().set_callbacks(monitor).fit(X, y > 0)
    assert len(monitor.history_["score"]) > 1


# -- checkpoints ----------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@quiet
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
@quiet
def test_resumed_fit_goes_on_with_its_own_draws_without_a_seed(tmp_path, seed):
    X, y = data()
    model = make(init="random", n_init=2, random_state=seed, max_iter=2)
    model.set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    first = model.fit(X, y).convergence_log_["loss"]
    second = model.set_params(max_iter=6).fit(X, y).convergence_log_["loss"]
    np.testing.assert_array_equal(second[:2], first)


@quiet
def test_early_stopping_ends_a_start_and_not_the_fit():
    X, y = data(80)
    # A solver that takes its starts one after the other.
    model = make("lm", early_stopping=True, n_iter_no_change=2, max_iter=500)
    model.set_params(n_init=3)
    model.fit(X, y)
    assert model.stop_reason_ == "early_stopping"
    one = clone(model).set_params(n_init=1).fit(X, y)
    assert model.n_iter_ > one.n_iter_ + 4
    best = model.convergence_log_["val_loss"].min()
    assert best <= one.convergence_log_["val_loss"].min()


@quiet
def test_finished_fit_is_not_repeated_but_goes_on_with_a_larger_budget(tmp_path):
    X, y = data()
    model = make(max_iter=3).set_callbacks(Checkpoint(tmp_path / "fit.ckpt"))
    first = model.fit(X, y).convergence_log_["time"]
    np.testing.assert_array_equal(model.fit(X, y).convergence_log_["time"], first)
    assert model.set_params(max_iter=5).fit(X, y).n_iter_ == 5


@quiet
def test_checkpoint_of_other_data_or_parameters_is_refused(tmp_path):
    X, y = data()
    path = tmp_path / "fit.ckpt"
    make(max_iter=2).set_callbacks(Checkpoint(path)).fit(X, y)
    with pytest.raises(ValueError, match="belongs to other data or other parameters"):
        make(max_iter=2).set_callbacks(Checkpoint(path)).fit(X, -y)
    with pytest.raises(ValueError, match="belongs to other data or other parameters"):
        make(damping=0.1).set_callbacks(Checkpoint(path)).fit(X, y)
    replaced = make(max_iter=2).set_callbacks(Checkpoint(path, resume=False))
    assert replaced.fit(X, -y).n_iter_ == 2


@quiet
def test_checkpoint_is_written_after_an_interruption(tmp_path, interrupting):
    X, y = data()
    path = tmp_path / "fit.ckpt"
    model = interrupting(KeyboardInterrupt())
    model.set_callbacks(Checkpoint(path)).fit(X, y)
    snapshot = pickle.loads(path.read_bytes())
    assert len(snapshot["log"]) == 2
    assert list(tmp_path.iterdir()) == [path]


def test_callbacks_show_their_settings():
    assert repr(TimeBudget(3)) == "TimeBudget(seconds=3)"
    assert "every=30.0" in repr(Checkpoint("x"))


# -- canonical rows -------------------------------------------------------------------


def test_canonical_rows_merge_sort_and_drop():
    X = np.array([[2.0], [1.0], [2.0], [1.0], [3.0]])
    y = np.array([[0.0], [5.0], [0.0], [4.0], [9.0]])
    rows, weight = canonical_rows(X, y, np.array([1.0, 1.0, 2.0, 4.0, 0.0]))
    np.testing.assert_array_equal(X[rows], [[1.0], [1.0], [2.0]])
    np.testing.assert_array_equal(y[rows], [[4.0], [5.0], [0.0]])
    np.testing.assert_array_equal(weight, np.array([4, 1, 3]) / 8)


def test_canonical_rows_stand_weights_near_the_largest_float():
    X = np.arange(3.0)[:, None]
    *_, weight = canonical_rows(X, X, np.full(3, 1.7e308))
    np.testing.assert_allclose(weight, 1 / 3)


def test_clone_keeps_callbacks_and_parameters():
    budget = TimeBudget(5)
    copy = clone(make(damping=0.5).set_callbacks(budget))
    assert copy.get_params()["damping"] == 0.5
    assert copy._skl_callbacks == [budget]
