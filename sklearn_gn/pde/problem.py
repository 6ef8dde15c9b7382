"""Problems: a residual, a domain, conditions, coefficients.

A problem is immutable. A copy of it is the problem itself, and two problems are equal
if their functions are the same objects and all else has the same value, so that
compiled functions are shared.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property, partial
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.core.backend import scope, to_numpy
from sklearn_gn.pde.conditions import Condition, Points
from sklearn_gn.pde.domains import Domain, unique
from sklearn_gn.pde.operators import Field

_CHUNK = 2**20  # numbers of the points at which an exact solution is taken at a time
_PROBES = 4  # points at which each residual is tried
_PROBED_AXES = 1000  # beyond these a trial costs more than it tells
_LEVELS = (0.0, 2.0, -2.0)  # about which the fields of the trial swing


@dataclass(frozen=True)
class Unknown:
    """A coefficient to be found.

    Parameters
    ----------
    initial : float or array
        Where the search begins.

    positive : bool, default=False
        Whether it must be positive: the search is then for its logarithm.
    """

    initial: float | tuple
    positive: bool = False

    def __post_init__(self):
        initial = np.asarray(self.initial, dtype=float)
        if not np.isfinite(initial).all() or (
            self.positive and not (initial > 0).all()
        ):
            wanted = "positive" if self.positive else "finite"
            raise ValueError(f"initial must be {wanted}, got {self.initial!r}.")
        object.__setattr__(self, "initial", _nested(initial))

    def encode(self, value):
        """What the search is for: the value, or its logarithm. In numpy."""
        value = np.asarray(value, dtype=float)
        return np.log(value) if self.positive else value

    def decode(self, raw):
        """The inverse of ``encode``, in JAX."""
        return jnp.exp(raw) if self.positive else raw


def _nested(array):
    """A number, or tuples of tuples, which have a hash."""
    return tuple(map(_nested, array)) if array.ndim else float(array)


@dataclass(frozen=True, eq=False)
class Reference:
    """A solution known at some points only, such as one computed on a grid.

    An object of any class with these attributes will do, and may compute them when they
    are first wanted.

    Parameters
    ----------
    points : ndarray of shape (N, d)

    values : ndarray of shape (N, q)
        NaN in the columns of components that are not known.

    name : str, default=None
        Says where the values come from.
    """

    points: np.ndarray
    values: np.ndarray
    name: str | None = None

    def __post_init__(self):
        shapes = np.shape(self.points), np.shape(self.values)
        if [len(shape) for shape in shapes] != [2, 2] or shapes[0][0] != shapes[1][0]:
            raise ValueError(
                f"points and values must be (N, d) and (N, q), got {shapes}."
            )

    def __eq__(self, other):
        return isinstance(other, Reference) and (
            self.name == other.name
            and np.array_equal(self.points, other.points)
            and np.array_equal(self.values, other.values, equal_nan=True)
        )

    def __hash__(self):
        return hash((self.name, np.shape(self.values)))


class ResidualClass(NamedTuple):
    """Residuals of one kind: those inside, those of a condition."""

    name: str
    function: Callable  # (fields, points (P, d), data (e,), coefficients) -> (k,)
    n_points: int  # P
    weight: float
    n_outputs: int  # k


@dataclass(frozen=True)
class _Interior:
    """The residual of the equation, as a function like those of the conditions."""

    residual: Callable

    def __call__(self, fields, points, data, coefficients):
        del data
        (field,), (x,) = fields, points
        return _flat(self.residual(field, x, **coefficients), x)


def _flat(result, x):
    """What a residual returns, as one array of shape (k,)."""
    if isinstance(result, (tuple, list)):
        parts = [_flat(part, x) for part in result]
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


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """A partial differential equation with all that determines its solution.

    Parameters
    ----------
    residual : callable
        ``residual(u, x, **coefficients)`` of the field u, one point x of shape (d,) and
        coefficients by name. Returns what must vanish: numbers, arrays, fields, or a
        tuple of these. It may evaluate u only at x, with at most two derivatives.

    domain : Domain
        Where the equation holds.

    conditions : sequence of Condition, default=()
        What holds on the boundary and at the start.

    outputs : sequence of str, default=("u",)
        Names of the components of the solution. With one, u is a scalar field.

    coefficients : dict, default=None
        Numbers, arrays or :class:`Unknown` by name.

    exact : callable or Reference, default=None
        The solution, as a function of one point; or an object with the attributes
        ``points`` and ``values``, where it is known at some points only.

    transform : callable, default=None
        ``transform(x, u)`` takes the outputs (q,) of the network at the point x to
        those of the solution (q,): conditions that it fulfils hold exactly.

    periodic : sequence of str, default=()
        Axes along which the solution is periodic: the network sees the sine and cosine
        of their angle, so that it is, exactly.

    up_to_constant : sequence of str, default=()
        Outputs that the equations determine up to a constant only, such as a pressure:
        they are compared with the exact solution without their means.

    name : str, default=None
        Name in logs and plots.
    """

    residual: Callable
    domain: Domain
    conditions: tuple = ()
    outputs: tuple = ("u",)
    coefficients: Mapping | None = None
    exact: Callable | Reference | None = None
    transform: Callable | None = None
    periodic: tuple = ()
    up_to_constant: tuple = ()
    name: str | None = None

    def __post_init__(self):
        given = dict(self.coefficients or {})
        values = {name: _coefficient(name, value) for name, value in given.items()}
        object.__setattr__(self, "coefficients", MappingProxyType(values))
        for name in ("conditions", "outputs", "periodic", "up_to_constant"):
            object.__setattr__(self, name, _tuple(getattr(self, name)))

    def _arguments(self):
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(dict(v) if isinstance(v, MappingProxyType) else v for v in values)

    @cached_property
    def _key(self):  # with the order of the coefficients, which is that of the search
        arguments = self._arguments()
        return tuple(tuple(v.items()) if type(v) is dict else v for v in arguments)

    @cached_property
    def _hash(self):
        return hash(self._key)

    def __eq__(self, other):
        return self is other or (isinstance(other, Problem) and self._key == other._key)

    def __hash__(self):
        return self._hash

    def __reduce__(self):  # the hash is that of one process
        return Problem, self._arguments()

    def __deepcopy__(self, memo):
        return self

    def __repr__(self):
        name = self.name or getattr(self.residual, "__name__", repr(self.residual))
        return f"Problem({name}, {self.domain!r}, outputs={self.outputs})"

    # --- coefficients and fields -----------------------------------------------------

    @property
    def known(self):
        """Coefficients that are given: floats and arrays by name."""
        given = self.coefficients.items()
        return {n: _array(c) for n, c in given if not isinstance(c, Unknown)}

    @property
    def unknown(self):
        """Coefficients to be found, by name."""
        return {n: c for n, c in self.coefficients.items() if isinstance(c, Unknown)}

    @property
    def start(self):
        """All coefficients, those to be found at their initial values."""
        return self.known | {n: _array(c.initial) for n, c in self.unknown.items()}

    @property
    def n_inputs(self):
        """Number of inputs of the network."""
        return self.domain.dim + len(self.periodic)

    def embedding(self, x):
        """Inputs of the network: axes mapped to [-1, 1], periodic ones to the circle.

        Parameters
        ----------
        x : jax.Array of shape (d,)

        Returns
        -------
        jax.Array of shape (n_inputs,)
            Axes that are not periodic, then cosines, then sines of those that are.
        """
        low, high = self.domain.bounds.T.astype(x.dtype)
        share = (x - low) / (high - low)
        if not self.periodic:
            return 2 * share - 1
        circular = np.isin(self.domain.axes, self.periodic)
        turns = share[np.flatnonzero(circular)]
        angle = 2 * np.pi * (turns - jnp.round(turns))  # the same bits on both faces
        plain = 2 * share[np.flatnonzero(~circular)] - 1
        return jnp.concatenate([plain, jnp.cos(angle), jnp.sin(angle)])

    def field(self, function, probes=None):
        """The field of a network, after the transform.

        Parameters
        ----------
        function : callable
            Raw outputs of the network, of shape (q,), as a function of one point.
        probes : jax.Array of int, default=None
            Axes from which Laplacians are estimated; None: they are exact.

        Returns
        -------
        Field
            Scalar if there is one output.
        """

        def value(x):
            outputs = self._components(function(x), "the network")
            if self.transform is not None:
                outputs = self._components(self.transform(x, outputs), "transform")
            return outputs if len(self.outputs) > 1 else outputs[0]

        return Field(value, self.domain.axes, self.domain.time, self.outputs, probes)

    def _components(self, value, source):
        value, q = jnp.asarray(value), len(self.outputs)
        if value.shape != (q,) and not (q == 1 and value.shape == ()):
            raise ValueError(
                f"{source} must return one number for each of the outputs "
                f"{self.outputs}, got the shape {value.shape}."
            )
        return value.reshape(q)

    # --- residuals and points --------------------------------------------------------

    def residual_classes(self):
        """The kinds of residuals: "interior", then one for each condition."""
        return self._classes

    @cached_property
    def _classes(self):
        classes = [self._class("interior", _Interior(self.residual), 1, 0, 1.0)]
        for name, condition in self._named_conditions():
            size = self.domain.dim if condition.needs_normals else 0
            classes.append(
                self._class(name, condition, condition.n_fields, size, condition.weight)
            )
        return tuple(classes)

    def _class(self, name, function, n_points, n_data, weight):
        """With the number of residuals, found by tracing."""
        field = self.field(lambda x: jnp.zeros(len(self.outputs), x.dtype))

        def evaluate(points, data):
            return function((field,) * n_points, points, data, self.start)

        points = jax.ShapeDtypeStruct((n_points, self.domain.dim), np.float64)
        data = jax.ShapeDtypeStruct((n_data,), np.float64)
        with jax.enable_x64(True), _blaming(name):
            (k,) = jax.eval_shape(evaluate, points, data).shape
            if k == 0:
                raise ValueError("the residual is empty.")
        return ResidualClass(name, function, n_points, float(weight), k)

    def _named_conditions(self):
        named = {"interior": None}
        for condition in self.conditions:
            name = unique(condition.name or condition.kind, named, "_{}")
            named[name] = condition
        del named["interior"]
        return named.items()

    def sample(self, n_interior, n_boundary, rng, method="sobol"):
        """Draw points for all residual classes.

        Parameters
        ----------
        n_interior : int
        n_boundary : int
            Shared in equal parts by the conditions that do not have their own number.
        rng : RandomState
        method : {"sobol", "halton", "uniform"}, default="sobol"

        Returns
        -------
        dict of Points
            By the name of the class, in the order of ``residual_classes``.
        """
        named = self._named_conditions()
        sharing = [name for name, c in named if c.n_points is None]
        if len(sharing) > n_boundary:
            raise ValueError(
                f"n_boundary={n_boundary} is too few for the conditions {sharing}."
            )
        counts = {name: c.n_points for name, c in named}
        for i, name in enumerate(sharing):  # the first ones take what is left over
            counts[name] = (n_boundary + len(sharing) - 1 - i) // len(sharing)
        return self._draw(n_interior, counts, rng, method)

    def probes(self, n, rng):
        """Draw uniform points, as many for each residual class.

        Parameters
        ----------
        n : int
        rng : RandomState

        Returns
        -------
        dict of Points
            As from ``sample``.
        """
        counts = dict.fromkeys(dict(self._named_conditions()), n)
        return self._draw(n, counts, rng, "uniform")

    def _draw(self, n_interior, counts, rng, method):
        x = self.domain.sample(n_interior, rng, method)
        points = {"interior": Points(x[:, None], x[:, :0])}
        for name, condition in self._named_conditions():
            with _blaming(name):
                points[name] = condition.sample(self.domain, counts[name], rng, method)
        return points

    # --- the solution where it is known ----------------------------------------------

    def exact_values(self, X):
        """The exact solution at points.

        Parameters
        ----------
        X : ndarray of shape (n, d)

        Returns
        -------
        ndarray of shape (n, q)
            NaN where a component is not known.
        """
        X = np.asarray(X, dtype=float)
        if self.exact is None:
            raise ValueError("exact=None: the problem has no exact solution.")
        if _is_reference(self.exact):
            if not np.array_equal(X, self.exact.points):
                raise ValueError(
                    "the solution is known at the points of the reference only."
                )
            return np.array(self.exact.values)
        with scope("float64"):
            return to_numpy(_exact(self, X))

    def reference(self, n_points, rng, method="sobol"):
        """Points with the exact solution there.

        Parameters
        ----------
        n_points : int
            Points to draw; without effect where a reference brings its own.
        rng : RandomState
        method : {"sobol", "halton", "uniform"}, default="sobol"

        Returns
        -------
        points : ndarray of shape (n, d)
        values : ndarray of shape (n, q)
        """
        if self.exact is not None and _is_reference(self.exact):
            return np.array(self.exact.points), np.array(self.exact.values)
        X = self.domain.sample(n_points, rng, method)
        return X, self.exact_values(X)

    # --- what can be wrong -----------------------------------------------------------

    def check(self):
        """Find mistakes before anything large is compiled.

        Names, shapes, parts of the boundary without points, residuals that are not
        finite (up to 1000 axes): tried at a few points with smooth fields.

        Raises
        ------
        ValueError
            With the name of the argument or condition.
        """
        self._check_arguments()
        self.residual_classes()
        if self.exact is not None and not _is_reference(self.exact):
            x = jax.ShapeDtypeStruct((self.domain.dim,), np.float64)
            with jax.enable_x64(True), _blaming("exact"):
                jax.eval_shape(lambda x: self._components(self.exact(x), "exact"), x)
        rng = np.random.RandomState(0)
        points = self.probes(_PROBES, rng)
        if self.domain.dim <= _PROBED_AXES:
            self._check_finite(points, rng)

    def _check_arguments(self):
        for name, wanted in (
            ("residual", "a function"),
            ("domain", "a domain such as Box"),
            ("transform", "a function"),
            ("exact", "a function or a reference"),
        ):
            value = getattr(self, name)
            fits = isinstance(value, Domain) if name == "domain" else callable(value)
            absent = name in ("transform", "exact") and value is None
            if not (fits or absent or (name == "exact" and _is_reference(value))):
                raise ValueError(f"{name} must be {wanted}, got {value!r}.")
        for condition in self.conditions:
            if not isinstance(condition, Condition):
                raise ValueError(f"conditions must hold conditions, got {condition!r}.")
            if condition.name == "data":
                raise ValueError(
                    "a condition cannot have the name 'data', which is that of the "
                    "residuals of observations."
                )
        names = self.outputs
        if not names or len(set(names)) < len(names) or not _all_strings(names):
            raise ValueError(f"outputs must be different names, got {names!r}.")
        for axis in self.periodic:
            if axis not in self.domain.axes:
                raise ValueError(
                    f"periodic={axis!r} is unknown; the axes are {self.domain.axes}."
                )
        for output in self.up_to_constant:
            if output not in names:
                raise ValueError(
                    f"up_to_constant={output!r} is unknown; the outputs are {names}."
                )
        try:
            inspect.signature(self.residual).bind(None, None, **self.coefficients)
        except TypeError as error:
            raise ValueError(
                "residual is called with the field, the point and the coefficients "
                f"{tuple(self.coefficients)}, which does not fit: {error}."
            ) from error

    def _check_finite(self, points, rng):
        shape = len(self.outputs), self.n_inputs
        weights = rng.normal(size=shape) / np.sqrt(self.n_inputs)
        bad = {}
        for level in _LEVELS:  # a logarithm or a root needs fields of one sign
            with scope("float64"):
                values = to_numpy(_trial(self, np.float64(level), weights, points))
            found = {n: ~np.isfinite(v).all(axis=1) for n, v in values.items()}
            bad = {n: found[n] & bad.get(n, True) for n in found}
        for name, failed in bad.items():
            if failed.any():
                x = points[name].x[failed][0].tolist()
                raise ValueError(
                    f"{name}: the residual is NaN or infinite at {x} for smooth fields."
                )


def _tuple(value):
    return (value,) if isinstance(value, (str, Condition)) else tuple(value)


def _coefficient(name, value):
    if isinstance(value, Unknown):
        return value
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if not np.isfinite(array).all():
        raise ValueError(
            f"coefficient {name!r} must be a finite number, an array or Unknown, got "
            f"{value!r}."
        )
    return _nested(array)


def _array(value):
    return np.array(value) if isinstance(value, tuple) else value


def _all_strings(names):
    return all(isinstance(name, str) for name in names)


def _is_reference(exact):
    """Whether it has points, without computing them."""
    return hasattr(type(exact), "points") or "points" in getattr(exact, "__dict__", {})


@contextmanager
def _blaming(name):
    """Turn errors into ValueErrors that say where they come from."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{name}: {error}") from error


@partial(jax.jit, static_argnames="problem")
def _exact(problem, X):
    def value(x):
        return problem._components(problem.exact(x), "exact")

    chunk = max(1, min(X.shape[0], _CHUNK // X.shape[1]))
    return lax.map(value, X, batch_size=chunk)


@partial(jax.jit, static_argnames="problem")
def _trial(problem, level, weights, points):
    """All residuals of a smooth field about a level."""
    field = problem.field(
        lambda x: level + jnp.sin(jnp.pi * (weights @ problem.embedding(x)))
    )

    def values(kind, points):
        def one(x, data):
            return kind.function((field,) * kind.n_points, x, data, problem.start)

        return jax.vmap(one)(points.x, points.data)

    return {kind.name: values(kind, points[kind.name]) for kind in problem._classes}
