"""The scans of ``cliffs``: one quantity varies, all else is fixed.

The laws are drawn so that points of a scan are nested: a point with more rows, columns
or classes has those of the points before it. All points of a draw have the same test
rows, hence scores of neighbours can be compared in pairs. Run as a script, the module
computes one scan and prints its figures as JSON.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import sklearn_gn
from benchmarks._report import progress
from benchmarks._timing import stages

N_TEST = 4_000
ROWS = (60, 90, 125, 180, 250, 350, 500, 700, 1_000, 1_400, 2_000, 2_800, 4_000)
MANY_ROWS = (*ROWS, 5_600, 8_000, 11_000, 16_000, 20_000)
FEW = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PERIODS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.5, 8.0, 10.0, 13.0, 16.0, 20.0)
NOISE = (0.0, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0)
ALPHAS = ("auto", *(10.0**k for k in range(-6, 2)))
SHOTS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 60)
LAST_ROWS = (3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 32, 40)
DENSE = 400  # rows a column from which on the law itself is what can be reached

# Causes of diagnose() by which a fit says that it has not found all there is. "points"
# and "noise" are not among them: they blame the data.
ADMISSIONS = {
    "lack of fit",
    "overfitting",
    "iterations",
    "time",
    "stopped",
    "steps",
    "breakpoints",
}


class Scan(NamedTuple):
    """One quantity, its values, and the fit at a value.

    Attributes
    ----------
    description : str
    points : tuple
        Values of the quantity, in its order.
    fit : callable
        ``fit(estimator, value, draw)`` returns the figures of one fit.
    draws : int
        Number of data sets.
    minutes : float
        CPU time of the scan.
    more : bool
        Whether a larger value means more data of the same law.
    grows : bool
        Whether the work is proportional to the value.
    is_spread : bool
        Whether the values are random states.
    """

    description: str
    points: tuple
    fit: Callable
    draws: int
    minutes: float
    more: bool = False
    grows: bool = False
    is_spread: bool = False


# --- figures of one fit --------------------------------------------------------------


def normal(draw, part, *shape):
    """Normal numbers of a draw; in a larger first dimension these come first."""
    return np.random.default_rng([draw, part]).normal(size=shape)


def cpu_seconds(model, X, y):
    """Fit a model; return the CPU seconds of a fit that compiles nothing."""
    seconds = 0.0
    for fitted in (model, clone(model)):
        stages()
        start = time.process_time()
        fitted.fit(X, y)
        seconds = time.process_time() - start
        if sum(stages().values()) == 0:
            break
    return seconds


def regression(model, data, test, reference=np.nan):
    """R2 against the truth at the test rows, and whether the fit admits its limits."""
    X, y = data
    X_test, truth = test
    seconds = cpu_seconds(model, X, y)
    causes = {finding.cause for finding in model.diagnose().findings}
    return {
        "r2": r2(truth, model.predict(X_test)),
        "r2_baseline": r2(truth, np.mean(y)),
        "r2_reference": reference,
        "admits": float(bool(causes & ADMISSIONS)),
        "seconds": seconds,
    }


def r2(truth, predicted):
    return 1 - np.mean((truth - predicted) ** 2) / np.var(truth)


def classification(model, data, test):
    """Log loss of the test rows, and that of the frequencies of the classes."""
    X, y = data
    X_test, y_test = test
    seconds = cpu_seconds(model, X, y)
    n_classes = 1 + max(y.max(), y_test.max())
    P = np.zeros((len(X_test), n_classes))
    P[:, model.classes_] = model.predict_proba(X_test)
    frequencies = np.bincount(y, minlength=n_classes) / len(y)
    return {
        "log_loss": log_loss(P[np.arange(len(y_test)), y_test]),
        "log_loss_baseline": log_loss(frequencies[y_test]),
        "seconds": seconds,
    }


def log_loss(of_labels):
    return -np.mean(np.log(np.maximum(of_labels, 1e-15)))


def least_squares(columns, y, test_columns):
    """Prediction of a law whose shape is known."""
    return test_columns @ np.linalg.lstsq(columns, y, rcond=None)[0]


# --- regression ----------------------------------------------------------------------


def mixed_law(X):
    """Products, kinks and a step in six of the columns."""
    smooth = 10 * np.sin(X[:, 0] * X[:, 1]) + 3 * X[:, 3] + X[:, 5] ** 2
    return smooth + 5 * np.abs(X[:, 2]) + 2 * (X[:, 4] > 0)


def short_law(X):
    return np.sin(2 * X[:, 0]) + np.abs(X[:, 1])


def of_mixed_law(model, n_rows, draw):
    X, X_test = normal(draw, 0, n_rows, 20), normal(draw, 1, N_TEST, 20)
    y = mixed_law(X) + normal(draw, 2, n_rows)
    reference = 1.0 if n_rows >= DENSE * 20 else np.nan
    return regression(model, (X, y), (X_test, mixed_law(X_test)), reference)


def regression_rows(estimator, n_rows, draw):
    return of_mixed_law(estimator(random_state=draw), n_rows, draw)


def regression_seeds(estimator, seed, draw, n_rows):
    return of_mixed_law(estimator(random_state=seed), n_rows, draw)


def regression_columns(estimator, n_columns, draw):
    X, X_test = normal(draw, 0, n_columns, 400).T, normal(draw, 1, n_columns, N_TEST).T
    y = short_law(X) + 0.3 * normal(draw, 2, 400)
    model = estimator(random_state=draw)
    return regression(model, (X, y), (X_test, short_law(X_test)))


def regression_noise(estimator, noise, draw):
    X, X_test = normal(draw, 0, 300, 2), normal(draw, 1, N_TEST, 2)
    y, truth = short_law(X), short_law(X_test)
    y = y + noise * np.std(y) * normal(draw, 2, 300)
    process = GaussianProcessRegressor(
        RBF([1.0, 1.0]) + WhiteKernel(0.1, (1e-8, 1e2)), normalize_y=True
    )
    reached = r2(truth, process.fit(X, y).predict(X_test))
    model = estimator(random_state=draw)
    return regression(model, (X, y), (X_test, truth), reached)


def regression_alpha(estimator, alpha, draw):
    X, X_test = normal(draw, 0, 120, 2), normal(draw, 1, N_TEST, 2)
    y, truth = short_law(X) + 0.5 * normal(draw, 2, 120), short_law(X_test)
    model, reached = estimator(alpha=alpha, random_state=draw), np.nan
    if alpha != "auto":
        # A penalty means what the units of the features make of it.
        activation, units = {
            "VarProNetRegressor": ("tanh", StandardScaler()),
            "ShallowReLURegressor": ("relu", MinMaxScaler((-1, 1))),
        }[estimator.__name__]
        network = MLPRegressor(
            hidden_layer_sizes=(20,),
            activation=activation,
            solver="lbfgs",
            alpha=len(X) * alpha,
            max_iter=5000,
            random_state=draw,
        )
        network = make_pipeline(units, network)
        network = TransformedTargetRegressor(network, transformer=StandardScaler())
        reached = r2(truth, network.fit(X, y).predict(X_test))
    return regression(model, (X, y), (X_test, truth), reached)


def sine(estimator, periods, draw, noise):
    """Periods of a sine at 400 random positions; the reference knows their length."""
    x = np.sort(np.random.default_rng([draw, 0]).uniform(size=400))
    x_test = np.linspace(x[0], x[-1], N_TEST)

    def waves(x):
        angle = 2 * np.pi * periods * x
        return np.column_stack([np.ones(len(x)), np.sin(angle), np.cos(angle)])

    truth = waves(x_test)[:, 1]
    y = waves(x)[:, 1] + noise * normal(draw, 2, 400)
    reached = r2(truth, least_squares(waves(x), y, waves(x_test)))
    model = estimator(random_state=draw)
    return regression(model, (x[:, None], y), (x_test[:, None], truth), reached)


# --- broken lines --------------------------------------------------------------------


def breakpoints(estimator, n_kinks, draw):
    """A zigzag of constant height; the reference knows the positions of the kinks."""
    x, x_test = np.linspace(0, 1, 400), np.linspace(0, 1, N_TEST)
    ends = np.linspace(0, 1, n_kinks + 2)
    heights = np.arange(n_kinks + 2) % 2.0

    def hats(x):
        return np.array([np.interp(x, ends, hat) for hat in np.eye(n_kinks + 2)]).T

    truth = hats(x_test) @ heights
    y = hats(x) @ heights + 0.1 * normal(draw, 0, 400)
    reached = r2(truth, least_squares(hats(x), y, hats(x_test)))
    model = estimator()
    found = regression(model, (x[:, None], y), (x_test[:, None], truth), reached)
    return {**found, "share": float(len(model.breakpoints_) == n_kinks)}


def last_rows(estimator, n_last, draw):
    """A level of 300 rows, then a slope; the reference goes by the BIC.

    Right is one breakpoint within two rows of the kink.
    """
    x = np.arange(300.0 + n_last)
    y = np.maximum(x - 299.5, 0.0) + normal(draw, 0, len(x))
    model = estimator()
    seconds = cpu_seconds(model, x[:, None], y)
    line = np.column_stack([np.ones(len(x)), x])

    def squares(columns):
        return np.sum((y - least_squares(columns, y, columns)) ** 2)

    kinks = x[-60:-2]
    broken = [
        squares(np.column_stack([line, np.maximum(x - kink, 0.0)])) for kink in kinks
    ]
    by_bic = len(x) * np.log(squares(line) / min(broken)) > 2 * np.log(len(x))
    best = kinks[np.argmin(broken) : np.argmin(broken) + by_bic]
    return {
        "share": float(is_near(model.breakpoints_, 299.5)),
        "share_reference": float(is_near(best, 299.5)),
        "seconds": seconds,
    }


def is_near(breakpoints, kink):
    return len(breakpoints) == 1 and abs(breakpoints[0] - kink) <= 2


# --- classes -------------------------------------------------------------------------


def labels_of(X, draw, part):
    """Three classes, whose logits are a product, a kink and a line."""
    logits = [2 * np.sin(X[:, 0] * X[:, 1]), np.abs(X[:, 2]), X[:, 3]]
    gumbel = np.random.default_rng([draw, part]).gumbel(size=(len(X), 3))
    return np.argmax(np.transpose(logits) + gumbel, axis=1)


def table_rows(estimator, n_rows, draw):
    X, X_test = normal(draw, 0, n_rows, 8), normal(draw, 1, N_TEST, 8)
    data, test = (X, labels_of(X, draw, 2)), (X_test, labels_of(X_test, draw, 3))
    return classification(estimator(random_state=draw), data, test)


def table_columns(estimator, n_columns, draw):
    X, X_test = normal(draw, 0, n_columns, 600).T, normal(draw, 1, n_columns, N_TEST).T
    data, test = (X, labels_of(X, draw, 2)), (X_test, labels_of(X_test, draw, 3))
    return classification(estimator(random_state=draw), data, test)


def clusters(n_rows, n_columns, n_classes, draw, distance, n_kept=None):
    """Rows and test rows of a normal cluster a class, with ``n_kept`` columns."""
    centres = distance * normal(draw, 4, n_classes, n_columns)
    y, y_test = np.arange(n_rows) % n_classes, np.arange(N_TEST) % n_classes
    X = centres[y] + normal(draw, 0, n_rows, n_columns)
    X_test = centres[y_test] + normal(draw, 1, N_TEST, n_columns)
    return (X[:, :n_kept], y), (X_test[:, :n_kept], y_test)


def head_rows(estimator, n_rows, draw):
    model = estimator(random_state=draw)
    return classification(model, *clusters(n_rows, 64, 20, draw, 0.3))


def head_columns(estimator, n_columns, draw):
    model = estimator(random_state=draw)
    return classification(model, *clusters(600, 128, 10, draw, 0.5, n_columns))


def shots(estimator, n_shots, draw, n_classes, n_columns):
    model, n_rows = estimator(random_state=draw), n_shots * n_classes
    return classification(model, *clusters(n_rows, n_columns, n_classes, draw, 0.3))


def classes(estimator, n_classes, draw, n_rows, n_columns, distance):
    model = estimator(random_state=draw)
    data = clusters(n_rows, n_columns, n_classes, draw, distance)
    return classification(model, *data)


def head_alpha(estimator, alpha, draw):
    data, test = clusters(500, 32, 10, draw, 0.4)
    found = classification(estimator(alpha=alpha, random_state=draw), data, test)
    if alpha == "auto":
        return {**found, "log_loss_reference": np.nan}
    same = LogisticRegression(C=1 / (500 * alpha), tol=1e-8, max_iter=20_000)
    reached = same.fit(*data).predict_proba(test[0])
    reached = log_loss(reached[np.arange(len(test[1])), test[1]])
    return {**found, "log_loss_reference": reached}


# --- all of them ---------------------------------------------------------------------


def scans():
    """All scans, by ``quantity.Estimator``."""
    regressors = ("VarProNetRegressor", "ShallowReLURegressor")
    seeds = partial(regression_seeds, n_rows=8_000)
    more_seeds = partial(regression_seeds, n_rows=16_000)
    columns = (*FEW, 96, 128)
    rows = "rows of a sum of products, kinks and a step, 20 columns, noise"
    of_rows = {"more": True, "grows": True}
    found = {
        "rows.VarProNetRegressor": Scan(
            rows, MANY_ROWS, regression_rows, 4, 2.0, **of_rows
        ),
        "rows.ShallowReLURegressor": Scan(
            rows, MANY_ROWS, regression_rows, 4, 3.0, **of_rows
        ),
        "rows.VarProNetClassifier": Scan(
            "rows of three classes, 8 columns", MANY_ROWS, table_rows, 4, 5.5, **of_rows
        ),
        "rows.FGNSoftmaxHead": Scan(
            "rows of 20 clusters, 64 columns", MANY_ROWS, head_rows, 4, 1.0, **of_rows
        ),
        "columns.VarProNetClassifier": Scan(
            "columns, of which four matter; 600 rows, three classes",
            columns[2:],
            table_columns,
            4,
            2.0,
            grows=True,
        ),
        "columns.FGNSoftmaxHead": Scan(
            "columns of 10 clusters, 600 rows",
            columns,
            head_columns,
            4,
            0.5,
            grows=True,
        ),
        "classes.VarProNetClassifier": Scan(
            "clusters in 8 columns, 600 rows",
            FEW[:-1],
            partial(classes, n_rows=600, n_columns=8, distance=1.5),
            3,
            1.0,
            grows=True,
        ),
        "classes.FGNSoftmaxHead": Scan(
            "clusters in 64 columns, 2,000 rows",
            (*columns, 192, 256),
            partial(classes, n_rows=2_000, n_columns=64, distance=0.4),
            3,
            1.0,
            grows=True,
        ),
        "shots.FGNSoftmaxHead": Scan(
            "rows a class, 50 clusters in 256 columns",
            SHOTS,
            partial(shots, n_classes=50, n_columns=256),
            4,
            1.5,
            **of_rows,
        ),
        "shots_of_ten.FGNSoftmaxHead": Scan(
            "rows a class, 10 clusters in 512 columns",
            SHOTS,
            partial(shots, n_classes=10, n_columns=512),
            4,
            1.0,
            **of_rows,
        ),
        "alpha.FGNSoftmaxHead": Scan(
            "penalty, 10 clusters in 32 columns, 500 rows", ALPHAS, head_alpha, 4, 0.5
        ),
        "breakpoints.SegmentedRegressor": Scan(
            "kinks of a zigzag, 400 rows", tuple(range(13)), breakpoints, 10, 1.0
        ),
        "last_rows.SegmentedRegressor": Scan(
            "rows after the only kink, which has 300 rows before it",
            LAST_ROWS,
            last_rows,
            40,
            0.5,
            more=True,
        ),
        "random_state.VarProNetRegressor": Scan(
            f"8,000 {rows}", tuple(range(6)), seeds, 1, 0.5, is_spread=True
        ),
        "random_state_16000.VarProNetRegressor": Scan(
            f"16,000 {rows}", tuple(range(4)), more_seeds, 1, 0.5, is_spread=True
        ),
    }
    for name in regressors:
        found |= {
            f"columns.{name}": Scan(
                "columns, of which two matter; 400 rows, noise .3",
                columns,
                regression_columns,
                4,
                1.0,
                grows=True,
            ),
            f"noise.{name}": Scan(
                "noise over the deviation of the law; 300 rows, two columns",
                NOISE,
                regression_noise,
                4,
                0.7,
            ),
            f"periods.{name}": Scan(
                "periods of a sine, 400 rows, no noise",
                PERIODS,
                partial(sine, noise=0.0),
                4,
                2.0,
            ),
            f"periods_noisy.{name}": Scan(
                "periods of a sine, 400 rows, noise .2",
                PERIODS,
                partial(sine, noise=0.2),
                4,
                0.7,
            ),
            f"alpha.{name}": Scan(
                "penalty; 120 rows, two columns, noise .5",
                ALPHAS,
                regression_alpha,
                4,
                0.3,
            ),
        }
    for name in ("VarProNetClassifier", "FGNSoftmaxHead"):
        found[f"classes_noise.{name}"] = Scan(
            "classes of labels that are pure noise, 370 rows, 41 columns",
            FEW[:-3],
            partial(classes, n_rows=370, n_columns=41, distance=0.0),
            3,
            1.0,
            grows=True,
        )
    return found


def figures(name, quick=False):
    """All figures of a scan: by name, an array of shape (draws, points)."""
    scan = scans()[name]
    if quick:
        scan = scan._replace(points=scan.points[:3], draws=2)
    estimator = getattr(sklearn_gn, name.split(".")[1])
    scan.fit(estimator, scan.points[0], 0)  # imports; its seconds do not count
    found = []
    for value in scan.points:
        start = time.process_time()
        found.append([scan.fit(estimator, value, draw) for draw in range(scan.draws)])
        progress(f"{name} {value}: {time.process_time() - start:.1f} s")
    return {
        key: [[fit[key] for fit in draw] for draw in zip(*found, strict=True)]
        for key in found[0][0]
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # that a fit has not converged, diagnose() says
    print(json.dumps(figures(sys.argv[1], quick="--quick" in sys.argv)))
