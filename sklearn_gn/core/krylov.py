"""Krylov spaces of the Gauss-Newton matrices whose penalties the evidence chooses."""

import numpy as np

_DEPENDENT = 1e-12  # share of a vector that is rounding


def krylov_basis(product, diagonal, right, rank):
    """Return an orthonormal basis of a Krylov space of a matrix, of shape (P, r).

    It is that of the matrix divided by its diagonal. Without this the penalties of
    weights that are switched off would be all that it finds. The eigenvectors of the
    largest eigenvalues are no substitute: they hardly move the neurons of a network
    while their coefficients are small, and it would stay a linear model.

    Parameters
    ----------
    product : callable
        Maps vectors to their products with the matrix.
    diagonal : ndarray of shape (P,)
    right : ndarray of shape (P,)
        Right side of the system, with which the space begins.
    rank : int
        Most dimensions.
    """
    basis = np.zeros((len(right), rank))
    vector = right / diagonal
    for k in range(rank):
        size, found = np.linalg.norm(vector), basis[:, :k]
        for _ in range(2):  # once more, for what rounding has left
            vector = vector - found @ (found.T @ vector)
        norm = np.linalg.norm(vector)
        if not norm > _DEPENDENT * size:
            return basis[:, : max(k, 1)]
        basis[:, k] = vector / norm
        vector = product(basis[:, k]) / diagonal
    return basis
