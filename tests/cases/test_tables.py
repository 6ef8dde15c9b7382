"""Tables as users have them, for the regressors and classifiers of tables.

The truth is known by construction, or a peer is fitted to the same rows. An expected
failure says what goes wrong today.
"""

import os
import signal

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.metrics import log_loss, r2_score
from sklearn.preprocessing import OneHotEncoder

from sklearn_gn import ShallowReLURegressor, VarProNetClassifier, VarProNetRegressor
from tests.cases.common import in_fresh_process

pytestmark = pytest.mark.filterwarnings("ignore")  # none is about what is asserted

REGRESSORS = [VarProNetRegressor, ShallowReLURegressor]


# -- Accuracy


@pytest.mark.parametrize("n_classes", [12, 24])
def test_labels_of_pure_noise(n_classes):
    excess = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(370, 41))
        y = rng.permutation(np.arange(370) % n_classes)
        model = VarProNetClassifier(random_state=0).fit(X, y)
        P = model.predict_proba(rng.normal(size=(2000, 41)))
        t = rng.integers(0, n_classes, 2000)
        frequencies = np.tile(np.bincount(y) / len(y), (2000, 1))
        ours, best = (log_loss(t, Q, labels=model.classes_) for Q in (P, frequencies))
        excess.append(ours - best)
        assert P.max() < 4 / n_classes
    assert np.mean(excess) <= 0.02, excess


@pytest.mark.parametrize("periods", [4, 5, 8])
def test_sine_without_noise(periods):
    x = np.linspace(0, 2 * np.pi * periods, 500)[:, None]
    order = np.random.default_rng(0).permutation(500)
    training, others = x[order[:400]], x[order[400:]]
    model = VarProNetRegressor(random_state=0).fit(training, np.sin(training[:, 0]))
    assert r2_score(np.sin(others[:, 0]), model.predict(others)) >= 0.99


def test_sine_with_noise():
    x, scores = np.arange(0, 50, 0.1)[:, None], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        rows = rng.permutation(500)[:400]
        y = np.sin(x[rows, 0]) + 0.2 * rng.normal(size=400)
        model = VarProNetRegressor(random_state=0).fit(x[rows], y)
        scores.append(r2_score(np.sin(x[:, 0]), model.predict(x)))
    assert np.mean(scores) >= 0.95, scores


@pytest.mark.parametrize("estimator", REGRESSORS)
@pytest.mark.parametrize(("value", "cells"), [(1e8, 1), (-1e5, 1), (999.0, 20)])
def test_corrupt_cells(estimator, value, cells):
    def truth(X):
        return np.sin(X[:, 0]) + X[:, 1] * X[:, 2]

    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(400, 5)), rng.normal(size=(2000, 5))
    y = truth(X) + 0.1 * rng.normal(size=400)
    X[:cells, 0] = value
    model = estimator(random_state=0).fit(X, y)
    # .99 without the cells, .98 with columns replaced by their ranks.
    assert r2_score(truth(Z), model.predict(Z)) >= 0.97


@pytest.mark.slow
def test_corrupt_cell_and_classes():
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(400, 5)), rng.normal(size=(2000, 5))
    y, t = (A[:, 0] + A[:, 1] * A[:, 2] > 0 for A in (X, Z))
    clean = VarProNetClassifier(random_state=0).fit(X, y).score(Z, t)
    X[0, 0] = 1e8
    assert VarProNetClassifier(random_state=0).fit(X, y).score(Z, t) >= clean - 0.02


@pytest.mark.slow
@pytest.mark.xfail(
    raises=AssertionError,
    strict=True,
    reason="what two members miss counts as noise, 1.7 in place of 1; R2 may even fall",
)
def test_more_rows_are_never_worse():
    def truth(X):
        y = 10 * np.sin(X[:, 0] * X[:, 1]) + 5 * np.abs(X[:, 2]) + 3 * X[:, 3]
        return y + 2 * (X[:, 4] > 0) + X[:, 5] ** 2

    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 20))
    y, Z = truth(X) + rng.normal(size=20_000), rng.normal(size=(10_000, 20))
    scores = []
    for n in (2_000, 8_000, 20_000):
        model = VarProNetRegressor(random_state=0).fit(X[:n], y[:n])
        scores.append(r2_score(truth(Z), model.predict(Z)))
    assert np.diff(scores).min() >= -0.003, scores
    assert abs(model.noise_std_ - 1) <= 0.15


