"""ShallowReLURegressor with several features: diamonds, a million rows, real tables.

diamonds: R2 and seconds beside MLPs, boosting and linear model trees. million_rows:
peak memory and seconds with 1,000,000 rows, 8 features and 50 neurons, in a process of
its own: ``python -m benchmarks.sggn_large SEED``, which prints its figures as JSON.
tables: which solver is the better default, by the number of features.
"""

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import KFold, train_test_split

from benchmarks import _data, _tables
from benchmarks._pinn_peers import python_of
from benchmarks._report import progress, settings, summary, target
from benchmarks._timing import compile_seconds, timed, warm_fit
from benchmarks.pinn_memory import peak_gb
from benchmarks.varpro_tabular import mlp, seeded
from sklearn_gn import ShallowReLURegressor
from sklearn_gn.solvers import JointGN, SgGN

ROOT = Path(__file__).parents[1]
TEST_SHARE = 0.2
QUICK = {"n_neurons": 4, "max_iter": 5}
THINNED = 100  # diamonds of which a quick run takes one

LOCAL = JointGN(relocations=0)
# On diamonds; the first one has the targets.
OURS = {
    "vpgn_50": {"n_neurons": 50, "alpha": 0.0, "solver": LOCAL, "max_iter": 15},
    "vpgn_50_long": {"n_neurons": 50, "alpha": 0.0, "solver": LOCAL, "max_iter": 50},
    "vpgn_20": {"n_neurons": 20, "alpha": 0.0, "solver": LOCAL, "max_iter": 30},
    "sggn_50": {"n_neurons": 50, "solver": SgGN(relocations=0), "max_iter": 30},
    "default": {},
}
LINEAR_TREE = {  # class of linear-tree: name
    "LinearTreeRegressor": "linear_tree",
    "LinearBoostRegressor": "linear_boost",
}
LEAST_R2, MOST_SECONDS = 0.9920, 5.0

MILLION = {"n_neurons": 50, "alpha": 0.0, "solver": LOCAL, "max_iter": 20}
ROWS, FEATURES = 1_000_000, 8
QUICK_ROWS = 2000
MEMORY_RUNS = 3  # at most
MOST_GB = 2.0

WAYS = {  # the first is what the others are compared with
    "sggn": (SgGN, {}),
    "vpgn": (JointGN, {}),
    "vpgn_uniform": (JointGN, {"init": "uniform"}),
}
TABLE_NEURONS = (10,)
TABLE_RELOCATIONS = 5
FOLDS = 5
GROUPS = {"2": (2, 2), "3-4": (3, 4), "5-8": (5, 8), "9 and more": (9, 10**6)}

NOTES = (
    f"diamonds: seeds draw the {TEST_SHARE:.0%} of test rows and what is random in a "
    "fit. Seconds are those of a fit that compiles nothing, standardisation included. "
    "Features and target of the MLPs are standardised; everything else has its default "
    "settings. linear_tree and linear_boost have linear regressions as base.",
    "million_rows: Friedman's first function of 8 features with noise of deviation 1. "
    "peak_gb is the peak of the resident memory of a process that imports the package, "
    "makes the data and fits, compilation included; before_gb that before the fit. "
    "10^9 bytes each; the data alone are 0.072. seconds contain the compilation.",
    f"tables: a run is the mean over {FOLDS} folds of a table, those of the first "
    "seed. r2 is that of the test rows, loss the mean squared residual of the training "
    "rows over their variance, seconds those of a fit that compiles nothing. over_sggn "
    "compares with sggn on the same table, which has the same relocations: loss and "
    "seconds as ratios, r2 as a difference.",
)


def quick(args, words):
    return {**words, **QUICK} if args.quick else words


def answer_of(changed, runs, **more):
    """What a result says of a method."""
    return {"settings": changed, **more, "runs": runs, "summary": summary(runs)}


# --- diamonds ------------------------------------------------------------------------


def in_process(estimator, data, seed):
    """A run of an estimator of this environment."""
    model, seconds = warm_fit(seeded(estimator, seed), data.X_train, data.y_train)
    score = float(model.score(data.X_test, data.y_test))
    return {"seed": seed, "score": score, "seconds": seconds}


