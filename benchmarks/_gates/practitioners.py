"""Thirteen problems as practitioners state them, and three with unknown coefficients.

They come in the units of their trade, with layers, singular points and loads that jump,
and are stated as one would write them down at first. Their references are closed forms
of engineering books, finite differences or spectral methods, computed here in a second
at most. Some of them are not solved by a default fit, which is why they are here.
"""

import math

import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_bvp, solve_ivp
from scipy.linalg import eigh_tridiagonal
from scipy.optimize import brentq

from benchmarks import _inverse_ode
from benchmarks._demos.common import Demo
from benchmarks._demos.one_dimension import path
from benchmarks._demos.references import chebyshev
from sklearn_gn.pde import (
    Ball,
    Box,
    Condition,
    Dirichlet,
    Initial,
    Interval,
    Neumann,
    Periodic,
    Problem,
    Robin,
    Unknown,
    apply,
    d,
    div,
    grad,
    integral,
    laplacian,
)


def grid(*axes):
    """All points of a grid, one a row."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


# --- in one dimension ----------------------------------------------------------------


def hot_pin():
    """A steel pin in air, whose conductivity rises with its temperature."""
    length, diameter, film, root, air = 0.1, 0.008, 40.0, 400.0, 20.0
    loss = 4 * film / diameter

    def conductivity(t):
        return 15 * (1 + 1.2e-3 * (t - air))

    def residual(u, x):
        flux = apply(conductivity, u) * grad(u)
        return div(flux)(x) - loss * (u(x) - air)

    def flow(x, y):  # of temperature and flux
        return np.stack([y[1] / conductivity(y[0]), loss * (y[0] - air)])

    x = np.linspace(0, length, 201)
    found = solve_bvp(
        flow,
        lambda a, b: np.array([a[0] - root, b[1]]),
        x,
        np.stack([np.linspace(root, air, 201), np.linspace(-5e4, 0, 201)]),
        tol=1e-9,
    )
    problem = Problem(
        residual,
        Interval(0, length, axis="x"),
        [Dirichlet(root, on="x=min"), Neumann(0.0, on="x=max")],
    )
    return Demo(problem, points=x[:, None], values=found.sol(x)[:1].T)


def steel_bar():
    """A hanging bar that carries its weight and a load, in metres and pascals."""
    modulus, weight, load, length = 2.05e11, 7850 * 9.81, 6e7, 6.0
    problem = Problem(
        lambda u, x: modulus * d(u, "x", "x")(x) + weight,
        Interval(0, length, axis="x"),
        [
            Dirichlet(0.0, on="x=min"),
            Condition(lambda u, x: modulus * d(u, "x")(x) - load, on="x=max"),
        ],
    )
    x = np.linspace(0, length, 201)
    values = (load * x + weight * (length * x - x**2 / 2)) / modulus
    return Demo(problem, points=x[:, None], values=values[:, None])


def half_loaded_beam():
    """Clamped at the left, supported at the right, with a load on the last third."""
    begin = 2 / 3
    free = 1 - begin
    shear = free**4 / 8 - 3 * free**2 / 4
    bending = -shear - free**2 / 2

    def residual(w, x):
        return d(w, "x", "x", "x", "x")(x) - jnp.where(x[0] > begin, 1.0, 0.0)

    problem = Problem(
        residual,
        Interval(0, 1, axis="x"),
        [
            Dirichlet(0.0),
            Neumann(0.0, on="x=min"),
            Condition(lambda w, x: d(w, "x", "x")(x), on="x=max"),
        ],
    )
    x = np.linspace(0, 1, 301)
    loaded = np.maximum(x - begin, 0) ** 4 / 24
    values = loaded + shear * x**3 / 6 + bending * x**2 / 2
    return Demo(problem, points=x[:, None], values=values[:, None])


def tapered_column():
    """Buckling load of a pinned column that is twice as stiff at its foot."""

    def residual(w, x, load):
        return (1 + x[0]) * d(w, "x", "x")(x) + load * w(x)

    def size(w, x):
        return integral(apply(jnp.square, w), "x", 0.0, 1.0)(x) - 1

    # Differences of second order on two grids, extrapolated. With w = v / sqrt(1 + x)
    # their matrix is symmetric.
    loads = []
    for n in (400, 800):
        stiffness = 1 + np.arange(1, n) / n
        beside = -np.sqrt(stiffness[1:] * stiffness[:-1])
        options = {"select": "i", "select_range": (0, 0), "eigvals_only": True}
        loads.append(eigh_tridiagonal(2 * stiffness, beside, **options)[0] * n**2)
    problem = Problem(
        residual,
        Interval(0, 1, axis="x"),
        [Dirichlet(0.0), Condition(size, on=[[0.5]])],
        coefficients={"load": Unknown(5.0)},
    )
    return Demo(problem, truth={"load": (4 * loads[1] - loads[0]) / 3})


def enzyme():
    """Michaelis and Menten's scheme in full: substrate, complex and product."""
    bind, part, turn, total = 2.0, 1.0, 0.8, 1.0

    def rates(s, c):
        bound = bind * (total - c) * s - part * c
        return -bound, bound - turn * c, turn * c

    def residual(u, x):
        s, c, _ = u(x)
        slopes = [d(u[name], "t")(x) for name in ("s", "c", "p")]
        return tuple(
            slope - rate for slope, rate in zip(slopes, rates(s, c), strict=True)
        )

    start = [8.0, 0.0, 0.0]
    problem = Problem(
        residual, Interval(0, 20), [Initial(start)], outputs=("s", "c", "p")
    )
    points, values = path(lambda t, y: rates(*y[:2]), 20, start, 401)
    return Demo(problem, points=points, values=values)


