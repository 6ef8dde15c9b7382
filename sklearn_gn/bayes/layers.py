r"""A multilayer perceptron with a linear term, and its Gauss-Newton sums, in NumPy.

The network is

    u(x) = c0 + S^T x + C^T a_L,    a_l = s_l(W_l a_{l-1} + b_l),    a_0 = x,

with k values u; the linear term may be left out. Its parameters stand in one vector:
c0, S, C, and for each layer the rows (b, w) of its neurons. Penalties belong to groups:
the slopes S; the coefficients C; the biases; the weights of the first layer; the
weights of each further layer. In a regression the weights of each feature in the first
layer are a group of their own; for classes, which this would fit too closely, they are
one group.

The constants c0 are free. A softmax does not change when all its values rise together,
so the constants of k > 1 classes sum to zero, and are k - 1 parameters.

The derivative of value t in the weights of neuron j of layer l is the product of a
back-propagated g_l[j, t] and (1, a_{l-1}). So the block of two neurons in the
Gauss-Newton matrix is

    sum_i w_i (g_l[j]^T Lambda_i g_l'[j']) (1, a_{l-1}) (1, a_{l'-1})^T,

where Lambda_i is the second derivative of the loss in the values: the identity, or
diag(p) - p p^T. No Jacobian of k rows an observation is formed.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import expit, log_softmax, softmax

from sklearn_gn.bayes.activations import ACTIVATIONS
from sklearn_gn.bayes.evidence_gn import Sums, Trial
from sklearn_gn.linalg.large_gram import (
    LargeGram,
    LayerRows,
    RowBlock,
    is_formed,
    row_slices,
)

_BLOCK_FLOATS = 2**17  # of the rows that are summed at a time: they stay in cache
_ROW_SHARE = 8  # parameters a float: products of blocks outweigh adding their matrices
_FEW_TARGETS = 3  # whose Jacobians are quicker than products of pairs of neurons


class Layers(NamedTuple):
    """A network and its loss; an :class:`~sklearn_gn.bayes.evidence_gn.EvidenceModel`.

    Parameters
    ----------
    sizes : tuple of int
        Number of features, then of the neurons of each hidden layer.
    activations : tuple of str
        One for each hidden layer.
    n_values : int
        Targets, or classes; one value stands for two classes.
    loss : {"squared", "cross_entropy"}
    features : tuple of int
        Numbers of the features that the first layer sees; the linear term has all.
    linear_term : bool, default=True
        Whether there is the term S^T x. A network without hidden layers needs it.
    """

    sizes: tuple
    activations: tuple
    n_values: int
    loss: str
    features: tuple
    linear_term: bool = True

    @property
    def n_targets(self):
        """Numbers that each row gives."""
        return self.n_values

    @property
    def n_linear(self):
        """Number of inputs of the output layer: one, the features, the last layer."""
        last = self.sizes[-1] if len(self.sizes) > 1 else 0
        return 1 + self.n_slopes + last

    @property
    def n_slopes(self):
        """Number of slopes of the linear term, for each value."""
        return self.sizes[0] if self.linear_term else 0

    @property
    def n_free(self):
        """Number of constants that are parameters."""
        k = self.n_values
        return k - 1 if self.loss == "cross_entropy" and k > 1 else k

    def shapes(self):
        """Shapes (neurons, 1 + inputs) of the hidden layers."""
        inputs = (len(self.features), *self.sizes[1:-1])
        return [(n, 1 + i) for n, i in zip(self.sizes[1:], inputs, strict=False)]

    @lru_cache(maxsize=32)  # noqa: B019
    def groups(self):
        """Group of every parameter; -1 for the constants, which are free."""
        d, k, n_slopes = self.sizes[0], self.n_values, self.n_slopes
        parts = [
            np.full(self.n_free, -1),
            np.zeros(n_slopes * k),
            np.ones((self.n_linear - 1 - n_slopes) * k),
        ]
        first = 3 + np.arange(self.n_feature_groups)
        for number, (width, n_inputs) in enumerate(self.shapes()):
            own = np.full(n_inputs - 1, 2 + len(first) + number)
            if number == 0:
                own = first[list(self.features)] if len(first) == d else first[0]
                own = np.broadcast_to(own, n_inputs - 1)
            parts.append(np.tile(np.concatenate([[2], own]), width))
        return np.concatenate(parts).astype(np.intp)

    @property
    def n_feature_groups(self):
        """Number of groups of the first layer's weights."""
        return self.sizes[0] if self.loss == "squared" else 1

    @property
    def n_groups(self):
        """Number of groups."""
        return 3 + self.n_feature_groups + max(0, len(self.sizes) - 2)

    def split(self, theta):
        """Return the output layer, of shape (n_linear, k), and the (b, W) of layers."""
        k, free = self.n_values, self.n_free
        end = free + (self.n_linear - 1) * k
        if free < k:
            constants = sum_zero_basis(k) @ theta[:free]
            output = np.concatenate([constants, theta[free:end]]).reshape(-1, k)
        else:
            output = theta[:end].reshape(-1, k)
        layers = []
        for width, n_inputs in self.shapes():
            start, end = end, end + width * n_inputs
            layers.append(theta[start:end].reshape(width, n_inputs))
        return output, layers

    def join(self, output, layers):
        """Return the parameters as one vector; the inverse of :meth:`split`."""
        constants = output[0]
        if self.n_free < self.n_values:
            constants = sum_zero_basis(self.n_values).T @ constants
        parts = [constants, output[1:].ravel(), *(layer.ravel() for layer in layers)]
        return np.concatenate(parts)

    # -- what the iteration needs -----------------------------------------------------

    def values(self, theta, x):
        """Return the values, of shape (m, k)."""
        output, layers = self.split(theta)
        x = with_one(x)
        return (output.T @ linear_inputs(self, x, forward(self, layers, x))).T

    def error(self, theta, rows):
        """Return twice the mean loss."""
        return self.trial(theta, rows).error

    def trial(self, theta, rows):
        """Return the error, and for :meth:`sums` the values of few rows."""
        passes = self._passes(theta, rows)
        first = next(passes)
        if len(first.weight) == len(rows.weight):
            return Trial(2 * float(first.loss), first)
        return Trial(2 * float(first.loss + sum(block.loss for block in passes)))

    def sums(self, theta, rows, trial=None):
        """Return the sums over the rows; a trial of the parameters saves its part."""
        n_numbers = len(rows.x) * self.n_values
        if self.loss == "squared" and not is_formed(n_numbers, len(theta)):
            return self._large_sums(theta, rows)
        known = trial is not None and trial.passed is not None
        passes = [trial.passed] if known else self._passes(theta, rows)
        output, layers = self.split(theta)
        gram, slope, error, memory = None, 0.0, 0.0, None
        for y, weight, trace, f, u, loss in passes:
            error += loss
            g = gradients(self, output, layers, trace)
            down = weight[:, None] * residuals(self, u, y)
            slope += _slope(trace, f, g, down.T)
            if self.n_values == 1:
                root = np.sqrt(weight)
                if self.loss != "squared":
                    root = np.sqrt(weight * curvatures(self, u)[:, 0, 0])
                if memory is None:
                    memory = np.empty((len(theta), len(root)))
                columns = _columns(trace, f, g, root, memory)
                part = columns @ columns.T
            elif self.loss == "squared" and self.n_values <= _FEW_TARGETS:
                part = _gram_of_targets(self, trace, f, g, weight)
            else:
                part = _gram_of_values(self, trace, f, g, u, weight)
            gram = part if gram is None else gram + part
        if self.n_free < self.n_values:
            gram, slope = self._reduced(gram, slope)
        return Sums(gram, slope, 2 * float(error))

    def _passes(self, theta, rows):
        """Yield a :class:`Pass` for each block of rows."""
        output, layers = self.split(theta)
        for x, y, weight in row_blocks(rows, len(theta) // _ROW_SHARE):
            x = with_one(x)
            trace = forward(self, layers, x)
            f = linear_inputs(self, x, trace)
            u = (output.T @ f).T
            yield Pass(y, weight, trace, f, u, weight @ losses(self, u, y))

    def _large_sums(self, theta, rows):
        """The sums of a large network, whose matrix is not formed."""
        output, layers = self.split(theta)
        slope, error, blocks = np.zeros(len(theta)), 0.0, []
        for part in row_slices(len(rows.x)):
            x, y, weight = (a[part] for a in rows)
            trace = forward(self, layers, with_one(x))
            f = linear_inputs(self, with_one(x), trace)
            g = gradients(self, output, layers, trace)
            residual = y - (output.T @ f).T
            error += float(weight @ np.sum(residual**2, axis=1))
            slope += _slope(trace, f, g, (weight[:, None] * residual).T)
            pairs = zip((layer.inputs for layer in trace), g, strict=True)
            blocks.append(RowBlock(f, tuple(LayerRows(*p) for p in pairs), weight))
        return Sums(LargeGram(blocks, self.n_values), slope, error)

    def jacobian(self, theta, x):
        """Return the derivatives of the values, of shape (k, P, m)."""
        output, layers = self.split(theta)
        x = with_one(x)
        trace = forward(self, layers, x)
        f = linear_inputs(self, x, trace)
        g = gradients(self, output, layers, trace)
        k, m = self.n_values, x.shape[1]
        whole = np.zeros((k, self.n_linear, k, m))
        whole[np.arange(k), :, np.arange(k)] = f
        parts = [whole.reshape(k, -1, m)]
        for layer, g_l in zip(trace, g, strict=True):
            columns = g_l[:, :, None, :] * layer.inputs
            parts.append(columns.reshape(k, -1, m))
        whole = np.concatenate(parts, axis=1)
        if self.n_free < k:
            constants = np.einsum("tsm,sf->tfm", whole[:, :k], sum_zero_basis(k))
            whole = np.concatenate([constants, whole[:, k:]], axis=1)
        return whole

    def _reduced(self, gram, slope):
        """Sums in the constants that sum to zero."""
        k, basis = self.n_values, sum_zero_basis(self.n_values)
        left = np.concatenate([basis.T @ gram[:k], gram[k:]])
        gram = np.concatenate([left[:, :k] @ basis, left[:, k:]], axis=1)
        return gram, np.concatenate([basis.T @ slope[:k], slope[k:]])

    def network(self, theta, alpha, beta, gamma, log_evidence):
        """Return the network that a fit returns."""
        return RegularisedLayers(theta, alpha, beta, gamma, log_evidence)


class RegularisedLayers(NamedTuple):
    """Parameters of a network, and the penalties that were chosen for it."""

    theta: np.ndarray  # (P,)
    alpha: np.ndarray  # (G,) precisions of the groups
    beta: float  # precision of the noise; of classes, in proportion to their share
    gamma: np.ndarray  # (G,) well-determined parameters of the groups
    log_evidence: float


class Pass(NamedTuple):
    """The values of a network at some rows, and what they came from."""

    y: np.ndarray  # (m, k)
    weight: np.ndarray  # (m,)
    trace: list  # of Layer
    f: np.ndarray  # (n_linear, m), inputs of the output layer
    u: np.ndarray  # (m, k)
    loss: float  # weighted


# --- forward and backward, rows in the last axis -------------------------------------


class Layer(NamedTuple):
    """What one hidden layer does with some rows."""

    inputs: np.ndarray  # (1 + inputs, m), the first of them ones
    values: np.ndarray  # (n, m)
    slopes: np.ndarray  # (n, m), of the activation


def row_blocks(rows, width):
    """Yield parts of the rows whose products of some width stay in cache."""
    size = block_size(rows, width)
    for start in range(0, len(rows.x), size):
        yield tuple(a[start : start + size] for a in rows)


def block_size(rows, width):
    """Return the number of rows of a block."""
    return min(len(rows.x), max(64, min(2048, _BLOCK_FLOATS // max(width, 1))))


def with_one(x):
    """Return the transposed features below a row of ones."""
    inputs = np.ones((1 + x.shape[1], len(x)))
    inputs[1:] = x.T
    return inputs


def forward(model, layers, x):
    """Return what each layer does with the rows, given as (1, x)."""
    inputs = x
    if len(model.features) < model.sizes[0]:
        inputs = x[[0, *(1 + j for j in model.features)]]
    trace = []
    for layer, name in zip(layers, model.activations, strict=True):
        if trace:
            inputs = np.concatenate([inputs[:1], trace[-1].values])
        values, slopes = ACTIVATIONS[name](layer @ inputs)
        trace.append(Layer(inputs, values, slopes))
    return trace


def linear_inputs(model, x, trace):
    """Return the inputs (1, x, a_L) of the output layer, given (1, x)."""
    x = x if model.linear_term else x[:1]
    return np.concatenate([x, trace[-1].values]) if trace else x


def gradients(model, output, layers, trace):
    """Return the derivatives of the values in the neurons of layers, (k, n, m)."""
    found, upper = [], output[1 + model.n_slopes :].T[:, :, None]
    for number in reversed(range(len(layers))):
        if found:
            upper = np.matmul(layers[number + 1][:, 1:].T, found[-1])
        found.append(trace[number].slopes * upper)
    return found[::-1]


# --- the loss ------------------------------------------------------------------------


def losses(model, u, y):
    """Return the loss of each row."""
    if model.loss == "squared":
        residual = u - y
        return np.einsum("mk,mk->m", residual, residual) / 2
    if model.n_values == 1:
        # log(1 + exp(u)) less u for the second class
        return np.logaddexp(0, u[:, 0]) - y[:, -1] * u[:, 0]
    return -np.sum(y * log_softmax(u, axis=1), axis=1)


def residuals(model, u, y):
    """Return minus the derivative of the loss in the values."""
    if model.loss == "squared":
        return y - u
    return y[:, -1:] - expit(u) if model.n_values == 1 else y - softmax(u, axis=1)


def curvatures(model, u):
    """Return the second derivatives of the loss in the values, of shape (m, k, k)."""
    m, k = u.shape
    if model.loss == "squared":
        return np.broadcast_to(np.eye(k), (m, k, k))
    p = expit(u) if k == 1 else softmax(u, axis=1)
    return p[:, :, None] * (np.eye(k) - p[:, None, :])


def sum_zero_basis(k):
    """Return orthonormal columns, of shape (k, k - 1), that sum to zero."""
    basis = np.zeros((k, k - 1))
    for j in range(1, k):
        basis[:j, j - 1] = 1 / np.sqrt(j * (j + 1))
        basis[j, j - 1] = -j / np.sqrt(j * (j + 1))
    return basis


# --- sums ----------------------------------------------------------------------------


def _slope(trace, f, g, down):
    parts = [(f @ down.T).ravel()]
    for layer, g_l in zip(trace, g, strict=True):
        of_neurons = np.einsum("tjm,tm->jm", g_l, down)
        parts.append((of_neurons @ layer.inputs.T).ravel())
    return np.concatenate(parts)


def _columns(trace, f, g, root, memory):
    """The Jacobian of a single value, of shape (P, m), times a number for each row."""
    m = len(root)
    whole = memory[:, :m] if m < memory.shape[1] else memory
    end = len(f)
    np.multiply(f, root, out=whole[:end])
    for layer, g_l in zip(trace, g, strict=True):
        shape = g_l.shape[1], len(layer.inputs), m
        start, end = end, end + shape[0] * shape[1]
        own = whole[start:end].reshape(shape)  # a view
        np.multiply(layer.inputs, (root * g_l[0])[:, None], out=own)
    return whole


def _gram_of_targets(model, trace, f, g, weight):
    """The Gauss-Newton matrix of a few values with a squared loss.

    Each value has its own output layer, and all share the hidden ones.
    """
    k, n, size = model.n_values, len(f), len(model.groups())
    end, root = k * n, np.sqrt(weight)
    gram, memory = np.zeros((size, size)), np.empty((size - end + n, len(root)))
    for t in range(k):
        columns = _columns(trace, f, [g_l[t : t + 1] for g_l in g], root, memory)
        part = columns @ columns.T
        gram[t:end:k, t:end:k] = part[:n, :n]
        gram[t:end:k, end:] = part[:n, n:]
        gram[end:, t:end:k] = part[n:, :n]
        gram[end:, end:] += part[n:, n:]
    return gram


def _gram_of_values(model, trace, f, g, u, weight):
    """The Gauss-Newton matrix of several values."""
    m, k = u.shape
    p = None if model.loss == "squared" else softmax(u, axis=1).T
    # Lambda times the derivatives in the neurons, with the weights of the rows
    curved = [weight * (g_l if p is None else _centred(p, g_l)) for g_l in g]
    blocks = [[_output_block(f, p, weight, k)]]
    for number, layer in enumerate(trace):
        for j in range(g[number].shape[1]):
            right = curved[number][:, j, None, :] * layer.inputs
            row = [(f @ right.reshape(-1, m).T).reshape(len(f) * k, -1)]
            for other in range(number, len(g)):
                first = j if other == number else 0
                pairs = np.einsum(
                    "tm,tjm->jm", g[number][:, j], curved[other][:, first:]
                )
                right = pairs[:, None, :] * trace[other].inputs
                row.append(layer.inputs @ right.reshape(-1, m).T)
            blocks.append(row)
    return _symmetric(blocks)


def _centred(p, g):
    """The product of diag(p) - p p^T and derivatives of shape (k, n, m)."""
    return p[:, None, :] * (g - np.einsum("tm,tjm->jm", p, g))


def _output_block(f, p, weight, k):
    """The block of the output layer; p is None for the squared loss."""
    if p is None:
        return np.kron((weight * f) @ f.T, np.eye(k))
    n = len(f)
    scaled = (np.sqrt(weight) * f)[:, None, :] * p
    scaled = scaled.reshape(n * k, -1)
    block = -(scaled @ scaled.T)
    for t in range(k):
        block[t::k, t::k] += (weight * p[t] * f) @ f.T
    return block


def _symmetric(blocks):
    """Matrix of the rows of blocks: each has the first one, then from its diagonal."""
    size = blocks[0][0].shape[0] + sum(row[0].shape[1] for row in blocks[1:])
    gram = np.empty((size, size))
    end = n_output = len(blocks[0][0])
    gram[:end, :end] = blocks[0][0]
    for cross, *from_diagonal in blocks[1:]:
        start, end = end, end + cross.shape[1]
        gram[:n_output, start:end] = cross
        gram[start:end, :n_output] = cross.T
        rest = np.concatenate(from_diagonal, axis=1)
        gram[start:end, start:] = rest
        gram[start:, start:end] = rest.T
    return gram
