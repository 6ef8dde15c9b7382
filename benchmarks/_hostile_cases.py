"""Hostile cases: data, weights and parameters that users should not have, and do have.

A case is a dict of choices by name, drawn by :func:`draw` with whatever chooses: a
seeded generator in the benchmark, hypothesis in the tests. :func:`violation` fits and
predicts, and returns what is wrong with the outcome.
"""

import os
import signal
import sys
import threading
import traceback
import warnings
from contextlib import contextmanager

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from sklearn_gn import (
    FGNSoftmaxHead,
    PINNSolver,
    SegmentedRegressor,
    ShallowReLURegressor,
    VarProNetClassifier,
    VarProNetRegressor,
)
from sklearn_gn.pde import Box, Dirichlet, Problem, d
from sklearn_gn.solvers import (
    NETWORK_SOLVERS,
    PINN_SOLVERS,
    SHALLOW_RELU_SOLVERS,
    SOFTMAX_HEAD_SOLVERS,
)

CLASSIFIERS = ("FGNSoftmaxHead", "VarProNetClassifier")
SECONDS = 600.0  # of a case, compiled on a busy machine; more is a hang

# Few shapes, because each one compiles programs of its own.
SHAPES = [(1, 1), (1, 3), (2, 1), (2, 2), (3, 1), (3, 5), (5, 2), (8, 1), (8, 3)]
SHAPES += [(12, 1), (12, 2), (20, 3), (20, 40), (30, 1), (33, 2), (70, 1), (70, 4)]
# The same draw in all tests of a run: two that are compiled for anyway.
FEW_SHAPES = [(8, 1), (20, 3)]

EXPONENTS = [0, 0, 0, 0, 0, -8, 8, -30, 30, -100, 100, -150, 150, -200, 200]
CONTENTS = [
    "normal",
    "normal",
    "ties",
    "constant column",
    "all constant",
    "collinear",
    "duplicated columns",
    "duplicated rows",
    "large offset",
    "one outlier",
    "scales by column",
]
TARGETS = ["line", "kink", "noise", "constant", "one outlier", "ties", "two columns"]
LABELS = [
    "integers",
    "integers",
    "objects",
    "booleans",
    "floats",
    "one class",
    "mixed types",
    "a class a row",
    "None among them",
]
DAMAGE = [None] * 12 + [
    "NaN in X",
    "inf in X",
    "largest float in X",
    "NaN in y",
    "inf in y",
    "largest float in y",
    "NaN in weights",
    "negative weight",
    "short y",
]
KINDS = ["float64"] * 4 + ["float32", "float16", "int64", "uint8", "bool", "object"]
KINDS += [">f8", "complex", "str"]
LAYOUTS = ["C"] * 3 + ["F", "strided", "reversed", "read-only", "list", "pandas"]
LAYOUTS += ["polars"]
WEIGHTS = [None] * 6 + ["ones", "some zero", "all zero", "one positive", "1e308"]
WEIGHTS += ["1e-308", "5e-324", "1e-300 to 1e300", "integers"]

