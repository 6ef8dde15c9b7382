"""The two comparisons of the surrogate problems: in equal work and in equal time."""

import math
import time
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import RidgeCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler

from benchmarks._report import progress, settings, summary, target
from benchmarks._timing import compile_seconds, timed_fit
from benchmarks._varpro import (
    EPOCH_COST,
    LBFGS_COST,
    TUNING_SHARE,
    WORK_NOTES,
    Method,
    Problem,
    add_inner_share,
    add_standing,
    answer,
    curve,
    krylov_cost,
    middle,
    parts_of,
    recorded_fit,
    relative_error,
    short,
    work_comparison,
)
from sklearn_gn import VarProNetRegressor
from sklearn_gn.networks import MLP, NeuralODE
from sklearn_gn.solvers import Adam, FullGN, GNvpro, LBFGSvpro

ALPHA = 1e-7
ADAM_RATES = (1e-3, 3e-3, 1e-2)
INNER_SHARE = 0.1  # of the time of a fit, at most
MOST_TARGETS = 100  # of gradient boosting, which fits them one by one
GP_ROWS = 2000
GP_FLOATS = 2**28  # rows^2 times targets, of arrays that it makes
MLP_VARIANTS = tuple(
    {"hidden_layer_sizes": sizes, "activation": activation, "alpha": alpha}
    for sizes, activation, alpha in (
        ((100,), "relu", 1e-4),  # the default
        ((32, 32), "tanh", 1e-8),
        ((64, 64), "tanh", 1e-8),
        ((64, 64), "relu", 1e-8),
        ((64, 64, 64), "tanh", 1e-8),
    )
)
MLP_ADAM_RATES = (1e-3, 5e-3)
MLP_POINTS = 40  # of a curve
SCORED_EVERY = 5  # iterations, where there may be thousands
NO_END = 10**6  # iterations, of fits that the clock ends
PILOT_ITERATIONS = 5  # of every level: the first ones of a level take longer
MLP_PILOT = 20  # iterations of L-BFGS that tell how many fit in the time

NOTES = (
    *WORK_NOTES,
    "Relative error: |prediction - target| / |target|, the mean over the samples.",
    "over_gnvpro: the test error over that of gnvpro on its seed; in the comparison of "
    "time, of the first method.",
    "inner_share: seconds of the inner problems, solved again one by one from the "
    "recorded networks, over those of the fit.",
    "scikit-learn's models are given standardised features, and targets of mean 0 and "
    "a common scale, as our estimators make them. mlp_adam (partial_fit, one epoch at "
    "a time) and mlp_lbfgs (max_iter from a pilot fit) get the seconds of the median "
    "fit of gnvpro, or the seconds that all methods get.",
    "In the comparison of time, GNvpro is stopped after the seconds, and returns the "
    "iterate with the lowest loss of the validation rows. Where there are levels, a "
    "pilot fit says how many iterations each of them gets.",
    f"The Gaussian process is given at most {GP_ROWS:,} training rows, fewer where "
    f"rows^2 times targets exceed {GP_FLOATS:,}, which it would hold in memory.",
)


class Plan(NamedTuple):
    """What is compared on a problem, and what the paper reports."""

    network: NeuralODE
    units: float  # of GNvpro and the others; Adam has twice as many
    seconds: float
    adam_batches: tuple
    aims: dict  # bounds of the test error: "units" and, if any, "seconds"
    paper: dict
    timed: dict  # words of GNvpro in equal time, by name; the first is compared with
    rank: int = 20
    batches: dict = MappingProxyType({})  # words of GNvpro, if it has any


def quick_plan(plan, seconds):
    """The same in small."""
    network = NeuralODE(width=4, n_cells=2, n_levels=2)

    def smaller(words):
        solver = clone(words["solver"])
        if solver.batch_size is not None:
            solver.set_params(batch_size=16)
        small = {"network": MLP((8,)), "solver": solver}
        if words["rank"] is not None:
            small["rank"] = 5
        return {name: small.get(name, value) for name, value in words.items()}

    return plan._replace(
        network=network,
        rank=5,
        units=60,
        seconds=seconds or 0.5,
        adam_batches=(16,),
        batches=smaller(plan.batches) if plan.batches else plan.batches,
        timed={name: smaller(words) for name, words in plan.timed.items()},
    )


def surrogate(description, bunch, *, center=False, quick=False):
    """The problem of a generated data set, with few of the targets if quick.

    ``center`` subtracts the mean of the training targets.
    """
    parts, stride = parts_of(bunch), 20 if quick else 1
    mean = parts["train"][1].mean(axis=0) if center else 0.0
    parts = {name: (X, (Y - mean)[:, ::stride]) for name, (X, Y) in parts.items()}
    return Problem(description, parts, relative_error, higher=False)


def paper_figures(train, validation, test):
    return [{"train": train, "validation": validation, "test": test}]


def regressor(plan, solver, **words):
    usual = {
        "network": plan.network,
        "rank": plan.rank,
        "alpha": ALPHA,
        "tol": 0.0,
    }
    return VarProNetRegressor(solver=solver, **{**usual, **words})


