"""Units of features and targets, and what exceeds the range of floats."""

import numpy as np
from numpy.testing import assert_allclose

from sklearn_gn.data.units import Units, moments


def test_moments_are_weighted_means_and_deviations():
    A = np.array([[1.0, 7.0, 1e200], [3.0, 7.0, 3e200]])
    center, scale = moments(A, np.array([0.75, 0.25]))
    assert_allclose(center, [1.5, 7, 1.5e200], rtol=1e-12)
    assert_allclose(scale, [0.75**0.5, 1, 0.75**0.5 * 1e200], rtol=1e-12)
    # The size of what only its weights make constant is its largest distance.
    far = np.array([[1e149], [1e158]])
    center, scale = moments(far, np.array([1.0, 1e-100]))
    assert_allclose(center, 1e149)
    assert_allclose(scale, 1e158, rtol=1e-8)
    noise = np.array([[1e9], [1e9 + 2e-7]])  # constant up to rounding
    assert_allclose(moments(noise, np.array([0.5, 0.5]))[1], 1)


def units_of(y):
    return Units.of(y, y, np.full(len(y), 1 / len(y)))


def test_targets_share_a_unit_unless_a_gap_divides_their_sizes():
    def units(*sizes):
        return units_of(np.tile([-1.0, 1.0], 4)[:, None] * np.array(sizes)).y_scale

    def mean(*sizes):
        return np.sqrt(np.mean(np.square(sizes)))

    chain = 1.0, 9.0, 80.0, 700.0, 6000.0
    assert_allclose(units(*chain), mean(*chain), rtol=1e-12)
    small, large = mean(1, 0, 3), mean(4e5, 2e5)  # a constant joins the smallest
    apart = [large, small, large, small, small]
    assert_allclose(units(4e5, 1.0, 2e5, 0.0, 3.0), apart, rtol=1e-12)
    y = np.random.RandomState(0).randn(20, 3) * [1e-3, 1, 1e4] + 5
    scaling = units_of(y)
    assert_allclose(scaling.y_scale, y.std(axis=0), rtol=1e-10)
    assert_allclose(scaling.loss_scale, np.mean(y.var(axis=0)), rtol=1e-10)


def table_with_far_cells(seed):
    """Return features, the targets they determine, and shares of the rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, 3))
    y = X[:, :1] + X[:, 1:2] * X[:, 2:] + 0.1 * rng.normal(size=(300, 1))
    return X, y, np.full(300, 1 / 300)


def test_cells_that_follow_no_law_have_a_limit():
    X, y, weight = table_with_far_cells(0)
    plain = Units.of(X, y, weight, limited=True)
    assert not plain.has_limits
    most = X[6:].max(axis=0)
    X[:3, 0], X[3:6, 1] = 1e5, -999
    units = Units.of(X, y, weight, limited=True)
    assert units.has_limits
    z = units.x(X)
    assert_allclose(z[:3, 0], units.x(np.full((1, 3), most[0]))[0, 0], rtol=1e-12)
    assert_allclose(z.mean(axis=0), 0, atol=1e-12)
    assert_allclose(z.std(axis=0), 1, rtol=1e-12)
    assert_allclose(units.x(np.full((1, 3), -np.inf))[0, 1], z[3, 1], rtol=1e-12)
    # Without the option, and for a feature without far cells, nothing has a limit.
    assert not Units.of(X, y, weight).has_limits
    assert np.all(np.abs(units.limits[:, 2]) == 1e12)
    # The units of the features do not matter, nor do rows that are given twice.
    other = Units.of(1e6 * X + 3, -y, weight, limited=True)
    assert_allclose(other.limits, units.limits, rtol=1e-6)


def test_cells_that_follow_a_law_have_no_limit():
    X, y, weight = table_with_far_cells(1)
    X[:6, 0] *= 1e3
    y[:6, 0] = X[:6, 0]
    assert not Units.of(X, y, weight, limited=True).has_limits


def test_skewed_features_of_a_law_that_saturates_are_hardly_cut():
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        X, e = rng.standard_normal((500, 3)), rng.standard_normal(500)
        X[:, 0] = np.exp(1.2 * X[:, 0])
        y = np.tanh(X[:, 0] / 8) + 0.3 * np.sin(2 * X[:, 1]) + 0.06 * e
        units = Units.of(X, y[:, None], np.full(500, 1 / 500), limited=True)
        inside = units.x(X) == (X - units.x_center) / units.x_scale
        assert np.mean(inside[:, 0]) > 0.98


def test_few_of_many_ordinary_rows_tell_where_cells_have_limits():
    X, y, _ = table_with_far_cells(0)
    X, y = np.tile(X, (40, 1)) + 1e-9 * np.arange(12000)[:, None], np.tile(y, (40, 1))
    X[:3, 0], X[3:6, 1] = 1e5, -999
    units = Units.of(X, y, np.full(12000, 1 / 12000), limited=True)
    has_limit = np.abs(units.limits[1]) < 1e12
    assert has_limit[:2].all()
    assert np.all(np.abs(units.limits[:, :2]) < 10)


def test_copies_of_a_feature_are_constant():
    X, y, weight = table_with_far_cells(0)
    X = np.c_[X, X[:, 1], np.ones(300)]
    units = Units.of(X, y, weight, limited=True)
    z = units.x(X)
    found = Units.varying(z, y, weight)
    assert sorted(found) == [0, 1, 2]
    assert np.all(z[:, 3] == 0)
    assert Units.varying(np.ones((4, 2)), np.ones((4, 1)), np.ones(4)) == (0,)
    # The order belongs to the columns, not to their places.
    order = [4, 2, 0, 3, 1]
    assert [order[j] for j in Units.varying(z[:, order], y, weight)] == list(found)
