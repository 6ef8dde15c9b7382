"""Trust-region steps from a spectral form of the quadratic model.

However the Gauss-Newton matrix was met, as a dense matrix, through its dual or in a
Krylov space, its eigenpairs turn the model into a sum over single directions,

    m(d) = sum_j  s_j t_j + e_j t_j^2 / 2,      d = sum_j t_j v_j,

after which any number of steps, for any radius or shift, cost next to nothing.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from sklearn_gn.linalg.factors import eigenpairs


class SpectralModel(NamedTuple):
    """Quadratic model in the eigenvectors of its matrix."""

    values: jnp.ndarray  # (k,)  eigenvalues e, none negative
    slopes: jnp.ndarray  # (k,)  derivatives s along the eigenvectors
    basis: Any  # (n, k)  eigenvectors v, or what multiplies like them


def damped_coordinates(model, shift):
    """Coordinates ``-s / (e + shift)`` of the damped step; 0 where s is."""
    total = model.values + shift
    usable = (model.slopes != 0) & (total > 0)
    return jnp.where(usable, -model.slopes / jnp.where(usable, total, 1), 0)


def decrease(model, coordinates):
    """What the model promises for a step, ``-m(d)``."""
    bend = 0.5 * model.values * coordinates**2
    return -jnp.sum(model.slopes * coordinates + bend)


def radius_shift(model, radius):
    """The shift with which the damped step has length ``radius``; 0 if it is shorter.

    Newton's method on the secular equation ``1/|d| = 1/radius``, which from the left of
    the root converges without overshooting (Conn, Gould and Toint, Trust-Region
    Methods, section 7.3).
    """
    size = jnp.linalg.norm(model.slopes)
    # Left of the root: no direction has more curvature than the largest, and the step
    # along none is longer than the whole. From further left lengths may overflow.
    lower = jnp.maximum(
        size / radius - jnp.max(model.values),
        jnp.max(jnp.abs(model.slopes) / radius - model.values),
    )
    tiny = jnp.finfo(size.dtype).tiny
    start = jnp.maximum(lower, tiny)

    def norm(shift):
        return jnp.linalg.norm(damped_coordinates(model, shift))

    def improve(carry):
        shift, length, count = carry
        total = jnp.maximum(model.values + shift, tiny)
        bend = jnp.sum(damped_coordinates(model, shift) ** 2 / total)
        shift = shift + (length / radius - 1) * length**2 / bend
        return shift, norm(shift), count + 1

    shift, *_ = lax.while_loop(
        lambda carry: (carry[1] > radius * (1 + 1e-6)) & (carry[2] < 60),
        improve,
        (start, norm(start), jnp.int32(0)),
    )
    return jnp.where(norm(jnp.zeros_like(shift)) <= radius, 0, shift)


def lanczos(product, gradient, *, rank, tol):
    """The quadratic model in the Krylov space of a gradient (n,), and the iterations.

    Lanczos' method with full reorthogonalisation for a positive semidefinite operator
    ``product``, in at most ``rank`` dimensions, ended when the solution of the
    projected Newton system leaves a relative residual below ``tol``. Ritz values and
    vectors beyond the space have no slope and value 0.
    """
    n = gradient.shape[0]
    rank = min(rank, n)
    size = jnp.linalg.norm(gradient)
    first = gradient / jnp.where(size > 0, size, 1)
    basis = jnp.zeros((n, rank), gradient.dtype).at[:, 0].set(first)
    matrix = jnp.zeros((rank, rank), gradient.dtype)
    inside = jnp.arange(rank, dtype=jnp.int32)

    def iterate(carry):
        basis, matrix, _, count = carry
        image = product(basis[:, count])
        # Twice is enough.
        along = basis.T @ image
        rest = image - basis @ along
        correction = basis.T @ rest
        rest = rest - basis @ correction
        along = along + correction
        matrix = matrix.at[:, count].set(along).at[count, :].set(along)
        length = jnp.linalg.norm(rest)
        count = count + 1
        # Less than this is rounding: the space is invariant.
        scale = jnp.max(jnp.abs(matrix))
        ended = length <= 100 * jnp.finfo(image.dtype).eps * scale
        following = jnp.where(ended, 0, rest / jnp.where(ended, 1, length))
        basis = jnp.where((inside == count)[None, :], following[:, None], basis)
        # Beyond the space the identity, so that the small system can be solved.
        used = inside < count
        square = jnp.where(used[:, None] & used[None, :], matrix, 0)
        square = square + jnp.diag((~used).astype(image.dtype))
        values, vectors = eigenpairs(square)
        floor = jnp.finfo(image.dtype).eps * jnp.max(values)
        solution = vectors @ (vectors[0] / jnp.maximum(values, floor))
        last = jnp.sum(jnp.where(inside == count - 1, solution, 0))
        return basis, matrix, jnp.where(ended, 0, jnp.abs(length * last)), count

    one = jnp.ones_like(size)
    start = basis, matrix, jnp.where(size > 0, one, 0), jnp.int32(0)
    basis, matrix, _, count = lax.while_loop(
        lambda carry: (carry[2] > tol) & (carry[3] < rank), iterate, start
    )
    used = inside < count
    basis = jnp.where(used[None, :], basis, 0)
    square = jnp.where(used[:, None] & used[None, :], matrix, 0)
    values, vectors = eigenpairs(square)
    return (
        SpectralModel(jnp.maximum(values, 0), size * vectors[0], basis @ vectors),
        count,
    )
