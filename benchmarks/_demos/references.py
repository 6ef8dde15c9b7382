"""Solutions of the demos that have no closed form, by other methods.

They are computed when they are first wanted, and those in time are kept in
``benchmarks/data/demos``. Two resolutions of each agree to 1e-5 and better: the L to
1e-11, the scattered wave to 3e-8, the put to 2e-6, Schrodinger's equation to 6e-6,
Allen and Cahn's to 2e-6, the reaction to 4e-11, Gray and Scott's to 6e-8.
"""

from pathlib import Path

import numpy as np
from scipy.fft import dct, idct
from scipy.integrate import solve_ivp
from scipy.interpolate import BarycentricInterpolator
from scipy.linalg import solve_banded
from scipy.special import jv, jvp, yv, yvp

_NEWTON = 100  # iterations at most
FOLDER = Path(__file__).parents[1] / "data" / "demos"


def kept(name, function, *arguments):
    """An array of a function, from the folder if it is there."""
    path = FOLDER / f"{name}.npy"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        np.save(path, function(*arguments))
    return np.load(path)


# --- in the plane, by series of solutions --------------------------------------------


def poisson_on_the_l(points, n_terms=30):
    """-Laplace u = 1, zero on the boundary: harmonic functions about its corners.

    At the inner corner these are r^(2k/3) sin(2k phi / 3). The particular solution
    -|x|^2 / 4 leaves values that, at a right angle, make one term z^2 log z. All are
    matched on the outline by least squares.
    """
    right_angles = {(1, 0): 180, (1, -1): 90, (-1, -1): 0, (-1, 1): 270, (0, 1): 180}
    power = 2 * np.arange(1, n_terms + 1) / 3

    def terms(x):
        z = x[:, 0] + 1j * x[:, 1]
        r, angle = np.abs(z)[:, None], (np.angle(z) - np.pi / 2) % (2 * np.pi)
        inner = (r / np.sqrt(2)) ** power * np.sin(power * angle[:, None])
        log = np.log(np.maximum(r[:, 0], 1e-300))
        square = r[:, 0] ** 2
        columns = [square * (log * np.sin(2 * angle) + angle * np.cos(2 * angle))]
        for (a, b), turn in right_angles.items():
            w = (z - a - 1j * b) * np.exp(-1j * np.deg2rad(turn))
            safe = np.where(w == 0, 1, w)
            columns.append((w**2 * np.log(safe)).imag)
        columns += [(z**k).real for k in range(n_terms)]
        columns += [(z**k).imag for k in range(1, n_terms)]
        scaled = np.column_stack([inner, *columns])
        return scaled / np.r_[np.ones(n_terms + 6), _scales(n_terms)]

    s = (1 - np.cos(np.linspace(0, np.pi, 300))) / 2  # dense at the corners
    corners = np.array([(0, 0), (1, 0), (1, -1), (-1, -1), (-1, 1), (0, 1)], float)
    ends = zip(corners, np.roll(corners, -1, axis=0), strict=True)
    outline = np.concatenate([a + s[:, None] * (b - a) for a, b in ends])
    # Seen from inside, the angle of the edge y = 0, x > 0 is 3 pi / 2, not -pi / 2.
    outline[:300, 1] -= 1e-300
    square = (outline**2).sum(axis=1)
    fitted = np.linalg.lstsq(terms(outline), square / 4, rcond=1e-14)[0]
    return terms(points) @ fitted - (points**2).sum(axis=1) / 4


def _scales(n_terms):
    powers = np.r_[np.arange(n_terms), np.arange(1, n_terms)]
    return np.sqrt(2.0) ** powers


