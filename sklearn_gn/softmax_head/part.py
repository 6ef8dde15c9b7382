"""The part of many rows on which a penalty is searched for.

The precision of the coefficients is a property of the classes, not of the number of
rows: from a thousand rows on, a part of them that has enough of each class chooses
nearly the same. So where there are many rows, the path of penalties is that of a part,
and all rows see the last penalty only.
"""

import numpy as np

# A part with fewer rows chooses another penalty where classes nearly coincide.
_FEWEST = 2048
_A_CLASS = 64
_A_FEATURE = 16
_SHARE = 4  # it pays where it is one row in four, or less
_RAREST = 8  # rows of the rarest class


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
    weight = rows.weight[:size]
    counts = np.bincount(rows.label[:size][weight > 0], minlength=n_classes)
    if counts.min() < _RAREST:
        return None, None
    part = rows._replace(
        x=rows.x[:size],
        label=rows.label[:size],
        weight=weight,
        n_rows=np.int32(size),
        n_batches=np.int32(1),
    )
    return part, float(rows.weight[:n].sum() / weight.sum())