def linear_tree(python, name, data, seed):
    """A run of a class of linear-tree, and versions, in its own environment."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data.npz")
        np.savez(path, **data._asdict())
        process = subprocess.run(
            [python, "-m", "benchmarks._peers.linear_tree", name, path],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    result = json.loads(process.stdout)
    versions = result.pop("versions")
    return {"seed": seed, **result}, versions


def peers(args):
    small = {"max_iter": 5} if args.quick else {}
    return {
        "mlp_adam": seeded(mlp("adam", regression=True), 0, **small),
        "mlp_lbfgs": seeded(mlp("lbfgs", regression=True), 0, **small),
        "hist_gradient_boosting": HistGradientBoostingRegressor(),
    }


def linear_tree_answers(args, splits):
    """Answers of linear-tree, and why its methods are skipped."""
    python = python_of(args.peers, "linear_tree")
    if python is None:
        reason = "linear_tree is not installed: see benchmarks/README.md"
        return {}, dict.fromkeys(LINEAR_TREE.values(), reason)
    methods = {}
    for kind, name in LINEAR_TREE.items():
        found = [linear_tree(python, kind, data, seed) for seed, data in splits.items()]
        runs, versions = zip(*found, strict=True)
        methods[name] = answer_of({}, list(runs), versions=versions[0])
        progress(name, methods[name]["summary"])
    return methods, {}


def diamonds_splits(args):
    X, y = _data.diamonds(args.data)
    if args.quick:
        X, y = X[::THINNED], y[::THINNED]
    splits = {}
    for seed in args.seeds:
        parts = train_test_split(X, y, test_size=TEST_SHARE, random_state=seed)
        X_train, X_test, y_train, y_test = parts
        splits[seed] = _data.Split(X_train, y_train, X_test, y_test)
    return splits


def diamonds(args):
    splits = diamonds_splits(args)
    first = splits[args.seeds[0]]
    ours = {
        name: ShallowReLURegressor(**quick(args, words)) for name, words in OURS.items()
    }
    methods = {}
    for name, estimator in {**ours, **peers(args)}.items():
        seconds = 0.0
        if name in ours:
            seconds = compile_seconds(estimator, first.X_train, first.y_train)
        runs = []
        for seed, data in splits.items():
            runs.append(in_process(estimator, data, seed))
            progress(name, runs[-1])
        changed = settings(estimator) if name in ours else {}
        methods[name] = answer_of(changed, runs, compile_seconds=seconds)
    trees, skipped = linear_tree_answers(args, splits)
    aim = partial(target, methods, next(iter(OURS)), statistic="median")
    return {
        "description": "logarithm of the price of 53,940 diamonds, R2 of test rows",
        "rows": {"train": len(first.X_train), "test": len(first.X_test)},
        "methods": {**methods, **trees},
        "skipped": skipped,
        "target_score": aim("score", at_least=LEAST_R2),
        "target_seconds": aim("seconds", at_most=MOST_SECONDS),
    }


# --- memory --------------------------------------------------------------------------


def friedman(n_rows, seed):
    """Friedman's first function of five of the features, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n_rows, FEATURES))
    y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2
    y += 10 * X[:, 3] + 5 * X[:, 4] + rng.standard_normal(n_rows)
    return X, y


def fresh_process(seed, small):
    """Figures of this process, in which nothing has been fitted yet."""
    words, n_rows = ({**MILLION, **QUICK}, QUICK_ROWS) if small else (MILLION, ROWS)
    X, y = friedman(n_rows, seed)
    before = peak_gb()
    estimator = ShallowReLURegressor(**words, random_state=seed)
    model, seconds = timed(lambda: estimator.fit(X, y))
    return {
        "seed": seed,
        "peak_gb": peak_gb(),
        "before_gb": before,
        "seconds": seconds,
        "iterations": model.n_iter_,
        "score": model.score(X[:QUICK_ROWS], y[:QUICK_ROWS]),
    }


