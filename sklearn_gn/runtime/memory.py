"""What a fit needs of memory, and what there is."""

import math
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_CGROUP_FILES = (  # limit, usage, and file cache in memory.stat, of versions 2 and 1
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
_NO_LIMIT = 2**60  # version 1 says so by a larger number


def available_bytes():
    """Return the bytes that new arrays can take, or None where nobody says.

    A container, or a job of a batch system, may take less than its machine has free.
    """
    limits = _cgroup_limits(_PROC, _CGROUPS)
    return min((*_free_on_machine(), *_free_in_cgroups(limits)), default=None)


def _free_on_machine():
    """Yield the free bytes of the machine where it tells them."""
    try:
        yield 1024 * _field(_PROC / "meminfo", "MemAvailable:")
    except (OSError, KeyError):
        with suppress(AttributeError, OSError, ValueError):
            yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free_in_cgroups(limits):
    """Yield what control groups leave free; their cache of files counts as free."""
    for limit, usage, statistics, cached in limits:
        with suppress(OSError, ValueError, KeyError):
            yield max(limit - int(usage.read_text()) + _field(statistics, cached), 0)


@cache
def _cgroup_limits(proc, cgroups):
    """Return the limits of the control groups of this process, with their files.

    They are looked up once a process.
    """
    return tuple(
        (limit, folder / usage, folder / "memory.stat", name)
        for folder in _cgroup_folders(proc, cgroups)
        for file, usage, name in _CGROUP_FILES
        if (limit := _number_in(folder / file)) < _NO_LIMIT
    )


def _cgroup_folders(proc, cgroups):
    """Yield the folders of the control groups of this process and those above them."""
    groups = proc / "self" / "cgroup"
    if not groups.exists():
        return
    for line in groups.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups  # versions 1 and 2
        # Inside a container the path may be that outside of it: the root counts too.
        group = root / path.lstrip("/")
        yield from (at for at in (group, *group.parents) if at.is_relative_to(root))


def _number_in(file):
    """Return the only number of a file, infinity if there is none."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return math.inf


def _field(file, name):
    """Return the number after a name in a file of such pairs."""
    fields = (line.split()[:2] for line in file.read_text().splitlines() if line)
    return int(dict(fields)[name])


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
