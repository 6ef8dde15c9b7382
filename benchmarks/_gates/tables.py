"""Tables: regression and classification by default settings on held-out rows.

A third of the rows is held out. The generated tables hold the truth without the noise
there, and R2 is measured against that.
"""

import gzip
import io
from functools import partial
from pathlib import Path

from benchmarks._gates.common import Row, held_out_labels, left_out, timed_fits

REGRESSION = ("airfoil", "housing", "parkinsons", "sml", "wine")
CLASSIFICATION = (
    "annealing",
    "bank-marketing",
    "car-evaluation",
    "cardiotocography-3class",
    "connectionist-vowel",
    "contraceptive-method-choice",
    "glass",
    "heart-disease-processed-cleveland",
    "mammographic-mass",
    "yeast-4class",
)
GENERATED = {  # law, rows, deviation of the noise in that of the truth
    "friedman1_300": ("friedman1", 300, 0.2),
    "friedman1_5000": ("friedman1", 5000, 0.2),
    "friedman2_1000": ("friedman2", 1000, 0.5),
    "friedman3_2000": ("friedman3", 2000, 0.1),
    "thresholds_2000": ("thresholds", 2000, 0.3),
    "line_500": ("line", 500, 1.0),
    "many_columns_600": ("many_columns", 600, 0.5),
    "waves_20000": ("waves", 20_000, 0.3),
    "friedman1_200000": ("friedman1", 200_000, 0.2),
    "mixed_2000": ("mixed", 2000, 0.15),
    "mixed_20000": ("mixed", 20_000, 0.15),
    "mixed_200000": ("mixed", 200_000, 0.15),
}
GLITCHES = {"glitch_1": (-1e5, 1), "glitch_20": (999.0, 20)}  # value, cells of 400
N_SPLITS = {"glass": 4}  # of tables that are too small for one
ALTERNATING = ("chessboard", "rings", "product")  # laws of classes
REGRESSORS = {"varpro": "VarProNetRegressor", "relu": "ShallowReLURegressor"}


# --- data ----------------------------------------------------------------------------


def generated(law, n, noise):
    """Features, target with noise, and the truth."""
    import numpy as np
    from sklearn import datasets

    rng = np.random.default_rng(0)
    if law.startswith("friedman"):
        make = getattr(datasets, f"make_{law}")
        X, truth = make(n_samples=n, noise=0.0, random_state=0)
    elif law == "thresholds":
        X = rng.uniform(size=(n, 6))
        truth = 2.0 * (X[:, 0] > 0.4) + (X[:, 1] > 0.6) * (X[:, 2] > 0.3) + X[:, 3]
    elif law == "line":
        X = rng.standard_normal((n, 8))
        truth = X @ np.array([3.0, -2.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0])
    elif law == "many_columns":
        X = rng.standard_normal((n, 60))
        truth = np.tanh(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3]
    elif law == "mixed":
        X = rng.standard_normal((n, 20))
        truth = 10 * np.sin(X[:, 0] * X[:, 1]) + 5 * np.abs(X[:, 2]) + 3 * X[:, 3]
        truth += 2 * (X[:, 4] > 0) + X[:, 5] ** 2
    elif law == "wave_and_product":
        X = rng.standard_normal((n, 5))
        truth = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    else:
        X = rng.uniform(-1, 1, (n, 5))
        truth = np.sin(5 * X[:, 0]) + np.cos(4 * X[:, 1] * X[:, 2]) + X[:, 3] ** 2
    y = truth + noise * truth.std() * rng.standard_normal(n)
    return X, y, truth


def alternating(law):
    """Features and classes without noise: 750 rows, of which a third is held out."""
    import numpy as np

    n_features = 20 if law == "product" else 2
    X = np.random.default_rng(0).uniform(-2, 2, (750, n_features))
    if law == "chessboard":
        return X, np.sum(np.floor(X), axis=1) % 2
    if law == "rings":
        return X, np.floor(2 * np.hypot(*X.T)) % 3
    return X, X[:, 0] * X[:, 1] > 0


def numbers(path):
    """Features and target of a table of numbers; the target comes last."""
    import numpy as np

    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1]


