"""Conditions on the boundary, at the start of time, between two faces.

A condition draws its points and is the function of their residual:
``condition(fields, points, data, coefficients)`` with the fields at P points of shape
(P, d), numbers ``data`` that go with them, and coefficients, which it does not use.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn._typing import Array
from sklearn_gn.pde.domains import Domain
from sklearn_gn.pde.operators import d
from sklearn_gn.pde.patches import draw


class Points(NamedTuple):
    """Points of a residual class.

    Parameters
    ----------
    x : ndarray of shape (N, P, d)
        P points for each of N residuals.

    data : ndarray of shape (N, e)
        What else a residual needs, such as normals.
    """

    x: np.ndarray
    data: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Base class of the conditions.

    Parameters
    ----------
    weight : float, default=1.0
        Factor of the condition's part of the loss.

    name : str, default=None
        Name in logs. If None, that of the class.

    n_points : int, default=None
        Number of points. If None, the condition shares ``n_boundary`` with the others.
    """

    weight: float = 1.0
    name: str | None = None
    n_points: int | None = None

    n_fields = 1  # P: fields, hence points, of one residual
    needs_normals = False

    def __post_init__(self):
        if not 0 < self.weight < np.inf:
            raise ValueError(f"weight must be positive, got {self.weight!r}.")
        if self.n_points is not None and self.n_points < 1:
            raise ValueError(f"n_points must be at least 1, got {self.n_points!r}.")
        for name in ("outputs", "on", "value", "a", "b"):
            if hasattr(self, name):
                object.__setattr__(self, name, _frozen(getattr(self, name), name))

    @property
    def kind(self) -> str:
        """Name of the condition if it is given none."""
        return type(self).__name__.lower()

    def where(self, domain: Domain) -> Any:
        """The part of the boundary of a domain that the condition holds on."""
        del domain
        return self.on

    def sample(
        self,
        domain: Domain,
        n: int,
        rng: np.random.RandomState,
        method: Literal["sobol", "halton", "uniform"] = "sobol",
    ) -> Points:
        """Draw the points of n residuals.

        Parameters
        ----------
        domain : Domain
            Domain of the problem.
        n : int
            Number of residuals.
        rng : RandomState
            Source of the random numbers.
        method : {"sobol", "halton", "uniform"}, default="sobol"
            How the points are drawn.

        Returns
        -------
        Points
            With a normal a point where the condition needs normals.
        """
        patch = domain.boundary(self.where(domain))
        points, normals = draw(patch, n, rng, method)
        return Points(
            points[:, None], normals if self.needs_normals else normals[:, :0]
        )

    def _outputs(self, field):
        """The outputs that the condition is about, as a field of shape (k,)."""
        chosen = field if self.outputs is None else field[self.outputs]
        return chosen.derived(lambda x: jnp.ravel(chosen(x)))

    def _target(self, value, x, actual):
        """A value, or that of a function of the point: one, or one each."""
        value = jnp.asarray(value(x) if callable(value) else value, x.dtype)
        if value.shape not in ((), actual.shape):
            raise ValueError(
                f"there are {actual.size} outputs, a value of shape {value.shape}."
            )
        return value


def _frozen(value, name):
    """Arrays as tuples, which have a hash."""
    if name in ("outputs", "on"):
        return tuple(value) if isinstance(value, list) else value
    if callable(value):
        return value
    array = np.array(np.nan) if isinstance(value, str) else np.asarray(value, float)
    if array.ndim > 1 or not np.isfinite(array).all():
        raise ValueError(
            f"{name} must be a finite number, a list of one for each output, or a "
            f"function of a point, got {value!r}."
        )
    return float(array) if array.ndim == 0 else tuple(array.tolist())


class _Values(Condition):
    def __call__(self, fields: Any, points: Array, data: Any, coefficients: Any) -> Any:
        """Residual at a point, of shape (k,)."""
        del data, coefficients
        (field,), (x,) = fields, points
        actual = self._outputs(field)(x)
        return actual - self._target(self.value, x, actual)


@dataclass(frozen=True)
class Dirichlet(_Values):
    """The outputs have given values: ``u = value``.

    Parameters
    ----------
    value : float, array or callable
        One for all outputs or one each; or a function of one point that returns that.

    on : str, tuple of str or callable, default="boundary"
        "boundary" for that of space, faces by name, or a function of points (n, d) that
        says which of the boundary of space to take.

    outputs : str, int or tuple of these, default=None
        The outputs that the condition is about. If None, all of them.

    weight, name, n_points : float, str and int
        As for :class:`Condition`, by name only.
    """

    value: float | tuple | Callable
    on: str | tuple | Callable = "boundary"
    outputs: Any = None


