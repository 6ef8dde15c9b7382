"""Rows of a weighted data set: checks, canonical order, validation split."""

import re
import reprlib
from contextlib import contextmanager
from numbers import Integral, Real

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.model_selection import train_test_split
from sklearn.utils import validation

from sklearn_gn._caller import warn_user
from sklearn_gn.arrays import memory
from sklearn_gn.arrays.extremes import MOST_ROWS
from sklearn_gn.data import dates, tables
from sklearn_gn.data.chunks import check_numbers
from sklearn_gn.data.row_checks import NAMED, ROUNDING, row_codes
from sklearn_gn.optim.stop import counted

_ADVICE_ON_TEXT = (
    "turn categories into numbers by OneHotEncoder or TargetEncoder, and documents by "
    "TfidfVectorizer, or leave the column out"
)
_ADVICE_ON_DATES = (
    "make dates of it by pandas.to_datetime for SegmentedRegressor, and numbers, such "
    "as the days since the first date, for the others"
)
_ADVICE_ON_SPARSE = (
    "needs a dense array. Set sparse_output=False of OneHotEncoder or "
    "sparse_threshold=0 of ColumnTransformer, reduce the features by TruncatedSVD, or "
    "call X.toarray(). FGNSoftmaxHead takes sparse features."
)
_ADVICE_ON_LABELS = (
    "targets are numbers. VarProNetClassifier and FGNSoftmaxHead fit labels"
)
_OF_TEXT = re.compile("could not convert|Cannot cast")  # NumPy, pandas' categories
_NO_LABEL = ("None", "nan", "<NA>", "NaT")  # missing labels as text
_MISSING = "Input X contains NaN."
_INFINITE = "Input X contains infinity or a value too large for dtype('float64')."
_LEXICOGRAPHIC_COLUMNS = 16
_ADVICE_ON_CODES = (
    "For classes in one-hot code give the labels, y.argmax(axis=1), or "
    "y.idxmax(axis=1) of a data frame; for several labels of each row use "
    "MultiOutputClassifier of sklearn.multioutput."
)
_ADVICE_ON_COLUMNS = (
    "Fit the columns one by one, or use MultiOutputRegressor of sklearn.multioutput."
)
MAPPED_BYTES = 2**30  # from which on a memory-mapped array is read in chunks
_NUMBERS_A_ROW, _COPIES = 25, 6  # of a table, at the peak of a fit's preparation


def validate_data(estimator, *data, **checks):
    """Validate as :func:`sklearn.utils.validation.validate_data` does.

    Infinities are refused with a ValueError, without a RuntimeWarning from the sum in
    which they are found. Training data whose differences may leave the range of floats
    are refused as well, and so are dates and complex columns; columns of text and of
    missing numbers are named. Sparse data that cannot be taken raise a TypeError that
    says where they come from.
    """
    X, y = data if len(data) == 2 else (*data, None)
    if sparse.issparse(X) and not checks.get("accept_sparse"):
        raise TypeError(f"X is sparse: {type(estimator).__name__} {_ADVICE_ON_SPARSE}")
    numeric = "biuf"  # kinds of dtypes
    if not (isinstance(X, np.ndarray) and X.dtype.kind in numeric):
        dates.refuse_dates(X, takes_dates=hasattr(estimator, "broken_features"))
    shape = getattr(y, "shape", ())
    if shape[1:] == (0,):
        raise ValueError(f"y has no columns (shape={shape}): give at least one target.")
    y_is_checked = isinstance(y, np.ndarray) and y.dtype.kind in numeric
    if checks.get("y_numeric") and not y_is_checked:
        dates.refuse_dates(y, targets=True)
    if len(shape) == 2 and shape[1] > 1 and not checks.get("multi_output"):
        advice = _ADVICE_ON_CODES if is_classifier(estimator) else _ADVICE_ON_COLUMNS
        raise ValueError(
            f"y should be a 1d array, got an array of shape {shape} instead. {advice}"
        )
    try:
        with np.errstate(all="ignore"):
            checked = validation.validate_data(estimator, *data, **checks)
            if checks.get("y_numeric") and checked[1].dtype.kind in "SU":
                checked = checked[0], checked[1].astype(np.float64)
    except ValueError as error:
        text = _text_in(error, X, "X", _ADVICE_ON_TEXT)
        text = text or _text_in(error, y, "y", _ADVICE_ON_LABELS)
        text = text or _missing_in(error, X)
        if text is None:
            raise
        raise ValueError(text) from None
    for name, array in zip("Xy", checked, strict=True) if len(data) == 2 else ():
        array = array.data if sparse.issparse(array) else array
        if array.dtype.kind != "f":
            continue
        if max(np.max(array, initial=0), -np.min(array, initial=0)) > 1e300:
            check_numbers(array, name)  # says so in an error
    return checked


