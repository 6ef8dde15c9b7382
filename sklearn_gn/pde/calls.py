"""The user's functions: their calls, what they return, and what mistakes in them mean.

Problems are traced before anything is compiled. An error there is one of Python or JAX
about arrays, which says little about the equation: :func:`explained_errors` says it in
the terms of a problem.

For an index beyond the last entry of an array that is traced, JAX takes the last entry
and says nothing: with two axes ``x[2]`` is ``x[1]``, and another equation is solved. An
index in the range becomes a static slice, one beyond it a dynamic slice from a start
that is computed from numbers alone; :func:`check_indices` finds these.
"""

import inspect
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.pde.operators import Field

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_ONE_VALUE = (
    "a single number is indexed or unpacked. If it is u(x), the problem has one "
    "output: name all unknown functions of a system, Problem(..., outputs=('u', 'v'))."
)
_FIELD = (
    "functions take the values of a field, not the field: write jnp.sin(u(x)), or "
    "apply(jnp.sin, u) for a field to differentiate."
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
    (TypeError, "operators.Field", _FIELD),
    (TypeError, "'Field'", _FIELD),
    (TypeError, "not Field", _FIELD),
)
_ATTRIBUTE = (
    "fields and points have no attribute {!r}: write x[0], x[1], ... for the "
    "coordinates, in the order of the axes, and d(u, 'x')(x) for a derivative."
)
_SWAPPED = (
    "the arguments are swapped: the field comes first, as in residual(u, x). Write "
    "def {name}(u, x), with u(x) for its value."
)
_POINT_NAMES = ("x", "X", "t", "z", "point")
_KNOWN = {  # what JAX computes of an index that is a number
    "lt": np.less,
    "add": np.add,
    "select_n": lambda which, *cases: cases[int(which)],
}


def named_parameters(function, n_given):
    """Return the names of a function's parameters after the first ones, and more.

    The first ``n_given`` are given by position; the second answer is whether the
    function has ``**`` and takes any name.
    """
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
    """Raise a ValueError if a function cannot be called so.

    That is with ``n_given`` positional arguments, which ``what`` calls by name, and
    with those of the coefficients that it names.
    """
    names, takes_all = named_parameters(function, n_given)
    words = {name: None for name in coefficients if takes_all or name in names}
    parameters = _signature(function).parameters
    empty = inspect.Parameter.empty
    required = [name for name in names if parameters[name].default is empty]
    missing = [name for name in required if name not in words]
    if missing:
        declared = ", ".join(f"{name!r}: 1.0" for name in missing)
        few = len(missing) == 1
        verb, what_for = ("is", "a coefficient") if few else ("are", "coefficients")
        has = ", ".join(repr(c) for c in coefficients if c != "normal") or "none"
        raise ValueError(
            f"its parameters must be {what} and coefficients of the problem, and "
            f"{', '.join(map(repr, missing))} {verb} not declared as {what_for}; the "
            f"problem has {has}. Declare {'it' if few else 'them'} in "
            f"coefficients={{{declared}}} of the problem, as a number or an Unknown. "
            "The coordinates are all in the point, x[0] and x[1], and several unknown "
            "functions in the field, u[0] and u[1], with outputs=('u', 'v')."
        )
    try:
        _signature(function).bind(*[None] * n_given, **words)
    except TypeError as error:
        named = ", ".join(repr(c) for c in coefficients if c != "normal")
        more = f" and those of the coefficients {named} that it names" if named else ""
        raise ValueError(f"it is called with {what}{more}: {error}.") from error


def _signature(function):
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some functions that are not written in Python
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


# --- mistakes -------------------------------------------------------------------------


@contextmanager
def explained_errors(residual=None, works_swapped=None):
    """Turn errors of common mistakes into ValueErrors that say what to write.

    ``residual``, if given, is the function of a field and a point that is called
    inside, and ``works_swapped`` says whether it works with the point first.
    """
    try:
        yield
    except Exception as error:
        if residual is not None:
            code = getattr(residual, "__code__", None)
            names = () if code is None else code.co_varnames[:2]
            point_first = len(names) == 2 and names[0] in _POINT_NAMES
            swapped = point_first and "takes a field" in str(error)
            if swapped or works_swapped(residual):
                name = getattr(residual, "__name__", "residual")
                name = "residual" if name == "<lambda>" else name
                raise ValueError(_SWAPPED.format(name=name)) from error
        hint = _hint(error)
        if hint is None:
            raise
        raise ValueError(hint) from error


def _hint(error):
    """What to write instead; None where the error is another one."""
    if isinstance(error, AttributeError) and (
        isinstance(error.obj, jax.core.Tracer) or isinstance(error.obj, Field)
    ):
        return _ATTRIBUTE.format(error.name)
    hints = (
        hint
        for kind, text, hint in _HINTS
        if isinstance(error, kind) and text in str(error)
    )
    return next(hints, None)


@contextmanager
def named_errors(name):
    """Turn errors into ValueErrors that say where they come from."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{name}: {error}") from error


# --- indices that are out of range ----------------------------------------------------


def check_indices(jaxpr, axes):
    """Raise an IndexError if a number indexes an array out of its range in a trace."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    known = {}

    def value(atom):
        return atom.val if hasattr(atom, "val") else known.get(atom)  # a literal

    for equation in jaxpr.eqns:
        for inner in jax.tree.leaves(tuple(equation.params.values())):
            if hasattr(inner, "eqns"):
                check_indices(inner, axes)
        name, values = equation.primitive.name, [value(v) for v in equation.invars]
        if name == "dynamic_slice":
            sizes = equation.params["slice_sizes"]
            shape = equation.invars[0].aval.shape
            for start, size, n in zip(values[1:], sizes, shape, strict=True):
                if start is not None and not 0 <= start <= n - size:
                    index = int(start) if start > 0 else int(start) - n
                    raise IndexError(
                        f"index {index} is out of range: there are {n} entries, "
                        "numbered from 0. The coordinates of a point x are those of "
                        f"the axes {axes}, x[0] the first."
                    )
        elif name in _KNOWN and all(v is not None for v in values):
            known[equation.outvars[0]] = _KNOWN[name](*values)


# --- numbers that are too large -------------------------------------------------------


def first_large_term(function, most, *arguments):
    """The first operation of a function whose result is NaN or too large, in words."""
    return _walked(jax.make_jaxpr(function)(*arguments), arguments, most)[1]


def _walked(closed, arguments, most):
    """Results of a trace, operation by operation, and the first large term or None."""
    jaxpr = closed.jaxpr
    values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values |= zip(jaxpr.invars, arguments, strict=True)

    def value(atom):
        return atom.val if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        given, params = list(map(value, equation.invars)), equation.params
        inner = [p for p in params.values() if hasattr(p, "jaxpr")]
        if inner:
            found, term = _walked(inner[0], given, most)
            if term is not None:
                return found, term
        else:
            found = equation.primitive.bind(*given, **params)
            found = found if equation.primitive.multiple_results else [found]
            large = ~(np.abs(np.asarray(found[0], float)) < most)
            if large.any():
                place = np.unravel_index(large.argmax(), large.shape)
                numbers = [np.broadcast_to(a, large.shape)[place] for a in given]
                numbers += [params["y"]] if "y" in params else []  # a power
                words = ", ".join(f"{float(number):.4g}" for number in numbers)
                return found, f"{equation.primitive.name}({words})"
        values |= zip(equation.outvars, found, strict=True)
    return list(map(value, jaxpr.outvars)), None
