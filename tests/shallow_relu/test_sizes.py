"""The choice of the number of neurons, and standard errors of lines."""

import numpy as np
import pytest

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.solvers import JointGN


def broken_line(rng, n, noise=0.1):
    x = rng.uniform(0, 10, n)
    return x, np.interp(x, [0, 3, 6, 10], [0, 3, 1, 6]) + noise * rng.standard_normal(n)


def model(relocations=2, **changes):
    solver = JointGN(relocations=relocations)
    parameters = {"n_neurons": 3, "solver": solver, "random_state": 0, **changes}
    return ShallowReLURegressor(**{"alpha": 0.0, **parameters})


# -- n_neurons="auto" -----------------------------------------------------------------


def test_bic_finds_the_number_of_segments():
    x, y = broken_line(np.random.default_rng(1), 300)
    fitted = model(n_neurons="auto").fit(x[:, None], y)
    assert fitted.hyperplanes_.shape == (3, 2)
    # The third carries the first slope, from the left of the data or their beginning.
    np.testing.assert_allclose(fitted.breakpoints_[-2:], [3, 6], atol=0.15)
    assert fitted.breakpoints_[0] < 0.5


@pytest.mark.slow
def test_size_of_a_surface_is_found_too():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 2))
    y = np.abs(X[:, 0] + 0.3 * X[:, 1]) + np.maximum(X[:, 1] - 0.2, 0)
    y += 0.05 * rng.standard_normal(200)
    fitted = model(n_neurons="auto", relocations=0).fit(X, y)
    assert len(fitted.active_) == 3
    assert fitted.loss_ < 1.1 * 0.05**2 / 2


# -- standard errors ------------------------------------------------------------------


def test_standard_errors_are_those_of_independent_lines():
    x, y = broken_line(np.random.default_rng(3), 400)
    fitted = model(relocations=0, init=[[1.0, 1.0], [-3.0, 1.0], [-6.0, 1.0]])
    fitted.fit(x[:, None], y)
    inside = fitted.breakpoints_[np.isfinite(fitted.breakpoint_std_)]
    assert len(inside) == 2
    edges = np.r_[-np.inf, inside, np.inf]
    variance = 2 * fitted.loss_ * len(x) / (len(x) - 6)
    at, jumps = np.array([1.0, 4.0, 9.0]), np.zeros(2)
    expected = []
    for k in range(3):
        own = x[(x >= edges[k]) & (x < edges[k + 1])]
        spread = np.sum((own - own.mean()) ** 2)

        def of_line(position, own=own, spread=spread):
            return 1 / len(own) + (position - own.mean()) ** 2 / spread

        expected.append(np.sqrt(variance * of_line(at[k])))
        for i in {k - 1, k} & {0, 1}:
            jumps[i] += of_line(inside[i])
    _, std = fitted.predict(at[:, None], return_std=True)
    np.testing.assert_allclose(std, expected, rtol=1e-7)
    change = fitted.output_coef_[np.isfinite(fitted.breakpoint_std_)]
    np.testing.assert_allclose(
        fitted.breakpoint_std_[np.isfinite(fitted.breakpoint_std_)],
        np.sqrt(variance * jumps) / np.abs(change),
        rtol=1e-7,
    )


def test_no_more_rows_than_parameters_are_warned_about():
    X = np.arange(4.0)[:, None]
    fitted = model().fit(X, np.array([0.0, 1.0, 0.0, 2.0]))
    message = r"rows sum to 4, and the network has [4-9] parameters"
    with pytest.warns(UserWarning, match=message):
        fitted.predict(X, return_std=True)
