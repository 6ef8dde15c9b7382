"""Rows that are added to a fit: the same as a fit of all rows, in far less time."""

import pickle
import re
import time

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from sklearn_gn import SegmentedRegressor


def line(x):
    return 0.5 * x + np.maximum(x - 4, 0) - 1.5 * np.maximum(x - 7, 0)


def sample(seed, n, low=0.0, high=10.0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(low, high, n)
    return x[:, None], line(x) + rng.normal(0, 0.5, n)


def assert_same(model, expected):
    error = expected.breakpoint_std_
    assert_allclose((model.breakpoints_ - expected.breakpoints_) / error, 0, atol=0.02)
    assert_allclose(model.breakpoint_std_, error, rtol=0.05)  # a row changes sides
    assert_allclose(model.noise_std_, expected.noise_std_, rtol=1e-5)
    table, of_expected = model.parameters_, expected.parameters_
    off = (table["estimate"] - of_expected["estimate"]) / of_expected["std_error"]
    assert_allclose(off, 0, atol=0.03)
    assert_allclose(table["std_error"], of_expected["std_error"], rtol=0.05)
    for name in ("n_rows", "n_parameters", "bic"):
        figures = model.statistics_[name], expected.statistics_[name]
        assert_allclose(*figures, rtol=1e-7, atol=1e-3)
    rows = model.segments_["n_rows"], expected.segments_["n_rows"]
    assert_allclose(*rows, atol=2)


def test_single_rows_and_blocks_are_those_of_a_fit_of_all_rows():
    X, y = sample(0, 1500)
    model = SegmentedRegressor(autocorrelation=None).fit(X[:1000], y[:1000])
    for k in range(1000, 1100):
        model.update(X[k : k + 1], y[k : k + 1])
    model.update(X[1100:], y[1100:])
    expected = SegmentedRegressor(autocorrelation=None).fit(X, y)
    assert_same(model, expected)
    assert_allclose(model.predict(X), expected.predict(X), atol=1e-3)
    std = model.predict(X[:5], return_std=True)[1]
    assert_allclose(std, expected.predict(X[:5], return_std=True)[1], rtol=2e-2)
    assert "Breakpoints" in str(model.summary())
    assert "noise" in str(model.diagnose())


def test_a_thousand_rows_one_by_one_take_less_than_two_seconds():
    X, y = sample(7, 101_000)
    model = SegmentedRegressor(2, autocorrelation=None).fit(X[:100_000], y[:100_000])
    start = time.process_time()
    for k in range(100_000, 101_000):
        model.update(X[k : k + 1], y[k : k + 1])
    breakpoints = model.breakpoints_
    assert time.process_time() - start < 2
    expected = SegmentedRegressor(2, autocorrelation=None).fit(X, y)
    assert_allclose(breakpoints, expected.breakpoints_, rtol=1e-4)
    assert_same(model, expected)


def test_it_does_not_matter_when_a_fit_is_read():
    X, y = sample(8, 600)
    once = SegmentedRegressor(2).fit(X[:500], y[:500])
    often = SegmentedRegressor(2).fit(X[:500], y[:500])
    for k in range(500, 600):
        once.update(X[k : k + 1], y[k : k + 1])
        read = often.update(X[k : k + 1], y[k : k + 1]).statistics_["n_rows"]
        assert_allclose(read, k + 1)
    assert_allclose(often.breakpoints_, once.breakpoints_, rtol=1e-3)
    assert_allclose(pickle.loads(pickle.dumps(once)).predict(X), once.predict(X))


def test_weights_count_as_repeated_rows():
    X, y = sample(1, 400)
    new = slice(300, None)
    once = SegmentedRegressor(2).fit(X[:300], y[:300]).update(X[new], y[new], [3] * 100)
    thrice = SegmentedRegressor(2).fit(X[:300], y[:300])
    thrice.update(np.repeat(X[new], 3, axis=0), np.repeat(y[new], 3))
    assert_allclose(once.breakpoints_, thrice.breakpoints_, rtol=1e-8)
    assert_allclose(once.breakpoint_std_, thrice.breakpoint_std_, rtol=1e-8)


def test_a_bend_that_appears_is_found():
    rng, x = np.random.default_rng(0), np.arange(300.0)
    y = 0.1 * x + rng.normal(0, 0.3, 300)
    model = SegmentedRegressor(autocorrelation=None).fit(x[:, None], y)
    assert len(model.breakpoints_) == 0
    new = np.arange(300.0, 380)
    bent = 0.1 * new - 0.15 * np.maximum(new - 330, 0) + rng.normal(0, 0.3, 80)
    for a, b in zip(new, bent, strict=True):
        model.update([[a]], [b])
    x, y = np.append(x, new), np.append(y, bent)
    expected = SegmentedRegressor(autocorrelation=None).fit(x[:, None], y)
    assert_same(model, expected)
    assert_allclose(model.breakpoints_, [330], atol=5)
    low, high = model.breakpoint_interval_[0]
    assert low < 330 < high


def test_known_breakpoints_stay():
    X, y = sample(2, 600)
    model = SegmentedRegressor(1, breakpoints=[4.0], autocorrelation=None)
    expected = SegmentedRegressor(1, breakpoints=[4.0], autocorrelation=None).fit(X, y)
    model.fit(X[:500], y[:500]).update(X[500:], y[500:])
    assert_allclose(model.breakpoints_[0], 4)
    assert model.breakpoint_std_[0] == 0
    assert_allclose(model.breakpoint_std_[1], expected.breakpoint_std_[1], rtol=1e-2)
    errors = model.parameters_["std_error"], expected.parameters_["std_error"]
    assert_allclose(*errors, rtol=1e-2)


def test_dates_and_names():
    X, y = sample(3, 300)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.sort(X[:, 0]) * 30, unit="D")
    frame = pd.DataFrame({"day": days})
    y = y[np.argsort(X[:, 0])]
    model = SegmentedRegressor(2).fit(frame[:280], y[:280])
    model.update(frame[280:], y[280:])
    assert model.breakpoints_.dtype.kind == "M"
    assert model.statistics_["n_rows"] == 300


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"jumps": True}, "update cannot be combined with jumps"),
        ({"covariance": "HC3"}, "covariance='HC3'"),
        ({"loss": "huber"}, "loss='huber'"),
        ({"family": "poisson"}, "update needs the rows of a fit"),
    ],
)
def test_what_is_refused(parameters, message):
    X = np.linspace(0, 10, 40)[:, None]
    model = SegmentedRegressor(1, **parameters).fit(X, X[:, 0] ** 2)
    with pytest.raises(ValueError, match=re.escape(message)):
        model.update(X, X[:, 0])


def test_a_saved_model_leaves_its_rows_behind():
    X, y = sample(4, 300)
    model = SegmentedRegressor(1).fit(X, y).update(X[:1], y[:1])
    size = len(pickle.dumps(model))
    assert size < 20_000
    loaded = pickle.loads(pickle.dumps(model))
    assert_allclose(loaded.predict(X), model.predict(X))
    with pytest.raises(ValueError, match="update needs the rows of a fit"):
        loaded.update(X, y)
    with pytest.raises(ValueError, match="contains NaN"):
        model.update(X[:1], [np.nan])


def test_an_interrupted_reader_can_read_again(monkeypatch):
    X, y = sample(0, 2000)
    model = SegmentedRegressor(2).fit(X[:1000], y[:1000]).update(X[1000:], y[1000:])

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("sklearn_gn.segmented.streams.set_fit", interrupted)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                _ = model.breakpoints_
    assert_same(model, SegmentedRegressor(2).fit(X, y))