def attributes(path):
    """Features and classes of an ARFF file.

    Categories become a column of 0 and 1 each. A missing number is replaced by the
    median of its column, a missing category by the most frequent one; columns without
    any value are left out.
    """
    import numpy as np
    from scipy.io import arff

    records, header = arff.loadarff(io.StringIO(Path(path).read_text()))
    names = header.names()
    target = next((name for name in names if name.lower() == "class"), names[-1])
    columns = []
    for name in names:
        column = records[name]
        if name == target:
            continue
        is_nominal = header[name][0] == "nominal"
        is_missing = column == b"?" if is_nominal else np.isnan(column)
        known = column[~is_missing]
        if not known.size:
            continue
        if is_nominal:
            values, counts = np.unique(known, return_counts=True)
            column = np.where(is_missing, values[np.argmax(counts)], column)
            columns.append(column[:, None] == values)
        else:
            columns.append(np.where(is_missing, np.median(known), column)[:, None])
    return np.hstack(columns).astype(float), records[target].astype(str)


def shipped(name):
    """A table of scikit-learn."""
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")(return_X_y=True)


# --- rows ----------------------------------------------------------------------------


def regression(estimator, load, value=0.0, cells=0):
    """Fit a regressor; R2, coverage of 95 % intervals, and seconds.

    A number of cells of the first column that are fitted may hold a wrong value. Where
    the truth is known, ``noise_ratio`` is the estimated noise over that of all rows.
    """
    import numpy as np
    from sklearn.metrics import r2_score
    from sklearn.model_selection import train_test_split

    import sklearn_gn

    X, y, *truth = load()
    rows, held_out = train_test_split(
        np.arange(len(y)), test_size=1 / 3, random_state=0
    )
    X[rows[:cells], 0] = value
    model, figures = timed_fits(
        lambda seed: getattr(sklearn_gn, estimator)(random_state=seed), X[rows], y[rows]
    )
    if truth:
        figures["noise_ratio"] = float(model.noise_std_ / np.std(y - truth[0]))
    aim = truth[0] if truth else y
    lower, upper = model.predict_interval(X[held_out], level=0.95)
    inside = (lower <= y[held_out]) & (y[held_out] <= upper)
    return {
        "r2": float(r2_score(aim[held_out], model.predict(X[held_out]))),
        "coverage": float(inside.mean()),
        **figures,
    }


def classification(load, n_splits=1):
    """Fit a classifier; log loss and accuracy, means over some splits, and seconds."""
    from statistics import mean

    from sklearn_gn import VarProNetClassifier

    def make(seed):
        return VarProNetClassifier(random_state=seed)

    found = [held_out_labels(make, *load(), 1 / 3, split) for split in range(n_splits)]
    means = {name: mean(one[name] for one in found) for name in ("log_loss", "share")}
    return {**found[0], **means}


def rows(data):
    """Every table by every estimator for it."""
    tables = {name: partial(generated, *law) for name, law in GENERATED.items()}
    tables["diabetes"] = partial(shipped, "diabetes")
    classes = {
        name: partial(shipped, name) for name in ("breast_cancer", "wine", "digits")
    }
    classes |= {law: partial(alternating, law) for law in ALTERNATING}
    folder = data and data / "tables"
    if not folder or not folder.is_dir():
        left_out("tables: those of --data")
    else:
        tables |= {n: partial(numbers, folder / f"{n}.csv.gz") for n in REGRESSION}
        classes |= {
            n: partial(attributes, folder / f"{n}.arff") for n in CLASSIFICATION
        }
    wrong = {name: {"value": v, "cells": n} for name, (v, n) in GLITCHES.items()}
    for name in wrong:
        tables[name] = partial(generated, "wave_and_product", 600, 0.1)
    found = {
        f"{name}_{short}": Row(
            f"{estimator}, {name}",
            partial(regression, estimator, load, **wrong.get(name, {})),
        )
        for name, load in tables.items()
        for short, estimator in REGRESSORS.items()
    }
    return found | {
        name: Row(
            f"VarProNetClassifier, {name}",
            partial(classification, load, N_SPLITS.get(name, 1)),
        )
        for name, load in classes.items()
    }