class _NormalDerivative(Condition):
    needs_normals = True

    def _slope(self, field, x, normal):
        return jax.jvp(self._outputs(field), (x,), (normal,))


@dataclass(frozen=True)
class Neumann(_NormalDerivative):
    """The outward normal derivative has given values: ``du/dn = value``.

    Parameters
    ----------
    value : float, array or callable
        One for all outputs or one each; or a function of one point that returns that.

    on : str, tuple of str or callable, default="boundary"
        As for :class:`Dirichlet`.

    outputs : str, int or tuple of these, default=None
        The outputs that the condition is about. If None, all of them.

    weight, name, n_points : float, str and int
        As for :class:`Condition`, by name only.
    """

    value: float | tuple | Callable
    on: str | tuple | Callable = "boundary"
    outputs: Any = None

    def __call__(self, fields: Any, points: Array, data: Any, coefficients: Any) -> Any:
        """Residual at a point, of shape (k,)."""
        del coefficients
        (field,), (x,) = fields, points
        _, slope = self._slope(field, x, data)
        return slope - self._target(self.value, x, slope)


@dataclass(frozen=True)
class Robin(_NormalDerivative):
    """Value and outward normal derivative together: ``a u + b du/dn = value``.

    Parameters
    ----------
    a, b, value : float, array or callable
        One for all outputs or one each; or a function of one point that returns that.

    on : str, tuple of str or callable, default="boundary"
        As for :class:`Dirichlet`.

    outputs : str, int or tuple of these, default=None
        The outputs that the condition is about. If None, all of them.

    weight, name, n_points : float, str and int
        As for :class:`Condition`, by name only.
    """

    a: float | tuple | Callable
    b: float | tuple | Callable
    value: float | tuple | Callable
    on: str | tuple | Callable = "boundary"
    outputs: Any = None

    def __call__(self, fields: Any, points: Array, data: Any, coefficients: Any) -> Any:
        """Residual at a point, of shape (k,)."""
        del coefficients
        (field,), (x,) = fields, points
        actual, slope = self._slope(field, x, data)
        a, b, value = (self._target(f, x, slope) for f in (self.a, self.b, self.value))
        return a * actual + b * slope - value


@dataclass(frozen=True)
class Initial(_Values):
    """The outputs have given values at the start of time: ``u = value``.

    Parameters
    ----------
    value : float, array or callable
        One for all outputs or one each; or a function of one point that returns that.

    outputs : str, int or tuple of these, default=None
        The outputs that the condition is about. If None, all of them.

    weight, name, n_points : float, str and int
        As for :class:`Condition`, by name only.
    """

    value: float | tuple | Callable
    outputs: Any = None

    def where(self, domain: Domain) -> Any:
        """The start of time."""
        if domain.time is None:
            raise ValueError(f"the domain has no time; its axes are {domain.axes}.")
        return f"{domain.time}=min"


@dataclass(frozen=True)
class Periodic(Condition):
    """Outputs agree on the two faces of an axis, and so do their first derivatives.

    The argument ``periodic`` of :class:`Problem` makes them agree exactly instead.

    Parameters
    ----------
    axis : str
        The axis along which the faces lie opposite each other.

    outputs : str, int or tuple of these, default=None
        The outputs that the condition is about. If None, all of them.

    derivatives : bool, default=True
        Whether the first derivatives along the axis must agree, too.

    weight, name, n_points : float, str and int
        As for :class:`Condition`, by name only.
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
        self, domain: Domain, n: int, rng: np.random.RandomState, method: str = "sobol"
    ) -> Any:
        """Draw n pairs of points, one on each face."""
        low, normals = draw(domain.boundary(self.where(domain)), n, rng, method)
        axis, high = domain.axes.index(self.axis), low.copy()
        bottom, high[:, axis] = domain.bounds[axis]
        if (low[:, axis] != bottom).any() or not domain.is_boundary(
            high, -normals
        ).all():
            raise ValueError(
                f"the faces {self.axis}=min and {self.axis}=max do not lie opposite "
                "each other."
            )
        return Points(np.stack([low, high], axis=1), normals[:, :0])

    def __call__(self, fields: Any, points: Array, data: Any, coefficients: Any) -> Any:
        """Differences between the two points, of shape (k,)."""
        del data, coefficients
        fields = [self._outputs(field) for field in fields]
        if not self.derivatives:
            return _difference(fields, points)
        slopes = [d(field, self.axis) for field in fields]
        return jnp.concatenate(
            [_difference(fields, points), _difference(slopes, points)]
        )


def _difference(fields, points):
    low, high = (field(x) for field, x in zip(fields, points, strict=True))
    return low - high
