"""Inverse problems: coefficients and unknown functions from observations."""

import math

import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_bvp

from benchmarks._demos import references
from benchmarks._demos.common import Demo
from benchmarks._demos.evolution import LINE, diffusion_exact
from benchmarks._demos.one_dimension import path
from sklearn_gn.pde import Box, Dirichlet, Initial, Interval, Problem, Unknown, d

pi = math.pi


def _lorenz(force):
    start = [-8.0, 7.0, 27.0]

    def flow(t, y):
        x, y, z = y
        return [10 * (y - x), x * (15 - z) - y, x * y - 8 / 3 * z + float(force(t, np))]

    def residual(u, t, sigma, rho, beta):
        x, y, z = u(t)
        return (
            d(u["x"], "t")(t) - sigma * (y - x),
            d(u["y"], "t")(t) - x * (rho - z) + y,
            d(u["z"], "t")(t) - x * y + beta * z - force(t[0], jnp),
        )

    problem = Problem(
        residual,
        Interval(0, 3),
        [Initial(start)],
        outputs=("x", "y", "z"),
        coefficients={name: Unknown(1.0) for name in ("sigma", "rho", "beta")},
    )
    return problem, lambda n: path(flow, 3, start, n)


LORENZ = {"sigma": 10.0, "rho": 15.0, "beta": 8 / 3}


def lorenz_inverse():
    problem, observed = _lorenz(lambda t, xp: 0.0 * t)
    return Demo(problem, observed(25), truth=LORENZ)


def lorenz_forced_inverse():
    problem, observed = _lorenz(lambda t, xp: 10 * xp.sin(2 * pi * t))
    return Demo(problem, observed(200), truth=LORENZ)


def brinkman_inverse():
    nu, e, g, effective, permeability = 1e-3, 0.4, 1.0, 1e-3, 1e-3
    r = math.sqrt(nu * e / (effective * permeability))

    def residual(u, x, nu_e, K):
        return -nu_e / e * d(u, "x", "x")(x) + nu * u(x) / K - g

    problem = Problem(
        residual,
        Interval(0, 1, axis="x"),
        [Dirichlet(0.0)],
        coefficients={
            "nu_e": Unknown(0.1, positive=True),
            "K": Unknown(0.1, positive=True),
        },
    )
    x = np.linspace(0, 1, 7)[1:-1]
    y = g * permeability / nu * (1 - np.cosh(r * (x - 0.5)) / np.cosh(r / 2))
    truth = {"nu_e": effective, "K": permeability}
    return Demo(problem, (x[:, None], y), truth=truth)


def diffusion_inverse():
    def residual(u, x, c):
        source = jnp.exp(-x[1]) * (1 - pi**2) * jnp.sin(pi * x[0])
        return d(u, "t")(x) - c * d(u, "x", "x")(x) + source

    problem = Problem(
        residual,
        LINE,
        [Dirichlet(0.0), Initial(diffusion_exact)],
        coefficients={"c": Unknown(2.0)},
    )
    X = np.column_stack([np.linspace(-1, 1, 10), np.ones(10)])
    return Demo(problem, (X, np.exp(-1) * np.sin(pi * X[:, 0])), truth={"c": 1.0})


def reaction_rate_field():
    size, n = 0.01, 100

    def rate(x):
        return 0.1 + np.exp(-0.5 * (x - 0.5) ** 2 / 0.15**2)

    def flow(x, y):
        return np.stack([y[1], (rate(x) * y[0] + np.sin(2 * pi * x)) / size])

    x = np.linspace(0, 1, n)
    found = solve_bvp(
        flow, lambda a, b: np.array([a[0], b[0]]), x, np.zeros((2, n)), tol=1e-10
    )

    def residual(u, x):
        bend = size * d(u["u"], "x", "x")(x)
        return bend - u["u"](x) * u["k"](x) - jnp.sin(2 * pi * x[0])

    problem = Problem(
        residual,
        Interval(0, 1, axis="x"),
        [Dirichlet(0.0, outputs="u")],
        outputs=("u", "k"),
    )
    fine = np.linspace(0, 1, 500)
    values = np.column_stack([np.full(500, np.nan), rate(fine)])
    return Demo(
        problem,
        (x[:, None], found.sol(x)[0]),
        {"observed_outputs": ["u"]},
        points=fine[:, None],
        values=values,
        field=True,
    )


def _elliptic_field(n):
    problem = Problem(
        lambda u, x: -d(u["u"], "x", "x")(x) + u["q"](x),
        Interval(-1, 1, axis="x"),
        [Dirichlet(0.0, outputs="u")],
        outputs=("u", "q"),
    )
    x = np.linspace(-1, 1, n)
    fine = np.linspace(-1, 1, 500)
    truth = -(pi**2) * np.sin(pi * fine)
    return Demo(
        problem,
        (x[:, None], np.sin(pi * x)),
        {"observed_outputs": ["u"]},
        points=fine[:, None],
        values=np.column_stack([np.full(500, np.nan), truth]),
        field=True,
    )


def elliptic_field():
    return _elliptic_field(100)


def elliptic_field_batch():
    return _elliptic_field(10_000)


def reaction_inverse():
    def residual(u, x, D, kf):
        a, b = u(x)
        speed = kf * a * b**2
        return (
            d(u["a"], "t")(x) - 1e-3 * D * d(u["a"], "x", "x")(x) + speed,
            d(u["b"], "t")(x) - 1e-3 * D * d(u["b"], "x", "x")(x) + 2 * speed,
        )

    problem = Problem(
        residual,
        Box(x=(0, 1), t=(0, 10)),
        [Dirichlet(lambda x: 1 - x[0]), Initial(lambda x: jnp.exp(-20 * x[0]))],
        outputs=("a", "b"),
        coefficients={"D": Unknown(1.0), "kf": Unknown(0.05)},
    )
    return Demo(problem, references.reaction(2e-3, 0.1), truth={"D": 2.0, "kf": 0.1})


ROWS = {
    function.__name__: function
    for function in (
        lorenz_inverse,
        lorenz_forced_inverse,
        brinkman_inverse,
        diffusion_inverse,
        reaction_rate_field,
        elliptic_field,
        elliptic_field_batch,
        reaction_inverse,
    )
}