# --- equal work ----------------------------------------------------------------------


def work_methods(plan, n_rows):
    krylov = krylov_cost(plan.rank)
    rates = tuple(
        {"solver": Adam(learning_rate=rate, batch_size=size)}
        for rate, size in product(ADAM_RATES, plan.adam_batches)
    )
    gnvpro = regressor(plan, GNvpro(curvature="krylov", batch_size=None))
    methods = {"gnvpro": Method(gnvpro, plan.units, krylov)}
    if plan.batches:
        share = plan.batches["solver"].batch_size / n_rows
        batches = clone(gnvpro).set_params(**plan.batches)
        cost = share * krylov_cost(batches.rank)
        methods = {
            "gnvpro": Method(batches, plan.units, cost),
            "gnvpro_all_rows": methods["gnvpro"],
        }
    gn = regressor(plan, FullGN(batch_size=None))
    lbfgs = regressor(plan, LBFGSvpro())
    adam = regressor(plan, Adam())
    return {
        **methods,
        "gn": Method(gn, plan.units, krylov),
        "lbfgs_vpro": Method(lbfgs, plan.units, LBFGS_COST),
        "adam": Method(adam, 2 * plan.units, EPOCH_COST, rates),
    }


def work_problem(problem, plan, seeds):
    """All methods of the package for a number of work units, MLPs for the time."""
    methods = work_methods(plan, len(problem.train[0]))
    answers, curves, recorders = work_comparison(methods, problem, seeds)
    add_inner_share(answers["gnvpro"], recorders["gnvpro"], "float64")
    seconds = answers["gnvpro"]["summary"]["seconds"]["median"]
    for name in ("mlp_adam", "mlp_lbfgs"):
        answers[name], curves[name] = mlp_runs(name, problem, seeds, seconds)
    add_standing(answers, "gnvpro", "over_gnvpro", np.divide)
    others = {
        f"target_{name}": target(answers, name, "over_gnvpro", "median", at_least=1)
        for name in answers
        if name != "gnvpro"
    }
    return {
        "description": f"{problem.description}; {plan.units:,} work units",
        **_sizes(problem),
        "methods": answers,
        "curves": {name: points for name, points in curves.items() if points},
        "paper": plan.paper,
        "target": target(answers, "gnvpro", "test", "median", plan.aims["units"]),
        "target_inner": target(answers, "gnvpro", "inner_share", "median", INNER_SHARE),
        **others,
    }


def _sizes(problem):
    (X, Y), rows = problem.train, {k: len(X) for k, (X, _) in problem.parts.items()}
    return {"rows": rows, "features": X.shape[1], "outputs": Y.shape[1]}


# --- equal time ----------------------------------------------------------------------


def time_problem(problem, plan, seeds):
    """GNvpro and scikit-learn's regressors, in equal time."""
    ours, answers, curves = next(iter(plan.timed)), {}, {}
    for name in plan.timed:
        answers[name], curves[name] = timed_runs(name, problem, plan, seeds)
    for name in ("mlp_adam", "mlp_lbfgs"):
        answers[name], curves[name] = mlp_runs(name, problem, seeds, plan.seconds)
    skipped = {}
    for name, estimator in peers(problem).items():
        if estimator is None:
            skipped[name] = f"it would fit {problem.train[1].shape[1]} targets apart"
        else:
            answers[name] = peer_run(name, estimator, problem)
    add_standing(answers, ours, "over_gnvpro", np.divide)
    targets = {
        f"target_{name}": target(answers, name, "over_gnvpro", "median", at_least=1)
        for name in answers
        if name not in plan.timed
    }
    if "seconds" in plan.aims:
        aim = plan.aims["seconds"]
        targets["target"] = target(answers, ours, "test", "median", aim)
    return {
        "description": f"{problem.description}; {plan.seconds:g} seconds",
        **_sizes(problem),
        "methods": answers,
        "curves": {name: points for name, points in curves.items() if points},
        "skipped": skipped,
        **targets,
    }


def timed_runs(name, problem, plan, seeds):
    """The answer of GNvpro with the words of that name, and its curve."""
    words = {"early_stopping": True, "n_iter_no_change": NO_END, **plan.timed[name]}
    estimator = regressor(plan, **words)
    watch = problem.watch(estimator)
    compiling = compile_seconds(short(estimator), *problem.train, **watch)
    estimator.set_params(max_iter=iterations_for(estimator, problem, plan.seconds))
    recorded = []
    for seed in seeds:
        estimator.set_params(random_state=seed)
        until = _after(plan.seconds)
        _, recorder = recorded_fit(estimator, problem, until=until, every=SCORED_EVERY)
        recorded.append(recorder.points)
        progress(name, seed, recorder.points[-1])
    return (
        answer(estimator, recorded, seeds, compiling),
        curve(recorded[middle(recorded)]),
    )


def iterations_for(estimator, problem, seconds):
    """How many iterations the seconds allow, the same number on every level.

    A single level has no number, as nothing follows it that needs the time.
    """
    pilot = short(estimator)
    n_levels = pilot.max_iter
    if n_levels == 1:
        return NO_END
    pilot.set_params(max_iter=PILOT_ITERATIONS * n_levels)
    _, recorder = recorded_fit(pilot, problem)
    share = seconds / recorder.points[-1]["seconds"]
    return n_levels * max(1, int(PILOT_ITERATIONS * share))


