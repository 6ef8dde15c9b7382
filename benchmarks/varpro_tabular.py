"""VarProNetRegressor and VarProNetClassifier on tables, beside scikit-learn's MLPs."""

from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import _data
from benchmarks._own_copies import load_indian_pines
from benchmarks._report import as_text, progress, summary, target
from benchmarks._timing import compile_seconds, timed_fit, warm_fit
from benchmarks._varpro import (
    EPOCH_COST,
    LBFGS_COST,
    WORK_NOTES,
    Method,
    Problem,
    add_standing,
    krylov_cost,
    parts_of,
    work_comparison,
)
from sklearn_gn import VarProNetClassifier, VarProNetRegressor
from sklearn_gn.networks import NeuralODE
from sklearn_gn.solvers import Adam, GNvpro

FOLDS = 3  # of the search
TUNING_ROWS = 10_000  # at most, of the search
TEST_SHARE = 0.25  # where there is no usual split
TIME_SHARE = 0.9  # of the seconds of the best MLP, which end a tuned fit of ours
LIMIT = 60  # seconds of a fit of ours with default settings
SEARCH_LIMIT = 20  # seconds of one in a search
OURS = {"varpro_tuned": "", "varpro_adam_tuned": "_adam"}
ADAM_VARIANTS = tuple(
    {"solver": Adam(learning_rate=rate, batch_size=size)}
    for rate, size in product((1e-3, 3e-3, 1e-2), (32, 128))
)
VALIDATION_ROWS = 1000  # of Satellite, taken from the training rows
INDIAN_PINES = ("Indian_pines_corrected.mat", "Indian_pines.mat")  # with or without
INDIAN_PINES_TRUTH = "Indian_pines_gt.mat"

NOTES = (
    *(f"Satellite and Indian Pines: {note}" for note in WORK_NOTES),
    "The rank of gnvpro and gn, 5, is that with the best validation accuracy of "
    "gnvpro, of 5, 10 and 50, with Satellite.",
    "above_gnvpro: the accuracy of a method less that of gnvpro on its seed.",
    "The other problems: score is R2 or the accuracy of the test rows, seconds those "
    "of a fit that compiles nothing. Seeds split diabetes and diamonds anew, and draw "
    "the weights; letters have the usual split. _tuned: the best of a grid by "
    f"{FOLDS}-fold cross-validation of at most {TUNING_ROWS:,} training rows of the "
    "first seed.",
    "best_mlp: the higher score of the four of MLPRegressor or MLPClassifier on that "
    "seed. over_best_mlp is the score less that one, time_over_best_mlp the seconds "
    f"over its seconds; varpro_tuned and varpro_adam_tuned, the same with "
    f"solver='adam', have max_time at {TIME_SHARE:.0%} of these; "
    f"varpro at {LIMIT} s, and its fits in the search at {SEARCH_LIMIT} s.",
    "Features of the MLPs and of the linear models are standardised, and targets.",
)


# --- in equal work, as in the paper --------------------------------------------------


def work_problem(problem, network, units, seeds, *, rank=5, alpha=1e-3):
    """All solvers on a neural ODE; Adam does more work than the others."""
    common = partial(
        VarProNetClassifier,
        network=network,
        rank=rank,
        alpha=alpha,
        tol=0.0,
    )
    adam = common(solver="adam"), units / 0.6, EPOCH_COST, ADAM_VARIANTS
    methods = {
        "gnvpro": Method(common(), units, krylov_cost(rank)),
        "gn": Method(common(solver="gn"), units, krylov_cost(rank)),
        "lbfgs_vpro": Method(common(solver="lbfgs_vpro"), units, LBFGS_COST),
        "adam": Method(*adam),
    }
    answers, curves, _ = work_comparison(methods, problem, seeds)
    add_standing(answers, "gnvpro", "above_gnvpro", np.subtract)
    return {
        "description": f"{problem.description}; {units:,} work units, adam more",
        "rows": {name: len(X) for name, (X, _) in problem.parts.items()},
        "methods": answers,
        "curves": curves,
        **{
            f"target_{name}": target(answers, name, "above_gnvpro", "median", 0.0)
            for name in answers
            if name != "gnvpro"
        },
    }


def satellite(args):
    data = _data.satellite(args.data)
    X, X_val, y, y_val = train_test_split(
        data.X_train,
        data.y_train,
        test_size=VALIDATION_ROWS,
        stratify=data.y_train,
        random_state=_data.SEED,
    )
    parts = {
        "train": (X, y),
        "validation": (X_val, y_val),
        "test": (data.X_test, data.y_test),
    }
    problem = Problem("Satellite", parts, accuracy_score, higher=True)
    network = NeuralODE(width=32, n_cells=4, n_levels=3)
    return work_problem(problem, network, 1500, args.seeds)


def indian_pines(args):
    image = next(args.data / n for n in INDIAN_PINES if (args.data / n).exists())
    bunch = load_indian_pines(image, args.data / INDIAN_PINES_TRUTH)
    problem = Problem("Indian Pines", parts_of(bunch), accuracy_score, higher=True)
    network = NeuralODE(width=32, n_cells=4, n_levels=3)
    return work_problem(problem, network, 1500, args.seeds)


