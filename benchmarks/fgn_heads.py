"""Softmax regression by Gauss-Newton steps, beside the solvers of LogisticRegression.

All methods minimise one objective, the mean cross-entropy of the training rows plus
``alpha / 2 |W|^2`` with the intercepts free, and are timed to within a relative
distance of its minimum.
"""

import time
import warnings
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import numpy as np
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, _logistic

from benchmarks import _data
from benchmarks._cars import CARS_HORIZON, CARS_NOTES, run_cars
from benchmarks._report import progress, settings, summary, target
from benchmarks._timing import compile_seconds, stages, timed_fit
from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.solvers import Adam

ALPHA = 1e-3
GAPS = ("1e-4", "1e-8")  # relative distances from the minimum, and names of figures
SHARE = 0.99  # of the best test accuracy
LIMIT = 90  # seconds of one fit; what takes longer counts as not reached
SHORT_LIMIT = 30  # of methods that are far from the goals after that time
RESOLUTION = 0.1  # of the number of iterations where it has to be searched for
CERTAIN = 1e-10  # relative distance within which the reference must be the minimum
WARM_UP = 8  # iterations, among them every kind
LARGEST_HESSIAN = 8000  # rows, for newton-cholesky
ADAM_RATES = (1e-3, 3e-3, 1e-2)
MANY_CLASSES = 100
AIMS = {True: 3.0, False: 1 / 1.2}  # by whether classes are many

NOTES = (
    "Seconds are those of one whole fit from scratch that compiles nothing, with the "
    "least max_iter that reaches the goal, for all methods alike. It is read off a "
    "first fit that records every iterate (lbfgs, newton-cg, ours), or found by "
    f"doubling and bisection to within {RESOLUTION:.0%} (the others). tol is 0, but a "
    "method that makes no more progress may stop by itself. Runs repeat the timing of "
    "the same fits; long ones are timed once.",
    "Goals: the objective within 1e-4 and 1e-8 of its minimum, relative to that, and "
    f"{SHARE:.0%} of the best test accuracy of any fit on this problem. null: not "
    f"reached by a fit of {LIMIT} seconds ({SHORT_LIMIT} for fgn, adam and saga), for "
    "the reason in not_reached.",
    "gap, accuracy and top5 are those of the fit with the lowest objective. top5: the "
    "class is among the first five.",
    "Objective and minimum are computed in NumPy, apart from the timings. The gradient "
    "at the minimum bounds its error (gap_at_most), since the objective is strongly "
    "convex in W; the small part of the intercepts is taken for one of W.",
    "speedup: the seconds of the fastest solver of LogisticRegression over one's own; "
    "the limit stands for those of a solver that did not arrive. Methods in float64 "
    "are compared with solvers in float64, those in float32 with all.",
    "Methods in float32 are given features in float32, all others in float64.",
    f"adam has the best of the rates {ADAM_RATES}: the fewest seconds to 1e-4, or else "
    "the lowest objective.",
)


class Method(NamedTuple):
    """Variants of an estimator, the best of which counts."""

    variants: list
    ours: bool
    dtype: str = "float64"
    limit: float = LIMIT


def methods(alpha, n):
    """All methods for n training rows."""

    def peer(solver):
        return LogisticRegression(
            C=1 / (alpha * n), solver=solver, tol=0.0, random_state=0
        )

    head = partial(FGNSoftmaxHead, alpha=alpha, tol=0.0, random_state=0)
    rates = [
        head(solver=Adam(learning_rate=rate, batch_size=512)) for rate in ADAM_RATES
    ]
    float32 = head(solver="fgn_newton", dtype="float32")
    return {
        "fgn_newton": Method([head(solver="fgn_newton")], ours=True),
        "fgn_newton_float32": Method([float32], ours=True, dtype="float32"),
        "fgn": Method([head(solver="fgn")], ours=True, limit=SHORT_LIMIT),
        "adam": Method(rates, ours=True, limit=SHORT_LIMIT),
        "lbfgs": Method([peer("lbfgs")], ours=False),
        "lbfgs_float32": Method([peer("lbfgs")], ours=False, dtype="float32"),
        "newton-cg": Method([peer("newton-cg")], ours=False),
        "newton-cholesky": Method([peer("newton-cholesky")], ours=False),
        "saga": Method([peer("saga")], ours=False, limit=SHORT_LIMIT),
    }


