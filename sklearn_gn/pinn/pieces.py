"""Points in pieces of a few sizes, so that more points compile nothing.

A compiled function has one program for each number of points. Where a fit doubles its
points, draws others to judge by, or halves these for an estimate of the error, each of
its functions would be compiled again. All of them are called with pieces of one shape
instead: twice as many points make twice as many pieces of the same size. That is on a
CPU, which a piece keeps as busy as all points.
"""

from functools import partial

import jax
import numpy as np

from sklearn_gn.core.compilation import jit_by_size
from sklearn_gn.core.linear_algebra.jacobian import first_points
from sklearn_gn.pinn import residuals as of_points

_LEAST_RESIDUALS = 768  # in a piece, which has less than twice as many
_MOST_PIECES = 32


def cut(classes, batches):
    """Cut points into pieces of one shape.

    The last rows of a piece are copies of the last point, of weight zero, where the
    points of a class do not fill all pieces.

    Parameters
    ----------
    classes : tuple of ClassModel
    batches : tuple of Batch

    Returns
    -------
    list of tuple of Batch
        Each with a part of the points of every class. Their number is a power of two.
    """
    n = sum(
        len(batch.x) * kind.residual.n_outputs
        for kind, batch in zip(classes, batches, strict=True)
    )
    count = 1 << max(0, (n // _LEAST_RESIDUALS).bit_length() - 1)
    count = min(count, _MOST_PIECES)
    if count == 1:
        return [batches]
    return [tuple(_rows(batch, k, count) for batch in batches) for k in range(count)]


def serve(batches):
    """Whether the points are computed in pieces: on a CPU, and not divided."""
    leaves = jax.tree.leaves(batches)
    places = set().union(*(a.devices() for a in leaves if isinstance(a, jax.Array)))
    if not places:  # of NumPy
        place = jax.config.jax_default_device or jax.default_backend()
        return getattr(place, "platform", place) == "cpu"
    return len(places) == 1 and all(place.platform == "cpu" for place in places)


def residuals(model, net, batches):
    """Return the residuals of all points, in NumPy."""
    found = [_residuals(model, net, piece) for piece in cut(model.classes, batches)]
    return joined(model, batches, found)


def second_derivative(model, net, batches, direction):
    """Return that of the residuals along a change of the network, in NumPy."""
    found = [
        _second_derivative(model, net, piece, direction)
        for piece in cut(model.classes, batches)
    ]
    return joined(model, batches, found)


def class_residuals(model, kind, net, batch):
    """Return the residuals of a class as they are, in NumPy, of shape (N, k)."""
    found = [_of_class(model, kind, net, piece) for (piece,) in cut((kind,), (batch,))]
    return np.concatenate([np.asarray(piece) for piece in found])[: len(batch.x)]


_compiled = partial(jit_by_size, largest=0, medium=2**15)
_residuals = _compiled(of_points.residuals, static_argnames="model")
_second_derivative = _compiled(of_points.second_derivative, static_argnames="model")
_of_class = _compiled(
    of_points.class_residuals, static_argnames=("model", "class_model")
)


def parts_inside(batches, found):
    """Return the parts of a Jacobian, one class after the other, from those of pieces.

    Parameters
    ----------
    batches : tuple of Batch
        All points.
    found : list of list of Part
        In NumPy, one for each class, of every piece.

    Returns
    -------
    list of Part
        Without the rows that fill up the pieces.
    """
    if len(found) == 1:
        return found[0]
    parts = []
    for k, batch in enumerate(batches):
        length = _length(batch, len(found))
        for start, piece in zip(range(0, len(batch.x), length), found, strict=False):
            n = min(len(batch.x) - start, length)
            parts.append(first_points(piece[k], n, length))
    return parts


def joined(model, batches, found):
    """Residuals of all points, one class after the other, from those of the pieces.

    Parameters
    ----------
    model : Model
    batches : tuple of Batch
        All points.
    found : list of array of shape (m,)
        Residuals of the pieces, or what has as many entries.

    Returns
    -------
    array of shape (M,)
    """
    if len(found) == 1:
        return np.asarray(found[0])
    count, start, classes = len(found), 0, []
    for kind, batch in zip(model.classes, batches, strict=True):
        k = kind.residual.n_outputs
        stop = start + k * _length(batch, count)
        rows = np.concatenate([np.asarray(piece)[start:stop] for piece in found])
        classes.append(rows[: k * len(batch.x)])
        start = stop
    return np.concatenate(classes)


def _length(batch, count):
    """Rows of a class in each of the pieces."""
    return -(-len(batch.x) // count)


def _rows(batch, k, count):
    """A part of the points of a class."""
    n, length = len(batch.x), _length(batch, count)
    start, stop = k * length, (k + 1) * length
    x, data, scale = map(np.asarray, (batch.x, batch.data, batch.scale))
    if stop <= n:
        return batch._replace(
            x=x[start:stop], data=data[start:stop], scale=scale[start:stop]
        )
    rows = np.arange(start, stop)
    nearest = np.minimum(rows, n - 1)
    scale = np.where(rows < n, scale[nearest], scale.dtype.type(0))
    return batch._replace(x=x[nearest], data=data[nearest], scale=scale)