_COMMON = {
    "max_iter": [1, 2, 5],
    "tol": [0.0, 1e-300, 1.0, 1e300],
    "damping": [None, 0.0, 1e-300, 1.0, 1e300],
    "rank": [None, 1, 2, 10**9],
    "dtype": ["float32"],
    "early_stopping": [True],
    "validation_fraction": [1e-9, 0.5, 1 - 1e-9],
    "n_iter_no_change": [1, 10**9],
    "random_state": [2**32 - 1],
    "warm_start": [True],
    "max_time": [1e-300, 1e300],
}
_NETWORK = {
    **_COMMON,
    "hidden_layer_sizes": [(), 1, (1,), (2, 3), ("3",), (0,), (-1,), [[2]]],
    "activation": ["tanh", "relu", "softplus", "nothing", ("tanh", "relu")],
    "n_init": [1, 2],
    "alpha": ["auto", 0.0, 1e-300, 1e300, (0.0, 0.0), (1.0,), "none"],
    "scale": [False],
    "network": ["mlp", "neural_ode", "cnn"],
}
PARAMETERS = {
    "ShallowReLURegressor": {
        **_COMMON,
        "n_neurons": [0, 1, 3, "auto"],
        "alpha": ["auto", 0.0, 1e-300, 1e300, -1.0],
        "init": ["auto", "uniform", "random", "data", [[np.nan, 1.0]], [["a"]]],
        "n_init": [1, 2, "auto"],
        "criterion": ["aic", "bic", "gcv"],
    },
    "SegmentedRegressor": {
        "n_breakpoints": [0, 1, 2, 10**6, -1, "auto"],
        "kinks": [False],
        "jumps": [True],
        "degree": [0],
        "broken_features": [1, -1, 10**6, "f0", "absent"],
        "breakpoints": [[0.0], [np.nan], [1e300, 2e300], ["a"], []],
        "bounds": [(0.0, 1.0), (1.0, 0.0), (np.nan, 1), (0,), ("a", "b")],
        "min_distance": [1e-300, 1e300],
        "min_rows": [1, 10**6],
        "max_breakpoints": [0, 1, 10**6],
        "criterion": ["aic", "gcv", "cv"],
        "covariance": ["HC0", "HC3", "HAC", "HAC-prewhitened"],
        "hac_lags": [0, 10**6],
    },
    "VarProNetRegressor": _NETWORK,
    "VarProNetClassifier": {
        **_NETWORK,
        "class_weight": ["balanced", {0: 1e308, 1: 1e-308}, {0: 0.0}, {"a": np.nan}],
    },
    "FGNSoftmaxHead": {
        **_COMMON,
        "alpha": ["auto", 0.0, 1e-300, 1e300, -1.0],
        "fit_intercept": [False],
        "class_weight": ["balanced", {0: 1e308, 1: 1e-308}, {0: 0.0}, {"a": np.nan}],
    },
    "PINNSolver": {
        **{k: v for k, v in _COMMON.items() if k != "validation_fraction"},
        "hidden_layer_sizes": [(1,), (2, 3), ("3",), (0,), ()],
        "activation": ["tanh", "sin", "nothing"],
        "loss_weights": ["scaled"],
        "n_interior": [1, 7],
        "n_boundary": [0, 1],
        "sampling": ["halton", "uniform", "residual"],
        "resample": [1, None, 3],
        "observed_outputs": [[0], [5], ["u"]],
        "observation_weight": [1e-300, 1e300, "auto"],
        "problem": ["equation", "equation", "no problem"],
    },
}
SOLVERS = {
    "ShallowReLURegressor": list(SHALLOW_RELU_SOLVERS),
    "SegmentedRegressor": [None],
    "VarProNetRegressor": list(NETWORK_SOLVERS),
    "VarProNetClassifier": list(NETWORK_SOLVERS),
    "FGNSoftmaxHead": list(SOFTMAX_HEAD_SOLVERS),
    "PINNSolver": list(PINN_SOLVERS),
}
# What the tests choose from: each further solver, precision or network compiles anew.
FEW_SOLVERS = {
    "ShallowReLURegressor": ["vpgn"],
    "SegmentedRegressor": [None],
    "VarProNetRegressor": ["gnvpro"],
    "VarProNetClassifier": ["gnvpro"],
    "FGNSoftmaxHead": ["fgn_newton"],
    "PINNSolver": ["dngd"],
}
FEW_VALUES = {
    "activation": ["nothing", ("tanh", "relu")],
    "dtype": ["float64"],
    "hidden_layer_sizes": [("3",), (0,), (-1,), [[2]]],
    "network": ["mlp"],
}

# A few iterations show how a solver takes hostile data; the size does not matter.
SMALL = {
    "ShallowReLURegressor": {"max_iter": 5},
    "SegmentedRegressor": {},
    "VarProNetRegressor": {"max_iter": 5},
    "VarProNetClassifier": {"max_iter": 5},
    "FGNSoftmaxHead": {"max_iter": 5},
    "PINNSolver": {
        "hidden_layer_sizes": (3,),
        "n_interior": 7,
        "n_boundary": 2,
        "max_iter": 3,
    },
}
CLASSES = {
    cls.__name__: cls
    for cls in (
        FGNSoftmaxHead,
        PINNSolver,
        SegmentedRegressor,
        ShallowReLURegressor,
        VarProNetClassifier,
        VarProNetRegressor,
    )
}


# --- the case ------------------------------------------------------------------------


def draw(name, choose, *, shapes=SHAPES, solvers=None, fixed=None):
    """Return the choices of one case.

    Parameters
    ----------
    name : str
        Of the estimator.
    choose : callable
        Returns one element of a list.
    shapes : list of (int, int), default=SHAPES
    solvers : list of str or None, default=None
        If None, all that the estimator has.
    fixed : dict of lists, default=None
        Values of parameters to choose from, in place of those of ``PARAMETERS``.
    """
    fixed = {key: fixed[key] for key in PARAMETERS[name] if key in (fixed or {})}
    parameters = {**PARAMETERS[name], **fixed}
    extreme = [choose([None, *parameters]) for _ in range(2)]
    layout, kind = choose(LAYOUTS), choose(KINDS)
    case = {
        "estimator": name,
        "solver": choose(SOLVERS[name] if solvers is None else solvers),
        "shape": choose(shapes),
        "content": choose(CONTENTS),
        "x_exponent": choose(EXPONENTS),
        "y_exponent": choose(EXPONENTS),
        "y": choose(LABELS if name in CLASSIFIERS else TARGETS),
        "kind": kind,
        # A TypeError of scikit-learn's own ends complex numbers in a list.
        "layout": "C" if kind == "complex" else layout,
        "weights": choose(WEIGHTS),
        "damage": choose(DAMAGE),
        "seed": choose([0, 1, 2, 3]),
    }
    changed = {key: choose(parameters[key]) for key in extreme if key is not None}
    return {**case, "parameters": changed}