# --- the problem ---------------------------------------------------------------------


class Problem:
    """One data set and penalty: objective, scores and the minimum."""

    def __init__(self, data, alpha):
        classes, self.codes = np.unique(data.y_train, return_inverse=True)
        if len(classes) < 3:  # LogisticRegression penalises two classes differently
            raise ValueError("The benchmark needs at least three classes.")
        self.data, self.alpha = data, alpha
        self.test_codes = np.searchsorted(classes, data.y_test)
        self.test_codes[~np.isin(data.y_test, classes)] = -1  # never labelled right
        self.rows = {
            dtype: data.X_train.astype(dtype, copy=False)
            for dtype in ("float64", "float32")
        }
        self.reference = reference(self)

    def fit(self, estimator, dtype):
        return timed_fit(estimator, self.rows[dtype], self.data.y_train)

    def objective(self, model):
        return objective(*parameters(model), self.data.X_train, self.codes, self.alpha)

    def gap(self, model):
        """Distance from the minimum, relative to it."""
        minimum = self.reference["objective"]
        return (self.objective(model) - minimum) / minimum

    def scores(self, model):
        """Shares of the test rows whose class is the first, or in the first five."""
        coef, intercept = parameters(model)
        logits = self.data.X_test @ coef.T + intercept
        first = np.mean(np.argmax(logits, axis=1) == self.test_codes)
        five = np.argpartition(-logits, min(5, logits.shape[1] - 1), axis=1)[:, :5]
        return first, np.mean(np.any(five == self.test_codes[:, None], axis=1))


def parameters(model):
    return model.coef_.astype(np.float64), model.intercept_.astype(np.float64)


def objective(coef, intercept, X, codes, alpha):
    """Mean cross-entropy plus ``alpha / 2 |coef|^2``."""
    logits = X @ coef.T + intercept
    right = logits[np.arange(len(codes)), codes]
    return np.mean(logsumexp(logits, axis=1) - right) + alpha / 2 * np.sum(coef**2)


def gradient(coef, intercept, X, codes, alpha):
    """Its derivatives by coef and by intercept."""
    logits = X @ coef.T + intercept
    residual = np.exp(logits - logsumexp(logits, axis=1, keepdims=True))
    residual[np.arange(len(codes)), codes] -= 1
    residual /= len(codes)
    return residual.T @ X + alpha * coef, residual.sum(axis=0)


def reference(problem):
    """The minimum of the objective, and how far from it that may be."""
    alpha, n = problem.alpha, len(problem.codes)
    peer = LogisticRegression(C=1 / (alpha * n), max_iter=10_000)
    found = []
    candidates = [
        (
            "fgn_newton",
            FGNSoftmaxHead(solver="fgn_newton", alpha=alpha, tol=1e-10),
        ),
        ("newton-cg", clone(peer).set_params(solver="newton-cg", tol=1e-10)),
        ("lbfgs", clone(peer).set_params(tol=1e-10)),
    ]
    for name, estimator in candidates:
        model, seconds = problem.fit(estimator, "float64")
        value = problem.objective(model)
        by_coef, by_intercept = gradient(
            *parameters(model), problem.data.X_train, problem.codes, alpha
        )
        square = np.sum(by_coef**2) + np.sum(by_intercept**2)
        found.append(
            {
                "method": name,
                "objective": value,
                "gap_at_most": square / (2 * alpha) / value,
            }
        )
        progress(f"reference by {name}, {seconds:.1f} s: {value}")
        if found[-1]["gap_at_most"] <= CERTAIN:
            break
    return min(found, key=lambda answer: answer["objective"])


# --- the measurement -----------------------------------------------------------------


class Fit(NamedTuple):
    """A whole fit from scratch."""

    max_iter: int
    n_iter: int
    seconds: float
    gap: float  # of the objective, relative to the minimum
    accuracy: float
    top5: float

    def within(self, gap):
        return self.gap <= float(gap)


class _Enough(Exception):
    """Raised out of a traced fit."""


