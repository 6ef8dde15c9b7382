"""Dates as x: days since 1970, and back.

Dates with a time zone are instants; they are converted to UTC. Dates without one are
taken as they stand. A fit on one kind does not predict at the other.
"""

from datetime import UTC

import numpy as np

_DAY = np.timedelta64(1, "D")
_EPOCH = np.datetime64(0, "ns")


def kind_of(column):
    """Return "utc" or "local" for dates with and without a time zone, else None."""
    dtype = getattr(column, "dtype", None)
    if getattr(dtype, "tz", None) is not None:
        return "utc"
    return "local" if getattr(dtype, "kind", None) == "M" else None


def to_days(column):
    """Return dates as days since 1970."""
    if kind_of(column) == "utc":
        column = getattr(column, "dt", column).tz_convert("UTC")
        column = getattr(column, "dt", column).tz_localize(None)
    values = np.asarray(column).astype("datetime64[ns]")
    if np.isnat(values).any():
        raise ValueError("X contains NaT: a row has no date.")
    return (values - _EPOCH) / _DAY


def from_days(days):
    """Return days since 1970 as datetime64, to the microsecond."""
    return np.rint(np.asarray(days) * 86400e6).astype("datetime64[us]")


def given_days(name, values):
    """Return dates that a parameter gives as days since 1970.

    Dates with a time zone, such as pandas Timestamps, are converted to UTC.
    """
    try:
        plain = [_without_zone(value) for value in np.asarray(values, dtype=object)]
        return to_days(np.array(plain, dtype="datetime64[ns]"))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be a list of dates like the feature, got {values!r}."
        ) from error


def _without_zone(value):
    if getattr(value, "tzinfo", None) is None:
        return value
    return value.astimezone(UTC).replace(tzinfo=None)


def replace_dates(X, column):
    """Return X with dates in one column as days, and the kind of the dates.

    Parameters
    ----------
    X : array-like
        A data frame, or an array of dates alone.
    column : int or str
        The column of the broken feature.

    Returns
    -------
    X : array-like
    kind : {"utc", "local", None}
    """
    if hasattr(X, "columns") and hasattr(X, "iloc"):
        place = column
        if isinstance(column, str):
            place = list(X.columns).index(column) if column in X.columns else None
        if place is None or not -X.shape[1] <= place < X.shape[1]:
            return X, None
        kind = kind_of(X.iloc[:, place])
        if kind is not None:
            X = X.copy(deep=False)
            X.isetitem(place % X.shape[1], to_days(X.iloc[:, place]))
        return X, kind
    kind = kind_of(X)
    return (X, None) if kind is None else (to_days(X), kind)
