"""Rows in batches, for all algorithms, and those that come in chunks."""

from typing import Any, NamedTuple

import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.extremes import largest_size
from sklearn_gn.arrays.libraries import RowsInOrder
from sklearn_gn.data.rows import shares
from sklearn_gn.softmax_head.head import BatchedRows, copied_rows


class ChunkedRows(NamedTuple):
    """Checked chunks of rows."""

    chunks: Any  # of (X, class numbers, weights), gone through once an epoch
    dtype: np.dtype


def batched_rows(
    X,
    label,
    kept,
    weight,
    batch_size,
    rng,
    dtype,
    n_devices=1,
    padded=True,
    copied=True,
):
    """Put rows in random order, in batches of which the last is filled from the first.

    A row of more than twice the mean weight, such as a merged one, comes as several
    rows, which spread over the batches.

    Parameters
    ----------
    X : ndarray of shape (n_samples, d)
    label : ndarray of int of shape (n_samples,)
    kept : ndarray of int
        Numbers of the rows to take.
    weight : ndarray
        Their weights.
    batch_size : int or inf
        Rows of a batch; all of them if there are fewer.
    rng : RandomState
    dtype : dtype
    n_devices : int, default=1
        Divides the size of a batch.
    padded : bool, default=True
        Whether the number of rows is one of a few, for which functions are compiled.
    copied : bool, default=True
        Whether the features are copied in that order. If not,
        :func:`~sklearn_gn.softmax_head.head.in_one_piece` does that, and pads.

    Returns
    -------
    rows : BatchedRows
    batch_size : int
    """
    weight = shares(weight)
    copies = np.ceil(weight * (len(weight) / 2)).astype(int)
    copies = np.maximum(copies, 1)  # weights may underflow to zero
    weight = np.repeat(weight / copies, copies)
    kept = np.repeat(kept, copies)
    n = len(kept)
    bucket = backend.row_bucket(n) if padded else n
    b = int(min(batch_size, bucket))
    b = -(-b // n_devices) * n_devices
    n_batches = -(-n // b)
    order = rng.permutation(n)
    if not copied:
        counts = np.int32(n), np.int32(1)
        chosen, weight = kept[order], weight[order].astype(dtype)
        x = RowsInOrder(X, chosen)
        return BatchedRows(x, label[chosen].astype(np.int32), weight, *counts), b
    if n > b:
        order = np.append(order, order[: n_batches * b - n])
    length = -(-bucket // b) * b
    x = copied_rows(X, kept[order], length)
    if x.dtype != dtype and largest_size(x) > float(np.finfo(dtype).max):
        raise ValueError(
            f"X holds numbers beyond the range of dtype={str(dtype)!r}. Give "
            "dtype='float64', or scale the features."
        )
    rows = BatchedRows(
        x=x.astype(dtype, copy=False),
        label=backend.pad_rows(label[kept[order]].astype(np.int32), length),
        weight=backend.pad_rows(weight[order].astype(dtype), length),
        n_rows=np.int32(n),
        n_batches=np.int32(n_batches),
    )
    return rows, b
