"""Eighteen problems from textbooks, stated before any of them was solved."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_bvp, solve_ivp
from scipy.optimize import brentq

from benchmarks._demos import references
from benchmarks._demos.common import Demo
from benchmarks._demos.one_dimension import path
from sklearn_gn.pde import (
    Ball,
    Box,
    Condition,
    Dirichlet,
    Ellipse,
    Initial,
    Interval,
    Neumann,
    Problem,
    Unknown,
    d,
    div,
    grad,
    laplacian,
)

pi = math.pi


def van_der_pol():
    """u'' - 2 (1 - u^2) u' + u = 0, u(0) = 2, u'(0) = 0."""

    def residual(u, x):
        value, slope = u(x), d(u, "t")(x)
        return d(u, "t", "t")(x) - 2 * (1 - value**2) * slope + value

    conditions = [Initial(2.0), Initial(0.0, order=1)]
    points, values = path(
        lambda t, y: [y[1], 2 * (1 - y[0] ** 2) * y[1] - y[0]], 8, [2.0, 0.0]
    )
    problem = Problem(residual, Interval(0, 8), conditions)
    return Demo(problem, points=points, values=values[:, :1])


def bratu():
    """u'' + exp(u) = 0 with u(0) = u(1) = 0, the lower solution."""
    angle = 1.5171645990507543  # of angle = sqrt(2) cosh(angle / 4)

    def exact(x):
        middle = jnp.cosh((x[0] - 0.5) * angle / 2)
        return -2 * jnp.log(middle / math.cosh(angle / 4))

    return Demo(
        Problem(
            lambda u, x: d(u, "x", "x")(x) + jnp.exp(u(x)),
            Interval(0, 1, axis="x"),
            [Dirichlet(0.0)],
            exact=exact,
        )
    )


def blasius():
    """f''' + f f'' / 2 = 0, f(0) = f'(0) = 0, f'(8) = 1."""

    def flow(x, y):
        return np.stack([y[1], y[2], -y[0] * y[2] / 2])

    x = np.linspace(0, 8, 401)
    guess = np.stack([np.maximum(x - 1.7, 0), np.tanh(x / 3), np.exp(-x)])
    ends = solve_bvp(
        flow,
        lambda a, b: np.array([a[0], a[1], b[1] - 1]),
        x,
        guess,
        tol=1e-12,
        max_nodes=100_000,
    )
    problem = Problem(
        lambda u, x: d(u, "x", "x", "x")(x) + u(x) * d(u, "x", "x")(x) / 2,
        Interval(0, 8, axis="x"),
        [Dirichlet(0.0, on="x=min"), Neumann(0.0, on="x=min"), Neumann(1.0, "x=max")],
    )
    return Demo(problem, points=x[:, None], values=ends.sol(x)[:1].T)


def torsion_of_an_ellipse():
    """-Laplace u = 2 in an ellipse, zero on it (Prandtl)."""
    a, b = 2.0, 1.0

    def exact(x):
        return (1 - (x[0] / a) ** 2 - (x[1] / b) ** 2) * (a * b) ** 2 / (a**2 + b**2)

    return Demo(
        Problem(
            lambda u, x: laplacian(u)(x) + 2,
            Ellipse(radii=(a, b)),
            [Dirichlet(0.0)],
            exact=exact,
        )
    )


def clamped_plate():
    """Laplace Laplace w = 1 in the unit disk, w = dw/dn = 0 on its circle."""
    return Demo(
        Problem(
            lambda u, x: laplacian(laplacian(u))(x) - 1,
            Ball(2),
            [Dirichlet(0.0), Neumann(0.0)],
            exact=lambda x: (1 - x[0] ** 2 - x[1] ** 2) ** 2 / 64,
        )
    )


def fisher_wave():
    """u_t = u_xx + u (1 - u): the wave of Ablowitz and Zeppetella."""

    def exact(x):
        return (1 + jnp.exp((x[0] - 5 / math.sqrt(6) * x[1]) / math.sqrt(6))) ** -2

    def residual(u, x):
        return d(u, "t")(x) - d(u, "x", "x")(x) - u(x) * (1 - u(x))

    return Demo(
        Problem(
            residual,
            Box(x=(-10, 10), t=(0, 3)),
            [Dirichlet(exact), Initial(exact)],
            exact=exact,
        )
    )


def kdv_soliton():
    """u_t + 6 u u_x + u_xxx = 0 with one soliton of speed 1."""

    def exact(x):
        return 0.5 / jnp.cosh((x[0] - x[1]) / 2) ** 2

    def residual(u, x):
        steepening = 6 * u(x) * d(u, "x")(x)
        return d(u, "t")(x) + steepening + d(u, "x", "x", "x")(x)

    def inflow(u, x):
        return d(u, "x")(x) + jnp.tanh((x[0] - x[1]) / 2) * exact(x)

    return Demo(
        Problem(
            residual,
            Box(x=(-6, 8), t=(0, 2)),
            [Dirichlet(exact), Initial(exact), Condition(inflow, on="x=max")],
            exact=exact,
        )
    )


def taylor_green():
    """A decaying vortex of the equations of Navier and Stokes."""
    nu = 0.1

    def exact(x):
        s, c, fade = jnp.sin, jnp.cos, jnp.exp(-2 * nu * x[2])
        pressure = -(c(2 * x[0]) + c(2 * x[1])) / 4 * fade**2
        flow = c(x[0]) * s(x[1]) * fade, -s(x[0]) * c(x[1]) * fade
        return jnp.stack([*flow, pressure])

    def velocity(x):
        return exact(x)[:2]

    def residual(u, x):
        flow, p = u["u", "v"], u["p"]
        inertia = d(flow, "t") + grad(flow) @ flow
        momentum = inertia + grad(p) - nu * laplacian(flow)
        return momentum, d(u["u"], "x")(x) + d(u["v"], "y")(x)

    names = ("u", "v")
    return Demo(
        Problem(
            residual,
            Box(x=(0, pi), y=(0, pi), t=(0, 2)),
            [Dirichlet(velocity, outputs=names), Initial(velocity, outputs=names)],
            outputs=(*names, "p"),
            exact=lambda x: exact(x).at[2].set(jnp.nan),
        )
    )


def two_materials():
    """-div(k grad u) = 4 in a disk with k = 10 inside r = 1/2 and 1 outside of it.

    With an output for each material, joined on the interface.
    """

    def residual(u, x):
        inside = x[0] ** 2 + x[1] ** 2 < 0.25
        core, shell = 10 * laplacian(u["core"])(x), laplacian(u["shell"])(x)
        return jnp.where(inside, core, shell) + 4

    def joined(u, x, normal):
        flux = (10 * grad(u["core"])(x) - grad(u["shell"])(x)) @ normal
        return u["core"](x) - u["shell"](x), flux

    def exact(x):
        square = x[0] ** 2 + x[1] ** 2
        inside = square < 0.25
        core = 0.75 + (0.25 - square) / 10
        return jnp.stack(
            [
                jnp.where(inside, core, jnp.nan),
                jnp.where(inside, jnp.nan, 1 - square),
            ]
        )

    return Demo(
        Problem(
            residual,
            Ball(2),
            [
                Dirichlet(0.0, outputs="shell"),
                Condition(joined, on=Ball(2, radius=0.5)),
            ],
            outputs=("core", "shell"),
            exact=exact,
        )
    )


def stokes():
    """A polynomial flow without inertia, and its pressure up to a constant."""

    def exact(x):
        flow = 20 * x[0] * x[1] ** 3, 5 * x[0] ** 4 - 5 * x[1] ** 4
        return jnp.stack([*flow, 60 * x[0] ** 2 * x[1] - 20 * x[1] ** 3])

    def residual(u, x):
        flow = u["u", "v"]
        return grad(u["p"])(x) - laplacian(flow)(x), div(flow)(x)

    return Demo(
        Problem(
            residual,
            Box(x=(-1, 1), y=(-1, 1)),
            [Dirichlet(lambda x: exact(x)[:2], outputs=("u", "v"))],
            outputs=("u", "v", "p"),
            up_to_constant="p",
            exact=exact,
        )
    )


def gray_scott():
    """Two chemicals, of which one feeds on the other, from a pulse of it."""
    feed, kill, slow = 0.04, 0.06, 1e-3

    def bump(x):
        return jnp.exp(-100 * (x[0] - 0.5) ** 2)

    def residual(u, x):
        a, b = u(x)
        eaten = a * b**2
        return (
            d(u["a"], "t")(x)
            - (2 * slow * d(u["a"], "x", "x")(x) - eaten + feed * (1 - a)),
            d(u["b"], "t")(x)
            - (slow * d(u["b"], "x", "x")(x) + eaten - (feed + kill) * b),
        )

    points, values = references.gray_scott(feed, kill, slow)
    problem = Problem(
        residual,
        Box(x=(0, 1), t=(0, 20)),
        [
            Initial(lambda x: jnp.stack([1 - bump(x) / 2, bump(x) / 4])),
            Neumann(0.0),
        ],
        outputs=("a", "b"),
    )
    return Demo(problem, points=points, values=values)


def stefan():
    """Ice that melts from x = 0 up to s(t), on x / s in [0, 1] (Neumann)."""
    speed = brentq(
        lambda k: math.sqrt(pi) * k * math.exp(k**2) * math.erf(k) - 1, 0.1, 1
    )

    def exact(x):
        heat = 1 - jax.scipy.special.erf(speed * x[0]) / math.erf(speed)
        return jnp.stack([heat, 2 * speed * jnp.sqrt(x[1])])

    def residual(u, x):
        heat, s = u["heat"], u["s"]
        drift = x[0] * s(x) * d(s, "t")(x) * d(heat, "x")(x)
        return s(x) ** 2 * d(heat, "t")(x) - drift - d(heat, "x", "x")(x)

    def melting(u, x):
        return u["s"](x) * d(u["s"], "t")(x) + d(u["heat"], "x")(x)

    return Demo(
        Problem(
            residual,
            Box(x=(0, 1), t=(0.1, 1)),
            [
                Dirichlet(1.0, on="x=min", outputs="heat"),
                Dirichlet(0.0, on="x=max", outputs="heat"),
                Condition(melting, on="x=max"),
                Initial(exact),
            ],
            outputs=("heat", "s"),
            depends_on={"s": "t"},
            exact=exact,
        )
    )


def epidemic():
    """Rates of an SIR model from twelve counts of the infected."""

    def residual(u, x, beta, gamma):
        s, i = u(x)
        new = beta * s * i
        return d(u["s"], "t")(x) + new, d(u["i"], "t")(x) - new + gamma * i

    def flow(t, y):
        s, i = y
        return [-1.5 * s * i, 1.5 * s * i - 0.5 * i]

    start = [0.95, 0.05]
    points, values = path(flow, 8, start, 13)
    problem = Problem(
        residual,
        Interval(0, 8),
        [Initial(start)],
        outputs=("s", "i"),
        coefficients={"beta": Unknown(1.0), "gamma": Unknown(1.0)},
    )
    return Demo(
        problem,
        (points[1:], values[1:, 1]),
        {"observed_outputs": ["i"]},
        truth={"beta": 1.5, "gamma": 0.5},
    )


def spread_in_persons():
    """An SEIR model of 1,000 persons, who are not divided by 1,000."""
    n, beta, sigma, gamma = 1000.0, 0.6, 0.2, 0.15

    def residual(u, x):
        s, e, i, _ = u(x)
        new = beta * s * i / n
        return (
            d(u["s"], "t")(x) + new,
            d(u["e"], "t")(x) - new + sigma * e,
            d(u["i"], "t")(x) - sigma * e + gamma * i,
            d(u["r"], "t")(x) - gamma * i,
        )

    def flow(t, y):
        new = beta * y[0] * y[2] / n
        return [-new, new - sigma * y[1], sigma * y[1] - gamma * y[2], gamma * y[2]]

    start = [990.0, 0.0, 10.0, 0.0]
    problem = Problem(
        residual, Interval(0, 120), [Initial(start)], outputs=("s", "e", "i", "r")
    )
    points, values = path(flow, 120, start)
    return Demo(problem, points=points, values=values)


def robertson():
    """Three reactions, of rates 0.04, 1e4 and 3e7."""

    def rates(a, b, c):
        slow, back, fast = 0.04 * a, 1e4 * b * c, 3e7 * b**2
        return back - slow, slow - back - fast, fast

    def residual(u, x):
        slopes = [d(u[name], "t")(x) for name in "abc"]
        return tuple(
            slope - rate for slope, rate in zip(slopes, rates(*u(x)), strict=True)
        )

    start, times = [1.0, 0.0, 0.0], np.linspace(0, 40, 1001)
    options = dict(rtol=1e-11, atol=1e-15, t_eval=times)
    found = solve_ivp(lambda t, y: rates(*y), (0, 40), start, "Radau", **options)
    problem = Problem(residual, Interval(0, 40), [Initial(start)], outputs=tuple("abc"))
    return Demo(problem, points=times[:, None], values=found.y.T)


def vibrating_beam():
    """u_tt + u_xxxx = 0, simply supported, in its first two modes."""

    def exact(x):
        modes = jnp.array([1.0, 2.0])
        shapes = jnp.sin(modes * pi * x[0]) * jnp.cos((modes * pi) ** 2 * x[1])
        return jnp.array([1.0, 0.3]) @ shapes

    return Demo(
        Problem(
            lambda u, x: d(u, "t", "t")(x) + d(u, "x", "x", "x", "x")(x),
            Box(x=(0, 1), t=(0, 0.5)),
            [
                Dirichlet(0.0),
                Condition(lambda u, x: d(u, "x", "x")(x), on="boundary"),
                Initial(exact),
                Initial(0.0, order=1),
            ],
            exact=exact,
        )
    )


def radiating_plate():
    """A hot copper plate that radiates, in kelvin, metres and watts."""
    conductance, film, around = 400.0 * 0.01, 1.0, 300.0
    radiation = 0.5 * 5.670373e-8

    def loss(t):
        return 2 * film * (t - around) + 2 * radiation * (t**4 - around**4)

    def flow(y, t):  # in 1,000 K
        return np.stack([t[1], loss(1000 * t[0]) / conductance / 1000])

    y = np.linspace(0, 1, 201)
    found = solve_bvp(
        flow,
        lambda a, b: np.array([a[0] - 1, b[1]]),
        y,
        np.stack([1 - y / 2, np.full(201, -0.5)]),
        tol=1e-9,
        max_nodes=100_000,
    )
    problem = Problem(
        lambda u, x: conductance * laplacian(u)(x) - loss(u(x)),
        Box(x=(0, 1), y=(0, 1)),
        [
            Dirichlet(1000.0, on="y=min"),
            Neumann(0.0, on=("x=min", "x=max", "y=max")),
        ],
    )
    points = np.stack(np.meshgrid(np.linspace(0, 1, 11), y), -1).reshape(-1, 2)
    return Demo(problem, points=points, values=1000 * found.sol(points[:, 1])[:1].T)


def loaded_cube():
    """Laplace u = -1 in a cube, zero on its faces: not smooth at its edges."""

    def exact(x):
        n = jnp.arange(1, 160, 2.0) * pi
        first, second = n[:, None], n[None, :]
        rate = jnp.sqrt(first**2 + second**2)
        ends = jnp.exp(-rate * x[2]) + jnp.exp(-rate * (1 - x[2]))
        height = 16 / (first * second * rate**2) * (1 - ends / (1 + jnp.exp(-rate)))
        return jnp.sin(n * x[0]) @ height @ jnp.sin(n * x[1])

    return Demo(
        Problem(
            lambda u, x: laplacian(u)(x) + 1,
            Box(x=(0, 1), y=(0, 1), z=(0, 1)),
            [Dirichlet(0.0)],
            exact=exact,
        )
    )


ROWS = {
    function.__name__: function
    for function in (
        van_der_pol,
        bratu,
        blasius,
        torsion_of_an_ellipse,
        clamped_plate,
        fisher_wave,
        kdv_soliton,
        taylor_green,
        two_materials,
        stokes,
        gray_scott,
        stefan,
        epidemic,
        spread_in_persons,
        robertson,
        vibrating_beam,
        radiating_plate,
        loaded_cube,
    )
}
