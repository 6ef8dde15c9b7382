"""Krylov methods for symmetric positive definite systems."""

import numpy as np

from sklearn_gn.arrays.libraries import library_of, namespace
from sklearn_gn.arrays.trees import add, dot


def conjugate_gradient(
    product,
    right,
    *,
    start=None,
    precondition=None,
    tol,
    max_iter,
    dot=dot,
    record=None,
):
    """Solve ``product(x) = right`` by the preconditioned conjugate gradient method.

    Vectors are trees of arrays. The iteration ends where the residual is ``tol`` times
    as large as the right side, in the norm of the preconditioner ``precondition``, or
    after ``max_iter``. With ``dot=column_dot`` the columns of an array are right sides
    of their own; one that is solved waits for the others. Outside compiled code
    ``record`` gets the length of each step and the ratio of the squared residuals after
    and before it, from which :func:`tridiagonal` follows.

    Returns x, the number of iterations and the relative size of the last residual.
    """
    library = library_of(right)
    xp, precondition = library.xp, precondition or (lambda r: r)
    z = precondition(right)
    scale = dot(right, z)
    if start is None:
        x, r = library.tree_map(xp.zeros_like, right), right
    else:
        x, r = start, add(right, -1, product(start))
        z = precondition(r)
    size = dot(r, z)

    def iterate(carry):
        x, r, p, size, count = carry
        image = product(p)
        curvature = dot(p, image)
        # Zero or negative only by rounding, when there is nothing left to gain.
        usable = (size > tol**2 * scale) & (curvature > 0)
        length = xp.where(usable, size / xp.where(usable, curvature, 1), 0)
        x, r = add(x, length, p), add(r, -length, image)
        z = precondition(r)
        new = xp.where(usable, dot(r, z), 0)
        ratio = new / xp.where(usable, size, 1)
        if record is not None:
            record((length, ratio))
        return x, r, add(z, ratio, p), new, count + 1

    x, _, _, last, count = library.while_loop(
        lambda carry: xp.any(carry[3] > tol**2 * scale) & (carry[4] < max_iter),
        iterate,
        (x, r, z, size, xp.int32(0)),
    )
    return x, count, xp.sqrt(last / xp.where(scale > 0, scale, 1))


def column_dot(a, b):
    """Inner products of the columns of two arrays."""
    return namespace(a).sum(a * b, axis=0)


def tridiagonal(lengths, ratios):
    """Diagonal and off-diagonal of the Lanczos matrix of the recorded iterations."""
    n = int(np.count_nonzero(lengths))
    lengths, ratios = lengths[:n], np.maximum(ratios[: max(n - 1, 0)], 0)
    diagonal = 1 / lengths
    diagonal[1:] += ratios / lengths[:-1]
    return diagonal, np.sqrt(ratios) / lengths[:-1]


def krylov_basis(product, diagonal, right, rank):
    """Return an orthonormal basis of a Krylov space of a matrix, of shape (P, r).

    It belongs to the matrix divided by its ``diagonal`` (P,), and begins with the right
    side of the system. Without this the penalties of weights that are switched off
    would be all that it finds. The eigenvectors of the largest eigenvalues are no
    substitute: they hardly move the neurons of a network while their coefficients are
    small, and it would stay a linear model.
    """
    basis = np.zeros((len(right), rank))
    vector = right / diagonal
    for k in range(rank):
        size, found = np.linalg.norm(vector), basis[:, :k]
        for _ in range(2):  # once more, for what rounding has left
            vector = vector - found @ (found.T @ vector)
        norm = np.linalg.norm(vector)
        if not norm > 1e-12 * size:  # share of a vector that is rounding
            return basis[:, : max(k, 1)]
        basis[:, k] = vector / norm
        vector = product(basis[:, k]) / diagonal
    return basis
