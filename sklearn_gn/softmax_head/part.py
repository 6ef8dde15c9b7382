"""The rows on which a penalty is searched for, and those that judge it.

The precision of the coefficients is a property of the classes, not of the number of
rows: from a thousand rows on, a part of them that has enough of each class chooses
nearly the same. So where there are many rows, the path of penalties is that of a part,
and all rows see the last penalty only.

Where the Hessian is not affordable (:mod:`sklearn_gn.softmax_head.evidence`), a fifth
of the rows is left out of the path, and its cross-entropy judges the penalties; of a
part only where the diagonal blocks of the Hessian are not affordable either.
"""

import numpy as np

from sklearn_gn.data.hashing import row_codes
from sklearn_gn.softmax_head.head import divided

# A part with fewer rows chooses another penalty where classes nearly coincide.
_FEWEST = 2048
_A_CLASS = 64
_A_FEATURE = 16
_SHARE = 4  # it pays where it is one row in four, or less
_RAREST = 8  # rows of the rarest class
_IN_FIVE = 5  # rows of a class, one is left out
_LEAST = 100  # rows that are left out, fewer of which say little


def part_of(rows, options):
    """Return the part, as NumPy's rows, and what a penalty grows by on it.

    Parameters
    ----------
    rows : BatchedRows
        In random order, as numpy.
    options : HeadOptions

    Returns
    -------
    rows : BatchedRows
    factor : float
        Sum of all weights, over that of the part.

        None for the two, where all rows are to be used.
    """
    n, d = int(rows.n_rows), rows.x.shape[1]
    n_classes = int(rows.label[:n].max()) + 1
    size = max(_FEWEST, _A_CLASS * n_classes, _A_FEATURE * d)
    if options.n_effective is None or options.mesh is not None or _SHARE * size > n:
        return None, None
    part = rows_at(rows, slice(size))
    counts = np.bincount(part.label[part.weight > 0], minlength=n_classes)
    if counts.min() < _RAREST:
        return None, None
    return part, float(rows.weight[:n].sum() / part.weight.sum())


def left_out(rows):
    """Return which rows are left out, one in five of each class; None if too few.

    Parameters
    ----------
    rows : BatchedRows
        In random order, as numpy.

    Returns
    -------
    ndarray of bool or None
    """
    n = int(rows.n_rows)
    label, weight = rows.label[:n], rows.weight[:n]
    first = group = np.arange(n)
    if np.ptp(weight) > 0:  # a row of large weight came as several equal ones
        codes = row_codes(rows.x[:n], label[:, None].astype(np.float64))
        _, first, group = np.unique(codes, return_index=True, return_inverse=True)
    number = label[first]
    by_class = np.argsort(number, kind="stable")
    place = np.empty(len(first), int)
    start = np.searchsorted(number[by_class], number[by_class])
    place[by_class] = np.arange(len(first)) - start
    fifth = place % _IN_FIVE == _IN_FIVE - 1
    out = np.zeros(len(rows.weight), bool)
    out[:n] = fifth[group]
    return out if np.count_nonzero(fifth) >= _LEAST else None


def divided_in_two(rows, out, placed, options):
    """Return the rows to fit and those that are left out.

    NumPy gets them apart. What is compiled gets the same arrays twice, with weights
    of zero for the others, so that it is compiled, and stored, once.

    Parameters
    ----------
    rows : BatchedRows
        As numpy.
    out : ndarray of bool
    placed : BatchedRows
        The rows on the devices.
    options : HeadOptions
    """
    if options.compiled:
        weights = [np.where(chosen, rows.weight, 0) for chosen in (~out, out)]
        return tuple(placed._replace(weight=w) for w in divided(weights, options))
    return rows_at(rows, ~out), rows_at(rows, out)


def rows_at(rows, chosen):
    """Return some of NumPy's rows."""
    x, label, weight = (a[chosen] for a in (rows.x, rows.label, rows.weight))
    number = np.int32(len(weight))
    return rows._replace(
        x=x, label=label, weight=weight, n_rows=number, n_batches=np.int32(1)
    )
