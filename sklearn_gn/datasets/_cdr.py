"""Convection, diffusion and reaction: a surrogate problem with 55 parameters."""

from functools import partial
from numbers import Integral

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu
from scipy.special import expit
from sklearn.utils import Bunch, check_random_state, check_scalar

from sklearn_gn._typing import Array, PathLike, RandomState
from sklearn_gn.datasets._cache import cached, solve_in_chunks

_VERSION = 1  # of the numbers: a new one makes stored files void

_POINTS = np.array(
    [[0.2, 0.2], [0.6, 0.8], [0.3, 0.6], [0.5, 0.5], [0.8, 0.5], [0.9, 0.3]]
)
_TIMES = np.arange(39, 51)  # hundredths

_CENTRES = np.array([[0.2, 0.2], [0.6, 0.8], [0.3, 0.6]])  # of the sources

# Reactions r_ij, i < j: sigmoids that are 0.001 at u_i and 0.999 at u_j.
_LEVELS = np.linspace(5.0, 65.0, 11)
_I, _J = np.triu_indices(len(_LEVELS), k=1)
_LOGIT = np.log(1e-3 / (1 - 1e-3))
_RATE = -2 * _LOGIT / (_LEVELS[_J] - _LEVELS[_I])

# y^T r(u) is tabulated: beyond these ends it is constant to 1e-9.
_LOW, _HIGH, _PER_UNIT = -60.0, 160.0, 16

_MAX_ITER = 100
_CHUNK = 25  # samples solved together, fewer on fine meshes

_DESCRIPTION = """\
Convection, diffusion and reaction
----------------------------------

:Number of samples: {n_samples}
:Features: 55 weights of reactions, positive, of sum 1
:Targets: 72, the concentration at 6 points and 12 times

How a substance is carried, spreads and reacts on the unit square, by finite elements on
{n_nodes} x {n_nodes} nodes and {n_steps} time steps. Learn the map from the weights of
the reactions to the concentrations that are observed. All quantities are without units;
``help(make_cdr)`` has the equation, the method and its accuracy, and the reference.
"""


