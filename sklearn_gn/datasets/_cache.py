"""What the generators share: work in chunks, results on disk."""

import os
import time
from numbers import Integral
from pathlib import Path

import numpy as np
from joblib import Memory
from sklearn.datasets import get_data_home
from sklearn.utils.parallel import Parallel, delayed

from sklearn_gn._caller import warn_user
from sklearn_gn.arrays.threads import one_blas_thread


def solve_in_chunks(solve, inputs, size, *, n_jobs, verbose, name):
    """Apply ``solve`` to the rows of ``inputs``, ``size`` of them at a time.

    It takes some rows and returns as many; nearly all its time is spent in compiled
    code of NumPy and SciPy, which ``n_jobs`` threads run side by side. The chunks do
    not depend on ``n_jobs``, so neither do the results. ``verbose``: 1 prints progress
    at most once a second, 2 after each chunk, in lines that begin with ``name``.
    """
    total = len(inputs)
    chunks = [inputs[start : start + size] for start in range(0, total, size)]
    begin, printed, done, outputs = time.perf_counter(), 0.0, 0, []

    def solve_chunk(chunk):  # also in a process of its own
        with one_blas_thread():
            return solve(chunk)

    with one_blas_thread():
        results = Parallel(n_jobs=n_jobs, prefer="threads", return_as="generator")(
            delayed(solve_chunk)(chunk) for chunk in chunks
        )
        for result in results:
            outputs.append(result)
            done += len(result)
            elapsed = time.perf_counter() - begin
            if verbose > 1 or (verbose and (elapsed - printed > 1 or done == total)):
                printed = elapsed
                print(f"[{name}] {done} of {total} samples {elapsed:.1f} s", flush=True)
    return np.concatenate(outputs)


def cached(name, function, arguments, *, cache, data_home):
    """Call the function that generates a data set, or read what it returned before.

    ``name`` names the data set with the version of its numbers, and the folder in
    ``data_home``, which is ``sklearn_gn`` in the data folder of scikit-learn if None.
    The function, defined at the top of a module, returns a tuple of arrays. Only an int
    as ``random_state`` says again what they are: otherwise nothing is stored. Where the
    folder cannot be used, the result is computed again with a warning; where a file is
    damaged, joblib does so and logs it. A result is void when the source of the
    function changes.
    """
    if not cache or not isinstance(arguments["random_state"], Integral):
        return function(**arguments)
    arguments = {**arguments, "random_state": int(arguments["random_state"])}
    try:
        home = Path(get_data_home(), "sklearn_gn") if data_home is None else data_home
        place = Path(home).expanduser() / name
        # Compressed files have a checksum.
        memory = Memory(place, compress=("gzip", 1), verbose=0)
        if not os.access(place, os.W_OK):
            raise PermissionError(f"{str(place)!r} cannot be written to")
    except OSError as error:
        warn_user(
            f"The folder of stored results cannot be used ({error}): the result is "
            "computed again."
        )
        return function(**arguments)
    memorized = memory.cache(function, ignore=["n_jobs", "verbose"])
    if arguments["verbose"] and memorized.check_call_in_cache(**arguments):
        print(f"[make_{name.partition('_')[0]}] read from {place}", flush=True)
    return memorized(**arguments)
