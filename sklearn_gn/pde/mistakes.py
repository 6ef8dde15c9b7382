"""What to write instead, for errors that Python and JAX raise on common mistakes.

Problems are traced before anything is compiled. An error there is one of Python or JAX
about arrays, which says little about the equation: the context manager here says it in
the terms of a problem.
"""

from contextlib import contextmanager

import jax

_NUMPY = (
    "numpy does not take traced values: write jax.numpy (jnp.sin(x[0]), not "
    "np.sin(x[0]))."
)
_PYTHON = (
    "math, float and int do not take traced values: write jax.numpy (jnp.sin(x[0]), "
    "not math.sin(x[0]))."
)
_BRANCH = (
    "Python cannot branch on traced values: write jnp.where(x[0] > 0, a, b), not if; "
    "min and max are jnp.minimum and jnp.maximum."
)
_FIELD = (
    "functions take the values of a field, not the field: write jnp.sin(u(x)), or "
    "apply(jnp.sin, u) for a field to differentiate."
)
_BATCH = (
    "x is one point, of shape (d,), and u(x) its value: write x[0], not x[:, 0:1], and "
    "u['name'](x) or u[0](x) for an output, not u[:, 0:1]."
)
_ONE_VALUE = (
    "a single number is indexed or unpacked. If it is u(x), the problem has one "
    "output: name all unknown functions of a system, Problem(..., outputs=('u', 'v'))."
)
_ATTRIBUTE = (
    "fields and points have no attribute {!r}: write x[0], x[1], ... for the "
    "coordinates, in the order of the axes, and d(u, 'x')(x) for a derivative."
)
_UNKNOWN = (
    "an Unknown has no value before the fit: declare it in the problem, Problem(..., "
    "coefficients={'k': Unknown(1.0)}), and take its value as an argument, def "
    "residual(u, x, k)."
)
_SWAPPED = (
    "the arguments are swapped: the field comes first, as in residual(u, x). Write "
    "def {name}(u, x), with u(x) for its value."
)
_ONE_INDEX_OF_A_NUMBER = "0-dimensional, but 1 were indexed"
_POINT_NAMES = ("x", "X", "t", "z", "point")


@contextmanager
def explained_errors(residual=None, works_swapped=None):
    """Turn errors of common mistakes into ValueErrors that say what to write.

    Parameters
    ----------
    residual : callable, default=None
        Function of a field and a point that is called inside, if there is one.
    works_swapped : callable, default=None
        Whether it works with the point first.
    """
    try:
        yield
    except Exception as error:
        if residual is not None and _is_swapped(residual, error, works_swapped):
            name = getattr(residual, "__name__", "residual")
            name = "residual" if name == "<lambda>" else name
            raise ValueError(_SWAPPED.format(name=name)) from error
        hint = _hint(error)
        if hint is None:
            raise
        raise ValueError(hint) from error


def _hint(error):
    """What to write instead; None where the error is another one."""
    text = str(error)
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return _NUMPY
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return _BRANCH
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return _PYTHON
    if isinstance(error, IndexError) and _ONE_INDEX_OF_A_NUMBER in text:
        return _ONE_VALUE
    if isinstance(error, TypeError) and "iteration over a 0-d array" in text:
        return _ONE_VALUE
    if isinstance(error, IndexError) and "many indices" in text:
        return _BATCH
    if isinstance(error, AttributeError) and _is_of_a_problem(error.obj):
        return _ATTRIBUTE.format(error.name)
    if isinstance(error, TypeError) and "'Unknown'" in text:
        return _UNKNOWN
    if isinstance(error, TypeError) and _is_about_a_field(text):
        return _FIELD
    return None


def _is_of_a_problem(value):
    return isinstance(value, jax.core.Tracer) or type(value).__name__ == "Field"


def _is_about_a_field(text):
    """Whether the message of a TypeError names a field as what was not understood."""
    return "operators.Field" in text or "'Field'" in text or "not Field" in text


def _is_swapped(residual, error, works_swapped):
    code = getattr(residual, "__code__", None)
    names = code.co_varnames[:2] if code is not None else ()
    if len(names) == 2 and names[0] in _POINT_NAMES and "takes a field" in str(error):
        return True
    return works_swapped(residual)
