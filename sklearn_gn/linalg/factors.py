"""Factorisations of dense matrices, and how large these may be.

This is the one place that calls LAPACK. A positive definite matrix has a
:class:`Factor`, which solves systems and gives the determinant, the inverse, and what
error bars take of it. Beside it stand the eigenpairs of symmetric matrices, triangular
factors, least squares by orthogonal transformations, and singular values.

All of it takes arrays of NumPy or of JAX, inside compiled functions too, and stacks of
matrices where the names say so. A matrix without a factor gives NaN instead of an
exception, so that a caller tests one number and raises its damping.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from sklearn_gn.arrays.libraries import NumPy, library_of, namespace
from sklearn_gn.arrays.threads import in_threads

# Multiply-adds above which the Gram matrix (twice as fast, a matrix product) replaces
# the QR factorisation of a design.
QR_LIMIT = 5e8
LARGEST_DENSE = 2000  # parameters, or numbers that the rows give: no larger matrix
_PANEL = 256  # columns of a large matrix that are factored at a time
_OF_LAPACK = "lauum", "potrf", "potrs", "tpqrt", "trtri", "trtrs"
_OF_BLAS = "syrk", "trmm", "trsm"
_ROUTINES = {  # by the type of the numbers
    np.dtype(kind): {
        **dict(zip(_OF_BLAS, get_blas_funcs(_OF_BLAS, dtype=kind), strict=True)),
        **dict(zip(_OF_LAPACK, get_lapack_funcs(_OF_LAPACK, dtype=kind), strict=True)),
    }
    for kind in (np.float32, np.float64)
}


# --- positive definite matrices ------------------------------------------------------


class Factor(NamedTuple):
    """The Cholesky factor L of a positive definite matrix ``L L^T``."""

    root: Any  # (n, n)  L

    @property
    def log_det(self):
        """Logarithm of the determinant of the matrix; NaN where there is no factor."""
        return 2 * namespace(self.root).log(self.root.diagonal()).sum()

    def solve(self, right):
        """Solve with the matrix."""
        if library_of((self.root, right)) is NumPy:
            return _ROUTINES[self.root.dtype]["potrs"](self.root, right, lower=1)[0]
        from jax.scipy.linalg import cho_solve

        return cho_solve((self.root, True), right)

    def whiten(self, right):
        """Return ``L^-1 right``."""
        if library_of((self.root, right)) is NumPy:
            return _ROUTINES[self.root.dtype]["trtrs"](self.root, right, lower=1)[0]
        from jax.scipy.linalg import solve_triangular

        return solve_triangular(self.root, right, lower=True)

    def variances(self, columns):
        """Return ``t^T matrix^-1 t`` for each of some columns t."""
        return namespace(self.root).sum(self.whiten(columns) ** 2, axis=0)

    def inverse_root(self):
        """Return L^-1, lower triangular."""
        if library_of(self.root) is NumPy:
            return _invert_lower(self.root.copy(order="F"))
        from jax import lax

        eye = namespace(self.root).eye(len(self.root), dtype=self.root.dtype)
        return lax.linalg.triangular_solve(self.root, eye, left_side=True, lower=True)

    def inverse(self):
        """Return the inverse of the matrix."""
        if library_of(self.root) is not NumPy:
            root = self.inverse_root()
            return root.T @ root
        inverse = _lower_inverse(self.root.copy(order="F"))
        inverse += inverse.T
        np.einsum("ii->i", inverse)[...] /= 2
        return inverse

    def density_slope(self, a):
        """Put w with ``w + w^T = a a^T - k matrix^-1`` in the place of the factor.

        It is lower triangular. With a, (n, k), the solution for normal variables, that
        is twice the slope of the log of their density in the matrix. Only for NumPy.
        """
        inverse, k = _lower_inverse(self.root), a.shape[1]
        w = _ROUTINES[a.dtype]["syrk"](1, a, -k, inverse, lower=1, overwrite_c=1)
        np.einsum("ii->i", w)[...] /= 2
        return w


def factor(matrix, shift=0.0, *, overwrite=False):
    """Return the :class:`Factor` of ``matrix + diag(shift)``, for a symmetric matrix.

    NumPy may ``overwrite`` the matrix by the factor: new memory for a large one costs
    as much as a third of the work.
    """
    if not isinstance(matrix, np.ndarray):
        from jax import lax

        eye = namespace(matrix).eye(len(matrix), dtype=matrix.dtype)
        shifted = matrix + (shift[None] if np.ndim(shift) else shift) * eye
        # The transpose is the same matrix, in the order of LAPACK.
        return Factor(lax.linalg.cholesky(shifted.T, symmetrize_input=False))
    shifted = matrix if overwrite else matrix.copy()
    np.einsum("ii->i", shifted)[...] += shift  # a view of it
    # The transpose is the same matrix, in the order of LAPACK: it is not copied.
    if len(matrix) >= 4 * _PANEL:
        return Factor(_factored_in_threads(np.asfortranarray(shifted.T)))
    potrf = _ROUTINES[matrix.dtype]["potrf"]
    root, failed = potrf(shifted.T, lower=True, overwrite_a=True)
    return Factor(np.full_like(root, np.nan) if failed else root)


def _factored_in_threads(matrix):
    """Put the lower Cholesky factor of a matrix, stored by columns, in its place.

    NaN where there is none. The matrix is divided by its size alone: the factor does
    not depend on the number of threads.
    """
    n = len(matrix)
    trsm = _ROUTINES[matrix.dtype]["trsm"]

    def subtract(panel, rows, columns):
        # In the order of the memory, which is that of the columns.
        matrix[rows, columns] -= (matrix[columns, panel] @ matrix[rows, panel].T).T

    for start in range(0, n, _PANEL):
        panel = slice(start, min(start + _PANEL, n))
        try:
            root = np.linalg.cholesky(matrix[panel, panel])
        except np.linalg.LinAlgError:
            return np.full_like(matrix, np.nan)
        matrix[panel, panel], matrix[:start, panel] = root, 0
        below = [slice(k, min(k + _PANEL, n)) for k in range(panel.stop, n, _PANEL)]
        rest = matrix[panel.stop :, panel]
        rest[...] = trsm(1.0, root, rest, side=1, lower=1, trans_a=1)
        pairs = [(rows, own) for k, own in enumerate(below) for rows in below[k:]]
        in_threads([partial(subtract, panel, *pair) for pair in pairs])
    return matrix


def factor_with_floor(matrix, floor):
    """Return the :class:`Factor` of a matrix with a shift at rounding level.

    Where rounding errors have made the matrix indefinite, the shift is raised, at most
    ten times, each to four times of it.
    """
    library = library_of((matrix, floor))
    xp = library.xp
    *_, found = library.while_loop(
        lambda carry: ~xp.isfinite(carry[2].root[-1, -1]) & (carry[0] < 10),
        lambda carry: (carry[0] + 1, 4 * carry[1], factor(matrix, 4 * carry[1])),
        (xp.int32(0), floor, factor(matrix, floor)),
    )
    return found


def inverse_roots(matrices):
    """Return R with ``R^T R`` the inverse, for a stack of positive definite matrices.

    NaN where one of them is not.
    """
    try:
        return np.linalg.inv(np.linalg.cholesky(matrices))
    except np.linalg.LinAlgError:
        return np.full(matrices.shape, np.nan)


def determined(gram, scale, diagonal):
    """Return the diagonal of ``H^-1 scale gram``, and log det H, H as in `solution`."""
    found = factor(scale * gram, diagonal, overwrite=True)
    log_det = found.log_det
    if library_of(gram) is not NumPy:
        return scale * (found.inverse() * gram).sum(axis=1), log_det
    if not np.isfinite(log_det):
        return np.full(len(gram), np.nan), log_det
    inverse = _lower_inverse(found.root)
    inverse *= gram.T  # symmetric, too: half of the products are those of the others
    ones = np.ones(len(inverse), inverse.dtype)
    share = inverse @ ones + ones @ inverse - np.einsum("ii->i", inverse)
    return scale * share, log_det


def solution(gram, scale, right, diagonal):
    """Return ``H^-1 right``, H = scale gram + diag(diagonal); NaN without a factor."""
    return factor(scale * gram, diagonal, overwrite=True).solve(right)


def _lower_inverse(root):
    """Put the lower half of the inverse of ``root root^T`` in the place of the root."""
    lauum = _ROUTINES[root.dtype]["lauum"]
    return lauum(_invert_lower(root), lower=True, overwrite_c=True)[0]


def _invert_lower(root):
    """Put the inverse of a lower triangular matrix in its place, and return it."""
    routines, half = _ROUTINES[root.dtype], len(root) // 2
    if half <= 32:  # rows of a triangular matrix that LAPACK inverts as a whole
        root[...] = routines["trtri"](root, lower=True)[0]
        return root
    # By halves: most of the work in products, which LAPACK leaves to slower loops.
    top, bottom = root[:half, :half], root[half:, half:]
    _invert_lower(top)
    _invert_lower(bottom)
    product = routines["trmm"](-1.0, top, root[half:, :half], side=1, lower=1)
    root[half:, :half] = routines["trmm"](1.0, bottom, product, lower=1, overwrite_b=1)
    return root


# --- how large a matrix may be -------------------------------------------------------


def affordable(n_rows, size):
    """Whether the evidence of a squared loss takes no longer than minutes."""
    dense = size <= LARGEST_DENSE and work_of(n_rows, size) <= 3e10
    return dense or n_rows * size <= 2e8  # of a matrix that is not formed


def work_of(n_rows, size):
    """Work of a step with a dense matrix, in products of its entries."""
    return (n_rows + 2 * size) * size**2


def is_formed(n_numbers, size):
    """Whether the matrix of a squared loss is formed, or products with it.

    ``n_numbers`` is rows times targets. Products of few rows are cheaper where there
    are more than three times as many parameters, and as exact.
    """
    return size <= min(LARGEST_DENSE, 3 * n_numbers)


# --- other factors -------------------------------------------------------------------


def solve_general(matrix, right):
    """Solve with a square matrix, or a stack of them; NaN where one is singular."""
    try:
        return namespace((matrix, right)).linalg.solve(matrix, right)
    except np.linalg.LinAlgError:
        return np.full_like(right, np.nan)


def eigenpairs(matrix):
    """Return the ascending eigenvalues of symmetric matrices and their eigenvectors."""
    try:
        return namespace(matrix).linalg.eigh(matrix)
    except np.linalg.LinAlgError:
        return np.full(matrix.shape[:-1], np.nan), np.full(matrix.shape, np.nan)


def spectrum(matrix):
    """Return the eigenvalues of a semidefinite matrix, descending."""
    xp = namespace(matrix)
    try:
        return xp.maximum(xp.linalg.eigvalsh(matrix)[::-1], 0)
    except np.linalg.LinAlgError:
        return np.full(len(matrix), np.nan)


def eigenpairs_of_rows(rows):
    """Return eigenvalues of ``rows^T rows`` that may be positive, and their vectors.

    They come from the smaller one of the two Gram matrices.
    """
    xp = namespace(rows)
    if rows.shape[1] <= len(rows):
        values, vectors = eigenpairs(rows.T @ rows)
        return xp.maximum(values, 0), vectors
    values, left = eigenpairs(rows @ rows.T)
    kept = values > len(rows) * xp.finfo(values.dtype).eps * values[-1]
    return values[kept], rows.T @ (left[:, kept] / xp.sqrt(values[kept])[None])


def solve_semidefinite(matrix, right):
    """Return the solution (p, q) of least norm, without what is null to rounding."""
    xp = namespace((matrix, right))
    values, vectors = eigenpairs(matrix)
    kept = values > values.shape[0] * xp.finfo(values.dtype).eps * values[-1]
    inverse = xp.where(kept, 1 / xp.where(kept, values, 1), 0)
    return vectors @ (inverse[:, None] * (vectors.T @ right))


def orthogonal_factors(matrix):
    """Return orthonormal columns Q and the triangle R with ``Q R`` the matrix."""
    return namespace(matrix).linalg.qr(matrix)


def upper_factor(*parts):
    """Return R with ``R^T R`` the sum of the products of parts of rows, by QR."""
    xp = namespace(parts)
    rows = parts[0] if len(parts) == 1 else xp.concatenate(parts, axis=-2)
    return xp.linalg.qr(rows, mode="r")


def joined_triangles(root, other):
    """Return the triangular factor of all rows of two, of which one may be short.

    With ``numpy.linalg.qr``, a QR factorisation piece by piece.
    """
    n_columns = math.isqrt(len(root))  # of a block
    tpqrt = _ROUTINES[root.dtype]["tpqrt"]
    return np.triu(tpqrt(len(other), n_columns, root, other)[0])


def triangular_solution(root):
    """Return x with ``A x`` nearest to b by the triangular factor of ``[A, b]``."""
    n = len(root) - 1
    return _ROUTINES[root.dtype]["trtrs"](root[:n, :n], root[:n, n])[0]


def least_norm_solution(matrix, right):
    """Return the x of least norm that minimises ``|matrix x - right|``."""
    try:
        return namespace((matrix, right)).linalg.lstsq(matrix, right, rcond=None)[0]
    except np.linalg.LinAlgError:
        return np.full((matrix.shape[1], *np.shape(right)[1:]), np.nan)


def singular_triplets(matrix):
    """Return U, s and V^T with ``U diag(s) V^T`` the matrix, or each of a stack."""
    try:
        return namespace(matrix).linalg.svd(matrix, full_matrices=False)
    except np.linalg.LinAlgError:
        *stack, m, n = matrix.shape
        k = min(m, n)
        shapes = (*stack, m, k), (*stack, k), (*stack, k, n)
        return tuple(np.full(shape, np.nan) for shape in shapes)


def singular_values(matrix):
    """Return the singular values of a matrix, or of each of a stack, descending."""
    try:
        return namespace(matrix).linalg.svd(matrix, compute_uv=False)
    except np.linalg.LinAlgError:
        return np.full((*matrix.shape[:-2], min(matrix.shape[-2:])), np.nan)