def features(case, rng):
    """Features in float64, as the content and the scale of the case say."""
    m, p = case["shape"]
    X, content = rng.standard_normal((m, p)), case["content"]
    if content == "ties":
        X = np.round(X)
    elif content == "constant column":
        X[:, 0] = 1.5
    elif content == "all constant":
        X[:] = 1.5
    elif content == "collinear" and p > 1:
        X[:, -1] = X[:, :-1].sum(axis=1)
    elif content == "duplicated columns":
        X[:] = X[:, :1]
    elif content == "duplicated rows":
        X[:] = X[:1]
    elif content == "large offset":
        X = 1e9 + X
    elif content == "one outlier":
        X[0] = 1e6
    elif content == "scales by column":
        X *= 10.0 ** rng.integers(-100, 100, p)
    return X * 10.0 ** case["x_exponent"]


def targets(case, X, rng):
    """Targets, or labels, of the case."""
    m, kind = len(X), case["y"]
    if case["estimator"] in CLASSIFIERS:
        code = rng.integers(0, 3, m)
        code[: min(m, 3)] = np.arange(min(m, 3))
        labels = np.array(["a", "b", "c"], dtype=object)
        return {
            "integers": code,
            "objects": labels[code],
            "booleans": code > 0,
            "floats": code.astype(float),
            "one class": np.zeros(m, int),
            "mixed types": np.array(["a", 1, "b"], dtype=object)[code],
            "a class a row": np.arange(m),
            "None among them": np.array(["a", None, "b"], dtype=object)[code],
        }[kind]
    z = X[:, 0] / 10.0 ** case["x_exponent"]
    noise = rng.standard_normal(m)
    y = {
        "line": z,
        "kink": np.abs(z) + 0.1 * noise,
        "noise": noise,
        "constant": np.ones(m),
        "one outlier": np.where(np.arange(m) == 0, 1e8, noise),
        "ties": np.round(noise),
        "two columns": np.column_stack([z, noise]),
    }[kind]
    return y * 10.0 ** case["y_exponent"]


def weights(case, rng):
    """Sample weights of the case, or None."""
    m, kind = case["shape"][0], case["weights"]
    return {
        None: None,
        "ones": np.ones(m),
        "some zero": (np.arange(m) % 2).astype(float),
        "all zero": np.zeros(m),
        "one positive": (np.arange(m) == m - 1).astype(float),
        "1e308": np.full(m, 1e308),
        "1e-308": np.full(m, 1e-308),
        "5e-324": np.full(m, 5e-324),
        "1e-300 to 1e300": 10.0 ** rng.integers(-300, 300, m),
        "integers": rng.integers(0, 4, m),
    }[kind]


def data(case):
    """``X``, ``y`` and weights as the user of the case would give them."""
    rng = np.random.default_rng(case["seed"])
    with np.errstate(all="ignore"):
        X = features(case, rng)
        y = targets(case, X, rng)
        weight = weights(case, rng)
        damage = case["damage"] or ""
        value = {"NaN": np.nan, "inf": -np.inf, "largest": np.finfo(float).max}.get(
            damage.split(" ")[0]
        )
        if damage.endswith("in X"):
            X[-1, -1] = value
        elif damage.endswith("in y") and case["estimator"] not in CLASSIFIERS:
            y[-1] = value
        elif damage.endswith(("weights", "weight")):
            weight = np.ones(len(X))
            weight[0] = -1.0 if value is None else value
        elif damage == "short y":
            y = y[:-1]
        return with_layout(of_kind(X, case["kind"]), case["layout"]), y, weight


def of_kind(X, kind):
    """The features in another dtype; values that it lacks become what numpy makes."""
    return X.astype(str).astype(object) if kind == "str" else X.astype(kind)


