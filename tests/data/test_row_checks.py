"""Copies of rows and heavy tails of residuals, which mislead the evidence."""

import re
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn import (
    FGNSoftmaxHead,
    PINNSolver,
    ShallowReLURegressor,
    VarProNetRegressor,
)


def data(n=200):
    rng = np.random.RandomState(0)
    X = rng.randn(n, 2)
    return X, X[:, 0] + rng.randn(n)


def n_copies(X, y, weight=None):
    """Number of copies that the diagnosis of a fit names."""
    model = FGNSoftmaxHead() if y.dtype.kind == "U" else ShallowReLURegressor(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        text = str(model.set_params(max_iter=2).fit(X, y, weight).diagnose())
    found = re.search(r"(\d+) of \d+ rows repeat", text)
    return int(found[1]) if found else 0


def test_copies_are_counted_but_not_repeats_by_chance():
    X, y = data()
    drawn = np.random.RandomState(1).randint(200, size=500)
    assert n_copies(X[drawn], y[drawn]) == 500 - len(np.unique(drawn))
    weight = np.zeros(500)
    weight[np.unique(drawn, return_index=True)[1]] = 2.0  # one row of each
    assert n_copies(X[drawn], y[drawn], weight) == 0
    coarse = np.round(X)
    assert n_copies(coarse, np.round(y, 1)) == 0
    labels = np.where(y > 0, "a", "b")
    assert n_copies(X[drawn], labels[drawn]) > 0


def test_frequent_targets_of_few_different_rows_are_no_copies():
    rng = np.random.RandomState(0)
    coarse = rng.randint(3, size=(500, 2)).astype(float)
    rare = np.where(rng.uniform(size=500) < 0.1, "ill", "well")
    counts = rng.poisson(0.3, 500).astype(float)
    assert n_copies(coarse, rare) == 0
    assert n_copies(coarse, counts) == 0
    X, _ = data()
    twice = np.tile(np.arange(200), 2)  # of other features they are
    assert n_copies(X[twice], rare[twice]) == 200


def outliers_of(X, y, weight=None):
    """What the diagnosis of a linear fit says of outliers."""
    model = VarProNetRegressor(hidden_layer_sizes=(), random_state=0).fit(X, y, weight)
    found = (f.text for f in model.diagnose().findings if f.cause == "outliers")
    return next(found, "")


def test_far_rows_are_named_by_their_numbers_in_the_data():
    X, _ = data()
    y = np.random.RandomState(2).randn(200)
    assert outliers_of(X, y) == ""
    y[[7, 150, 30]] += 40, -60, 50
    text = outliers_of(X, y)
    assert "3 of 200 rows lie" in text
    assert "Look at rows 150, 30, 7." in text
    share = np.sum(y[[7, 30, 150]] ** 2) / np.sum(y**2)
    assert f"hold {share:.0%} of the squares" in text
    weight = np.ones(200)
    weight[[7, 30, 150]] = 1e-4
    assert outliers_of(X, y, weight) == ""
    weight[[7, 30, 150]], weight[0] = 1.0, 0.0  # numbers count rows without weight
    assert "Look at rows 150, 30, 7." in outliers_of(X, y, weight)
    assert "np.log" in outliers_of(X, np.exp(3 * data()[1]))
    y = np.abs(np.random.RandomState(2).randn(200)) + 5
    y[7] = 5000  # whose logarithm is still far
    assert "np.log" not in outliers_of(X, y)


def test_small_errors_of_an_approximation_are_no_outliers():
    X, _ = data()
    error = 1e-4 * np.random.RandomState(2).randn(200)
    error[:3] = 5e-3
    assert outliers_of(X, X[:, 0] + error) == ""
    error[:3] = 0.5
    text = outliers_of(X, X[:, 0] + error)
    assert "3 of 200 rows" in text
    assert "the model is too coarse there" in text


@pytest.mark.parametrize(
    "model",
    [
        ShallowReLURegressor(random_state=0, max_iter=6, tol=0),
        VarProNetRegressor(random_state=0, max_iter=6, tol=0),
        PINNSolver(None, hidden_layer_sizes=(3,), random_state=0, max_iter=6, tol=0),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_regression_by_the_evidence_says_so(model):
    X, y = data(60)
    assert not {"copies", "outliers"} & causes(model.fit(X, y))
    y[5] += 100
    twice = np.concatenate([np.arange(60), np.arange(20, 60)])
    model.fit(X[twice], y[twice])
    assert {"copies", "outliers"} <= causes(model)
    text = str(model.diagnose())
    assert "40 of 100 rows repeat other rows" in text
    assert "row 5." in text


def causes(model):
    return {finding.cause for finding in model.diagnose().findings}


def test_copies_in_a_classifier_have_no_intervals_to_narrow():
    X, y = data(60)
    twice = np.tile(np.arange(60), 2)
    head = FGNSoftmaxHead().fit(X[twice], y[twice] > 0)
    assert "copies" in causes(head)
    assert "interval" not in str(head.diagnose())
