"""Real tables with everybody's default settings: accuracy and seconds.

Every estimator has its default settings; features are standardised for all, the target
for ``MLPRegressor``. A run is one of three folds, drawn three times on tables of less
than 5,000 rows. Figures are R2, or the log loss where classes are predicted, and the
seconds of a fit in a process that has fitted the same estimator before. Peers named
``*_searched`` have the best of ten random candidates on the first training rows.

A peer that takes hours for a table of many classes has one fold and twenty minutes
there; ``skipped`` says where that was not enough.

A file that is there is gone on with: a method that it has on a table is not run again.
``--only`` names tables, methods or both, which are.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import Pipe, get_context
from pathlib import Path
from statistics import median

import numpy as np
from scipy.stats import loguniform
from sklearn.base import is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_wine,
    make_friedman1,
)
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    RandomizedSearchCV,
    RepeatedKFold,
    RepeatedStratifiedKFold,
)
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import _data, _tables
from benchmarks.__main__ import HERE
from benchmarks._report import plain, progress, summary
from sklearn_gn import (
    FGNSoftmaxHead,
    ShallowReLURegressor,
    VarProNetClassifier,
    VarProNetRegressor,
)

OURS = ("shallow_relu", "varpro_net")  # regressors
OUR_CLASSIFIERS = ("varpro_net", "softmax_head")
LEVEL = 0.003  # difference of R2 that is none
FOLDS, REPEATS = 3, 3
MANY_ROWS = 5000  # from which the folds are drawn once
CANDIDATES = 10
SIZES = ((5, 2), (10, 3), (10, 5))  # neurons and features of random networks
ROWS, ROUNDING = 4000, 1e-24  # of these; mean square of rounding over the variance
PENALTIES = np.logspace(-3, 4, 20)
FRESH = ("diabetes", "computers")  # tables that a fresh process fits
SLOW = dict.fromkeys(("letters", "udhr"), ("hist_gradient_boosting", "catboost"))
LIMIT = 1200  # seconds that these have for a fold: they fit 100 trees a class
SPACES = {
    "mlp": {
        "regressor__hidden_layer_sizes": [(20,), (100,), (50, 50), (100, 100)],
        "regressor__alpha": loguniform(1e-5, 10),
        "regressor__learning_rate_init": loguniform(3e-4, 3e-2),
        "regressor__max_iter": [200, 500],
    },
    "hist_gradient_boosting": {
        "learning_rate": loguniform(0.02, 0.3),
        "max_iter": [100, 200, 400],
        "max_leaf_nodes": [4, 8, 16, 31, 63],
        "min_samples_leaf": [3, 10, 20, 50],
        "l2_regularization": loguniform(1e-3, 10),
    },
}

NOTES = (
    "level_or_ahead: tables on which the R2 is at most "
    f"{LEVEL} below the best of the peers' defaults, which is known only "
    "afterwards. below_ridge: the largest distance below ridge.",
    "A searched peer keeps the candidate that is best on the first training rows in "
    "all folds, whose test rows are among them: an advantage for the peer.",
    "A file is filled row by row; load is that of the machine when a row was run, 0 if "
    "it was idle otherwise. Compare seconds of rows under the same load only.",
    f"One run: a peer that is slow on this table had one fold, and {LIMIT} seconds for "
    "it in a process of its own.",
    "first_fit: seconds of a fresh process, with a disk cache of compiled functions "
    "only where one is set.",
)


def regressors(seed=0):
    mlp = MLPRegressor(random_state=seed)
    return {
        "shallow_relu": ShallowReLURegressor(random_state=seed),
        "varpro_net": VarProNetRegressor(random_state=seed),
        "ridge": RidgeCV(PENALTIES),
        "hist_gradient_boosting": HistGradientBoostingRegressor(random_state=seed),
        "random_forest": RandomForestRegressor(random_state=seed),
        "mlp": TransformedTargetRegressor(mlp, transformer=StandardScaler()),
        **catboost("CatBoostRegressor", seed),
    }


def classifiers(seed=0):
    return {
        "varpro_net": VarProNetClassifier(random_state=seed),
        "softmax_head": FGNSoftmaxHead(random_state=seed),
        "logistic_regression": LogisticRegression(),
        "hist_gradient_boosting": HistGradientBoostingClassifier(random_state=seed),
        "mlp": MLPClassifier(random_state=seed),
        **catboost("CatBoostClassifier", seed),
    }


def catboost(name, seed):
    """CatBoost by its defaults, where it is installed."""
    if find_spec("catboost") is None:
        return {}
    estimator = getattr(import_module("catboost"), name)
    # Neither setting changes a model.
    model = estimator(random_seed=seed, verbose=False, allow_writing_files=False)
    return {"catboost": model}


# --- tables --------------------------------------------------------------------------


def regression_tables(args):
    """Features and target by name: real tables, and one with features of noise."""
    names = ("ethanol", "diabetes") if args.quick else None
    found = _tables.tables(args.data, names)
    if not args.quick:
        found["diamonds"] = _data.diamonds(args.data)
        found["friedman1_50"] = make_friedman1(
            2000, n_features=50, noise=1.0, random_state=0
        )
    return found


def classification_tables(args):
    """Features and labels by name."""
    found = {"wine": load_wine(return_X_y=True)}
    if not args.quick:
        found["breast_cancer"] = load_breast_cancer(return_X_y=True)
        found["digits"] = load_digits(return_X_y=True)
        for name, label in (("Sonar", "Class"), ("Vehicle", "Class")):
            frame = _data.mlbench(name, args.data)
            y = frame.pop(label).to_numpy().astype(str)
            found[name.lower()] = frame.to_numpy(dtype=np.float64), y
        for name in ("satellite", "letters", "udhr"):
            split = getattr(_data, name)(args.data)
            X = np.concatenate([split.X_train, split.X_test])
            found[name] = X, np.concatenate([split.y_train, split.y_test])
    return found


# --- one method on one table ---------------------------------------------------------


def fold_figures(model, X, y, train, test):
    pipeline = make_pipeline(StandardScaler(), model)
    start = time.perf_counter()
    with warnings.catch_warnings():  # a peer that runs out of iterations
        warnings.simplefilter("ignore", ConvergenceWarning)
        pipeline.fit(X[train], y[train])
    seconds = time.perf_counter() - start
    if is_classifier(model):
        figures = {
            "log_loss": float(
                log_loss(
                    y[test], pipeline.predict_proba(X[test]), labels=model.classes_
                )
            )
        }
    else:
        figures = {"r2": float(pipeline.score(X[test], y[test]))}
    figures["seconds"] = seconds
    if hasattr(model, "predict_interval"):
        lower, upper = model.predict_interval(pipeline[0].transform(X[test]))
        inside = (lower <= y[test]) & (y[test] <= upper)
        figures["coverage"] = float(np.mean(inside))
    for name in ("log_evidence", "n_iter", "converged"):
        if np.isscalar(value := getattr(model, f"{name}_", None)):
            figures[name] = float(value)
    return figures


def folds_of(model, X, y, quick):
    repeats = 1 if quick or len(X) > MANY_ROWS else REPEATS
    kind = RepeatedStratifiedKFold if is_classifier(model) else RepeatedKFold
    return list(kind(n_splits=FOLDS, n_repeats=repeats, random_state=0).split(X, y))


def row(model, X, y, quick=False):
    """Figures of a model on all folds, of fits that compile nothing."""
    folds = folds_of(model, X, y, quick)
    fold_figures(model, X, y, *folds[0])
    return _row_of([fold_figures(model, X, y, *fold) for fold in folds])


def _row_of(runs):
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    return {"settings": {}, "load": load, "runs": runs, "summary": summary(runs)}


def searched_row(model, space, X, y, quick=False):
    """The same with the best of some candidates, by cross-validation in one fold."""
    train, _ = folds_of(model, X, y, quick)[0]
    search = RandomizedSearchCV(
        model, space, n_iter=2 if quick else CANDIDATES, cv=FOLDS, random_state=0
    )
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search.fit(StandardScaler().fit_transform(X[train]), y[train])
    seconds = time.perf_counter() - start
    settings = {name.split("__")[-1]: v for name, v in search.best_params_.items()}
    answer = row(model.set_params(**search.best_params_), X, y, quick)
    return {**answer, "settings": settings, "search_seconds": seconds}


def limited_row(model, X, y, limit):
    """The row of the first fold alone, or None if it takes longer than the limit."""
    receive, send = Pipe(duplex=False)
    # A fit can only be stopped with its process.
    process = get_context("spawn").Process(
        target=_send_first_fold, args=(send, model, X, y), daemon=True
    )
    process.start()
    send.close()  # so that a process that fails is noticed
    try:
        runs = [receive.recv()] if receive.poll(limit) else []
    finally:
        process.kill()
        process.join()
    return _row_of(runs) if runs else None


def _send_first_fold(send, model, X, y):
    fold = folds_of(model, X, y, quick=False)[0]
    send.send(fold_figures(model, X, y, *fold))


def rows(X, y, classes, slow=(), quick=False):
    """Functions by the name of the method, each of which answers its row."""
    found = {}
    for method, model in (classifiers() if classes else regressors()).items():
        if method in slow:
            found[method] = lambda model=model: limited_row(model, X, y, LIMIT)
            continue
        found[method] = lambda model=model: row(model, X, y, quick)
        if method in SPACES and not classes:
            found[f"{method}_searched"] = lambda model=model, method=method: (
                searched_row(model, SPACES[method], X, y, quick)
            )
    return found


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
    return answers


# --- fresh processes -----------------------------------------------------------------


def first_fit(X, y, method):
    """Seconds of import and of the first fit, in a process of its own."""
    code = (
        "import sys, time, numpy as np; a = np.load(sys.argv[1]); "
        "t = time.perf_counter(); {0}; u = time.perf_counter(); "
        "{1}.fit(a['X'], a['y']); print(u - t, time.perf_counter() - u)"
    )
    model = regressors()[method]
    model = getattr(model, "regressor", model)
    package = type(model).__module__.split(".")[0]
    module = package if package == "sklearn_gn" else type(model).__module__
    imports = f"from {module} import {type(model).__name__}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.npz"
        X = (X - X.mean(axis=0)) / X.std(axis=0)
        np.savez(file, X=X, y=(y - y.mean()) / y.std())
        command = [sys.executable, "-W", "ignore", "-c"]
        command += [code.format(imports, f"{type(model).__name__}(random_state=0)")]
        answer = subprocess.check_output([*command, file], text=True)
    seconds = map(float, answer.split())
    return dict(zip(("import_seconds", "fit_seconds"), seconds, strict=True))


def first_fits(found):
    methods = (*OURS, "mlp", "hist_gradient_boosting")
    return {
        name: {method: first_fit(*found[name], method) for method in methods}
        for name in FRESH
        if name in found
    }


# --- summaries -----------------------------------------------------------------------


def figures_by_method(problems, figure):
    """Means over the folds, ``{table: {method: mean}}``, of the tables that have it."""
    found = {}
    for name, problem in problems.items():
        answers = problem["methods"].items()
        found[name] = {
            m: mean_of(a, figure) for m, a in answers if figure in a["runs"][0]
        }
    return {name: values for name, values in found.items() if values}


def best_of_peers(values):
    """The best of the peers' defaults on a table."""
    ours_or_searched = {*OURS, *(f"{name}_searched" for name in SPACES)}
    return max(v for method, v in values.items() if method not in ours_or_searched)


