"""Values of the user by their content: copies are one, changed ones are others."""

import jax
import numpy as np
import pytest

from sklearn_gn.runtime import fingerprint as module
from sklearn_gn.runtime.fingerprint import known


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch):
    monkeypatch.setattr(module, "_known", type(module._known)())


def function(source, namespace):
    exec(source, namespace)
    return namespace["f"]


def test_the_first_of_equal_content_stands_for_all():
    first, again, other = (function(f"def f(x): return x + {k}", {}) for k in (1, 1, 2))
    assert known(first) is first
    assert known(again) is first
    assert known(other) is other
    lines = (line for line in "ab")  # which has no digest: it counts by its identity
    assert known(lines) is lines


def test_a_function_whose_global_has_changed_is_compiled_again():
    names = {"k": 1.0}
    f = function("def f(x): return k * x", names)
    compiled = jax.jit(lambda x, g: g(x), static_argnums=1)
    assert compiled(2.0, known(f)) == 2
    names["k"] = 3.0
    assert compiled(2.0, known(f)) == 6
    names["k"] = 1.0
    assert compiled(2.0, known(f)) == 2


def test_a_copy_whose_globals_have_changed_does_not_stand_for_the_other():
    compiled = jax.jit(lambda x, g: g(x), static_argnums=1)
    first_names, names = {"k": 1.0}, {"k": 1.0}
    first, second = (
        function("def f(x): return k * x", each) for each in (first_names, names)
    )
    assert compiled(2.0, known(first)) == 2
    first_names["k"] = 5.0
    assert known(second) is second
    assert compiled(np.ones(3), known(second)).tolist() == [1.0] * 3
    assert compiled(2.0, known(first)) == 10


def test_a_function_that_is_no_longer_kept_is_compiled_again():
    names = {"k": 1.0}
    f = function("def f(x): return k * x", names)
    compiled = jax.jit(lambda x, g: g(x), static_argnums=1)
    assert compiled(2.0, known(f)) == 2
    for k in range(module._MOST):
        known(function(f"def f(x): return {k}", {}))
    names["k"] = 3.0
    assert compiled(2.0, known(f)) == 6
