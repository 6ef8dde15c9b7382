"""Data that are linear in pieces, to rounding errors."""

import numpy as np
import pytest

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.optim.solver import Rows
from sklearn_gn.shallow_relu.exact_pieces import has_exact_pieces


def rotated_band(X):
    """Return 1 inside a band between two parallel lines, and -1 outside."""
    return np.where(np.abs(X @ [0.8, 0.6] - 0.1) < 0.4, 1.0, -1.0)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda X, rng: rotated_band(X[:, :2]), True),
        (lambda X, rng: np.abs(X[:, 0]) + X[:, 1], True),
        (lambda X, rng: np.sin(X[:, 0]), False),
        (lambda X, rng: np.abs(X[:, 0]) + 1e-6 * rng.normal(size=len(X)), False),
        (lambda X, rng: rng.uniform(size=len(X)) < 0.1, False),
        (lambda X, rng: X[:, 0] > 0.3 * rng.normal(size=len(X)), False),
    ],
    ids=["jumps", "kink", "smooth", "little noise", "mostly zero", "labels"],
)
@pytest.mark.parametrize("d", [2, 3])
def test_planes_through_neighbours(function, expected, d):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, d))
    y = np.asarray(function(X, rng), np.float64)[:, None]
    assert has_exact_pieces(Rows(X, y, np.full(600, 1 / 600))) is expected


def test_a_dozen_rows_show_nothing():
    X = np.random.default_rng(0).uniform(size=(12, 2))
    assert not has_exact_pieces(Rows(X, X[:, :1], np.full(12, 1 / 12)))


@pytest.mark.slow
def test_a_band_without_noise_is_found_by_default():
    X = np.random.default_rng(1).uniform(-1, 1, (400, 2))
    y = rotated_band(X)
    model = ShallowReLURegressor(random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), y, rtol=0, atol=1e-6)
    assert len(model.hyperplanes_) <= 6
    assert model.alpha_method_ == "fixed"