def standing(problems):
    """How the defaults of each of our regressors stand, over all tables."""
    r2 = figures_by_method(problems, "r2")
    seconds = figures_by_method(problems, "seconds")
    searched = [f"{name}_searched" for name in SPACES]
    answers = {}
    for ours in (m for m in OURS if any(m in values for values in r2.values())):
        own = {name: values for name, values in r2.items() if ours in values}
        best = {n: best_of_peers(v) for n, v in own.items()}
        ratios = [seconds[n][ours] / seconds[n]["mlp"] for n in own]
        answers[ours] = {
            "tables": len(own),
            "level_or_ahead": [n for n in own if own[n][ours] >= best[n] - LEVEL],
            "below_ridge": max(v["ridge"] - v[ours] for v in own.values()),
            "seconds_over_mlp": {"median": median(ratios), "max": max(ratios)},
            "seconds": median(seconds[n][ours] for n in own),
            **{
                peer: [n for n, v in own.items() if v[ours] >= v[peer] - LEVEL]
                for peer in searched
                if all(peer in v for v in own.values())
            },
        }
    return answers | {"by_evidence": by_evidence(problems, r2)}


def by_evidence(problems, r2):
    """Tables on which the one of higher log evidence is level with the best peer."""
    level, tables = [], 0
    evidence = figures_by_method(problems, "log_evidence")
    for name, values in evidence.items():
        if name in r2 and all(ours in values for ours in OURS):
            tables += 1
            chosen = max(OURS, key=values.get)
            if r2[name][chosen] >= best_of_peers(r2[name]) - LEVEL:
                level.append(name)
    return {"tables": tables, "level_or_ahead": level}


