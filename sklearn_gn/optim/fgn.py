"""The step of fast Gauss-Newton in the space of the margins, one row an example.

Korbit and Zanon, "Fast Gauss-Newton for multiclass cross-entropy", Algorithm 1. The
softmax head solves with the Gram matrix of an affine layer, networks without their
Jacobian.
"""

from sklearn_gn.arrays.libraries import library_of
from sklearn_gn.linalg.factors import factor
from sklearn_gn.linalg.krylov import conjugate_gradient


def solve_rows(gram, root, slope, total, cg_iterations):
    r"""The multipliers ``y = S u`` with ``(S G S + omega I) u = S^-1 slope``.

    ``G = J D^-1 J^T`` with the damping in D; ``-D^-1 J^T y`` is the damped step.
    Multiplied out,

        omega y = slope - S (S G S + omega I)^-1 S G slope,

    in which nothing overflows at any margin, while the whitened residual does; CG on
    this system meets only right-hand sides in the range of S.

    ``gram`` is G, as an array of shape (r, r), or the product with it; ``root`` and
    ``slope`` have the shape (r,), and ``total`` is omega, the sum of the weights of the
    batch. The system is solved by at most ``cg_iterations`` steps of CG, to a relative
    residual of 1e-5, or, if 0, by Cholesky, which needs G as an array.
    """
    library = library_of((root, slope))
    if callable(gram):

        def product(v):
            return root * gram(root * v) + total * v

        image = gram(slope)
    else:
        matrix = root[:, None] * gram * root[None, :]
        product = lambda v: matrix @ v + total * v  # noqa: E731
        image = gram @ slope
    right = root * image
    if cg_iterations:
        tol = library.xp.asarray(1e-5, right.dtype)
        v, *_ = conjugate_gradient(product, right, tol=tol, max_iter=cg_iterations)
        return (slope - root * v) / total
    solved = factor(matrix, total).solve(right)
    return (slope - root * solved) / total
