"""Products of large matrices in NumPy, divided among threads.

They are divided by their size alone, so that results do not depend on the number of
cores. Threads of BLAS change the rounding with their number, and wait for each other
where another process has a core: a fit took five times as long on shared cores.
"""

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from functools import cache, partial
from itertools import pairwise

import joblib
import numpy as np

from sklearn_gn.arrays.backend import one_blas_thread

_LEAST = 2**28  # multiplications: some milliseconds, as long as a thread may wait
_ROWS = 600  # of a block of a product; smaller ones are multiplied at a lower rate


def symmetric_product(a):
    """``a a^T`` for a matrix of NumPy."""
    n = len(a)
    if n * a.size < _LEAST:
        return a @ a.T
    found = np.empty((n, n), a.dtype)
    count = max(2, n // _ROWS)
    ends = [n * k // count for k in range(count + 1)]
    parts = [slice(*each) for each in pairwise(ends)]

    def multiply(i, j):
        np.matmul(a[parts[i]], a[parts[j]].T, out=found[parts[i], parts[j]])
        if i != j:
            found[parts[j], parts[i]] = found[parts[i], parts[j]].T

    # Blocks of the diagonal, which take half as long, come last.
    pairs = [(i, i - d) for d in range(count - 1, -1, -1) for i in range(d, count)]
    in_threads([partial(multiply, *pair) for pair in pairs])
    return found


def in_threads(tasks):
    """Call functions without arguments, several at the same time where cores allow.

    Inside a fit, there are as many threads as BLAS had before it, which users and
    searches with several processes limit, divided by the number of fits that run in
    threads of their own. The calling thread does what no other one has begun, so that
    it waits for none that is busy elsewhere.

    Parameters
    ----------
    tasks : list of callable
        They release the interpreter's lock, and change nothing that they share.
    """
    n_threads = min(len(tasks), one_blas_thread.share())
    left = deque(tasks)

    def work():
        while left:
            try:
                task = left.popleft()
            except IndexError:  # another thread has taken the last one
                return
            task()

    helpers = []
    with suppress(RuntimeError):  # the interpreter ends, and begins no more threads
        for _ in range(n_threads - 1):
            # In the caller's context, which says what NumPy does about infinities.
            helpers.append(_pool().submit(copy_context().run, work))
    try:
        work()
    finally:
        left.clear()
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()


@cache
def _pool():
    """Threads that wait for work, as many as there are cores beside the caller's."""
    return ThreadPoolExecutor(max(joblib.cpu_count() - 1, 1), "sklearn_gn")


if hasattr(os, "register_at_fork"):  # a forked process has none of the threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