def small_work(args):
    """The same on a few rows."""
    data = _data.cars_like(0, n_train=120, n_test=60, n_features=6, n_classes=3, rank=4)
    parts = {
        "train": (data.X_train[:80], data.y_train[:80]),
        "validation": (data.X_train[80:], data.y_train[80:]),
        "test": (data.X_test, data.y_test),
    }
    problem = Problem("small", parts, accuracy_score, higher=True)
    network = NeuralODE(width=4, n_cells=2, n_levels=2)
    return work_problem(problem, network, 60, args.seeds)


# --- beside the MLPs of scikit-learn -------------------------------------------------


class Candidate(NamedTuple):
    """An estimator, and the grid of words in which it is tuned, if it is."""

    estimator: BaseEstimator
    grid: dict | None = None


class Task(NamedTuple):
    """Data, split or to be split by the seeds, and who competes on them."""

    description: str
    data: tuple  # X and y, or a Split
    candidates: dict

    def split(self, seed):
        if isinstance(self.data, _data.Split):
            return self.data
        X_train, X_test, y_train, y_test = train_test_split(
            *self.data, test_size=TEST_SHARE, random_state=seed
        )
        return _data.Split(X_train, y_train, X_test, y_test)


def nested(estimator, words):
    """The words with the paths at which the estimator or its parts have them."""
    paths = estimator.get_params()
    return {
        path: value
        for name, value in words.items()
        for path in paths
        if path.split("__")[-1] == name
    }


def seeded(estimator, seed, **words):
    """A clone with a seed wherever it takes one, and other words."""
    changed = nested(estimator, {"random_state": seed, **words})
    return clone(estimator).set_params(**changed)


def mlp(solver, regression):
    """An MLP with default settings on standardised data."""
    kind = MLPRegressor if regression else MLPClassifier
    pipeline = make_pipeline(StandardScaler(), kind(solver=solver))
    if not regression:
        return pipeline
    return TransformedTargetRegressor(pipeline, transformer=StandardScaler())


def candidates(regression, ours, theirs, rates):
    """Who competes; the MLPs first, whose seconds are the limit of ours."""
    if regression:
        varpro, linear = VarProNetRegressor(), RidgeCV(np.logspace(-6, 4, 21))
        boosting = HistGradientBoostingRegressor()
    else:
        varpro, linear = VarProNetClassifier(), LogisticRegression(max_iter=1000)
        boosting = HistGradientBoostingClassifier()
    adam = {**theirs, "learning_rate_init": rates}
    return {
        "mlp_adam": Candidate(mlp("adam", regression), adam),
        "mlp_lbfgs": Candidate(mlp("lbfgs", regression), theirs),
        "varpro": Candidate(varpro, ours),
        "hist_gradient_boosting": Candidate(boosting),
        "linear": Candidate(make_pipeline(StandardScaler(), linear)),
    }


class Entrant(NamedTuple):
    """A candidate with default or with tuned settings."""

    estimator: BaseEstimator
    words: dict = {}
    search_seconds: float = 0.0


def search(candidate, data, seed):
    """The candidate with the best settings of its grid."""
    estimator = seeded(candidate.estimator, seed, max_time=SEARCH_LIMIT)
    words = nested(estimator, candidate.grid)
    grid = GridSearchCV(estimator, words, cv=FOLDS, refit=False)
    rows = slice(TUNING_ROWS)
    found, seconds = timed_fit(grid, data.X_train[rows], data.y_train[rows])
    best = found.best_params_
    found_words = {path.split("__")[-1]: value for path, value in best.items()}
    progress(found_words, f"{found.best_score_:.4f}, {seconds:.0f} s")
    return Entrant(clone(estimator).set_params(**best), found_words, seconds)


def entrants(task, seed):
    """Every candidate with default settings, and tuned if it has a grid."""
    found, data = {}, task.split(seed)
    for name, candidate in task.candidates.items():
        found[name] = Entrant(candidate.estimator)
        if candidate.grid is not None:
            found[f"{name}_tuned"] = search(candidate, data, seed)
    return found


def seed_runs(entered, data, seed):
    """A run of everyone on one seed."""
    runs = {}
    for name, entrant in entered.items():
        limit = LIMIT
        if name in OURS:
            limit = TIME_SHARE * best_mlp(runs)["seconds"]
        estimator = seeded(entrant.estimator, seed, max_time=limit)
        model, seconds = warm_fit(estimator, data.X_train, data.y_train)
        score = model.score(data.X_test, data.y_test)
        runs[name] = {"seed": seed, "score": float(score), "seconds": seconds}
        progress(name, runs[name])
    best = best_mlp(runs)
    for run in (runs[name] for name in runs if name.startswith("varpro")):
        run["over_best_mlp"] = run["score"] - best["score"]
        run["time_over_best_mlp"] = run["seconds"] / best["seconds"]
    return runs


