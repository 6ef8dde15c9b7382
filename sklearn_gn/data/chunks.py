"""Rows in chunks of a user's iterables, and what is checked of them.

Sums over all of them are in :mod:`sklearn_gn.data.rows_source`.
"""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import wraps

import numpy as np
from scipy import sparse

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.extremes import largest_size


def prefetched(chunks):
    """Yield what an iterable yields; the next one is made meanwhile."""
    iterator, end = iter(chunks), object()
    settings = copy_context()  # what NumPy says of overflow belongs to the thread
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(settings.run, next, iterator, end)
        while (chunk := coming.result()) is not end:
            coming = pool.submit(settings.run, next, iterator, end)
            yield chunk


# --- checks of a user's chunks --------------------------------------------------------


def takes_only_chunks(fit_chunks):
    """Decorate a method ``fit_chunks``: X and y as in ``fit`` are a TypeError."""

    @wraps(fit_chunks)
    def wrapper(self, *given, **words):
        if len(given) > 1:
            raise TypeError(
                "fit_chunks takes one list of chunks, as in fit_chunks([(X, y), ...]). "
                "For one X and y, call fit(X, y)."
            )
        return fit_chunks(self, *given, **words)

    return wrapper


def first_chunk(estimator, chunks, X_val=None):
    """Return the first chunk that holds rows, of chunks that can be fitted."""
    if iter(chunks) is chunks:
        raise ValueError(
            "chunks can be iterated only once, but a fit reads them several "
            "times. Give a list, or an object whose __iter__ begins again."
        )
    if getattr(estimator, "class_weight", None) == "balanced":
        raise ValueError(
            "class_weight='balanced' needs all labels. Give a dict, or sample weights."
        )
    if getattr(estimator, "early_stopping", False) and X_val is None:
        raise ValueError("early_stopping=True of chunks needs X_val and y_val.")
    for _, chunk in numbered(chunks):
        return chunk
    raise ValueError("chunks hold no rows.")


def check_on_one_device(estimator):
    """Raise a ValueError if an estimator is to compute on several devices."""
    if backend.mesh_of(estimator.device) is not None:
        raise ValueError(
            f"device={estimator.device!r}: chunks are fitted on one device. "
            "Give its name, or fit arrays."
        )


def numbered(chunks, first=0):
    """Yield number, from ``first`` on, and arrays of the chunks that hold rows."""
    first_names = None
    for number, chunk in enumerate(chunks, first):
        if not isinstance(chunk, tuple) or len(chunk) not in (2, 3):
            raise ValueError(
                f"Chunk {number} must be a tuple (X, y) or (X, y, sample_weight)."
            )
        lengths = [np.shape(array)[:1] for array in chunk]
        if lengths[0] == () or any(length != lengths[0] for length in lengths):
            raise ValueError(f"Chunk {number}: X, y and weights differ in length.")
        if lengths[0][0]:
            names = getattr(chunk[0], "columns", None)
            names = None if names is None else list(names)
            first_names = names if first_names is None else first_names
            if names is not None and names != first_names:
                raise ValueError(
                    f"Chunk {number}: the columns of X are {names}; in the first "
                    f"chunk they are {first_names}."
                )
            yield number, chunk


def labels_of(chunks):
    """Return labels of the rows that have weight, each at least once."""
    labels = []
    for number, (_, y, *weight) in numbered(chunks):
        counted = _weight(weight, len(y), f"Chunk {number}") > 0
        labels.append(np.unique(np.asarray(y)[counted]))
    return np.concatenate(labels)


def one_column(array, name):
    """Return an array of one column as a vector."""
    array = np.asarray(array)
    if array.size != len(array):
        raise ValueError(f"{name} must have one column, got the shape {array.shape}.")
    return array.ravel()


def checked_chunk(
    number, chunk, *, n_features, n_targets=1, classes=None, factors=None
):
    """Return (X, targets (m, q), weight) of a chunk; None if it has no weight."""
    X, y, *weight = chunk
    name = f"Chunk {number}"
    X = X.toarray() if sparse.issparse(X) else np.asarray(X)
    if X.ndim != 2 or X.shape[1] != n_features:
        raise ValueError(
            f"{name}: X has the shape {X.shape}; there are {n_features} features."
        )
    X = X if X.dtype.kind in "fiub" else X.astype(np.float64)
    check_numbers(X, f"{name}: X")
    weight = _weight(weight, len(X), name)
    if not weight.any():
        return None
    if classes is None:
        y = np.asarray(y, dtype=np.float64)
        y = y.reshape(len(y), -1)
        if y.shape[1] != n_targets:
            raise ValueError(f"{name}: y has {y.shape[1]} targets, not {n_targets}.")
    else:
        y, counted = one_column(y, f"{name}: y"), weight > 0
        # Labels of rows without weight need not be known.
        y = class_numbers(classes, np.where(counted, y, y[counted][0]), f"{name}: y")
        weight, y = weight * factors[y], y[:, None]
    check_numbers(y, f"{name}: y")
    return (X, y, weight) if weight.any() else None


def check_numbers(array, name):
    """Raise a ValueError if numbers are not finite, or their differences may not be."""
    largest = largest_size(array)
    if not np.isfinite(largest):
        raise ValueError(f"{name} holds NaN or infinity.")
    if largest > 1e300:
        raise ValueError(
            f"{name} holds a number of size {largest:.3g}; the largest that can be "
            "fitted is 1e+300. Give larger units."
        )


def class_numbers(classes, y, name):
    """Return the numbers of labels; a ValueError about others begins with a name."""
    code = np.searchsorted(classes, y)
    code = np.minimum(code, len(classes) - 1)
    unknown = classes[code] != y
    if unknown.any():
        raise ValueError(
            f"{name} holds labels that are not among classes_: "
            f"{np.unique(y[unknown]).tolist()}."
        )
    return code


def _weight(weight, n_rows, name):
    """Return the weights of a chunk, which may have none."""
    if not weight:
        return np.ones(n_rows)
    weight = one_column(weight[0], f"{name}: weights").astype(np.float64)
    if not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise ValueError(f"{name}: weights must be finite, and zero or larger.")
    return weight
