"""Points in pieces of one shape, so that more points compile nothing.

A compiled function has one program for each number of points. Where a fit doubles its
points, draws others to judge by, or halves these for an estimate of the error, each of
its functions would be compiled again. On a CPU, which a piece keeps as busy as all
points, these functions are called with pieces of one shape instead: twice as many
points make twice as many pieces of the same size.
"""

from functools import partial

import jax
import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.arrays.devices import by_rows
from sklearn_gn.arrays.threads import in_threads
from sklearn_gn.arrays.trees import dimension
from sklearn_gn.linalg import jacobian as operators
from sklearn_gn.linalg.factors import joined_triangles, upper_factor
from sklearn_gn.linalg.jacobian import Parameters
from sklearn_gn.pinn import residuals as of_points
from sklearn_gn.pinn.model import Richer

_LEAST_RESIDUALS = 768  # in a piece, which has less than twice as many
_BITS = 5  # leading ones of the numbers of points
# Numbers in a Jacobian that is multiplied out. Beyond, the products of several threads
# are worth seconds of compilation.
SMALL_JACOBIAN = 2**25


def serve(batches):
    """Whether the points are computed in pieces: on a CPU, and not divided."""
    leaves = jax.tree.leaves(batches)
    places = set().union(*(a.devices() for a in leaves if isinstance(a, jax.Array)))
    if not places:  # of NumPy
        place = jax.config.jax_default_device or jax.default_backend()
        return getattr(place, "platform", place) == "cpu"
    return len(places) == 1 and all(place.platform == "cpu" for place in places)


