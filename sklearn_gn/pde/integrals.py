"""Integrals of fields, for integro-differential equations and integral conditions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.pde.operators import Field


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
            return u(y) if kernel is None else kernel(x, y) * u(y)

        values = jax.vmap(integrand)(shares)
        half = jnp.asarray(weights / 2, x.dtype)
        return (b - a) * jnp.tensordot(half, values, axes=1)

    return u.derived(value, u.outputs)
