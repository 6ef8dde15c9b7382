r"""The Jacobian of residuals in the weights of a network, in factored form.

A residual depends on the output ``z = a M`` of an affine layer, rows ``a`` in, rows
``z`` out. With ``g`` its derivative in ``z``, its derivative in the matrix M is
``a^T g``, so that the inputs and the gradients of every layer, one backward pass for
all residuals, hold the whole Jacobian: products with it cost as much as the network,
and rows of it are multiplied out layer by layer only where a Gramian is formed.

Where the points are divided among devices, sums over rows are summed over these too,
and all rows are in the order of the devices.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.arrays.blocks import (
    BLOCK_ROWS,
    LEAST_ROWS,
    sum_rows,
    symmetric_of,
    symmetric_product_of,
)
from sklearn_gn.arrays.collectives import AXIS, all_rows, n_devices, total
from sklearn_gn.arrays.libraries import NumPy, library_of, namespace
from sklearn_gn.arrays.trees import add, select


class Part(NamedTuple):
    """Rows of the Jacobian: N points with k residuals each.

    Exactly one of ``layers`` and ``dense`` is in use.
    """

    # Of (inputs (N, C, w), gradients (N, k, C, v)), one a layer; the first inputs may
    # be ScaledAxes.
    layers: tuple
    dense: jnp.ndarray  # (N k, n) where there are no factors, else (N k, 0)
    extra: jnp.ndarray  # (N k, c)  derivatives in further parameters


class ScaledAxes(NamedTuple):
    """Rows of an embedding that scales single axes: values, and unit vectors.

    In very many dimensions these are not multiplied out. With n points, s axes:
    ``(values_i, slopes_1 e_axes_1, ..., slopes_s e_axes_s, 0, ...)``, ``size`` rows.
    """

    values: jnp.ndarray  # (n, n_inputs)
    axes: jnp.ndarray  # (s,)
    slopes: jnp.ndarray  # (s,)
    zeros: jnp.ndarray  # (size - 1 - s,)

    @property
    def size(self):
        """Number of rows of a point."""
        return 1 + self.axes.shape[0] + self.zeros.shape[0]

    @property
    def shape(self):
        """That of the array which it stands for, a column for the bias included."""
        return self.values.shape[0], self.size, self.values.shape[1] + 1

    def times(self, matrix):
        """Rows after an affine layer, of shape (n, size, n_outputs)."""
        n = self.values.shape[0]
        values = self.values @ matrix[:-1] + matrix[-1][None]
        first = self.slopes[:, None] * matrix[self.axes]
        first = jnp.concatenate([first, self.zeros[:, None] * matrix[:1]])
        first = jnp.broadcast_to(first, (n, *first.shape))
        return jnp.concatenate([values[:, None], first], axis=1)

    def transposed_times(self, z):
        """The transpose of ``times``, for z of shape (n, size, n_outputs)."""
        s = self.axes.shape[0]
        change = self.values.T @ z[:, 0]
        unit = self.slopes[:, None] * jnp.sum(z[:, 1 : 1 + s], axis=0)
        change = change.at[self.axes].add(unit)
        return jnp.concatenate([change, jnp.sum(z[:, 0], axis=0)[None]])

    def products(self, other):
        """Inner products (n, size, m, size) with rows of the same axes."""
        n, m, s = len(self.values), len(other.values), self.axes.shape[0]
        found = jnp.zeros((n, self.size, m, self.size), self.values.dtype)
        found = found.at[:, 0, :, 0].set(self.values @ other.values.T + 1)
        mixed = self.values[:, self.axes] * self.slopes[None]  # (n, s)
        every = jnp.broadcast_to(mixed[:, None], (n, m, s))
        found = found.at[:, 0, :, 1 : 1 + s].set(every)
        mixed = other.values[:, self.axes] * self.slopes[None]  # (m, s)
        every = jnp.broadcast_to(mixed.T[None], (n, s, m))
        found = found.at[:, 1 : 1 + s, :, 0].set(every)
        equal = (self.axes[:, None] == self.axes[None]).astype(self.values.dtype)
        equal = equal * self.slopes[:, None] * self.slopes[None]
        equal = jnp.broadcast_to(equal[None, :, None], (n, s, m, s))
        return found.at[:, 1 : 1 + s, :, 1 : 1 + s].set(equal)


class Parameters(NamedTuple):
    """What the residuals are differentiated in."""

    layers: tuple  # of matrices (w, v)
    extra: jnp.ndarray  # (c,)


def forward(parts, direction):
    """``J v`` of shape (m,), for v like the parameters."""
    products = []
    for part in parts:
        product = part.extra @ direction.extra
        if part.layers:
            for layer, matrix in zip(part.layers, direction.layers, strict=True):
                change = layer[1] * _times(layer[0], matrix)[:, None]
                product = product + jnp.sum(change, axis=(2, 3)).reshape(-1)
        else:
            flat = [matrix.reshape(-1) for matrix in direction.layers]
            product = product + part.dense @ _one_after_another(flat)
        products.append(product)
    return _one_after_another(products)


def transposed(parts, y, parameters):
    """``J^T y``, like the parameters, for y of shape (m,)."""
    found, start = None, 0
    for part in parts:
        size = part.extra.shape[0]
        one = _part_transposed(part, y[start : start + size], parameters)
        found = one if found is None else add(found, 1, one)
        start += size
    return total(found)


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
        n, _, c, v = gradients.shape
        weighted = jnp.einsum("nkcv,nk->ncv", gradients, y.reshape(n, -1))
        if isinstance(inputs, ScaledAxes):
            matrices.append(inputs.transposed_times(weighted))
        else:
            rows = inputs.reshape(n * c, -1)
            matrices.append(rows.T @ weighted.reshape(n * c, v))
    return Parameters(tuple(matrices), extra)


def _times(inputs, matrix):
    if isinstance(inputs, ScaledAxes):
        return inputs.times(matrix)
    n, c, w = inputs.shape
    return (inputs.reshape(n * c, w) @ matrix).reshape(n, c, -1)


def _multiplied(inputs, gradients):
    """The columns of a layer for the points of a part, of shape (N k, w v)."""
    n, k, c, _ = gradients.shape
    if isinstance(inputs, ScaledAxes):
        inputs = inputs.times(jnp.eye(inputs.shape[2], dtype=gradients.dtype))
    # A sum of outer products, which compiles to one pass over the result.
    product = sum(
        inputs[:, None, e, :, None] * gradients[:, :, e, None, :] for e in range(c)
    )
    return product.reshape(n * k, -1)


def multiplied(part):
    """The columns of all layers of a part."""
    if not part.layers:
        return part.dense
    return _one_after_another([_multiplied(*layer) for layer in part.layers], axis=1)


def multiplied_out(parts):
    """One part with the rows of all, without factors, in NumPy."""
    extra = np.concatenate([part.extra for part in parts])
    sizes = [part.extra.shape[0] for part in parts]
    n = sum(inputs.shape[2] * g.shape[3] for inputs, g in parts[0].layers)
    n = n or parts[0].dense.shape[1]
    rows = np.empty((sum(sizes), n), parts[0].extra.dtype)
    for part, own in zip(parts, np.split(rows, np.cumsum(sizes)[:-1]), strict=True):
        if not part.layers:
            own[:] = part.dense
        start = 0
        for inputs, gradients in part.layers:
            if isinstance(inputs, ScaledAxes):
                inputs = np.asarray(inputs.times(np.eye(inputs.shape[2])))
            (count, k, _, v), w = gradients.shape, inputs.shape[2]
            place = own[:, start : start + w * v]
            start += w * v
            # A view, as are all divisions of an axis.
            place = place.reshape(count, k, w, v)
            np.matmul(inputs.swapaxes(1, 2)[:, None], gradients, out=place)
    return [Part((), rows, extra)]


def _one_after_another(arrays, axis=0):
    """The arrays as one, of the library that they are of."""
    return namespace(tuple(arrays)).concatenate(arrays, axis=axis)


def without_dense(parts):
    """Arrays of the parts but for the dense ones, which only matrix products read."""
    return [(part.layers, part.extra) for part in parts]


def gramian(parts):
    """``J J^T`` of shape (m, m), from blocks of pairs of parts.

    Of several devices each multiplies its rows with the rows of the next half of the
    devices, so that each pair of devices is multiplied once; two that are opposite to
    each other share the work.
    """
    count, dtype = n_devices(), parts[0].extra.dtype
    if count == 1:
        return _own_gramian(parts)
    n = sum(part.extra.shape[0] for part in parts)

    here = lax.axis_index(AXIS)

    def placed(block, row, column):
        whole = jnp.zeros((count * n, count * n), dtype)
        return lax.dynamic_update_slice(whole, block, (row * n, column * n))

    diagonal = placed(_own_gramian(parts), here, here)
    lower = jnp.zeros_like(diagonal)
    for distance in range(1, count // 2 + 1):
        # The rows of the device whose number is larger by the distance, cyclically.
        moves = [((k + distance) % count, k) for k in range(count)]
        others, after = lax.ppermute(parts, AXIS, moves), (here + distance) % count
        if 2 * distance == count:
            ends = jnp.minimum(here, after), jnp.maximum(here, after)
            lower = lower + placed(_half_of_blocks(parts, others), *ends)
        else:
            lower = lower + placed(_blocks(parts, others), here, after)
    return total(diagonal + lower + lower.T)


def _own_gramian(parts):
    if len(parts) == 1:
        return _own_block(parts[0])
    return symmetric_of(
        [
            [_block(part, other) for other in parts[:i]] + [_own_block(part)]
            for i, part in enumerate(parts)
        ]
    )


def _blocks(parts, others):
    """``J J_other^T`` for the rows of two devices."""
    return jnp.concatenate(
        [
            jnp.concatenate(
                [_block(part, other, i == j) for j, other in enumerate(others)], axis=1
            )
            for i, part in enumerate(parts)
        ]
    )


def _half_of_blocks(parts, others):
    """Half of the rows of ``_blocks`` for the two devices, the lower one first.

    The lower device multiplies the first half of its points, the other one the second
    half of these; the rest is zero.
    """
    lower = lax.axis_index(AXIS) < n_devices() // 2
    first, second = select(lower, parts, others), select(lower, others, parts)
    half = [
        _of_some_points(part, lambda a: jnp.where(lower, *jnp.split(a, 2)))
        for part in first
    ]
    rows, found = _blocks(half, second), []
    for part in half:
        own, rows = rows[: len(part.extra)], rows[len(part.extra) :]
        found += [jnp.where(lower, own, 0), jnp.where(lower, 0, own)]
    return jnp.concatenate(found)


def first_points(part, n, n_all):
    """The first n of all points of a part."""
    return _of_some_points(part, lambda a: a[: len(a) * n // n_all])


def _of_some_points(part, take):
    layers = tuple(
        (
            inputs._replace(values=take(inputs.values))
            if isinstance(inputs, ScaledAxes)
            else take(inputs),
            take(gradients),
        )
        for inputs, gradients in part.layers
    )
    return Part(layers, take(part.dense), take(part.extra))


def _own_block(part):
    """``J J^T`` of a part, summed over the layers."""
    found, outer = part.extra @ part.extra.T, []
    if not part.layers:
        return found + library_of(part.dense).symmetric_product(part.dense)
    for k, (inputs, gradients) in enumerate(part.layers):
        if isinstance(inputs, ScaledAxes) or _cheaper(part, part, k, 0.5):
            found = found + _from_inner_products(part, part, k)
        else:
            outer.append((inputs, gradients))
    if not outer:
        return found
    n, rows_each = part.layers[0][1].shape[:2]
    return found + symmetric_product_of(
        lambda own, inputs, gradients: _multiplied(inputs[own], gradients[own]),
        n,
        rows_each,
        outer,
    )


def _block(part, other, same_class=False):
    """``J_part J_other^T``, summed over the layers."""
    found = part.extra @ other.extra.T
    if not (part.layers and other.layers):
        return found + multiplied(part) @ multiplied(other).T
    for k in range(len(part.layers)):
        factored = same_class and isinstance(part.layers[k][0], ScaledAxes)
        if factored or _cheaper(part, other, k, 1.0):
            found = found + _from_inner_products(part, other, k)
        else:
            # One layer's rows are alive at a time.
            (own, its), found = lax.optimization_barrier(
                ((part.layers[k], other.layers[k]), found)
            )
            found = found + _multiplied(*own) @ _multiplied(*its).T
    return found


def _cheaper(part, other, k, share):
    """Whether inner products of inputs and of gradients make fewer operations.

    They do where points have one row, as on a boundary. A product of matrices is worth
    two of single numbers.
    """
    if isinstance(part.layers[k][0], ScaledAxes) or isinstance(
        other.layers[k][0], ScaledAxes
    ):
        return False
    (_, p, c, v), (_, q, e, _) = (x.layers[k][1].shape for x in (part, other))
    w = part.layers[k][0].shape[2]
    inner = c * e * (w + p * q * (v + 1))
    return 2 * inner < share * p * q * w * v


def _from_inner_products(part, other, k):
    """A layer's share of a block, without multiplying it out."""
    (a, g), (b, h) = part.layers[k], other.layers[k]
    (n, p, c, v), (m, q, e, _) = g.shape, h.shape
    if isinstance(a, ScaledAxes):  # of a class with itself
        inputs = a.products(b)
    else:
        inputs = a.reshape(n * c, -1) @ b.reshape(m * e, -1).T
        inputs = inputs.reshape(n, c, m, e)
    gradients = g.reshape(n * p * c, v) @ h.reshape(m * q * e, v).T
    gradients = gradients.reshape(n, p, c, m, q, e)
    product = jnp.sum(inputs[:, None, :, :, None, :] * gradients, axis=(2, 5))
    return product.reshape(n * p, m * q)