def traced(search):
    """Gap and accuracy after every iteration of one long fit, or None.

    Nothing is timed here, so what is computed on the way does no harm.
    """
    problem, started = search.problem, time.perf_counter()
    points = []

    def record(model):
        points.append((problem.gap(model), problem.scores(model)[0]))
        long = time.perf_counter() - started > search.limit
        return points[-1][0] <= float(GAPS[-1]) or long

    def record_vector(w):
        w = np.asarray(w, dtype=np.float64)
        w = w.reshape(problem.data.n_classes, -1, order="F")
        if record(SimpleNamespace(coef_=w[:, :-1], intercept_=w[:, -1])):
            raise _Enough

    solver = search.estimator.solver
    estimator = clone(search.estimator).set_params(max_iter=10_000)
    try:
        if isinstance(estimator, FGNSoftmaxHead) or solver == "lbfgs":
            problem.fit(estimator.set_callbacks(_Recorder(record)), search.dtype)
        elif solver == "newton-cg":
            wrapped = _record_newton_cg(_logistic._newton_cg, record_vector)
            with mock.patch.object(_logistic, "_newton_cg", wrapped):
                problem.fit(estimator, search.dtype)
        else:
            return None
    except _Enough:
        pass
    return points


class _Recorder:
    """A callback that records every iterate, and ends the fit when it has enough."""

    def __init__(self, record):
        self.record = record

    def setup(self, estimator, context):
        pass

    teardown = on_fit_task_begin = setup

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        iterated = fitted_estimator is not None and context.max_subtasks == 0
        if iterated and self.record(fitted_estimator):
            raise _Enough
        return False


def _record_newton_cg(newton_cg, record):
    def recording(grad_hess, *args, **kwargs):
        first = []

        def wrapped(w, *more):
            if first:  # the first call is at the start
                record(w)
            first.append(True)
            return grad_hess(w, *more)

        return newton_cg(wrapped, *args, **kwargs)

    return recording


class Search:
    """The fits of one estimator on one problem, by their max_iter."""

    def __init__(self, name, estimator, dtype, problem, limit):
        self.name, self.estimator, self.dtype = name, clone(estimator), dtype
        self.problem, self.limit = problem, limit
        self.fits = {}
        self.trace = None
        self.compile_seconds = 0.0
        if isinstance(estimator, FGNSoftmaxHead):
            short = clone(estimator).set_params(max_iter=WARM_UP)
            self.compile_seconds = compile_seconds(
                short, problem.rows[dtype], problem.data.y_train
            )
        self.trace = traced(self)
        if self.trace:
            last = self.trace[-1]
            progress(
                f"{name:18s} {len(self.trace)} iterations traced, gap {last[0]:.1e}"
            )

    def timed(self, max_iter):
        """A fit that compiles nothing, and its seconds."""
        estimator = self.estimator.set_params(max_iter=max_iter)
        with warnings.catch_warnings():  # of line searches at rounding
            warnings.simplefilter("ignore")
            stages()
            answer = self.problem.fit(estimator, self.dtype)
            if sum(stages().values()) > 0:
                answer = self.problem.fit(estimator, self.dtype)
        return answer

    def fit(self, max_iter):
        if max_iter not in self.fits:
            model, seconds = self.timed(max_iter)
            n_iter = int(np.max(model.n_iter_))
            gap = self.problem.gap(model)
            fit = Fit(max_iter, n_iter, seconds, gap, *self.problem.scores(model))
            self.fits[max_iter] = fit
            progress(
                f"{self.name:18s} {n_iter:6d} of {max_iter:6d} iterations "
                f"{seconds:9.3g} s, gap {gap:8.1e}, accuracy {fit.accuracy:.4f}"
            )
        return self.fits[max_iter]

    def longer(self, fit):
        """Double the iterations, or what the limit allows; None if that is no more."""
        if fit.n_iter < fit.max_iter or fit.within(GAPS[-1]):  # at its end
            return None
        allowed = int(fit.max_iter * self.limit / fit.seconds)
        following = min(2 * fit.max_iter, allowed)
        return following if following > (1 + RESOLUTION) * fit.max_iter else None

    def least(self, reached):
        """The fit with the fewest iterations that reaches the goal, or None.

        Fits are taken to reach it from some number of iterations on, up to the first
        one that is known to.
        """
        if self.trace is not None:
            return self._least_of_trace(reached)
        high = min((k for k, fit in self.fits.items() if reached(fit)), default=None)
        following = 1
        while high is None:
            fit = self.fit(following)
            if reached(fit):
                high = following
            elif (following := self.longer(fit)) is None:
                return None
        low = max((k for k in self.fits if k < high), default=0)
        while high - low > max(1, RESOLUTION * high):
            middle = (low + high) // 2
            if reached(self.fit(middle)):
                high = middle
            else:
                low = middle
        fit = self.fits[high]
        return fit if fit.seconds <= self.limit else None

    def _least_of_trace(self, reached):
        for k, (gap, accuracy) in enumerate(self.trace, start=1):
            if reached(Fit(k, k, np.nan, gap, accuracy, np.nan)):
                fit = self.fit(k)
                if fit.seconds <= self.limit and reached(fit):
                    return fit
                if fit.seconds > self.limit:
                    return None
        if not self.fits:
            self.fit(len(self.trace))
        return None

    def best(self):
        return min(self.fits.values(), key=lambda fit: fit.gap)

    def why_not(self):
        """Why a goal was not reached by any fit."""
        last = self.fits[max(self.fits)]
        if last.within(GAPS[-1]):
            return f"within {GAPS[-1]} of the minimum after {last.n_iter} iterations"
        if last.n_iter < last.max_iter:
            return f"stopped by itself after {last.n_iter} iterations"
        return (
            f"more than {self.limit} s; {last.n_iter} iterations {last.seconds:.3g} s"
        )


