"""What the experiments on variable projection share: recorded fits and their budgets.

A fit is recorded as points: work units and seconds so far, and the figures of the
network that would be returned if the fit ended there. Neither counts the scoring.
"""

import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import NamedTuple
from unittest import mock

import jax
import numpy as np
from sklearn.base import BaseEstimator, clone

from benchmarks._report import progress, settings, summary
from benchmarks._timing import compile_seconds, timed_fit
from sklearn_gn.arrays import backend
from sklearn_gn.varpro import gnvpro
from sklearn_gn.varpro.problem import features, solve_entropy, solve_squares
from sklearn_gn.varpro.training import current_batch

TUNING_SHARE = 0.25  # of the budget, for fits that compare variants
MOST_FITS = 4  # to find the number of iterations that a budget allows
CURVE_POINTS = 50  # of methods with many short iterations
EPOCH_COST = 2  # work units of an epoch of Adam or SGD
LBFGS_COST = 3  # of an iteration whose first trial is good

WORK_NOTES = (
    "train, validation and test are the figures of the network that a fit returns, the "
    "one with the lowest objective, when it ends within its budget of work units: "
    "passes over all training rows, forward or backward. work_units are those used. "
    "Levels share the iterations, whose number is the largest found on the first seed "
    "that keeps to the budget; it may stop the other seeds a little earlier.",
    "Seconds are those of fits that compile nothing; scoring on the way is not "
    "counted. Those of adam contain the loss of all rows after every epoch, for the "
    "log, which its units do not. curves are those of the seed with the median test "
    "figure.",
    "Rates, batch sizes and networks are those of the variants with the best "
    f"validation figure after {TUNING_SHARE:.0%} of the budget, on the first seed.",
)


class Problem(NamedTuple):
    """Data in three parts, and the figure that predictions are judged by."""

    description: str
    parts: dict  # "train", "validation" and "test": X and y
    measure: Callable  # of targets and predictions
    higher: bool  # whether more of it is better

    @property
    def train(self):
        return self.parts["train"]

    def watch(self, estimator):
        """Words of ``fit``: validation data, where early stopping asks for them."""
        if not estimator.early_stopping:
            return {}
        return dict(zip(("X_val", "y_val"), self.parts["validation"], strict=True))

    def score(self, model):
        return {
            name: float(self.measure(y, model.predict(X)))
            for name, (X, y) in self.parts.items()
        }

    def best(self, candidates, figure):
        """The candidate whose figure is the best one; NaN is the worst."""
        sign = -1 if self.higher else 1
        return min(candidates, key=lambda c: np.nan_to_num(sign * figure(c), nan=1e300))


class Method(NamedTuple):
    """An estimator and the work that it may do."""

    estimator: BaseEstimator
    units: float
    cost: float  # least work units of an iteration
    variants: tuple = ({},)  # parameters, of which the best are taken


def krylov_cost(rank):
    """Work units of an iteration with the whole Krylov space and a good first trial."""
    return 2 * rank + 3


def relative_error(target, prediction):
    """Mean over the samples of ``|prediction - target| / |target|``."""
    distance = np.linalg.norm(prediction - target, axis=1)
    return np.mean(distance / np.linalg.norm(target, axis=1))


def parts_of(bunch):
    """The three parts of a data set that says which rows they have."""
    return {
        name: (bunch.data[bunch[name]], bunch.target[bunch[name]])
        for name in ("train", "validation", "test")
    }


# --- recorded fits -------------------------------------------------------------------


class Recorder:
    """A callback that scores iterates and ends a fit that has reached a goal.

    ``until`` tells from a point whether it has; ``every`` leaves iterations out.
    """

    def __init__(self, score, *, until=lambda point: False, every=1):
        self.score, self.until, self.every = score, until, every
        self.points, self.nets = [], []
        self.evaluated = []  # whether on all rows, where batches made a network
        self.rows = self.settings = None
        self.trials_per_step = 0.0  # of GNvpro
        self.seconds_scoring = 0.0

    def setup(self, estimator, context):
        pass

    teardown = on_fit_task_begin = setup

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        begun = time.perf_counter()
        run = estimator._fit_run
        row = run.log[-1]
        point = {
            "iteration": row["iteration"],
            "work_units": float(row["work_units"]),
            "seconds": row["time"] - self.seconds_scoring,
            "level": int(row["level"]),
        }
        ended = context.max_subtasks != 0  # the fit, not an iteration
        known = self.points and self.points[-1]["iteration"] == row["iteration"]
        if known and not self.evaluated[-1]:  # it has been evaluated on all rows since
            self.keep(self.points[:-1])
            known = False
        if not known and (ended or row["iteration"] % self.every == 0):
            self.points.append({**point, **self.score(fitted_estimator)})
            self.nets.append(run.final_state.net)
            self.evaluated.append(row.get("evaluated_on_all_rows", True))
            self.rows, self.settings = run.rows, run.options
        self.seconds_scoring += time.perf_counter() - begun
        return self.until(point)

    def keep(self, points):
        """Forget all but the first points."""
        self.points, self.nets = points, self.nets[: len(points)]
        self.evaluated = self.evaluated[: len(points)]


