"""Functions of JAX that NumPy evaluates, against the same functions compiled."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.special import erf

from sklearn_gn.arrays import numpy_programs
from sklearn_gn.arrays.numpy_programs import evaluated_by_numpy
from sklearn_gn.runtime.fingerprint import known

RNG = np.random.default_rng(0)
POINTS = RNG.uniform(0.2, 0.8, (7, 3))
WEIGHTS = RNG.standard_normal((4, 3))


def network(x):
    return jnp.tanh(WEIGHTS @ x)


def of_points(function):
    return lambda x: jax.vmap(function)(x)


FUNCTIONS = {
    "elementary": lambda x: (
        jnp.sin(x) * jnp.cos(x) / jnp.tan(x) - jnp.exp(-x) ** 1.5 + jnp.log1p(x)
    ),
    "inverse": lambda x: jnp.arcsin(x) + jnp.arccos(x) + jnp.arctan2(x, x[:, :1]),
    "hyperbolic": lambda x: jnp.sinh(x) - jnp.cosh(x) + jnp.arcsinh(x) * jnp.arctanh(x),
    "roots": lambda x: jnp.sqrt(x) + jnp.cbrt(x) + lax.rsqrt(x) + jnp.log(x),
    "special": lambda x: erf(x) + jax.nn.sigmoid(x) + jax.nn.softplus(x),
    "powers": lambda x: (x**2, x**3, x**7, x**-2, x**0, 2.0**x),
    "choices": lambda x: (
        jnp.where(x > 0.5, x, -x),
        jnp.clip(x, 0.3, 0.6),
        jnp.maximum(x, 0.5) - jnp.minimum(x, 0.5),
        jnp.sign(x - 0.5) + jnp.abs(x - 0.5),
        (x > 0.3) & ~(x > 0.6) | jnp.isfinite(x),
    ),
    "rounding": lambda x: jnp.floor(7 * x) + jnp.ceil(7 * x) - jnp.round(7 * x) + x % 1,
    "sums": lambda x: (x.sum(), x.sum(axis=0), x.max(axis=1), x.prod(), x.mean()),
    "shapes": lambda x: (
        jnp.stack([x, 2 * x], axis=1).reshape(-1),
        jnp.concatenate([x, x[:2]]).T,
        x[::2, None, 1:],
        x[::-1],
        jnp.pad(x, [(1, 2), (0, 1)]),
        jnp.arange(3, dtype=x.dtype) * x[0],
        jnp.eye(3, dtype=x.dtype) + x[:3],
        x.astype(np.float32),
    ),
    "windows": lambda x: (
        x[np.array([2, 0, 2])],
        x[:, np.array([1, 0])],
        x.at[1, 2].set(5.0),
        x.at[np.array([0, 0, 3])].add(1.0),
        jax.vmap(lambda row, k: row[k])(x, np.arange(7) % 3),
    ),
    "products": lambda x: (
        x @ x.T,
        x @ x[0],
        jnp.einsum("ni,nj->nij", x, x),
        jnp.einsum("nij,nj->in", x[:, None] * x[:, :, None], x),
    ),
    "complex": lambda x: (
        jnp.abs(lax.complex(x, x[::-1]) ** 2),
        (lax.complex(x, x) / lax.complex(x[::-1], -x)).imag,
        jnp.exp(jnp.conj(lax.complex(x, x))).real,
    ),
    "slopes": of_points(jax.jacfwd(network)),
    "gradients": of_points(jax.jacrev(network)),
    "curvature": of_points(jax.hessian(network)),
    "pieces": lambda x: jax.grad(lambda x: jnp.sum(x[:, :2] ** 2) + jnp.sum(x[1]))(x),
    "unpacked": of_points(lambda p: sum(p) + jnp.linalg.norm(p)),
}


@pytest.fixture(scope="module", params=[np.float64, np.float32])
def by_compiler(request):
    """A type, points of it, and what one compiled program makes of them."""
    x = POINTS.astype(request.param)

    def all_functions(x):
        return {name: function(x) for name, function in FUNCTIONS.items()}

    with jax.enable_x64(request.param is np.float64):
        return request.param, x, jax.jit(all_functions)(x)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_numpy_evaluates_what_is_compiled(name, by_compiler, compiled):
    dtype, x, expected = by_compiler

    def function(x, scale):
        return FUNCTIONS[name](x * jnp.asarray(scale, x.dtype))

    evaluated = evaluated_by_numpy(function, static_argnames="scale")
    with jax.enable_x64(dtype is np.float64):
        jax.eval_shape(lambda: jnp.asarray(0))  # what JAX compiles by itself
        del compiled[:]
        found = evaluated(x, scale=1.0)
        assert not compiled
    expected = expected[name]
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert isinstance(ours, np.ndarray)
        assert ours.dtype == theirs.dtype
        atol = 500 * np.finfo(dtype).eps
        np.testing.assert_allclose(ours, theirs, rtol=10 * atol, atol=atol)


def test_undefined_values_are_those_of_the_compiler():
    function = evaluated_by_numpy(
        lambda x, n: (jnp.log(x), 1 / x, jnp.sqrt(x), jnp.maximum(x, 0), x**n),
        static_argnames="n",
    )
    x = np.array([-1.0, -0.0, 0.0, np.nan, np.inf])
    with jax.enable_x64(True):
        found, expected = function(x, n=-1), function._compiled(x, n=-1)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


HALF = POINTS[:2].astype(np.float16)
LARGE = np.full((2, 3), 100, np.int8)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda x: x.astype(int), np.array([-1.5, 2.7, np.nan, np.inf, -np.inf])),
        (lambda x: x.astype(np.uint8), np.array([-1.0, 300.0])),
        (lambda x: jnp.max(x, initial=-3.0), np.zeros(0)),
        (lambda x: jnp.bitwise_and.reduce(x), np.array([7, 5, 13])),
        (lambda x: lax.pow(x, np.arange(3, dtype=np.int32)), np.float32([2, 3, 4])),
        (lambda x: lax.logistic(lax.complex(x, x)), POINTS),
        (erf, HALF),
        (
            lambda x: lax.dot_general(x, x.T, (((1,), (0,)), ((), ())), None, int),
            LARGE,
        ),
        (
            lambda x: lax.dot_general(
                x, x, (((1,), (1,)), ((0,), (0,))), None, np.float32
            ),
            HALF,
        ),
    ],
)
def test_what_numpy_computes_otherwise_is_compiled(function, given):
    evaluated = evaluated_by_numpy(lambda x, n: function(x), static_argnames="n")
    with jax.enable_x64(True):
        found, expected = evaluated(given, n=0), evaluated._compiled(given, n=0)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_a_weak_type_gives_way_to_another():
    function = evaluated_by_numpy(lambda x, s, n: x * s, static_argnames="n")
    x = np.ones(3, np.float32)
    with jax.enable_x64(True):
        strong, weak = jnp.asarray(2.0, np.float64), jnp.asarray(2.0)
        assert weak.weak_type
        with jax.numpy_dtype_promotion("standard"):
            for scale in (weak, strong, weak):
                found, expected = function(x, scale, n=0), x * scale
                assert found.dtype == expected.dtype


def test_values_are_freed_when_they_are_no_longer_needed():
    function = evaluated_by_numpy(
        lambda x, n: sum(jnp.sin(k * x) for k in range(n)), static_argnames="n"
    )
    x = np.ones(10**5)
    with jax.enable_x64(True):
        function(x, 50)
        tracemalloc.start()
        function(x, 50)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 6 * x.nbytes


def test_threads_may_forget_each_other_s_programs(monkeypatch):
    monkeypatch.setattr(numpy_programs, "_MOST_PROGRAMS", 1)
    function = evaluated_by_numpy(lambda x, n: n * x, static_argnames="n")

    class Forgetful(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            self.clear()  # as another thread does at this moment

    function._programs = Forgetful()
    with jax.enable_x64(True):
        np.testing.assert_array_equal(function(POINTS, 2), 2 * POINTS)


def test_results_are_the_caller_s_own():
    function = evaluated_by_numpy(
        lambda x, n: (x, jnp.zeros(n), jnp.broadcast_to(x[0], x.shape)),
        static_argnames="n",
    )
    x = POINTS.copy()
    with jax.enable_x64(True):
        for _ in range(2):
            found = function(x, n=3)
            np.testing.assert_array_equal(found[1], 0)
            for array in found:
                array += 1
    np.testing.assert_array_equal(x, POINTS)


def test_other_functions_are_compiled():
    def loop(x, n):
        return lax.fori_loop(0, n, lambda k, x: x + jnp.sin(x), x)

    function = evaluated_by_numpy(loop, static_argnames="n")
    with jax.enable_x64(True):
        for n in (2, 3, 2):
            x = expected = POINTS
            for _ in range(n):
                expected = expected + np.sin(expected)
            np.testing.assert_allclose(function(x, n), expected, rtol=1e-12)


def test_windows_beyond_an_array_are_compiled():
    function = evaluated_by_numpy(
        lambda x, k, n: x.at[k].set(n), static_argnames=("n",)
    )
    with jax.enable_x64(True):
        for k, expected in (1, [0, 2, 0]), (5, [0, 0, 0]), (2, [0, 0, 2]):
            found = function(np.zeros(3), np.int32(k), n=2.0)
            np.testing.assert_array_equal(found, expected)


def test_it_can_be_differentiated_and_is_a_part_of_compiled_functions():
    square = evaluated_by_numpy(lambda x, n: x**n, static_argnames="n")
    with jax.enable_x64(True):
        slope = jax.jit(jax.vmap(jax.grad(lambda x: square(x, 2))))(POINTS[0])
    np.testing.assert_allclose(slope, 2 * POINTS[0], rtol=1e-12)


def test_a_global_number_that_changes_is_seen():
    spaces = {}
    exec("factor = 2.0\ndef times(x):\n    return factor * x", spaces)
    function = evaluated_by_numpy(lambda x, times: times(x), static_argnames=("times",))
    for factor in (2.0, 3.0):
        spaces["factor"] = factor
        with jax.enable_x64(True):
            found = function(POINTS, known(spaces["times"]))
        np.testing.assert_array_equal(found, factor * POINTS)


def test_programs_are_forgotten(monkeypatch):
    monkeypatch.setattr(numpy_programs, "_MOST_PROGRAMS", 3)
    function = evaluated_by_numpy(lambda x, n: n * x, static_argnames="n")
    with jax.enable_x64(True):
        for n in range(5):
            np.testing.assert_array_equal(function(POINTS, n), n * POINTS)
    assert len(function._programs) == 2
