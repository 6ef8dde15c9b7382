import os

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # before SciPy: else checks are skipped
os.environ.setdefault("MPLBACKEND", "Agg")

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(autouse=True)
def _x64_flag_untouched():
    before = jax.config.jax_enable_x64
    yield
    assert jax.config.jax_enable_x64 == before