def chunks_of(X, y, sample_weight=None):
    """Return the chunks of an array on disk or of dask; None for one in memory."""
    module = type(X).__module__
    if module.startswith("dask.array") and X.ndim == 2:
        return tables.dask_rows(X, y, sample_weight)
    if module.startswith("dask.dataframe"):
        return tables.rows_of_frame(X, y, sample_weight)
    if isinstance(X, np.memmap) and X.ndim == 2 and X.nbytes >= MAPPED_BYTES:
        return tables.MappedRows(X, y, sample_weight)
    return None


def check_fits(needed, advice):
    """Raise a ValueError if a fit needs more bytes, or a table more, than there are."""
    if not isinstance(needed, Real):
        n, d = (*(getattr(needed, "shape", ()) or (0,)), 1)[:2]
        needed = 8 * n * (_NUMBERS_A_ROW + _COPIES * d)
    if needed < tables.CHUNK_BYTES:  # there is room for a chunk
        return
    available = memory.available_bytes()
    if available is not None and needed > available:
        raise ValueError(
            f"This fit needs about {needed / 2**30:.1f} GiB of memory, and "
            f"{available / 2**30:.1f} GiB are available. {advice}"
        )


@contextmanager
def naming_text(X, advice):
    """Say in an error about text that is not a number where in X it is, and advice."""
    try:
        yield
    except ValueError as error:
        text = _text_in(error, X, "X", advice)
        if text is None:
            raise
        raise ValueError(text) from None


def _text_in(error, table, name, advice):
    """Return a message about the first text of a table; None if it is not the cause."""
    if table is None or not _OF_TEXT.search(str(error)):
        return None
    for column_name, column in dates.columns_of(table):
        where = f"Column {column_name} of {name}" if column_name else name
        for value in np.asarray(column, dtype=object).ravel():
            try:
                np.float64(value)
            except (TypeError, ValueError):
                text = str(value)
                if name == "X" and _is_date(text):
                    advice = _ADVICE_ON_DATES
                return f"{where} holds text ({reprlib.repr(text)}): {advice}."
    return None


def _missing_in(error, X):
    """Return a message with the columns of missing or infinite numbers, or None."""
    message = str(error)
    start = next((s for s in (_MISSING, _INFINITE) if message.startswith(s)), None)
    if start is None or sparse.issparse(X):
        return None
    test = np.isnan if start == _MISSING else np.isinf
    whole = dates.is_frame(X)
    columns = dates.columns_of(X, False) if whole else enumerate(np.asarray(X).T)
    counts = [(name, np.sum(test(_numbers(column)))) for name, column in columns]
    found = [f"column {name} ({counted(n, 'row')})" for name, n in counts if n]
    if not found:
        return None
    if len(found) > NAMED:
        found = [*found[: NAMED - 1], f"{len(found) - NAMED + 1} more columns"]
    places = " and ".join([", ".join(found[:-1]), found[-1]] if found[1:] else found)
    return f"{start} It is in {places}.{message[len(start) :]}"


def _numbers(column):
    """Return the numbers of a column, NaN where they are missing."""
    if hasattr(column, "isna"):  # of pandas, whose integers may be missing, too
        gone = np.asarray(column.isna(), dtype=bool)
        column = column.astype(object).where(~gone, np.nan)
    return np.asarray(column, dtype=np.float64)


def _is_date(text):
    """Whether a text is a date in the form 2024-01-31, with or without a time."""
    try:
        return "-" in text and not np.isnat(np.datetime64(text))
    except ValueError:
        return False


# --- labels --------------------------------------------------------------------------


def check_no_label_is_missing(y):
    """Raise a ValueError if some of the labels are missing."""
    y = np.asarray(y, dtype=object).ravel()
    n_missing = sum(not isinstance(a, str) and str(a) in _NO_LABEL for a in y)
    if n_missing:
        raise ValueError(
            f"y has no label in {counted(n_missing, 'row')}: leave them out, or give "
            "them a label of their own."
        )


def check_objects(y):
    """Raise a ValueError if labels are objects other than text, such as integers."""
    kinds = {type(label) for label in y.ravel()}
    if all(issubclass(kind, str) for kind in kinds):
        return
    names = sorted(kind.__name__ for kind in kinds)
    try:
        np.unique(y)
    except TypeError as error:
        check_no_label_is_missing(y)
        raise ValueError(
            f"y holds labels of the types {names}, which have no common order. Give "
            "labels of one type, for example as strings."
        ) from error
    families = {bool: (bool, np.bool_), int: Integral, float: Real, str: object}
    plain = next(
        name
        for name, family in families.items()
        if all(issubclass(kind, family) for kind in kinds)
    )
    raise ValueError(
        "Unknown label type: y is an array of dtype object, with labels of type "
        f"{' and '.join(names)}. Convert them, for example by "
        f"y.astype({plain.__name__})."
    )


# --- weights and order ----------------------------------------------------------------


