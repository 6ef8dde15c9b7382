"""Errors about missing and infinite numbers say in which columns these are."""

from contextlib import contextmanager

import numpy as np
from scipy import sparse

from sklearn_gn.data import dates

_MISSING = "Input X contains NaN."
_INFINITE = "Input X contains infinity or a value too large for dtype('float64')."
_NAMED = 3  # columns that a message names


@contextmanager
def naming_columns(X):
    """Name the columns in the error about numbers that are missing or infinite.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    """
    try:
        yield
    except ValueError as error:
        message = str(error)
        start = next((s for s in (_MISSING, _INFINITE) if message.startswith(s)), None)
        test = np.isnan if start == _MISSING else np.isinf
        places = None if start is None else _places(X, test)
        if not places:
            raise
        raise ValueError(f"{start} It is in {places}.{message[len(start) :]}") from None


def _places(X, test):
    """Return the columns in which a number is found, and in how many rows, as text."""
    if sparse.issparse(X):
        return ""
    if dates.is_frame(X):
        columns = [dates.column_at(X, place) for place in range(X.shape[1])]
        names = [repr(column) for column in X.columns]
    else:
        columns = np.asarray(X).T
        names = range(len(columns))
    counts = [int(np.sum(test(_numbers(column)))) for column in columns]
    found = [
        f"column {name} ({count} {'row' if count == 1 else 'rows'})"
        for name, count in zip(names, counts, strict=True)
        if count
    ]
    if len(found) > _NAMED:
        found = [*found[: _NAMED - 1], f"{len(found) - _NAMED + 1} more columns"]
    return " and ".join([", ".join(found[:-1]), found[-1]] if found[1:] else found)


def _numbers(column):
    """The numbers of a column, NaN where they are missing."""
    if hasattr(column, "isna"):  # of pandas, whose integers may be missing, too
        gone = np.asarray(column.isna(), dtype=bool)
        column = column.astype(object).where(~gone, np.nan)
    return np.asarray(column, dtype=np.float64)
