"""What all tests share.

Exact comparison is for shapes, labels, integers, copies, files that are read back, and
what ``doc/user_guide/determinism.rst`` promises bit for bit on one machine: a fit that
is repeated, one that is resumed from a checkpoint, the predictions of a saved model,
fits in threads, and threads of BLAS with the default solvers. All else has a tolerance
that follows from the conditioning, or a property in place of a number: kernels of BLAS
round differently from processor to processor.
"""

import gc
import itertools
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # before SciPy: else checks are skipped
os.environ.setdefault("MPLBACKEND", "Agg")
# One BLAS thread a worker: two workers with two each on two cores take turns waiting.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and so with boosted trees
# Compilation takes most of the time of the tests, and they run little of what it makes.
_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):  # others refuse it
    _FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", _FLAGS)
# What one worker has compiled, the other reads, and so do the processes of parallel
# fits. The first to come here is the process that starts the workers.
_OWN_CACHE = None
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    from sklearn_gn import enable_compilation_cache

    _OWN_CACHE = tempfile.mkdtemp(prefix="sklearn_gn_")
    enable_compilation_cache(_OWN_CACHE)

import jax  # noqa: E402
import pytest  # noqa: E402

from sklearn_gn.arrays import programs  # noqa: E402
from sklearn_gn.data import rows_source  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Where in the source each operation of a program comes from is read by nobody here.
jax.config.update("jax_traceback_in_locations_limit", 0)

# What is forgotten is traced again. Compiled like this, a program has twelve maps of
# memory rather than fifty, and their number is bounded below.
programs.MOST = 1000

_MAPS = Path("/proc/self/maps")
_MOST_MAPS = 48_000
_tests_run = itertools.count()


@pytest.hookimpl(tryfirst=True)  # before slow tests are left out
def pytest_collection_modifyitems(items):
    # Of a test that repeats, the first case is quick: the others need make slow.
    begun = set()
    for item in items:
        if item.get_closest_marker("repeats") is None:
            continue
        test = (item.path, item.originalname)
        if test in begun:
            item.add_marker(pytest.mark.slow)
        begun.add(test)


def pytest_collection_finish(session):
    # What is imported and collected stays: the garbage collector need not visit it.
    del session
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_unconfigure(config):
    del config
    if _OWN_CACHE is not None:
        shutil.rmtree(_OWN_CACHE, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    # A file at a time: what its tests have in common is traced by one worker only.
    if config.getvalue("dist") == "load":
        from xdist.scheduler import LoadFileScheduling

        return LoadFileScheduling(config, log)
    return None


@pytest.fixture
def float64():
    """Double precision on the JAX side."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def compiled():
    """Names of the programs that are compiled during the test, as they come."""
    names = []

    def listen(event, seconds, **about):
        del seconds
        if event.endswith("backend_compile_duration"):
            names.append(about["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def chunk_limits(monkeypatch):
    """Function that sets how many rows of chunks are sampled, and summed at a time."""

    def set_limits(sample=None, part=None):
        for name, limit in (("_SAMPLE_ROWS", sample), ("_PART_ROWS", part)):
            if limit is not None:
                monkeypatch.setattr(rows_source, name, limit)

    return set_limits


@pytest.fixture
def largest_dense(monkeypatch):
    """Function that sets the size above which no matrix is formed."""

    def set_limit(size):
        for name, module in list(sys.modules.items()):
            if name.startswith("sklearn_gn.") and hasattr(module, "LARGEST_DENSE"):
                monkeypatch.setattr(module, "LARGEST_DENSE", size)

    return set_limit


@pytest.fixture(autouse=True)
def _x64_flag_untouched():
    before = jax.config.jax_enable_x64
    yield
    assert jax.config.jax_enable_x64 == before


@pytest.fixture(autouse=True)
def _few_executables():
    # Every compiled function maps memory, and Linux ends a process that has more than
    # 65,530 maps: so many are compiled by a worker that runs all tests.
    yield
    if next(_tests_run) % 50 == 0 and _MAPS.exists():
        if _MAPS.read_bytes().count(b"\n") > _MOST_MAPS:
            jax.clear_caches()
            gc.collect()
