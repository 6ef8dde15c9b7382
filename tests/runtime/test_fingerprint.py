"""Digests by value: what counts, what does not, in this process and in another."""

import functools
import os
import pathlib
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from enum import Enum

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Ridge

from sklearn_gn.networks import MLP
from sklearn_gn.pde import Box, Problem
from sklearn_gn.runtime.fingerprint import digest
from sklearn_gn.solvers import LM


def function(source, **names):
    exec(source, names)
    return names["f"]


def equal(a, b):
    return digest(a) == digest(b)


# -- plain values ---------------------------------------------------------------------

DIFFERENT = [
    None,
    ...,
    True,
    1,
    2,
    1.0,
    -0.0,
    0.0,
    1j,
    "",
    "1",
    b"1",
    (),
    [],
    {},
    {1},
    (1, 2),
    [1, 2],
    ((1,), 2),
    (1, (2,)),
    {"a": 1, "b": 2},
    {"a": 1, "b": 3},
    np.array([1.0, 2.0]),
    np.array([[1.0], [2.0]]),
    np.array([1.0, 2.0], np.float32),
    np.array([1, 2]),
    np.array(["1", "2"]),
    np.array([1, "2"], object),
    np.float64,
    np.dtype("f4"),
    pathlib.PurePosixPath("a"),
    range(3),
    range(4),
    len,
    np.sin,
    jnp.sin,
    jax.nn.relu,
    os,
]


def test_different_values_have_different_digests():
    digests = {digest(value) for value in DIFFERENT}
    assert len(digests) == len(DIFFERENT)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (3, np.int64(3)),
        (0.5, np.float64(0.5)),
        (np.arange(6.0).reshape(2, 3).T, np.arange(6.0).reshape(2, 3).T.copy()),
        ({"a", "b", "c"}, {"c", "b", "a"}),
        ("ab", "".join(["a", "b"])),
        (np.random.RandomState(3), np.random.RandomState(3)),
        (MLP((3,), "tanh"), MLP((3,), "tanh")),
        (LM(hidden_only=True), LM(hidden_only=True)),
        (Box(x=(0, 1)), Box(x=(0, 1))),
    ],
)
def test_equal_values_have_equal_digests(a, b):
    assert equal(a, b)


def test_jax_arrays_count_by_their_content():
    assert equal(jnp.arange(3.0), jnp.arange(3.0))
    assert not equal(jnp.arange(3.0), jnp.arange(1.0, 4.0))


def test_values_that_contain_themselves():
    def circle(last):
        values = [1, last]
        values.append(values)
        return values

    assert equal(circle(2), circle(2))
    assert not equal(circle(2), circle(3))


# -- functions ------------------------------------------------------------------------


def test_functions_count_by_their_code_and_not_by_its_layout():
    one = function("def f(u):\n    return u + 1")
    assert equal(one, function("# a comment\ndef f(u):\n\n    return u + 1"))
    assert not equal(one, function("def f(u):\n    return u + 2"))
    assert not equal(one, function("def f(u):\n    return u - 1"))
    assert not equal(one, function("def f(u):\n    return u.a"))


@pytest.mark.parametrize(
    "source",
    [
        "def f(u):\n    return (lambda v: v + {})(u)",
        "def f(u, k={}):\n    return k * u",
        "def f(u, *, k={}):\n    return k * u",
        "def g(k):\n    return lambda u: k * u\nf = g({})",
        "k = {}\ndef f(u):\n    return k * u",
        "def g(u):\n    return {}\ndef f(u):\n    return g(u)",
        "def g(u):\n    return {}\ndef f(u):\n    return [g(v) for v in u]",
        "class G:\n    k = {}\ndef f(u):\n    return G.k * u",
        "class G:\n    def k(self):\n        return {}\nclass f(G):\n    pass",
        "class G:\n    @property\n    def k(self):\n        return {}\nf = G()",
        "class G:\n    @staticmethod\n    def k():\n        return {}\nf = G.k",
        "class G:\n    def __init__(self, k):\n        self.k = k\nf = G({})",
        "class G:\n    __slots__ = 'k',\nf = G()\nf.k = {}",
        "class G(dict):\n    pass\nf = G(k={})",
        "import functools\nf = functools.partial(max, {})",
        "import functools\n@functools.lru_cache\ndef f(u):\n    return {}",
        "import jax\n@jax.jit\ndef f(u):\n    return {}",
        "import jax\nf = jax.custom_jvp(lambda u: u)\nf.defjvp(lambda p, t: {})",
        "import numpy as np\nk = np.array([{}])\ndef f(u):\n    return k * u",
        "import types\nm = types.ModuleType('m')\nm.k = {}\n"
        "def f(u):\n    return m.k * u",
    ],
)
def test_what_functions_and_objects_refer_to_counts(source):
    assert equal(function(source.format(1)), function(source.format(1)))
    assert not equal(function(source.format(1)), function(source.format(2)))


