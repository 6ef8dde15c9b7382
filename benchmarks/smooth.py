"""Smooth functions without noise, as simulations give them, by default settings.

Every estimator has its default settings but for the kernel of the Gaussian process,
for which there is no useful default; features are standardised for all, the target for
``MLPRegressor``. ``fixed`` is ``VarProNetRegressor`` with networks of ten neurons,
which do not grow. Errors are root mean squares at 2,000 other points, over the standard
deviation of the function.
"""

import time
import warnings

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._report import progress, summary
from sklearn_gn import VarProNetRegressor

TEST_ROWS = 2000
NOTES = (
    "The kernel of the Gaussian process has a length for each feature and a noise, "
    "which are fitted from one start. It knows that the function is smooth.",
    "An estimator fits for the first time in its process with the first seed of the "
    "first problem.",
)


def product(X):
    """A wave in one variable, and bells in all."""
    return np.sin(3 * X[:, 0]) + np.prod(np.cos(X), axis=1)


def bump(X):
    return np.exp(-4 * np.mean(X**2, axis=1))


def rational(X):
    scale = np.arange(1, X.shape[1] + 1) / X.shape[1]
    return 1 / (1 + np.sum((scale * X) ** 2, axis=1)) + 0.3 * X[:, 0] * X[:, -1]


def borehole(X):
    """Flow of water through a borehole (Harper and Gupta, 1983), in eight variables."""
    low = np.array([0.05, 100, 63070, 990, 63.1, 700, 1120, 9855])
    high = np.array([0.15, 50000, 115600, 1110, 116, 820, 1680, 12045])
    rw, r, tu, hu, tl, hl, length, kw = (low + (X + 1) / 2 * (high - low)).T
    log = np.log(r / rw)
    leak = 2 * length * tu / (log * rw**2 * kw)
    return 2 * np.pi * tu * (hu - hl) / (log * (1 + leak + tu / tl))


def friedman(X):
    """Friedman's first function; five of the features have no effect."""
    U = (X + 1) / 2
    wave = 10 * np.sin(np.pi * U[:, 0] * U[:, 1])
    return wave + 20 * (U[:, 2] - 0.5) ** 2 + 10 * U[:, 3] + 5 * U[:, 4]


PROBLEMS = {  # function, features, rows
    "wave_1": (product, 1, 50),
    "wave_2": (product, 2, 200),
    "wave_4": (product, 4, 500),
    "bump_3": (bump, 3, 300),
    "bump_6": (bump, 6, 1000),
    "rational_5": (rational, 5, 400),
    "borehole": (borehole, 8, 400),
    "friedman1": (friedman, 10, 500),
}


def estimators(seed):
    kernel = ConstantKernel() * RBF(1.0) + WhiteKernel(1e-6, (1e-12, 1))
    return {
        "default": VarProNetRegressor(random_state=seed),
        "fixed": VarProNetRegressor(hidden_layer_sizes=(10,), random_state=seed),
        "gaussian_process": GaussianProcessRegressor(
            kernel, normalize_y=True, random_state=seed
        ),
        "mlp": TransformedTargetRegressor(
            MLPRegressor(random_state=seed), transformer=StandardScaler()
        ),
        "hist_gradient_boosting": HistGradientBoostingRegressor(random_state=seed),
    }


def points(function, d, n, seed):
    rng = np.random.RandomState(seed)
    X = rng.uniform(-1, 1, (n + TEST_ROWS, d))
    y = function(X)
    return X[:n], y[:n], X[n:], y[n:]


def figures(model, X, y, X_test, y_test):
    if isinstance(model, GaussianProcessRegressor):  # a length for each feature
        lengths = {"kernel__k1__k2__length_scale": np.ones(X.shape[1])}
        model.set_params(**lengths)
    pipeline = make_pipeline(StandardScaler(), model)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers that run out of iterations
        pipeline.fit(X, y)
    seconds = time.perf_counter() - start
    error = np.sqrt(np.mean((pipeline.predict(X_test) - y_test) ** 2)) / y_test.std()
    found = {"error": float(error), "seconds": seconds}
    if hasattr(model, "estimators_"):
        found["neurons"] = sum(map(len, model.estimators_[0].intercepts_))
        found["members"] = len(model.estimators_)
        lower, upper = model.predict_interval(pipeline[0].transform(X_test))
        found["coverage"] = float(np.mean((lower <= y_test) & (y_test <= upper)))
    return found


def run(args):
    problems = {}
    for name, (function, d, n) in PROBLEMS.items():
        if args.only and name not in args.only:
            continue
        n = 60 if args.quick else n
        runs = {}
        for seed in args.seeds:
            data = points(function, d, n, seed)
            for method, model in estimators(seed).items():
                runs.setdefault(method, []).append(figures(model, *data))
        methods = {
            method: {"settings": {}, "runs": found, "summary": summary(found)}
            for method, found in runs.items()
        }
        problems[name] = {
            "description": f"{n} points, {d} features",
            "methods": methods,
        }
        errors = {
            method: f"{row['summary']['error']['median']:.1e}"
            for method, row in methods.items()
        }
        progress(name, errors)
    return {"problems": problems, "notes": NOTES}
