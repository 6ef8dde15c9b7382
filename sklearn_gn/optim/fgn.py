"""The step of fast Gauss-Newton in the space of the margins, one row an example.

Korbit and Zanon, "Fast Gauss-Newton for multiclass cross-entropy", Algorithm 1. The
softmax head solves with the Gram matrix of an affine layer, networks without their
Jacobian.
"""

from sklearn_gn.arrays.libraries import library_of
from sklearn_gn.linalg.factors import factor
from sklearn_gn.linalg.krylov import conjugate_gradient
from sklearn_gn.optim.multinomial import margins, root_curvature

_CG_TOL = 1e-5


def solve_rows(gram, root, slope, total, cg_iterations):
    r"""The multipliers ``y = S u`` with ``(S G S + omega I) u = S^-1 slope``.

    ``G = J D^-1 J^T`` with the damping in D; ``-D^-1 J^T y`` is the damped step.
    Multiplied out,

        omega y = slope - S (S G S + omega I)^-1 S G slope,

    in which nothing overflows at any margin, while the whitened residual does; CG on
    this system meets only right-hand sides in the range of S.

    Parameters
    ----------
    gram : callable or array of shape (r, r)
        G, or the product with it.
    root, slope : arrays of shape (r,)
    total : scalar
        omega, the sum of the weights of the batch.
    cg_iterations : int
        Steps of CG at most (ended at a relative residual of 1e-5); 0: Cholesky, which
        needs G as an array.
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
        tol = library.xp.asarray(_CG_TOL, right.dtype)
        v, *_ = conjugate_gradient(product, right, tol=tol, max_iter=cg_iterations)
        return (slope - root * v) / total
    solved = factor(matrix, total).solve(right)
    return (slope - root * solved) / total


def model_direction(logits, parameters, label, weight, *, damping, cg_iterations):
    """The damped FGN step of any model, without its Jacobian (Algorithm 1).

    Parameters
    ----------
    logits : callable
        Maps the parameters to logits of shape (b, C).
    parameters : tree of arrays
    label, weight : arrays of shape (b,)
    damping : scalar
    cg_iterations : int

    Returns
    -------
    tree of arrays
        The step, like ``parameters``.
    """
    import jax

    def margin(parameters):
        split = margins(logits(parameters), label)
        return split.margin

    s, along = jax.linearize(margin, parameters)
    transposed = jax.linear_transpose(along, parameters)

    def gram(v):
        (back,) = transposed(v)
        return along(jax.tree.map(lambda g: g / damping, back))

    root = jax.numpy.sqrt(weight) * root_curvature(s)
    slope = weight * jax.nn.sigmoid(s)
    y = solve_rows(gram, root, slope, jax.numpy.sum(weight), cg_iterations)
    (back,) = transposed(y)
    return jax.tree.map(lambda g: -g / damping, back)