def validation_split(n_rows, fraction, rng, labels=None):
    """Return rows to train on and to set aside, stratified if there are labels."""
    n_val = max(1, round(fraction * n_rows))
    if n_val >= n_rows:
        raise ValueError(
            f"validation_fraction={fraction} of {n_rows} distinct rows leaves none for "
            "training."
        )
    possible = False
    if labels is not None:
        counts = np.bincount(labels)
        counts = counts[counts > 0]
        possible = counts.min() > 1 and min(n_val, n_rows - n_val) >= len(counts)
    return train_test_split(
        np.arange(n_rows),
        test_size=n_val,
        random_state=rng,
        stratify=labels if possible else None,
    )


def feature_spread(X):
    """Return the largest over the smallest deviation of features that vary."""
    sample = X[:: max(1, X.shape[0] // 1000)]
    with np.errstate(all="ignore"):
        deviation = sample.std(axis=0)
        rounding = ROUNDING * np.abs(sample).max(axis=0, initial=0)
        varying = deviation > rounding
        spread = np.ptp(np.log(deviation[varying])) if varying.any() else 0.0
        return float(np.exp(spread)) if np.isfinite(spread) else 1.0


def canonical_rows(X, y, sample_weight):
    """Return one number for each distinct row, in order of content, and their shares.

    Rows of weight zero are dropped, and weights of equal rows added. A fit, with all
    its random draws, then depends on neither the order nor the multiplicity of rows.
    """
    kept, varies = np.flatnonzero(sample_weight > 0), np.ptp(X, axis=0) > 0
    X = X if varies.all() else X[:, varies]  # the others do not change the order
    table = (X[kept] if len(kept) < len(X) else X), y[kept]
    new = np.zeros(len(kept), dtype=bool)  # rows that surely differ from the one before
    new[0] = True
    if X.shape[1] + y.shape[1] <= _LEXICOGRAPHIC_COLUMNS:  # a sort for each of them
        order = np.lexsort(np.concatenate(table, axis=1).T[::-1])
    else:  # by a hash
        code = row_codes(*table)
        order = np.argsort(code)
        new[1:] = np.diff(code[order]) != 0
    order = kept[order]
    alike = np.flatnonzero(~new)
    here, before = order[alike], order[alike - 1]
    new[alike] = (X[here] != X[before]).any(axis=1) | (y[here] != y[before]).any(axis=1)
    first = np.flatnonzero(new)
    weight = np.add.reduceat(sample_weight[order], first)
    # Copies of a row are equal, but for the sign of a zero, in any order.
    share = weight / weight.sum()
    counted = share > 0  # others are no floats
    return order[first][counted], share[counted]


def check_sample_weight(sample_weight, X):
    """Return the weights in float64; they must be non-negative, and not all zero.

    The largest one is brought between 1e-100 and 1e100, and with it all others, which
    are at least 1e-100 times as large unless they are zero: sums of weights, and their
    products with squares, stay in the range of floats.
    """
    with np.errstate(all="ignore"):
        weight = validation._check_sample_weight(
            sample_weight, X, dtype=np.float64, ensure_non_negative=True
        )
    largest = weight.max()
    if not largest > 0:
        raise ValueError("sample_weight must be positive for at least one row.")
    bounded = np.clip(largest, 1 / MOST_ROWS, MOST_ROWS)
    smallest = np.min(weight, where=weight > 0, initial=largest)
    if bounded == largest and smallest >= largest / MOST_ROWS:
        return weight
    share = np.where(weight > 0, np.maximum(weight / largest, 1 / MOST_ROWS), 0)
    return share * bounded


def weights_of(sample_weight, y_std, X):
    """Return weights and counts of rows, and the variance of a row of weight one."""
    count = np.ones(len(X))
    if sample_weight is not None:
        count = check_sample_weight(sample_weight, X)
    if y_std is None:
        if count.sum() > 2 * len(count) and np.any(count != np.round(count)):
            warn_user(
                f"The weights sum to {count.sum():.4g} and count as so many rows, but "
                f"there are {len(count)}. If they are inverse variances, give y_std."
            )
        return count, count, None
    weight, variance = by_deviations(y_std, count)
    return weight, count, variance


def by_deviations(y_std, count):
    """Return weights, of the sum of the counts, and the variance of weight one."""
    std = np.asarray(y_std, dtype=np.float64)
    if std.shape != count.shape:
        raise ValueError(f"y_std must have the shape {count.shape}, got {std.shape}.")
    wrong = ~((std > 0) & (std < np.inf))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"y_std must be positive and finite, got {std[row]} in row {row}."
        )
    weight = count * (std.min() / std) ** 2
    factor = count.sum() / weight.sum()
    return factor * weight, factor * std.min() ** 2


def shares(weight):
    """Return weights of sum one; rows without weight, or of too little, count alike."""
    total = weight.sum()
    return weight / total if total > 0 else np.full(len(weight), 1 / len(weight))