def with_layout(X, layout):
    """The features in another order of memory, or in another container."""
    if layout == "F":
        return np.asfortranarray(X)
    if layout == "strided":
        return np.repeat(np.repeat(X, 2, axis=0), 3, axis=1)[::2, ::3]
    if layout == "reversed":
        return X[::-1].copy()[::-1]
    if layout == "read-only":
        X.setflags(write=False)
        return X
    if layout == "list":
        return X.tolist()
    names = [f"f{i}" for i in range(X.shape[1])]
    if layout == "pandas":
        return pd.DataFrame(X, columns=names)
    if layout == "polars":
        import polars as pl

        # Polars knows no complex numbers and one order of bytes.
        known = X.dtype.isnative and X.dtype.kind != "c"
        return pl.DataFrame(X, schema=names, orient="row") if known else X
    return X


def model(case):
    """The estimator of the case."""
    name = case["estimator"]
    words = {**SMALL[name], "random_state": 0}
    if case["solver"] is not None:
        words["solver"] = case["solver"]
    if name == "SegmentedRegressor":
        words.pop("random_state")
    words |= case["parameters"]
    if name == "PINNSolver":
        words["problem"] = None
        if case["parameters"].get("problem") == "equation":
            box = Box(**{f"f{i}": (0, 1) for i in range(case["shape"][1])})
            words["problem"] = Problem(_decay, box, (Dirichlet(1.0),))
    return CLASSES[name](**words)


def _decay(u, x):
    return d(u, "f0") + u


# --- the outcome ---------------------------------------------------------------------


class Hang(BaseException):
    """A case that took too long."""


@contextmanager
def limited(seconds):
    """Raise :class:`Hang` after some seconds, where signals can be had."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*about):
        raise Hang(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def violation(case, seconds=SECONDS):
    """Fit and predict; return what is wrong with the outcome, or None.

    Right is: finite predictions, or a ValueError that this package or the validation
    of scikit-learn raises. Wrong is: NaN, an error of any other kind or from elsewhere,
    a RuntimeWarning, a hang.
    """
    with warnings.catch_warnings(record=True) as seen, limited(seconds):
        warnings.simplefilter("always")
        try:
            X, y, weight = data(case)
            estimator = model(case)
            estimator.fit(X, y, sample_weight=weight)
            wrong = predictions_wrong(estimator, case, X)
        except (Hang, Exception) as error:
            wrong = error_wrong(error)
    if wrong:
        return wrong
    for one in seen:
        if not issubclass(one.category, ConvergenceWarning | UserWarning):
            where = f"{os.path.basename(one.filename)}:{one.lineno}"
            return f"{one.category.__name__} {one.message} at {where}"
    return None


def error_wrong(error):
    """What is wrong with an error: anything but a ValueError of ours that is clear."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{frame.filename.rpartition('site-packages')[2]}:{frame.lineno}"
    if not isinstance(error, ValueError) or isinstance(error, NotFittedError):
        return f"{type(error).__name__}: {str(error)[:200]} at {where}"
    ours = f"{os.sep}sklearn_gn{os.sep}" in frame.filename
    validation = f"{os.sep}sklearn{os.sep}utils{os.sep}" in frame.filename
    if not (ours or validation) or not str(error):
        return f"foreign ValueError: {str(error)[:200]} at {where}"
    return None


def predictions_wrong(estimator, case, X):
    """What is wrong with the predictions, at the rows of the fit and far away."""
    n_features, unknown = case["shape"][1], noise_is_unknown(estimator)
    far = np.random.default_rng(1).standard_normal((3, n_features)) * 1e200
    for rows, name in ((X, "training rows"), (far, "rows of 1e200")):
        if name != "training rows" and hasattr(X, "columns"):
            rows = type(X)(dict(zip(X.columns, rows.T, strict=True)))
        y = estimator.predict(rows)
        if case["estimator"] in CLASSIFIERS:
            p_hat = estimator.predict_proba(rows)
            if not np.allclose(p_hat.sum(axis=1), 1, atol=1e-12):
                return f"probabilities at {name} do not sum to one"
            continue
        if not np.isfinite(np.asarray(y, float)).all():
            return f"predictions at {name} are not finite"
        for numbers in (
            estimator.predict(rows, return_std=True)[1],
            *(
                estimator.predict_interval(rows)
                if hasattr(estimator, "predict_interval")
                else ()
            ),
        ):
            if np.any(np.isnan(numbers) != unknown):
                known = "known" if unknown else "NaN"
                return f"standard deviations or intervals at {name} are {known}"
    return None


def noise_is_unknown(estimator):
    """Whether the rows are no more than the parameters, and errors are to be NaN."""
    figures = getattr(estimator, "statistics_", None)
    return figures is not None and figures["n_rows"] <= figures["n_parameters"]


if __name__ == "__main__":  # one case, as it stands in the result: to look into it
    print(violation(eval(sys.argv[1])))