def standing_of_classifiers(problems):
    """On which tables the log loss is below that of each peer."""
    found = figures_by_method(problems, "log_loss")
    peers = dict.fromkeys(m for v in found.values() for m in v)
    return {
        ours: {
            peer: [n for n, v in found.items() if peer in v and v[ours] < v[peer]]
            for peer in peers
            if peer not in OUR_CLASSIFIERS
        }
        for ours in OUR_CLASSIFIERS
        if found and all(ours in v for v in found.values())
    }


def wanted(only, tables, problem, name, method):
    """Whether a row is asked for, or missing where nothing is."""
    if not only:
        return method not in {**problem["methods"], **problem["skipped"]}
    methods = only - tables
    asked = not only & tables or name in only
    return asked and (not methods or method in methods)


def add_row(problem, name, method, answer):
    """Run a method on a table, and enter what it reaches."""
    found = answer()
    if found is None:
        reason = f"not one fold in {LIMIT} seconds"
        problem["skipped"] = {**problem["skipped"], method: reason}
        progress(f"{name} {method}: {reason}")
        return
    problem["methods"][method] = found
    problem["skipped"].pop(method, None)
    figure = "r2" if "r2" in found["runs"][0] else "log_loss"
    means = (mean_of(found, figure), mean_of(found, "seconds"))
    progress(f"{name} {method}: {figure} {means[0]:.4f}, {means[1]:.2f} s")