def normal_matrix(parts):
    """``J^T J`` of shape (n, n), for fewer parameters than residuals.

    Rows are multiplied out in blocks of points.
    """
    found = []
    for part in parts:
        if library_of(part.dense) is NumPy or any(
            isinstance(inputs, ScaledAxes) for inputs, _ in part.layers
        ):
            found.append(total(_normal_matrix_of_points(part)))
            continue
        n = part.layers[0][1].shape[0] if part.layers else part.extra.shape[0]
        missing = -n % LEAST_ROWS if n > BLOCK_ROWS else 0
        by_points = part._replace(
            dense=part.dense.reshape(n, len(part.dense) // n, part.dense.shape[1]),
            extra=part.extra.reshape(n, len(part.extra) // n, part.extra.shape[1]),
        )
        filled = jax.tree.map(  # the last block, with derivatives of zero
            lambda a, m=missing: jnp.pad(a, [(0, m)] + [(0, 0)] * (a.ndim - 1)),
            by_points,
        )
        found.append(sum_rows(_normal_matrix_of_points, filled))
    return sum(found)


def _normal_matrix_of_points(part):
    """``J^T J`` of a part whose rows may stand point by point."""
    dense, extra = (
        a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        for a in (part.dense, part.extra)
    )
    rows = multiplied(part._replace(dense=dense, extra=extra))
    if extra.shape[1]:
        rows = _one_after_another([rows, extra], axis=1)
    return library_of(rows).symmetric_product(rows.T)


def columns(parts, chosen):
    """Columns of the Gramian, of shape (m, k).

    Each of several devices chooses some of its rows, and has its rows of the columns of
    all. Rows are multiplied out for one layer at a time.
    """
    extra = _one_after_another([part.extra for part in parts])
    found = extra @ all_rows(extra[chosen]).T
    factored = all(part.layers for part in parts)
    for k in range(len(parts[0].layers) if factored else 1):
        rows = [_multiplied(*p.layers[k]) if factored else multiplied(p) for p in parts]
        rows = _one_after_another(rows)
        if library_of(rows) is not NumPy:
            rows, found = lax.optimization_barrier((rows, found))
        found = found + rows @ all_rows(rows[chosen]).T
    return found
