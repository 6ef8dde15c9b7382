"""Canonical order of weighted rows."""

import numpy as np
import pandas as pd
import pytest
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
from sklearn_gn.arrays.extremes import total_weight
from sklearn_gn.data.rows import canonical_rows


def test_canonical_rows_merge_sort_and_drop():
    X = np.array([[2.0], [1.0], [2.0], [1.0], [3.0]])
    y = np.array([[0.0], [5.0], [0.0], [4.0], [9.0]])
    rows, weight = canonical_rows(X, y, np.array([1.0, 1.0, 2.0, 4.0, 0.0]))
    np.testing.assert_array_equal(X[rows], [[1.0], [1.0], [2.0]])
    np.testing.assert_array_equal(y[rows], [[4.0], [5.0], [0.0]])
    np.testing.assert_array_equal(weight, np.array([4, 1, 3]) / 8)


def test_canonical_rows_stand_weights_near_the_largest_float():
    X = np.arange(3.0)[:, None]
    *_, weight = canonical_rows(X, X, np.full(3, 1.7e308))
    np.testing.assert_allclose(weight, 1 / 3)
    assert total_weight(np.full(3, 1.7e308)) == np.finfo(float).max


@pytest.mark.parametrize(
    ("estimator", "advice"),
    [
        (FGNSoftmaxHead(), r"one-hot .* y\.argmax\(axis=1\).* MultiOutputClassifier"),
        (VarProNetClassifier(), r"one-hot .* y\.argmax\(axis=1\)"),
        (SegmentedRegressor(), "one by one, or use MultiOutputRegressor"),
    ],
)
def test_several_columns_for_one_say_what_to_do(estimator, advice):
    X = np.arange(6.0)[:, None]
    codes = np.eye(3, dtype=int)[np.arange(6) % 3]
    for y in (codes, pd.DataFrame(codes, columns=["a", "b", "c"])):
        with pytest.raises(ValueError, match=rf"shape \(6, 3\) instead\. .*{advice}"):
            estimator.fit(X, y)


def test_rows_whose_share_is_no_float_are_dropped():
    X, y = np.arange(2.0)[:, None], np.zeros((2, 1))
    rows, weight = canonical_rows(X, y, np.array([1e-195, 1e187]))
    assert rows.tolist() == [1]
    assert weight.tolist() == [1.0]


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
        with pytest.raises(ValueError, match="Column 'b' of X holds dates"):
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
    match = r"^X holds text \('the best of times, the worst o\.\.\.'\): .* TfidfVec"
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
    np.testing.assert_allclose(model.predict([[2.0]]), [2.0])


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
