"""Forward rows by SciPy, or by finite elements of scikit-fem, to the error of a fit.

``python -m benchmarks._demos.classical TASK``, where TASK is JSON: a row, and the error
to reach. A method is made finer level by level until it is as accurate; the seconds,
CPU time, are those of the last level alone, on a warm process, without the evaluation
at the points of the comparison. Of scikit-fem the elements are of the fourth degree.
"""

import json
import sys
import time
from functools import partial

import numpy as np
from scipy.integrate import solve_bvp, solve_ivp

from benchmarks._demos.common import relative_error, test_points
from benchmarks._demos.references import chebyshev

pi = np.pi
FLOOR = 1e-14  # errors below are rounding
SCIPY, ELEMENTS = "SciPy", "scikit-fem"


# --- ordinary differential equations --------------------------------------------------


def in_time(flow, start, points, level, method="DOP853", kept=None):
    """Solutions of initial value problems, with tolerances of a digit more a level."""
    times, place = np.unique(points[:, 0], return_inverse=True)
    tol = 10.0 ** -(level + 3)
    options = {"method": method, "rtol": tol, "atol": tol * 1e-3, "t_eval": times}
    begun = time.process_time()
    found = solve_ivp(flow, (0, times[-1]), start, **options).y.T[:, :kept]
    return time.process_time() - begun, found[place]


def two_ends(flow, ends, low, high, guess, points, level):
    """Solutions of boundary value problems, with tolerances of a digit more a level."""
    x = np.linspace(low, high, 11)
    y = np.stack([np.broadcast_to(g(x), x.shape) for g in guess])
    begun = time.process_time()
    found = solve_bvp(flow, ends, x, y, tol=10.0 ** -(level + 3), max_nodes=10**4)
    return time.process_time() - begun, found.sol(points[:, 0])[:1].T


def load(f):
    """``u'' = f(x, u)`` as a system."""
    return lambda x, y: np.stack([y[1], f(x, y[0])])


def at_zero(left, right):
    """Two numbers that vanish, of values and slopes at the left and the right end."""
    return lambda a, b: np.array([left(a), right(b)])


ZERO = at_zero(lambda a: a[0], lambda b: b[0])
FLAT = (np.zeros_like,) * 2


def predators(t, y):
    return [40 * y[0] - 160 * y[0] * y[1], 80 * y[0] * y[1] - 21.2 * y[1]]


def spread(t, y):
    new, sick, well = 6e-4 * y[0] * y[2], 0.2 * y[1], 0.15 * y[2]
    return [-new, new - sick, sick - well, well]


def robertson(t, y):
    slow, back, fast = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
    return [back - slow, slow - back - fast, fast]


def beam_ends(a, b):
    return np.array([a[0], a[1], b[2], b[3]])


# --- equations of one axis of space, by lines -----------------------------------------


def by_lines(low, high, end, start, change, points, level, first=16):
    """Chebyshev nodes in space, and Radau's method in time; values at the ends stay.

    ``change(t, x, u, slope, bend)`` is the derivative in time. The ``first`` nodes see
    the front of a solution that has one.
    """
    n, tol = first + 16 * level, 10.0 ** -(level + 4)
    x, slope = chebyshev(n, low, high)
    bend = slope @ slope

    def flow(t, u):
        found = change(t, x, u, slope, bend)
        found[[0, -1]] = 0
        return found

    times, place = np.unique(points[:, 1], return_inverse=True)
    options = {"method": "Radau", "rtol": tol, "atol": tol, "t_eval": times}
    begun = time.process_time()
    path = solve_ivp(flow, (0, end), start(x), **options).y.T
    spent = time.process_time() - begun
    # Barycentric interpolation at each point, at its own time.
    weights = np.r_[0.5, np.ones(n - 1), 0.5] * (-1.0) ** np.arange(n + 1)
    away = points[:, :1] - x
    shares = weights / np.where(away == 0, 1e-300, away)
    shares /= shares.sum(axis=1, keepdims=True)
    return spent, np.sum(shares * path[place], axis=1, keepdims=True)


