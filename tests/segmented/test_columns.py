"""Several columns of y: one set of breakpoints, coefficients and noise of each."""

import itertools
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sklearn_gn import SegmentedRegressor


def lines(x, *kinks):
    return np.column_stack([np.ones_like(x), x, *(np.maximum(x - t, 0) for t in kinks)])


def sample(seed, n=60, kinks=(3.0, 7.0)):
    """Three columns of different sizes; the last one bends at the second kink only."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 10, n))
    coef = np.array([[0, 0.3, -1, 1.5], [50, -20, 30, -20], [1, 0.01, 0, 0.02]]).T
    noise = np.array([0.5, 9, 0.02]) * rng.normal(size=(n, 3))
    return x, lines(x, *kinks) @ coef + noise


def squares(A, Y):
    return np.sum((Y - A @ np.linalg.lstsq(A, Y)[0]) ** 2, axis=0)


def likelihood(x, Y, kinks):
    """Minus the logarithm of the likelihood with breakpoints, but for constants."""
    return np.sum(np.log(squares(lines(x, *kinks), Y)))


@pytest.mark.parametrize("number", [1, 2])
def test_breakpoints_are_those_of_the_best_likelihood(number):
    for seed in range(4):
        x, Y = sample(seed, n=40)
        model = SegmentedRegressor(number).fit(x[:, None], Y)
        tried = np.linspace(x[2], x[-3], 80)
        best = min(likelihood(x, Y, t) for t in itertools.combinations(tried, number))
        assert likelihood(x, Y, model.breakpoints_) <= best + 1e-9
        A = lines(x, *model.breakpoints_)
        assert_allclose(model.predict(x[:, None]), A @ np.linalg.lstsq(A, Y)[0])


def test_standard_errors_are_those_of_the_joint_jacobian():
    x, Y = sample(0)
    model = SegmentedRegressor(2).fit(x[:, None], Y)
    t, A = model.breakpoints_, lines(x, *model.breakpoints_)
    coef, n = np.linalg.lstsq(A, Y)[0], len(x)
    std = np.sqrt(squares(A, Y) / (n - 4 - 2 / 3))  # both breakpoints are of all three
    assert_allclose(model.noise_std_, std)
    tangent = [
        np.hstack([np.kron(one, A), -c[2:] * (x[:, None] >= t)]) / s
        for one, c, s in zip(np.eye(3), coef.T, std, strict=True)
    ]
    J = np.vstack(tangent)
    error = np.sqrt(np.diag(np.linalg.inv(J.T @ J)))
    assert_allclose(model.breakpoint_std_, error[12:], rtol=1e-6)
    for j, table in enumerate(model.parameters_):
        assert_allclose(table["estimate"], coef[:, j], rtol=1e-6, atol=1e-9)
        assert_allclose(table["std_error"], error[4 * j : 4 * j + 4], rtol=1e-6)
    assert model.statistics_["n_parameters"] == 14
    assert_allclose(model.statistics_["degrees_of_freedom"], 3 * n - 14)


@pytest.mark.parametrize("form", [{}, {"jumps": True}, {"degree": 0}, {"flat": "last"}])
def test_units_and_order_of_the_columns_change_nothing(form):
    x, Y = sample(1)
    model = SegmentedRegressor(2, **form).fit(x[:, None], Y)
    other = SegmentedRegressor(2, **form).fit(x[:, None], 1e3 * Y[:, ::-1] + 5)
    assert_allclose(other.breakpoints_, model.breakpoints_, rtol=1e-6)
    assert_allclose(other.breakpoint_interval_, model.breakpoint_interval_, rtol=1e-4)
    assert_allclose(other.noise_std_, 1e3 * model.noise_std_[::-1], rtol=1e-6)


@pytest.mark.parametrize("form", [{}, {"jumps": True}])
def test_columns_that_are_equal_break_where_one_does(form):
    x, Y = sample(2)
    one = SegmentedRegressor(2, **form).fit(x[:, None], Y[:, 0])
    both = SegmentedRegressor(2, **form).fit(x[:, None], Y[:, [0, 0]])
    assert_allclose(both.breakpoints_, one.breakpoints_, rtol=1e-6)
    width = np.diff(both.breakpoint_interval_) / np.diff(one.breakpoint_interval_)
    assert (width <= 1).all()  # as if each row were there twice


def test_a_linear_feature_and_a_known_breakpoint():
    x, Y = sample(3)
    z = np.random.default_rng(0).normal(size=len(x))
    X, Y = np.column_stack([x, z]), Y + z[:, None] * [1, -5, 0.1]
    model = SegmentedRegressor(1, breakpoints=[3.0]).fit(X, Y)
    t = np.linspace(4, 9, 500)
    values = [likelihood_with(np.column_stack([lines(x, 3, s), z]), Y) for s in t]
    assert model.breakpoints_[0] == 3
    assert_allclose(model.breakpoints_[1], t[np.argmin(values)], atol=0.011)
    assert [table["name"][-1] for table in model.parameters_] == ["x1"] * 3


def likelihood_with(A, Y):
    return np.sum(np.log(squares(A, Y)))


def test_a_weight_of_two_is_two_rows():
    x, Y = sample(4, n=40)
    weight = np.where(np.arange(40) % 3, 1, 2)
    model = SegmentedRegressor(2).fit(x[:, None], Y, weight)
    twice = np.repeat(np.arange(40), weight)
    other = SegmentedRegressor(2).fit(x[twice, None], Y[twice])
    assert_allclose(model.breakpoints_, other.breakpoints_, rtol=1e-6)
    assert_allclose(model.breakpoint_std_, other.breakpoint_std_, rtol=1e-6)


def test_the_number_and_the_intervals():
    right, held = 0, 0
    for seed in range(8):
        x, Y = sample(seed, n=50)
        model = SegmentedRegressor().fit(x[:, None], Y)
        right += len(model.breakpoints_) == 2
        low, high = SegmentedRegressor(2).fit(x[:, None], Y).breakpoint_interval_.T
        held += np.sum((low <= (3, 7)) & ((3, 7) <= high))
    assert right >= 7
    assert held >= 14  # of 16
    noise = np.random.default_rng(0).normal(size=(8, 60, 4))
    x = np.arange(60.0)[:, None]
    found = [len(SegmentedRegressor().fit(x, Y).breakpoints_) for Y in noise]
    assert np.count_nonzero(found) <= 1


def test_columns_have_fits_of_their_own():
    x, Y = sample(5)
    model = SegmentedRegressor().fit(x[:, None], Y)
    first = model.estimators_[0]
    y, std = model.predict(x[:, None], return_std=True)
    assert y.shape == std.shape == (60, 3)
    assert_allclose(first.predict(x[:, None], return_std=True)[1], std[:, 0])
    assert_allclose(
        model.predict_interval(x[:, None])[1][:, 0],
        first.predict_interval(x[:, None])[1],
    )
    assert model.score(x[:, None], Y) == pytest.approx(model.statistics_["r2"])
    assert len(model.segments_) == len(model.jumps_) == 3
    assert "Segments of column 2 of y" in model.summary().tables
    assert "noise" in str(model.diagnose())
    again = pickle.loads(pickle.dumps(model))
    assert_allclose(again.predict(x[:, None]), y)
    alone = model.fit(x[:, None], Y[:, 0])
    assert not hasattr(alone, "estimators_")
    assert alone.predict(x[:, None]).shape == (60,)


@pytest.mark.parametrize(
    ("parameters", "y_std"),
    [
        ({"loss": "huber"}, None),
        ({"covariance": "HC3"}, None),
        ({}, np.ones(60)),
    ],
)
def test_what_takes_one_column_only(parameters, y_std):
    x, Y = sample(6)
    with pytest.raises(ValueError, match="cannot be combined with several columns"):
        SegmentedRegressor(**parameters).fit(x[:, None], Y, y_std=y_std)
    with pytest.raises(ValueError, match="y should be a 1d array"):
        SegmentedRegressor(family="poisson").fit(x[:, None], Y)


def test_columns_without_noise_and_constant_ones():
    x = np.linspace(0, 10, 50)
    Y = lines(x, 4.0) @ np.array([[0, 1, -2], [3, 0, 0], [1, -1, 0.5]]).T
    model = SegmentedRegressor().fit(x[:, None], Y)
    assert_allclose(model.breakpoints_, [4], atol=1e-6)
    assert_allclose(model.predict(x[:, None]), Y, atol=1e-6)
