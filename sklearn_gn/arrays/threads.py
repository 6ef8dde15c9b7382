"""Threads: one for BLAS while a fit computes, several for products of large matrices.

Products are divided by their size alone, so that results do not depend on the number
of cores. Threads of BLAS change the rounding with their number, and wait for each other
where another process has a core: a fit took five times as long on shared cores.
"""

import math
import os
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from functools import cache, partial
from itertools import pairwise
from multiprocessing import current_process
from typing import Any

import joblib
import numpy as np
from threadpoolctl import ThreadpoolController

_LEAST = 2**26  # multiplications: some milliseconds, as long as a thread may wait
_ROWS = 600  # of a block of a product; smaller ones are multiplied at a lower rate


_lock = threading.Lock()
_depths: dict[int, int] = {}  # number of times that each thread is in one_blas_thread
_libraries: list[Any] = []  # of BLAS
_own_threads: dict[Any, int] = {}  # of the libraries of BLAS, while a thread is inside


class one_blas_thread:
    """Give BLAS one thread; then the settings of this thread are what they were.

    LAPACK factors small matrices no faster with a second thread. Large ones do gain on
    idle cores, but on shared ones they take five times as long, since its threads wait
    for each other; and how busy the machine is must not decide, since the number of
    threads changes the rounding. XLA's own matrix products are not affected. The limit
    holds for the process, so the threads of several fits share one.

    Ctrl-C that falls into the end of a ``with`` block leaves its settings, such as
    NumPy's warnings and JAX's precision, as they are inside. The outermost of these
    blocks puts all of them back.
    """

    def __enter__(self):
        thread, jax = threading.get_ident(), sys.modules.get("jax")
        self._depth, self._errors = _depths.get(thread, 0), np.geterr()
        self._precise = None if jax is None else jax.config.jax_enable_x64
        with _lock:
            _depths[thread] = self._depth + 1
            if not _libraries:  # looks through the loaded ones, once
                blas = ThreadpoolController().select(user_api="blas")
                _libraries.extend(blas.lib_controllers)
            if not _own_threads:
                for library in _libraries:
                    _own_threads[library] = library.get_num_threads()
                    with suppress(AttributeError):  # new: one thread has control
                        library.clear_controlling_thread(force=True)
                    library.set_num_threads(1)

    def __exit__(self, *error):
        thread, jax = threading.get_ident(), sys.modules.get("jax")
        with _lock:
            _depths[thread] = self._depth
            if not self._depth:
                del _depths[thread]
            if not _depths:
                while _own_threads:
                    library, n_threads = _own_threads.popitem()
                    with suppress(AttributeError):
                        library.clear_controlling_thread(force=True)
                    library.set_num_threads(n_threads)
        np.seterr(**self._errors)
        precise = self._precise
        if jax is not None and precise is None:  # new: as in a thread without changes
            with ThreadPoolExecutor(1) as pool:
                precise = pool.submit(lambda: jax.config.jax_enable_x64).result()
        if jax is not None and jax.config.jax_enable_x64 != precise:
            jax.enable_x64(precise).__enter__()


def share():
    """Number of threads that a fit may use instead of BLAS; one outside of fits."""
    n_threads = max(_own_threads.values(), default=1)
    if n_threads == 1 or current_process().daemon:  # workers of a pool share the cores
        return 1
    return max(min(joblib.cpu_count(), n_threads) // max(len(_depths), 1), 1)


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
    """Return what functions give, several at the same time where cores allow.

    They release the interpreter's lock, and change nothing that they share. Inside a
    fit, there are as many threads as BLAS had before it, which users and searches with
    several processes limit, divided by the number of fits that run in threads of their
    own. The calling thread does what no other one has begun, so that it waits for none
    that is busy elsewhere.
    """
    n_threads = min(len(tasks), share())
    left, found = deque(enumerate(tasks)), [None] * len(tasks)

    def work():
        while left:
            try:
                number, task = left.popleft()
            except IndexError:  # another thread has taken the last one
                return
            found[number] = task()

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
    return found


def side_by_side(function, items, work=math.inf):
    """Return a function of every item, in threads where the work of one pays."""
    if work <= _LEAST:
        return [function(item) for item in items]
    return in_threads([partial(function, item) for item in items])


@cache
def _pool():
    """Threads that wait for work, as many as there are cores beside the caller's."""
    return ThreadPoolExecutor(max(joblib.cpu_count() - 1, 1), "sklearn_gn")


if hasattr(os, "register_at_fork"):  # a forked process has none of the threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
