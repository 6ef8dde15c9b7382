"""Dates as x: days since 1970, and back.

Dates with a time zone are instants; they are converted to UTC. Dates without one are
taken as they stand, and periods as their starts. A fit on one kind does not predict at
the other. Columns may come from pandas or polars, or hold ``datetime`` objects.
"""

from datetime import UTC, date, timedelta
from numbers import Number

import numpy as np

from sklearn_gn.optim.stop import counted

_DAY = np.timedelta64(1, "D")
_EPOCH = np.datetime64(0, "us")
_NUMBERS = "biuf"


def kind_of(column):
    """Return "utc" or "local" for dates with and without a time zone, else None."""
    column = _listed(column)
    dtype = getattr(column, "dtype", None)
    if getattr(dtype, "tz", getattr(dtype, "time_zone", None)) is not None:
        return "utc"
    kind = _dtype_kind(column)
    if kind != "O":
        return "local" if kind == "M" else None
    first = next((value for value in np.ravel(column) if not _is_missing(value)), None)
    if not _is_date(first):
        return None
    return "local" if getattr(first, "tzinfo", None) is None else "utc"


def _listed(X):
    """Return a list whose first entry is a date as an array, anything else as it is."""
    first = X
    while isinstance(first, list | tuple):
        first = first[0] if first else None
    is_list = isinstance(X, list | tuple)
    return np.array(X, dtype=object) if is_list and _is_date(first) else X


def _dtype_kind(column):
    """Return the kind of a column or an array as NumPy names it, None without one."""
    dtype = getattr(column, "dtype", None)
    if hasattr(dtype, "is_temporal"):  # of polars
        return np.asarray(column[:0]).dtype.kind
    return getattr(dtype, "kind", None)


def to_days(column):
    """Return dates as days since 1970."""
    if getattr(column.dtype, "tz", None) is not None:
        column = getattr(column, "dt", column).tz_convert("UTC")
        column = getattr(column, "dt", column).tz_localize(None)
    values = np.asarray(column)
    if values.dtype.kind == "O":
        plain = np.array([_plain(v) for v in values.ravel()], dtype="datetime64[us]")
        values = plain.reshape(values.shape)
    values = values.astype("datetime64[us]")
    n_missing = np.isnat(values).sum()
    if n_missing:
        rows = counted(n_missing, "row")
        raise ValueError(f"X contains NaT in {rows}: drop rows without a date.")
    return (values - _EPOCH) / _DAY


def from_days(days):
    """Return days since 1970 as datetime64, to the microsecond."""
    return np.rint(np.asarray(days) * 86400e6).astype("datetime64[us]")


def given_days(name, values):
    """Return dates that a parameter gives, in UTC, as days since 1970."""
    values_ = np.asarray(values, dtype=object)
    try:
        if any(isinstance(value, Number) for value in values_):
            raise TypeError("numbers")
        return to_days(values_)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be a list of dates like the feature, got {values!r}."
        ) from error


def given_length(name, value, kind):
    """Return a length that a parameter gives, in days where the feature is dates."""
    if not isinstance(value, timedelta | np.timedelta64):
        return float(value)
    if kind is None:
        raise ValueError(f"{name}={value!r} needs dates; the feature holds numbers.")
    days = float(np.timedelta64(value) / _DAY)
    if not days >= 0:
        raise ValueError(f"{name} must not be negative, got {value!r}.")
    return days


def _is_missing(value):
    if isinstance(value, float):
        return value != value
    return value is None or type(value).__name__ in ("NaTType", "NAType")


def _is_date(value):
    is_period = hasattr(value, "to_timestamp") and hasattr(value, "start_time")
    return is_period or isinstance(value, date | np.datetime64)


def _plain(value):
    """Return a date without a time zone, for datetime64."""
    if _is_missing(value):
        return None
    if hasattr(value, "start_time"):  # a period
        return value.to_timestamp()
    if getattr(value, "tzinfo", None) is None:
        return value
    return value.astimezone(UTC).replace(tzinfo=None)


def is_frame(X):
    """Return whether X is a data frame of pandas or polars."""
    return hasattr(X, "columns") and hasattr(X, "dtypes") and len(X.shape) == 2


