"""Columns with missing numbers are named."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from sklearn_gn import FGNSoftmaxHead, VarProNetRegressor

Y = np.arange(4) % 2


def message(X, estimator=FGNSoftmaxHead):
    with pytest.raises(ValueError, match="Input X contains") as caught:
        estimator().fit(X, Y)
    return str(caught.value)


def table(**columns):
    return {"whole": [1.0, 2.0, 3.0, 4.0], **columns}


@pytest.mark.parametrize(
    "X",
    [
        pd.DataFrame(table(gap=[1.0, np.nan, np.nan, 2.0])),
        pd.DataFrame(table(gap=pd.array([1, None, None, 2], dtype="Int64"))),
        pl.DataFrame(table(gap=[1.0, None, None, 2.0])),
    ],
    ids=["pandas", "integers", "polars"],
)
@pytest.mark.parametrize("estimator", [FGNSoftmaxHead, VarProNetRegressor])
def test_a_column_of_a_frame_is_named(X, estimator):
    said = message(X, estimator)
    assert said.startswith("Input X contains NaN. It is in column 'gap' (2 rows).\n")
    assert f"{estimator.__name__} does not accept missing values" in said


def test_columns_of_an_array_are_numbered():
    X = np.ones((4, 7))
    X[1, 2], X[3, 2], X[0, 5] = np.nan, np.nan, np.nan
    start = "Input X contains NaN. It is in column 2 (2 rows) and column 5 (1 row).\n"
    assert message(X).startswith(start)
    assert message(X.tolist()).startswith(start)
    X[:] = np.nan
    assert "in column 0 (4 rows), column 1 (4 rows) and 5 more columns." in message(X)


def test_infinity_is_where_it_is():
    X = np.ones((4, 2))
    X[0, 0], X[1, 1] = -np.inf, np.inf
    said = message(pd.DataFrame(X, columns=["a", "b"]))
    assert said.endswith("It is in column 'a' (1 row) and column 'b' (1 row).")


def test_what_is_no_table_has_the_error_of_scikit_learn():
    with pytest.raises(ValueError, match="Expected 2D array"):
        FGNSoftmaxHead().fit([np.nan, 1.0, 1.0, 1.0], Y)
