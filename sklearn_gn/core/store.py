"""Arrays on disk: what took long to compute is read the next time."""

import hashlib
import os
import uuid
import warnings
from pathlib import Path

import numpy as np


def load_or_generate(name, key, generate, *, folder, stacklevel, on_read=None):
    """Return the arrays that ``generate`` makes, from disk if they are there.

    Where disk cannot be read or written there is a warning, and no error.

    Parameters
    ----------
    name : str
        Beginning of the file's name.
    key : str
        All that the arrays depend on.
    generate : callable
        Called without arguments; returns a dict of arrays.
    folder : callable
        Called without arguments; returns the folder of the file.
    stacklevel : int
        Where warnings point to: 1 is the caller.
    on_read : callable, default=None
        Called with the path of the file that was read.

    Returns
    -------
    dict of ndarrays
    """
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    try:
        path = Path(folder()).expanduser() / f"{name}_{digest}.npz"
        arrays = _read(path, key, stacklevel + 1)
    except OSError as error:  # no such folder can be made, or not for us to read
        message = f"The cache of {name} cannot be read ({error}): generated without it."
        warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)
        return generate()
    if arrays is not None:
        if on_read is not None:
            on_read(path)
        return arrays
    arrays = generate()
    try:
        _write(path, key, arrays)
    except OSError as error:
        message = f"{name} could not be stored in {path} ({error})."
        warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)
    return arrays


def _read(path, key, stacklevel):
    """Return the arrays of the file, None if it is not there or not whole."""
    if not path.exists():
        return None
    with path.open("rb") as stream:
        try:
            with np.load(stream, allow_pickle=False) as file:
                if file["key"].item() == key:
                    return {name: file[name] for name in file.files if name != "key"}
            cause = "it is of other parameters"
        except Exception as error:  # a damaged archive can raise nearly anything
            cause = error
    message = f"The file {path} cannot be used ({cause}): generated again."
    warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)
    return None


def _write(path, key, arrays):
    """Write beside the place and move there: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.stem}_{uuid.uuid4().hex}.part")
    try:
        with temporary.open("xb") as file:
            np.savez(file, key=np.array(key), **arrays)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