def columns_of(X, without_numbers=True):
    """Yield name and content of the columns of a data frame; None and X otherwise."""
    if not is_frame(X):
        yield None, X
        return
    columns = X.iloc if hasattr(X, "iloc") else X
    for place, (name, dtype) in enumerate(zip(X.columns, X.dtypes, strict=True)):
        if not (without_numbers and getattr(dtype, "kind", "O") in _NUMBERS):
            yield repr(name), columns[:, place]


def check_column(column, names):
    """Raise a ValueError if the name of the broken feature is not among these."""
    if not isinstance(column, str) or column in names:
        return
    if not names:
        raise ValueError(
            f"broken_features={column!r} is a name, and the columns of X have none: "
            "give a data frame, or the number of the column."
        )
    raise ValueError(f"broken_features={column!r} is not among the features: {names}.")


def replace_dates(X, column):
    """Return X with dates in one column as days, and the kind of the dates or None."""
    if getattr(getattr(X, "dtype", None), "kind", None) in tuple(_NUMBERS):
        return X, None
    if not is_frame(X):
        X = _listed(X)
        kind = kind_of(X)
        if kind is not None and len(X.shape) == 1:
            name = repr(getattr(X, "name", None) or "date")
            raise ValueError(
                "X must be a table, got one column of dates: give it as "
                f"frame[[{name}]] instead of frame[{name}], an index by "
                f"index.to_frame(name={name}), or an array by reshape(-1, 1)."
            )
        if kind is None:
            return X, None
        plain = (_is_missing(value) or _is_date(value) for value in np.ravel(X))
        if _dtype_kind(X) == "O" and not all(plain):
            raise ValueError(
                "X holds dates and other values in one array: give several columns as "
                "a data frame."
            )
        return to_days(X), kind
    place, series = _column(X, column)
    kind = None if place is None else kind_of(series)
    if kind is None:
        return X, None
    if hasattr(X, "iloc"):
        X = X.copy(deep=False)
        X.isetitem(place, to_days(series))
        return X, kind
    return X.with_columns(type(series)(series.name, to_days(series))), kind


def _column(X, column):
    """Return number and content of a column of a data frame; None if there is none."""
    n = X.shape[1]
    if isinstance(column, str):
        column = list(X.columns).index(column) if column in X.columns else n
    if not -n <= column < n:
        return None, None
    return column % n, (X.iloc if hasattr(X, "iloc") else X)[:, column % n]


def held(X, column):
    """Say what a column holds that is not dates, for a message."""
    place, values = _column(X, column) if is_frame(X) else (None, None)
    values = X if place is None else values
    values = values if hasattr(values, "dtype") else np.asarray(values)
    if _dtype_kind(values) in (*_NUMBERS, "m"):
        return "numbers"
    return "text: convert it to dates, by pandas.to_datetime"


def refuse_dates(table, *, targets=False, takes_dates=False):
    """Raise a ValueError if a column of X, or of the targets, is no plain number.

    Dates and durations would be taken as numbers of nanoseconds, or of microseconds,
    and of complex columns beside others only the real part. ``takes_dates``
    says whether the estimator takes dates as the feature that breaks.
    """
    advice = (
        "Only the feature that breaks may be dates: set broken_features to it."
        if takes_dates
        else "Only SegmentedRegressor takes dates, as the feature that breaks "
        "(broken_features)."
    )
    advice = f". {advice} Otherwise give numbers, such as the year, the month, or"
    numbers = ": targets are numbers" if targets else ""
    for name, column in columns_of(table):
        where = "y" if targets else f"Column {name} of X" if name else "X"
        if name and _dtype_kind(column) == "c":
            raise ValueError(
                f"Complex data not supported: column {name} of X holds complex "
                "numbers. Give the real and the imaginary part as two columns."
            )
        if _dtype_kind(column) == "m":
            raise ValueError(
                f"{where} holds durations{numbers}. Divide them by a unit: "
                f'{"y" if targets else "column"} / numpy.timedelta64(1, "D") is days.'
            )
        if kind_of(column) is not None:
            start = ": targets are numbers, such as" if targets else advice
            raise ValueError(
                f"{where} holds dates{start} the days since the first date."
            )