@pytest.mark.slow
def test_intervals_where_the_noise_grows():
    held = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.uniform(0, 1, (4800, 1))
        x = X[:, 0]
        y = np.sin(6 * x) + (0.05 + 0.5 * x) * rng.normal(size=4800)
        model = VarProNetRegressor(random_state=0).fit(X[:800], y[:800])
        low, high = model.predict_interval(X[800:])
        inside = (low <= y[800:]) & (y[800:] <= high)
        third = np.floor(3 * x[800:])
        held.append([inside[third == k].mean() for k in range(3)])
    held = np.mean(held, axis=0)  # of intervals of 95 %
    assert held.min() >= 0.90, held
    assert held[0] <= 0.985, held


@pytest.mark.slow
def test_balanced_class_weights():
    bias, error = [], []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        y = (rng.uniform(size=7000) < 0.04).astype(int)
        X = rng.normal(size=(7000, 12))
        X[:, :2] += 0.9 * y[:, None]
        model = VarProNetClassifier(class_weight="balanced", random_state=0)
        P = model.fit(X[:2000], y[:2000]).predict_proba(X[2000:])[:, 1]
        # Bayes' rule for two normal distributions that are equally frequent.
        right = 1 / (1 + np.exp(-0.9 * (X[2000:, :2].sum(axis=1) - 0.9)))
        bias.append(np.mean(P - right))
        error.append(np.mean(np.abs(P - right)))
    assert abs(np.mean(bias)) <= 0.1, bias
    assert np.mean(error) <= 0.14, error


SHAPES = {
    "smooth": lambda X: np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2],
    "kink": lambda X: np.abs(X[:, 0] - 0.5) + np.maximum(X[:, 1], 0),
    "level": lambda X: 2.0 * (X[:, 0] > 0) + X[:, 1],
}


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param("smooth", marks=pytest.mark.slow),
        "kink",
        pytest.param("level", marks=pytest.mark.slow),
    ],
)
def test_units_of_the_columns(shape):
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        X, Z = rng.normal(size=(150, 4)), rng.normal(size=(500, 4))
        y = SHAPES[shape](X) + 0.3 * rng.normal(size=150)
        plain, *others = (
            VarProNetRegressor(random_state=0).fit(X * unit, y).predict(Z * unit)
            for unit in (1.0, 1e3, 1e-5)
        )
        for other in others:
            moved = np.sqrt(np.mean((other - plain) ** 2))
            assert moved <= 0.005 * plain.std()


@pytest.mark.slow
def test_noise_among_the_targets():
    together, alone = [], []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1, 1, (850, 4))
        clean = [1e-6 * np.sin(3 * X[:, 0]), 1e6 * X[:, 1] ** 2, X[:, 2] * X[:, 3]]
        errors = rng.normal(size=(850, 3)) * [1e-7, 1e5, 0.1]
        Y = np.column_stack([np.transpose(clean) + errors, rng.normal(size=850)])

        def r2(targets, X=X, Y=Y):
            model = VarProNetRegressor(random_state=0).fit(X[:350], Y[:350, targets])
            P = model.predict(X[350:])
            return r2_score(Y[350:, targets], P, multioutput="raw_values")

        together.append(r2([0, 1, 2, 3]))
        alone.append([r2(k).item() for k in range(4)])
    together, alone = np.mean(together, axis=0), np.mean(alone, axis=0)
    assert together[3] >= -0.03, together
    assert (together[:3] >= alone[:3] - 0.02).all(), (together, alone)


# -- Seconds


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="timers of POSIX")
def test_seconds_of_a_given_penalty(tmp_path):
    # The timer ends the process after three times the seconds of "auto", at least 2.
    run = in_fresh_process(
        """
import signal
import time
import numpy as np
from sklearn_gn import ShallowReLURegressor
rng = np.random.default_rng(0)
X = rng.normal(size=(120, 2))
y = 50 * X[:, 0] + 20 * X[:, 1] + 60 * rng.normal(size=120)
ShallowReLURegressor(random_state=0).fit(X[:50], y[:50])  # imports
start = time.process_time()
ShallowReLURegressor(random_state=0).fit(X, y)
auto = max(time.process_time() - start, 0.2)
signal.setitimer(signal.ITIMER_PROF, 3 * auto)
ShallowReLURegressor(alpha=0.1, random_state=0).fit(X, y)
""",
        tmp_path,
    )
    assert run.returncode != -signal.SIGPROF
    if run.returncode:
        raise RuntimeError(run.stderr[-2000:])


