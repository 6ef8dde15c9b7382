"""Canonical order of weighted rows."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import curve_fit
from sklearn.base import is_regressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from sklearn_gn import (
    FGNSoftmaxHead,
    SegmentedRegressor,
    ShallowReLURegressor,
    VarProNetClassifier,
    VarProNetRegressor,
)


@pytest.mark.parametrize(
    ("estimator", "advice"),
    [
        (FGNSoftmaxHead(), r"one-hot .* y\.argmax\(axis=1\).* MultiOutputClassifier"),
        (VarProNetClassifier(), r"one-hot .* y\.argmax\(axis=1\)"),
    ],
)
def test_several_columns_for_one_say_what_to_do(estimator, advice):
    X = np.arange(6.0)[:, None]
    codes = np.eye(3, dtype=int)[np.arange(6) % 3]
    for y in (codes, pd.DataFrame(codes, columns=["a", "b", "c"])):
        with pytest.raises(ValueError, match=rf"shape \(6, 3\) instead\. .*{advice}"):
            estimator.fit(X, y)


def test_rows_whose_share_is_no_float_are_dropped():
    X, y = np.arange(4.0)[:, None], np.array([9.0, 0.0, 1.0, 2.0])
    model = VarProNetRegressor(hidden_layer_sizes=(), alpha=(0.0, 1e-3))
    found = model.fit(X, y, np.array([1e-195, 1e187, 1e187, 1e187])).predict(X)
    np.testing.assert_allclose(found, model.fit(X[1:], y[1:]).predict(X), rtol=1e-10)


@pytest.mark.parametrize("kind", [SegmentedRegressor, VarProNetRegressor])
def test_labels_are_no_targets(kind):
    labels = np.array(["a", "b"] * 3)
    for y in (labels, labels.astype(object)):
        with pytest.raises(ValueError, match=r"^y holds text \('a'\): targets are num"):
            kind().fit(np.arange(6.0)[:, None], y)


@pytest.mark.parametrize(
    "kind",
    [
        FGNSoftmaxHead,
        SegmentedRegressor,
        ShallowReLURegressor,
        VarProNetClassifier,
        VarProNetRegressor,
    ],
)
def test_columns_that_are_no_numbers_are_named(kind):
    days = pd.Series(pd.date_range("2020-01-01", periods=6))
    y = np.arange(6) % 2
    for column in (days, days.dt.tz_localize("UTC"), days.dt.date):
        with pytest.raises(ValueError, match=r"'b' of X holds dates\. Only"):
            kind().fit(pd.DataFrame({"a": y, "b": column}), y)
        if is_regressor(kind()):
            for target in (column, column.to_frame()):
                with pytest.raises(ValueError, match="y holds dates: targets are numb"):
                    kind().fit(y[:, None], target)
    with pytest.raises(ValueError, match="Column 'b' of X holds durations"):
        kind().fit(pd.DataFrame({"a": y, "b": days - days[0]}), y)
    for column in ("x", pd.Categorical(["x"] * 6)):
        with pytest.raises(ValueError, match="Column 'b' of X holds text"):
            kind().fit(pd.DataFrame({"a": pd.array(y), "b": column}), y)
    document = "the best of times, the worst of times " * 100
    rows = [document] * 6
    match = r"^X holds text \('the best of.*\.\.\..*'\): .* TfidfVec"
    for X in (rows, np.array(rows), [[document, 1.0]] * 6, pd.Series(rows)):
        with pytest.raises(ValueError, match=match) as caught:
            kind().fit(X, y)
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("kind", [SegmentedRegressor, VarProNetRegressor])
def test_durations_are_no_targets(kind):
    durations = pd.Series(pd.to_timedelta(np.arange(6), unit="D"), name="age")
    for y in (durations, durations.to_frame(), durations.to_numpy()):
        with pytest.raises(ValueError, match=r"^y holds durations: .* Divide them by"):
            kind().fit(np.arange(6.0)[:, None], y)
    in_days = durations / np.timedelta64(1, "D")
    model = kind().fit(np.arange(6.0)[:, None], in_days)
    np.testing.assert_allclose(model.predict([[2.0]]), [2.0], rtol=1e-4)


def test_sparse_features_are_sent_to_where_they_come_from():
    encoder = make_pipeline(OneHotEncoder(), ShallowReLURegressor())
    with pytest.raises(TypeError, match=r"X is sparse: Shallow.*sparse_output=False"):
        encoder.fit([["a"], ["b"]] * 3, np.arange(6.0))


@pytest.mark.parametrize("beside", [[True, False] * 8, pd.array([1, 2] * 8, "Int64")])
@pytest.mark.parametrize("model", [FGNSoftmaxHead(), ShallowReLURegressor(2)])
def test_complex_columns_of_frames_are_refused_whatever_is_beside_them(beside, model):
    frame = pd.DataFrame({"flag": beside, "wave": np.arange(16) * 1j})
    with pytest.raises(ValueError, match="Complex data not supported: column 'wave'"):
        model.fit(frame, [0, 1] * 8)
    model.fit(frame.assign(wave=np.arange(16.0)), [0, 1] * 8)
    with pytest.raises(ValueError, match="Complex data not supported"):
        model.predict(frame)


# -- Standard deviations of the targets


REGRESSORS = [ShallowReLURegressor, VarProNetRegressor, SegmentedRegressor]


def unequal_noise(n=80):
    rng = np.random.default_rng(0)
    x, std = np.sort(rng.uniform(-1, 1, n)), 10 ** rng.uniform(-2, 0, n)
    return x[:, None], np.maximum(x - 0.2, 0) + std * rng.normal(size=n), std


def test_a_hinge_under_known_standard_deviations_is_that_of_curve_fit():
    X, y, std = unequal_noise()
    model = ShallowReLURegressor(1, init=[[-0.1, 1.0]], random_state=0)
    model.fit(X, y, y_std=1e3 * std)

    def hinge(x, constant, slope, knot):
        return constant + slope * np.maximum(x - knot, 0)

    p, cov = curve_fit(hinge, X[:, 0], y, [0, 1, model.breakpoints_[0]], sigma=std)
    np.testing.assert_allclose(model.breakpoints_, p[2], rtol=1e-5)
    np.testing.assert_allclose(model.breakpoint_std_, cov[2, 2] ** 0.5, rtol=1e-3)
    # The noise of a row of mean precision.
    square = np.mean(((y - hinge(X[:, 0], *p)) / std) ** 2) * 80 / 77
    expected = np.sqrt(square / np.mean(std**-2.0))
    np.testing.assert_allclose(model.noise_std_, expected, rtol=1e-6)


def test_standard_deviations_are_weights_whose_sum_is_the_number_of_rows():
    X, y, std = unequal_noise()
    weight = len(y) * std**-2.0 / np.sum(std**-2.0)
    model = VarProNetRegressor("mlp", (3,), n_init=1, random_state=0)
    given = model.fit(X, y, y_std=std).predict_interval(X)
    other = model.fit(X, y, sample_weight=weight).predict_interval(X)
    np.testing.assert_allclose(given, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("estimator", REGRESSORS)
def test_standard_deviations_that_cannot_be(estimator):
    X, y, std = unequal_noise(20)
    for wrong, text in (
        (std[:3], r"y_std must have the shape \(20,\)"),
        (np.where(std == std[4], 0, std), "y_std must be positive .*0.0 in row 4"),
        (np.where(std == std[2], np.nan, std), "y_std must be .*nan in row 2"),
    ):
        with pytest.raises(ValueError, match=text):
            estimator().fit(X, y, y_std=wrong)
    simple = {"n_breakpoints": 1} if estimator is SegmentedRegressor else {}
    with pytest.warns(UserWarning, match="inverse variances, give y_std"):
        estimator(**simple).fit(X, y, sample_weight=1 / std**2)
