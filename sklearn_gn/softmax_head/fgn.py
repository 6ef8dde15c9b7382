r"""FGN: the step of fast Gauss-Newton for the multiclass cross-entropy.

Korbit and Zanon, "Fast Gauss-Newton for multiclass cross-entropy", Algorithm 1. The
covariance of the softmax splits into two positive semidefinite parts,

    diag(p) - p p^T = p_true p_rest a a^T  +  p_rest (diag(rho) - rho rho^T),
                      retained by FGN         dropped

(their Theorem 3.1), with ``p_true``, ``p_rest``, ``rho`` and ``a`` as in
:mod:`sklearn_gn.optim.multinomial`. What is retained, true class against the rest, has
rank one:

    H = 1/omega J^T Q J,   Q = diag(w_i p_true p_rest),   omega = sum w_i,

with one row of J, the gradient of the margin, for each example of a mini-batch. The
damped step is solved in the space of the rows; for an affine head their Gram matrix has
a closed form, the elementwise product of two small ones. Beyond the paper, more rows
for each example bring back the leading part of what was dropped.
"""

from functools import partial
from typing import NamedTuple

from sklearn_gn._typing import Array
from sklearn_gn.arrays.collectives import all_rows, own_rows, total
from sklearn_gn.arrays.libraries import in_either_library, library_of, namespace
from sklearn_gn.linalg.factors import factor, spectrum
from sklearn_gn.linalg.krylov import conjugate_gradient
from sklearn_gn.optim.multinomial import (
    all_classes,
    margins,
    root_curvature,
    to_columns,
)
from sklearn_gn.softmax_head.head import AffineHead, values

LARGEST_GRAM = 1024  # rows of a matrix that is factorised as a whole


class Batch(NamedTuple):
    """One mini-batch."""

    x: Array
    label: Array
    weight: Array
    gram: Array | None


def fgn_direction(
    head, batch, features, penalty, shifts, intercept, n_competitors=0, cg_iterations=0
):
    """The damped FGN step of an affine head, ``-(H + D)^-1 gradient``.

    ``features`` of shape (b, b), or (b of this device, b), is the Gram matrix
    ``h_i^T D^-1 h_j`` with a one for the bias, and ``shifts`` the diagonal D, for the
    weights and for the bias. Without ``cg_iterations`` the system is factorised.
    """
    on_weight, on_bias = shifts
    library = library_of((head, batch.x))
    xp = library.xp
    # 1. Margins: probabilities, curvatures, and the direction of each row.
    logits = values(head, batch.x)
    split = margins(all_classes(logits), batch.label)
    root, slope, by_class = curvature_rows(split, batch.weight, n_competitors)
    direction = to_columns(by_class)
    # What the gradient of the penalty adds, seen from row space: J D^-1 penalty W.
    pulled = penalty * (logits - head.bias[None, :]) / on_weight
    if n_competitors:
        rows = 1 + n_competitors
        pulled = xp.repeat(pulled, rows, axis=0)
        features = xp.repeat(xp.repeat(features, rows, 0), rows, 1)
    slope = slope - root * root * library.row_products(direction, pulled)
    # 2. Gram matrix of the rows, of which each device computes its own.
    gram = all_rows(features * (direction @ all_rows(direction).T))
    # 3. The system in row space, with the damping in the Gram matrix G,
    #     (S G S + omega I) u = S^-1 slope,   y = S u.
    # Multiplied out, omega y = slope - S (S G S + omega I)^-1 S G slope, nothing
    # overflows at any margin, while the whitened residual does; and CG meets only right
    # sides in the range of S.
    size = total(xp.sum(batch.weight))
    root, slope = all_rows(root), all_rows(slope)
    matrix, right = root[:, None] * gram * root[None, :], root * (gram @ slope)
    if cg_iterations:
        tol = xp.asarray(1e-5, right.dtype)
        v, *_ = conjugate_gradient(
            lambda v: matrix @ v + size * v, right, tol=tol, max_iter=cg_iterations
        )
    else:
        v = factor(matrix, size).solve(right)
    y = own_rows((slope - root * v) / size)
    # 4. Back to the parameters.
    back = y[:, None] * direction
    if n_competitors:
        back = xp.sum(back.reshape(len(batch.label), rows, -1), axis=1)
    return AffineHead(
        -(penalty * head.weight + total(batch.x.T @ back)) / on_weight,
        -intercept / on_bias * total(y @ direction),
    )


def curvature_rows(split, weight, n_competitors):
    """Rows of the whitened Jacobian in the logits, and the gradient in row space.

    Of b examples with c competitor directions each: the roots S of the curvatures, and
    ``S r``, finite where the whitened residual r overflows, both (b (1 + c),); and the
    gradient of each margin and its competitor directions, (b (1 + c), C).
    """
    xp = namespace(split)
    first = xp.sqrt(weight) * root_curvature(split.margin)
    if not n_competitors:
        return first, weight * split.p_rest, split.gradient
    curvature, others = competitor_directions(split, n_competitors)
    root = xp.concatenate(
        [first[:, None], xp.sqrt(weight[:, None] * curvature)], axis=1
    )
    slope = xp.concatenate(
        [(weight * split.p_rest)[:, None], xp.zeros_like(curvature)], axis=1
    )
    direction = xp.concatenate([split.gradient[:, None, :], others], axis=1)
    return root.ravel(), slope.ravel(), direction.reshape(-1, direction.shape[-1])


def competitor_directions(split, n_competitors):
    r"""Leading directions of the dropped part, one more competitor at a time.

    The covariance of rho splits like the softmax's: the likeliest competitor against
    the others, and what is left among the others, in which the next splits off. With
    ``r_k`` the mass before competitor k is taken away,

        diag(rho) - rho rho^T = sum_k  rho_k r_{k+1} / r_k  v_k v_k^T,
        v_k = e_k - rho[the others] / r_{k+1},

    ends after C - 2 terms. Returns the curvatures, (n, n_competitors) and with the
    factor ``p_rest``, and the directions, (n, n_competitors, C).
    """
    xp, left = namespace(split), split.rho
    n, n_classes = left.shape
    curvatures = [xp.zeros((n, 0), left.dtype)]
    directions = [xp.zeros((n, 0, n_classes), left.dtype)]
    for _ in range(n_competitors):
        largest = xp.argmax(left, axis=1)
        first = largest[:, None] == xp.arange(n_classes, dtype=largest.dtype)[None]
        mass, share = xp.sum(left, axis=1), xp.max(left, axis=1)
        left = xp.where(first, 0, left)
        # Summed again: mass - share would lose the digits of a small remainder.
        remainder = xp.sum(left, axis=1)
        safe = xp.where(remainder > 0, remainder, 1)
        curvature = split.p_rest * share * remainder / xp.where(mass > 0, mass, 1)
        curvatures.append(curvature[:, None])
        directions.append((first.astype(left.dtype) - left / safe[:, None])[:, None])
    return xp.concatenate(curvatures, axis=1), xp.concatenate(directions, axis=1)


@partial(in_either_library, static_argnames="n_competitors")
def row_spectrum(logits, gram, label, weight, n_competitors):
    """Eigenvalues of the Gauss-Newton matrix of some examples, descending."""
    library = library_of((logits, gram))
    xp, repeats = library.xp, 1 + n_competitors
    split = margins(all_classes(logits), label)
    root, _, by_class = curvature_rows(split, weight, n_competitors)
    direction = root[:, None] * to_columns(by_class)
    gram = xp.repeat(xp.repeat(gram, repeats, 0), repeats, 1)
    gram = gram * (direction @ direction.T) / xp.sum(weight)
    return spectrum(gram)
