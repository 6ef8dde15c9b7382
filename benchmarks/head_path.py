"""Heads as probes: the path of 45 penalties, few shots, and thousands of classes.

``path_*``: FGNSoftmaxHeadCV beside LogisticRegressionCV with the same penalties, three
folds and the same tolerance, in CPU seconds of a later fit, with the log loss of rows
held out. ``probe_*``: the same penalties for frozen features of realistic sizes, one
fit of each, beside LogisticRegression with warm starts. ``shots_*``: FGNSoftmaxHead by
default beside LogisticRegression with C = 1, with C = 100 and a temperature, and by
cross-validation, on few rows of each class. ``classes_*``: CPU seconds to relative
distances from the minimum, and peak memory, for one penalty. ``budget_*``: seconds of
FGNSoftmaxHead by default where it may take so many.
"""

import json
import subprocess
import sys
import time
import warnings
from functools import partial

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import KFold, StratifiedKFold

from benchmarks._gates.heads import clusters
from benchmarks._many_classes import FEATURES, ROWS, features
from benchmarks._report import progress, settings, summary, target
from sklearn_gn import FGNSoftmaxHead, FGNSoftmaxHeadCV

PENALTIES = tuple(np.logspace(-6, 5, 45).tolist())
FOLDS = 3
N_TEST = 2000
CLASSES = {
    "classes_1000": (1000, ("head", "lbfgs", "newton-cg")),
    "classes_5000": (5000, ("head", "lbfgs", "newton-cg")),
}
BUDGETS = {"budget_1000": (1000, 20), "budget_5000": (5000, 80)}  # classes, seconds
LIMIT = 0.045  # CPU seconds of a fit of many classes, for each class
PROBES = {"probe_20000": (20_000, 384, 100), "probe_25000": (25_000, 768, 200)}
N_HELD_OUT = 2000  # of a probe
PROBE_SECONDS = 300  # CPU seconds after which no further penalty of a probe begins
GAPS = {"1e-3": 1e-3, "1e-5": 1e-5}  # relative distances from the minimum

NOTES = (
    "path: 45 values of C from 1e-6 to 1e5, three folds, the same for all methods, "
    "chosen by log loss, tol=1e-6; "
    "CPU seconds of a whole search, fits of all folds and of all rows, of a second fit "
    "in the same process. Features: clusters of unequal scales, or pixels of digits.",
    "path_digits, path_2000, classes_*: one thread of BLAS for each method, as other "
    "work shared the two cores of the machine, and waiting threads count as seconds.",
    "probe: rows of length one, 2,000 more held out; 45 values of C as above, one fit "
    "of each to tol=1e-6, one thread of BLAS. CPU seconds to the last value that the "
    f"fastest peer begins within {PROBE_SECONDS} of them (values); null stands for a "
    "slower solver that has not got there by then. The peers begin at the minimum for "
    "the value before; the seconds of head_cv are those of all its work, with the "
    "scores of the rows held out and the last fit of all rows.",
    "shots: classes x rows of each. A mean for each class plus normal noise, of length "
    "one; of 77 classes with a common mean, not scaled, and rows at random; zipf: the "
    "frequency of a class is one over its number, of length one (40) or not (30); "
    "digits and iris are split at random, digits divided by 16. logistic_cv: C of 1, "
    "10, 100 and 1,000, three folds, by log loss, null where a class has two rows; "
    "logistic_100: C = 100, with the temperature of rows left out by three folds. The "
    "target is the median over the draws of the least log loss of the three.",
    "Log losses are those of rows held out: half of a path's rows, all others of "
    "digits and iris, 2,000 of the other shots. A class that no row has counts 1e-12.",
    "classes: 30,000 rows of length one with 256 features, C = 1. Each fit has its own "
    f"process and {LIMIT} CPU seconds a class at most; the minimum is the least of "
    "all fits, null stands for a distance not reached, and gap is the distance at the "
    "end of the fit. Memory: the peak of the process less what it held before the fit. "
    "Other work shared the two cores of the machine, so CPU seconds are longer than "
    "alone.",
    "budget: the same rows, max_time=20 and 80; seconds on the clock, on the busy "
    "machine, and the share of the rows whose class is found, a measure of progress.",
)


