"""First and last segments of a broken line that follow the noise of a few rows."""

import numpy as np

_FEW, _SHARE = 10, 0.1  # rows of a segment, and their share of all, that are enough


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
