"""Fields and the operators that take fields to fields.

A field is a function of ONE point ``x``, an array of shape (d,), with names for its
axes and outputs. Operators differentiate it by forward automatic differentiation,
so that they compose: ``div(k * grad(u))`` is a field.

Evaluate a field only at the point that the residual was given, and take at most two
derivatives of the unknown ``u``: the solver may hand over the Taylor polynomial of
second order about that point, which has the value, first and second derivatives of u
there and nowhere else.
"""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.pde.coefficients import present
from sklearn_gn.pde.local_functions import UNROLLED, LocalFunction, combined

_AXES_AT_ONCE = 64  # directions differentiated in one batch: bounds the memory
# Collects fields that are differentiated, the axes, and whether by a divergence.
differentiated: ContextVar[list | None] = ContextVar("differentiated", default=None)
_jump: ContextVar[Any] = ContextVar("jump", default=None)


@contextmanager
def holding(variable: ContextVar, value: Any) -> Iterator[Any]:
    """Give a variable a value while the context is open."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


@dataclass(eq=False, repr=False)
class Field:
    """A function of one point, with names.

    ``u[0]``, ``u["p"]`` are components, ``u[:2]``, ``u["u", "v"]`` fields of several;
    ``u, v, p = field`` unpacks. Fields combine by ``+ - * / **`` and ``@`` with fields,
    functions of a point, numbers and arrays; two shapes must be equal, or one a scalar.

    Parameters
    ----------
    function : callable
        Takes ``x`` of shape (d,), returns an array: () for a scalar field, (q,) for one
        of q components.
    axes : tuple of str
        Names of the d axes.
    time : str, default=None
        The axis that is time, which ``grad``, ``div``, ``laplacian`` and ``hessian``
        leave out.
    outputs : tuple of str, default=None
        Names of the components.
    directions : jax.Array of int, default=None
        Axes of space from whose second derivatives ``laplacian`` estimates the sum over
        all axes, in very high dimensions.

    Examples
    --------
    >>> from sklearn_gn.pde import Field, laplacian
    >>> u = Field(lambda x: x[0] ** 2 * x[1], axes=("x", "y"))
    >>> float(laplacian(u)([1.0, 3.0]))
    6.0
    """

    __array_ufunc__ = None  # arrays of numpy on the left leave the operation to us

    function: Callable[..., Any]
    axes: tuple[str, ...]
    time: str | None = None
    outputs: tuple[str, ...] | None = None
    directions: Any = None

    def __call__(self, x: Any) -> Any:
        """Value at a point of shape (d,)."""
        return jnp.asarray(self.function(jnp.asarray(x)))

    def __repr__(self):
        return f"Field(axes={self.axes}, time={self.time!r}, outputs={self.outputs})"

    def derived(self, function: Callable[..., Any], outputs: Any = None) -> "Field":
        """A field of another function on the same axes."""
        return Field(function, self.axes, self.time, outputs, self.directions)

    def linear_image(self, linear: Callable[..., Any], outputs: Any = None) -> "Field":
        """A field of a linear function of the values."""
        return self.derived(combined(linear, _known(self) or self), outputs)

    def axis(self, name: str | int) -> int:
        """Index of an axis, given by name or index."""
        if not isinstance(name, (str, Integral)):
            raise ValueError(
                f"an axis is given by its name: write d(u, {self.axes[0]!r})(x), not "
                f"d(u, x). The axes are {self.axes}."
            )
        if isinstance(name, str) and name in self.axes:
            return self.axes.index(name)
        if not isinstance(name, str) and -len(self.axes) <= name < len(self.axes):
            return name % len(self.axes)
        hint, first = "", repr(self.axes[0])
        if not isinstance(name, str):
            hint = " For a derivative of higher order, name the axis as often, as in "
            hint += f"d(u, {first}, {first})(x)."
        elif name == "t" and self.time is None:
            hint = " That of time is called so in the domain, as in Box(t=(0, 1))."
        elif self.axes == ("t",):
            hint = f" An Interval is one of time, unless it has axis={name!r}."
        raise ValueError(f"axis {name!r} is unknown; the axes are {self.axes}.{hint}")

    def coordinate(self, name: str) -> "Field":
        """A coordinate of the point, as a field."""
        index = self.axis(name)
        return self.derived(lambda x: x[index])

    @property
    def space(self) -> list[int]:
        """Indices of the axes that are not time."""
        return [i for i, name in enumerate(self.axes) if name != self.time]

    def __getitem__(self, key):
        several = isinstance(key, (tuple, list))
        if several and any(isinstance(k, slice) or k is None for k in key):
            raise ValueError(
                "a field is indexed by its outputs alone: write u[0] or u['name'], not "
                "u[:, 0:1]."
            )
        chosen = [self._output(k) for k in key] if several else self._output(key)

        def components(value):
            value = jnp.atleast_1d(value)
            _check_index(chosen, value.shape[0])
            if several:
                return value[np.array(chosen)]
            if isinstance(chosen, slice):
                return value[chosen]
            return lax.index_in_dim(value, chosen, keepdims=False)

        names = None
        if self.outputs is not None:
            _check_index(chosen, len(self.outputs), self.outputs)
            found = np.array(self.outputs, dtype=object)[chosen]
            names = tuple(np.atleast_1d(found).tolist())
        return self.linear_image(components, names)

    def _output(self, key):
        if not isinstance(key, str):
            return key
        if key not in (self.outputs or ()):
            raise ValueError(
                f"output {key!r} is unknown; the outputs are {self.outputs}. Name all "
                "of them: outputs=('u', 'v') of the problem."
            )
        return self.outputs.index(key)

    def __iter__(self):
        if self.outputs is None:  # the shape is known at a point only
            raise TypeError("a field without names of outputs cannot be unpacked.")
        return (self[i] for i in range(len(self.outputs)))

    def __neg__(self):
        return self.linear_image(operator.neg)


def _check_index(index, count, names=None):
    for i in index if isinstance(index, list) else [index]:
        if not isinstance(i, slice) and not -count <= i < count:
            known = f": {names}" if names else ""
            advice = " Name all of them: outputs=('u', 'v') of the problem."
            raise ValueError(
                f"output {i} is out of range; there are {count}{known}."
                f"{advice if names else ''}"
            )


def _binary(symbol, function):
    def combine(owner, left, right):
        def value(x):
            a, b = (f(x) if callable(f) else f for f in (left, right))
            shapes = jnp.shape(a), jnp.shape(b)
            if symbol != "@" and () not in shapes and shapes[0] != shapes[1]:
                raise ValueError(
                    f"fields of shapes {shapes[0]} and {shapes[1]} do not combine by "
                    f"{symbol}; their shapes must be equal, or one a scalar."
                )
            return function(a, b)

        return owner.derived(value)

    return (
        lambda self, other: combine(self, self, other),
        lambda self, other: combine(self, other, self),
    )


_NAMES, _SYMBOLS = "add sub mul truediv pow matmul", "+ - * / ** @"
for _name, _symbol in zip(_NAMES.split(), _SYMBOLS.split(), strict=True):
    _forward, _backward = _binary(_symbol, getattr(operator, _name))
    setattr(Field, f"__{_name}__", _forward)
    setattr(Field, f"__r{_name}__", _backward)


def apply(function: Callable[..., Any], *fields: Field) -> Field:
    """Apply a function of ``jax.numpy`` to the values of fields.

    Parameters
    ----------
    function : callable
        Such as ``jnp.sin``.
    *fields : Field
        Arguments of the function.

    Returns
    -------
    Field
        Field of the function's values.
    """
    for field in fields:
        _check(field, "apply", [])
    return fields[0].derived(lambda x: function(*(field(x) for field in fields)))


def d(u: Field, *axes: str | int) -> Field:
    """Partial derivative: ``d(u, "x")(x)``, ``d(u, "x", "t")(x)`` at a point ``x``.

    Parameters
    ----------
    u : Field
        Field to be differentiated.
    *axes : str or int
        Axes to differentiate along, one after the other.

    Returns
    -------
    Field
        Of the shape of ``u``.
    """
    _check(u, "d", [])
    if not axes:
        raise ValueError(f"d needs an axis; the axes are {u.axes}.")
    indices = [u.axis(axis) for axis in axes]
    _check(u, "d", indices[:1])
    function = u
    for index in indices:
        function = derivative_along(function, index)
    return u.derived(function, u.outputs)


def grad(u: Field) -> Field:
    """Gradient over the axes of space, appended as the last axis.

    Parameters
    ----------
    u : Field
        Field to be differentiated.

    Returns
    -------
    Field
        Of shape (n_space,), or (q, n_space) for q components.
    """
    _check(u, "grad")
    return u.derived(_gradient(u, u.space))


def value_and_slope(u: Field, x: Any, direction: Any) -> tuple[Any, Any]:
    """Value of a field at a point, and its derivative along a vector."""
    known = _known(u, 1, range(len(x)))
    if known is None or x is not known.point:
        return jax.jvp(u, (x,), (direction,))
    slopes = (direction[i] * known.derivative((i,)) for i in range(len(x)))
    return known(x), reduce(operator.add, slopes)


def div(v: Field) -> Field:
    """Divergence over the axes of space: contracts the last axis.

    Parameters
    ----------
    v : Field
        Of shape (n_space,), or (q, n_space) with a vector field in each row.

    Returns
    -------
    Field
        Of shape (), or (q,).
    """
    _check(v, "div")
    n_space = len(v.space)

    def divergence(x):
        jacobian = _gradient(v, v.space)(x)
        if jacobian.ndim < 2 or jacobian.shape[-2] != n_space:
            raise ValueError(
                f"div needs a field with {n_space} components, one for each axis of "
                f"space, got the shape {jacobian.shape[:-1]}."
            )
        return jnp.trace(jacobian, axis1=-2, axis2=-1)

    return v.derived(divergence)


def laplacian(u: Field) -> Field:
    """Sum of the second derivatives over the axes of space, for each component.

    Parameters
    ----------
    u : Field
        Field to be differentiated.

    Returns
    -------
    Field
        Of the shape of ``u``.
    """
    _check(u, "laplacian")

    def trace(x):
        def second(i):
            return derivative_along(derivative_along(u, i), i)(x)

        if u.directions is None:
            return jnp.sum(_for_each(second, u.space), axis=-1)
        # Shi, Hu, Lin and Kawaguchi (2024): the mean is that of all axes.
        share = len(u.space) / u.directions.shape[0]
        return share * jnp.sum(jax.vmap(second, out_axes=-1)(u.directions), axis=-1)

    known = _known(u, 2, u.space)
    if u.directions is None and known is not None:
        seconds = (derivative_along(derivative_along(known, i), i) for i in u.space)
        trace = combined(lambda *terms: reduce(operator.add, terms), *seconds)
    return u.derived(trace, u.outputs)


def hessian(u: Field) -> Field:
    """Second derivatives over the axes of space, appended as the last two axes.

    Parameters
    ----------
    u : Field
        Field to be differentiated.

    Returns
    -------
    Field
        Of shape (n_space, n_space), or (q, n_space, n_space).
    """
    _check(u, "hessian")
    return u.derived(_gradient(_gradient(u, u.space), u.space))


def _check(field, name, indices=None):
    """Check that an operator is given a field with axes of space, and note both."""
    if not isinstance(field, Field):
        axis = ", 'x'" if name == "d" else ""
        raise TypeError(
            f"{name} takes a field, got {type(field).__name__}; write "
            f"{name}(u{axis})(x), not {name}(u(x){axis})."
        )
    if indices is None and not field.space:
        time = field.time
        raise ValueError(
            f"{name} differentiates along the axes of space, and there is none: the "
            f"only axis {time!r} is time. Write d(u, {time!r})(x), or give the domain "
            "an axis of space, as in Interval(0, 1, axis='x')."
        )
    noted, indices = differentiated.get(), field.space if indices is None else indices
    if noted is not None and indices and _known(field, 1) is None:
        noted.append((field, indices, name == "div"))


def jump_of(function, x, normal, level, other_side=None, linear=False):
    """What jumps across an interface and is differentiated, at a level of derivatives.

    A function that jumps by s has the derivative s times the normal times a Dirac
    distribution. The first level has what this adds to the values (k,) of ``function``
    where fields are differentiated last, as ``v`` in ``div(v)``; the second where these
    are derivatives themselves, as ``u`` in ``div(k * grad(u))``. Without the context
    ``other_side`` the terms of one side are returned, not jumps. In a ``linear``
    equation the factors of derivatives are free of derivatives.
    """
    if level == 0:
        with holding(_jump, None):
            value = function(x)
            if other_side is None:
                return value
            with other_side():
                return value - function(x)

    def moved(size):
        def term(inner, x, direction):
            jump = jump_of(inner, x, normal, level - 1, other_side, linear)
            term = size * (normal @ direction) * jump
            if linear:
                return term
            with holding(_jump, None):
                return term + jax.jvp(inner, (x,), (direction,))[1]

        with holding(_jump, term):
            return function(x)

    none = jnp.zeros((), x.dtype)
    return jax.jvp(moved, (none,), (jnp.ones_like(none),))[1]


def _known(function, order=0, axes=()):
    """The LocalFunction that a field is, if it knows derivatives so high; or None."""
    inner = function.function if isinstance(function, Field) else function
    is_known = isinstance(inner, LocalFunction) and inner.order >= order
    return inner if is_known and len(axes) <= UNROLLED and not _jump.get() else None


def derivative_along(function, index):
    """Derivative along an axis, whose index may be traced."""

    def derivative(x):
        direction = (np.arange(x.size, dtype=np.int32) == index).astype(x.dtype)
        jump = _jump.get()
        if jump is None:
            return jax.jvp(function, (x,), (direction,))[1]
        return jump(function, x, direction)

    known = _known(function, 1)
    if known is None or not isinstance(index, Integral):
        return derivative
    at_point = lambda axes: known.derivative((*axes, index))  # noqa: E731
    return LocalFunction(derivative, known.point, at_point, known.order - 1)


def _gradient(function, indices):
    known = _known(function, 1, indices)
    if known is None:
        return lambda x: _for_each(lambda i: derivative_along(function, i)(x), indices)
    slopes = (derivative_along(known, i) for i in indices)
    return combined(lambda *slopes: jnp.stack(slopes, axis=-1), *slopes)


def _for_each(function, indices):
    """Values of a function of an axis, stacked as the last axis."""
    indices = np.array(indices, dtype=np.int32)
    if len(indices) <= _AXES_AT_ONCE:
        return jax.vmap(function, out_axes=-1)(indices)
    values = lax.map(function, indices, batch_size=_AXES_AT_ONCE)
    return jnp.moveaxis(values, 0, -1)


def integral(
    u: Field,
    axis: str | int,
    low: float | Callable[..., Any],
    high: float | Callable[..., Any],
    kernel: Callable[..., Any] | None = None,
    order: int = 20,
) -> Field:
    """Integral of a field along an axis, by the Gauss-Legendre rule.

    An equation with an integral needs the field at other points than its own. The
    network is then differentiated as a whole, which is slower than other residuals.

    Parameters
    ----------
    u : Field
        The integrand, with the other axes at the point's own values.
    axis : str or int
        The axis to integrate along.
    low, high : float or callable
        Limits, numbers or functions of the point such as ``lambda x: x[0]``.
    kernel : callable, default=None
        ``kernel(x, y)`` of the point x and the point y of integration, a factor of the
        integrand. If None, it is one.
    order : int, default=20
        Points of the rule: exact for polynomials of degree ``2 * order - 1``.

    Returns
    -------
    Field
        Of the shape of ``u``.

    Examples
    --------
    The right-hand side of u' + u = int_0^t exp(s - t) u(s) ds:

    >>> import jax.numpy as jnp
    >>> from sklearn_gn.pde import Field, integral
    >>> u = Field(lambda x: jnp.exp(-x[0]), axes=("t",), time="t")
    >>> memory = integral(
    ...     u, "t", 0, lambda x: x[0], kernel=lambda x, y: jnp.exp(y[0] - x[0])
    ... )
    >>> round(float(memory([2.0])), 4)  # 2 exp(-2)
    0.2707
    """
    if not isinstance(u, Field):
        cure = "integral(u, 't', 0, 1)(x), not integral(u(x), 't', 0, 1)."
        if callable(u):
            cure = (
                "integral(u, 't', 0, 1, kernel=lambda x, y: y[0])(x) for the integrand "
                "y[0] * u(y), or apply(jnp.square, u) as the integrand u(y)**2."
            )
        raise TypeError(f"integral takes a field, got {type(u).__name__}; write {cure}")
    if not isinstance(order, int) or order < 1:
        raise ValueError(f"order must be an integer >= 1, got {order!r}.")
    index = u.axis(axis)
    nodes, weights = np.polynomial.legendre.leggauss(order)

    def value(x):
        a, b = (limit(x) if callable(limit) else limit for limit in (low, high))
        shares = jnp.asarray((nodes + 1) / 2, x.dtype)

        def integrand(share):
            y = x.at[index].set(a + (b - a) * share)
            with holding(present, None):  # of the regions that y passes
                return u(y) if kernel is None else kernel(x, y) * u(y)

        values = jax.vmap(integrand)(shares)
        half = jnp.asarray(weights / 2, x.dtype)
        return (b - a) * jnp.tensordot(half, values, axes=1)

    return u.derived(value, u.outputs)
