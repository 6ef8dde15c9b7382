"""Equations in time and space."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._burgers import Burgers
from benchmarks._demos import references
from benchmarks._demos.common import Demo
from sklearn_gn.pde import Box, Dirichlet, Initial, Periodic, Problem, d

pi = math.pi
LINE = Box(x=(-1, 1), t=(0, 1))


def diffusion_exact(x):
    return jnp.exp(-x[1]) * jnp.sin(pi * x[0])


def diffusion_residual(u, x):
    source = jnp.exp(-x[1]) * (pi**2 - 1) * jnp.sin(pi * x[0])
    return d(u, "t")(x) - d(u, "x", "x")(x) - source


def diffusion():
    conditions = [Dirichlet(0.0), Initial(diffusion_exact)]
    return Demo(Problem(diffusion_residual, LINE, conditions, exact=diffusion_exact))


def diffusion_exact_conditions():
    return Demo(
        Problem(
            diffusion_residual,
            LINE,
            transform=lambda x, u: x[1] * (1 - x[0] ** 2) * u + jnp.sin(pi * x[0]),
            exact=diffusion_exact,
        )
    )


def heat():
    def exact(x):
        return jnp.exp(-(pi**2) * 0.4 * x[1]) * jnp.sin(pi * x[0])

    def residual(u, x):
        return d(u, "t")(x) - 0.4 * d(u, "x", "x")(x)

    conditions = [Dirichlet(0.0), Initial(lambda x: jnp.sin(pi * x[0]))]
    return Demo(Problem(residual, Box(x=(0, 1), t=(0, 1)), conditions, exact=exact))


def diffusion_reaction():
    sizes = {1: 1, 2: 1 / 2, 3: 1 / 3, 4: 1 / 4, 8: 1 / 8}

    def start(x):
        return sum(a * jnp.sin(k * x[0]) for k, a in sizes.items())

    def residual(u, x):
        source = sum(a * (k**2 - 1) * jnp.sin(k * x[0]) for k, a in sizes.items())
        return d(u, "t")(x) - d(u, "x", "x")(x) - jnp.exp(-x[1]) * source

    return Demo(
        Problem(
            residual,
            Box(x=(-pi, pi), t=(0, 1)),
            [Dirichlet(0.0), Initial(start)],
            exact=lambda x: jnp.exp(-x[1]) * start(x),
        )
    )


def wave():
    def exact(x):
        slow = jnp.sin(pi * x[0]) * jnp.cos(10 * pi * x[1])
        return slow + jnp.sin(2 * pi * x[0]) * jnp.cos(20 * pi * x[1])

    return Demo(
        Problem(
            lambda u, x: d(u, "t", "t")(x) - 100 * d(u, "x", "x")(x),
            Box(x=(0, 1), t=(0, 1)),
            [Dirichlet(0.0), Initial(exact), Initial(0.0, order=1)],
            exact=exact,
        )
    )


def klein_gordon():
    def exact(x):
        return x[0] * jnp.cos(x[1])

    def residual(u, x):
        w = exact(x)
        return d(u, "t", "t")(x) - d(u, "x", "x")(x) + u(x) ** 2 + w - w**2

    return Demo(
        Problem(
            residual,
            Box(x=(-1, 1), t=(0, 10)),
            [Dirichlet(exact), Initial(exact), Initial(0.0, order=1)],
            exact=exact,
        )
    )


def burgers():
    return Demo(Burgers())


def allen_cahn():
    def residual(u, x):
        v = u(x)
        return d(u, "t")(x) - 0.001 * d(u, "x", "x")(x) - 5 * (v - v**3)

    start = Initial(lambda x: x[0] ** 2 * jnp.cos(pi * x[0]))
    problem = Problem(residual, LINE, [Dirichlet(-1.0), start])
    points, values = references.allen_cahn()
    return Demo(problem, points=points, values=values)


def schrodinger():
    def residual(u, x):
        re, im = u(x)
        size = re**2 + im**2
        return (
            d(u["re"], "t")(x) + d(u["im"], "x", "x")(x) / 2 + size * im,
            d(u["im"], "t")(x) - d(u["re"], "x", "x")(x) / 2 - size * re,
        )

    def start(x):
        return jnp.stack([2 / jnp.cosh(x[0]), 0 * x[0]])

    problem = Problem(
        residual,
        Box(x=(-5, 5), t=(0, pi / 2)),
        [Initial(start), Periodic("x")],
        outputs=("re", "im"),
    )
    points, values = references.schrodinger()
    return Demo(problem, points=points, values=values)


def beltrami():
    def exact(x):
        x, y, z, t = x
        e, s, c = jnp.exp, jnp.sin, jnp.cos

        def part(p, q, r):
            return -(e(p) * s(q + r) + e(r) * c(p + q)) * e(-t)

        flow = part(x, y, z), part(y, z, x), part(z, x, y)
        squares = e(2 * x) + e(2 * y) + e(2 * z)
        mixed = s(x + y) * c(z + x) * e(y + z) + s(y + z) * c(x + y) * e(z + x)
        mixed += s(z + x) * c(y + z) * e(x + y)
        return jnp.stack([*flow, -(squares / 2 + mixed) * e(-2 * t)])

    def velocity(x):
        return exact(x)[:3]

    def residual(u, x):
        flow, rows = u[:3](x), []
        for name, axis in zip("uvw", "xyz", strict=True):
            one = u[name]
            slopes = jnp.stack([d(one, i)(x) for i in "xyz"])
            friction = sum(d(one, i, i)(x) for i in "xyz")
            force = d(u["p"], axis)(x) - friction
            rows.append(d(one, "t")(x) + flow @ slopes + force)
        divergence = sum(d(u[k], i)(x) for k, i in zip("uvw", "xyz", strict=True))
        return (*rows, divergence)

    names = ("u", "v", "w")
    return Demo(
        Problem(
            residual,
            Box(x=(-1, 1), y=(-1, 1), z=(-1, 1), t=(0, 1)),
            [Dirichlet(velocity, outputs=names), Initial(velocity, outputs=names)],
            outputs=(*names, "p"),
            exact=lambda x: exact(x).at[3].set(jnp.nan),
        )
    )


def black_scholes():
    strike, r, sigma, top = 50.0, 0.05, 0.2, 150.0

    def residual(u, x):
        s = x[0]
        drift = r * s * d(u, "s")(x) - r * u(x)
        return d(u, "t")(x) - sigma**2 * s**2 / 2 * d(u, "s", "s")(x) - drift

    def exact(x):
        s, t = jnp.maximum(x[0], 1e-10), jnp.maximum(x[1], 1e-12)
        width = sigma * jnp.sqrt(t)
        d1 = (jnp.log(s / strike) + (r + sigma**2 / 2) * t) / width
        cdf = jax.scipy.special.ndtr
        return s * cdf(d1) - strike * jnp.exp(-r * t) * cdf(d1 - width)

    return Demo(
        Problem(
            residual,
            Box(s=(0, top), t=(0, 1)),
            [
                Initial(lambda x: jnp.maximum(x[0] - strike, 0.0)),
                Dirichlet(0.0, on="s=min"),
                Dirichlet(lambda x: top - strike * jnp.exp(-r * x[1]), on="s=max"),
            ],
            exact=exact,
        )
    )


def american_put():
    r, sigma, strike, smoothing = 0.05, 0.2, 1.0, 1e-8

    def residual(u, x):
        s, value = x[0], u(x)
        drift = r * s * d(u, "s")(x) - r * value
        rate = d(u, "t")(x) - sigma**2 * s**2 / 2 * d(u, "s", "s")(x) - drift
        excess = value - jnp.maximum(strike - s, 0.0)
        # Both are non-negative and one of them is zero (Fischer and Burmeister).
        return jnp.sqrt(excess**2 + rate**2 + smoothing) - excess - rate

    problem = Problem(
        residual,
        Box(s=(0, 4), t=(0, 1)),
        [
            Initial(lambda x: jnp.maximum(strike - x[0], 0.0)),
            Dirichlet(strike, on="s=min"),
            Dirichlet(0.0, on="s=max"),
        ],
    )
    s = np.linspace(0.1, 2, 100)
    points = np.column_stack([s, np.ones(100)])
    values = references.american_put(s, smoothing)[:, None]
    return Demo(problem, points=points, values=values)


ROWS = {
    function.__name__: function
    for function in (
        diffusion,
        diffusion_exact_conditions,
        heat,
        diffusion_reaction,
        wave,
        klein_gordon,
        burgers,
        allen_cahn,
        schrodinger,
        beltrami,
        black_scholes,
        american_put,
    )
}
# The same problems with other points or other training in DeepXDE.
ROWS |= {
    "diffusion_resample": diffusion,
    "heat_resample": heat,
    "burgers_rar": burgers,
}
