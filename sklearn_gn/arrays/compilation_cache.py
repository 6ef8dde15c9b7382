"""The cache of compiled functions on disk, which makes first fits quick.

This is the only place in the package that changes settings of JAX, and it does so only
where it is asked to.
"""

import hashlib
import os
import platform
import sys
from pathlib import Path

from sklearn_gn._typing import PathLike

VARIABLE = "SKLEARN_GN_COMPILATION_CACHE"
_CPU_INFO = Path("/proc/cpuinfo")
_OFF, _DEFAULT = ("", "0"), "1"  # values of the variable that are no path


def enable_compilation_cache(path: PathLike | None = None) -> Path:
    """Keep compiled functions on disk, and read them from there in later processes.

    The first fit of a process compiles for one to several seconds. With the cache, this
    is done by the first process only. Call it before the first fit, for the whole
    process and those that it starts. Setting the environment variable
    ``SKLEARN_GN_COMPILATION_CACHE`` to a path, or to 1 for the default folder, before
    Python starts does the same.

    Parameters
    ----------
    path : str or path-like, default=None
        Folder of the cache, which is made where there is none. Nobody else should be
        allowed to write to it, because its content is executed. If None, it is
        ``sklearn_gn`` in the user's cache folder: ``$XDG_CACHE_HOME`` or ``~/.cache``,
        on macOS ``~/Library/Caches``. Delete the folder to empty the cache.

    Returns
    -------
    pathlib.Path
        Where the compiled functions of this machine are kept: a folder inside ``path``
        with the name of its kind of processor, so that machines can share ``path``.

    Raises
    ------
    OSError
        If the folder cannot be made.

    Notes
    -----
    The settings are those of JAX, and hold for all that it compiles in the process.
    Several processes may use one cache: each entry is written once, and one that cannot
    be read is compiled again. Results do not change.

    Examples
    --------
    At the start of a program::

        import sklearn_gn

        sklearn_gn.enable_compilation_cache()
    """
    folder = _user_cache() if path is None else Path(path).expanduser()
    folder = folder.absolute() / _processor()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    # JAX reads these when it is loaded, here or in a process that this one starts.
    os.environ |= {name.upper(): str(value) for name, value in settings.items()}
    if "jax" in sys.modules:
        _change_settings(settings)
    return folder


def enable_if_asked():
    """Enable the cache if the environment variable says so."""
    value = os.environ.get(VARIABLE, "")
    if value not in _OFF:
        enable_compilation_cache(None if value == _DEFAULT else value)


def _change_settings(settings):
    """Change the settings of JAX after it has been loaded."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    for name, value in settings.items():
        jax.config.update(name, value)
    # JAX looks for a cache once, at its first compilation, which may have been before.
    compilation_cache.reset_cache()


def _user_cache():
    if sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "sklearn_gn"


def _processor():
    """Name of this kind of processor: code for one may not run on another."""
    kind = platform.processor()
    if _CPU_INFO.exists():
        lines = _CPU_INFO.read_text().splitlines()
        # Those of the first core; "Features" is ARM's name for them.
        kind = next((a for a in lines if a.startswith(("flags", "Features"))), kind)
    return f"{platform.machine()}-{hashlib.sha256(kind.encode()).hexdigest()[:12]}"
