"""Functions of JAX whose operations NumPy calls, where they are worth no compiler.

The check of a problem evaluates each residual once, at four points. XLA takes fifty
milliseconds to lower and compile that, and NumPy one to compute it. So a function is
traced by JAX, as if it were to be compiled, and what has been traced is a list of
operations: those that NumPy knows too are called one after the other. A function with
any other operation, such as a loop, is compiled.
"""

from functools import update_wrapper
from inspect import signature
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np

from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.arrays.numpy_operations import OPERATIONS, UnknownOperation

_MOST_PROGRAMS = 64  # of a function; then all of them are forgotten
_CALLS = {  # functions within functions, and the parameter that holds them
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
# What an operation raises whose parameters another version of JAX states otherwise.
_UNLIKE_EXPECTED = AttributeError, KeyError, TypeError, ValueError

_UNSEEN = object()  # in place of a program, where none has been sought

_evaluated = []  # all functions


class evaluated_by_numpy:
    """A function of JAX that NumPy evaluates, or that is compiled.

    It is compiled, by :class:`~sklearn_gn.arrays.compilation.jit_by_size`, where it
    makes use of an operation that is not known here, where its arguments are not in the
    memory of the host, and inside of other functions that are being traced.

    Parameters
    ----------
    function : callable
        Returns a tree of arrays, which are NumPy's where NumPy evaluates it.
    static_argnames : str or tuple of str
        As for ``jax.jit``.
    """

    def __init__(self, function, *, static_argnames):
        update_wrapper(self, function)
        names = static_argnames
        self._static = (names,) if isinstance(names, str) else tuple(names)
        parameters = list(signature(function).parameters)
        self._static_places = {parameters.index(name) for name in self._static}
        self._compiled = jit_by_size(function, static_argnames=static_argnames)
        self._traced = jax.jit(function, static_argnames=static_argnames).trace
        self._programs = {}  # by static arguments and shapes
        _evaluated.append(self)

    def __call__(self, *args, **kwargs):
        """Evaluate the function."""
        places, names = self._static_places, self._static
        fixed = tuple(args[k] for k in places if k < len(args))
        named = tuple((name, kwargs[name]) for name in names if name in kwargs)
        given = [a for k, a in enumerate(args) if k not in places]
        others = {name: a for name, a in kwargs.items() if name not in names}
        leaves, tree = jax.tree.flatten((given, others))
        if not all(map(_is_in_memory, leaves)):
            return self._compiled(*args, **kwargs)
        arrays = list(map(np.asarray, leaves))
        shapes = tuple((a.shape, a.dtype) for a in arrays)
        weak = tuple(getattr(leaf, "weak_type", False) for leaf in leaves)
        key = fixed, named, tree, shapes, weak, jax.config.jax_enable_x64
        # Another thread may forget all programs at any time.
        program = self._programs.get(key, _UNSEEN)
        if program is _UNSEEN:
            if len(self._programs) >= _MOST_PROGRAMS:
                self._programs.clear()
            program = self._programs[key] = self._program(args, kwargs)
        if program is not None:
            try:
                return program(arrays)
            except UnknownOperation:
                self._programs[key] = None
        return self._compiled(*args, **kwargs)

    def _program(self, args, kwargs):
        """The program for some arguments; None where they are compiled for."""
        traced = self._traced(*args, **kwargs)
        try:
            return _program(traced.jaxpr, jax.tree.structure(traced.out_info))
        except (UnknownOperation, *_UNLIKE_EXPECTED):
            return None

    def clear_cache(self):
        """Forget what has been traced and compiled."""
        self._programs.clear()
        self._compiled.clear_cache()


def forget():
    """Forget the programs of all functions."""
    for function in _evaluated:
        function._programs.clear()


def _is_in_memory(leaf):
    if isinstance(leaf, np.ndarray | np.generic):
        return True
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return False
    on_host = all(device.platform == "cpu" for device in leaf.devices())
    return on_host and leaf.is_fully_addressable


# --- programs ------------------------------------------------------------------------


class _Program(NamedTuple):
    """Operations on numbered values, in the order in which they are called."""

    # Of (function, numbers of its arguments, number of its result, numbers of values
    # that no later one needs).
    steps: list
    constants: list  # values by number; None for those that are computed
    inputs: list  # numbers
    outputs: list
    tree: Any  # of the outputs

    def __call__(self, arrays):
        values = self.constants.copy()
        for number, array in zip(self.inputs, arrays, strict=True):
            values[number] = array
        with np.errstate(all="ignore"):  # as in a compiled function
            for function, given, number, last in self.steps:
                values[number] = function(*[values[k] for k in given])
                for k in last:
                    values[k] = None
        # Copies, since a result may be constant, or a view of another one.
        found = [np.array(values[number]) for number in self.outputs]
        return jax.tree.unflatten(self.tree, found)


def _program(closed, tree):
    """The program of what has been traced."""
    maker = _Maker()
    inputs = [maker.number() for _ in closed.jaxpr.invars]
    outputs = maker.inlined(closed.jaxpr, closed.consts, inputs)
    needed, steps = set(outputs), []
    for function, given, number in reversed(maker.steps):
        if number in needed:
            steps.append((function, given, number, set(given) - needed))
            needed.update(given)
    return _Program(steps[::-1], maker.values, inputs, outputs, tree)


class _Maker:
    """Collects the operations, of which equal ones are called once."""

    def __init__(self):
        self.steps, self.values = [], []
        self._known = {}  # number of what has been computed already

    def number(self, value=None):
        """The number of a new value, which is given if it is constant."""
        self.values.append(value)
        return len(self.values) - 1

    def inlined(self, jaxpr, constants, inputs):
        """Numbers of the results of a traced function."""
        numbers = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, value in zip(jaxpr.constvars, constants, strict=True):
            numbers[variable] = self.number(np.asarray(value))

        def number_of(atom):
            if hasattr(atom, "val"):  # a literal
                return self.number(np.asarray(atom.val, atom.aval.dtype))
            return numbers[atom]

        for equation in jaxpr.eqns:
            found = self._results(equation, list(map(number_of, equation.invars)))
            numbers.update(zip(equation.outvars, found, strict=True))
        return list(map(number_of, jaxpr.outvars))

    def _results(self, equation, given):
        """Numbers of the results of an operation."""
        name, params = equation.primitive.name, equation.params
        if name in _CALLS:
            inner = params[_CALLS[name]]
            if hasattr(inner, "consts"):  # what is closed
                return self.inlined(inner.jaxpr, inner.consts, given)
            return self.inlined(inner, (), given)
        if name == "split":
            stops = np.cumsum(params["sizes"])
            ranges = [slice(*map(int, each)) for each in pairwise((0, *stops))]
            return self._parts(ranges, params["axis"], *given)
        if name == "unstack":
            return self._parts(range(len(equation.outvars)), params["axis"], *given)
        if name == "optimization_barrier":
            return given
        if name not in OPERATIONS or len(equation.outvars) != 1:
            raise UnknownOperation(name)
        shapes = [variable.aval for variable in equation.invars]
        function = OPERATIONS[name](params, equation.outvars[0].aval, *shapes)
        return [self._result((name, tuple(params.items())), function, given)]

    def _parts(self, places, axis, number):
        """Numbers of what stands at each of some places of an axis."""
        found = []
        for place in places:
            at = (slice(None),) * axis + (place,)
            name = "part", axis, str(place)
            found.append(self._result(name, lambda x, at=at: x[at], [number]))
        return found

    def _result(self, operation, function, given):
        """The number of the only result, computed at once if all it needs is known."""
        if all(self.values[k] is not None for k in given):
            with np.errstate(all="ignore"):
                return self.number(function(*[self.values[k] for k in given]))
        key = *operation, tuple(given)
        if key not in self._known:
            self._known[key] = self.number()
            self.steps.append((function, given, self._known[key]))
        return self._known[key]
