"""First and last segments of a few rows, of a network that chooses its size."""

import numpy as np
import pytest

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.bayes.line_ends import long_ends
from sklearn_gn.optim.solver import Rows
from sklearn_gn.shallow_relu import broken_line
from sklearn_gn.shallow_relu.sorted_rows import LEFT, RIGHT, sort_rows

N = 60


def points(seed, shift, n_shifted=2):
    """A noisy kinked line whose last rows are shifted."""
    x = np.arange(float(N))
    y = 0.3 * np.abs(x - 25) + np.random.default_rng(seed).normal(size=N)
    y[N - n_shifted :] += shift
    return x[:, None], y


def inside(model):
    knots = model.breakpoints_
    return knots[(knots > 0) & (knots < N - 1)]


@pytest.mark.parametrize(
    ("n_rows", "few"), [(400, 10), (40, 10), (32, 8), (12, 3), (8, 3), (5, 2.5)]
)
def test_ends_have_ten_rows_or_a_quarter(n_rows, few):
    x = np.arange(float(n_rows))
    low, high = long_ends(x, np.ones(n_rows))
    assert (low, high) == (np.ceil(few) - 1, n_rows - np.ceil(few))
    assert long_ends(x[::2], np.full(len(x[::2]), 2.0))[0] in (low, low - 1)


@pytest.mark.parametrize("seed", [0, 2, 5])
def test_a_few_rows_at_the_end_do_not_bend_the_line(seed):
    x, y = points(seed, -5.0)
    model = ShallowReLURegressor(random_state=0).fit(x, y)
    knots = inside(model)
    assert len(knots) > 0
    assert np.all((knots >= 9) & (knots <= N - 10))
    np.testing.assert_allclose(knots[np.argmin(abs(knots - 25))], 25, atol=2)


@pytest.mark.parametrize("weight", [1 / N, 0.3])
def test_equal_weights_do_not_move_the_ends(weight):
    """Those of a quadrature rule sum to one and are no counts of rows."""
    x, y = points(0, -5.0)
    plain = ShallowReLURegressor(random_state=0).fit(x, y)
    same = ShallowReLURegressor(random_state=0).fit(x, y, np.full(N, weight))
    np.testing.assert_allclose(same.breakpoints_, plain.breakpoints_, rtol=1e-9)


def test_an_end_that_explains_more_stays():
    x, y = points(0, 100.0)
    model = ShallowReLURegressor(random_state=0).fit(x, y)
    assert inside(model).max() > N - 4


@pytest.mark.parametrize("kink", [2.5, N - 4.3])
def test_a_short_end_without_noise_is_found(kink):
    x = np.arange(float(N))
    model = ShallowReLURegressor(random_state=0).fit(x[:, None], np.abs(x - kink))
    np.testing.assert_allclose(inside(model), [kink], rtol=1e-9)
    assert model.loss_ < 1e-20


def test_descents_stay_between_the_ends():
    x, y = points(0, -5.0)
    rows = Rows(x / (N - 1) * 2 - 1, y[:, None], np.full(N, 1 / N))
    running, _ = sort_rows(rows)
    held = running._replace(ends=(-0.5, 0.4))
    start = np.array([[LEFT, -0.9, 0.1, 0.8, RIGHT]])
    knots, losses, _ = broken_line.descend(start, held, 30, 1e-10)
    within = (knots > LEFT) & (knots < RIGHT)
    assert np.all((knots[within] >= -0.5) & (knots[within] <= 0.4))
    np.testing.assert_allclose(losses, broken_line.fit_running(knots, running).loss)
