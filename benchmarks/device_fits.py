"""Default fits of tables and heads on a device, and on the CPU where it has the time.

Rows of 50 columns, of which six carry the law of ``cliffs``, and features of a head
with a thousand classes. A problem runs on the first GPU, or on the CPU where there is
none; ``seconds`` are those of a first fit in a fresh process, compilation included.
"""

import jax
import numpy as np

from benchmarks._cliffs import labels_of, log_loss, mixed_law, normal, r2
from benchmarks._report import progress, settings, summary
from benchmarks._timing import timed
from sklearn_gn import (
    FGNSoftmaxHead,
    ShallowReLURegressor,
    VarProNetClassifier,
    VarProNetRegressor,
)

COLUMNS, CLASSES, FEATURES = 50, 1000, 512
ROWS = (10_000, 100_000, 1_000_000)
HEAD_ROWS = 1_000_000
N_TEST = 10_000
QUICK = {"rows": 300, "classes": 5, "features": 8, "test": 100}

TABLES = {
    "shallow_relu": ShallowReLURegressor,
    "varpro_regressor": VarProNetRegressor,
    "varpro_classifier": VarProNetClassifier,
}
HEAD = f"head_{HEAD_ROWS}"
PROBLEMS = (*(f"{name}_{n_rows}" for n_rows in ROWS for name in TABLES), HEAD)

NOTES = (
    "seconds: a first fit in a fresh process when run by benchmarks gpu. r2: against "
    "the law without noise, of 10,000 further rows; log_loss: of their labels. "
    "The law has noise of deviation 1; the three classes are drawn from probabilities "
    "by products and kinks of four columns; the head's features are centres of length "
    "one in 512 dimensions with normal noise of deviation .15, in single precision.",
)


def device():
    """Word for ``device``: the GPU if there is one."""
    return "cuda" if jax.default_backend() == "gpu" else "cpu"


def table(name, n_rows, seed, quick):
    """Training and test rows of a table."""
    if quick:
        n_rows = QUICK["rows"]
    n_test = QUICK["test"] if quick else N_TEST
    X = normal(seed, 0, n_rows + n_test, COLUMNS)
    if name == "varpro_classifier":
        y = truth = labels_of(X, seed, 1)
    else:
        truth = mixed_law(X)
        y = truth + normal(seed, 1, len(X))
    return (X[:n_rows], y[:n_rows]), (X[n_rows:], truth[n_rows:])


def head_data(seed, quick):
    """Features and labels of a head, and those of its test rows."""
    n_rows, n_test = (QUICK["rows"], QUICK["test"]) if quick else (HEAD_ROWS, N_TEST)
    classes = QUICK["classes"] if quick else CLASSES
    features = QUICK["features"] if quick else FEATURES
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes, features)).astype(np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    y = generator.integers(classes, size=n_rows + n_test)
    X = generator.standard_normal((n_rows + n_test, features), dtype=np.float32)
    X *= np.float32(0.15)
    X += centres[y]
    return (X[:n_rows], y[:n_rows]), (X[n_rows:], y[n_rows:])


def figures(model, data, test):
    """Seconds of a fit, and what it makes of the test rows."""
    _, seconds = timed(lambda: model.fit(*data))
    X, truth = test
    row = {"seconds": seconds, "n_iter": float(model.n_iter_)}
    if hasattr(model, "predict_proba"):
        P = model.predict_proba(X)
        columns = np.searchsorted(model.classes_, truth)
        return row | {"log_loss": log_loss(P[np.arange(len(P)), columns])}
    return row | {"r2": r2(truth, model.predict(X))}


def run(args):
    problems, words = {}, {"device": device()}
    for problem in PROBLEMS:
        if args.only and problem not in args.only:
            continue
        name, n_rows = problem.rsplit("_", 1)
        runs = []
        for seed in args.seeds:
            if problem == HEAD:
                model = FGNSoftmaxHead(**words)
                data, test = head_data(seed, args.quick)
            else:
                model = TABLES[name](random_state=seed, **words)
                data, test = table(name, int(n_rows), seed, args.quick)
            runs.append({"seed": seed, **figures(model, data, test)})
            progress(problem, runs[-1])
        shape = f"{len(data[0]):,} x {data[0].shape[1]}"
        problems[problem] = {
            "description": f"{type(model).__name__} by default, {shape}",
            "methods": {
                words["device"]: {
                    "settings": settings(model),
                    "runs": runs,
                    "summary": summary(runs),
                }
            },
        }
        args.write({"problems": problems, "notes": NOTES})
    return {"problems": problems, "notes": NOTES}
