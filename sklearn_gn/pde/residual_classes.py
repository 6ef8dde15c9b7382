"""Residuals: the user's functions, mistakes in them, and the kinds of residuals.

Problems are traced before anything is compiled. Errors of Python or JAX there say
little about the equation: :func:`explained_errors` says them in the terms of a problem.
For an index beyond the last entry of a traced array, JAX takes the last entry and says
nothing: with two axes ``x[2]`` is ``x[1]``. :func:`check_indices` finds these: an index
in the range becomes a static slice, one beyond it a dynamic slice from a start that is
computed from numbers alone. Outputs may depend on some of the axes only, such as a
coefficient field: these are taken at projected points.
"""

import inspect
from collections.abc import Callable
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.pde.local_functions import points_of_row, wave_at
from sklearn_gn.pde.operators import Field

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_ONE_VALUE = (
    "a single number is indexed or unpacked. If it is u(x), the problem has one "
    "output: name all unknown functions of a system, Problem(..., outputs=('u', 'v'))."
)
_HINTS = (  # error, a part of its text, and what to write instead
    (
        jax.errors.TracerArrayConversionError,
        "",
        "numpy does not take traced values: write jax.numpy (jnp.sin(x[0]), not "
        "np.sin(x[0])).",
    ),
    (
        jax.errors.TracerBoolConversionError,
        "",
        "Python cannot branch on traced values: write jnp.where(x[0] > 0, a, b), not "
        "if; min and max are jnp.minimum and jnp.maximum.",
    ),
    (
        jax.errors.ConcretizationTypeError,
        "",
        "math, float and int do not take traced values: write jax.numpy "
        "(jnp.sin(x[0]), not math.sin(x[0])).",
    ),
    (IndexError, "0-dimensional, but 1 were indexed", _ONE_VALUE),
    (TypeError, "iteration over a 0-d array", _ONE_VALUE),
    (
        IndexError,
        "many indices",
        "x is one point, of shape (d,), and u(x) its value: write x[0], not x[:, 0:1], "
        "and u['name'](x) or u[0](x) for an output, not u[:, 0:1].",
    ),
    (
        TypeError,
        "'Unknown'",
        "an Unknown has no value before the fit: declare it in the problem, "
        "Problem(..., coefficients={'k': Unknown(1.0)}), and take its value as an "
        "argument, def residual(u, x, k).",
    ),
    (
        TypeError,
        "Field",
        "functions take the values of a field, not the field: write jnp.sin(u(x)), or "
        "apply(jnp.sin, u) for a field to differentiate.",
    ),
)
_ATTRIBUTE = (
    "fields and points have no attribute {!r}: write x[0], x[1], ... for the "
    "coordinates, in the order of the axes, and d(u, 'x')(x) for a derivative."
)
_SWAPPED = (
    "the arguments are swapped: the field comes first, as in residual(u, x). Write "
    "def {name}(u, x), with u(x) for its value."
)


