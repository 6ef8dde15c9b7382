"""What the generators share: work in chunks, results on disk."""

import json
import time
from numbers import Integral
from pathlib import Path

import numpy as np
from sklearn.datasets import get_data_home
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_limits

from sklearn_gn.core.store import load_or_generate


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

    def folder():
        return Path(get_data_home(), "sklearn_gn") if data_home is None else data_home

    def announce(path):
        if verbose:
            print(f"[make_{name}] read from {path}", flush=True)

    # Warnings point to the caller of the generator, which is our caller.
    return load_or_generate(
        name, key, generate, folder=folder, stacklevel=3, on_read=announce
    )
