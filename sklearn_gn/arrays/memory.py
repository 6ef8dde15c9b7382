"""The memory that there is."""

import os
from contextlib import suppress
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_CGROUP_FILES = (  # limit, usage, and file cache in memory.stat, of versions 2 and 1
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_bytes():
    """Return the bytes that new arrays can take, also in a container, if known."""
    found = []
    try:
        found.append(1024 * _field(_PROC / "meminfo", "MemAvailable:"))
    except (OSError, KeyError):
        with suppress(AttributeError, OSError, ValueError):
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for folder in _control_groups():
        for limit, usage, cached in _CGROUP_FILES:
            # Where a file is missing, or says "max", there is no such limit.
            with suppress(OSError, ValueError, KeyError):
                most, used = (int((folder / f).read_text()) for f in (limit, usage))
                # The cache of files counts as free.
                free = most - used + _field(folder / "memory.stat", cached)
                found.append(max(free, 0))
    return min(found, default=None)


def _control_groups():
    """Yield the folders of the control groups of this process and those above them."""
    groups = _PROC / "self" / "cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _CGROUPS / "memory" if controllers else _CGROUPS  # versions 1 and 2
        # Inside a container the path may be that outside of it: the root counts too.
        group = root / path.lstrip("/")
        yield from (at for at in (group, *group.parents) if at.is_relative_to(root))


def _field(file, name):
    """Return the number after a name in a file of such pairs."""
    fields = (line.split()[:2] for line in file.read_text().splitlines() if line)
    return int(dict(fields)[name])
