"""Correlated noise is noticed, and a criterion allows for it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import toeplitz
from scipy.optimize import minimize_scalar
from scipy.signal import lfilter
from statsmodels.tsa.stattools import acf

from sklearn_gn import SegmentedRegressor

X = np.arange(150.0)[:, None]


def noise(seed, correlation=0.8):
    draws = np.random.default_rng(seed).standard_normal(250)
    return lfilter([1], [1, -correlation], draws)[100:]


def causes(model):
    return [(f.cause, f.parameter) for f in model.diagnose().findings]


@pytest.mark.filterwarnings("ignore:Neighbouring residuals")
@pytest.mark.slow
def test_correlated_noise_is_named_and_chosen_for():
    y = noise(0) + 0.3 * np.maximum(X[:, 0] - 60, 0)
    model = SegmentedRegressor(autocorrelation=None).fit(X, y)
    residual = y - model.predict(X)
    expected = (residual[1:] @ residual[:-1]) / (residual @ residual)
    assert_allclose(model.residual_correlation_, expected, rtol=1e-9)
    assert len(model.breakpoints_) > 1
    assert causes(model)[0] == ("correlation", "criterion")
    assert "not worth" not in str(model.diagnose())
    assert "add columns for the months" in str(model.diagnose())
    assert f"correlated ({expected:.2f})" in str(model.summary())
    default = SegmentedRegressor().fit(X, y)
    assert len(default.breakpoints_) == 1
    assert len(default.autocorrelation_) >= 1
    assert "Noise autoregression" in str(default.summary())
    model.set_params(criterion="bic-ar1").fit(X, y)
    assert len(model.breakpoints_) == 1
    assert causes(model)[0] == ("correlation", "covariance")
    model.set_params(covariance="HAC").fit(X, y)
    assert causes(model) == [("noise", None)]


def test_correlation_of_tied_rows_is_that_of_their_means():
    y, twice = noise(1), np.repeat(np.arange(150), 2)
    line = SegmentedRegressor(0)
    one, other = line.fit(X, y).residual_correlation_, line.fit(X[twice], y[twice])
    assert_allclose(other.residual_correlation_, one, rtol=1e-9)
    residual = y - other.predict(X)
    assert_allclose(one, acf(residual, nlags=1, adjusted=False)[1], rtol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"flat": "last"}, {"jumps": True}])
def test_criterion_is_that_of_the_exact_likelihood(settings):
    y = 50 + 7 * noise(2, 0.6)
    settings = {"breakpoints": [50.0], "n_breakpoints": "auto", **settings}
    model = SegmentedRegressor(max_breakpoints=0, criterion="bic-ar1", **settings)
    path = model.fit(X, y).selection_path_
    columns = [np.ones(150), X[:, 0], np.maximum(X[:, 0] - 50, 0), X[:, 0] >= 50]
    if "flat" in settings:
        columns = [columns[0], np.minimum(X[:, 0], 50)]
    A = np.column_stack(columns if "jumps" in settings else columns[:3])

    def deviance(rho):
        covariance = toeplitz(rho ** np.arange(150)) / (1 - rho**2)
        half = np.linalg.inv(np.linalg.cholesky(covariance))
        rss = np.linalg.lstsq(half @ A, half @ y)[1][0]
        log_det = np.linalg.slogdet(covariance)[1]
        return 150 * (np.log(2 * np.pi * rss / 150) + 1) + log_det

    least = minimize_scalar(deviance, bounds=(0.2, 0.9), options={"xatol": 1e-9}).fun
    expected = least + np.log(150) * (A.shape[1] + 1)
    assert_allclose(path["bic-ar1"], [expected], rtol=1e-10)


def test_criterion_needs_equal_weights():
    model = SegmentedRegressor(criterion="bic-ar1")
    with pytest.raises(ValueError, match="equal weight, got weights from 1 to 2"):
        model.fit(X, noise(3), sample_weight=np.repeat([1.0, 2.0], 75))


def test_kinks_that_the_criterion_may_miss_are_said():
    settings = {"criterion": "bic-ar1", "covariance": "HAC-prewhitened"}
    model = SegmentedRegressor(**settings).fit(X, noise(3, correlation=0.97))
    assert model.residual_correlation_ > 0.9
    assert causes(model)[0] == ("correlation", "n_breakpoints")
    assert "may miss" in str(model.diagnose())
    model.set_params(n_breakpoints=0).fit(X, noise(3, correlation=0.97))
    assert "may miss" not in str(model.diagnose())


def test_a_copy_of_the_feature_changes_no_likelihood():
    rng = np.random.default_rng(0)
    x = np.arange(60.0)
    y = np.abs(x - 25) + rng.normal(size=60)
    one = SegmentedRegressor(criterion="bic-ar1").fit(x[:, None], y)
    two = SegmentedRegressor(criterion="bic-ar1").fit(np.column_stack([x, 3 * x]), y)
    deviance, copied = (
        path["bic-ar1"][:3] - np.log(60) * path["n_parameters"][:3]
        for path in (one.selection_path_, two.selection_path_)
    )
    assert_allclose(copied, deviance, rtol=1e-9)
    assert_allclose(two.breakpoints_, one.breakpoints_, rtol=1e-6)