def _after(seconds):
    return lambda point: point["seconds"] >= seconds


# --- scikit-learn's regressors -------------------------------------------------------


class Standardised:
    """A regressor on standardised data that predicts in the user's units."""

    def __init__(self, estimator, X, Y):
        self.inputs = StandardScaler().fit(X)
        self.center = Y.mean(axis=0)
        self.scale = math.sqrt(np.mean(Y.var(axis=0)))
        self.estimator = estimator
        self.rows = self.inputs.transform(X), (Y - self.center) / self.scale

    def fit(self, **words):
        """Seconds of a fit, with changes to the parameters."""
        self.estimator.set_params(**words)
        self.estimator, seconds = timed_fit(self.estimator, *self.rows)
        return seconds

    def predict(self, X):
        prediction = self.estimator.predict(self.inputs.transform(X))
        return prediction * self.scale + self.center


def adam_points(estimator, problem, seconds):
    """Epochs of ``MLPRegressor(solver="adam")`` for some seconds, scored on the way."""
    model = Standardised(clone(estimator), *problem.train)
    points, used, epochs = [], 0.0, 0
    while used < seconds:
        begun = time.perf_counter()
        model.estimator.partial_fit(*model.rows)
        used += time.perf_counter() - begun
        epochs += 1
        if used >= min(seconds, seconds * (len(points) + 1) / MLP_POINTS):
            point = {"iteration": epochs, "seconds": used}
            points.append({**point, **problem.score(model)})
    return points


def lbfgs_points(estimator, problem, seconds):
    """One fit of ``MLPRegressor(solver="lbfgs")`` of about as many seconds."""
    model = Standardised(estimator, *problem.train)
    pilot = model.fit(max_iter=MLP_PILOT)
    max_iter = max(MLP_PILOT, int(MLP_PILOT * seconds / pilot))
    used = model.fit(max_iter=max_iter, max_fun=100 * max_iter)
    point = {"iteration": model.estimator.n_iter_, "seconds": used}
    return [{**point, **problem.score(model)}]


def mlp_runs(name, problem, seeds, seconds):
    """The answer of an MLP with the best of the variants, and its curve if any."""
    if name == "mlp_adam":
        points_of, rates = adam_points, MLP_ADAM_RATES
        parts = product(MLP_VARIANTS, rates)
        variants = [{**v, "learning_rate_init": rate} for v, rate in parts]
    else:
        points_of, variants = lbfgs_points, MLP_VARIANTS
    solver = name.removeprefix("mlp_")
    estimator = partial(MLPRegressor, solver=solver, tol=0.0)

    def validation(variant):
        trial = estimator(**variant, random_state=seeds[0])
        return points_of(trial, problem, TUNING_SHARE * seconds)[-1]["validation"]

    chosen = problem.best(variants, validation)
    recorded = []
    for seed in seeds:
        model = estimator(**chosen, random_state=seed)
        recorded.append(points_of(model, problem, seconds))
        progress(name, seed, recorded[-1][-1])
    points = recorded[middle(recorded)]
    return (
        answer(estimator(**chosen), recorded, seeds, 0.0),
        curve(points) if len(points) > 1 else None,
    )


def peers(problem):
    """Regressors that need no time budget; None for those that do not fit."""
    n_targets = problem.train[1].shape[1]
    boosting = HistGradientBoostingRegressor(random_state=0)
    kernel = ConstantKernel() * RBF() + WhiteKernel(1e-6, (1e-12, 1.0))
    return {
        "ridge": RidgeCV(alphas=tuple(np.logspace(-8, 4, 25))),
        "gaussian_process": GaussianProcessRegressor(kernel, random_state=0),
        "hist_gradient_boosting": MultiOutputRegressor(boosting)
        if n_targets <= MOST_TARGETS
        else None,
    }


def peer_run(name, estimator, problem):
    """One run: the seed changes nothing."""
    X, Y = problem.train
    most = len(X)
    if name == "gaussian_process":
        most = min(GP_ROWS, math.isqrt(GP_FLOATS // Y.shape[1]))
    model = Standardised(estimator, X[:most], Y[:most])
    seconds = model.fit()
    runs = [{"seed": None, **problem.score(model), "seconds": seconds}]
    progress(name, runs[0])
    return {
        "settings": {} if name == "hist_gradient_boosting" else settings(estimator),
        "deterministic": True,
        "runs": runs,
        "summary": summary(runs),
    }


# --- an experiment -------------------------------------------------------------------


def run_surrogate(name, problem, plan, args):
    """Both comparisons, or those that ``--only`` names."""
    comparisons = {
        f"{name}_work": partial(work_problem, problem, plan, args.seeds),
        f"{name}_time": partial(time_problem, problem, plan, args.seeds),
    }
    answers = {}
    for key in args.only or comparisons:
        progress(f"--- {key}")
        answers[key] = comparisons[key]()
    return answers
