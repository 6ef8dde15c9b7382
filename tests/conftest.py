import os

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # before SciPy: else checks are skipped
os.environ.setdefault("MPLBACKEND", "Agg")
# One BLAS thread a worker: two workers with two each on two cores take turns waiting.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(autouse=True)
def _x64_flag_untouched():
    before = jax.config.jax_enable_x64
    yield
    assert jax.config.jax_enable_x64 == before