def cut(classes, batches, like=None):
    """Cut points into pieces of the shape of ``like``, padded by weights of zero."""
    like = batches if like is None else like
    count = sum(of_points.residual_counts(classes, like)) // _LEAST_RESIDUALS
    count = 1 << max(0, count.bit_length() - 1)
    shares = [-(-len(batch.x) // count) for batch in like]
    # One of sixteen numbers to an octave.
    steps = [1 << max(0, share.bit_length() - _BITS) for share in shares]
    lengths = [-(-n // step) * step for n, step in zip(shares, steps, strict=True)]
    if lengths == [len(batch.x) for batch in batches]:
        return [batches]
    pairs = list(zip(batches, lengths, strict=True))
    return [
        tuple(batch.at(np.arange(k * n, (k + 1) * n)) for batch, n in pairs)
        for k in range(max(-(-len(batch.x) // n) for batch, n in pairs if n))
    ]


def residuals(model, net, batches, like=None):
    """Return the residuals of all points, in NumPy; ``like`` as for :func:`cut`."""
    parts = cut(model.classes, batches, like)
    return joined(model, batches, parts, [_residuals(model, net, p) for p in parts])


def class_residuals(model, kind, net, batch):
    """Return the residuals of a class as they are, in NumPy, of shape (N, k)."""
    parts = cut((kind,), (batch,))
    found = [np.asarray(_of_class(model, kind, net, part)) for (part,) in parts]
    return np.concatenate(found)[: len(batch.x)]


_compiled = partial(jit_by_size, largest=0, medium=2**15)
_residuals = _compiled(of_points.residuals, static_argnames="model")
_of_class = _compiled(of_points.class_residuals, static_argnames=("model", "kind"))


def linear_system(model, net, batches):
    """Network, batches, residuals and Jacobian; in NumPy where they are small."""
    n_residuals = sum(of_points.residual_counts(model.classes, batches))
    is_small = n_residuals * dimension(net) <= SMALL_JACOBIAN
    if not (is_small and serve(batches)):
        return net, batches, *compiled_jacobian(model, net, batches)
    r, parts = jacobian(model, net, batches)
    return *backend.views((net, batches)), r, operators.multiplied_out(parts)


# Compiled apart from what uses it: products that read the factors many times over would
# otherwise compute them again each time.
compiled_jacobian = by_rows(
    of_points.jacobian,
    partial(jit_by_size, largest=2**10, medium=2**15, static_argnames="model"),
    rows_out=of_points.rows_of_jacobian,
    static=("model",),
)


def jacobian(model, net, batches):
    """Residuals and parts of their Jacobian in NumPy, one of a class for each piece."""
    parts = cut(model.classes, batches)
    found = [jacobian_of_piece(model, net, part) for part in parts]
    r = joined(model, batches, parts, [r for r, _ in found])
    if parts[0] is batches:
        return r, found[0][1]
    inside = []  # without rows that fill up the pieces
    for k, batch in enumerate(batches):
        length = len(parts[0][k].x)
        for j, (_, one) in enumerate(found):
            n = min(len(batch.x) - j * length, length)
            if n > 0:
                inside.append(operators.first_points(one[k], n, length))
    return r, inside


def jacobian_of_piece(model, net, piece):
    """The same for a single piece, of one part a class."""
    in_rows = all(kind.rows is not None for kind in model.classes)
    if not (isinstance(net, Richer) and in_rows):
        return backend.views(compiled_jacobian(model, net, piece))
    n = net.layers[0].shape[1] // 2
    first, second, *others = net.layers
    layers = np.vstack([second[:n], second[2 * n :]]), *others
    (r, parts), (_, new) = (
        jacobian_of_piece(model, Parameters((half, *layers), net.extra), piece)
        for half in (first[:, :n], first[:, n:])
    )
    found = []
    for part, more in zip(parts, new, strict=True):
        (points, gradients), (inputs, slopes), *rest = part.layers
        neurons = more.layers[1][0][..., :n]
        inputs = np.concatenate([inputs[..., :n], neurons, inputs[..., n:]], axis=-1)
        gradients = np.concatenate([gradients, np.zeros_like(gradients)], axis=-1)
        all_layers = (points, gradients), (inputs, slopes), *rest
        found.append(part._replace(layers=all_layers))
    return r, found


def dense_jacobian_of_piece(model, net, piece):
    """Residuals of a piece and all columns of their Jacobian, in NumPy."""
    r, parts = jacobian_of_piece(model, net, piece)
    (part,) = operators.multiplied_out(parts)
    return r, np.hstack([part.dense, part.extra]) if part.extra.size else part.dense


def factor_over_pieces(model, net, points, like=None):
    """Triangular factor of ``[J, r]`` of all points; ``like`` as in ``cut``.

    J has a multiple of the unit matrix below, at rounding level: solutions are as good
    as those of least norm.
    """
    n, rows, root = dimension(net) + 1, [], None
    pieces = cut(model.classes, points, like)
    for k, piece in enumerate(pieces, 1):
        r, own = dense_jacobian_of_piece(model, net, piece)
        rows.append(np.column_stack([own, r]))
        if k < len(pieces) and sum(map(len, rows)) < 4 * n:
            continue
        # Two tall matrices are factored side by side, and their triangles joined.
        middle = (len(rows) + 1) // 2
        parts = filter(None, (rows[:middle], rows[middle:]))
        for part in in_threads([partial(upper_factor, *own) for own in parts]):
            if root is None:
                largest = np.linalg.norm(part[:, :-1], axis=0).max()
                root = n * np.finfo(float).eps * largest * np.eye(n)
                root[-1, -1] = 0
            root = joined_triangles(root, part)
        rows = []
    return root


def joined(model, batches, parts, found):
    """Residuals (M,) of all points from the pieces, class after class."""
    found = list(map(np.asarray, found))
    if parts[0] is batches:
        return found[0]
    classes, start = [], 0
    for kind, batch, part in zip(model.classes, batches, parts[0], strict=True):
        k = kind.n_outputs
        stop = start + k * len(part.x)
        rows = np.concatenate([one[start:stop] for one in found])
        classes.append(rows[: k * len(batch.x)])
        start = stop
    return np.concatenate(classes)