def run(args):
    path = args.out or HERE / "results" / "defaults.json"
    before = json.loads(path.read_text()) if path.exists() and not args.quick else {}
    problems = before.get("problems", {})
    regression, classes = regression_tables(args), classification_tables(args)
    only, tables = set(args.only or ()), {*regression, *classes}
    for name, (X, y) in {**regression, **classes}.items():
        description = f"{X.shape[0]} rows, {X.shape[1]} features"
        if name in classes:
            description += f", {len(np.unique(y))} classes"
        problem = {"description": description, "methods": {}, "skipped": {}}
        problem = problems.setdefault(name, problem)
        slow = SLOW.get(name, ())
        for method, answer in rows(X, y, name in classes, slow, args.quick).items():
            if not wanted(only, tables, problem, name, method):
                continue
            add_row(problem, name, method, answer)
            if not args.quick:
                path.write_text(json.dumps(plain({**before, "problems": problems})))
    answer = {
        "problems": problems,
        "standing": standing(problems),
        "standing_of_classifiers": standing_of_classifiers(problems),
        "first_fit": first_fits(regression),
        "recovery": recovery(args.quick),
        "notes": NOTES,
    }
    for name in ("standing", "standing_of_classifiers", "first_fit"):
        progress(name, json.dumps(answer[name], indent=1))
    return answer
