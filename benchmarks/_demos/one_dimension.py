"""Ordinary differential equations, and integro-differential ones."""

import math

import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from benchmarks._demos.common import Demo
from sklearn_gn.pde import (
    Condition,
    Dirichlet,
    Initial,
    Interval,
    Neumann,
    Periodic,
    Problem,
    Robin,
    d,
    integral,
)

pi = math.pi
LINE = Interval(-1, 1, axis="x")


def sine(x):
    return jnp.sin(pi * x[0])


def sine_load(u, x):
    return -d(u, "x", "x")(x) - pi**2 * sine(x)


def parabola(x):
    return (x[0] + 1) ** 2


def constant_load(u, x):
    return d(u, "x", "x")(x) - 2


def poisson_dirichlet():
    return Demo(Problem(sine_load, LINE, [Dirichlet(0.0)], exact=sine))


def poisson_neumann():
    conditions = [Dirichlet(0.0, on="x=min"), Neumann(4.0, on="x=max")]
    return Demo(Problem(constant_load, LINE, conditions, exact=parabola))


def poisson_robin():
    conditions = [Dirichlet(0.0, on="x=min"), Robin(1.0, -1.0, 0.0, on="x=max")]
    return Demo(Problem(constant_load, LINE, conditions, exact=parabola))


def poisson_periodic():
    conditions = [Dirichlet(0.0, on="x=min"), Periodic("x", derivatives=False)]
    return Demo(Problem(sine_load, LINE, conditions, exact=sine))


def poisson_point_operator():
    slope = Condition(lambda u, x: d(u, "x")(x) - 2 * (x[0] + 1), on=[[1.0]])
    conditions = [Dirichlet(0.0, on="x=min"), slope]
    return Demo(Problem(constant_load, LINE, conditions, exact=parabola))


def poisson_exact_conditions():
    def load(u, x):
        source = sum(i * jnp.sin(i * x[0]) for i in range(1, 5))
        return -d(u, "x", "x")(x) - source - 8 * jnp.sin(8 * x[0])

    def exact(x):
        waves = sum(jnp.sin(i * x[0]) / i for i in (1, 2, 3, 4, 8))
        return x[0] + waves

    return Demo(
        Problem(
            load,
            Interval(0, pi, axis="x"),
            transform=lambda x, u: x[0] * (pi - x[0]) * u + x[0],
            exact=exact,
        )
    )


def poisson_multiscale():
    def exact(x):
        return jnp.sin(2 * pi * x[0]) + 0.1 * jnp.sin(50 * pi * x[0])

    def load(u, x):
        slow = (2 * pi) ** 2 * jnp.sin(2 * pi * x[0])
        return d(u, "x", "x")(x) + slow + 0.1 * (50 * pi) ** 2 * jnp.sin(50 * pi * x[0])

    domain = Interval(0, 1, axis="x")
    return Demo(Problem(load, domain, [Dirichlet(0.0)], exact=exact))


def euler_beam():
    def exact(x):
        return -(x[0] ** 4) / 24 + x[0] ** 3 / 6 - x[0] ** 2 / 4

    def free_end(u, x):
        return d(u, "x", "x")(x), d(u, "x", "x", "x")(x)

    return Demo(
        Problem(
            lambda u, x: d(u, "x", "x", "x", "x")(x) + 1,
            Interval(0, 1, axis="x"),
            [
                Dirichlet(0.0, on="x=min"),
                Neumann(0.0, on="x=min"),
                Condition(free_end, on="x=max"),
            ],
            exact=exact,
        )
    )


def second_order_ode():
    def exact(x):
        t = x[0]
        return 50 / 81 + t * 5 / 9 + 31 / 81 * jnp.exp(9 * t) - 2 * jnp.exp(t)

    def residual(u, x):
        return d(u, "t", "t")(x) - 10 * d(u, "t")(x) + 9 * u(x) - 5 * x[0]

    conditions = [Initial(-1.0), Initial(2.0, order=1)]
    return Demo(Problem(residual, Interval(0, 0.25), conditions, exact=exact))


def ode_system():
    def residual(u, x):
        return d(u["a"], "t")(x) - u["b"](x), d(u["b"], "t")(x) + u["a"](x)

    return Demo(
        Problem(
            residual,
            Interval(0, 10),
            [Initial([0.0, 1.0])],
            outputs=("a", "b"),
            exact=lambda x: jnp.stack([jnp.sin(x[0]), jnp.cos(x[0])]),
        )
    )


def path(flow, end, start, n=1001):
    """Points of time and the solution there, to rounding."""
    t = np.linspace(0, end, n)
    options = dict(method="DOP853", rtol=1e-13, atol=1e-13)
    return t[:, None], solve_ivp(flow, (0, end), start, t_eval=t, **options).y.T


def lotka_volterra():
    def residual(u, x):
        r, p = u["r"](x), u["p"](x)
        return (
            d(u["r"], "t")(x) - 20 * (2 * r - 8 * r * p),
            d(u["p"], "t")(x) - 20 * (4 * r * p - 1.06 * p),
        )

    def flow(t, y):
        r, p = y
        return [20 * (2 * r - 8 * r * p), 20 * (4 * r * p - 1.06 * p)]

    start = [0.5, 0.075]
    problem = Problem(residual, Interval(0, 1), [Initial(start)], outputs=("r", "p"))
    points, values = path(flow, 1, start)
    return Demo(problem, points=points, values=values)


def volterra_ide():
    def kernel(x, y):
        return jnp.exp(y[0] - x[0])

    def residual(u, x):
        memory = integral(u, "t", 0, lambda x: x[0], kernel=kernel)
        return d(u, "t")(x) + u(x) - memory(x)

    return Demo(
        Problem(
            residual,
            Interval(0, 5),
            [Initial(1.0)],
            exact=lambda x: jnp.exp(-x[0]) * jnp.cosh(x[0]),
        )
    )


def ide():
    def residual(u, x):
        source = 2 * pi * jnp.cos(2 * pi * x[0]) + jnp.sin(pi * x[0]) ** 2 / pi
        return integral(u, "t", 0, lambda x: x[0])(x) + d(u, "t")(x) - source

    return Demo(
        Problem(
            residual,
            Interval(0, 1),
            [Initial(0.0)],
            exact=lambda x: jnp.sin(2 * pi * x[0]),
        )
    )


ROWS = {
    function.__name__: function
    for function in (
        poisson_dirichlet,
        poisson_neumann,
        poisson_robin,
        poisson_periodic,
        poisson_point_operator,
        poisson_exact_conditions,
        poisson_multiscale,
        euler_beam,
        second_order_ode,
        ode_system,
        lotka_volterra,
        volterra_ide,
        ide,
    )
}
