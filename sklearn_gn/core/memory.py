"""What a fit needs of memory, and what there is."""

import os
from pathlib import Path


def available_bytes():
    """Return the bytes that new arrays can take, or None where nobody says."""
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


_NUMBERS_A_ROW, _COPIES = 25, 6  # of a table, at the peak of a fit's preparation


def check_table_fits(X, advice):
    """Raise a ValueError if a table needs more memory than there is.

    Rows are sorted, merged where they are equal, and scaled, which takes some copies.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features) or (n_samples,)
        As given; what has no shape is small.
    advice : str
        What would fit, a sentence.
    """
    shape = getattr(X, "shape", ())
    if len(shape) in (1, 2):
        n, d = (*shape, 1)[:2]
        check_fits(8 * n * (_NUMBERS_A_ROW + _COPIES * d), advice)


def check_fits(needed, advice):
    """Raise a ValueError if a fit needs more memory than there is.

    Parameters
    ----------
    needed : int
        Bytes beyond those of the data as given.
    advice : str
        What would fit, a sentence.
    """
    available = available_bytes()
    if available is not None and needed > available:
        raise ValueError(
            f"This fit needs about {needed / 2**30:.1f} GiB of memory, and "
            f"{available / 2**30:.1f} GiB are available. {advice}"
        )
