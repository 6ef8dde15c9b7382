"""What the classifiers share: labels and class weights."""

import numpy as np
import pandas as pd
import pytest

from sklearn_gn import FGNSoftmaxHead, VarProNetClassifier

CLASSIFIERS = [FGNSoftmaxHead, VarProNetClassifier]


def small():
    y = np.arange(30) % 3
    return np.random.RandomState(0).randn(30, 4) + y[:, None], y


@pytest.mark.parametrize("classifier", CLASSIFIERS)
@pytest.mark.parametrize("factor", [-1, -1e-300, np.nan, np.inf, None, "2"])
def test_class_weights_that_are_no_weights_are_refused(classifier, factor):
    X, y = small()
    model = classifier(class_weight={0: 1.0, 1: factor})
    with pytest.raises(ValueError, match=rf"class_weight .* class 1 has {factor!r}\."):
        model.fit(X, y)


@pytest.mark.parametrize("classifier", CLASSIFIERS)
@pytest.mark.parametrize(
    ("class_weight", "sample_weight"),
    [({0: 0, 1: 0, 2: 0}, 1.0), ({0: 1e250}, 1e200)],
    ids=["zero", "overflow"],
)
def test_weights_that_leave_the_range_name_class_weight(
    classifier, class_weight, sample_weight
):
    X, y = small()
    model = classifier(class_weight=class_weight)
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="class_weight="):
        model.fit(X, y, sample_weight=np.full(len(y), sample_weight))


def test_a_class_weight_of_zero_takes_the_rows_out():
    X, y = small()
    model = FGNSoftmaxHead(class_weight={2: 0}, alpha=0.1, random_state=0).fit(X, y)
    assert model.classes_.tolist() == [0, 1, 2]
    assert (model.predict(X) != 2).all()


@pytest.mark.parametrize("classifier", CLASSIFIERS)
@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_missing_labels_are_counted(classifier, missing):
    X, y = small()
    labels = pd.Series(np.array(["a", "b", "c"])[y], dtype=object)
    labels[[2, 5]] = missing
    with pytest.raises(ValueError, match="y has no label in 2 rows: leave them out"):
        classifier().fit(X, labels)
    numbers = y.astype(float)
    numbers[4] = np.nan
    with pytest.raises(ValueError, match="y has no label in 1 row"):
        classifier().fit(X, numbers)
    X[0, 0] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        classifier().fit(X, y)


@pytest.mark.parametrize("classifier", CLASSIFIERS)
@pytest.mark.parametrize(
    ("labels", "kind", "cure"),
    [
        ([0, 1] * 15, "int", "int"),
        ([np.int64(0), 1] * 15, "int and int64", "int"),
        ([True, False] * 15, "bool", "bool"),
        ([1, 2.0] * 15, "float and int", "float"),
        ([b"a", b"b"] * 15, "bytes", "str"),
    ],
)
def test_labels_in_an_array_of_objects_are_told_how_to_convert(
    classifier, labels, kind, cure
):
    X, _ = small()
    y = np.empty(30, dtype=object)
    y[:] = labels
    with pytest.raises(
        ValueError, match=rf"labels of type {kind}\. .* y\.astype\({cure}\)"
    ):
        classifier().fit(X, y)
    FGNSoftmaxHead(alpha=0.1).fit(X, y.astype(cure))


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_a_number_is_no_array_of_labels(classifier):
    with pytest.raises(ValueError, match="y should be a 1d array"):
        classifier().fit(small()[0], 3.0)