def million_rows(args):
    command = [sys.executable, "-m", "benchmarks.sggn_large"]
    runs = []
    for seed in args.seeds[:MEMORY_RUNS]:
        process = subprocess.run(
            [*command, str(seed), *(["--quick"] if args.quick else [])],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        runs.append(json.loads(process.stdout))
        progress("vpgn", runs[-1])
    words = quick(args, MILLION)
    methods = {"vpgn": answer_of(settings(ShallowReLURegressor(**words)), runs)}
    rows = QUICK_ROWS if args.quick else ROWS
    return {
        "description": f"{rows:,} rows, {FEATURES} features, {words['n_neurons']} "
        f"neurons, {words['max_iter']} iterations",
        "rows": rows,
        "methods": methods,
        "target": target(methods, "vpgn", "peak_gb", "max", MOST_GB),
    }


# --- tables --------------------------------------------------------------------------


def fold_figures(estimator, X, y, train, test):
    model, seconds = warm_fit(estimator, X[train], y[train])
    residual = model.predict(X[train]) - y[train]
    return {
        "r2": float(model.score(X[test], y[test])),
        "loss": float(np.mean(residual**2) / np.var(y[train])),
        "seconds": seconds,
    }


def table_run(estimator, name, X, y, seed):
    """Means over the folds."""
    folds = KFold(FOLDS, shuffle=True, random_state=seed).split(X)
    found = [fold_figures(estimator, X, y, *fold) for fold in folds]
    means = {figure: float(np.mean([f[figure] for f in found])) for figure in found[0]}
    return {"seed": seed, "table": name, **means}


def table_answer(args, way, n_neurons, found, seed):
    kind, words = WAYS[way]
    words = quick(args, {**words, "solver": kind(relocations=TABLE_RELOCATIONS)})
    estimator = ShallowReLURegressor(**{"alpha": 0.0, **words, "n_neurons": n_neurons})
    runs = []
    for name, (X, y) in found.items():
        seeded_one = clone(estimator).set_params(random_state=seed)
        runs.append(table_run(seeded_one, name, X, y, seed))
        progress(way, n_neurons, runs[-1])
    return answer_of(settings(estimator), runs)


def compare(run, own):
    """The run with how it stands to that of sggn on the same table."""
    return {
        **run,
        "r2_over_sggn": run["r2"] - own["r2"],
        "loss_over_sggn": run["loss"] / max(own["loss"], np.finfo(float).tiny),
        "seconds_over_sggn": run["seconds"] / own["seconds"],
    }


def by_features(runs, sizes):
    """Of compared runs, the medians over tables of like numbers of features."""
    groups = {}
    for name, (low, high) in GROUPS.items():
        mine = [run for run in runs if low <= sizes[run["table"]]["features"] <= high]
        if mine:
            names = [figure for figure in mine[0] if figure.endswith("over_sggn")]
            groups[name] = {
                "tables": len(mine),
                "better_r2": sum(run["r2_over_sggn"] > 0 for run in mine),
                **{figure: median(run[figure] for run in mine) for figure in names},
            }
    return groups


def tables(args):
    names = ("ethanol", "environmental", "diabetes") if args.quick else None
    found = _tables.tables(args.data, names)
    sizes = {
        name: dict(zip(("rows", "features"), X.shape, strict=True))
        for name, (X, _) in found.items()
    }
    seed, methods, groups = args.seeds[0], {}, {}
    for n_neurons in TABLE_NEURONS:
        answers = {way: table_answer(args, way, n_neurons, found, seed) for way in WAYS}
        own, *others = WAYS
        for way in others:
            pairs = zip(answers[way]["runs"], answers[own]["runs"], strict=True)
            compared = [compare(*pair) for pair in pairs]
            answers[way] |= {"runs": compared, "summary": summary(compared)}
            groups[f"{way}_{n_neurons}"] = by_features(compared, sizes)
        methods |= {f"{way}_{n_neurons}": answers[way] for way in WAYS}
    return {
        "description": f"{len(found)} tables, {FOLDS} folds",
        "rows": sizes,
        "methods": methods,
        "by_features": groups,
    }


# --- the experiment ------------------------------------------------------------------

PROBLEMS = {"diamonds": diamonds, "million_rows": million_rows, "tables": tables}


def run(args):
    answers = {}
    for name in args.only or PROBLEMS:
        progress(f"--- {name}")
        answers[name] = PROBLEMS[name](args)
    return {"problems": answers, "notes": NOTES}


if __name__ == "__main__":
    print(json.dumps(fresh_process(int(sys.argv[1]), "--quick" in sys.argv)))