def recorded_fit(estimator, problem, **words):
    """The model, and the recorder of its fit; early stopping gets validation data."""
    recorder = Recorder(problem.score, **words)
    recorded = clone(estimator).set_callbacks(recorder)
    with counted(gnvpro, "try_step") as calls:
        model, _ = timed_fit(recorded, *problem.train, **problem.watch(estimator))
    recorder.trials_per_step = len(calls) / model.n_iter_
    return model, recorder


@contextmanager
def counted(module, name):
    """A list that grows with every call of a function while the context is open."""
    original, calls = getattr(module, name), []

    def function(*args, **kwargs):
        calls.append(name)
        return original(*args, **kwargs)

    with mock.patch.object(module, name, function):
        yield calls


def short(estimator):
    """One with an iteration on every level: it compiles what the fit needs."""
    n_levels = getattr(estimator.network, "n_levels", 1)
    return clone(estimator).set_params(max_iter=n_levels)


def figures(points):
    """What a run reports of its last point."""
    return {k: v for k, v in points[-1].items() if k != "level"}


def curve(points):
    names = [name for name in points[0] if name != "iteration"]
    return {name: [point[name] for point in points] for name in names}


def middle(recorded):
    """Number of the run whose test figure is the median, the lower of two."""
    order = sorted(range(len(recorded)), key=lambda k: recorded[k][-1]["test"])
    return order[(len(order) - 1) // 2]


# --- budgets of work -----------------------------------------------------------------


def within(points, units):
    """The points that keep to a budget, at least one."""
    return [point for point in points if point["work_units"] <= units] or points[:1]


def longest_fit(estimator, problem, method, every):
    """The fit with the most work units, of a few, that keeps to the budget.

    Returns
    -------
    max_iter : int
    recorder : Recorder
    """
    fits, max_iter = {}, most_iterations(method)
    while max_iter not in fits and len(fits) < MOST_FITS:
        estimator.set_params(max_iter=max_iter)
        _, fits[max_iter] = recorded_fit(
            estimator, problem, until=partial(spent, units=method.units), every=every
        )
        last = fits[max_iter].points[-1]
        max_iter = following(max_iter, last, method.units)

    def merit(max_iter):
        last = fits[max_iter].points[-1]["work_units"]
        return last <= method.units, min(last, method.units)

    best = max(fits, key=merit)
    return best, fits[best]


def most_iterations(method):
    """How many the budget allows at the least cost; the start takes a unit."""
    return max(1, int((method.units - 1) / method.cost))


def following(max_iter, last, units):
    """The ``max_iter`` to try after a fit that ended with this point."""
    if spent(last, units):
        return last["iteration"]
    if last["iteration"] < max_iter:  # it stopped by itself
        return max_iter
    return int(max_iter * units / last["work_units"])


def spent(point, units):
    """Whether one more iteration, of the average work, would exceed the budget."""
    return point["work_units"] * (1 + 1 / point["iteration"]) > units


def tuned(method, problem, seed):
    """The estimator with the best of the variants."""
    candidates = [clone(method.estimator).set_params(**v) for v in method.variants]
    if len(candidates) == 1:
        return candidates[0]
    small = method._replace(units=TUNING_SHARE * method.units)

    def validation(candidate):
        trial = clone(candidate).set_params(
            random_state=seed, max_iter=most_iterations(small)
        )
        _, recorder = recorded_fit(trial, problem, every=most_iterations(small))
        return recorder.points[-1]["validation"]

    return problem.best(candidates, validation)


def work_runs(name, method, problem, seeds):
    """The answer of a method for its budget, and the recorders of its runs."""
    estimator = tuned(method, problem, seeds[0])
    compiling = compile_seconds(short(estimator), *problem.train)
    every = max(1, most_iterations(method) // CURVE_POINTS)
    recorders = []
    for seed in seeds:
        estimator.set_params(random_state=seed)
        if recorders:
            until = partial(spent, units=method.units)
            _, recorder = recorded_fit(estimator, problem, until=until, every=every)
        else:
            max_iter, recorder = longest_fit(estimator, problem, method, every)
            estimator.set_params(max_iter=max_iter)
        recorder.keep(within(recorder.points, method.units))
        recorders.append(recorder)
        progress(name, seed, figures(recorder.points))
    points = [recorder.points for recorder in recorders]
    return answer(estimator, points, seeds, compiling), recorders


def answer(estimator, recorded, seeds, compiling):
    """What a result says of a method with recorded fits."""
    runs = [
        {"seed": seed, **figures(points)}
        for seed, points in zip(seeds, recorded, strict=True)
    ]
    changed = settings(estimator)
    changed.pop("random_state", None)
    return {
        "settings": changed,
        "compile_seconds": compiling,
        "runs": runs,
        "summary": summary(runs),
    }


def work_comparison(methods, problem, seeds):
    """Answers, curves and recorders of all methods."""
    answers, curves, recorders = {}, {}, {}
    for name, method in methods.items():
        answers[name], recorders[name] = work_runs(name, method, problem, seeds)
        points = [recorder.points for recorder in recorders[name]]
        curves[name] = curve(points[middle(points)])
    return answers, curves, recorders


def add_standing(answers, reference, figure, standing):
    """Add to the runs of the others how they stand to the reference on their seed.

    ``standing(theirs, reference's)`` of the test figures; its median where a method
    has no seed.
    """
    of_seed = {run["seed"]: run["test"] for run in answers[reference]["runs"]}
    typical = median(of_seed.values())
    for name in (name for name in answers if name != reference):
        for run in answers[name]["runs"]:
            run[figure] = standing(run["test"], of_seed.get(run["seed"], typical))
        answers[name]["summary"] = summary(answers[name]["runs"])


# --- the inner problem ---------------------------------------------------------------


@partial(jax.jit, static_argnames="model")
def _inner_solution(model, z, rows, penalty, start):
    if model.loss == "squared":
        return solve_squares(z, rows, penalty)
    return solve_entropy(model, z, rows, penalty, start)


_features = jax.jit(features, static_argnames="model")


def inner_seconds(recorder, dtype):
    """Seconds that a fit by GNvpro spends on its inner problems.

    They are solved again from the features, apart from everything else. An iteration
    solves one for the Jacobian, from its solution, and one a trial; with batches, one
    for the rows of the batch before, and one for all rows if they judge. Iterations
    that are not recorded are taken for average ones, as is the first, whose start is
    not.
    """
    nets, told = recorder.nets, recorder.settings
    trials = recorder.trials_per_step
    seconds = []
    with backend.scope(dtype):
        rows = jax.device_put(recorder.rows)
        for before, net, point, evaluated in zip(
            nets[:-1],
            nets[1:],
            recorder.points[1:],
            recorder.evaluated[1:],
            strict=True,
        ):
            batch, _ = current_batch(rows, told, point["iteration"] - 1)
            solve = partial(_timed_solution, told, batch)
            output, first = solve(before.theta, before.output)
            _, again = solve(before.theta, output)
            found, trial = solve(net.theta, output)
            spent = again + trials * trial
            if batch is not rows:
                spent += first
            if batch is not rows and evaluated:
                spent += _timed_solution(told, rows, net.theta, found)[1]
            seconds.append(spent)
    return np.mean(seconds) * recorder.points[-1]["iteration"] if seconds else 0.0


def add_inner_share(method, recorders, dtype):
    """Add to the runs the share of the inner problems in the time of the fit."""
    for run, recorder in zip(method["runs"], recorders, strict=True):
        run["inner_share"] = inner_seconds(recorder, dtype) / run["seconds"]
    method["summary"] = summary(method["runs"])


def _timed_solution(told, rows, theta, start):
    """The solution of an inner problem, and its seconds without compilation."""
    z = _features(told.model, theta, rows.x)
    penalty = told.penalties.output
    solve = partial(_inner_solution, told.model, z, rows, penalty, start)
    jax.block_until_ready(solve())
    begun = time.perf_counter()
    output, _ = jax.block_until_ready(solve())
    return output, time.perf_counter() - begun
