"""Steps by orthogonal factors, against dense least squares and exact networks."""

import numpy as np
import pytest

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.optim.solver import Rows
from sklearn_gn.shallow_relu import refinement
from sklearn_gn.shallow_relu.evidence_gn import jacobian, predict, shape_of

N_ROWS = 3000  # more than a block


def rows_of(shape, theta, seed=0):
    rng = np.random.RandomState(seed)
    x = rng.uniform(-1, 1, (N_ROWS, shape.d))
    weight = rng.uniform(0.5, 1.5, N_ROWS)
    return Rows(x, predict(theta, shape, x), weight / weight.sum())


def jump():
    """A network with a jump between two neurons that are 1e-4 apart."""
    w = np.array([0.6, 0.8])
    hyperplanes = [[0.1, *w], [0.1 - 1e-4, *w], [-0.2, 0.8, -0.6]]
    theta = [0.3, 1.0, -0.5, 1e4, -1e4, 0.7, *np.ravel(hyperplanes)]
    return shape_of(3, 2, 1), np.array(theta)


def test_step_is_that_of_dense_least_squares():
    shape, rng = shape_of(4, 3, 1), np.random.RandomState(1)
    theta = rng.standard_normal(shape.size)
    rows = rows_of(shape, rng.standard_normal(shape.size))
    penalty = rng.uniform(0.1, 1, shape.size)
    factor = refinement._factor(shape.jacobian_blocks(theta, rows), penalty, theta)
    root = np.sqrt(rows.weight)[:, None]
    residual = rows.y - predict(theta, shape, rows.x)
    dense = root * jacobian(theta, shape, rows.x, 0)
    right = (root * residual)[:, 0]
    size = np.sqrt(np.sum(dense**2, axis=0) + penalty**2)
    for damping in (0.0, 0.1):
        found = refinement._damped_step(factor, damping)
        left = np.concatenate([dense, np.diag(penalty), damping * np.diag(size)])
        both = np.concatenate([right, -penalty * theta, np.zeros(shape.size)])
        expected = np.linalg.lstsq(left, both, rcond=None)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_steep_neighbours_are_refined_to_rounding():
    shape, exact = jump()
    rows = rows_of(shape, exact)
    rng = np.random.RandomState(2)
    theta = exact * (1 + 1e-9 * rng.standard_normal(len(exact)))
    alpha = np.ones(3 + shape.d)
    found = refinement.refined(theta, rows, alpha, float(N_ROWS), shape)
    assert shape.trial(theta, rows).error > 1e-13
    assert shape.trial(found, rows).error < 1e-20


@pytest.mark.parametrize(
    ("most_work", "error"), [(refinement._MOST_WORK, 1e-10), (0, 1e-8)]
)
def test_jumps_along_a_band_are_fitted_to_rounding(most_work, error, monkeypatch):
    # 200 Gauss-Newton steps by Cholesky factors end at a loss of 5e-15. With next to no
    # work at a time, the fit goes on after each step by an orthogonal factor.
    x = 0.04 * (np.arange(50) + 0.5) - 1
    i, j = np.indices((50, 50)).reshape(2, -1)
    inside = (150 <= 4 * (i + j + 1)) & (4 * (i + j + 1) <= 250)
    X, y = np.column_stack([x[i], x[j]]), np.where(inside, 1.0, -1.0)
    monkeypatch.setattr(refinement, "_MOST_WORK", most_work)
    model = ShallowReLURegressor(random_state=11).fit(X, y)
    assert model.converged_
    assert np.max(np.abs(model.predict(X) - y)) < error


def test_few_steps_are_made_at_a_time_for_many_rows(monkeypatch):
    shape, exact = jump()
    rows = rows_of(shape, exact)
    theta = exact * (1 + 1e-9 * np.random.RandomState(2).standard_normal(len(exact)))
    alpha, steps = np.ones(3 + shape.d), []
    damped = refinement._damped_step

    def counted(factor, damping):
        steps.append(damping)
        return damped(factor, damping)

    monkeypatch.setattr(refinement, "_damped_step", counted)
    refinement.refined(theta, rows, alpha, float(N_ROWS), shape, 1)
    assert steps.count(0.0) == sum(damping > 0 for damping in steps) <= 2