# -- New kinds of input


@pytest.mark.xfail(
    raises=ValueError, strict=True, reason="one label a row: y must be one column"
)
def test_several_labels():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 5))
    product, total = X[:, 1] * X[:, 2], X[:, 3] + X[:, 4]
    Y = np.column_stack([X[:, 0] > 0, product > 0, total > 0.5])
    model = VarProNetClassifier(random_state=0).fit(X[:400], Y[:400].astype(int))
    predicted = model.predict(X[400:])
    assert predicted.shape == (500, 3)
    assert np.mean(predicted == Y[400:], axis=0).min() >= 0.88
    assert np.shape(model.predict_proba(X[400:])) == (500, 3)


@pytest.mark.xfail(
    raises=ValueError, strict=True, reason="NaN is refused, in fit and predict"
)
@pytest.mark.parametrize(
    ("estimator", "trees"),
    [
        (VarProNetRegressor, HistGradientBoostingRegressor),
        (ShallowReLURegressor, HistGradientBoostingRegressor),
        (VarProNetClassifier, HistGradientBoostingClassifier),
    ],
)
def test_missing_values(estimator, trees):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 4))
    clean = np.sin(X[:, 0]) + X[:, 1] + 0.5 * X[:, 2] ** 2
    y = clean + 0.2 * rng.normal(size=1500)
    if estimator is VarProNetClassifier:
        y = y > 0.5
    X[rng.uniform(size=X.shape) < 0.15] = np.nan
    peer = trees(random_state=0).fit(X[:500], y[:500])
    model = estimator(random_state=0).fit(X[:500], y[:500])
    predicted = model.predict(X[500:])
    assert np.isfinite(predicted).all()
    assert model.score(X[500:], y[500:]) >= peer.score(X[500:], y[500:]) - 0.02


@pytest.mark.xfail(
    raises=ValueError, strict=True, reason="a column of names must be encoded before"
)
@pytest.mark.parametrize(
    ("estimator", "least"),  # with the effects known: R2 .97, accuracy .935
    [
        (VarProNetRegressor, 0.93),
        (ShallowReLURegressor, 0.93),
        (VarProNetClassifier, 0.91),
    ],
)
@pytest.mark.parametrize("kind", ["category", "object"])
def test_categories(estimator, least, kind):
    rng = np.random.default_rng(0)
    town, x = rng.integers(0, 8, 900), rng.normal(size=900)
    y = rng.normal(size=8)[town] + np.abs(x) + 0.2 * rng.normal(size=900)
    if estimator is VarProNetClassifier:
        y = y > np.median(y)
    names = pd.Series([f"town {k}" for k in town], dtype=kind)
    X = pd.DataFrame({"town": names, "x": x})
    model = estimator(random_state=0).fit(X[:500], y[:500])
    assert model.score(X[500:], y[500:]) >= least


@pytest.mark.xfail(raises=TypeError, strict=True, reason="sparse columns are refused")
@pytest.mark.parametrize("estimator", REGRESSORS)
def test_sparse_columns(estimator):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 6, (400, 2))
    effects = rng.normal(size=6)[codes[:, 0]] * rng.normal(size=6)[codes[:, 1]]
    y = effects + 0.1 * rng.normal(size=400)
    X = OneHotEncoder().fit_transform(codes)
    ours = estimator(random_state=0).fit(X, y).predict(X)
    dense = estimator(random_state=0).fit(X.toarray(), y).predict(X.toarray())
    np.testing.assert_allclose(ours, dense, rtol=0, atol=0.01 * np.std(y))


# -- Names and methods of scikit-learn's networks


@pytest.mark.xfail(
    raises=ValueError, strict=True, reason="the sigmoid has another name here"
)
def test_the_name_logistic():
    X = np.random.default_rng(0).normal(size=(100, 2))
    y = np.tanh(X[:, 0])
    model = VarProNetRegressor(activation="logistic", random_state=0).fit(X, y)
    assert model.score(X, y) >= 0.99


@pytest.mark.xfail(
    raises=AttributeError, strict=True, reason="rows in pieces need fit_chunks"
)
def test_partial_fit():
    X = np.random.default_rng(0).normal(size=(1000, 2))
    y = np.sin(X[:, 0]) + X[:, 1]
    model = VarProNetRegressor(random_state=0)
    for rows in np.split(np.arange(1000), 10):
        model.partial_fit(X[rows], y[rows])
    assert model.score(X, y) >= 0.95