def batch_reactor():
    """A reaction that heats itself until it runs away; the concentration counts."""
    rise, speed, activation = 60.0, 3e9, 8000.0

    def rate(t, c, lib):
        return speed * lib.exp(-activation / t) * c

    def residual(u, x):
        t, c = u(x)
        r = rate(t, c, jnp)
        return d(u["T"], "t")(x) - rise * r, d(u["C"], "t")(x) + r

    def flow(_, y):
        r = rate(*y, np)
        return [rise * r, -r]

    start = [320.0, 1.0]
    problem = Problem(residual, Interval(0, 20), [Initial(start)], outputs=("T", "C"))
    times = np.linspace(0, 20, 401)
    options = {"rtol": 1e-10, "atol": 1e-10, "t_eval": times}
    found = solve_ivp(flow, (0, 20), start, "Radau", **options).y.T
    found[:, 0] = np.nan
    return Demo(problem, points=times[:, None], values=found)


def catalyst_pellet():
    """Second-order reaction in a sphere, of which only the outer shell takes part."""
    modulus = 8.0

    def residual(u, x):
        spread = d(u, "r", "r")(x) + 2 / x[0] * d(u, "r")(x)
        return spread - modulus**2 * u(x) ** 2

    r = np.linspace(0, 1, 201)
    found = solve_bvp(
        lambda r, y: np.stack([y[1], modulus**2 * y[0] ** 2]),
        lambda a, b: np.array([a[1], b[0] - 1]),
        r,
        np.stack([r**4, 4 * r**3]),
        S=np.diag([0.0, -2.0]),
        tol=1e-9,
        max_nodes=20_000,
    )
    problem = Problem(
        residual,
        Interval(0, 1, axis="r"),
        [Neumann(0.0, on="r=min"), Dirichlet(1.0, on="r=max")],
    )
    return Demo(problem, points=r[:, None], values=found.sol(r)[:1].T)


# --- coefficients from observations ---------------------------------------------------


def growth():
    """Logistic growth of a population."""
    truth = {"r": _inverse_ode._RATE, "K": _inverse_ode._CAPACITY}
    return Demo(_inverse_ode.PROBLEM, _inverse_ode.simulation(0.0, 0), truth=truth)


