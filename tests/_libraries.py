"""NumPy and JAX: tests hold both to the same results."""

from contextlib import contextmanager

from sklearn_gn.arrays import libraries


@contextmanager
def forced_jax():
    """Let JAX compute on a CPU what NumPy would, in this process."""
    before, libraries.jax_is_forced = libraries.jax_is_forced, True
    try:
        yield
    finally:
        libraries.jax_is_forced = before
