"""The FGN step of an affine head, and the spectrum of its matrix."""

from functools import partial

from sklearn_gn.arrays.libraries import in_either_library, library_of
from sklearn_gn.arrays.parts import all_rows, own_rows, total
from sklearn_gn.optim.fgn import solve_rows
from sklearn_gn.optim.multinomial import (
    all_classes,
    margins,
    root_curvature,
    to_columns,
)
from sklearn_gn.softmax_head.curvature import curvature_rows
from sklearn_gn.softmax_head.head import AffineHead, values


def fgn_direction(
    head,
    batch,
    features,
    penalty,
    shifts,
    intercept,
    n_competitors,
    cg_iterations,
    root_of=root_curvature,
):
    """The damped FGN step of an affine head, ``-(H + D)^-1 gradient``.

    Parameters
    ----------
    head : AffineHead
    batch : Batch
    features : array of shape (b, b), or (b of this device, b)
        Gram matrix ``h_i^T D^-1 h_j`` of the features with a one for the bias.
    penalty : array of shape (d, 1) or (1, 1)
        Factor of the squares of each row of the weights in the objective.
    shifts : tuple of two scalars
        The diagonal D, for the weights, where it may be of shape (d, 1), and for the
        bias.
    intercept : scalar
        1, or 0 where the bias stays zero.
    n_competitors : int
        Competitor directions of each example.
    cg_iterations : int
        Most steps of CG on the system; 0: Cholesky.
    root_of : callable, default=root_curvature
        Maps margins to the square roots of their curvatures.

    Returns
    -------
    AffineHead
    """
    on_weight, on_bias = shifts
    library = library_of((head, batch.x))
    xp = library.xp
    # 1. Margins: probabilities, curvatures, and the direction of each row.
    logits = values(head, batch.x)
    split = margins(all_classes(logits), batch.label)
    root, slope, by_class = curvature_rows(split, batch.weight, n_competitors, root_of)
    direction = to_columns(by_class)
    # What the gradient of the penalty adds, seen from row space: J D^-1 penalty W.
    if penalty.shape[0] == 1:
        pulled = penalty * (logits - head.bias[None, :]) / on_weight
    else:
        pulled = batch.x @ (penalty / on_weight * head.weight)
    if n_competitors:
        rows = 1 + n_competitors
        pulled = xp.repeat(pulled, rows, axis=0)
        features = xp.repeat(xp.repeat(features, rows, 0), rows, 1)
    slope = slope - root * root * library.row_products(direction, pulled)
    # 2. Gram matrix of the rows, of which each device computes its own.
    gram = all_rows(features * (direction @ all_rows(direction).T))
    # 3. The system in row space.
    size = total(xp.sum(batch.weight))
    y = solve_rows(gram, all_rows(root), all_rows(slope), size, cg_iterations)
    y = own_rows(y)
    # 4. Back to the parameters.
    back = y[:, None] * direction
    if n_competitors:
        back = xp.sum(back.reshape(len(batch.label), rows, -1), axis=1)
    return AffineHead(
        -(penalty * head.weight + total(batch.x.T @ back)) / on_weight,
        -intercept / on_bias * total(y @ direction),
    )


def n_competitors_of(rank, n_classes):
    """Directions of an example beside that of its margin; C - 2 are all there are."""
    return 0 if rank is None else min(rank - 1, max(n_classes - 2, 0))


@partial(in_either_library, static_argnames=("n_examples", "n_competitors"))
def row_spectrum(head, rows, intercept, n_examples, n_competitors):
    """Eigenvalues of the Gauss-Newton matrix of the first examples, descending.

    Those of the row Gram ``K / omega``, which has the same ones but for zeros.
    """
    x, label, weight = (a[:n_examples] for a in (rows.x, rows.label, rows.weight))
    library = library_of((head, rows))
    xp = library.xp
    split = margins(all_classes(values(head, x)), label)
    root, _, by_class = curvature_rows(split, weight, n_competitors)
    direction = root[:, None] * to_columns(by_class)
    repeats = 1 + n_competitors
    features = xp.repeat(xp.repeat(x @ x.T + intercept, repeats, 0), repeats, 1)
    gram = features * (direction @ direction.T) / xp.sum(weight)
    return library.eigvalsh(gram)[::-1]