def best_mlp(runs):
    """The run of an MLP with the highest score."""
    peers = [run for name, run in runs.items() if name.startswith("mlp")]
    return max(peers, key=lambda run: run["score"])


def run_task(task, seeds):
    entered, data = entrants(task, seeds[0]), task.split(seeds[0])
    compiling = {
        name: compile_seconds(
            seeded(entrant.estimator, seeds[0], max_iter=1), data.X_train, data.y_train
        )
        for name, entrant in entered.items()
        if name.startswith("varpro")
    }
    by_seed = [seed_runs(entered, task.split(seed), seed) for seed in seeds]
    answers = {}
    for name, entrant in entered.items():
        runs = [runs[name] for runs in by_seed]
        answers[name] = {
            "settings": as_text(entrant.words),
            "search_seconds": entrant.search_seconds,
            "compile_seconds": compiling.get(name, 0.0),
            "runs": runs,
            "summary": summary(runs),
        }
    return {
        "description": task.description,
        "rows": {"train": len(data.X_train), "test": len(data.X_test)},
        "methods": answers,
        **targets(answers),
    }


def targets(answers):
    """A better score than the best MLP's at no more time, for each solver of ours."""
    found = {}
    for name, of_solver in OURS.items():
        if name in answers:
            aim = partial(target, answers, name)
            score = aim("over_best_mlp", "median", at_least=0)
            seconds = aim("time_over_best_mlp", "median", 1)
            found[f"target_score{of_solver}"] = score
            found[f"target_time{of_solver}"] = seconds
    return found


def diabetes(args):
    competitors = candidates(
        regression=True,
        ours={
            "hidden_layer_sizes": [(4,), (16,)],
            "alpha": [(1e-3, 1e-4), (1e-2, 1e-4), (1e-1, 1e-4)],
        },
        theirs={
            "hidden_layer_sizes": [(100,), (32, 32)],
            "alpha": [1e-2, 1.0, 10.0],
        },
        rates=[1e-3, 1e-2],
    )
    data = load_diabetes(return_X_y=True)
    return run_task(Task("diabetes, R2", data, competitors), args.seeds)


def diamonds(args):
    competitors = candidates(
        regression=True,
        ours={
            "hidden_layer_sizes": [(24, 24), (32, 32)],
            "alpha": [(1e-6, 1e-4), (1e-5, 1e-4)],
            "solver": [GNvpro(curvature="krylov", batch_size=2048)],
            "max_iter": [1000],
        },
        theirs={"hidden_layer_sizes": [(100,), (64, 64)], "alpha": [1e-4, 1e-2]},
        rates=[1e-3, 5e-3],
    )
    task = Task("diamonds, R2 of the log price", _data.diamonds(args.data), competitors)
    return run_task(task, args.seeds)


def letters(args):
    competitors = candidates(
        regression=False,
        ours={
            "hidden_layer_sizes": [(32,), (64, 32)],
            "alpha": [(1e-6, 1e-4), (1e-6, 1e-3)],
            "solver": [GNvpro(curvature="krylov", batch_size=2048)],
            "rank": [5],
            "max_iter": [1000],
        },
        theirs={"hidden_layer_sizes": [(100,), (100, 100)], "alpha": [1e-4, 1e-2]},
        rates=[1e-3, 5e-3],
    )
    # The estimator with another of its solvers.
    adam = {
        "hidden_layer_sizes": [(64, 64), (100, 100)],
        "solver": [Adam(learning_rate=rate, batch_size=128) for rate in (1e-3, 3e-3)],
        "max_iter": [1000],
    }
    competitors["varpro_adam"] = Candidate(VarProNetClassifier(solver="adam"), adam)
    data = _data.letters(args.data)
    return run_task(Task(f"letters, {data}, accuracy", data, competitors), args.seeds)


def small_task(args):
    """Diabetes with small grids and few iterations."""
    competitors = candidates(
        regression=True,
        ours={"hidden_layer_sizes": [(4,)], "alpha": [(1e-2, 1e-4)], "max_iter": [5]},
        theirs={"hidden_layer_sizes": [(8,)], "max_iter": [20]},
        rates=[1e-2],
    )
    default = VarProNetRegressor(hidden_layer_sizes=(4,), max_iter=3)
    competitors["varpro"] = competitors["varpro"]._replace(estimator=default)
    data = load_diabetes(return_X_y=True)
    return run_task(Task("diabetes, R2", data, competitors), args.seeds)


# --- the experiment ------------------------------------------------------------------


def problems(args):
    """Functions that answer for the problems, by name."""
    if args.quick:
        return {"small_work": small_work, "small": small_task}
    found = {
        "satellite": satellite,
        "diabetes": diabetes,
        "diamonds": diamonds,
        "letters": letters,
    }
    if (args.data / INDIAN_PINES_TRUTH).exists():
        found["indian_pines"] = indian_pines
    return found


def run(args):
    found, answers = problems(args), {}
    for name in args.only or found:
        progress(f"--- {name}")
        answers[name] = found[name](args)
    return {"problems": answers, "notes": NOTES}
