"""What the generators share: work in chunks, results on disk."""

import hashlib
import json
import os
import time
import uuid
import warnings
from numbers import Integral
from pathlib import Path

import numpy as np
from sklearn.datasets import get_data_home
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_limits


def solve_in_chunks(solve, inputs, size, *, n_jobs, verbose, name):
    """Apply ``solve`` to the rows of ``inputs``, ``size`` of them at a time.

    The chunks do not depend on ``n_jobs``, so neither do the results.

    Parameters
    ----------
    solve : callable
        Takes some rows of ``inputs`` and returns as many rows. Nearly all its time is
        spent in compiled code of NumPy and SciPy, which threads run side by side.
    inputs : ndarray of shape (n_samples, n_features)
        The rows.
    size : int
        Rows a chunk.
    n_jobs : int or None
        Threads, counted as in scikit-learn.
    verbose : int
        1 prints progress at most once a second, 2 after each chunk.
    name : str
        What the lines of progress begin with.

    Returns
    -------
    ndarray of shape (n_samples, n_outputs)
        The results, in the order of the rows.
    """
    total = len(inputs)
    chunks = [inputs[start : start + size] for start in range(0, total, size)]
    begin, printed, done, outputs = time.perf_counter(), 0.0, 0, []
    with _one_blas_thread():  # threads share this limit, processes have their own
        results = Parallel(n_jobs=n_jobs, prefer="threads", return_as="generator")(
            delayed(_solve_chunk)(solve, chunk) for chunk in chunks
        )
        for result in results:
            outputs.append(result)
            done += len(result)
            elapsed = time.perf_counter() - begin
            if verbose > 1 or (verbose and (elapsed - printed > 1 or done == total)):
                printed = elapsed
                print(
                    f"[{name}] {done} of {total} samples  {elapsed:7.1f} s", flush=True
                )
    return np.concatenate(outputs)


def _one_blas_thread():
    # The calls are small: threads of BLAS gain nothing, and where other processes are
    # busy they wait for each other, for most of the time.
    return threadpool_limits(limits=1, user_api="blas")


def _solve_chunk(solve, chunk):
    with _one_blas_thread():
        return solve(chunk)


def cached(name, parameters, generate, *, random_state, cache, data_home, verbose):
    """Return the arrays that ``generate`` makes, from disk if they are there.

    Parameters
    ----------
    name : str
        Name of the data set, the beginning of the file's name.
    parameters : dict
        All that the arrays depend on except ``random_state``: numbers, strings and
        lists of them.
    generate : callable
        Called without arguments; returns a dict of arrays.
    random_state : int, RandomState instance or None
        Only an int says again what the arrays are: otherwise nothing is stored.
    cache : bool
        If False, disk is neither read nor written.
    data_home : str, path-like or None
        Folder of the files; None is the folder ``sklearn_gn`` in the data folder of
        scikit-learn.
    verbose : int
        If not zero, a line says when the arrays come from disk.

    Returns
    -------
    dict of ndarrays
        What ``generate`` returned, now or in an earlier call.
    """
    if not cache or not isinstance(random_state, Integral):
        return generate()
    key = json.dumps({**parameters, "random_state": int(random_state)}, sort_keys=True)
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    try:
        folder = Path(get_data_home(), "sklearn_gn") if data_home is None else data_home
        path = Path(folder).expanduser() / f"{name}_{digest}.npz"
        arrays = _read(path, key)
    except OSError as error:  # no such folder can be made, or not for us to read
        _warn(f"The cache of {name} cannot be read ({error}): generated without it.")
        return generate()
    if arrays is not None:
        if verbose:
            print(f"[make_{name}] read from {path}", flush=True)
        return arrays
    arrays = generate()
    try:
        _write(path, key, arrays)
    except OSError as error:
        _warn(f"{name} could not be stored in {path} ({error}).")
    return arrays


def _read(path, key):
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
    _warn(f"The file {path} cannot be used ({cause}): generated again.", depth=3)
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


def _warn(message, *, depth=2):
    """Warn at the caller of the generator, which is the caller of ``cached``."""
    warnings.warn(message, UserWarning, stacklevel=depth + 2)
