"""Real tables with everybody's default settings: accuracy and seconds.

Every regressor has its default settings; features are standardised for all, the target
for ``MLPRegressor``. A run is the mean over the folds of a table. ``seconds`` are those
of a fit in a process that has fitted the same estimator before. Of our estimators,
``coverage`` is the share of test rows in 95 % prediction intervals. A file that is
there is gone on with: tables in it are not run again.
"""

import json
import time
from statistics import median

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import RepeatedKFold
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import _data, _tables
from benchmarks.__main__ import HERE
from benchmarks._report import progress, summary
from sklearn_gn import ShallowReLURegressor

OURS = "shallow_relu"
LEVEL = 0.003  # difference of R2 that is none
FOLDS, REPEATS = 3, 3
MANY_ROWS = 5000  # from which the folds are drawn once
SIZES = ((5, 2), (10, 3), (10, 5))  # neurons and features of random networks
ROWS, ROUNDING = 4000, 1e-24  # of these; mean square of rounding over the variance
PENALTIES = np.logspace(-3, 4, 20)

NOTES = (
    "level_or_ahead: tables on which the R2 of shallow_relu is at most "
    f"{LEVEL} below the best of the four peers, which is known only afterwards. "
    "below_ridge: its largest distance below ridge.",
)


def regressors(seed):
    mlp = MLPRegressor(random_state=seed)
    return {
        OURS: ShallowReLURegressor(random_state=seed),
        "ridge": RidgeCV(PENALTIES),
        "hist_gradient_boosting": HistGradientBoostingRegressor(random_state=seed),
        "random_forest": RandomForestRegressor(random_state=seed),
        "mlp": TransformedTargetRegressor(mlp, transformer=StandardScaler()),
    }


def tables(args):
    """Features and target by name: real tables, and one with features of noise."""
    names = ("ethanol", "diabetes") if args.quick else None
    found = _tables.tables(args.data, names)
    if not args.quick:
        found["diamonds"] = _data.diamonds(args.data)
        found["friedman1_50"] = make_friedman1(
            2000, n_features=50, noise=1.0, random_state=0
        )
    return {n: t for n, t in found.items() if not args.only or n in args.only}


def fold_figures(model, X, y, train, test):
    pipeline = make_pipeline(StandardScaler(), model)
    start = time.perf_counter()
    pipeline.fit(X[train], y[train])
    seconds = time.perf_counter() - start
    figures = {"r2": float(pipeline.score(X[test], y[test])), "seconds": seconds}
    if isinstance(model, ShallowReLURegressor):
        lower, upper = model.predict_interval(pipeline[0].transform(X[test]))
        inside = (lower <= y[test]) & (y[test] <= upper)
        figures |= {
            "coverage": float(np.mean(inside)),
            "iterations": model.n_iter_,
            "converged": float(model.converged_),
        }
    return figures


def table_answer(name, X, y, quick):
    repeats = 1 if quick or len(X) > MANY_ROWS else REPEATS
    splits = RepeatedKFold(n_splits=FOLDS, n_repeats=repeats, random_state=0)
    folds, methods = list(splits.split(X)), {}
    for method, model in regressors(0).items():
        fold_figures(model, X, y, *folds[0])  # compiles and loads what is needed
        runs = [fold_figures(model, X, y, *fold) for fold in folds]
        methods[method] = {"settings": {}, "runs": runs, "summary": summary(runs)}
        progress(name, method, mean_of(methods[method], "r2"))
    return {
        "description": f"{X.shape[0]} rows, {X.shape[1]} features",
        "rows": X.shape[0],
        "features": X.shape[1],
        "methods": methods,
    }


def mean_of(answer, figure):
    return float(np.mean([run[figure] for run in answer["runs"]]))


# --- data without noise --------------------------------------------------------------


def random_network(n_neurons, n_features, seed, n_rows=ROWS):
    """Rows on the cube, and the values there of a random network."""
    rng = np.random.RandomState(seed)
    X = rng.uniform(-1, 1, (n_rows, n_features))
    normal = rng.standard_normal((n_neurons, n_features))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    point = rng.uniform(-0.8, 0.8, (n_neurons, n_features))
    hidden = np.maximum(X @ normal.T - np.sum(normal * point, axis=1), 0)
    return X, hidden @ rng.standard_normal(n_neurons)


def recovery(quick):
    """How often a network without noise is recovered to rounding, by defaults."""
    answers = {}
    for n_neurons, n_features in SIZES[: 1 if quick else None]:
        runs = []
        for seed in range(2 if quick else 10):
            X, y = random_network(n_neurons, n_features, seed)
            model = ShallowReLURegressor(random_state=seed)
            start = time.perf_counter()
            model.fit(X, y)
            seconds = time.perf_counter() - start
            error = float(np.mean((model.predict(X) - y) ** 2) / np.var(y))
            runs.append({"seed": seed, "relative_error": error, "seconds": seconds})
        answers[f"{n_neurons} neurons, {n_features} features"] = {
            "runs": runs,
            "recovered": sum(run["relative_error"] < ROUNDING for run in runs),
            "seconds": median(run["seconds"] for run in runs),
            "most_seconds": max(run["seconds"] for run in runs),
        }
        progress(n_neurons, n_features, answers)
    return answers


def standing(problems):
    """How the defaults of ours stand to those of the peers, over all tables."""
    level, below_ridge, ratios = [], [], []
    for name, problem in problems.items():
        r2 = {m: mean_of(a, "r2") for m, a in problem["methods"].items()}
        seconds = {m: mean_of(a, "seconds") for m, a in problem["methods"].items()}
        best = max(value for method, value in r2.items() if method != OURS)
        if r2[OURS] >= best - LEVEL:
            level.append(name)
        below_ridge.append(r2["ridge"] - r2[OURS])
        ratios.append(seconds[OURS] / seconds["mlp"])
    ours = [problem["methods"][OURS] for problem in problems.values()]
    return {
        "tables": len(problems),
        "level_or_ahead": level,
        "below_ridge": max(below_ridge),
        "seconds_over_mlp": {"median": median(ratios), "max": max(ratios)},
        "seconds": median(mean_of(answer, "seconds") for answer in ours),
        "coverage": median(mean_of(answer, "coverage") for answer in ours),
        "converged": float(np.mean([mean_of(answer, "converged") for answer in ours])),
    }


def run(args):
    problems = {}
    path = args.out or HERE / "results" / "defaults.json"
    if path.exists() and not args.quick and not args.only:
        problems = json.loads(path.read_text())["problems"]
    for name, (X, y) in tables(args).items():
        if name in problems:
            continue
        progress(f"--- {name}")
        problems[name] = table_answer(name, X, y, args.quick)
    return {
        "problems": problems,
        "standing": standing(problems),
        "recovery": recovery(args.quick),
        "notes": NOTES,
    }
