import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from sklearn_gn.arrays import threads
from sklearn_gn.arrays.threads import one_blas_thread


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr(threads, "share", lambda: 2)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(threads, "_LEAST", 0)
    monkeypatch.setattr(threads, "_ROWS", 7)


@pytest.mark.parametrize("n", [2, 13, 14, 15, 40])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_products_do_not_depend_on_the_number_of_threads(
    small_blocks, monkeypatch, n, dtype
):
    a = np.random.RandomState(n).standard_normal((25, n)).astype(dtype).T
    found = []
    for count in 1, 2, 5:
        monkeypatch.setattr(threads, "share", lambda n=count: n)
        found.append(threads.symmetric_product(a))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[0], found[0].T)
    exact = a.astype(float) @ a.T.astype(float)
    np.testing.assert_allclose(found[0], exact, atol=100 * np.finfo(dtype).eps)
    assert found[0].dtype == dtype


def test_calling_thread_does_not_wait_for_threads_that_are_busy(two_threads):
    go_on, done = threading.Event(), []
    n_busy = threads._pool()._max_workers
    busy = [threads._pool().submit(go_on.wait, 10) for _ in range(n_busy)]
    try:
        threads.in_threads([lambda k=k: done.append(k) for k in range(3)])
        assert sorted(done) == [0, 1, 2]
    finally:
        go_on.set()
    assert all(helper.result() for helper in busy)


def test_calling_thread_works_alone_where_the_interpreter_ends(
    two_threads, monkeypatch
):
    pool, done = ThreadPoolExecutor(1), []
    pool.shutdown()
    monkeypatch.setattr(threads, "_pool", lambda: pool)
    threads.in_threads([lambda k=k: done.append(k) for k in range(3)])
    assert done == [0, 1, 2]


@pytest.mark.parametrize("place", [0, 1])
def test_errors_of_any_thread_are_raised(two_threads, place):
    both = threading.Barrier(2, timeout=10)

    def failing(k):
        both.wait()
        if k == place:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        threads.in_threads([lambda: failing(0), lambda: failing(1)])


def test_infinities_are_as_quiet_in_all_threads(small_blocks, two_threads):
    both = threading.Barrier(2, timeout=10)
    with np.errstate(all="ignore"):
        inside = np.geterr()
        found = []

        def look():
            both.wait()
            found.append(np.geterr())

        threads.in_threads([look, look])
        assert found == [inside, inside]
        assert not np.isfinite(
            threads.symmetric_product(np.full((40, 9), np.inf))
        ).any()


def test_threads_are_those_that_blas_may_have():
    assert threads.share() == 1
    with threadpool_limits(1, "blas"), one_blas_thread():
        assert threads.share() == 1
    with threadpool_limits(2, "blas"), one_blas_thread():
        allowed = threads.share()
        assert 1 <= allowed <= 2
        found = []

        def fit():
            with one_blas_thread():
                found.append(threads.share())

        other = threading.Thread(target=fit)
        other.start()
        other.join()
        assert found == [max(allowed // 2, 1)]
        assert threads.share() == allowed
