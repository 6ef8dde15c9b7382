r"""The Jacobian of residuals in the weights of a network, in factored form.

A residual depends on the output ``z = a M`` of an affine layer, rows ``a`` in, rows
``z`` out. With ``g`` its derivative in ``z``, its derivative in the matrix M is
``a^T g``, so that the inputs and the gradients of every layer, one backward pass for
all residuals, hold the whole Jacobian: products with it cost as much as the network,
and rows of it are multiplied out layer by layer only where a Gramian is formed.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

_BLOCK_ROWS = 512  # of a Gramian, of which only the lower half is formed


class Part(NamedTuple):
    """Rows of the Jacobian: N points with k residuals each.

    Exactly one of ``layers`` and ``dense`` is in use.
    """

    layers: tuple  # of (inputs (N, C, w), gradients (N, k, C, v)), one a layer; the
    # first inputs may be an object with times, transposed_times and products
    dense: jnp.ndarray  # (N k, n) where there are no factors, else (N k, 0)
    extra: jnp.ndarray  # (N k, c)  derivatives in further parameters


class Parameters(NamedTuple):
    """What the residuals are differentiated in."""

    layers: tuple  # of matrices (w, v)
    extra: jnp.ndarray  # (c,)


def forward(parts, direction):
    """``J v`` of shape (m,), for v like the parameters."""
    return jnp.concatenate([_part_forward(part, direction) for part in parts])


def _part_forward(part, direction):
    product = part.extra @ direction.extra
    if not part.layers:
        flat = [matrix.reshape(-1) for matrix in direction.layers]
        return product + part.dense @ jnp.concatenate(flat)
    for (inputs, gradients), matrix in zip(part.layers, direction.layers, strict=True):
        change = _times(inputs, matrix)[:, None]
        product = product + jnp.sum(gradients * change, axis=(2, 3)).reshape(-1)
    return product


def transposed(parts, y, parameters):
    """``J^T y``, like the parameters, for y of shape (m,)."""
    total, start = None, 0
    for part in parts:
        size = part.extra.shape[0]
        one = _part_transposed(part, y[start : start + size], parameters)
        total = one if total is None else _sum(total, one)
        start += size
    return total


def _part_transposed(part, y, parameters):
    extra = part.extra.T @ y
    if not part.layers:
        flat, matrices, start = y @ part.dense, [], 0
        for matrix in parameters.layers:
            piece = flat[start : start + matrix.size]
            matrices.append(piece.reshape(matrix.shape))
            start += matrix.size
        return Parameters(tuple(matrices), extra)
    matrices = []
    for inputs, gradients in part.layers:
        n = gradients.shape[0]
        weighted = jnp.einsum("nkcv,nk->ncv", gradients, y.reshape(n, -1))
        matrices.append(_transposed_times(inputs, weighted))
    return Parameters(tuple(matrices), extra)


def _is_factored(inputs):
    return hasattr(inputs, "products")


def _times(inputs, matrix):
    if _is_factored(inputs):
        return inputs.times(matrix)
    n, c, w = inputs.shape
    return (inputs.reshape(n * c, w) @ matrix).reshape(n, c, -1)


def _transposed_times(inputs, z):
    if _is_factored(inputs):
        return inputs.transposed_times(z)
    n, c, w = inputs.shape
    return inputs.reshape(n * c, w).T @ z.reshape(n * c, -1)


def _sum(a, b):
    layers = tuple(u + v for u, v in zip(a.layers, b.layers, strict=True))
    return Parameters(layers, a.extra + b.extra)


def pieces(parts):
    """J in pieces of columns, a list of functions each of which makes one.

    The further parameters come last.
    """
    extra = [lambda: jnp.concatenate([part.extra for part in parts])]
    if all(part.layers for part in parts):
        n_layers = len(parts[0].layers)
        return [lambda k=k: _of_layer(parts, k) for k in range(n_layers)] + extra
    return [lambda: jnp.concatenate([_weights(part) for part in parts]), *extra]


def _of_layer(parts, k):
    """The columns of a layer, of shape (m, w v)."""
    return jnp.concatenate([_multiplied(part, k) for part in parts])


def _multiplied(part, k):
    inputs, gradients = part.layers[k]
    if _is_factored(inputs):
        inputs = inputs.times(jnp.eye(inputs.width, dtype=gradients.dtype))
    product = jnp.einsum("ncw,nkcv->nkwv", inputs, gradients)
    return product.reshape(part.extra.shape[0], -1)


def _weights(part):
    """The columns of all layers of a part."""
    if not part.layers:
        return part.dense
    each = [_multiplied(part, k) for k in range(len(part.layers))]
    return jnp.concatenate(each, axis=1)


def dense(parts):
    """J itself, of shape (m, n)."""
    return jnp.concatenate([piece() for piece in pieces(parts)], axis=1)


def gramian(parts):
    """``J J^T`` of shape (m, m), summed over the layers, one of them at a time."""
    total, factored = None, _factored_layers(parts)
    for k in factored:
        total = _layer_gramian(*parts[0].layers[k])
    for k, piece in enumerate(pieces(parts)):
        rows = None if k in factored else piece()
        if rows is None or rows.shape[1] == 0:
            continue
        if total is not None:
            # One after the other, so that only one set of rows is alive.
            rows, total = lax.optimization_barrier((rows, total))
        product = symmetric_product(rows)
        total = product if total is None else total + product
    return total


def _factored_layers(parts):
    """Layers too wide to be multiplied out; of a single residual class."""
    if len(parts) > 1:
        return []
    return [k for k, (inputs, _) in enumerate(parts[0].layers) if _is_factored(inputs)]


def _layer_gramian(inputs, gradients):
    """The Gramian of a layer, from the inner products of inputs and of gradients."""
    n, k, c, v = gradients.shape
    flat = gradients.reshape(n * k * c, v)
    inner = (flat @ flat.T).reshape(n, k, c, n, k, c)
    product = jnp.einsum("icjd,ikcjld->ikjl", inputs.products(), inner)
    return product.reshape(n * k, n * k)


def symmetric_product(a):
    """``a a^T``: blocks below the diagonal are multiplied, then mirrored."""
    m = a.shape[0]
    if m <= _BLOCK_ROWS:
        return a @ a.T
    blocks = []
    for start in range(0, m, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, m)
        row = a[start:stop] @ a[:stop].T
        blocks.append(jnp.pad(row, ((0, 0), (0, m - stop))))
    lower = jnp.concatenate(blocks)
    return jnp.tril(lower) + jnp.tril(lower, -1).T


def normal_matrix(parts, row_scale=None):
    """``J^T J`` of shape (n, n), for fewer parameters than residuals."""
    rows = dense(parts)
    if row_scale is not None:
        rows = row_scale[:, None] * rows
    return symmetric_product(rows.T)


def row_squares(parts):
    """Squared lengths of the rows, the diagonal of the Gramian, of shape (m,)."""
    return sum(jnp.sum(piece() ** 2, axis=1) for piece in pieces(parts))


def columns(parts, chosen, row_scale=None):
    """Columns of the Gramian, of shape (m, k), with rows and columns scaled."""
    total = None
    for piece in pieces(parts):
        rows = piece()
        if total is not None:
            rows, total = lax.optimization_barrier((rows, total))
        product = rows @ rows[chosen].T
        total = product if total is None else total + product
    if row_scale is None:
        return total
    return row_scale[:, None] * total * row_scale[chosen][None]