def odd(method, points, level):
    """A solution that is odd in x, from its right half, at whose end the front is."""
    spent, found = method(np.abs(points), level)
    return spent, np.sign(points[:, :1]) * found


def reacting(t, x, u, slope, bend):
    sizes = {1: 1, 2: 1 / 2, 3: 1 / 3, 4: 1 / 4, 8: 1 / 8}
    source = sum(a * (k**2 - 1) * np.sin(k * x) for k, a in sizes.items())
    return bend @ u + np.exp(-t) * source


def reaction_start(x):
    return sum(np.sin(k * x) / k for k in (1, 2, 3, 4, 8))


def diffusing(t, x, u, slope, bend):
    return bend @ u + np.exp(-t) * (pi**2 - 1) * np.sin(pi * x)


# --- equations of two axes, by finite elements ----------------------------------------


def on_a_mesh(mesh, source, square, points, level):
    """``-Laplace u - square u = source`` with zeros on the boundary."""
    from skfem import Basis, BilinearForm, ElementTriP4, LinearForm, condense, solve
    from skfem.helpers import dot, grad

    begun = time.process_time()
    basis = Basis(mesh(level), ElementTriP4(), intorder=8)
    matrix = BilinearForm(lambda u, v, w: dot(grad(u), grad(v)) - square * u * v)
    right = LinearForm(lambda v, w: source(*w.x) * v).assemble(basis)
    u = solve(*condense(matrix.assemble(basis), right, D=basis.get_dofs()))
    return time.process_time() - begun, (basis.probes(points.T) @ u)[:, None]


def square_mesh(level):
    from skfem import MeshTri

    x = np.linspace(0, 1, 1 + 8 * 2**level)
    return MeshTri.init_tensor(x, x)


def graded_l(level):
    """The L, finer towards its inner corner."""
    from skfem import MeshTri

    mesh = MeshTri.init_lshaped().refined(2 + level)
    for k in range(6 * (level + 1)):
        centres = mesh.p[:, mesh.t].mean(axis=1)
        near = np.hypot(*centres) < 2.0 ** (-(k + 1) / 2)
        mesh = mesh.refined(np.flatnonzero(near))
    return mesh


def helmholtz_source(x, y):
    return (4 * pi) ** 2 * np.sin(4 * pi * x) * np.sin(4 * pi * y)


# --- the rows -------------------------------------------------------------------------

