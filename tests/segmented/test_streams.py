"""Fits of chunks are those of all points."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone

from sklearn_gn import SegmentedRegressor
from sklearn_gn.segmented import streams

KINKS = np.array([2.2, 5.1, 7.7])


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 6000)
    y = 3 + x + np.maximum(x[:, None] - KINKS, 0) @ (-2, 3, -4)
    y += 2.0 * (x > 5.1) + 0.3 * rng.standard_normal(6000)
    return x, y, rng.integers(1, 4, 6000).astype(float)


@pytest.fixture
def few_bins(monkeypatch):
    monkeypatch.setattr(streams, "N_BINS", 64)


def chunks_of(*arrays):
    ends = [0, 1, 700, 700, 3100, 6000]
    return [tuple(a[i:j] for a in arrays) for i, j in pairwise(ends)]


@pytest.mark.parametrize(
    "settings", [{}, {"jumps": True}, {"flat": "last"}, {"degree": 0}]
)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.usefixtures("few_bins")
def test_chunks_are_the_points(data, settings, weighted):
    x, y, weight = data
    arrays = (x, y, weight) if weighted else (x, y)
    known = SegmentedRegressor(0, breakpoints=KINKS, autocorrelation=None, **settings)
    model = clone(known).fit_chunks(chunks_of(*arrays))
    other = clone(known).fit(x[:, None], *arrays[1:])
    for name in ("estimate", "std_error"):
        assert_allclose(model.parameters_[name], other.parameters_[name], rtol=1e-9)
    assert model.statistics_ == pytest.approx(other.statistics_, rel=1e-10)
    assert_allclose(model.segments_["n_rows"], other.segments_["n_rows"])
    assert_allclose(model.segments_["end"], other.segments_["end"], rtol=1e-12)
    grid = np.linspace(-2, 12, 29)[:, None]
    assert_allclose(model.predict(grid), other.predict(grid), rtol=1e-9)


@pytest.mark.parametrize(
    "settings",
    [{}, {"n_breakpoints": 3, "flat": "last"}, {"n_breakpoints": 4, "degree": 0}],
)
@pytest.mark.usefixtures("few_bins")
@pytest.mark.repeats
def test_breakpoints_of_chunks_are_as_good(data, settings):
    x, y, _ = data
    model = SegmentedRegressor(**settings).fit_chunks(chunks_of(x, y))
    error = y - model.predict(x[:, None])
    assert model.statistics_["rss"] == pytest.approx(error @ error, rel=1e-10)
    other = SegmentedRegressor(**settings).fit(x[:, None], y)
    assert len(model.breakpoints_) == len(other.breakpoints_)
    assert model.statistics_["rss"] < 1.001 * other.statistics_["rss"]


@pytest.mark.usefixtures("few_bins")
@pytest.mark.slow
def test_memory_mapped_file(data, monkeypatch, tmp_path):
    monkeypatch.setattr(streams, "MAPPED", 4000)
    x, y, _ = data
    np.stack([x, y]).tofile(tmp_path / "points")
    points = np.memmap(tmp_path / "points", np.float64, "r", shape=(2, 6000))
    model = SegmentedRegressor(3).fit(points[0][:, None], points[1])
    other = SegmentedRegressor(3).fit_chunks([(x, y)])
    assert_allclose(model.breakpoints_, other.breakpoints_, rtol=1e-8)
    assert model.statistics_["n_rows"] == 6000
    with pytest.raises(ValueError, match="y has the shape"):
        SegmentedRegressor(3).fit(points[0][:, None], np.append(y, 0))


def test_few_points_are_fitted_as_in_memory(data):
    x, y, _ = data
    model = SegmentedRegressor().fit_chunks(chunks_of(x, y))
    other = SegmentedRegressor().fit(x[:, None], y)
    assert_allclose(model.breakpoints_, other.breakpoints_, rtol=1e-3)
    assert_allclose(model.statistics_["rss"], other.statistics_["rss"], rtol=1e-3)
    constant = SegmentedRegressor().fit_chunks([(np.ones(9), np.arange(9.0))])
    assert len(constant.breakpoints_) == 0


@pytest.mark.parametrize(
    ("chunks", "settings", "message"),
    [
        (iter([]), {}, "only once"),
        ([], {}, "hold no rows"),
        ([([1.0], [2.0])], {"covariance": "HC3"}, "covariance='HC3' needs all points"),
        ([([1.0], [2.0])], {"loss": "huber"}, "loss='huber' needs all points"),
        ([[1.0, 2.0]], {}, "Chunk 0 must be a tuple"),
        ([(np.ones((2, 2)), [1.0, 2.0])], {}, "takes one feature"),
        ([([1.0, 2.0], [1.0])], {}, "differ in length"),
        ([([1.0, 2.0], [1.0, 2.0], [0.0, 0.0])], {}, "no rows of positive weight"),
        ([([1.0, 2.0], np.ones((2, 2)))], {}, "Chunk 0: y must have one column"),
        ([([1.0], [2.0], [[3.0, 4.0]])], {}, "Chunk 0: weights must have one column"),
        ([([1.0, np.nan], [1.0, 2.0])], {}, "NaN or infinity"),
        ([([1.0, 2.0], [1.0, 2.0], [1.0, -1.0])], {}, "negative weights"),
    ],
)
def test_bad_chunks(chunks, settings, message):
    with pytest.raises(ValueError, match=message):
        SegmentedRegressor(**settings).fit_chunks(chunks)


def test_chunks_that_fail_leave_the_former_fit():
    class BrokenOff:
        """Chunks that can be read three times, and not after the first fit of bins."""

        n_left = 4

        def __iter__(self):
            self.n_left -= 1
            if not self.n_left:
                raise OSError("the disk is gone")
            x = np.linspace(-1, 1, 100)[:, None]
            yield x, np.abs(x[:, 0])

    x = np.linspace(0, 1, 30)[:, None]
    model = SegmentedRegressor(1).fit(x, np.abs(x[:, 0] - 0.3))
    before = dict(vars(model))
    with pytest.raises(OSError, match="the disk is gone"):
        model.fit_chunks(BrokenOff())
    assert vars(model) == before