def scattered_wave(points, n_terms=40):
    """The field of ``sound_hard``: Bessel functions, matched on circle and square."""
    k, radius, half = 2.0, np.pi / 4, np.pi
    orders = np.arange(-n_terms, n_terms + 1)
    outer = np.sqrt(2) * half

    def terms(x):
        """Functions, and their slopes along r and the angle over r."""
        r, angle = np.hypot(*x.T)[:, None], np.arctan2(x[:, 1], x[:, 0])[:, None]
        wave = np.exp(1j * orders * angle)
        found = []
        for function, slope, at in ((jv, jvp, outer), (yv, yvp, radius)):
            scale = function(orders, k * at)
            value = function(orders, k * r) / scale * wave
            along = k * slope(orders, k * r) / scale * wave
            found.append((value, along, 1j * orders / r * value))
        return [np.hstack(parts) for parts in zip(*found, strict=True)]

    t = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    circle = radius * np.column_stack([np.cos(t), np.sin(t)])
    s = half * np.cos(np.linspace(0, np.pi, 300))
    sides = {(1, 0): (half, s), (-1, 0): (-half, s), (0, 1): (s, half)}
    sides[0, -1] = (s, -half)
    _, slope, _ = terms(circle)
    # The normal points into the hole: du/dn = -du/dr = -i k exp(i k x) n_x.
    rows = [-slope]
    normal = -np.cos(t)
    right = [-1j * k * np.exp(1j * k * circle[:, 0]) * normal]
    for normal, (x, y) in sides.items():
        side = np.column_stack([np.broadcast_to(x, 300), np.broadcast_to(y, 300)])
        value, along, around = terms(side)
        unit = side / np.hypot(*side.T)[:, None]
        radial = (unit @ normal)[:, None]
        angular = (np.column_stack([-unit[:, 1], unit[:, 0]]) @ normal)[:, None]
        rows.append(along * radial + around * angular - 1j * k * value)
        right.append(np.zeros(300))
    fitted = np.linalg.lstsq(np.vstack(rows), np.concatenate(right), rcond=1e-14)[0]
    field = terms(np.asarray(points))[0] @ fitted
    return np.column_stack([field.real, field.imag])


# --- in time, by lines ---------------------------------------------------------------


def chebyshev(n, low, high):
    """Nodes from low to high, and the matrix of derivatives."""
    angle = np.pi * np.arange(n + 1) / n
    x = -np.cos(angle)
    c = np.r_[2, np.ones(n - 1), 2] * (-1) ** np.arange(n + 1)
    difference = x[:, None] - x + np.eye(n + 1)
    matrix = np.outer(c, 1 / c) / difference
    matrix -= np.diag(matrix.sum(axis=1))
    return low + (high - low) * (x + 1) / 2, 2 / (high - low) * matrix


def allen_cahn(n=240):
    """Points (x, t) and values, even in x."""
    table = kept(f"allen_cahn_{n}", _allen_cahn, n)
    return table[:, :2], table[:, 2:]


def _allen_cahn(n):
    x, first = chebyshev(n, 0, 1)
    bend = 0.001 * first @ first
    inner = slice(1, n)  # the slope is zero at 0, the value -1 at 1
    from_inner = -first[0, inner] / first[0, 0]
    constant = first[0, n] / first[0, 0]

    def whole(u):
        return np.r_[from_inner @ u + constant, u, -1.0]

    def flow(t, u):
        return (bend @ whole(u))[inner] + 5 * (u - u**3)

    linear = bend[inner, inner] + np.outer(bend[inner, 0], from_inner)

    def jacobian(t, u):
        return linear + np.diag(5 - 15 * u**2)

    times = np.linspace(0, 1, 21)
    start = (x**2 * np.cos(np.pi * x))[inner]
    options = dict(rtol=1e-8, atol=1e-10, jac=jacobian, t_eval=times)
    path = solve_ivp(flow, (0, 1), start, "Radau", **options).y.T
    grid = np.linspace(-1, 1, 201)
    rows = []
    for t, u in zip(times, path, strict=True):
        values = _interpolated(x, whole(u), np.abs(grid))
        rows.append(np.column_stack([grid, np.full(201, t), values]))
    return np.concatenate(rows)


def _interpolated(nodes, values, at):
    return BarycentricInterpolator(nodes, values)(at)


def reaction(diffusivity, rate, n=64):
    """Observations of ``reaction_inverse``: points (x, t), and both concentrations."""
    table = kept(f"reaction_{n}", _reaction, diffusivity, rate, n)
    return table[:, :2], table[:, 2:]


def _reaction(diffusivity, rate, n):
    x, first = chebyshev(n, 0, 1)
    bend = diffusivity * first @ first

    def flow(t, y):
        a, b = y.reshape(2, -1)
        speed = rate * a * b**2
        change = np.stack([bend @ a - speed, bend @ b - 2 * speed])
        change[:, [0, -1]] = 0  # the ends keep their values 1 and 0
        return change.ravel()

    start = np.exp(-20 * x)
    start[-1] = 0.0
    times = np.linspace(0, 10, 26)
    options = dict(rtol=1e-9, atol=1e-11, t_eval=times)
    path = solve_ivp(flow, (0, 10), np.tile(start, 2), "Radau", **options).y.T
    grid = np.linspace(0, 1, 41)
    rows = []
    for t, y in zip(times, path, strict=True):
        values = [_interpolated(x, part, grid) for part in y.reshape(2, -1)]
        rows.append(np.column_stack([grid, np.full(41, t), *values]))
    return np.concatenate(rows)