def halves(X, y):
    order = np.random.default_rng(0).permutation(len(X))
    half = len(X) // 2
    return X[order[:half]], y[order[:half]], X[order[half:]], y[order[half:]]


def digits():
    X, y = load_digits(return_X_y=True)
    return halves(X / 16, y)


def generated(n, d, n_classes, separation):
    return halves(*clusters(2 * n, d, n_classes, separation))


def shots(n_classes, n_shots, d, separation, seed, share=None, unit=True, mean=0.0):
    """Rows of each class, or by the share of each, and rows to be held out."""
    rng, n = np.random.default_rng([seed, n_classes, n_shots, d]), n_classes * n_shots
    if share is None:
        y = np.tile(np.arange(n_classes), n_shots)
        y = np.append(y, rng.integers(n_classes, size=N_TEST))
    else:
        y = [rng.choice(n_classes, size=size, p=share) for size in (n, N_TEST)]
        y = np.append(y[0], y[1][np.isin(y[1], y[0])])
        y = np.unique(y, return_inverse=True)[1]
    X = separation * rng.normal(size=(y.max() + 1, d))[y]
    X += rng.normal(size=(len(y), d)) + mean * rng.normal(size=d)
    if unit:
        X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X[:n], y[:n], X[n:], y[n:]


def shots_of(load, n_shots, size, seed):
    """The first rows of each class of a data set in random order, and the others."""
    X, y = load(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    chosen = [order[y[order] == label][:n_shots] for label in np.unique(y)]
    chosen = np.concatenate(chosen)
    others = np.setdiff1d(order, chosen)
    return X[chosen] / size, y[chosen], X[others] / size, y[others]


def zipf(n_classes):
    share = 1 / np.arange(1, n_classes + 1)
    return share / share.sum()


PATHS = {
    "path_digits": digits,
    "path_2000": lambda: generated(2000, 64, 20, 0.5),
    "path_8000": lambda: generated(8000, 256, 50, 0.25),
}
SHOTS = {
    "shots_5x60": partial(shots, 5, 60, 512, 0.286),
    "shots_10x30": partial(shots, 10, 30, 512, 0.15),
    "shots_20x16": partial(shots, 20, 16, 512, 0.286),
    "shots_50x4": partial(shots, 50, 4, 512, 0.286),
    "shots_300x2": partial(shots, 300, 2, 256, 0.3),
    "shots_77x8": partial(
        shots, 77, 8, 768, 0.25, share=np.full(77, 1 / 77), unit=False, mean=2.0
    ),
    "shots_zipf_40x8": partial(shots, 40, 8, 384, 0.2, share=zipf(40)),
    "shots_zipf_30x10": partial(shots, 30, 10, 64, 0.3, share=zipf(30), unit=False),
    **{f"shots_digits_{n}": partial(shots_of, load_digits, n, 16) for n in (2, 3, 5)},
    "shots_iris_5": partial(shots_of, load_iris, 5, 1),
}


def path_methods():
    words = {"Cs": PENALTIES, "cv": StratifiedKFold(FOLDS), "tol": 1e-6}
    peer = {**words, "scoring": "neg_log_loss", "max_iter": 1000}
    return {
        "head_cv": FGNSoftmaxHeadCV(**words),
        **{
            f"logistic_cv_{solver}": LogisticRegressionCV(
                solver=solver, use_legacy_attributes=False, **peer
            )
            for solver in ("newton-cg", "lbfgs")
        },
    }


class Tempered(LogisticRegression):
    """LogisticRegression with the temperature that is best for rows left out."""

    def fit(self, X, y):
        logits, codes = [], []
        for train, test in KFold(FOLDS, shuffle=True, random_state=0).split(X):
            super().fit(X[train], y[train])
            test = test[np.isin(y[test], self.classes_)]
            logits.append(self.decision_function(X[test]))
            codes.append(np.searchsorted(self.classes_, y[test]))

        def loss(log_temperature):
            scaled = [part / np.exp(log_temperature) for part in logits]
            return sum(map(cross_entropy, scaled, codes))

        found = minimize_scalar(loss, bounds=(-4, 4), method="bounded")
        self.temperature_ = np.exp(found.x)
        return super().fit(X, y)

    def predict_proba(self, X):
        return softmax(self.decision_function(X) / self.temperature_, axis=1)


def cross_entropy(logits, code):
    return -np.sum(log_softmax(logits, axis=1)[np.arange(len(code)), code])


def shots_methods():
    return {
        "head": FGNSoftmaxHead(),
        "logistic": LogisticRegression(max_iter=500),
        "logistic_100": Tempered(C=100, max_iter=500),
        "logistic_cv": LogisticRegressionCV(
            Cs=[1, 10, 100, 1000],
            cv=FOLDS,
            scoring="neg_log_loss",
            max_iter=300,
            use_legacy_attributes=False,
        ),
    }


def cpu_fit(model, X, y):
    """Fit a model; return its CPU seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        start = time.process_time()
        model.fit(X, y)
    return time.process_time() - start


def run_of(model, data, later):
    X, y, X_test, y_test = data
    try:
        seconds = cpu_fit(model, X, y)
    except ValueError:  # folds of too few rows
        return dict.fromkeys(("seconds", "log_loss", "accuracy"), np.nan)
    if later:
        seconds = cpu_fit(clone(model), X, y)
    p = np.zeros((len(y_test), max(y.max(), y_test.max()) + 1))
    p[:, model.classes_] = model.predict_proba(X_test)
    p = np.maximum(p[np.arange(len(y_test)), y_test], 1e-12)
    return {
        "seconds": seconds,
        "log_loss": -float(np.mean(np.log(p))),
        "accuracy": float(np.mean(model.predict(X_test) == y_test)),
    }


def traced(method, n_classes):
    """One fit in a process of its own, traced."""
    command = [sys.executable, "-m", "benchmarks._many_classes"]
    command += [method, str(n_classes), str(LIMIT * n_classes)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(found.stdout.splitlines()[-1])


def probe_of_peer(model, X, y, limit):
    """CPU seconds after each penalty that begins before the limit."""
    seconds, start = [], time.process_time()
    for C in PENALTIES:
        if seconds and seconds[-1] > limit:
            break
        cpu_fit(model.set_params(C=C), X, y)
        seconds.append(time.process_time() - start)
    return seconds


def probe(n, d, n_classes):
    """CPU seconds of all penalties, for each method."""
    X, y = features(n + N_HELD_OUT, d, n_classes)
    answers, reached, limit = {}, {}, PROBE_SECONDS
    for solver in ("lbfgs", "newton-cg"):
        words = {"solver": solver, "tol": 1e-6, "max_iter": 10_000}
        model = LogisticRegression(warm_start=True, **words)
        seconds = probe_of_peer(model, X[:n], y[:n], limit)
        reached[f"logistic_{solver}"], limit = seconds, min(limit, seconds[-1])
        progress(solver, len(seconds), "values", seconds[-1])
    count = max(map(len, reached.values()))
    split = [(np.arange(n), np.arange(n, len(X)))]
    head = FGNSoftmaxHeadCV(PENALTIES[:count], cv=split, tol=1e-6)
    best = min(s[-1] for s in reached.values() if len(s) == count)
    for method, seconds in {"head_cv": [cpu_fit(head, X, y)], **reached}.items():
        values = count if method == "head_cv" else len(seconds)
        last = seconds[-1] if values == count else np.nan
        row = {"seed": 0, "seconds": last, "values": values}
        answers[method] = {"settings": {}, "runs": [row], "summary": summary([row])}
        progress(method, row)
    return {
        "description": f"{n:,} x {d}, {n_classes} classes",
        "methods": answers,
        "target": target(answers, "head_cv", "seconds", "median", best / 2),
    }


def many_classes(n_classes, methods):
    """Seconds to the minimum of each method, and its memory."""
    fits = {}
    for method in methods:
        fits[method] = traced(method, n_classes)
        progress(n_classes, method, fits[method]["trace"][-1])
    least = min(fit["trace"][-1][1] for fit in fits.values())
    answers = {}
    for method, fit in fits.items():
        row = {"seed": 0, "fit_mib": fit["peak_mib"] - fit["data_mib"]}
        row["gap"] = fit["trace"][-1][1] / least - 1
        for name, gap in GAPS.items():
            reached = (t for t, loss in fit["trace"] if loss <= least * (1 + gap))
            row[f"seconds_{name}"] = next(reached, np.nan)
        answers[method] = {"settings": {}, "runs": [row], "summary": summary([row])}
    peers = [answers[p]["summary"] for p in answers if p != "head"]
    targets, limit = {}, LIMIT * n_classes
    for name in GAPS:
        figure = f"seconds_{name}"
        best = min(np.nan_to_num(p[figure]["median"], nan=limit) for p in peers)
        targets[f"target_{name}"] = target(answers, "head", figure, "median", best / 2)
    best = min(p["fit_mib"]["median"] for p in peers)
    targets["target_memory"] = target(answers, "head", "fit_mib", "median", best)
    return {
        "description": f"30,000 x 256, {n_classes:,} classes",
        "methods": answers,
        **targets,
    }


def budget(n_classes, seconds):
    """Seconds that a fit takes which may take so many."""
    X, y = features(ROWS, FEATURES, n_classes)
    model, start = FGNSoftmaxHead(max_time=seconds), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    row = {"seed": 0, "seconds": time.perf_counter() - start}
    row["accuracy"] = model.score(X[:N_TEST], y[:N_TEST])
    progress(n_classes, row, model.stop_reason_)
    answers = {"head": {"settings": {}, "runs": [row], "summary": summary([row])}}
    return {
        "description": f"{n_classes:,} classes, max_time={seconds}",
        "methods": answers,
        "target": target(answers, "head", "seconds", "median", 1.1 * seconds),
    }


def run(args):
    problems = {}
    long = {
        **{name: partial(probe, *sizes) for name, sizes in PROBES.items()},
        **{name: partial(many_classes, *given) for name, given in CLASSES.items()},
        **{name: partial(budget, *given) for name, given in BUDGETS.items()},
    }
    names = [*PATHS, *SHOTS, *long]
    for name in args.only or (["path_digits", "shots_10x30"] if args.quick else names):
        if name in long:
            problems[name] = long[name]()
            args.write({"problems": problems, "notes": NOTES})
            continue
        seeds = [0] if name in PATHS else args.seeds[:3]
        methods = path_methods() if name in PATHS else shots_methods()
        if args.quick and name in PATHS:
            for model in methods.values():
                model.set_params(Cs=PENALTIES[15:30:5])
        answers = {}
        for method, model in methods.items():
            runs = []
            for seed in seeds:
                data = PATHS[name]() if name in PATHS else SHOTS[name](seed=seed)
                row = run_of(clone(model), data, later=name in PATHS)
                runs.append({"seed": seed, **row})
            answers[method] = {
                "settings": {k: v for k, v in settings(model).items() if k != "Cs"},
                "runs": runs,
                "summary": summary(runs),
            }
            progress(name, method, answers[method]["summary"])
        first, *peers = answers
        figure, factor = ("seconds", 0.5) if name in PATHS else ("log_loss", 1.0)
        values = [[r[figure] for r in answers[p]["runs"]] for p in peers]
        best = factor * np.median(np.nanmin(values, axis=0))
        n, d = data[0].shape
        problems[name] = {
            "description": f"{n:,} x {d}, {len(np.unique(data[1]))} classes",
            "methods": answers,
            "target": target(answers, first, figure, "median", best),
        }
        args.write({"problems": problems, "notes": NOTES})
    return {"problems": problems, "notes": NOTES}
