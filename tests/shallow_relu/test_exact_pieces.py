"""Data that are linear in pieces, to rounding errors."""

import numpy as np
import pytest

from sklearn_gn import ShallowReLURegressor


def rotated_band(X):
    """Return 1 inside a band between two parallel lines, and -1 outside."""
    return np.where(np.abs(X @ [0.8, 0.6] - 0.1) < 0.4, 1.0, -1.0)


@pytest.mark.parametrize(
    "function",
    [
        lambda X, rng: np.sin(X[:, 0]),
        lambda X, rng: np.where(X[:, 0] > 0, 1, -1) + 1e-6 * rng.normal(size=len(X)),
        lambda X, rng: (rng.uniform(size=len(X)) < 0.1).astype(float),
        lambda X, rng: (X[:, 0] > 0.3 * rng.normal(size=len(X))).astype(float),
    ],
    ids=["smooth", "little noise", "mostly zero", "labels"],
)
@pytest.mark.parametrize("d", [2, 3])
def test_other_data_are_left_to_the_evidence(function, d):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (300, d))
    model = ShallowReLURegressor(random_state=0).fit(X, function(X, rng))
    assert model.alpha_method_ == "dense"


@pytest.mark.slow
def test_a_band_without_noise_is_found_by_default():
    X = np.random.default_rng(1).uniform(-1, 1, (400, 2))
    y = rotated_band(X)
    model = ShallowReLURegressor(random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), y, rtol=0, atol=1e-6)
    assert len(model.hyperplanes_) <= 6
    assert model.alpha_method_ == "fixed"