def make_cdr(
    n_samples: int = 800,
    *,
    n_nodes: int = 51,
    n_steps: int = 50,
    random_state: RandomState = 0,
    n_jobs: int | None = None,
    verbose: int = 0,
    cache: bool = True,
    data_home: PathLike | None = None,
    return_X_y: bool = True,
) -> tuple[Array, Array] | Bunch:
    r"""Generate the convection-diffusion-reaction problem (multi-output regression).

    A surrogate problem: the targets are what is observed of the solution of a partial
    differential equation, the features are its parameters. The concentration
    :math:`u(x, t)` on the unit square, :math:`0 \le t \le 0.5`, satisfies

    .. math:: u_t = \nabla \cdot (D \nabla u) - v \cdot \nabla u + f + y^T r(u),
        \qquad D = 0.5,

    with :math:`u = 0` at :math:`t = 0` and :math:`\nabla u \cdot n = 0` on the
    boundary. Three narrow sources :math:`f` that vary in time feed it, the wind
    :math:`v` carries it to the right, and 55 reactions
    :math:`\bar r(x) r_{ij}(u)` set in one after the other as it grows. The features
    :math:`y` are the weights of the reactions.

    Parameters
    ----------
    n_samples : int, default=800
        Number of samples. The paper has 800: 400 to train, 200 to validate, 200 to
        test.
    n_nodes : int, default=51
        Nodes of the mesh in each direction. The paper has 151.
    n_steps : int, default=50
        Time steps, a multiple of 50, so that the observations are at time steps. The
        paper has 50.
    random_state : int, RandomState instance or None, default=0
        Determines the weights. Results are stored on disk for an int only.
    n_jobs : int or None, default=None
        Number of threads, counted as in scikit-learn. The result does not depend on it.
    verbose : int, default=0
        1 prints progress about once a second, 2 after every chunk.
    cache : bool, default=True
        Whether to store the result on disk and read it from there the next time.
    data_home : str, path-like or None, default=None
        Folder for the result. If None, the folder ``sklearn_gn`` in
        :func:`sklearn.datasets.get_data_home`.
    return_X_y : bool, default=True
        If False, return a Bunch in place of ``(X, Y)``.

    Returns
    -------
    X : ndarray of shape (n_samples, 55)
        Weights :math:`y_{12}, y_{13}, \dots, y_{1,11}, y_{23}, \dots, y_{10,11}`:
        uniform on [0, 1], then divided by their sum.
    Y : ndarray of shape (n_samples, 72)
        Concentrations. ``Y.reshape(-1, 6, 12)`` has the points (0.2, 0.2), (0.6, 0.8),
        (0.3, 0.6), (0.5, 0.5), (0.8, 0.5), (0.9, 0.3) along axis 1 and the times 0.39,
        0.40, ..., 0.50 along axis 2.
    data : :class:`~sklearn.utils.Bunch`
        If ``return_X_y`` is False: ``data`` and ``target``, which are X and Y;
        ``train``, ``validation`` and ``test``, the rows of the first half and the last
        two quarters; ``feature_names``, ``target_names``; ``points``, ndarray of shape
        (6, 2), and ``times``, ndarray of shape (12,), of the observations; ``DESCR``.

    Notes
    -----
    Linear finite elements on squares cut in two along one diagonal, with :math:`f`, the
    components of :math:`v` and the reactions interpolated between nodes, and backward
    Euler steps. Each step is solved by fixed-point iteration: the linear part, which
    is the same for all samples and times, is factored once, and the reactions, taken
    from a table of :math:`y^T r`, move to the right-hand side. The error shrinks five
    times or more per iteration, which ends when no node of any sample moves by
    more than 1e-9 of the largest value. The points of observation, which the paper
    does not print, are nodes of the meshes of 11, 51, 101 and 151 nodes; between nodes
    the solution is interpolated linearly.

    Relative differences of the targets, means over 25 samples:

    - 51 and 151 nodes: 0.0030; 101 and 151: 0.0005; 151 and 201: 0.0002.
    - 50 and 100 steps: 0.013; 100 and 200: 0.006; 200 and 400: 0.003. As in the paper,
      this error exceeds the error of the mesh: data of different ``n_steps`` are
      different problems.
    - The tolerance of the iteration and the table of reactions: 5e-10.

    800 samples take 38 s on one core of an x86-64 server for the default mesh, and
    9 minutes for 151 nodes.

    References
    ----------
    E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train Like a (Var)Pro:
    Efficient Training of Neural Networks with Variable Projection", SIAM Journal on
    Mathematics of Data Science 3 (2021), 1041-1066. Appendix C.

    Examples
    --------
    >>> from sklearn_gn.datasets import make_cdr
    >>> X, Y = make_cdr(3, n_nodes=11, cache=False)
    >>> X.shape, Y.shape
    ((3, 55), (3, 72))

    The concentration grows with time:

    >>> bool((Y.reshape(3, 6, 12)[:, :, -1] > Y.reshape(3, 6, 12)[:, :, 0]).all())
    True
    """
    check_scalar(n_samples, "n_samples", Integral, min_val=1)
    check_scalar(n_nodes, "n_nodes", Integral, min_val=3)
    check_scalar(n_steps, "n_steps", Integral, min_val=50)
    if n_steps % 50:
        raise ValueError(f"n_steps must be a multiple of 50, got {n_steps}.")

    arguments = {
        "n_samples": int(n_samples),
        "n_nodes": int(n_nodes),
        "n_steps": int(n_steps),
        "random_state": random_state,
        "n_jobs": n_jobs,
        "verbose": verbose,
    }
    where = {"cache": cache, "data_home": data_home}
    X, Y = cached(f"cdr_{_VERSION}", _generate, arguments, **where)
    if return_X_y:
        return X, Y
    times = _TIMES / 100
    parts = np.split(np.arange(n_samples), [n_samples // 2, 3 * n_samples // 4])
    return Bunch(
        data=X,
        target=Y,
        **dict(zip(("train", "validation", "test"), parts, strict=True)),
        feature_names=[f"y_{i + 1},{j + 1}" for i, j in zip(_I, _J, strict=True)],
        target_names=[f"u({a}, {b}; {t:.2f})" for a, b in _POINTS for t in times],
        points=_POINTS.copy(),
        times=times,
        DESCR=_DESCRIPTION.format(**arguments),
    )


def _generate(n_samples, n_nodes, n_steps, random_state, n_jobs, verbose):
    """Inputs and outputs."""
    rng = check_random_state(random_state)
    X = rng.uniform(size=(n_samples, len(_I)))
    X /= X.sum(axis=1, keepdims=True)
    solve = partial(observe, n_nodes=n_nodes, n_steps=n_steps)
    size = max(1, min(_CHUNK, 2**21 // n_nodes**2))  # 16 MB an array at most
    words = {"n_jobs": n_jobs, "verbose": verbose, "name": "make_cdr"}
    return X, solve_in_chunks(solve, X, size, **words)


def wind(x):
    """Velocity at the points, shape (n_points, 2)."""
    to_the_right = 4.5 * (1 + 0.8 * np.sin(2 * np.pi * x[:, 0]))
    return np.stack([to_the_right, 5.5 * (0.5 - x[:, 1])], axis=1)


def source(x, t):
    """Source at the points at one time."""
    heights = [
        1000 * (1 + 0.3 * np.cos(2 * np.pi * t)),
        800 * (1.2 + 0.4 * np.sin(4 * np.pi * t)),
        900 * (0.9 + 0.2 * np.sin(6 * np.pi * t)),
    ]
    squares = ((x[:, None] - _CENTRES) ** 2).sum(axis=-1)
    return np.exp(-200 * squares) @ heights


def reaction_strength(x):
    """Factor of the reactions at the points."""
    wave = np.sin(2 * np.pi * x[:, 0]) * np.cos(2 * np.pi * x[:, 1])
    return 500 * (0.8 + 0.2 * wave + x[:, 1])


def reactions(u):
    """The 55 sigmoids at values ``u``, in a new last axis, and their derivatives."""
    r = expit(_LOGIT + _RATE * (u[..., None] - _LEVELS[_I]))
    return r, r * (1 - r) * _RATE


def tabulate_reactions(y):
    """Return ``u -> y^T r(u)`` for arrays u of shape (n_samples, anything).

    For given weights this is a function of one number, so 55 sigmoids a value give way
    to one cubic: Hermite interpolation in a table, exact to 1e-8.
    """
    n_cells = int((_HIGH - _LOW) * _PER_UNIT)
    r, slope = reactions(np.linspace(_LOW, _HIGH, n_cells + 1))
    value, slope = y @ r.T, y @ slope.T / _PER_UNIT
    rise = np.diff(value, axis=1)
    left, right = slope[:, :-1], slope[:, 1:]
    cubics = [value[:, :-1], left, 3 * rise - 2 * left - right, left + right - 2 * rise]
    cubics = [coefficients.ravel() for coefficients in cubics]
    first = n_cells * np.arange(len(y))[:, None]
    last = np.nextafter(n_cells, 0.0)

    def evaluate(u):
        s = np.clip((u - _LOW) * _PER_UNIT, 0.0, last)
        cell = s.astype(np.intp)
        s -= cell
        cell += first
        result = cubics[3].take(cell)
        for coefficients in cubics[2::-1]:
            result *= s
            result += coefficients.take(cell)
        return result

    return evaluate


def nodes(n_nodes):
    """Coordinates of the nodes, shape (n_nodes**2, 2); x2 runs fastest."""
    line = np.linspace(0.0, 1.0, n_nodes)
    return np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)


def matrices(n_nodes):
    """Return the mass, stiffness and convection matrices of linear elements.

    With hat functions h_k these are the integrals of h_k h_l, grad h_k . grad h_l and
    h_k v . grad h_l, where v is interpolated between nodes; exact then.
    """
    x = nodes(n_nodes)
    number = np.arange(n_nodes**2).reshape(n_nodes, n_nodes)
    a, b = number[:-1, :-1], number[1:, :-1]
    d, c = number[:-1, 1:], number[1:, 1:]
    corners = [np.stack([a, b, c], axis=-1), np.stack([a, c, d], axis=-1)]
    triangles = np.concatenate(corners).reshape(-1, 3)  # counter-clockwise
    area = 0.5 / (n_nodes - 1) ** 2
    opposite = x[np.roll(triangles, 1, axis=1)] - x[np.roll(triangles, -1, axis=1)]
    gradients = np.stack([-opposite[..., 1], opposite[..., 0]], axis=-1) / (2 * area)
    mass = area / 12 * (1 + np.eye(3))
    local = [
        np.broadcast_to(mass, (len(triangles), 3, 3)),
        area * gradients @ gradients.transpose(0, 2, 1),
        mass @ wind(x)[triangles] @ gradients.transpose(0, 2, 1),
    ]
    rows = np.repeat(triangles, 3, axis=1).ravel()
    columns = np.tile(triangles, 3).ravel()
    shape = (len(x), len(x))
    return [
        sparse.csr_array((matrix.ravel(), (rows, columns)), shape=shape)
        for matrix in local
    ]


def interpolation(points, n_nodes):
    """Return the matrix from values at the nodes to values at the points."""
    scaled = points * (n_nodes - 1)
    cell = np.minimum(np.floor(scaled + 1e-9).astype(int), n_nodes - 2)
    s, t = (scaled - cell).T
    # The diagonal from (0, 0) to (1, 1) of the cell belongs to both triangles.
    corner = np.where(s >= t, n_nodes, 1)
    columns = (cell @ [n_nodes, 1])[:, None] + np.stack(
        [np.zeros_like(corner), corner, np.full_like(corner, n_nodes + 1)], axis=1
    )
    high, low = np.maximum(s, t), np.minimum(s, t)
    weights = np.stack([1 - high, high - low, low], axis=1)
    rows = np.repeat(np.arange(len(points)), 3)
    return sparse.csr_array(
        (weights.ravel(), (rows, columns.ravel())), shape=(len(points), n_nodes**2)
    )


def observe(y, n_nodes, n_steps, source=source):
    """Solve for all rows of ``y`` together and return the 72 observations of each."""
    x = nodes(n_nodes)
    mass, stiffness, convection = matrices(n_nodes)
    step, per_hundredth = 0.5 / n_steps, n_steps // 50
    linear = splu(
        (mass / step + 0.5 * stiffness + convection).tocsc(),
        permc_spec="MMD_AT_PLUS_A",  # the pattern is symmetric, the diagonal large
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    observation = interpolation(_POINTS, n_nodes)
    strength = reaction_strength(x)
    reaction = tabulate_reactions(y)

    # One row a sample. The three latest times: a parabola through them is the first
    # guess of the next.
    older = old = new = np.zeros((len(y), len(x)))
    observed = []
    for k in range(1, n_steps + 1):
        constant = new / step + source(x, k * step)
        guess = 3 * (new - old) + older if k > 2 else 2 * new - old
        for _ in range(_MAX_ITER):
            load = constant + strength * reaction(guess)
            previous, guess = guess, linear.solve(mass @ load.T).T
            change = np.abs(guess - previous).max()
            if change <= 1e-9 * np.abs(guess).max():
                break
        else:
            raise RuntimeError(
                f"The reactions did not settle in time step {k} of {n_steps} within "
                f"{_MAX_ITER} iterations: take more steps."
            )
        older, old, new = old, new, guess
        if k % per_hundredth == 0 and k // per_hundredth in _TIMES:
            observed.append((observation @ new.T).T)
    return np.stack(observed, axis=2).reshape(len(y), -1)