def inlet():
    """A substance decays along a pipe; how much of it enters is not known."""
    entering, decay = 0.03, 0.7
    problem = Problem(
        lambda u, x: d(u, "x")(x) + decay * u(x),
        Interval(0, 3, axis="x"),
        [Dirichlet(lambda x, c: c, on="x=min")],
        coefficients={"c": Unknown(1.0)},
    )
    x = np.linspace(0.2, 2.8, 25)
    return Demo(
        problem, (x[:, None], entering * np.exp(-decay * x)), truth={"c": entering}
    )


def ageing():
    """Paper loses its strength; the factor of Arrhenius' law is large."""
    factor, activation, start = 5e8, 1.08e5, 900.0
    speed = math.exp(-activation / (8.314 * 385))
    problem = Problem(
        lambda u, t, A: d(u, "t")(t) + A * speed * u(t) ** 2,
        Interval(0, 1500),
        [Initial(start)],
        coefficients={"A": Unknown(1.0, positive=True)},
    )
    t = np.linspace(50, 1500, 30)
    y = 1 / (1 / start + factor * speed * t)
    return Demo(problem, (t[:, None], y), truth={"A": factor})


# --- in two dimensions ---------------------------------------------------------------


def drawdown_of_a_well():
    """A confined aquifer about a well that pumps for an hour, in metres and seconds."""
    transmissivity, storage, pumped = 2e-3, 2e-4, 5e-3
    well, far, end, n = 0.15, 400.0, 3600.0, 400

    def residual(u, x):
        spread = d(u, "r", "r")(x) + d(u, "r")(x) / x[0]
        return storage * d(u, "t")(x) - transmissivity * spread

    def pumping(u, x):
        return 2 * math.pi * well * transmissivity * d(u, "r")(x) + pumped

    problem = Problem(
        residual,
        Box(r=(well, far), t=(0, end)),
        [
            Initial(0.0),
            Condition(pumping, on="r=min"),
            Dirichlet(0.0, on="r=max"),
        ],
    )

    # Finite volumes on rings that are equally wide in log r; the last ring keeps zero.
    y = np.linspace(math.log(well), math.log(far), n + 1)
    step = y[1] - y[0]
    radius = np.exp(y)
    area = radius**2 * step
    area[0] /= 2
    rate = transmissivity / (storage * area[:-1])

    def flow(_, s):
        inward = np.diff(np.r_[s, 0.0]) / step
        inflow = np.r_[pumped / (2 * math.pi * transmissivity), -inward]
        return -rate * np.diff(inflow)

    times = np.linspace(0, end, 37)
    band = {"lband": 1, "uband": 1, "rtol": 1e-8, "atol": 1e-8, "t_eval": times}
    found = solve_ivp(flow, (0, end), np.zeros(n), "LSODA", **band).y
    heads = np.vstack([found, np.zeros(len(times))])[::4, 1:]
    points = grid(radius[::4], times[1:])
    return Demo(problem, points=points, values=heads.reshape(-1, 1))


def quenched_plate():
    """A red-hot steel plate in an oil bath, from its middle to its face."""
    half, diffusivity, conductivity, film = 0.02, 1.2e-5, 45.0, 900.0
    hot, bath, end = 850.0, 40.0, 90.0
    problem = Problem(
        lambda u, x: d(u, "t")(x) - diffusivity * d(u, "x", "x")(x),
        Box(x=(0, half), t=(0, end)),
        [
            Initial(hot),
            Neumann(0.0, on="x=min"),
            Robin(film, conductivity, film * bath, on="x=max"),
        ],
    )

    # Fourier's series: the roots of z tan z = Biot's number, one in every period.
    biot, gap = film * half / conductivity, 1e-9
    roots = [
        brentq(
            lambda z: z * math.sin(z) - biot * math.cos(z),
            k * math.pi + gap,
            (k + 0.5) * math.pi,
        )
        for k in range(100)
    ]
    z = np.array(roots)
    points = grid(np.linspace(0, half, 41), np.linspace(end / 45, end, 45))
    size = 4 * np.sin(z) / (2 * z + np.sin(2 * z))
    fade = np.exp(-(z**2) * diffusivity / half**2 * points[:, 1:])
    shape = (size * fade * np.cos(z * points[:, :1] / half)).sum(axis=1)
    values = bath + (hot - bath) * shape
    return Demo(problem, points=points, values=values[:, None])


