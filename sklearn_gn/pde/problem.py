"""Problems: a residual, a domain, conditions, coefficients.

A problem is immutable. A copy of it is the problem itself, and two problems are equal
if their functions are the same objects and all else has the same value, so that
compiled functions are shared.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from numpy.random import RandomState

from sklearn_gn._typing import Array
from sklearn_gn.pde.checks import check_problem
from sklearn_gn.pde.coefficients import Unknown, called, frozen_coefficient, present
from sklearn_gn.pde.conditions import BaseCondition, Points
from sklearn_gn.pde.domains import Domain, set_fields, unique
from sklearn_gn.pde.given_values import PARTS, exact_at, is_reference
from sklearn_gn.pde.jumps import planes
from sklearn_gn.pde.local_functions import LocalFunction
from sklearn_gn.pde.operators import Field, holding
from sklearn_gn.pde.regions import RegionalResidual, Regions, interface_of, regions_of
from sklearn_gn.pde.residual_classes import (
    Interior,
    Projection,
    ResidualClass,
    explained_errors,
    traced_class,
)


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """A partial differential equation with all that determines its solution.

    Parameters
    ----------
    residual : callable or dict
        ``residual(u, x)`` of the field u and one point x of shape (d,); coefficients
        are further parameters. It returns what must vanish: numbers, arrays, fields, or
        a tuple of these. Residuals that use u at x alone, with at most two derivatives,
        are fastest. Different equations in regions are ``{domain: residual, ...}``; the
        first domain that contains a point has its equation.
    domain : Domain
        Where the equation holds: :class:`Interval`, :class:`Box`, :class:`Ball`,
        :class:`Ellipse`, :class:`Polygon` or :class:`PointCloud`, or these combined by
        ``|``, ``&``, ``-`` and ``*``. The axis named "t" is time.
    conditions : sequence of conditions, default=()
        Conditions on the boundary and at the start: :class:`Dirichlet`,
        :class:`Neumann`, :class:`Robin`, :class:`Initial`, :class:`Periodic`, or a
        :class:`Condition` with any residual, also at points and on interfaces.
    outputs : sequence of str or str, default=("u",)
        Names of the components of the solution. With one, u is a scalar field. A
        string is one name, however long: ``"ab"`` is one output, not two.
    coefficients : dict, default=None
        Numbers, arrays or :class:`Unknown`, by name. The residual and the functions of
        the conditions get the coefficients among their parameters; each coefficient
        must be a parameter of at least one of them.
    exact : callable or Reference, default=None
        The solution as a function of one point; or, if it is known at some points only,
        an object with the attributes ``points`` and ``values``.
    transform : callable, default=None
        ``transform(x, u)`` maps the outputs (q,) of the network at the point x to the
        solution's (q,). Conditions that it satisfies hold exactly, and there is one
        term less to balance.
    periodic : sequence of str, default=()
        Axes along which the solution is periodic. The inputs of the network are then
        the sine and cosine of their angle, which makes the solution exactly periodic.
    up_to_constant : sequence of str, default=()
        Outputs that the equations determine only up to a constant, such as a pressure.
        They are compared with the exact solution without their means.
    n_laplacian_directions : int or None, default=None
        Number of axes of space, redrawn with the points, from whose second
        derivatives :func:`laplacian` is estimated: for hundreds of axes and more [1]_.
        If None, Laplacians are exact.
    name : str, default=None
        Name in logs and plots.
    depends_on : dict, default=None
        Axes on which an output depends, by its name: with ``{"k": "x"}`` the unknown
        function k depends on x alone. Other outputs depend on all axes.

    Attributes
    ----------
    known, unknown : dict
        Coefficients that are given, floats and arrays, and :class:`Unknown` ones.
    start : dict
        All coefficients, those to be found at their initial values.

    See Also
    --------
    sklearn_gn.PINNSolver : Solves a problem.
    Condition : A condition with a residual of your own.
    integral : Integral terms.
    Piecewise : Coefficients that jump.

    Notes
    -----
    Write functions with :mod:`jax.numpy`, and define them at the top of a module or a
    notebook, since functions inside functions cannot be pickled. ``u(x)`` is the value,
    ``u["p"]`` an output as a field, ``d(u, "x", "x")(x)`` a derivative. See the
    :ref:`user guide <pinn>`, also for :ref:`ordinary differential equations
    <pinn_odes>`, :ref:`conditions <pinn_conditions>` and :ref:`inverse problems
    <pinn_inverse>`.

    References
    ----------
    .. [1] Z. Shi, Z. Hu, M. Lin and K. Kawaguchi, "Stochastic Taylor derivative
       estimator: efficient amortization for arbitrary differential operators".

    Examples
    --------
    Heat that a rod loses at one end, with a conductivity that is to be found:

    >>> import jax.numpy as jnp
    >>> from sklearn_gn.pde import Box, Dirichlet, Initial, Problem, Robin, Unknown, d
    >>> def heat(u, x, kappa):
    ...     return d(u, "t")(x) - kappa * d(u, "x", "x")(x)
    >>> rod = Problem(
    ...     heat,
    ...     Box(x=(0, 1), t=(0, 1)),
    ...     [
    ...         Initial(lambda x: jnp.sin(jnp.pi * x[0])),
    ...         Dirichlet(0.0, on="x=min"),
    ...         Robin(1.0, lambda x, kappa: kappa, 0.0, on="x=max"),
    ...     ],
    ...     coefficients={"kappa": Unknown(0.1, positive=True)},
    ... )
    >>> [kind.name for kind in rod.residual_classes()]
    ['interior', 'initial', 'dirichlet', 'robin']
    """

    residual: Callable | Mapping
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

    known: ClassVar[dict[str, Any]]  # set for each problem
    unknown: ClassVar[dict[str, Unknown]]
    start: ClassVar[dict[str, Any]]
    # Of the network: known functions among its inputs, and units of its outputs.
    n_functions, center, scale = 0, (), ()

    def __post_init__(self):
        if isinstance(self.residual, Mapping):
            by_region = RegionalResidual(tuple(self.residual.items()))
            set_fields(self, residual=by_region)
        given, axes = dict(self.coefficients or {}), dict(self.depends_on or {})
        values = {name: frozen_coefficient(name, c) for name, c in given.items()}
        axes = {name: _tuple(value, "depends_on") for name, value in axes.items()}
        unknown = {n: c for n, c in values.items() if isinstance(c, Unknown)}
        start = {n: getattr(c, "initial", c) for n, c in values.items()}
        start = {n: np.array(c) if type(c) is tuple else c for n, c in start.items()}
        known = {n: c for n, c in start.items() if n not in unknown}
        set_fields(self, known=known, unknown=unknown, start=known | start)
        proxies = MappingProxyType(values), MappingProxyType(axes)
        set_fields(self, coefficients=proxies[0], depends_on=proxies[1])
        for name in ("conditions", "outputs", "periodic", "up_to_constant"):
            set_fields(self, **{name: _tuple(getattr(self, name), name)})

    def __reduce__(self):  # the hash is that of one process
        values = (getattr(self, field.name) for field in fields(self))
        plain = (dict(v) if isinstance(v, MappingProxyType) else v for v in values)
        return type(self), tuple(plain)

    @cached_property
    def _key(self):
        """What is compared, with the order of the coefficients, and its hash."""
        values = (getattr(self, field.name) for field in fields(self))
        plain = (tuple(v.items()) if isinstance(v, Mapping) else v for v in values)
        key = tuple(plain)
        return hash(key), key

    def __eq__(self, other):
        return self is other or (isinstance(other, Problem) and self._key == other._key)

    def __hash__(self):
        return self._key[0]

    def __deepcopy__(self, memo):
        return self

    def __repr__(self):
        name = self.name or getattr(self.residual, "__name__", repr(self.residual))
        words = [name, f"{self.domain!r}", f"outputs={self.outputs}"]
        if self.n_laplacian_directions is not None:
            words.append(f"n_laplacian_directions={self.n_laplacian_directions}")
        return f"Problem({', '.join(words)})"

    @property
    def n_inputs(self) -> int:
        """Number of inputs of the network."""
        return self.domain.dim + len(self.periodic)

    def embedding(self, x: Any) -> Any:
        """Axes mapped to [-1, 1], then cosines and sines of the periodic ones."""
        low, high = self.domain.bounds.T.astype(x.dtype)
        share = (x - low) / (high - low)
        if not self.periodic:
            return 2 * share - 1
        circular = np.isin(self.domain.axes, self.periodic)
        turns, plain = (share[np.flatnonzero(kept)] for kept in (circular, ~circular))
        angle = 2 * np.pi * (turns - jnp.round(turns))  # the same bits on both faces
        return jnp.concatenate([2 * plain - 1, jnp.cos(angle), jnp.sin(angle)])

    def field(
        self, function: Callable, directions: Any = None, others: Any = ()
    ) -> Field:
        """The field of a network, in physical units and after the transform.

        ``function`` maps a point to the raw outputs of the network, of each region;
        ``others`` do so where outputs that depend on some of the axes are taken, if the
        same function does not. Laplacians are estimated from the axes ``directions``;
        if None, they are exact.
        """
        q, transform = len(self.outputs), self.transform

        def outputs(raw, x, is_value=True):
            if self.scale:  # of each region
                raw = jnp.ravel(raw)
                scale, center = (
                    np.resize(units, raw.shape).astype(raw.dtype)
                    for units in (self.scale, self.center)
                )
                raw = center + scale * raw if is_value else scale * raw
            # Those of the region of the point.
            if jnp.shape(raw) not in ((), (q,)) and self.regions is not None:
                within = present.get()
                mask = within[1] if within else self.regions.masks(x[None])[0]
                every = jnp.reshape(raw, (-1, q))
                raw = jnp.sum(jnp.where(mask[:, None], every, 0), axis=0)
            found = self._as_outputs(raw, "the network")
            if transform is not None:
                found = self._as_outputs(transform(x, found), "transform")
            return found if q > 1 else found[0]

        def value(x):
            found = outputs(function(x), x)
            elsewhere = others or [function] * len(self._projections)
            pairs = zip(self._projections, elsewhere, strict=True)
            for (numbers, projection), other in pairs:
                chosen, y = np.array(numbers), projection(x)
                found = found.at[chosen].set(outputs(other(y), y)[chosen])
            return found

        def derivative(axes):
            return outputs(function.derivative(axes), function.point, not axes)

        known: Any = value
        plain = transform is None and not self._projections
        if isinstance(function, LocalFunction) and plain:
            known = function._replace(function=value, derivative=derivative)
        domain = self.domain
        return Field(known, domain.axes, domain.time, self.outputs, directions)

    def _as_outputs(self, value: Any, source: str) -> Any:
        """One number for each output, (q,); ``source``, for errors, is what gave it."""
        value, q = jnp.asarray(value), len(self.outputs)
        if value.shape != (q,) and not (q == 1 and value.shape == ()):
            raise ValueError(
                f"{source} must return one number for each of the outputs "
                f"{self.outputs}, got the shape {value.shape}."
            )
        return value.reshape(q)

    def residual_classes(self) -> tuple[ResidualClass, ...]:
        """The kinds of residuals: "interior", then one for each condition."""
        return self._classes

    @cached_property
    def _interior(self):
        """The residuals inside, and the parts in which their pieces are smooth."""
        with holding(called, []) as pieces:
            kind = traced_class(self, "interior", Interior(self.residual))
        return kind, regions_of(self.domain, [c.domains for c in pieces])

    @property
    def _is_placed(self):
        """Whether a condition holds at points, or on an interface, of its own."""
        return any(isinstance(getattr(c, "on", None), Domain) for c in self.conditions)

    @cached_property
    def regions(self) -> Regions | None:
        """Parts of the domain in which the equation is smooth; None if one."""
        joined = len(self.outputs) > 1 and self._is_placed
        joined = joined and not isinstance(self.residual, RegionalResidual)
        if joined or self.depends_on or self.n_laplacian_directions is not None:
            return None
        _, found = self._interior
        if halves := planes(self, found):
            known = () if found is None else found.partitions
            cut = regions_of(self.domain, (*known, *((half,) for half in halves)))
            if cut is not None and len(cut.parts) <= PARTS:  # else values of a table
                found = cut
        if found is None:
            return None
        for axis in self.periodic:
            if not found.is_closed(self.domain, axis):
                raise ValueError(
                    f"periodic={axis!r}: the ends of the axis are in different regions "
                    f"of the equation. Give the condition Periodic({axis!r}) instead."
                )
        return found

    @property
    def n_network_outputs(self) -> int:
        """Number of outputs of the network: all of the problem, in each region."""
        n_regions = 1 if self.regions is None else len(self.regions.parts)
        return len(self.outputs) * n_regions

    @cached_property
    def _classes(self):
        interior, _ = self._interior
        if self.regions is not None:
            interior = interior._replace(function=Interior(self.residual, self.regions))
        classes = [interior]
        for name, c in self._named_conditions.items():
            n_data = self.domain.dim * c.needs_normals + c.n_more_data
            kind = traced_class(self, name, c, c.n_fields, n_data, c.weight)
            classes.append(kind._replace(condition=c))
        return tuple(classes)

    def _residuals_at(self, kind, functions, points, data, given, directions=None):
        """Residuals (k,) of a row of a class, for a function at each of its points."""
        n = max(1, len(functions) // (1 + len(self._projections)))
        pairs = ((functions[k], functions[n + k :: n]) for k in range(n))
        fields = tuple(self.field(own, directions, others) for own, others in pairs)
        return kind.function(fields, points, data, given)

    @cached_property
    def _projections(self):
        """Numbers of outputs that depend on the same axes, and their projection."""
        middle, groups = tuple(self.domain.bounds.mean(axis=1).tolist()), {}
        for output, kept in self.depends_on.items():
            moves = tuple(name not in kept for name in self.domain.axes)
            if any(moves):
                groups.setdefault(moves, []).append(self.outputs.index(output))
        return tuple((tuple(n), Projection(m, middle)) for m, n in groups.items())

    @cached_property
    def _named_conditions(self):
        """The conditions by their names, that of interfaces last."""
        named, every = {"interior": None}, self.conditions
        if self.regions is not None:
            interface = interface_of(self, self.regions)
            every = (*every, interface) if interface.rows else every
        for condition in every:
            name = condition.name or type(condition).__name__.lower()
            named[unique(name, named, "_{}")] = condition
        del named["interior"]
        return named

    def _all_points(self, x: Array) -> Array:
        """Points (N, P, d) with those at which outputs of some axes are taken."""
        return np.concatenate([x, *(p(x) for _, p in self._projections)], axis=1)

    def sample(
        self, n_interior: int, n_boundary: int, rng: RandomState, method: str = "sobol"
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
        counts = {name: c.own_number for name, c in self._named_conditions.items()}
        sharing = [name for name, count in counts.items() if count is None]
        n = len(sharing)
        if n > n_boundary:
            raise ValueError(f"n_boundary={n_boundary} is too few for {sharing}.")
        for i, name in enumerate(sharing):  # the first ones take what is left over
            counts[name] = (n_boundary + n - 1 - i) // n
        return self._draw(n_interior, counts, rng, method)

    def probes(self, n: int, rng: RandomState) -> dict[str, Points]:
        """Draw n uniform points for each residual class; see ``sample``."""
        return self._draw(n, dict.fromkeys(self._named_conditions, n), rng, "uniform")

    def _draw_directions(self, rng: RandomState) -> Array | None:
        """Draw the axes from which Laplacians are estimated; None: they are exact."""
        if self.n_laplacian_directions is None:
            return None
        space = [k for k, a in enumerate(self.domain.axes) if a != self.domain.time]
        count = min(self.n_laplacian_directions, len(space))
        return rng.choice(space, count, replace=False).astype(np.int32)

    def _draw(self, n_interior, counts, rng, method):
        x = self.domain.sample(n_interior, rng, method)
        points = {"interior": Points(x[:, None], x[:, :0])}
        for name, condition in self._named_conditions.items():
            with explained_errors(name):
                points[name] = condition.sample(self.domain, counts[name], rng, method)
        return {n: p._replace(x=self._all_points(p.x)) for n, p in points.items()}

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
        return exact_at(self, X)

    def reference(
        self, n_points: int, rng: RandomState, method: str = "sobol"
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
            Points of the domain, or of the reference.
        values : ndarray of shape (n, q)
            Solution there.
        """
        if self.exact is not None and is_reference(self.exact):
            return np.array(self.exact.points), np.array(self.exact.values)
        X = self.domain.sample(n_points, rng, method)
        return X, self.exact_values(X)

    def check(self) -> None:
        """Find mistakes before anything large is compiled.

        It evaluates the statement at a few points with smooth fields, and finds wrong
        names and shapes, parts of the boundary without points, residuals that are not
        finite or do not depend on the field (with up to 1000 axes), and equations that
        contradict each other.

        Raises
        ------
        ValueError
            If there is a mistake. The message names the argument or condition.

        Warns
        -----
        UserWarning
            If there are more equations than outputs, if values contradict each other
            where two parts of the boundary meet, or the boundary and the start of
            time (unless the default network of :class:`PINNSolver` has functions for
            it), or if the source and the slopes of a pure Neumann problem of the
            Laplacian do not cancel out.
        """
        check_problem(self)


def _tuple(value, name):
    if isinstance(value, (str, BaseCondition)):
        return (value,)
    if not isinstance(value, Iterable):
        kind = "conditions" if name == "conditions" else "names, such as 'u'"
        raise ValueError(f"{name} must hold {kind}, got {value!r}.")
    return tuple(value)