def chosen(name, method, problem, limit):
    """The search of the best variant, by seconds to the first gap, then objective."""

    def merit(search):
        fit = search.least(partial(Fit.within, gap=GAPS[0]))
        return (fit.seconds if fit else np.inf, search.best().gap)

    searches = [
        Search(name, variant, method.dtype, problem, min(limit, method.limit))
        for variant in method.variants
    ]
    return searches[0] if len(searches) == 1 else min(searches, key=merit)


def timed_runs(searches, goals, repetitions):
    """Seconds to every goal, by method and run.

    The first run is that of the search; the others take turns, so that what else the
    machine does meanwhile meets all methods.
    """
    found = {
        name: {goal: search.least(reached) for goal, reached in goals.items()}
        for name, search in searches.items()
    }
    runs = {name: [_run(searches[name], fits)] for name, fits in found.items()}
    for repetition in range(1, repetitions):
        for name, search in searches.items():
            fits = [fit for fit in found[name].values() if fit]
            if (repetition + 1) * sum(fit.seconds for fit in fits) > search.limit:
                continue
            again = {fit: search.timed(fit.max_iter)[1] for fit in dict.fromkeys(fits)}
            runs[name].append(_run(search, found[name], again))
    return runs


def _run(search, fits, again=None):
    """Figures of the fits that reach the goals, with seconds taken again or not."""
    seconds, iterations = {}, {}
    for goal, fit in fits.items():
        seconds[f"seconds_{goal}"] = iterations[f"iterations_{goal}"] = np.nan
        if fit:
            seconds[f"seconds_{goal}"] = again[fit] if again else fit.seconds
            iterations[f"iterations_{goal}"] = fit.n_iter
    best = search.best()
    scores = {"gap": best.gap, "accuracy": best.accuracy}
    if search.problem.data.n_classes >= MANY_CLASSES:
        scores["top5"] = best.top5
    return {**seconds, **iterations, **scores}


def described(search, runs):
    """What a result says of one method."""
    parameters = settings(search.estimator)
    parameters.pop("max_iter", None)
    return {
        "settings": parameters,
        "dtype": search.dtype,
        "compile_seconds": search.compile_seconds,
        "not_reached": {
            goal: search.why_not()
            for goal in (*GAPS, "accuracy")
            if np.isnan(runs[0][f"seconds_{goal}"])
        },
        "runs": runs,
        "summary": summary(runs),
    }


