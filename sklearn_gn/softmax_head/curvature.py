r"""The two parts of the softmax curvature, and the rows that FGN makes of them.

The covariance of the softmax splits into two positive semidefinite parts,

    diag(p) - p p^T = p_true p_rest a a^T  +  p_rest (diag(rho) - rho rho^T),
                      retained by FGN         dropped

(Korbit and Zanon, Theorem 3.1), with ``p_true``, ``p_rest``, ``rho`` and ``a`` as in
:mod:`sklearn_gn.optim.multinomial`. Beyond the paper, the leading directions of the
dropped part can be taken back (:func:`competitor_directions`).
"""

from sklearn_gn.arrays.libraries import library_of, namespace
from sklearn_gn.optim.multinomial import is_true_class, root_curvature


def curvature_rows(split, weight, n_competitors, root_of=root_curvature):
    """Rows of the whitened Jacobian in the logits, and the gradient in row space.

    Parameters
    ----------
    split : Margins
        Of b examples.
    weight : array of shape (b,)
    n_competitors : int
        Competitor directions of each example.
    root_of : callable, default=root_curvature
        Maps margins to the square roots of their curvatures.

    Returns
    -------
    root : array of shape (b * (1 + n_competitors),)
        Square roots of the curvatures, weights included: diag(S).
    slope : array of shape (b * (1 + n_competitors),)
        ``S r`` with the whitened residual r, ``w p_rest`` on the rows of the margins
        and zero on those of the competitors; finite where r itself overflows.
    direction : array of shape (b * (1 + n_competitors), C)
        The margin gradient of each example, then its competitor directions.
    """
    xp = namespace(split)
    first = xp.sqrt(weight) * root_of(split.margin)
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

    The covariance of rho splits like that of the softmax: the likeliest competitor
    against the others, and what is left among the others, in which the next splits off.
    With ``r_k`` the mass before competitor k is taken away,

        diag(rho) - rho rho^T = sum_k  rho_k r_{k+1} / r_k  v_k v_k^T,
        v_k = e_k - rho[the others] / r_{k+1},

    ends after C - 2 terms, so C - 2 directions give the whole covariance.

    Parameters
    ----------
    split : Margins
    n_competitors : int
        Number of directions; terms beyond C - 2 are zero.

    Returns
    -------
    curvature : array of shape (n, n_competitors)
        Curvature along each direction, the factor ``p_rest`` included.
    direction : array of shape (n, n_competitors, C)
    """
    xp = namespace(split)
    n, n_classes = split.rho.shape
    left = split.rho
    curvatures, directions = [], []
    for _ in range(n_competitors):
        first = is_true_class(xp.argmax(left, axis=1), n_classes)
        mass = xp.sum(left, axis=1)
        share = xp.max(left, axis=1)
        left = xp.where(first, 0, left)
        # Summed again: mass - share would lose the digits of a small remainder.
        remainder = xp.sum(left, axis=1)
        safe = xp.where(remainder > 0, remainder, 1)
        curvatures.append(
            split.p_rest * share * remainder / xp.where(mass > 0, mass, 1)
        )
        directions.append(first.astype(left.dtype) - left / safe[:, None])
    if not n_competitors:
        empty = xp.zeros((n, 0), split.rho.dtype)
        return empty, xp.zeros((n, 0, n_classes), split.rho.dtype)
    return xp.stack(curvatures, axis=1), xp.stack(directions, axis=1)


def dispersion(rho):
    """``xi = 1 - |rho|^2`` in [0, 1 - 1/(C - 1)]: how widely the error is spread."""
    return library_of(rho).row_products(rho, 1 - rho)


def traces(split):
    """Dispersion and traces of the two parts, each of shape (n,)."""
    xi = dispersion(split.rho)
    retained = split.p_true * split.p_rest * (2 - xi)
    return xi, retained, split.p_rest * xi


def retained_part(split):
    """``p_true p_rest a a^T`` of each example, of shape (n, C, C)."""
    a = split.gradient
    return (split.p_true * split.p_rest)[:, None, None] * a[:, :, None] * a[:, None, :]


def dropped_part(split):
    """``p_rest (diag(rho) - rho rho^T)`` of each example, of shape (n, C, C)."""
    rho = split.rho
    eye = namespace(rho).eye(rho.shape[1], dtype=rho.dtype)
    covariance = rho[:, :, None] * eye[None] - rho[:, :, None] * rho[:, None, :]
    return split.p_rest[:, None, None] * covariance
