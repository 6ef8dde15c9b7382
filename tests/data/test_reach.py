"""Rows far from all others: equivariance, and units without them."""

import numpy as np
import pytest

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.data.reach import Reach, units_within_reach
from sklearn_gn.data.scaling import Scaling


def rows(far):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 3))
    X[0] *= far
    return X, np.full(2000, 1 / 2000)


def units_of(X, weight):
    return Scaling.of(X, np.zeros((len(X), 1)), weight)


def test_reach_follows_linear_maps():
    X, weight = rows(far=1e3)
    matrix = np.array([[1.0, 2.0, 0.0], [0.0, 3.0, 1.0], [5.0, 0.0, 1.0]])
    limited = Reach.of(X, weight).limited(X)
    assert np.flatnonzero((limited != X).any(axis=1)) == [0]
    mapped = Reach.of(X @ matrix + 7, weight).limited(X @ matrix + 7)
    np.testing.assert_allclose(mapped, limited @ matrix + 7, rtol=1e-8)


def test_units_are_those_of_the_rows_within_reach():
    X, weight = rows(far=1.0)
    units, reach = units_within_reach(lambda X: units_of(X, weight), X, weight)
    np.testing.assert_allclose(units.x_scale, units_of(X, weight).x_scale, rtol=1e-10)
    z = units.x(X)
    assert reach.limited(z) is z
    far, weight = rows(far=1e6)
    units, reach = units_within_reach(lambda X: units_of(X, weight), far, weight)
    z = reach.limited(units.x(far))
    np.testing.assert_allclose(weight @ z, 0, atol=0.2)
    assert (weight @ z**2 < 2).all()
    np.testing.assert_array_equal(z[1:], units.x(far)[1:])


@pytest.mark.parametrize("kind", [ShallowReLURegressor])
def test_standard_errors_beyond_reach_are_those_of_a_line_that_goes_on(kind):
    rng = np.random.default_rng(0)
    X, far = rng.standard_normal((300, 3)), 200 * rng.standard_normal((4, 3))
    y = X @ [1.0, -2.0, 0.5] + 0.5 * rng.standard_normal(300)
    found, std = kind(random_state=0).fit(X, y).predict(far, return_std=True)
    design, there = (np.column_stack([np.ones(len(a)), a]) for a in (X, far))
    line, squares, *_ = np.linalg.lstsq(design, y)
    covariance = squares[0] / (300 - 4) * np.linalg.inv(design.T @ design)
    of_line = np.sqrt(np.einsum("ij,jk,ik->i", there, covariance, there))
    # The prediction is constant beyond reach.
    np.testing.assert_allclose(std, np.hypot(of_line, there @ line - found), rtol=0.03)
