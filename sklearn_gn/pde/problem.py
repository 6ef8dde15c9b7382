"""Problems: a residual, a domain, conditions, coefficients.

A problem is immutable. A copy of it is the problem itself, and two problems are equal
if their functions are the same objects and all else has the same value, so that
compiled functions are shared.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn._typing import Array
from sklearn_gn.core.backend import scope, to_numpy
from sklearn_gn.core.compilation import jit_by_size
from sklearn_gn.pde.calls import call
from sklearn_gn.pde.checks import check_problem, named_errors
from sklearn_gn.pde.coefficients import Unknown, as_array, frozen_coefficient
from sklearn_gn.pde.conditions import BaseCondition, Points
from sklearn_gn.pde.domains import Domain, unique
from sklearn_gn.pde.mistakes import explained_errors
from sklearn_gn.pde.operators import Field
from sklearn_gn.pde.reference import is_reference
from sklearn_gn.pde.some_axes import OnSomeAxes, Projection
from sklearn_gn.pde.values import flat

_CHUNK = 2**20  # numbers of the points at which an exact solution is taken at a time


class ResidualClass(NamedTuple):
    """Residuals of one kind: those inside, those of a condition.

    Parameters
    ----------
    name : str
        "interior", or that of the condition.

    function : callable
        Maps fields, points (P, d), data (e,) and coefficients to residuals (k,).

    n_points : int
        Number of points of one residual, P.

    weight : float
        Factor of its part of the loss.

    n_outputs : int
        Number of residuals, k.
    """

    name: str
    function: Callable
    n_points: int
    weight: float
    n_outputs: int


@dataclass(frozen=True)
class _Interior:
    """The residual of the equation, as a function like those of the conditions."""

    residual: Callable

    def __call__(self, fields, points, data, coefficients):
        del data
        (field,), (x,) = fields, points
        return flat(call(self.residual, (field, x), coefficients), x)


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

    n_laplacian_directions : int or None, default=None
        Number of axes of space, drawn anew with the points, from whose second
        derivatives :func:`laplacian` is estimated: for hundreds of axes and more [1]_.
        If None, Laplacians are exact.

    name : str, default=None
        Name in logs and plots.

    depends_on : dict, default=None
        Axes that an output depends on, by its name: ``{"k": "x"}`` makes the unknown
        function k one of x alone. Outputs that are not named depend on all axes.

    References
    ----------
    .. [1] Z. Shi, Z. Hu, M. Lin and K. Kawaguchi, "Stochastic Taylor derivative
       estimator: efficient amortization for arbitrary differential operators".
    """

    residual: Callable
    domain: Domain
    conditions: tuple = ()
    outputs: tuple = ("u",)
    coefficients: Mapping | None = None
    exact: Any = None  # callable, Reference or None
    transform: Callable | None = None
    periodic: tuple = ()
    up_to_constant: tuple = ()
    n_laplacian_directions: int | None = None
    name: str | None = None
    depends_on: Mapping | None = None

    def __post_init__(self):
        given = dict(self.coefficients or {})
        values = {
            name: frozen_coefficient(name, value) for name, value in given.items()
        }
        object.__setattr__(self, "coefficients", MappingProxyType(values))
        axes = {n: _tuple(a) for n, a in dict(self.depends_on or {}).items()}
        object.__setattr__(self, "depends_on", MappingProxyType(axes))
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
        words = [name, f"{self.domain!r}", f"outputs={self.outputs}"]
        if self.n_laplacian_directions is not None:
            words.append(f"n_laplacian_directions={self.n_laplacian_directions}")
        return f"Problem({', '.join(words)})"

    # --- coefficients and fields -----------------------------------------------------

    @property
    def known(self) -> dict[str, Any]:
        """Coefficients that are given: floats and arrays by name."""
        given = (self.coefficients or {}).items()
        return {n: as_array(c) for n, c in given if not isinstance(c, Unknown)}

    @property
    def unknown(self) -> dict[str, Unknown]:
        """Coefficients to be found, by name."""
        given = (self.coefficients or {}).items()
        return {n: c for n, c in given if isinstance(c, Unknown)}

    @property
    def start(self) -> Any:
        """All coefficients, those to be found at their initial values."""
        return self.known | {n: as_array(c.initial) for n, c in self.unknown.items()}

    @property
    def n_inputs(self) -> int:
        """Number of inputs of the network."""
        return self.domain.dim + len(self.periodic)

    def embedding(self, x: Any) -> Any:
        """Inputs of the network: axes mapped to [-1, 1], periodic ones to the circle.

        Parameters
        ----------
        x : jax.Array of shape (d,)
            Point.

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

    def field(self, function: Callable[..., Any], directions: Any = None) -> Field:
        """The field of a network, after the transform.

        Parameters
        ----------
        function : callable
            Raw outputs of the network, of shape (q,), as a function of one point.
        directions : jax.Array of int, default=None
            Axes from which Laplacians are estimated. If None, they are exact.

        Returns
        -------
        Field
            Scalar if there is one output.
        """

        def all_at(x):
            outputs = self.as_outputs(function(x), "the network")
            if self.transform is not None:
                outputs = self.as_outputs(self.transform(x, outputs), "transform")
            return outputs

        def value(x):
            outputs = all_at(x)
            for numbers, projection in self._projections:
                chosen = np.array(numbers)
                outputs = outputs.at[chosen].set(all_at(projection(x))[chosen])
            return outputs if len(self.outputs) > 1 else outputs[0]

        return Field(
            value, self.domain.axes, self.domain.time, self.outputs, directions
        )

    def as_outputs(self, value: Any, source: str) -> Any:
        """One number for each output as an array of shape (q,).

        Parameters
        ----------
        value : array-like of shape (q,) or ()
            A single number serves a problem of one output.
        source : str
            What gave the value, for the message.

        Returns
        -------
        jax.Array of shape (q,)
            The numbers.

        Raises
        ------
        ValueError
            That names the source of the value, if its shape is another one.
        """
        value, q = jnp.asarray(value), len(self.outputs)
        if value.shape != (q,) and not (q == 1 and value.shape == ()):
            raise ValueError(
                f"{source} must return one number for each of the outputs "
                f"{self.outputs}, got the shape {value.shape}."
            )
        return value.reshape(q)

    # --- residuals and points --------------------------------------------------------

    def residual_classes(self) -> tuple[ResidualClass, ...]:
        """The kinds of residuals: "interior", then one for each condition."""
        return self._classes

    @cached_property
    def _classes(self):
        classes = [self.residual_class("interior", _Interior(self.residual))]
        for name, condition in self._named_conditions():
            size = self.domain.dim if condition.needs_normals else 0
            classes.append(
                self.residual_class(
                    name, condition, condition.n_fields, size, condition.weight
                )
            )
        return tuple(classes)

    def residual_class(
        self,
        name: str,
        function: Callable[..., Any],
        n_points: int = 1,
        n_data: int = 0,
        weight: float = 1.0,
    ) -> ResidualClass:
        """Return a kind of residuals, with their number, found by tracing.

        Parameters
        ----------
        name : str
            As it stands in the log.
        function : callable
            ``function(fields, points, data, coefficients)`` of ``n_points`` fields and
            points, and of ``n_data`` numbers.
        n_points, n_data : int
            Of one residual.
        weight : float
            Of the mean square of these residuals in the loss.

        Returns
        -------
        ResidualClass
            Functions and sizes.

        Raises
        ------
        ValueError
            That says what is wrong with the function.
        """
        residual = getattr(function, "residual", None)
        if self._projections:
            function = OnSomeAxes(function, self._projections)
            n_points *= 1 + len(self._projections)
        field = self.field(lambda x: jnp.zeros(len(self.outputs), x.dtype))

        def evaluate(points, data):
            return function((field,) * n_points, points, data, self.start)

        def works_swapped(residual):
            x = jax.ShapeDtypeStruct((self.domain.dim,), np.float64)

            def values(x):
                return flat(call(residual, (x, field), self.start), x)

            try:
                jax.eval_shape(values, x)
            except Exception:  # it has another mistake
                return False
            return True

        points = jax.ShapeDtypeStruct((n_points, self.domain.dim), np.float64)
        data = jax.ShapeDtypeStruct((n_data,), np.float64)
        with (
            jax.enable_x64(True),
            named_errors(name),
            explained_errors(residual, works_swapped),
        ):
            (k,) = jax.eval_shape(evaluate, points, data).shape
        if k == 0:
            raise ValueError(f"{name}: the residual is empty.")
        return ResidualClass(name, function, n_points, float(weight), k)

    def all_points(self, x: Array) -> Array:
        """Points (N, P, d) with those at which outputs of some axes are taken."""
        return np.concatenate([x, *(p(x) for _, p in self._projections)], axis=1)

    @cached_property
    def _projections(self):
        """Numbers of outputs that depend on the same axes, and their projection."""
        axes, middle = self.domain.axes, self.domain.bounds.mean(axis=1)
        groups = {}
        for output, kept in self.depends_on.items():
            gone = tuple(k for k, name in enumerate(axes) if name not in kept)
            groups.setdefault(gone, []).append(self.outputs.index(output))
        return tuple(
            (tuple(numbers), Projection(gone, tuple(middle[list(gone)].tolist())))
            for gone, numbers in groups.items()
            if gone
        )

    def _named_conditions(self):
        named = {"interior": None}
        for condition in self.conditions:
            name = unique(condition.name or condition.kind, named, "_{}")
            named[name] = condition
        del named["interior"]
        return named.items()

    def sample(
        self,
        n_interior: int,
        n_boundary: int,
        rng: np.random.RandomState,
        method: Literal["sobol", "halton", "uniform"] = "sobol",
    ) -> dict[str, Points]:
        """Draw points for all residual classes.

        Parameters
        ----------
        n_interior : int
            Number of points inside.
        n_boundary : int
            Shared in equal parts by the conditions that do not have their own number.
        rng : RandomState
            Source of the random numbers.
        method : {"sobol", "halton", "uniform"}, default="sobol"
            How the points are drawn.

        Returns
        -------
        dict of Points
            By the name of the class, in the order of ``residual_classes``.
        """
        named = self._named_conditions()
        sharing = [name for name, c in named if c.own_number is None]
        if len(sharing) > n_boundary:
            raise ValueError(
                f"n_boundary={n_boundary} is too few for the conditions {sharing}."
            )
        counts = {name: c.own_number for name, c in named}
        for i, name in enumerate(sharing):  # the first ones take what is left over
            counts[name] = (n_boundary + len(sharing) - 1 - i) // len(sharing)
        return self._draw(n_interior, counts, rng, method)

    def probes(self, n: int, rng: np.random.RandomState) -> dict[str, Points]:
        """Draw uniform points, as many for each residual class.

        Parameters
        ----------
        n : int
            Number of points of each class.
        rng : RandomState
            Source of the random numbers.

        Returns
        -------
        dict of Points
            As from ``sample``.
        """
        counts = dict.fromkeys(dict(self._named_conditions()), n)
        return self._draw(n, counts, rng, "uniform")

    def draw_directions(self, rng: np.random.RandomState) -> Array | None:
        """Draw the axes from which Laplacians are estimated.

        Parameters
        ----------
        rng : RandomState
            Source of the random numbers.

        Returns
        -------
        ndarray of int or None
            None where Laplacians are exact.
        """
        if self.n_laplacian_directions is None:
            return None
        axes, time = self.domain.axes, self.domain.time
        space = [i for i, name in enumerate(axes) if name != time]
        count = min(self.n_laplacian_directions, len(space))
        return rng.choice(space, count, replace=False).astype(np.int32)

    def _draw(self, n_interior, counts, rng, method):
        x = self.domain.sample(n_interior, rng, method)
        points = {"interior": Points(x[:, None], x[:, :0])}
        for name, condition in self._named_conditions():
            with named_errors(name):
                points[name] = condition.sample(self.domain, counts[name], rng, method)
        return {n: p._replace(x=self.all_points(p.x)) for n, p in points.items()}

    # --- the solution where it is known ----------------------------------------------

    def exact_values(self, X: Array) -> Array:
        """The exact solution at points.

        Parameters
        ----------
        X : ndarray of shape (n, d)
            Points.

        Returns
        -------
        ndarray of shape (n, q)
            NaN where a component is not known.
        """
        X = np.asarray(X, dtype=float)
        if self.exact is None:
            raise ValueError("exact=None: the problem has no exact solution.")
        if is_reference(self.exact):
            if not np.array_equal(X, self.exact.points):
                raise ValueError(
                    "the solution is known at the points of the reference only."
                )
            return np.array(self.exact.values)
        with scope("float64"):
            return to_numpy(_exact(self, X))

    def reference(
        self,
        n_points: int,
        rng: np.random.RandomState,
        method: Literal["sobol", "halton", "uniform"] = "sobol",
    ) -> tuple[Array, Array]:
        """Points with the exact solution there.

        Parameters
        ----------
        n_points : int
            Points to draw; without effect where a reference brings its own.
        rng : RandomState
            Source of the random numbers.
        method : {"sobol", "halton", "uniform"}, default="sobol"
            How the points are drawn.

        Returns
        -------
        points : ndarray of shape (n, d)
            Points of the domain, or those of the reference.
        values : ndarray of shape (n, q)
            Solution there.
        """
        if self.exact is not None and is_reference(self.exact):
            return np.array(self.exact.points), np.array(self.exact.values)
        X = self.domain.sample(n_points, rng, method)
        return X, self.exact_values(X)

    # --- what can be wrong -----------------------------------------------------------

    def check(self) -> None:
        """Find mistakes before anything large is compiled.

        Names, shapes, parts of the boundary without points, residuals that are not
        finite (up to 1000 axes): tried at a few points with smooth fields.

        Raises
        ------
        ValueError
            With the name of the argument or condition.
        """
        check_problem(self)


def _tuple(value):
    return (value,) if isinstance(value, (str, BaseCondition)) else tuple(value)


@partial(jit_by_size, static_argnames="problem")
def _exact(problem, X):
    def value(x):
        return problem.as_outputs(problem.exact(x), "exact")

    chunk = max(1, min(X.shape[0], _CHUNK // X.shape[1]))
    return lax.map(value, X, batch_size=chunk)
