"""Rows in chunks: of memory-mapped arrays, and of a user's iterables.

Here are the chunks as they come and what is checked of them; sums over all of them are
in :mod:`sklearn_gn.data.rows_source`.
"""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import wraps
from numbers import Real

import numpy as np
from scipy import sparse

from sklearn_gn.arrays import backend

_CHUNK_BYTES = 2**26  # of a memory-mapped array


class MappedRows:
    """Chunks ``(X, y)`` or ``(X, y, weight)`` of an array on disk."""

    def __init__(self, X, y, sample_weight=None, n_rows=None):
        self.arrays = arrays_of_one_length(X, y, sample_weight)
        self._size = n_rows or max(1, _CHUNK_BYTES // max(X.itemsize * X.shape[1], 1))

    def __iter__(self):
        """Yield views of the arrays, which are read where they are used."""
        for start in range(0, len(self.arrays[0]), self._size):
            yield tuple(array[start : start + self._size] for array in self.arrays)


def arrays_of_one_length(X, y, sample_weight):
    """Return X, y and the weights, if there are any, in a list."""
    n_rows = X.shape[0]
    if isinstance(n_rows, float):  # NaN
        raise ValueError(
            "X is a dask array of unknown length: call X.compute_chunk_sizes() first."
        )
    if isinstance(sample_weight, Real):  # the same for all rows
        sample_weight = np.full(n_rows, float(sample_weight))
    arrays = {"X": X, "y": y, "sample_weight": sample_weight}
    if sample_weight is None:
        del arrays["sample_weight"]
    for name, array in arrays.items():
        if np.shape(array)[:1] != (n_rows,):
            raise ValueError(
                f"{name} has the shape {np.shape(array)}, and X has {n_rows} rows."
            )
    return list(arrays.values())


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


def check_repeatable(chunks):
    """Raise a ValueError if chunks can be iterated only once."""
    if iter(chunks) is chunks:
        raise ValueError(
            "chunks can be iterated only once, but a fit reads them several "
            "times. Give a list, or an object whose __iter__ begins again, instead of "
            "a generator."
        )


def check_on_one_device(estimator):
    """Raise a ValueError if an estimator is to compute on several devices."""
    if backend.mesh_of(estimator.device) is not None:
        raise ValueError(
            f"device={estimator.device!r}: chunks are fitted on one device. "
            "Give its name, or fit arrays."
        )


def check_class_weight(estimator):
    """Raise a ValueError if class weights need all labels at once."""
    if estimator.class_weight == "balanced":
        raise ValueError(
            "class_weight='balanced' needs all labels at once. Give a dict, or "
            "sample weights."
        )


def check_early_stopping(estimator, X_val):
    """Raise a ValueError if early stopping would have to set rows aside."""
    if estimator.early_stopping and X_val is None:
        raise ValueError(
            "early_stopping=True needs X_val and y_val where rows come in chunks."
        )


def first_of(chunks):
    """Return the first chunk that holds rows."""
    for _, chunk in numbered(chunks):
        return chunk
    raise ValueError("chunks hold no rows.")


def numbered(chunks, first=0):
    """Yield number, from ``first`` on, and arrays of the chunks that hold rows.

    All arrays of a chunk have one length, and all data frames the same columns.
    """
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
                    f"Chunk {number}: the columns of X are {names}; those of the first "
                    f"chunk are {first_names}."
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


def checked_chunk(number, chunk, *, n_features, targets_of, factors_of=None):
    """Return the arrays (X, targets, weight) of a chunk; None if it has no weight.

    ``targets_of`` maps the y of the chunk, the weights, and the name of y in messages
    to an array; ``factors_of`` are factors of the weights by the class numbers that
    this holds.
    """
    X, y, *weight = chunk
    name = f"Chunk {number}"
    X = _features(X, n_features, name)
    weight = _weight(weight, len(X), name)
    if not weight.any():
        return None
    targets = targets_of(y, weight, f"{name}: y")
    if factors_of is not None:
        weight = weight * factors_of[targets.ravel()]
    return (X, targets, weight) if weight.any() else None


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


def classes_of_chunk(classes, as_column, y, weight, name):
    """Return class numbers; labels of rows without weight need not be known."""
    y, counted = one_column(y, name), weight > 0
    if not counted.all():
        y = np.where(counted, y, y[counted][0])
    code = class_numbers(classes, y, name)
    return code[:, None] if as_column else code


def targets_of_chunk(n_targets, y, weight, name):
    """Return targets of shape (m, n_targets), in float64."""
    y = np.asarray(y, dtype=np.float64)
    y = y.reshape(len(y), -1)
    if y.shape[1] != n_targets:
        raise ValueError(
            f"{name} has {y.shape[1]} targets; the first chunk has {n_targets}."
        )
    if not _is_finite(y):
        raise ValueError(f"{name} holds NaN or infinity.")
    return y


def _weight(weight, n_rows, name):
    """Return the weights of a chunk, which may have none."""
    if not weight:
        return np.ones(n_rows)
    weight = one_column(weight[0], f"{name}: weights").astype(np.float64)
    if not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise ValueError(f"{name}: weights must be finite, and zero or larger.")
    return weight


def _features(X, n_features, name):
    """Return the features of a chunk as an array of numbers, its type as given."""
    X = X.toarray() if sparse.issparse(X) else np.asarray(X)
    if X.ndim != 2 or X.shape[1] != n_features:
        raise ValueError(
            f"{name}: X has the shape {X.shape}; the first chunk has {n_features} "
            "features."
        )
    X = X if X.dtype.kind in "fiub" else X.astype(np.float64)
    if not _is_finite(X):
        raise ValueError(f"{name}: X holds NaN or infinity.")
    return X


def _is_finite(array):
    """Whether an array holds neither NaN nor infinity, nor numbers of huge sums."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum(dtype=np.float64)))
