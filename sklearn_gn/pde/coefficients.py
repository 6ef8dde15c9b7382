"""Coefficients of an equation: numbers, pieces, and unknowns that are to be found."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

# Collects the coefficients of pieces that are called.
called: ContextVar[list | None] = ContextVar("called", default=None)
# Pieces to take, by their domains, and the mask of their region; None: by the point.
present: ContextVar[tuple | None] = ContextVar("present", default=None)
# Change of the logarithm for a step of one. The first steps do not know the solution
# yet: with 1.0, some throw coefficients so far that their derivative vanishes.
_LOG_UNIT = 0.3
VISIBLE = 1e3  # ratio of sizes, beyond which the smaller ones are not seen


@dataclass(frozen=True)
class Unknown:
    """A coefficient to be found.

    Parameters
    ----------
    initial : float or array
        Value from which the search starts. For an eigenvalue it chooses among the
        solutions: the nearest is found.
    positive : bool, default=False
        Whether the coefficient is positive. The search is then for its logarithm.
    """

    initial: float | tuple
    positive: bool = False
    _unit: ClassVar[Any]  # set for each coefficient

    def __post_init__(self):
        initial = np.asarray(self.initial, dtype=float)
        fits = not self.positive or (initial > 0).all()
        if not (fits and np.isfinite(initial).all()):
            wanted = "positive" if self.positive else "finite"
            raise ValueError(f"initial must be {wanted}, got {self.initial!r}.")
        object.__setattr__(self, "initial", _nested(initial))
        # Powers of ten next to values of SI units, 1 for values of ordinary size.
        size = np.abs(initial)
        ordinary = (size == 0) | ((size >= 1 / VISIBLE) & (size <= VISIBLE))
        unit = np.where(ordinary, 1.0, 10.0 ** np.round(np.log10(size + ordinary)))
        object.__setattr__(self, "_unit", unit)

    def encode(self, value: Any) -> Any:
        """What the search is for: the value, or its scaled logarithm. In numpy."""
        value = np.asarray(value, dtype=float)
        return np.log(value) / _LOG_UNIT if self.positive else value / self._unit

    def decode(self, raw: Any) -> Any:
        """The inverse of ``encode``, in JAX."""
        if self.positive:
            return jnp.exp(_LOG_UNIT * raw)
        unit = self._unit.astype(raw.dtype)
        return raw * unit if (unit != 1).any() else raw


@dataclass(frozen=True, init=False)
class Piecewise:
    """A coefficient with a value of its own in each of several domains.

    It is a function of a point, ``k(x)``, that combines with fields: ``k * grad(u)``.
    In the residual of a :class:`Problem` it makes regions: the network of
    :class:`~sklearn_gn.PINNSolver` has outputs of its own in each of them. On the
    interfaces whatever the equation differentiates is kept continuous, such as u and
    the normal component of ``k * grad(u)`` for ``div(k * grad(u))``.

    Parameters
    ----------
    otherwise : float or callable
        Value, or function of a point, outside all of the domains.
    *pieces : tuple of Domain and value
        The first domain that contains the point gives the value. Domains have all axes
        of the problem, or its first ones, such as space before time.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from sklearn_gn.pde import Ball, Piecewise
    >>> k = Piecewise(1.0, (Ball(2, radius=0.5), 10.0))
    >>> float(k(jnp.array([0.1, 0.2]))), float(k(jnp.array([0.9, 0.2])))
    (10.0, 1.0)
    """

    otherwise: Any
    pieces: tuple
    domains: ClassVar[tuple]  # of the pieces

    def __init__(self, otherwise: Any, *pieces: tuple[Any, Any]) -> None:
        for piece in pieces:
            pair = isinstance(piece, tuple) and len(piece) == 2
            if not pair or not hasattr(piece[0], "contains"):
                raise ValueError(f"pieces must be pairs (Domain, value), got {piece}.")
        object.__setattr__(self, "otherwise", otherwise)
        object.__setattr__(self, "pieces", pieces)
        object.__setattr__(self, "domains", tuple(domain for domain, _ in pieces))

    def __call__(self, x: Any) -> Any:
        """Value at a point of shape (d,)."""
        x, collected, within = jnp.asarray(x), called.get(), present.get()
        if collected is not None:
            collected.append(self)
        if within is not None and self.domains in within[0]:
            number = within[0][self.domains]
        else:
            number = piece_numbers(self.domains, x[None])[0]
        values = [value for _, value in self.pieces] + [self.otherwise]
        found = [value(x) if callable(value) else value for value in values]
        value = jnp.asarray(found[-1], x.dtype)
        for k, inside in enumerate(found[:-1]):
            value = jnp.where(number == k, inside, value)
        return value


def piece_numbers(domains: tuple, X: Any) -> Any:
    """Numbers of the first domains that contain points (n, d), else their count."""
    xp = X.__array_namespace__()
    found = xp.full(len(X), len(domains))
    for k, domain in reversed(list(enumerate(domains))):
        found = xp.where(domain.contains(X[:, : domain.dim]), k, found)
    return found


def frozen_coefficient(name, value):
    """The coefficient as a number, as nested tuples or as an Unknown; or an error."""
    if isinstance(value, Unknown):
        return value
    array = numbers(value)
    if not np.isfinite(array).all():
        raise ValueError(
            f"coefficient {name!r} must be a finite number or Unknown, got {value!r}."
        )
    return _nested(array)


def numbers(value):
    """A value as an array of floats; NaN if it holds anything but numbers."""
    try:
        array = np.asarray(value)
        return np.array(np.nan) if array.dtype.kind in "SU" else array.astype(float)
    except (TypeError, ValueError):
        return np.array(np.nan)


def _nested(array):
    """A number, or tuples of tuples, which have a hash."""
    return tuple(map(_nested, array)) if array.ndim else float(array)
