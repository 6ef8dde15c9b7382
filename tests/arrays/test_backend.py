"""Precision scope, row buckets, conversion."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from threadpoolctl import threadpool_info, threadpool_limits

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.arrays import backend
from sklearn_gn.solvers import JointGN


def data():
    rng = np.random.RandomState(0)
    return rng.randn(30, 2), rng.randn(30)


def regressor(solver="lm"):
    return ShallowReLURegressor(4, solver=solver, random_state=0, alpha=0.0, tol=1e-2)


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize(
    "solver", ["lm", pytest.param(JointGN(relocations=2), marks=pytest.mark.slow)]
)
def test_results_do_not_depend_on_the_global_flag(solver, flag):
    X, y = data()
    model = regressor(solver)
    expected = model.fit(X, y).predict(X)
    with jax.enable_x64(flag):
        found = model.fit(X, y).predict(X)
        assert jax.config.jax_enable_x64 == flag
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_out_of_memory_is_a_memory_error_with_the_size():
    with pytest.raises(MemoryError, match=r"allocat.*\d.*dtype='float32'"):
        with backend.scope("float64", "cpu"):
            jnp.zeros((2**24, 2**24)).block_until_ready()


def test_blas_is_held_to_one_thread_and_let_go_by_the_last_thread():
    def threads():
        info = threadpool_info()
        return {lib["num_threads"] for lib in info if lib["user_api"] == "blas"}

    def other_fit():
        with backend.one_blas_thread():
            assert threads() == {1}
            begun.set()
            assert go_on.wait(10)

    begun, go_on = threading.Event(), threading.Event()
    with threadpool_limits(limits=2, user_api="blas"), ThreadPoolExecutor(1) as pool:
        with backend.one_blas_thread():
            other = pool.submit(other_fit)
            assert begun.wait(10)
        assert threads() == {1}
        go_on.set()
        other.result()
        assert threads() == {2}


@pytest.mark.parametrize("flag", [False, True])
def test_ctrl_c_at_the_end_of_a_scope_leaves_the_settings_of_the_thread(
    monkeypatch, flag
):
    pressed = []

    @contextmanager
    def left_open(dtype, device):  # nothing is undone
        del dtype, device
        pressed.append(backend.one_blas_thread())
        pressed[-1].__enter__()
        jax.enable_x64(not flag).__enter__()
        np.seterr(over="ignore")
        yield
        raise KeyboardInterrupt

    monkeypatch.setattr(backend, "scope", left_open)
    with jax.enable_x64(flag), threadpool_limits(2, user_api="blas"):
        threads, numpy_warnings = threadpool_info(), np.geterr()
        with pytest.raises(KeyboardInterrupt):
            ShallowReLURegressor(2, solver="lm", alpha=0.0).fit([[0.0], [1.0]], [0, 1])
        assert pressed
        assert threadpool_info() == threads
        assert np.geterr() == numpy_warnings
        assert jax.config.jax_enable_x64 == flag
        assert jnp.zeros(1, dtype=float).dtype == (np.float64 if flag else np.float32)


def test_unknown_device_is_named():
    with pytest.raises(ValueError, match=r"device='tpu' is not available.*cpu"):
        ShallowReLURegressor(2, device="tpu", alpha=0.0).fit([[0.0], [1.0]], [0, 1])


@pytest.mark.parametrize("device", [0, 1.5, [], [-1], [0, 0], range(1)])
def test_devices_that_are_no_list_are_named(device):
    with pytest.raises(ValueError, match=r"must be a name, a jax\.sharding\.Mesh"):
        regressor().set_params(device=device).fit(*data())


def test_cpu_device_gives_the_default_result():
    X, y = data()
    model = regressor()
    a, b = clone(model).fit(X, y), clone(model).set_params(device="cpu").fit(X, y)
    np.testing.assert_allclose(a.predict(X), b.predict(X), rtol=1e-8)


@pytest.mark.parametrize("setting", [None, "XLA_CLIENT_MEM_FRACTION"])
def test_worker_on_a_gpu_says_how_to_divide_its_memory(monkeypatch, setting):
    for share in ("PYTHON_CLIENT_PREALLOCATE", "CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(f"XLA_{share}", raising=False)
    for name in ("XLA_PYTHON_CLIENT_MEM_FRACTION", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    if setting:
        monkeypatch.setenv(setting, "0.2")
    worker = SimpleNamespace(name="LokyProcess-2")
    monkeypatch.setattr(backend, "current_process", lambda: worker)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    backend._warn_of_shared_gpu.cache_clear()
    with warnings.catch_warnings(record=True, action="always") as caught:
        for _ in range(2):
            with backend.scope("float64"):
                pass
    backend._warn_of_shared_gpu.cache_clear()
    assert len(caught) == (0 if setting else 1)
    assert setting or "XLA_CLIENT_MEM_FRACTION" in str(caught[0].message)