ROWS = {
    "poisson_dirichlet": (
        SCIPY,
        partial(
            two_ends, load(lambda x, u: -(pi**2) * np.sin(pi * x)), ZERO, -1, 1, FLAT
        ),
    ),
    "poisson_neumann": (
        SCIPY,
        partial(
            two_ends,
            load(lambda x, u: 2 + 0 * x),
            at_zero(lambda a: a[0], lambda b: b[1] - 4),
            *(-1, 1, FLAT),
        ),
    ),
    "poisson_robin": (
        SCIPY,
        partial(
            two_ends,
            load(lambda x, u: 2 + 0 * x),
            at_zero(lambda a: a[0], lambda b: b[0] - b[1]),
            *(-1, 1, FLAT),
        ),
    ),
    "poisson_multiscale": (
        SCIPY,
        partial(
            two_ends,
            load(
                lambda x, u: (
                    -((2 * pi) ** 2) * np.sin(2 * pi * x)
                    - 0.1 * (50 * pi) ** 2 * np.sin(50 * pi * x)
                )
            ),
            *(ZERO, 0, 1, FLAT),
        ),
    ),
    "euler_beam": (
        SCIPY,
        partial(
            two_ends,
            lambda x, y: np.stack([y[1], y[2], y[3], -1 + 0 * x]),
            *(beam_ends, 0, 1, (np.zeros_like,) * 4),
        ),
    ),
    "textbook_bratu": (
        SCIPY,
        partial(two_ends, load(lambda x, u: -np.exp(u)), ZERO, 0, 1, FLAT),
    ),
    "textbook_blasius": (
        SCIPY,
        partial(
            two_ends,
            lambda x, y: np.stack([y[1], y[2], -y[0] * y[2] / 2]),
            lambda a, b: np.array([a[0], a[1], b[1] - 1]),
            *(0, 8),
            (
                lambda x: np.maximum(x - 1.7, 0),
                lambda x: np.tanh(x / 3),
                lambda x: np.exp(-x),
            ),
        ),
    ),
    "second_order_ode": (
        SCIPY,
        partial(
            in_time, lambda t, y: [y[1], 10 * y[1] - 9 * y[0] + 5 * t], [-1, 2], kept=1
        ),
    ),
    "ode_system": (SCIPY, partial(in_time, lambda t, y: [y[1], -y[0]], [0.0, 1.0])),
    "lotka_volterra": (SCIPY, partial(in_time, predators, [0.5, 0.075])),
    "textbook_van_der_pol": (
        SCIPY,
        partial(
            in_time,
            lambda t, y: [y[1], 2 * (1 - y[0] ** 2) * y[1] - y[0]],
            *([2.0, 0.0],),
            kept=1,
        ),
    ),
    "textbook_spread_in_persons": (
        SCIPY,
        partial(in_time, spread, [990.0, 0.0, 10.0, 0.0]),
    ),
    "textbook_robertson": (
        SCIPY,
        partial(in_time, robertson, [1.0, 0.0, 0.0], method="Radau"),
    ),
    "diffusion": (
        SCIPY,
        partial(by_lines, -1, 1, 1, lambda x: np.sin(pi * x), diffusing),
    ),
    "heat": (
        SCIPY,
        partial(
            by_lines,
            *(0, 1, 1),
            lambda x: np.sin(pi * x),
            lambda t, x, u, slope, bend: 0.4 * (bend @ u),
        ),
    ),
    "diffusion_reaction": (
        SCIPY,
        partial(by_lines, -pi, pi, 1, reaction_start, reacting),
    ),
    "burgers": (
        SCIPY,
        partial(
            odd,
            partial(
                by_lines,
                *(0, 1, 1),
                lambda x: -np.sin(pi * x),
                lambda t, x, u, slope, bend: 0.01 * (bend @ u) - u * (slope @ u),
                first=32,
            ),
        ),
    ),
    "allen_cahn": (
        SCIPY,
        partial(
            by_lines,
            *(-1, 1, 1),
            lambda x: x**2 * np.cos(pi * x),
            lambda t, x, u, slope, bend: 0.001 * (bend @ u) + 5 * (u - u**3),
            first=208,
        ),
    ),
    "helmholtz": (
        ELEMENTS,
        partial(on_a_mesh, square_mesh, helmholtz_source, (4 * pi) ** 2),
    ),
    "l_shape": (ELEMENTS, partial(on_a_mesh, graded_l, lambda x, y: 1 + 0 * x, 0.0)),
}


def figures(name, error, seconds):
    """Error and seconds of the first level that is as accurate, or of the last one."""
    from benchmarks._demos.worker import demo_of

    demo = demo_of(name)
    points, values = test_points(demo)
    package, method = ROWS[name]
    method(points, 0)  # warm
    for level in range(10):
        begun = time.process_time()
        spent, found = method(points, level)
        reached = relative_error(demo.problem, found, values)
        if reached <= max(error, FLOOR) or time.process_time() - begun > seconds:
            break
    return {
        "error": reached,
        "seconds": spent,
        "package": package,
        "as_accurate": bool(reached <= max(error, FLOOR)),
    }


if __name__ == "__main__":
    print(json.dumps(figures(**json.loads(sys.argv[1]))))