def test_functions_may_call_each_other():
    source = (
        "def f(n):\n    return n == 0 or g(n - 1)\n"
        "def g(n):\n    return n != {} and f(n - 1)\n"
    )
    assert equal(function(source.format(0)), function(source.format(0)))
    assert not equal(function(source.format(0)), function(source.format(1)))


def test_names_that_a_function_does_not_use_do_not_count():
    source = "def f(u):\n    return k * u"
    assert equal(function(source, k=1, other=2), function(source, k=1, other=3))


def test_functions_of_installed_packages_count_by_name_and_closure():
    def smoothed(rate):
        return jax.value_and_grad(lambda u: rate * u**2)

    assert equal(smoothed(1.0), smoothed(1.0))
    assert not equal(smoothed(1.0), smoothed(2.0))


def test_local_functions_of_installed_packages_differ_by_their_code():
    def power(exponent):
        f = eval(f"lambda u: u**{exponent}")
        f.__module__ = "scipy.special"  # which has no function of this name
        return f

    assert equal(power(2), power(2))
    assert not equal(power(2), power(3))


# -- objects --------------------------------------------------------------------------


@dataclass(frozen=True)
class Wave:
    frequency: float
    weights: np.ndarray = field(compare=False, default=None)

    @functools.cached_property
    def period(self):
        return 1 / self.frequency


class Colour(Enum):
    RED = 1
    GREEN = 2


class Odd:
    def __init__(self, value):
        self.value, self.computed = value, object()

    def __getstate__(self):
        return {"value": self.value}


def test_objects_count_by_their_state():
    assert equal(Wave(2.0), Wave(2.0))
    assert not equal(Wave(2.0), Wave(3.0))
    assert not equal(Wave(2.0, np.ones(2)), Wave(2.0, np.zeros(2)))
    assert not equal(Colour.RED, Colour.GREEN)
    assert not equal(Ridge(alpha=1.0), Ridge(alpha=2.0))


def test_what_an_object_has_computed_of_itself_does_not_count():
    wave = Wave(2.0)
    before = digest(wave)
    assert wave.period == 0.5
    assert digest(wave) == before
    problem = Problem(lambda u, x: u, Box(x=(0, 1)))
    before = digest(problem)
    hash(problem)
    assert digest(problem) == before


def test_objects_say_themselves_what_their_state_is():
    assert equal(Odd(1), Odd(1))
    assert not equal(Odd(1), Odd(2))


def test_flax_modules_count_by_their_fields():
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        width: int = 3

        @nn.compact
        def __call__(self, x):
            return nn.Dense(self.width)(x)

    assert equal(Net(), Net())
    assert not equal(Net(), Net(4))


@pytest.mark.parametrize(
    "make", [threading.Lock, lambda: (k for k in "a"), lambda: sys.__stdin__]
)
def test_values_without_known_content_are_refused(make):
    with pytest.raises(TypeError, match="cannot pickle"):
        digest({"a": [Odd(make())]})


# -- other processes ------------------------------------------------------------------

IN_ANOTHER_PROCESS = """
import numpy as np
from sklearn_gn.runtime.fingerprint import digest
from sklearn_gn.pde import Box, Dirichlet, Problem, d
from sklearn_gn import PINNSolver, ShallowReLURegressor
from sklearn_gn.pde.problems import Kovasznay

k = np.arange(3.0)

class Net:
    names = {"a", "b", "c", "d"}

    def __init__(self):
        self.width = 3

    def apply(self, x):
        return [x for x in self.names if x in {"a", "e", "f"}]

def residual(u, x):
    return d(u, "x") - helper(u)

def helper(u):
    return k * np.sin(u)

net, other = Net(), Net()
other.__dict__["wid" + "th"[:2]] = int("3")
problem = Problem(residual, Box(x=(0, 1)), (Dirichlet(0.0),), coefficients={"c": 2.0})
first = ["tanh", {"x", "y", "zz"}, problem, Kovasznay, net]
print(digest(first), digest(net) == digest(other))
print(digest([PINNSolver(problem), ShallowReLURegressor(init="".join(["auto"]))]))
"""


@pytest.mark.slow
def test_digests_are_the_same_in_every_process():
    here = []
    names = {
        "__name__": "__main__",
        "print": lambda *values: here.append(" ".join(map(str, values))),
    }
    exec(IN_ANOTHER_PROCESS, names)
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # not this one's
    there = subprocess.check_output(
        [sys.executable, "-c", IN_ANOTHER_PROCESS],
        env={**os.environ, "PYTHONHASHSEED": seed},
        text=True,
    )
    assert there.splitlines() == here
    assert here[0].endswith(" True")
