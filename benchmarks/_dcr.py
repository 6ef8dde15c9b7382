"""Direct-current resistivity: a surrogate problem with 882 targets."""

from functools import partial
from numbers import Integral

import numpy as np
from scipy import sparse
from scipy.fft import dctn, idctn
from scipy.sparse.linalg import LinearOperator, cg
from sklearn.utils import Bunch, check_random_state, check_scalar

from sklearn_gn._typing import Array, PathLike, RandomState
from sklearn_gn.datasets._cache import cached, solve_in_chunks

_VERSION = 1  # of the numbers: a new one makes stored files void

_LENGTHS = np.array([2.0, 2.0, 1.0])
_LOW = np.array([0.0, 0.25, 0.0])
_HIGH = np.array([1.0, 3.0, np.pi])

_ELECTRODES = np.array([[1, 1 / 6], [1, 11 / 6]])  # of the current, on the surface
_CURRENTS = np.array([-1.0, 1.0])
_GRID = 1 / 6 + np.arange(21) / 12  # coordinates of the receivers, either direction

_TOLERANCE = 1e-10
_MAX_ITER = 1000
_CHUNK = 50

_DESCRIPTION = """\
Direct-current resistivity
--------------------------

:Number of samples: {n_samples}
:Features: height, size and angle of a conducting ellipsoid in the ground
:Targets: 882, differences of the electric potential on the surface

A current flows through the ground from one electrode on its surface to another, by
finite volumes, {cells} cells. Learn the map from the ellipsoid, inside which the ground
conducts well, to what receivers on the surface measure. All quantities are without
units; ``help(make_dcr)`` has the equation, the method, its accuracy and the reference.
"""


