"""Conditions on the boundary, at the start of time, between two faces, at own points.

A condition draws its points and is the function of their residual:
``condition(fields, points, data, coefficients)`` with the fields at P points of shape
(d,), numbers ``data`` that go with them, and all coefficients by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.random import RandomState

from sklearn_gn._typing import Array
from sklearn_gn.pde.coefficients import Unknown, numbers
from sklearn_gn.pde.domains import Domain, PointCloud, draw
from sklearn_gn.pde.operators import d, value_and_slope
from sklearn_gn.pde.residual_classes import call, flat, named_parameters


class Points(NamedTuple):
    """Points of a residual class.

    Parameters
    ----------
    x : ndarray of shape (N, P, d)
        P points for each of N residuals.
    data : ndarray of shape (N, e)
        Further data of a residual, such as normals.
    """

    x: np.ndarray
    data: np.ndarray


@dataclass(frozen=True, kw_only=True)
class BaseCondition:
    """Base class of the conditions; :class:`Condition` describes the parameters."""

    weight: float = 1.0
    name: str | None = None
    n_points: int | None = None

    n_fields = 1  # P: fields, hence points, of one residual
    needs_normals = False
    n_more_data = 0  # numbers of a point after its normal
    order = 0  # of a derivative in time that is given

    def __post_init__(self):
        if not 0 < self.weight < np.inf:
            raise ValueError(f"weight must be positive, got {self.weight!r}.")
        if self.n_points is not None and self.n_points < 1:
            raise ValueError(f"n_points must be at least 1, got {self.n_points!r}.")
        for name in ("outputs", "on", "value", "a", "b"):
            if hasattr(self, name):
                object.__setattr__(self, name, _frozen(getattr(self, name), name))

    @property
    def own_number(self) -> int | None:
        """Number of points that the condition asks for; None if it shares."""
        on = getattr(self, "on", None)
        if isinstance(on, PointCloud) and self.n_points is None:
            return len(on.points_on_it)
        return self.n_points

    def where(self, domain: Domain) -> Any:
        """The part of the boundary of a domain that the condition holds on."""
        del domain
        return self.on

    def faces(self, domain: Domain) -> tuple[str, ...]:
        """Names of the faces it holds on; none if points or a function say where."""
        on = self.where(domain)
        if on == "boundary":
            return domain._faces_of_space()
        on = (on,) if isinstance(on, str) else on
        return on if isinstance(on, tuple) else ()

    def sample(
        self, domain: Domain, n: int, rng: RandomState, method: str = "sobol"
    ) -> Points:
        """Draw the points of n residuals, with normals where they are needed."""
        on = self.where(domain)
        if isinstance(on, Domain) and len(on.axes) != domain.dim:
            raise ValueError(
                f"on has points of the {len(on.axes)} axes {on.axes}; the domain has "
                f"{domain.axes}."
            )
        if isinstance(on, PointCloud):
            points, normals = on.take(n, rng)
        else:
            part = on.boundary() if isinstance(on, Domain) else domain.boundary(on)
            points, normals = draw(part, n, rng, method)
        if self.needs_normals and not normals.any():
            raise ValueError(
                f"{type(self).__name__.lower()} needs normals: give them by "
                "on=PointCloud(points, boundary=points, normals=normals)."
            )
        return Points(points[:, None], normals[:, : domain.dim * self.needs_normals])

    def _outputs(self, field):
        """The outputs that the condition is about, as a field of shape (k,)."""
        chosen = field if self.outputs is None else field[self.outputs]
        return chosen.linear_image(jnp.ravel)


def _frozen(value, name):
    """Arrays as tuples, which have a hash, and points as a PointCloud."""
    if name == "outputs":
        return tuple(value) if isinstance(value, list) else value
    if name == "on":
        if isinstance(value, (str, Domain)) or callable(value):
            return value
        if np.ndim(value) == 0:
            raise ValueError(
                "on must be 'boundary', faces such as 'x=min', a function of a point, "
                f"points, or a Domain, got {value!r}."
            )
        if all(isinstance(entry, str) for entry in value):
            return tuple(value)
        return PointCloud(value)
    if callable(value):
        return value
    entries = value if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(entry, Unknown) for entry in entries):
        raise ValueError(
            f"{name} holds an Unknown: give it a name in coefficients, such as "
            f"coefficients={{'g': Unknown(1.0)}}, and write {name} as a function that "
            "takes it, such as lambda x, g: g."
        )
    array = numbers(value)
    if array.ndim > 1 or not np.isfinite(array).all():
        raise ValueError(
            f"{name} must be a finite number, a list of one for each output, or a "
            f"function of a point, got {value!r}."
        )
    return float(array) if array.ndim == 0 else tuple(array.tolist())


@dataclass(frozen=True)
class Condition(BaseCondition):
    """What must vanish on a part of the boundary, at points, or on an interface.

    Use it for what :class:`Dirichlet`, :class:`Neumann`, :class:`Robin`,
    :class:`Initial` and :class:`Periodic` cannot express: derivatives of any order,
    several outputs together, coefficients that are to be found.

    Parameters
    ----------
    residual : callable
        ``residual(u, x)`` returns what must vanish, as for a :class:`Problem`. Its
        further parameters may be coefficients, and ``normal``, the outward normal, with
        one component for each axis of space, like the last axis of ``grad(u)(x)``.
    on : str, tuple of str, callable, array or Domain, default="boundary"
        "boundary", the boundary of space; faces by name; a function of points (n, d)
        that says which part of that boundary to take; points of shape (n, d); or a
        domain on whose boundary it holds, such as an interface.
    weight : float, default=1.0
        Factor of the condition in the loss. Keyword only, like the parameters below.
    name : str, default=None
        Name in logs. If None, the name of the class.
    n_points : int, default=None
        Number of points. If None, the condition shares ``n_boundary`` with the others,
        or uses all points if ``on`` gives points.

    Examples
    --------
    The free end of a beam:

    >>> from sklearn_gn.pde import Condition, d
    >>> moment = Condition(lambda u, x: d(u, "x", "x")(x), on="x=max")

    Cooling to air of the temperature T, with a coefficient that is to be found:

    >>> from sklearn_gn.pde import grad
    >>> def cooling(u, x, normal, h):
    ...     return grad(u)(x) @ normal + h * (u(x) - 20.0)
    >>> cooled = Condition(cooling, on=("x=min", "x=max"))
    """

    residual: Callable
    on: Any = "boundary"

    @property
    def needs_normals(self) -> bool:  # type: ignore[override]
        """Whether the residual names the normal."""
        return "normal" in named_parameters(self.residual, 2)[0]

    def __call__(self, fields: Any, points: Array, data: Any, coefficients: Any) -> Any:
        """Residual at a point, of shape (k,)."""
        field, x = fields[0], points[0]
        if self.needs_normals:
            coefficients = {**coefficients, "normal": data[np.array(field.space)]}
        return flat(call(self.residual, (field, x), coefficients), x)


class _Values(BaseCondition):
    """Given values of ``a u + b du/dn``, of the outputs u or a derivative in time."""

    _factors: Any = (1.0, 0.0)  # a and b

    def __call__(self, fields: Any, points: Array, data: Any, coefficients: Any) -> Any:
        """Residual at a point, of shape (k,)."""
        x, outputs = points[0], self._outputs(fields[0])
        if self.order:
            outputs = d(outputs, *[outputs.time] * self.order)
        u, slope = (
            value_and_slope(outputs, x, data)
            if self.needs_normals
            else (outputs(x), 0.0)
        )
        given = []
        for value in (*self._factors, self.value):
            if callable(value):
                value = call(value, (x,), coefficients)
            given.append(jnp.asarray(value, x.dtype))
            if given[-1].shape not in ((), u.shape):
                raise ValueError(
                    "the value must be a number, or hold one for each of the "
                    f"{u.size} outputs; its shape is {given[-1].shape}."
                )
        a, b, value = given
        return a * u + b * slope - value


@dataclass(frozen=True)
class Dirichlet(_Values):
    """The outputs have given values: ``u = value``.

    Parameters
    ----------
    value : float, array or callable
        One number for all outputs or one for each; or a function of a point that
        returns these. Coefficients may be further parameters of the function: ``lambda
        x, g: g * x[0]``.
    on : str, tuple of str, callable, array or Domain, default="boundary"
        As for :class:`Condition`.
    outputs : str, int or tuple of these, default=None
        The outputs to which the condition applies. If None, all of them.
    weight, name, n_points : float, str and int
        As for :class:`Condition`; keyword only.
    """

    value: float | tuple | Callable
    on: Any = "boundary"
    outputs: Any = None


@dataclass(frozen=True)
class Neumann(_Values):
    """The outward normal derivative has given values: ``du/dn = value``.

    Parameters
    ----------
    value : float, array or callable
        As for :class:`Dirichlet`.
    on : str, tuple of str, callable, array or Domain, default="boundary"
        As for :class:`Condition`; your own points need normals.
    outputs : str, int or tuple of these, default=None
        The outputs to which the condition applies. If None, all of them.
    weight, name, n_points : float, str and int
        As for :class:`Condition`; keyword only.
    """

    value: float | tuple | Callable
    on: Any = "boundary"
    outputs: Any = None

    _factors = (0.0, 1.0)
    needs_normals = True


@dataclass(frozen=True)
class Robin(_Values):
    """Value and outward normal derivative together: ``a u + b du/dn = value``.

    Parameters
    ----------
    a, b, value : float, array or callable
        Each as the value of :class:`Dirichlet`.
    on : str, tuple of str, callable, array or Domain, default="boundary"
        As for :class:`Condition`; your own points need normals.
    outputs : str, int or tuple of these, default=None
        The outputs to which the condition applies. If None, all of them.
    weight, name, n_points : float, str and int
        As for :class:`Condition`; keyword only.
    """

    a: float | tuple | Callable
    b: float | tuple | Callable
    value: float | tuple | Callable
    on: Any = "boundary"
    outputs: Any = None

    needs_normals = True

    @property
    def _factors(self):
        """The functions or numbers a and b."""
        return self.a, self.b


@dataclass(frozen=True)
class Initial(_Values):
    """The outputs, or their derivatives in time, are given at the start of time.

    Parameters
    ----------
    value : float, array or callable
        As for :class:`Dirichlet`.
    outputs : str, int or tuple of these, default=None
        The outputs to which the condition applies. If None, all of them.
    order : int, default=0
        Order of the derivative in time that has these values: 1 for a velocity.
    weight, name, n_points : float, str and int
        As for :class:`Condition`; keyword only.

    Examples
    --------
    A string that is plucked, and at rest:

    >>> from sklearn_gn.pde import Initial
    >>> conditions = [Initial(lambda x: x[0] * (1 - x[0])), Initial(0.0, order=1)]
    """

    value: float | tuple | Callable
    outputs: Any = None
    order: int = 0

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.order, Integral) or self.order < 0:
            raise ValueError(
                f"order must be a non-negative integer, got {self.order!r}."
            )

    def where(self, domain: Domain) -> Any:
        """The start of time."""
        if domain.time is None:
            raise ValueError(
                f"the domain has no time; its axes are {domain.axes}. Call the "
                "axis of time 't', or name it: Box(x=(0, 1), tau=(0, 1), time='tau')."
            )
        return f"{domain.time}=min"


@dataclass(frozen=True)
class Periodic(BaseCondition):
    """Outputs agree on the two faces of an axis, and so do their first derivatives.

    The argument ``periodic`` of :class:`Problem` makes them agree exactly, with all
    their derivatives. PINNSolver's default network does so of itself where nothing
    breaks at the faces; other networks need it for more than second derivatives.

    Parameters
    ----------
    axis : str
        The axis whose two faces are opposite each other.
    outputs : str, int or tuple of these, default=None
        The outputs to which the condition applies. If None, all of them.
    derivatives : bool, default=True
        Whether the first derivatives along the axis must agree, too.
    weight, name, n_points : float, str and int
        As for :class:`Condition`; keyword only.
    """

    axis: str
    outputs: Any = None
    derivatives: bool = True

    n_fields = 2

    def where(self, domain: Domain) -> Any:
        """The lower one of the two faces."""
        domain.boundary((f"{self.axis}=max",))  # raises where there is no such face
        return f"{self.axis}=min"

    def sample(
        self, domain: Domain, n: int, rng: RandomState, method: str = "sobol"
    ) -> Any:
        """Draw n pairs of points, one on each face."""
        low, normals = draw(domain.boundary(self.where(domain)), n, rng, method)
        axis, high = domain.axes.index(self.axis), low.copy()
        bottom, high[:, axis] = domain.bounds[axis]
        opposite = domain.is_boundary(high, -normals).all()
        if not opposite or (low[:, axis] != bottom).any():
            raise ValueError(
                f"the faces {self.axis}=min and {self.axis}=max do not lie opposite."
            )
        return Points(np.stack([low, high], axis=1), normals[:, :0])

    def __call__(self, fields: Any, points: Array, data: Any, coefficients: Any) -> Any:
        """Differences between the two points, of shape (k,)."""
        del data, coefficients
        pairs = [[self._outputs(field) for field in fields[:2]]]
        if self.derivatives:
            pairs.append([d(field, self.axis) for field in pairs[0]])
        found = [low(points[0]) - high(points[1]) for low, high in pairs]
        return jnp.concatenate(found)