def cavity():
    """Flow in a square whose lid moves, fastest in its middle; Reynolds number 50."""
    friction = 1 / 50

    def lid(x):
        return 16 * x**2 * (1 - x) ** 2

    def residual(u, x):
        flow, p = u["u", "v"], u["p"]
        momentum = grad(flow) @ flow + grad(p) - friction * laplacian(flow)
        return momentum(x), div(flow)(x)

    problem = Problem(
        residual,
        Box(x=(0, 1), y=(0, 1)),
        [
            Dirichlet(
                lambda x: jnp.stack([lid(x[0]), 0.0]), on="y=max", outputs=("u", "v")
            ),
            Dirichlet(0.0, on=("x=min", "x=max", "y=min"), outputs=("u", "v")),
        ],
        outputs=("u", "v", "p"),
        up_to_constant="p",
    )
    points, flow = cavity_flow(lid, friction)
    values = np.column_stack([flow, np.full(len(points), np.nan)])
    return Demo(problem, points=points, values=values)


def cavity_flow(lid, friction, n=22):
    """Velocity at Chebyshev's nodes, from the stream function by Newton's method."""
    x, first = chebyshev(n, 0, 1)
    one = np.eye(n + 1)
    dx, dy = np.kron(first, one), np.kron(one, first)
    laplace = dx @ dx + dy @ dy
    twice = laplace @ laplace
    points = grid(x, x)
    index = np.arange((n + 1) ** 2).reshape(n + 1, n + 1)
    edge = np.ones_like(index, bool)
    edge[1:-1, 1:-1] = False
    inner, edge = index[2:-2, 2:-2].ravel(), index[edge]
    upright, level = index[[0, -1], 1:-1].ravel(), index[1:-1, [0, -1]].ravel()
    moves = np.where(points[level, 1] == 1, lid(points[level, 0]), 0.0)
    fixed = np.vstack([np.eye(index.size)[edge], dx[upright], dy[level]])
    given = np.r_[np.zeros(len(edge) + len(upright)), moves]
    stream = np.zeros(index.size)
    for _ in range(8):
        u, v, spin = dy @ stream, -dx @ stream, laplace @ stream
        sx, sy = dx @ spin, dy @ spin
        carried = u * sx + v * sy
        slope = u[:, None] * (dx @ laplace) + v[:, None] * (dy @ laplace)
        slope += sx[:, None] * dy - sy[:, None] * dx
        rows = np.vstack([(friction * twice - slope)[inner], fixed])
        left = np.r_[
            (friction * twice @ stream - carried)[inner], fixed @ stream - given
        ]
        stream = stream - np.linalg.lstsq(rows, left, rcond=None)[0]
    return points, np.column_stack([dy @ stream, -dx @ stream])