def make_dcr(
    n_samples: int = 1000,
    *,
    shape: tuple[int, int, int] = (24, 24, 12),
    random_state: RandomState = 0,
    n_jobs: int | None = None,
    verbose: int = 0,
    cache: bool = True,
    data_home: PathLike | None = None,
    return_X_y: bool = True,
) -> tuple[Array, Array] | Bunch:
    r"""Generate the direct-current resistivity problem (multi-output regression).

    A surrogate problem: the targets are what is observed of the solution of a partial
    differential equation, the features are its parameters. The electric potential
    :math:`u` in the ground :math:`\Omega = (0, 2)^2 \times (0, 1)`, whose surface is
    :math:`x_3 = 1`, satisfies

    .. math:: -\nabla \cdot (m(x; y) \nabla u) = q \text{ in } \Omega,
        \qquad \nabla u \cdot n = 0 \text{ on the boundary},

    where unit currents leave at (1, 1/6, 1) and enter at (1, 11/6, 1) and the
    conductivity, between 1 and :math:`e^{10}`, is that of a blurred ellipsoid,

    .. math:: m = \exp\Bigl(10 \exp\Bigl(-\frac{2 p_1^2 + p_2^2 + (x_3 - y_1)^2}
        {y_2^2}\Bigr)\Bigr), \qquad p = \begin{pmatrix} \cos y_3 & -\sin y_3 \\
        \sin y_3 & \cos y_3 \end{pmatrix} \begin{pmatrix} x_1 - 1 \\ x_2 - 1
        \end{pmatrix}.

    Parameters
    ----------
    n_samples : int, default=1000
        Number of samples. The paper has 10,000: 8,000 to train, 1,000 to validate,
        1,000 to test.
    shape : tuple of 3 ints, default=(24, 24, 12)
        Number of cells in the directions x1, x2, x3. The paper has (48, 48, 24).
    random_state, n_jobs, verbose, cache, data_home, return_X_y : optional
        As for :func:`make_cdr`.

    Returns
    -------
    X : ndarray of shape (n_samples, 3)
        Height :math:`y_1` of the centre, size :math:`y_2` and angle :math:`y_3`,
        uniform on [0, 1], [0.25, 3] and [0, pi].
    Y : ndarray of shape (n_samples, 882)
        Differences of potential. ``Y.reshape(-1, 2, 21, 21)`` has along axis 1 the
        differences in direction x1, then x2; along axes 2 and 3 the coordinates x1 and
        x2 of the receiver's centre.
    data : :class:`~sklearn.utils.Bunch`
        If ``return_X_y`` is False: ``data`` and ``target``, which are X and Y;
        ``train``, ``validation`` and ``test``, the rows of the first eight tenths and
        the last two; ``feature_names``, ``target_names``; ``grid``, ndarray of shape
        (21,), the coordinates of the receivers; ``DESCR``.

    Notes
    -----
    The receivers are centred at 1/6, 1/6 + 1/12, ..., 11/6 in both directions, from
    current electrode to current electrode. Each measures the difference of potential
    between two points of the surface 1/12 apart, the one with the larger coordinate
    minus the other. The paper gives neither place nor length; on its mesh this choice
    makes every second face a receiver. **The mean over the samples is not
    subtracted**, in contrast to the paper: it belongs to the training rows only. To
    subtract it::

        Y -= Y[train].mean(axis=0)

    Finite volumes on equal cells, with m at their centres, harmonic means of it on
    faces, and bilinear weights between the cells of the top layer for currents and
    receivers. The equations are solved by conjugate gradients to a relative residual of
    1e-10; with :math:`s = \sqrt m`, the inverse of :math:`-s \Delta s`, applied by fast
    cosine transforms, preconditions them so well that 11 to 23 iterations do for any
    sample and mesh.

    The potential has poles at the electrodes, which no mesh resolves: relative to the
    norm of a sample, targets of the meshes (24, 24, 12) and (48, 48, 24) differ by
    0.45, those of (48, 48, 24) and (96, 96, 48) by 0.18 (medians of 60 samples), nearly
    all of it at the receivers next to an electrode. Data of different meshes are
    therefore different problems. The tolerance of the iteration changes targets by less
    than 1e-9 of their norm.

    A sample takes 4.5 ms on one core of an x86-64 server for the default mesh, and
    33 ms for (48, 48, 24): 5.5 minutes for the 10,000 samples of the paper.

    References
    ----------
    E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train Like a (Var)Pro:
    Efficient Training of Neural Networks with Variable Projection", SIAM Journal on
    Mathematics of Data Science 3 (2021), 1041-1066. Appendix C.

    Examples
    --------
    >>> from benchmarks._dcr import make_dcr
    >>> X, Y = make_dcr(4, shape=(12, 12, 6), cache=False)
    >>> X.shape, Y.shape
    ((4, 3), (4, 882))

    Along the line between the electrodes the potential rises:

    >>> along = Y.reshape(4, 2, 21, 21)[:, 1, 10]
    >>> bool((along > 0).all())
    True
    """
    check_scalar(n_samples, "n_samples", Integral, min_val=1)
    if np.shape(shape) != (3,) or not all(
        isinstance(n, Integral) and n >= 2 for n in shape
    ):
        raise ValueError(f"shape must be three ints of at least 2, got {shape!r}.")
    shape = tuple(int(n) for n in shape)

    arguments = {
        "n_samples": int(n_samples),
        "shape": shape,
        "random_state": random_state,
        "n_jobs": n_jobs,
        "verbose": verbose,
    }
    where = {"cache": cache, "data_home": data_home}
    X, Y = cached(f"dcr_{_VERSION}", _generate, arguments, **where)
    if return_X_y:
        return X, Y
    names = [f"d{k} u({a:.3f}, {b:.3f})" for k in (1, 2) for a in _GRID for b in _GRID]
    description = {"n_samples": n_samples, "cells": " x ".join(map(str, shape))}
    parts = np.split(np.arange(n_samples), [8 * n_samples // 10, 9 * n_samples // 10])
    return Bunch(
        data=X,
        target=Y,
        **dict(zip(("train", "validation", "test"), parts, strict=True)),
        feature_names=["height", "size", "angle"],
        target_names=names,
        grid=_GRID.copy(),
        DESCR=_DESCRIPTION.format(**description),
    )


def _generate(n_samples, shape, random_state, n_jobs, verbose):
    """Inputs and outputs."""
    rng = check_random_state(random_state)
    X = rng.uniform(_LOW, _HIGH, size=(n_samples, 3))
    solve = partial(observe, shape=shape)
    return X, solve_in_chunks(
        solve, X, _CHUNK, n_jobs=n_jobs, verbose=verbose, name="make_dcr"
    )


def conductivity(y, shape):
    """Conductivity at the centres of the cells, an array of that shape."""
    height, size, angle = y
    centres = [
        (np.arange(n) + 0.5) * length / n
        for n, length in zip(shape, _LENGTHS, strict=True)
    ]
    x1, x2, x3 = np.meshgrid(*centres, indexing="ij", sparse=True)
    p1 = np.cos(angle) * (x1 - 1) - np.sin(angle) * (x2 - 1)
    p2 = np.sin(angle) * (x1 - 1) + np.cos(angle) * (x2 - 1)
    square = (2 * p1**2 + p2**2 + (x3 - height) ** 2) / size**2
    return np.exp(10 * np.exp(-square))


def face_factors(shape):
    """Area of the faces over the distance of their cells, in each direction."""
    widths = _LENGTHS / shape
    return widths.prod() / widths**2


def matrix(m):
    """Return the matrix that takes potentials to the currents out of the cells.

    Currents are integrated over cells. Cells are numbered as in ``m.ravel()``.
    """
    diagonal = np.zeros(m.shape)
    bands, offsets = [], []
    for axis, factor in enumerate(face_factors(m.shape)):
        left = (slice(None),) * axis + (slice(None, -1),)
        right = (slice(None),) * axis + (slice(1, None),)
        face = factor * 2 * m[left] * m[right] / (m[left] + m[right])
        diagonal[left] += face
        diagonal[right] += face
        stride = np.prod(m.shape[axis + 1 :], dtype=int)
        # Entry j of a band stands in column j.
        below, above = np.zeros(m.shape), np.zeros(m.shape)
        below[left] = above[right] = -face
        bands += [below, above]
        offsets += [-stride, stride]
    data = np.stack([diagonal, *bands]).reshape(len(bands) + 1, -1)
    return sparse.dia_array((data, [0, *offsets]), shape=(m.size, m.size))


def preconditioner(m):
    """Return the inverse of -s Laplace s with s the root of m.

    For smooth m it is close to that of -div(m grad), since with w = s u

        -div(m grad u) = s (-Laplace w + (Laplace s / s) w).
    """
    inverse_root = 1 / np.sqrt(m)
    eigenvalues = np.zeros(m.shape)
    for axis, factor in enumerate(face_factors(m.shape)):
        n = m.shape[axis]
        along = [1, 1, 1]
        along[axis] = n
        wave = np.pi * np.arange(n) / n
        eigenvalues += factor * (2 - 2 * np.cos(wave)).reshape(along)
    eigenvalues.flat[0] = eigenvalues.flat[1:].min()  # the constants; any number does

    def apply(residual):
        z = dctn(residual.reshape(m.shape) * inverse_root, norm="ortho")
        z = idctn(z / eigenvalues, norm="ortho") * inverse_root
        return (z - z.mean()).ravel()

    return LinearOperator((m.size, m.size), apply, dtype=float)


def solve(m, currents):
    """Return the potential of mean zero for currents of sum zero into the cells."""
    potential, info = cg(
        matrix(m),
        currents.ravel(),
        rtol=_TOLERANCE,
        maxiter=_MAX_ITER,
        M=preconditioner(m),
    )
    if info:
        raise RuntimeError(
            f"Conjugate gradients did not reach a residual of {_TOLERANCE} within "
            f"{_MAX_ITER} iterations: the conductivity varies too much for the mesh."
        )
    return (potential - potential.mean()).reshape(m.shape)


def interpolation(points, n, length):
    """Return the matrix from values at n centres of cells to values at points.

    Linear between centres, constant between the outermost and the boundary.
    """
    scaled = np.clip(np.asarray(points) * n / length - 0.5, 0, n - 1)
    cell = np.minimum(scaled.astype(int), n - 2)
    weight = scaled - cell
    matrix = np.zeros((len(scaled), n))
    rows = np.arange(len(scaled))
    matrix[rows, cell] = 1 - weight
    matrix[rows, cell + 1] = weight
    return matrix


def source(shape):
    """Currents into the cells."""
    currents = np.zeros(shape)
    first, second = (
        interpolation(_ELECTRODES[:, k], shape[k], _LENGTHS[k]) for k in (0, 1)
    )
    currents[:, :, -1] = np.einsum("e,ei,ej->ij", _CURRENTS, first, second)
    return currents


def receivers(shape):
    """Return for x1 and x2 the matrices of values and of differences at the grid."""
    matrices = []
    for k in (0, 1):
        value, left, right = (
            # The ends of a receiver are 1 / 12 apart.
            interpolation(_GRID + shift * (1 / 12), shape[k], _LENGTHS[k])
            for shift in (0, -0.5, 0.5)
        )
        matrices.append((value, right - left))
    return matrices


def observe(y, shape):
    """Solve for every row of ``y`` and return the 882 differences of each."""
    currents = source(shape)
    (value1, difference1), (value2, difference2) = receivers(shape)
    observed = np.empty((len(y), 2, len(_GRID), len(_GRID)))
    for parameters, out in zip(y, observed, strict=True):
        surface = solve(conductivity(parameters, shape), currents)[:, :, -1]
        out[0] = difference1 @ surface @ value2.T
        out[1] = value1 @ surface @ difference2.T
    return observed.reshape(len(y), -1)
