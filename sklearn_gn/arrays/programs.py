"""Compiled programs: kept on disk where a user asks for it, and few in memory.

The cache on disk is the only thing in the package that changes settings of JAX. In
memory JAX keeps every program that it has compiled. Each maps memory, and Linux ends a
process that has more than 65,530 maps: a search over layer sizes came there after some
hundreds of fits. So all are forgotten when they are many; programs that are needed
again are compiled again, or read from disk.
"""

import hashlib
import os
import platform
import stat
import sys
from pathlib import Path

from sklearn_gn._caller import warn_user
from sklearn_gn._typing import PathLike

VARIABLE = "SKLEARN_GN_COMPILATION_CACHE"
_CPU_INFO = Path("/proc/cpuinfo")
MOST = 500  # programs in memory; each one has about fifty maps

_counted = None  # programs since they were last forgotten; None before the first count


# --- on disk -------------------------------------------------------------------------


def enable_compilation_cache(path: PathLike | None = None) -> Path | None:
    """Keep compiled functions on disk, and read them from there in later processes.

    The first fit of a process compiles for one to several seconds. With the cache, this
    is done by the first process only. Call it before the first fit, for the whole
    process and its child processes. Setting the environment variable
    ``SKLEARN_GN_COMPILATION_CACHE`` to a path, or to 1 for the default folder, before
    Python starts does the same.

    Parameters
    ----------
    path : str or path-like, default=None
        Folder of the cache, which is made where there is none. Its content is executed,
        so it must belong to the user, and nobody else may write to it. If None, it is
        ``sklearn_gn`` in the user's cache folder: ``$XDG_CACHE_HOME`` or ``~/.cache``,
        on macOS ``~/Library/Caches``. Delete the folder to empty the cache.

    Returns
    -------
    pathlib.Path or None
        Where the compiled functions of this machine are kept: a folder inside ``path``
        with the name of its kind of processor, so that machines can share ``path``. If
        others may write to the folder, a warning says so, the cache stays off, and this
        is None.

    Raises
    ------
    OSError
        If the folder cannot be made, or not be written to.

    Notes
    -----
    These are settings of JAX, and hold for all that it compiles in the process.
    Several processes may use one cache: each entry is written once, and one that cannot
    be read is compiled again. Results do not change.

    Examples
    --------
    At the start of a program::

        import sklearn_gn

        sklearn_gn.enable_compilation_cache()
    """
    if path is None:
        home = Path.home()
        caches = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
        caches = home / "Library" / "Caches" if sys.platform == "darwin" else caches
        path = Path(caches, "sklearn_gn")
    folder = Path(path).expanduser().absolute()
    kind = platform.processor()  # code for one may not run on another
    if _CPU_INFO.exists():
        lines = _CPU_INFO.read_text().splitlines()
        # Those of the first core; "Features" is ARM's name for them.
        kind = next((a for a in lines if a.startswith(("flags", "Features"))), kind)
    kind = hashlib.sha256(kind.encode()).hexdigest()[:12]
    for place in (folder, folder / f"{platform.machine()}-{kind}"):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = place.stat()
        others_write = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        others_own = os.name == "posix" and about.st_uid not in (os.geteuid(), 0)
        if os.name == "posix" and (others_write or others_own):
            warn_user(
                f"The compilation cache in {str(place)!r} is not used: others may "
                "write to this folder, and its content is executed. Let it belong to "
                "you alone (chmod go-w), or give another path."
            )
            return None
    folder = place
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{str(folder)!r} cannot be written to.")
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    # JAX reads these when it is loaded, here or in a process that this one starts.
    os.environ |= {name.upper(): str(value) for name, value in settings.items()}
    if "jax" in sys.modules:
        import jax
        from jax.experimental.compilation_cache import compilation_cache

        for name, value in settings.items():
            jax.config.update(name, value)
        # JAX looks for a cache once, at its first compilation, which may be over.
        compilation_cache.reset_cache()
    return folder


def enable_if_asked():
    """Enable the cache if the environment asks for it; a failure is a warning."""
    value = os.environ.get(VARIABLE, "")
    if value in ("", "0"):
        return
    try:
        enable_compilation_cache(None if value == "1" else value)
    except OSError as error:
        warn_user(
            f"The compilation cache that {VARIABLE} asks for is not used: {error}. "
            "Give another path, or change the permissions of the folder."
        )


# --- in memory -----------------------------------------------------------------------


def forget_if_many():
    """Count compiled programs from the first call on, and forget them if many."""
    global _counted
    jax = sys.modules.get("jax")
    if jax is None:
        return
    if _counted is None:
        _counted = 0
        jax.monitoring.register_event_duration_secs_listener(_count)
    if _counted > MOST:
        _counted = 0
        jax.clear_caches()


def _count(event, seconds, **about):
    global _counted
    del seconds, about
    if event == "/jax/core/compile/backend_compile_duration":
        _counted += 1
