"""What a fit needs of memory, and what there is."""

import os
from contextlib import suppress
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_CGROUP_FILES = (  # limit, usage, and file cache in memory.stat, of versions 2 and 1
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_bytes():
    """Return the bytes that new arrays can take, or None where nobody says.

    A container, or a job of a batch system, may take less than its machine has free.
    """
    return min((*_free_on_machine(), *_free_in_cgroups()), default=None)


def _free_on_machine():
    """Yield the free bytes of the machine where it tells them."""
    try:
        yield 1024 * _field(_PROC / "meminfo", "MemAvailable:")
    except (OSError, KeyError):
        with suppress(AttributeError, OSError, ValueError):
            yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free_in_cgroups():
    """Yield what each control group of this process, and those above it, leave free."""
    groups = _PROC / "self" / "cgroup"
    if not groups.exists():
        return
    for line in groups.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        root = _CGROUPS / "memory" if "memory" in controllers.split(",") else _CGROUPS
        if controllers and root == _CGROUPS:
            continue  # of version 1, and of another resource
        # Inside a container the path may be that outside of it: the root counts too.
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                yield from _free_in(folder)


def _free_in(folder):
    """Yield what a control group leaves free; its cache of files counts as free."""
    for limit, usage, cache in _CGROUP_FILES:
        with suppress(OSError, ValueError, KeyError):
            most = int((folder / limit).read_text())  # "max" where there is no limit
            used = int((folder / usage).read_text())
            yield max(most - used + _field(folder / "memory.stat", cache), 0)


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
