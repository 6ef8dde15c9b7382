"""Exact data whose Gauss-Newton matrix is too ill conditioned for its factor."""

import numpy as np

from sklearn_gn import ShallowReLURegressor


def test_jumps_along_a_band_are_fitted_to_rounding():
    # Gauss-Newton steps by Cholesky factors end above rounding errors.
    x = 0.04 * (np.arange(50) + 0.5) - 1
    i, j = np.indices((50, 50)).reshape(2, -1)
    inside = (150 <= 4 * (i + j + 1)) & (4 * (i + j + 1) <= 250)
    X, y = np.column_stack([x[i], x[j]]), np.where(inside, 1.0, -1.0)
    model = ShallowReLURegressor(random_state=9).fit(X, y)
    assert model.converged_
    assert np.max(np.abs(model.predict(X) - y)) < 1e-10
