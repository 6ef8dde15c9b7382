r"""Products with Gauss-Newton matrices of large networks, never formed themselves.

The network is one of layers with a linear term and a squared loss,

    u(x) = C^T f(x),    f = (1, x, a_L),    a_l = s_l(W_l (1, a_{l-1})),

and its parameters stand in one vector: C by rows, then the rows of each W_l. With the
derivatives g_l[t, j] of value t in neuron j of layer l, the product of the Jacobian of
a row and a direction (C', W') is

    C'^T f + sum_l sum_j g_l[:, j] (W'_l (1, a_{l-1}))_j,

so products of J^T W J with many vectors are matrix products, layer by layer, and cost
as much as two passes through the network for each of them. What an iteration needs of
the matrix beyond products comes from a low-rank approximation
(:mod:`sklearn_gn.bayes.low_rank`).
"""

from typing import NamedTuple

import numpy as np

from sklearn_gn.arrays.trees import Record
from sklearn_gn.linalg import factors


class LayerRows(NamedTuple):
    """What one layer does with some rows."""

    inputs: np.ndarray  # (1 + inputs, m), the first of them ones
    gradients: np.ndarray  # (k, n, m), of the values in the neurons


class RowBlock(NamedTuple):
    """Some rows: all that products with the Jacobian need."""

    f: np.ndarray  # (n_linear, m)
    layers: tuple  # of LayerRows
    weight: np.ndarray  # (m,)


class LargeGram(Record):
    """The matrix J^T W J of a network, as products.

    It is made of all rows, in blocks; ``factor`` (P, r) is that
    of the low-rank approximation, once it is there.
    """

    def __init__(self, blocks, n_values, factor=None):
        self.blocks, self.n_values = blocks, n_values
        first = blocks[0]
        self.n_linear = len(first.f)
        self.shapes = [
            (layer.gradients.shape[1], len(layer.inputs)) for layer in first.layers
        ]
        self.n_rows = sum(len(block.weight) for block in blocks)
        size = self.n_linear * self.n_values + sum(n * i for n, i in self.shapes)
        self.shape = (size, size)
        self.factor = factor

    def fields(self):
        """Return what a checkpoint stores; the factor of few rows follows from them."""
        factor = None if self.has_few_rows else self.factor
        return {"blocks": self.blocks, "n_values": self.n_values, "factor": factor}

    def __len__(self):
        return self.shape[0]

    def trace(self):
        """Return the sum of the diagonal."""
        return float(self.diagonal().sum())

    def diagonal(self):
        """Return the diagonal, of shape (P,)."""
        total = 0.0
        for f, layers, weight in self.blocks:
            parts = [np.repeat(f**2 @ weight, self.n_values)]
            for inputs, g in layers:
                parts.append(((weight * np.sum(g**2, axis=0)) @ (inputs**2).T).ravel())
            total = total + np.concatenate(parts)
        return total

    def __matmul__(self, vectors):
        """Return the products with vectors, of shape (P,) or (P, s)."""
        many = vectors.reshape(len(vectors), -1).T
        found = np.empty(many.shape)
        for start in range(0, len(many), 32):  # vectors at a time
            part = slice(start, start + 32)
            found[part] = self._products(many[part])
        return found.T.reshape(vectors.shape)

    def _products(self, many):
        s, k = len(many), self.n_values
        linear, hidden = self._split(many)
        linear_sum = np.zeros((s * k, self.n_linear))
        hidden_sums = [np.zeros((s * n, i)) for n, i in self.shapes]
        for f, layers, weight in self.blocks:
            u = (linear @ f).reshape(s, k, -1)
            for (inputs, g), own in zip(layers, hidden, strict=True):
                z = (own @ inputs).reshape(s, g.shape[1], -1)
                u += np.einsum("tjm,sjm->stm", g, z)
            u *= weight
            linear_sum += u.reshape(s * k, -1) @ f.T
            for (inputs, g), total in zip(layers, hidden_sums, strict=True):
                of_neurons = np.einsum("tjm,stm->sjm", g, u)
                total += of_neurons.reshape(len(total), -1) @ inputs.T
        linear_sum = linear_sum.reshape(s, k, -1).transpose(0, 2, 1).reshape(s, -1)
        hidden_sums = [total.reshape(s, -1) for total in hidden_sums]
        return np.concatenate([linear_sum, *hidden_sums], axis=1)

    def _split(self, many):
        """Vectors as matrices of the layers, stacked over all vectors."""
        s, k = len(many), self.n_values
        end = self.n_linear * k
        linear = many[:, :end].reshape(s, -1, k).transpose(0, 2, 1).reshape(s * k, -1)
        hidden = []
        for n, i in self.shapes:
            start, end = end, end + n * i
            hidden.append(many[:, start:end].reshape(s * n, i))
        return linear, hidden

    def jacobian_rows(self):
        """Return ``sqrt(W) J``, of shape (m k, P)."""
        k, parts = self.n_values, []
        for f, layers, weight in self.blocks:
            m = len(weight)
            whole = np.zeros((m, k, self.n_linear, k))
            for t in range(k):
                whole[:, t, :, t] = f.T
            columns = [whole.reshape(m * k, -1)]
            for inputs, g in layers:
                product = np.einsum("tjm,im->mtji", g, inputs)
                columns.append(product.reshape(m * k, -1))
            root = np.repeat(np.sqrt(weight), k)
            parts.append(root[:, None] * np.concatenate(columns, axis=1))
        return np.concatenate(parts)

    @property
    def has_few_rows(self):
        """Whether a matrix of all rows is small."""
        return self.n_rows * self.n_values <= factors.LARGEST_DENSE
