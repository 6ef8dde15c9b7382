"""The test for a breakpoint: its statistic, its size, and its distribution."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sklearn_gn import SegmentedRegressor
from sklearn_gn.segmented import existence
from sklearn_gn.segmented.inference import Scaling
from sklearn_gn.segmented.least_squares import Rows as SortedRows
from sklearn_gn.segmented.preparation import Options, Prepared, problem_of
from sklearn_gn.segmented.problem import Form

N = 40
X = np.linspace(-1, 1, N)


def largest_f(y, columns, line, m):
    """Largest F statistic over the positions, by least squares."""

    def rss(A):
        error = y - A @ np.linalg.lstsq(A, y)[0]
        return error @ error

    null = rss(line)
    full = np.array([rss(np.column_stack([line, *columns(t)])) for t in X[3 : N - 2]])
    return np.max((null - full) / m / full * (N - line.shape[1] - m))


FORMS = {
    "kinks": ({}, lambda t: [np.maximum(X - t, 0)], 2),
    "jumps": ({"degree": 0}, lambda t: [X >= t], 1),
    "both": ({"jumps": True}, lambda t: [np.maximum(X - t, 0), X >= t], 2),
}


@pytest.mark.parametrize("form", FORMS)
def test_statistic_is_the_largest_f(form):
    settings, columns, p = FORMS[form]
    line = np.column_stack([np.ones(N), X])[:, :p]
    y = np.random.default_rng(2).standard_normal(N)
    model = SegmentedRegressor(min_rows=3, **settings)
    found = model.breakpoint_test(X[:, None], y, n_draws=1)
    expected = largest_f(y, columns, line, len(columns(0.0)))
    assert_allclose(found.statistic, expected, rtol=1e-6)


def test_draws_have_the_distribution_of_series_without_a_breakpoint():
    form, rng = Form(True, True, False), np.random.RandomState(0)
    line = np.column_stack([np.ones(N), X])
    scaling = Scaling(*np.array([0.0, 1.0, 0.0, 1.0]), np.empty(0), np.empty(0))
    options = Options(form, np.empty(0), (-np.inf, np.inf), 0.0, 3)

    def share(y):
        rows = SortedRows(X, y, np.empty((N, 0)), np.ones(N))
        found = existence.scan(problem_of([Prepared(rows, scaling)], options))
        return np.max(np.sum(found.scores**2, axis=1)) / found.rss, found

    simulated = np.array([share(rng.standard_normal(N))[0] for _ in range(200)])
    _, found = share(X**2)
    drawn = existence.reference_distribution(found, N - line.shape[1], 20_000, rng)
    level = np.quantile(drawn, [0.5, 0.8, 0.95])
    rejected = np.mean(simulated[:, None] > level, axis=0)
    # Four standard deviations of a share of 200.
    nominal = np.array([0.5, 0.2, 0.05])
    spread = np.sqrt(nominal * (1 - nominal) / 200)
    assert np.all(np.abs(rejected - nominal) < 4 * spread)


def test_a_kink_is_found_and_a_known_one_is_not_found_again():
    y = np.abs(X - 0.3) + 0.05 * np.random.default_rng(0).standard_normal(N)
    found = SegmentedRegressor().breakpoint_test(X[:, None], y, n_draws=199)
    assert found.p_value == 1 / 200
    assert abs(found.breakpoint - 0.3) < 0.1
    known = SegmentedRegressor(breakpoints=[0.3])
    assert known.breakpoint_test(X[:, None], y, n_draws=199).p_value > 0.1


def test_no_room_is_no_evidence():
    found = SegmentedRegressor().breakpoint_test(np.ones((6, 1)), np.arange(6.0))
    assert (found.statistic, found.p_value) == (0, 1)
    assert np.isnan(found.breakpoint)