def add_speedups(answers, table, limit):
    """Compare every method of ours with the fastest peer, in all runs."""
    for name in (name for name in answers if table[name].ours):
        peers = [
            peer
            for peer in answers
            if not table[peer].ours
            and table[peer].dtype in ("float64", table[name].dtype)
        ]
        answer = answers[name]
        for goal in (*GAPS, "accuracy"):
            figure = f"seconds_{goal}"
            least = min(
                np.nan_to_num(answers[peer]["summary"][figure]["median"], nan=limit)
                for peer in peers
            )
            for run in answer["runs"]:
                run[f"speedup_{goal}"] = least / run[figure]
        answer["summary"] = summary(answer["runs"])


def run_problem(data, alpha, repetitions, limit):
    problem = Problem(data, alpha)
    (n, d), n_classes = data.X_train.shape, data.n_classes
    table, skipped = methods(alpha, n), {}
    size = (d + 1) * n_classes
    if size > LARGEST_HESSIAN:
        del table["newton-cholesky"]
        skipped["newton-cholesky"] = (
            f"its Hessian matrix would have {size:,} rows, over {LARGEST_HESSIAN:,}"
        )
    goals = {gap: partial(Fit.within, gap=gap) for gap in GAPS}
    searches = {}
    for name, method in table.items():
        searches[name] = chosen(name, method, problem, limit)
        for reached in goals.values():
            searches[name].least(reached)
    fits = [fit for search in searches.values() for fit in search.fits.values()]
    best = max(fit.accuracy for fit in fits)
    goals["accuracy"] = lambda fit: fit.accuracy >= SHARE * best
    runs = timed_runs(searches, goals, repetitions)
    answers = {name: described(searches[name], runs[name]) for name in searches}
    add_speedups(answers, table, limit)
    aim = AIMS[n_classes >= MANY_CLASSES]
    targets = {
        f"target_{gap}": target(
            answers, "fgn_newton", f"speedup_{gap}", "median", at_least=aim
        )
        for gap in GAPS
    }
    return {
        "description": f"{data}, alpha {alpha:g}",
        "rows": n,
        "features": d,
        "classes": n_classes,
        "alpha": alpha,
        "reference": {**problem.reference, "least_gap": min(fit.gap for fit in fits)},
        "best_accuracy": best,
        "methods": answers,
        "skipped": skipped,
        **targets,
    }


# --- the data sets -------------------------------------------------------------------


def data_sets(args):
    """Functions that load them, by name."""
    if args.features is not None:
        return {args.features.stem: lambda: _data.read_features(args.features)}
    if args.quick:
        small = {
            "n_train": 300,
            "n_test": 100,
            "n_features": 10,
            "n_classes": 5,
            "separation": 1.0,
        }
        return {"small": lambda: _data.cars_like(0, **small)}
    return {
        "udhr": lambda: _data.udhr(args.data),
        "mnist": lambda: _data.mnist(args.data),
        "mnist_rf": lambda: _data.mnist_random_features(args.data),
        "letters": lambda: _data.letters(args.data),
    }


# --- the experiment ------------------------------------------------------------------


def run(args):
    answers = {}
    limit = 1 if args.quick else LIMIT
    sets = data_sets(args)
    for name in args.only or sets:
        if name == "cars_like":
            continue
        data = sets[name]()
        progress(f"--- {name}: {data}")
        answers[name] = run_problem(data, ALPHA, min(len(args.seeds), 3), limit)
    if args.features is not None:
        split = _data.read_features(args.features)
        _, codes = np.unique(split.y_train, return_inverse=True)
        test = np.searchsorted(np.unique(split.y_train), split.y_test)
        split = split._replace(y_train=codes, y_test=test)
        answers["cars_like"] = run_cars(split, args.seeds, CARS_HORIZON)
    elif not args.only or "cars_like" in args.only:
        small = {"n_train": 300, "n_test": 100, "n_features": 10, "n_classes": 5}
        split = _data.cars_like(0, **(small if args.quick else {}))
        horizon = 0.2 if args.quick else CARS_HORIZON
        answers["cars_like"] = run_cars(split, args.seeds, horizon)
    return {"problems": answers, "notes": [*NOTES, *CARS_NOTES]}
