"""Coverage of 95 % prediction intervals, over 2,000 simulated data sets.

Linear, kinked (a network of three ReLU neurons) and smooth functions of three normal
features, noise of a tenth of the signal's size to its full size, 100 or 1,000 rows.
Default settings. A run is a data set; its ``coverage`` is the share of 500 new
observations inside their intervals, and ``coverage_far`` that of the tenth that is
farthest from the mean of the features. In the rows ``inverse_ode_P`` it is that of the
coefficients of a differential equation, found from observations with P % of noise
(method "pinn"), in 400 simulations; a run that was interrupted goes on.

In the rows ``head_*`` the figure is the expected calibration error of FGNSoftmaxHead by
default, in fifteen bins of confidence, for rows that are held out.

A method that a file has is not run again unless ``--only`` names it; ``--seeds N``
takes 3 N data sets of every problem.
"""

import json
import time
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from benchmarks import _inverse_ode
from benchmarks.__main__ import HERE
from benchmarks._gates import heads
from benchmarks._report import progress, summary, target
from sklearn_gn import FGNSoftmaxHead, ShallowReLURegressor, VarProNetRegressor

ROWS = (100, 1000)
SETS = {100: 400, 1000: 267}  # of each kind: 2,001 in all
N_FEATURES, NEW_ROWS = 3, 500
LEVEL, LOWEST, HIGHEST = 0.95, 0.93, 0.97

HEADS = ("digits", "classes_20", "classes_50", "few_rows")
LARGEST_ERROR = 0.03  # of a head's confidence

NOTES = (
    "head_*: a third of the rows is held out; few_rows has 300 rows for training, 512 "
    "features and ten classes that planes separate, and 2,000 held out.",
    "The target is the mean coverage over the data sets of a problem: the summaries "
    "here show medians.",
)


def estimators(seed):
    return {
        "shallow_relu": ShallowReLURegressor(random_state=seed),
        "varpro_net": VarProNetRegressor(random_state=seed),
    }


def linear(rng):
    slope = rng.standard_normal(N_FEATURES)
    return lambda X: X @ slope


def kinked(rng):
    normal = rng.standard_normal((N_FEATURES, 3))
    offset, coef = rng.standard_normal((2, 3))
    return lambda X: np.maximum(X @ normal + offset, 0) @ coef


def smooth(rng):
    normal = rng.standard_normal((N_FEATURES, 2))
    phase = rng.uniform(0, 2 * np.pi, 2)
    return lambda X: np.sin(X @ normal + phase).sum(axis=1)


KINDS = {"linear": linear, "kinked": kinked, "smooth": smooth}


def data_set(kind, n_rows, seed):
    """Training rows, and new observations of the same function."""
    rng = np.random.default_rng(seed)
    function, noise = KINDS[kind](rng), 10 ** rng.uniform(-1, 0)
    X = rng.standard_normal((n_rows + NEW_ROWS, N_FEATURES))
    signal = function(X)
    noise = noise * signal.std()
    y = signal + noise * rng.standard_normal(len(X))
    return X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:], noise


def figures(model, X, y, X_new, y_new, noise):
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    seconds = time.perf_counter() - start
    lower, upper = model.predict_interval(X_new, level=LEVEL)
    inside = (lower <= y_new) & (y_new <= upper)
    distance = np.linalg.norm(X_new, axis=1)
    far = distance >= np.quantile(distance, 0.9)
    return {
        "coverage": float(np.mean(inside)),
        "coverage_far": float(np.mean(inside[far])),
        "noise_ratio": float(np.ravel(model.noise_std_)[0] / noise),
        "seconds": seconds,
    }


def head_data(name):
    """Rows for training, and rows held out."""
    if name == "few_rows":
        rng = np.random.default_rng(1)
        y = np.r_[np.tile(np.arange(10), 30), rng.integers(0, 10, 2000)]
        X = 0.35 * rng.normal(size=(10, 512))[y] + rng.normal(size=(len(y), 512))
        return X[:300], X[300:], y[:300], y[300:]
    X, y = (
        heads.digits() if name == "digits" else heads.clusters(*heads.GENERATED[name])
    )
    return train_test_split(X, y, test_size=heads.SHARE, random_state=0, stratify=y)


def head_figures(name):
    """Calibration error and log loss of a head on rows held out."""
    X, X_test, y, y_test = head_data(name)
    start = time.process_time()
    model = FGNSoftmaxHead().fit(X, y)
    seconds = time.process_time() - start
    p = model.predict_proba(X_test)
    confidence, right = p.max(axis=1), model.predict(X_test) == y_test
    number = np.minimum((15 * confidence).astype(int), 14)
    excess = np.bincount(number, right - confidence)
    return {
        "error": float(np.abs(excess).sum() / len(right)),
        "log_loss": float(log_loss(y_test, p, labels=model.classes_)),
        "cpu_seconds": seconds,
    }


def add_heads(problems):
    """A row for each set of heads."""
    for name in HEADS:
        runs = [{"seed": 0, **head_figures(name)}]
        answers = {"head": {"settings": {}, "runs": runs, "summary": summary(runs)}}
        problems[f"head_{name}"] = {
            "description": "expected calibration error",
            "methods": answers,
            "target": target(answers, "head", "error", "median", LARGEST_ERROR),
        }
        progress(f"head_{name}: {runs[0]['error']:.4f}")


def run(args):
    path = args.out or HERE / "results" / "calibration.json"
    there = path.exists() and not args.quick
    problems = json.loads(path.read_text())["problems"] if there else {}
    for kind in KINDS:
        for n_rows in ROWS:
            name = f"{kind}_{n_rows}"
            problem = problems.setdefault(
                name,
                {
                    "description": f"{n_rows} rows, {N_FEATURES} features",
                    "methods": {},
                },
            )
            n_sets = SETS[n_rows]
            if args.quick or args.seeds_given:
                n_sets = 3 * len(args.seeds)
            for method in estimators(0):
                known = method in problem["methods"]
                if known if not args.only else method not in args.only:
                    continue
                runs = []
                for seed in range(n_sets):
                    model = estimators(seed)[method]
                    found = figures(model, *data_set(kind, n_rows, seed))
                    runs.append({"seed": seed, **found})
                answer = {"settings": {}, "runs": runs, "summary": summary(runs)}
                problem["methods"][method] = answer
                problem |= targets(problem["methods"])
                mean = problem[f"target_at_least_{method}"]["value"]
                progress(f"{name} {method}: {mean:.4f} of {n_sets} sets")
    if not args.only or "head" in args.only:
        add_heads(problems)
    if not args.only or "pinn" in args.only:
        if args.only:
            for percent in _inverse_ode.NOISES:
                problems.pop(f"inverse_ode_{percent}", None)
        few = args.quick or args.seeds_given
        _inverse_ode.add_rows(
            problems,
            3 * len(args.seeds) if few else _inverse_ode.N_SIMULATIONS,
            lambda: args.write({"problems": problems, "notes": NOTES}),
        )
    return {"problems": problems, "notes": NOTES}


def targets(methods):
    """Bounds of the mean coverage, for each method."""
    found = {}
    for method, answer in methods.items():
        mean = float(np.mean([run["coverage"] for run in answer["runs"]]))
        aim = {"method": method, "figure": "coverage", "statistic": "mean"}
        for bound, value, passed in (
            ("at_least", LOWEST, mean >= LOWEST),
            ("at_most", HIGHEST, mean <= HIGHEST),
        ):
            found[f"target_{bound}_{method}"] = {
                **aim,
                bound: value,
                "value": mean,
                "passed": bool(passed),
            }
    return found
