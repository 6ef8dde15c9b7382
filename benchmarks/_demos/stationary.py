"""Equations in the plane without time."""

import math

import jax.numpy as jnp
import numpy as np

from benchmarks._demos import references
from benchmarks._demos.common import Demo
from sklearn_gn.pde import (
    Ball,
    Box,
    Condition,
    Dirichlet,
    Polygon,
    Problem,
    d,
    grad,
    laplacian,
)
from sklearn_gn.pde.problems import Kovasznay

pi = math.pi
SQUARE = Box(x=(0, 1), y=(0, 1))


def l_shape():
    corners = [(0, 0), (1, 0), (1, -1), (-1, -1), (-1, 1), (0, 1)]
    problem = Problem(
        lambda u, x: -laplacian(u)(x) - 1, Polygon(corners), [Dirichlet(0.0)]
    )
    points = problem.domain.sample(2000, np.random.RandomState(1), "uniform")
    values = references.poisson_on_the_l(points)[:, None]
    return Demo(problem, points=points, values=values)


def laplace_disk():
    # In polar coordinates, with the angle's period built in.
    def residual(u, x):
        r = x[0]
        return r * d(u, "r")(x) + r**2 * d(u, "r", "r")(x) + d(u, "theta", "theta")(x)

    return Demo(
        Problem(
            residual,
            Box(r=(0, 1), theta=(0, 2 * pi)),
            [Dirichlet(lambda x: jnp.cos(x[1]), on="r=max")],
            periodic="theta",
            exact=lambda x: x[0] * jnp.cos(x[1]),
        )
    )


def helmholtz():
    k = 4 * pi

    def exact(x):
        return jnp.sin(k * x[0]) * jnp.sin(k * x[1])

    def residual(u, x):
        return -laplacian(u)(x) - k**2 * u(x) - k**2 * exact(x)

    return Demo(Problem(residual, SQUARE, [Dirichlet(0.0)], exact=exact))


def helmholtz_hole():
    k = 2 * pi

    def exact(x):
        return jnp.sin(k * x[0]) * jnp.sin(k * x[1])

    def slope(x):
        x, y = k * x[0], k * x[1]
        return k * jnp.stack([jnp.cos(x) * jnp.sin(y), jnp.sin(x) * jnp.cos(y)])

    def residual(u, x):
        return -laplacian(u)(x) - k**2 * u(x) - k**2 * exact(x)

    def on_the_hole(u, x, normal):
        return (grad(u)(x) - slope(x)) @ normal

    outer = ("x=min", "x=max", "y=min", "y=max")
    return Demo(
        Problem(
            residual,
            Box(x=(-0.5, 0.5), y=(-0.5, 0.5)) - Ball(2, radius=0.25),
            [Dirichlet(exact, on=outer), Condition(on_the_hole, on="sphere")],
            exact=exact,
        )
    )


def sound_hard():
    k = 2.0

    def residual(u, x):
        return laplacian(u)(x) + k**2 * u(x)

    def hard(u, x, normal):
        slope = grad(u)(x) @ normal
        wave = k * normal[0] * jnp.stack([jnp.sin(k * x[0]), -jnp.cos(k * x[0])])
        return slope - wave

    def absorbing(u, x, normal):
        re, im = u(x)
        return grad(u)(x) @ normal - k * jnp.stack([-im, re])

    outer = ("x=min", "x=max", "y=min", "y=max")
    problem = Problem(
        residual,
        Box(x=(-pi, pi), y=(-pi, pi)) - Ball(2, radius=pi / 4),
        [Condition(hard, on="sphere"), Condition(absorbing, on=outer)],
        outputs=("re", "im"),
    )
    points = problem.domain.sample(2000, np.random.RandomState(1), "uniform")
    return Demo(problem, points=points, values=references.scattered_wave(points))


def elasticity():
    lam, mu, q = 1.0, 0.5, 4.0

    def displacement(x):
        return jnp.stack(
            [
                jnp.cos(2 * pi * x[0]) * jnp.sin(pi * x[1]),
                jnp.sin(pi * x[0]) * q * x[1] ** 4 / 4,
            ]
        )

    def stresses(x):
        slope_xx = -2 * pi * jnp.sin(2 * pi * x[0]) * jnp.sin(pi * x[1])
        slope_yy = jnp.sin(pi * x[0]) * q * x[1] ** 3
        shear = jnp.cos(2 * pi * x[0]) * jnp.cos(pi * x[1])
        shear += jnp.cos(pi * x[0]) * q * x[1] ** 4 / 4
        return jnp.stack(
            [
                (lam + 2 * mu) * slope_xx + lam * slope_yy,
                (lam + 2 * mu) * slope_yy + lam * slope_xx,
                mu * pi * shear,
            ]
        )

    def forces(x):
        c, s = jnp.cos, jnp.sin
        wave = 4 * pi**2 * c(2 * pi * x[0]) * s(pi * x[1])
        bend = q * x[1] ** 3 * pi * c(pi * x[0])
        fx = -lam * (wave - bend) - mu * (wave / 4 - bend) - 2 * mu * wave
        mixed = 2 * pi**2 * c(pi * x[1]) * s(2 * pi * x[0])
        load = q * x[1] ** 2 * s(pi * x[0])
        fy = lam * (3 * load - mixed) + 6 * mu * load
        fy -= mu * (mixed + q * x[1] ** 4 * pi**2 * s(pi * x[0]) / 4)
        return fx, fy

    def residual(u, x):
        fx, fy = forces(x)
        exx, eyy = d(u["ux"], "x")(x), d(u["uy"], "y")(x)
        exy = (d(u["ux"], "y")(x) + d(u["uy"], "x")(x)) / 2
        return (
            d(u["sxx"], "x")(x) + d(u["sxy"], "y")(x) - fx,
            d(u["sxy"], "x")(x) + d(u["syy"], "y")(x) - fy,
            (lam + 2 * mu) * exx + lam * eyy - u["sxx"](x),
            (lam + 2 * mu) * eyy + lam * exx - u["syy"](x),
            2 * mu * exy - u["sxy"](x),
        )

    sides = ("x=min", "x=max")
    top = Dirichlet(
        lambda x: (lam + 2 * mu) * q * jnp.sin(pi * x[0]), on="y=max", outputs="syy"
    )
    return Demo(
        Problem(
            residual,
            SQUARE,
            [
                Dirichlet(0.0, on=("y=min", "y=max"), outputs="ux"),
                Dirichlet(0.0, on=(*sides, "y=min"), outputs="uy"),
                Dirichlet(0.0, on=sides, outputs="sxx"),
                top,
            ],
            outputs=("ux", "uy", "sxx", "syy", "sxy"),
            exact=lambda x: jnp.concatenate([displacement(x), stresses(x)]),
        )
    )


def kovasznay():
    return Demo(Kovasznay(20.0))


ROWS = {
    function.__name__: function
    for function in (
        l_shape,
        laplace_disk,
        helmholtz,
        helmholtz_hole,
        sound_hard,
        elasticity,
        kovasznay,
    )
}
