"""What the generators share: work in chunks, results on disk."""

import time
from numbers import Integral
from pathlib import Path

import numpy as np
from sklearn.datasets import get_data_home
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_limits

from sklearn_gn.runtime.disk_cache import cached_on_disk


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


def cached(name, function, arguments, *, cache, data_home):
    """Call the function that generates a data set, or read what it returned before.

    Parameters
    ----------
    name : str
        Name of the data set with the version of its numbers; the name of the folder.
    function : callable
        Defined at the top of a module; returns a tuple of arrays.
    arguments : dict
        By name, among them ``random_state``, ``n_jobs`` and ``verbose``. Only an int as
        ``random_state`` says again what the arrays are: otherwise nothing is stored.
    cache : bool
        If False, disk is neither read nor written.
    data_home : str, path-like or None
        Folder that holds those of the data sets; if None, the folder ``sklearn_gn`` in
        the data folder of scikit-learn.

    Returns
    -------
    tuple of ndarrays
        What the function returned, now or in an earlier call.
    """
    if not cache or not isinstance(arguments["random_state"], Integral):
        return function(**arguments)
    arguments = {**arguments, "random_state": int(arguments["random_state"])}

    def folder():
        home = Path(get_data_home(), "sklearn_gn") if data_home is None else data_home
        return Path(home).expanduser() / name

    def announce(place):
        if arguments["verbose"]:
            print(f"[make_{name.partition('_')[0]}] read from {place}", flush=True)

    return cached_on_disk(
        function,
        arguments,
        folder=folder,
        ignore=("n_jobs", "verbose"),
        on_read=announce,
    )