def named_parameters(function, n_given):
    """Names of a function's parameters after ``n_given``, and whether it has ``**``."""
    parameters = list(_signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    given = {p.name for p in positional[:n_given]}
    kinds = (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
    names = tuple(p.name for p in parameters if p.kind in kinds and p.name not in given)
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)


def call(function, given, coefficients):
    """Call a function with positional arguments and the coefficients that it names."""
    names, takes_all = named_parameters(function, len(given))
    if not takes_all:
        coefficients = {n: value for n, value in coefficients.items() if n in names}
    return function(*given, **coefficients)


def check_signature(function, n_given, coefficients, what):
    """Raise a ValueError if a function cannot be called with these arguments."""
    names, takes_all = named_parameters(function, n_given)
    words = {name: None for name in coefficients if takes_all or name in names}
    signature, empty = _signature(function), inspect.Parameter.empty
    required = [name for name in names if signature.parameters[name].default is empty]
    missing = [name for name in required if name not in words]
    has = ", ".join(repr(c) for c in coefficients if c != "normal")
    if missing:
        few = len(missing) == 1
        verb, what_for = ("is", "a coefficient") if few else ("are", "coefficients")
        raise ValueError(
            f"its parameters must be {what} and coefficients of the problem, and "
            f"{', '.join(map(repr, missing))} {verb} not declared as {what_for}; the "
            f"problem has {has or 'none'}. Declare {'it' if few else 'them'} in "
            f"coefficients={dict.fromkeys(missing, 1.0)} of the problem, as a number "
            "or an Unknown. The coordinates are all in the point, x[0] and x[1], and "
            "several unknown functions in the field, u[0] and u[1], with "
            "outputs=('u', 'v')."
        )
    try:
        signature.bind(*[None] * n_given, **words)
    except TypeError as error:
        more = f" and the coefficients {has} that it names" if has else ""
        raise ValueError(f"it is called with {what}{more}: {error}.") from error


def _signature(function):
    with suppress(TypeError, ValueError):  # of functions not written in Python
        return inspect.signature(function)
    return inspect.signature(lambda *arguments: None)


def flat(result, x):
    """What a residual returns, as one array of shape (k,)."""
    if isinstance(result, (tuple, list)):
        parts = [flat(part, x) for part in result]
        return jnp.concatenate(parts) if parts else jnp.zeros(0, x.dtype)
    if isinstance(result, Field):
        result = result(x)
    if isinstance(result, (str, bytes, dict, type(None))) or callable(result):
        raise ValueError(
            "residual must return numbers, arrays, fields, or a tuple of them, got "
            f"{type(result).__name__}."
        )
    if jnp.iscomplexobj(result):
        raise ValueError("residual is complex: return its real and imaginary parts.")
    return jnp.ravel(jnp.asarray(result, x.dtype))


@contextmanager
def explained_errors(name, residual=None, works_swapped=None):
    """Turn errors into ValueErrors of a name; common mistakes say what to write."""
    try:
        yield
    except Exception as error:
        text = str(error)
        hints = (h for kind, t, h in _HINTS if isinstance(error, kind) and t in text)
        text = next(hints, text)
        of = getattr(error, "obj", None)  # of an AttributeError
        if isinstance(of, (jax.core.Tracer, Field)):
            text = _ATTRIBUTE.format(error.name)
        if residual is not None and works_swapped(residual):
            own = getattr(residual, "__name__", "residual")
            text = _SWAPPED.format(name="residual" if own == "<lambda>" else own)
        raise ValueError(f"{name}: {text}") from error


def check_indices(jaxpr, axes):
    """Raise an IndexError if a number indexes an array out of its range in a trace."""

    def check(equation, given, _):
        if equation.primitive.name != "dynamic_slice":
            return
        sizes, shape = equation.params["slice_sizes"], equation.invars[0].aval.shape
        for start, size, n in zip(given[1:], sizes, shape, strict=True):
            if start is not None and not 0 <= start <= n - size:
                index = int(start) if start > 0 else int(start) - n
                raise IndexError(
                    f"index {index} is out of range: there are {n} entries, "
                    "numbered from 0. The coordinates of a point x follow the "
                    f"axes {axes}, x[0] the first."
                )

    _walk(jaxpr, [None] * len(jaxpr.in_avals), check)


def first_large_term(function, most, *arguments):
    """The first operation of a function whose result is NaN or too large, in words."""
    terms = []

    def look(equation, given, found):
        large = ~(np.abs(np.asarray(found[0], float)) < most)
        if large.any() and not terms:
            place = np.unravel_index(large.argmax(), large.shape)
            numbers = [np.broadcast_to(a, large.shape)[place] for a in given]
            numbers += [v for k, v in equation.params.items() if k == "y"]  # a power
            words = ", ".join(f"{float(number):.4g}" for number in numbers)
            terms.append(f"{equation.primitive.name}({words})")

    _walk(jax.make_jaxpr(function)(*arguments), arguments, look)
    return terms[0] if terms else None


def _walk(trace, arguments, visit):
    """Visit the results of a trace, None where not known, operation by operation."""
    jaxpr = getattr(trace, "jaxpr", trace)
    numbers_alone = any(a is None for a in arguments)
    values = dict(zip(jaxpr.constvars, getattr(trace, "consts", ()), strict=True))
    values |= zip(jaxpr.invars, arguments, strict=True)
    for equation in jaxpr.eqns:
        given = [a.val if hasattr(a, "val") else values[a] for a in equation.invars]
        params, primitive = equation.params, equation.primitive
        known = not any(a is None or (numbers_alone and np.ndim(a)) for a in given)
        inner = jax.tree.leaves(list(params.values()))
        inner = [part for part in inner if hasattr(part, "eqns")]
        if primitive.name in ("jit", "pjit", "custom_jvp_call") and len(inner) == 1:
            found = _walk(inner[0], given, visit)
        else:
            found = [None] * len(equation.outvars)
            if known:
                found = primitive.bind(*given, **params)
                found = found if primitive.multiple_results else [found]
            for part in () if known else inner:  # of a loop, or of a branch
                _walk(part, [None] * len(part.in_avals), visit)
            visit(equation, given, found)
        values |= zip(equation.outvars, found, strict=True)
    return [a.val if hasattr(a, "val") else values[a] for a in jaxpr.outvars]


class ResidualClass(NamedTuple):
    """Residuals of one kind: inside the domain, or of a condition."""

    name: str  # "interior", or that of the condition
    # Maps P fields, P points (d,), data (e,) and coefficients to residuals (k,). What
    # comes after the fields and points that it needs has no effect.
    function: Callable
    n_points: int  # P, then those at which outputs that depend on some axes are taken
    weight: float  # factor in the loss
    n_outputs: int  # k
    condition: Any = None  # None inside
    rows: Any = None  # DerivativeRows of a network; None: this is differentiated itself
    size: float = 1.0  # change of the residuals with a solution of size one


@dataclass(frozen=True)
class Interior:
    """The residual of the equation, as a function like a condition's."""

    residual: Callable
    regions: Any = None  # looked up once for each point

    def __call__(self, fields, points, data, coefficients):
        """Residual at a point, of shape (k,)."""
        del data
        field, x, region = fields[0], points[0], nullcontext()
        if self.regions is not None:
            region = self.regions.within(self.regions.masks(x[None])[0])
        with region:
            return flat(call(self.residual, (field, x), coefficients), x)


def traced_class(problem, name, function, n_points=1, n_data=0, weight=1.0):
    """A kind of residuals, whose number is traced; errors say what is wrong."""
    residual, q = getattr(function, "residual", None), len(problem.outputs)
    n_points *= 1 + len(problem._projections)
    kind = ResidualClass(name, function, n_points, float(weight), 0)
    wave = np.zeros((q, problem.domain.dim)), np.zeros(q), np.zeros(q)

    def evaluate(x, data):
        points = points_of_row(x)
        functions = [wave_at(point, *wave) for point in points]
        return problem._residuals_at(kind, functions, points, data, problem.start)

    def works_swapped(residual):
        def values(x):
            field = problem.field(wave_at(x, *wave))
            return flat(call(residual, (x, field), problem.start), x)

        x = jax.ShapeDtypeStruct((problem.domain.dim,), np.float64)
        with suppress(Exception):  # it has another mistake
            return jax.eval_shape(values, x) is not None
        return False

    points = jax.ShapeDtypeStruct((n_points, problem.domain.dim), np.float64)
    data = jax.ShapeDtypeStruct((n_data,), np.float64)
    with jax.enable_x64(True), explained_errors(name, residual, works_swapped):
        jaxpr = jax.make_jaxpr(evaluate)(points, data)
        (k,) = jaxpr.out_avals[0].shape
        check_indices(jaxpr, problem.domain.axes)
    if k == 0:
        raise ValueError(f"{name}: the residual is empty.")
    return kind._replace(n_outputs=k)


@dataclass(frozen=True)
class Projection:
    """Moves points to the middle of the domain along some axes."""

    moves: tuple  # whether along each axis
    middle: tuple

    def __call__(self, x):
        """The point, or an array of points."""
        middle = np.array(self.middle, x.dtype)
        return x.__array_namespace__().where(np.array(self.moves), middle, x)
