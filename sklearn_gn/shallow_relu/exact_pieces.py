"""Whether the targets are linear in pieces, to rounding errors.

The evidence takes what a network misses for noise. A jump without noise needs two
neurons that are steep and close to each other; penalties hold them apart, and what is
left of the jump looks like noise. Neighbouring rows tell the difference: on a piece,
the plane through as many of them as a plane has coefficients passes through the next
one, which noise never does.
"""

import numpy as np

_LOOKED_AT = 200  # rows
_ROUNDING = 1e-10  # of the targets' size
_AGREE = 0.7  # share of these rows that lie on a plane of their neighbours
_ALONE = 0.02  # share of rows that do not, although the neighbours lie on one plane
_LOCAL = 0.25  # squared distance of neighbours, over the median of all rows
_BLOCK = 20  # rows whose distances to all others are computed together


def has_exact_pieces(rows):
    """Whether most distinct rows lie on planes of their neighbours, and few beside one.

    A constant with exceptions, such as counts that are mostly zero or labels, has rows
    that none of their neighbours agrees with.
    """
    n, d = rows.x.shape
    if n < 4 * (d + 2):
        return False
    looked_at = np.linspace(0, n - 1, min(n, _LOOKED_AT)).astype(np.intp)
    square = np.sum(rows.x**2, axis=1)
    agree, alone = [], []
    for start in range(0, len(looked_at), _BLOCK):
        some = looked_at[start : start + _BLOCK]
        distance = square - 2 * rows.x[some] @ rows.x.T
        distance[np.arange(len(some)), some] = np.inf
        near = np.argpartition(distance, d + 2, axis=1)[:, : d + 2]
        order = np.argsort(np.take_along_axis(distance, near, 1), axis=1)
        near = np.take_along_axis(near, order, 1)
        # In many dimensions the nearest rows are about as far as any.
        far = np.median(distance, axis=1)
        local = np.take_along_axis(distance, near[:, -1:], 1)[:, 0] < _LOCAL * far
        on_plane = _on_plane(rows, some, near[:, :-1])
        agree.append(local & on_plane)
        alone.append(~on_plane & _on_plane(rows, near[:, -1], near[:, :-1]))
    agree, alone = np.concatenate(agree), np.concatenate(alone)
    return bool(np.mean(agree) > _AGREE and np.mean(alone) <= _ALONE)


def _on_plane(rows, some, others):
    """Whether rows lie on the planes through others, of shape (len(some), 1 + d)."""
    x, y = rows.x[others], rows.y[others]
    ones = np.ones((*others.shape, 1))
    design = np.concatenate([ones, x - rows.x[some][:, None]], axis=2)
    plane = np.linalg.pinv(design, rcond=1e-9)  # its first row is the value at the row
    left = np.einsum("ij,ijk->ik", plane[:, 0], y) - rows.y[some]
    size = 1 + np.sum(np.abs(plane[:, 0]), axis=1)
    return np.max(np.abs(left), axis=1) < _ROUNDING * size
