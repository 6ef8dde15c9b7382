"""First and last segments of a few rows, of a network that chooses its size."""

import numpy as np
import pytest

from sklearn_gn import ShallowReLURegressor

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


def test_noise_of_the_last_rows_rarely_bends_the_line():
    short = [
        np.any(inside(ShallowReLURegressor(random_state=0).fit(*points(seed, 0))) > 50)
        for seed in range(20)
    ]
    assert sum(short) <= 1


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
