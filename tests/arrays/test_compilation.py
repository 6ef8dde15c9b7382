"""Compilation by the size of the data."""

import jax
import numpy as np
import pytest

from sklearn_gn.arrays import compilation
from sklearn_gn.arrays.compilation import jit_by_size


@pytest.fixture
def options_of_calls(monkeypatch):
    """The compiler options of every call of a function that jax.jit has compiled."""
    seen, jit = [], jax.jit

    def recording(function, compiler_options=None, **arguments):
        compiled = jit(function, **arguments)

        def call(*args):
            seen.append(compiler_options)
            return compiled(*args)

        return call

    monkeypatch.setattr(jax, "jit", recording)
    return seen


@pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="the options are those of a CPU"
)
def test_small_and_medium_arguments_are_compiled_cheaply(options_of_calls, monkeypatch):
    monkeypatch.setattr(compilation, "cheap_options", lambda level: {"level": level})
    double = jit_by_size(lambda x: 2 * x, largest=3, medium=5)
    for n in (3, 4, 6):
        np.testing.assert_array_equal(double(np.ones(n)), np.full(n, 2.0))
    assert options_of_calls == [{"level": 0}, {"level": 1}, None]


def test_unknown_options_are_dropped(monkeypatch):
    known = {"xla_backend_optimization_level": 0}
    monkeypatch.setattr(compilation, "_CHEAP", {"xla_no_such_option": 1})
    double = jit_by_size(lambda x: 2 * x)
    for _ in range(2):
        assert float(double(np.float32(3))) == 6
    found = compilation.cheap_options(0)
    assert found == (known if jax.default_backend() == "cpu" else {})