def plate_with_a_hole():
    """A quarter of a pulled steel plate about a small hole, in metres and pascals.

    Kirsch's plate is infinite: what it does to the edges of the quarter is given there.
    """
    radius, load, modulus, poisson, side = 0.005, 8e7, 2e11, 0.3, 0.03
    stiff, shear = modulus / (1 - poisson**2), modulus / (1 + poisson) / 2

    # The solution is that of Kolosov's complex potentials z + 2 / z and
    # -2 (z + 1 / z - 1 / z^3), apart from factors; z is in radii.
    def displacement(x):
        z, kappa = (x[:, 0] + 1j * x[:, 1]) / radius, (3 - poisson) / (1 + poisson)
        own = kappa * (z + 2 / z) - z * np.conj(1 - 2 / z**2)
        moved = own + 2 * np.conj(z + 1 / z - 1 / z**3)
        moved *= load * radius / (8 * shear)
        return np.column_stack([moved.real, moved.imag])

    def pulled(x):
        z = (x[0] + 1j * x[1]) / radius
        both = (1 - 2 / z**2).real
        turned = 2 * jnp.conj(z) / z**3 - 1 + 1 / z**2 - 3 / z**4
        sx, sy, t = both - turned.real, both + turned.real, turned.imag
        return load / 2 * sx, load / 2 * sy, load / 2 * t

    def stress(u, x):
        ux, uy = grad(u["u"])(x)
        vx, vy = grad(u["v"])(x)
        pull, rise = ux + poisson * vy, vy + poisson * ux
        return stiff * pull, stiff * rise, shear * (uy + vx)

    def residual(u, x):
        ux, vy = d(u["u"], "x"), d(u["v"], "y")
        sheared = shear * (d(u["u"], "y") + d(u["v"], "x"))
        along = d(stiff * (ux + poisson * vy), "x") + d(sheared, "y")
        across = d(stiff * (vy + poisson * ux), "y") + d(sheared, "x")
        return along(x), across(x)

    def traction(parts, normal):
        sx, sy, t = parts
        return jnp.stack(
            [sx * normal[0] + t * normal[1], t * normal[0] + sy * normal[1]]
        )

    def free(u, x, normal):
        return traction(stress(u, x), normal)

    def outer(u, x, normal):
        return free(u, x, normal) - traction(pulled(x), normal)

    problem = Problem(
        residual,
        Box(x=(0, side), y=(0, side)) - Ball(2, radius=radius),
        [
            Condition(outer, on=("x=max", "y=max")),
            Dirichlet(0.0, on="x=min", outputs="u"),
            Dirichlet(0.0, on="y=min", outputs="v"),
            Condition(lambda u, x: stress(u, x)[2], on=("x=min", "y=min")),
            Condition(free, on="sphere"),
        ],
        outputs=("u", "v"),
    )
    points = grid(*[np.linspace(0, side, 45)] * 2)
    points = points[np.hypot(*points.T) > radius]
    return Demo(problem, points=points, values=displacement(points))


def unstable_flame():
    """The equation of Kuramoto and Sivashinsky on a period of 22, up to chaos."""
    length, end, n = 22.0, 20.0, 128
    x, k = length * np.arange(n) / n, 2 * np.pi * np.fft.rfftfreq(n, length / n)

    def start(x, lib):
        angle = 2 * np.pi * x / length
        return lib.cos(angle) + 0.5 * lib.sin(2 * angle)

    def flow(t, u):
        waves = (k**2 - k**4) * np.fft.rfft(u) - 0.5j * k * np.fft.rfft(u * u)
        return np.fft.irfft(waves, n)

    def residual(u, x):
        moved = d(u, "t")(x) + u(x) * d(u, "x")(x)
        return moved + d(u, "x", "x")(x) + d(u, "x", "x", "x", "x")(x)

    times = np.linspace(0, end, 41)
    options = {"method": "BDF", "t_eval": times, "rtol": 1e-8, "atol": 1e-8}
    found = solve_ivp(flow, (0, end), start(x, np), **options)
    problem = Problem(
        residual,
        Box(x=(0, length), t=(0, end)),
        [Initial(lambda x: start(x[0], jnp)), Periodic("x")],
    )
    settings, values = {"max_iter": None, "max_time": 120}, found.y[::4].reshape(-1, 1)
    points = grid(x[::4], times)
    return Demo(problem, solver=settings, points=points, values=values)


ROWS = {
    function.__name__: function
    for function in (
        hot_pin,
        steel_bar,
        half_loaded_beam,
        tapered_column,
        enzyme,
        batch_reactor,
        catalyst_pellet,
        drawdown_of_a_well,
        quenched_plate,
        cavity,
        plate_with_a_hole,
        unstable_flame,
        growth,
        inlet,
        ageing,
    )
}
