"""First and last segments of a broken line that follow the noise of a few rows."""

import numpy as np

SHORT_END = 3.0  # factor by which a short end has to lower the sum of squares
_FEW, _SHARE = 10, 0.1  # rows of a segment, and their share of all, that are enough
_LARGE_SHARE = 0.25  # the same share where nobody has asked for the breakpoints
_LEAST = 3  # rows of an end, whatever the share


def long_ends(x, weight):
    """Return between which positions breakpoints leave no short first or last segment.

    ``x`` ascends; a row of weight two counts as two rows.
    """
    n_rows = weight.sum()
    few = max(_LEAST, min(_FEW, _LARGE_SHARE * n_rows))
    few = min(few, n_rows / 2) * (1 - len(x) * np.finfo(np.float64).eps)
    first = np.searchsorted(np.cumsum(weight), few)
    last = np.searchsorted(np.cumsum(weight[::-1]), few)
    return x[first], x[len(x) - 1 - last]


def has_short_end(breakpoints, ends):
    """Return whether a breakpoint lies outside the positions of :func:`long_ends`."""
    low, high = ends
    return bool(np.any((breakpoints < low) | (breakpoints > high)))


def rows_at_ends(rows, n_effective, breakpoints):
    """Numbers of rows before the first and after the last breakpoint, and of all rows.

    Without a breakpoint inside the rows, all three are the same. The weights of the
    rows, of one feature, sum to one; ``n_effective`` is their number by weight.
    """
    x, share = np.ravel(rows.x), n_effective * np.asarray(rows.weight, np.float64)
    used = x[share > 0]
    inside = breakpoints[(breakpoints > used.min()) & (breakpoints < used.max())]
    if len(inside) == 0:
        return n_effective, n_effective, n_effective
    before, after = x < inside.min(), x > inside.max()
    return float(np.sum(share[before])), float(np.sum(share[after])), n_effective


def note_on_ends(n_first, n_last, n_rows):
    """Return a sentence on the shorter end if it has few rows, else an empty string."""
    fewest = min(n_first, n_last)
    if fewest >= min(_FEW, _SHARE * n_rows):
        return ""
    which = "first" if n_first < n_last else "last"
    return (
        f"The {which} segment has only {fewest:.0f} of {n_rows:.0f} rows: its slope "
        "may be their noise, and predictions near that end and beyond extend it."
    )