def schrodinger(n=512, n_steps=4000):
    """Points (x, t), real and imaginary part: Fourier series and split steps."""
    table = kept(f"schrodinger_{n}_{n_steps}", _schrodinger, n, n_steps)
    return table[:, :2], table[:, 2:]


def _schrodinger(n, n_steps):
    x = -5 + 10 * np.arange(n) / n
    wave = 2 * np.pi * np.fft.fftfreq(n, 10 / n)
    field = (2 / np.cosh(x)).astype(complex)
    step = np.pi / 2 / n_steps
    # Yoshida's composition of three Strang steps, of fourth order.
    outer = 1 / (2 - 2 ** (1 / 3))
    parts = [w * step for w in (outer, 1 - 2 * outer, outer)]
    rows, every = [], n_steps // 20
    for k in range(n_steps + 1):
        if k % every == 0:
            chosen = slice(None, None, n // 128)
            time = np.full(128, k * step)
            u = field[chosen]
            rows.append(np.column_stack([x[chosen], time, u.real, u.imag]))
        for h in parts:
            field = field * np.exp(0.5j * h * np.abs(field) ** 2)
            field = np.fft.ifft(np.exp(-0.5j * h * wave**2) * np.fft.fft(field))
            field = field * np.exp(0.5j * h * np.abs(field) ** 2)
    return np.concatenate(rows)


def gray_scott(feed, kill, slow, n=96):
    """Points (x, t) and values of both chemicals, by cosines of x."""
    x, times = (np.arange(n) + 0.5) / n, np.linspace(0, 20, 21)
    bends = -((np.pi * np.arange(n)) ** 2)

    def flow(t, y):
        a, b = y.reshape(2, n)
        d_a, d_b = slow * idct(bends * dct(y.reshape(2, n)))
        eaten = a * b**2
        return np.r_[2 * d_a - eaten + feed * (1 - a), d_b + eaten - (feed + kill) * b]

    bump = np.exp(-100 * (x - 0.5) ** 2)
    start = np.r_[1 - bump / 2, bump / 4]
    options = dict(method="DOP853", rtol=1e-9, atol=1e-11, t_eval=times)
    path = solve_ivp(flow, (0, 20), start, **options).y
    points = np.stack(np.meshgrid(x, times, indexing="ij"), axis=-1).reshape(-1, 2)
    return points, path.reshape(2, -1).T


def american_put(s, smoothing, n=4000, n_steps=2000):
    """Values at time 1 to expiry, by implicit differences.

    The demo states ``sqrt(a^2 + b^2 + smoothing) = a + b`` of the excess a over the
    payoff and the rate b at which the equation fails. This is ``2 a b = smoothing``,
    with both positive: a source that keeps the value above the payoff. With 1e-8 the
    solution is above the option's value by 1e-4 where that vanishes, and by 1.4e-4 in
    the mean square, relative.
    """
    grid, values = kept(f"smoothed_put_{n}", smoothed_put, n, n_steps, smoothing)
    return np.interp(s, grid, values)


def smoothed_put(n, n_steps, smoothing, r=0.05, sigma=0.2, strike=1.0):
    s = np.linspace(0, 4, n + 1)
    step, index = 1 / n_steps, np.arange(1, n)
    half = sigma**2 * index**2 / 2
    lower, upper = half - r * index / 2, half + r * index / 2
    payoff = np.maximum(strike - s, 0)
    inner, below = payoff[1:-1], payoff[1:-1]

    def rate(inner):
        value = np.concatenate([[strike], inner, [0.0]])
        move = lower * value[:-2] + upper * value[2:] - (2 * half + r) * inner
        return move + smoothing / 2 / (inner - below)

    found = below + np.sqrt(smoothing * step)
    for k in range(n_steps):
        theta = 1.0 if k < 20 else 0.5  # implicit first, for the kink
        known = inner if theta == 1 else inner + (1 - theta) * step * rate(inner)
        for _ in range(_NEWTON):
            slope = 2 * half + r + smoothing / 2 / (found - below) ** 2
            band = np.zeros((3, n - 1))
            band[0, 1:] = -theta * step * upper[:-1]
            band[1] = 1 + theta * step * slope
            band[2, :-1] = -theta * step * lower[1:]
            change = solve_banded(
                (1, 1), band, known + theta * step * rate(found) - found
            )
            change = np.maximum(change, -0.9 * (found - below))  # it stays above
            found = found + change
            if np.abs(change).max() < 1e-13:
                break
        inner = found
    return np.stack([s, np.concatenate([[strike], inner, [0.0]])])
