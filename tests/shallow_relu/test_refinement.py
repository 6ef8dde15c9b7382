"""Steps by orthogonal factors, against dense least squares and exact networks."""

import numpy as np

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.optim.solver import Rows
from sklearn_gn.shallow_relu import evidence_gn
from sklearn_gn.shallow_relu.evidence_gn import shape_of

N_ROWS = 3000  # more than a block


def rows_of(shape, theta, seed=0):
    rng = np.random.RandomState(seed)
    x = rng.uniform(-1, 1, (N_ROWS, shape.d))
    weight = rng.uniform(0.5, 1.5, N_ROWS)
    return Rows(x, shape.values(theta, x), weight / weight.sum())


def jump():
    """A network with a jump between two neurons that are 1e-4 apart."""
    w = np.array([0.6, 0.8])
    hyperplanes = [[0.1, *w], [0.1 - 1e-4, *w], [-0.2, 0.8, -0.6]]
    theta = [0.3, 1.0, -0.5, 1e4, -1e4, 0.7, *np.ravel(hyperplanes)]
    return shape_of(3, 2, 1), np.array(theta)


def test_steep_neighbours_are_refined_to_rounding():
    shape, exact = jump()
    rows = rows_of(shape, exact)
    rng = np.random.RandomState(2)
    theta = exact * (1 + 1e-9 * rng.standard_normal(len(exact)))
    error = shape.trial(theta, rows).error
    found = evidence_gn.refined(theta, rows, np.zeros(shape.size), shape)
    assert error > 1e-13
    assert shape.trial(found, rows).error < 1e-20


def test_jumps_along_a_band_are_fitted_to_rounding():
    # 200 Gauss-Newton steps by Cholesky factors end at a loss of 5e-15.
    x = 0.04 * (np.arange(50) + 0.5) - 1
    i, j = np.indices((50, 50)).reshape(2, -1)
    inside = (150 <= 4 * (i + j + 1)) & (4 * (i + j + 1) <= 250)
    X, y = np.column_stack([x[i], x[j]]), np.where(inside, 1.0, -1.0)
    model = ShallowReLURegressor(random_state=11).fit(X, y)
    assert model.converged_
    assert np.max(np.abs(model.predict(X) - y)) < 1e-10
