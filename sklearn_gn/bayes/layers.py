r"""A multilayer perceptron with a linear term, and its Gauss-Newton sums.

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

All sums over rows are written for NumPy, in blocks that stay in cache, and for JAX,
which compiles them for rows on its devices (:mod:`sklearn_gn.bayes.device_rows`).
"""

import math
import operator
from functools import cache, lru_cache, partial
from typing import NamedTuple

import numpy as np

from sklearn_gn.arrays import libraries
from sklearn_gn.arrays.libraries import NumPy, library_of, namespace
from sklearn_gn.bayes.device_rows import DeviceRows, warn_of_cpu
from sklearn_gn.bayes.evidence_gn import ROUNDING, SOME_ROWS, RegularisedLayers, Sums
from sklearn_gn.data.rows_source import BLOCK_ROWS
from sklearn_gn.linalg.factors import factor, is_formed
from sklearn_gn.linalg.large_gram import LargeGram, LayerRows, RowBlock

_MOST_PARAMETERS = 4096  # whose covariance the host computes in seconds
BLOCK_FLOATS = 2**17  # of the rows that are summed at a time: they stay in cache
_ROW_SHARE = 8  # parameters a float: products of blocks outweigh adding their matrices
_ROWS_OF_A_PARAMETER = 10  # rows times targets, of which a matrix is made
_COEF = 0.1  # standard deviation of the first coefficients, in units of y
RIDGE = 1e-3  # of the linear fit, in rows
_FEW_ROWS = 1.5  # for each of its coefficients, below which there is none
BESIDE = 1e-9  # distance of hyperplanes from rows that they would go through


class Layers(NamedTuple):
    """A network and its loss, as :mod:`sklearn_gn.bayes.evidence_gn` sees them."""

    sizes: tuple  # number of features, then of the neurons of each hidden layer
    activations: tuple  # names, one for each hidden layer
    n_values: int  # targets, or classes; one value stands for two classes
    loss: str  # "squared" or "cross_entropy"
    features: tuple  # numbers of those that the first layer sees
    linear_term: bool = True  # of all features; a network without layers needs it

    @property
    def n_linear(self):
        """Number of inputs of the output layer: one, the features, the last layer."""
        last = self.sizes[-1] if len(self.sizes) > 1 else 0
        return 1 + self.linear_term * self.sizes[0] + last

    @property
    def n_free(self):
        """Number of constants that are parameters."""
        k = self.n_values
        return k - 1 if self.loss == "cross_entropy" and k > 1 else k

    @property
    def n_parameters(self):
        """Number of parameters."""
        of_layers = sum(neurons * inputs for neurons, inputs in self.shapes())
        return self.n_free + (self.n_linear - 1) * self.n_values + of_layers

    def shapes(self):
        """Shapes (neurons, 1 + inputs) of the hidden layers."""
        inputs = (len(self.features), *self.sizes[1:-1])
        return [(n, 1 + i) for n, i in zip(self.sizes[1:], inputs, strict=False)]

    @lru_cache(maxsize=32)  # noqa: B019
    def groups(self):
        """Group of every parameter; -1 for the constants, which are free."""
        d, k, shapes = self.sizes[0], self.n_values, self.shapes()
        parts = [
            np.full(self.n_free, -1),
            np.zeros(self.linear_term * d * k),
            np.ones(shapes[-1][0] * k if shapes else 0),
        ]
        first = 3 + np.arange(self.n_feature_groups)
        for number, (width, n_inputs) in enumerate(shapes):
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
            whole = namespace(theta).concatenate([constants, theta[free:end]])
            output = whole.reshape(-1, k)
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

    def in_units(self, theta, before, after):
        """Return the parameters of the same function in other units.

        Both are :class:`~sklearn_gn.data.units.Units`.
        """
        output, layers = self.split(theta)
        output, layers = output.copy(), [layer.copy() for layer in layers]
        ratio = after.x_scale / before.x_scale
        moved = (after.x_center - before.x_center) / before.x_scale
        slopes = output[1 : 1 + self.sizes[0]]
        output[0] += moved @ slopes
        slopes *= ratio[:, None]
        if layers:
            seen = list(self.features)
            layers[0][:, 0] += layers[0][:, 1:] @ moved[seen]
            layers[0][:, 1:] *= ratio[seen]
        if self.loss == "squared":
            output *= before.y_scale / after.y_scale
            output[0] += (before.y_center - after.y_center) / after.y_scale
        return self.join(output, layers)

    def with_all_features(self):
        """Return the network whose first layer sees all features."""
        return self._replace(features=tuple(range(self.sizes[0])))

    @lru_cache(maxsize=32)  # noqa: B019
    def places(self):
        """Places of the parameters in the network of :meth:`with_all_features`."""
        whole = self.with_all_features()
        numbers = np.arange(whole.n_parameters)
        if not self.shapes():
            return numbers
        (width, n_inputs), *_ = whole.shapes()
        start = self.n_free + (self.n_linear - 1) * self.n_values
        end = start + width * n_inputs
        first = numbers[start:end].reshape(width, n_inputs)
        first = first[:, [0, *(1 + j for j in self.features)]].ravel()
        return np.concatenate([numbers[:start], first, numbers[end:]])

    def rows_on(self, device, rows):
        """Return rows for fits: :class:`DeviceRows` where JAX computes the sums."""
        if device in (None, "cpu") and not libraries.jax_is_forced:
            return rows  # a compiler would take longer than the fit
        size, n_numbers = self.n_parameters, len(rows.x) * self.n_values
        few = self.loss == "squared" and size > n_numbers
        if size > _MOST_PARAMETERS or (few and not is_formed(n_numbers, size)):
            part = f"a network of {size} parameters and {len(rows.x)} rows"
            warn_of_cpu(device, part)
            return rows
        return DeviceRows.on(device, rows)

    # -- what the iteration needs -----------------------------------------------------

    def values(self, theta, x):
        """Return the values, of shape (m, k)."""
        output, layers = self.split(theta)
        _, f = forward(self, layers, x)
        return (output.T @ f).T

    def error(self, theta, rows):
        """Return twice the mean loss."""
        parameters = self.split(theta)
        return 2 * sum_over_blocks(
            lambda *block: self._passed(parameters, *block)[-1], rows, len(theta)
        )

    def sums(self, theta, rows):
        """Return the sums over the rows."""
        every = len(rows.x) // self.n_rows_of_matrix(len(rows.x))
        if every > 1:
            some, _ = rows.every(every)
            gram = self.dense_sums(theta, some).gram
            of_block = partial(self._sums_of, self.split(theta), None)
            _, negative_gradient, loss = sum_over_blocks(of_block, rows, len(theta))
            if self.n_free < self.n_values:
                negative_gradient = self._reduced(negative_gradient)
            return Sums(gram, negative_gradient, 2 * loss)
        n_numbers = len(rows.x) * self.n_values
        if self.loss == "squared" and not is_formed(n_numbers, len(theta)):
            return self._large_sums(theta, rows)
        return self.dense_sums(theta, rows)

    def dense_sums(self, theta, rows):
        """Return the same with the matrix, however large it is."""
        parameters = self.split(theta)
        kind = "one" if self.n_values == 1 else "several"
        # A hidden layer alone gives all targets the same slopes, but for factors.
        if kind == "several" and self.loss == "squared" and len(self.sizes) == 2:
            kind = "shared"
        of_block = partial(self._sums_of, parameters, kind)
        gram, negative_gradient, loss = sum_over_blocks(of_block, rows, len(theta))
        if kind == "shared":
            xp, n, k = namespace(gram), self.n_linear, self.n_values
            hidden = parameters[0][n - self.sizes[-1] :]  # of none, none
            coef = xp.repeat(hidden, self.shapes()[0][1], axis=0)
            cross = (gram[:n, None, n:] * coef.T[None]).reshape(n * k, -1)
            linear = xp.kron(gram[:n, :n], np.eye(k))
            of_layer = gram[n:, n:] * (coef @ coef.T)
            gram = xp.block([[linear, cross], [cross.T, of_layer]])
        elif kind == "several":
            gram = _symmetric(self.n_values, *gram)
        if self.n_free < self.n_values:
            gram = self._reduced(self._reduced(gram).T)
            negative_gradient = self._reduced(negative_gradient)
        return Sums(gram, negative_gradient, 2 * loss)

    def n_rows_of_matrix(self, n_rows):
        """Return the least number of rows that the matrix is made of.

        A few times as many numbers as parameters tell it well enough for steps.
        """
        of_parameters = _ROWS_OF_A_PARAMETER * self.n_parameters // self.n_values
        return min(n_rows, max(SOME_ROWS, of_parameters))

    def _passed(self, parameters, x, y, weight):
        """Layers at some rows, inputs of the output layer, values, and the loss."""
        output, layers = parameters
        trace, f = forward(self, layers, x)
        u = (output.T @ f).T
        return trace, f, u, weight @ losses(self, u, y)

    def _sums_of(self, parameters, kind, x, y, weight):
        """Matrix, negative gradient and loss of some rows; no matrix for no kind.

        Its kinds: of "one" value; of "several", the blocks of its upper half; of values
        that "shared" slopes have, that of the slopes.
        """
        trace, f, u, loss = self._passed(parameters, x, y, weight)
        library, g = library_of(u), gradients(self, *parameters, trace)
        residual = (weight[:, None] * residuals(self, u, y)).T
        negative_gradient = _negative_gradient(trace, f, g, residual)
        if kind is None:
            return None, negative_gradient, loss
        if kind == "several":
            p = None if self.loss == "squared" else library.softmax(u)
            blocks = _upper_blocks(trace, f, g, p, weight, self.n_values)
            return blocks, negative_gradient, loss
        if self.loss != "squared":
            p = library.sigmoid(u[:, 0])
            weight = weight * p * (1 - p)
        root = library.xp.sqrt(weight)[None]
        pairs = [(root, f)]
        for layer, g_l in zip(trace, g, strict=True):
            slopes = g_l[0] if kind == "one" else layer.slopes
            pairs.append((slopes * root, layer.inputs))
        columns = library.products_of_rows(pairs)
        return library.symmetric_product(columns), negative_gradient, loss

    def _large_sums(self, theta, rows):
        """The sums of a large network, whose matrix is not formed."""
        parameters = self.split(theta)
        negative_gradient, error, blocks = np.zeros(len(theta)), 0.0, []
        for start in range(0, len(rows.x), 256):  # rows of a block
            x, y, weight = (a[start : start + 256] for a in rows)
            trace, f, u, loss = self._passed(parameters, x, y, weight)
            g = gradients(self, *parameters, trace)
            error += 2 * float(loss)
            residual = (weight[:, None] * (y - u)).T
            negative_gradient += _negative_gradient(trace, f, g, residual)
            pairs = zip((layer.inputs for layer in trace), g, strict=True)
            blocks.append(RowBlock(f, tuple(LayerRows(*p) for p in pairs), weight))
        return Sums(LargeGram(blocks, self.n_values), negative_gradient, error)

    def jacobian(self, theta, x):
        """Return the derivatives of the values, of shape (k, P, m)."""
        output, layers = self.split(theta)
        k, free = self.n_values, self.n_free
        trace, f = forward(self, layers, x)
        g = gradients(self, output, layers, trace)
        found, end = np.zeros((k, len(theta), len(x))), len(f)
        n_output = free + (end - 1) * k
        for t, of_value in enumerate(found):
            slopes = zip(g, trace, strict=True)
            pairs = [(g_l[t], layer.inputs) for g_l, layer in slopes]
            columns = NumPy.products_of_rows([(f[:1], f), *pairs])
            of_value[:free] = sum_zero_basis(k)[t, :, None] if free < k else 0
            if free == k:
                of_value[t] = columns[0]
            of_value[free + t : n_output : k] = columns[1:end]
            of_value[n_output:] = columns[end:]
        return found

    def _reduced(self, sums):
        """Rows of sums in the constants that sum to zero."""
        k = self.n_values
        parts = [sum_zero_basis(k).T @ sums[:k], sums[k:]]
        return namespace(sums).concatenate(parts)


# --- the first network of a fit -----------------------------------------------------


def first_network(model, rows, n_effective, rng, hyperplanes=None, slopes=True):
    """Return a network with random hyperplanes, or given ones of a single layer.

    The linear term is that of the data: least squares, or a step of a softmax
    regression from the shares of the classes, with the largest curvature of its loss,
    which never raises it (Boehning, 1992). Without ``slopes``, or with hardly more rows
    than coefficients, it is the mean: a fit through all rows would leave no noise, and
    the evidence stays where it finds none. Random hyperplanes pass beside rows, not
    through them: rounding errors would decide on which side these are. They are drawn
    in the order of the features of the model; those of the network are sorted.
    """
    d, k = model.sizes[0], model.n_values
    output = np.zeros((model.n_linear, k))
    coef = rng.standard_normal((model.n_linear - 1 - d, k))
    mean = rows.weight @ rows.y
    if model.loss == "squared":
        constant, target = mean, rows.y - mean
        size = math.sqrt(float(rows.weight @ np.sum(rows.y**2, axis=1)) / k)
        coef *= np.ptp(rows.y, axis=0) > 0  # a target that is constant needs no neurons
    else:
        # A class may be without weight here; its share is that of half a row then.
        constant = np.log(np.maximum(mean, 0.5 / n_effective))
        target, size = 2 * (rows.y - mean), 1.0
    linear = np.zeros((1 + d, len(mean)))
    if slopes and n_effective >= _FEW_ROWS * (1 + d):
        x = np.concatenate([np.ones((1, len(rows.x))), rows.x.T])
        weighted = rows.weight[:, None] * x.T
        gram = x @ weighted
        ridge = RIDGE / n_effective + ROUNDING * np.trace(gram)
        linear = factor(gram, ridge).solve(weighted.T @ target)
    linear[0] += constant
    output[: 1 + d] = linear if model.loss == "squared" else contrasts(linear, k)
    output[1 + d :] = _COEF * size * coef
    cumulated, layers = np.cumsum(rows.weight), []
    for number, (width, n_inputs) in enumerate(model.shapes()):
        if hyperplanes is not None:
            layers.append(hyperplanes - BESIDE * np.eye(1, n_inputs))
            continue
        direction = rng.standard_normal((width, n_inputs - 1))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        drawn = np.searchsorted(cumulated, rng.uniform(size=width) * cumulated[-1])
        x = rows.x[np.minimum(drawn, len(rows.x) - 1)]
        point = x.T[list(model.features)]
        if layers:
            part = model._replace(activations=model.activations[:number])
            point = forward(part, layers, x)[0][-1].values
        bias = -BESIDE - np.sum(direction * point.T, axis=1)
        layers.append(np.concatenate([bias[:, None], direction], axis=1))
    if layers:
        layers[0] = layers[0][:, [0, *(1 + np.argsort(model.features))]]
    model = model._replace(features=tuple(sorted(model.features)))
    alpha, gamma = np.ones(model.n_groups), np.zeros(model.n_groups)
    alpha[:2] = 1 / size**2 if size > 0 else 1.0
    theta = model.join(output, layers)
    return RegularisedLayers(theta, alpha, None, gamma, -math.inf, model)


# --- activations ---------------------------------------------------------------------


def activated(name, z):
    """Return the values and the slopes of an activation of the networks at numbers."""
    library = library_of(z)
    xp = library.xp
    if name == "relu":
        active = (z > 0).astype(z.dtype)
        return z * active, active
    if name == "tanh":
        a = xp.tanh(z)
        return a, 1 - a * a
    if name == "softplus":
        return library.softplus(z), library.sigmoid(z)
    if name == "sin":
        return xp.sin(z), xp.cos(z)
    if name == "identity":
        return z, xp.ones_like(z)
    if name == "gelu":
        # The normal distribution function by the tanh that JAX takes by default.
        inner = np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)
        a = (1 + xp.tanh(inner)) / 2
        slope = 2 * a * (1 - a) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * z**2)
        return z * a, a + z * slope
    a = library.sigmoid(z)
    return (z * a, a * (1 + z * (1 - a))) if name == "silu" else (a, a * (1 - a))


# --- forward and backward, rows in the last axis -------------------------------------


class Layer(NamedTuple):
    """What one hidden layer does with some rows."""

    inputs: np.ndarray  # (1 + inputs, m), the first of them ones
    values: np.ndarray  # (n, m)
    slopes: np.ndarray  # (n, m), of the activation


def sum_over_blocks(function, rows, n_parameters):
    """Return the sum of trees ``function(x, y, weight)`` over blocks of rows."""
    if library_of(tuple(rows)) is not NumPy:
        from sklearn_gn.arrays.blocks import sum_rows

        return sum_rows(lambda block: function(*block), tuple(rows))
    total, size = None, block_size(n_parameters // _ROW_SHARE)
    for start in range(0, len(rows.x), size):
        found = function(*(array[start : start + size] for array in rows))
        total = found if total is None else NumPy.tree_map(operator.iadd, total, found)
    return total


def block_size(width):
    """Return the number of rows whose products of some width stay in cache."""
    return max(64, min(BLOCK_ROWS, BLOCK_FLOATS // max(width, 1)))


def forward(model, layers, x):
    """Return what layers do with rows, and the inputs (1, x, a_L) of the output."""
    xp = namespace(x)
    # A copy: the rows of a matrix stand in the order of memory, as products want them.
    x = inputs = xp.concatenate([xp.ones((1, len(x)), x.dtype), x.T.copy()])
    if len(model.features) < model.sizes[0]:
        inputs = x[np.array([0, *(1 + j for j in model.features)])]
    trace = []
    for layer, name in zip(layers, model.activations, strict=True):
        if trace:
            inputs = xp.concatenate([inputs[:1], trace[-1].values])
        values, slopes = activated(name, layer @ inputs)
        trace.append(Layer(inputs, values, slopes))
    x = x if model.linear_term else x[:1]
    return trace, xp.concatenate([x, trace[-1].values]) if trace else x


def gradients(model, output, layers, trace):
    """Return the derivatives of the values in the neurons of layers, (k, n, m)."""
    found, upper = [], output[-model.sizes[-1] :].T[:, :, None]
    for number in reversed(range(len(layers))):
        if found:
            upper = namespace(output).matmul(layers[number + 1][:, 1:].T, found[-1])
        found.append(trace[number].slopes[None] * upper)
    return found[::-1]


# --- the loss ------------------------------------------------------------------------


def contrasts(logs, n_values):
    """Return the values, one or one a class, of logarithms (..., classes) of odds."""
    if n_values == 1:
        return logs[..., 1:] - logs[..., :1]
    return logs - np.mean(logs, axis=-1, keepdims=True)


def losses(model, u, y):
    """Return the loss of each row."""
    library = library_of(u)
    if model.loss == "squared":
        residual = u - y
        return library.row_products(residual, residual) / 2
    if u.shape[1] == 1:
        softplus, u = library.softplus, u[:, 0]
        return y[:, 0] * softplus(u) + y[:, 1] * softplus(-u)
    return -library.xp.sum(y * library.log_softmax(u), axis=1)


def residuals(model, u, y):
    """Return minus the derivative of the loss in the values."""
    if model.loss == "squared":
        return y - u
    library = library_of(u)
    return y[:, -1:] - library.sigmoid(u) if u.shape[1] == 1 else y - library.softmax(u)


def curvatures(model, u):
    """Return the second derivatives of the loss in the values, of shape (m, k, k)."""
    (m, k), library = u.shape, library_of(u)
    if model.loss == "squared":
        return np.broadcast_to(np.eye(k), (m, k, k))
    p = library.sigmoid(u) if k == 1 else library.softmax(u)
    return p[:, :, None] * (np.eye(k)[None] - p[:, None, :])


@cache
def sum_zero_basis(k):
    """Return orthonormal columns, of shape (k, k - 1), that sum to zero."""
    basis = np.zeros((k, k - 1))
    for j in range(1, k):
        basis[:j, j - 1] = 1 / np.sqrt(j * (j + 1))
        basis[j, j - 1] = -j / np.sqrt(j * (j + 1))
    return basis


# --- sums ----------------------------------------------------------------------------


def _negative_gradient(trace, f, g, residual):
    xp = namespace(f)
    found = [(f @ residual.T).ravel()]
    for layer, g_l in zip(trace, g, strict=True):
        of_neurons = xp.einsum("tjm,tm->jm", g_l, residual)
        found.append((of_neurons @ layer.inputs.T).ravel())
    return xp.concatenate(found)


def _upper_blocks(trace, f, g, p, weight, k):
    """Blocks of the Gauss-Newton matrix of several values, for :func:`_symmetric`.

    They are those of the constants, slopes and coefficients of each value (n, k, n),
    what the probabilities take from them, and rows from the diagonal on: of the output
    layer without these, then of each neuron.
    """
    library = library_of(f)
    einsum = library.xp.einsum
    # Lambda times the derivatives in the neurons, with the weights of the rows
    weights, curved = weight[None, None], g
    own, cross = ((weight[None] * f) @ f.T)[:, None], None
    if p is not None:
        means = [einsum("tm,tjm->jm", p.T, g_l)[None] for g_l in g]
        curved = [p.T[:, None] * (a - mean) for a, mean in zip(g, means, strict=True)]
        of_values = [((weight * p[:, t])[None] * f) @ f.T for t in range(k)]
        own = library.xp.stack(of_values, axis=1)
        scaled = [(library.xp.sqrt(weight)[None] * f, p.T)]
        cross = library.symmetric_product(library.products_of_rows(scaled))
    curved, of_output, rows = [weights * a for a in curved], [], []
    for number, layer in enumerate(trace):
        for j in range(g[number].shape[1]):
            right = library.products_of_rows([(curved[number][:, j], layer.inputs)])
            of_output.append((f @ right.T).reshape(len(f) * k, -1))
            row = []
            for other in range(number, len(g)):
                first = j if other == number else 0
                pairs = einsum("tm,tjm->jm", g[number][:, j], curved[other][:, first:])
                right = library.products_of_rows([(pairs, trace[other].inputs)])
                row.append(layer.inputs @ right.T)
            rows.append(tuple(row))
    return own, cross, tuple(of_output), tuple(rows)


def _symmetric(k, own, cross, of_output, rows):
    """The symmetric matrix with the blocks of :func:`_upper_blocks`."""
    library, n = library_of(own), len(own)
    output = (own[..., None] * np.eye(k)[None, :, None]).reshape(n * k, n * k)
    rows = [(output if cross is None else output - cross, *of_output), *rows]
    size, start = sum(block.shape[1] for block in rows[0]), 0
    gram = library.xp.zeros((size, size))
    for row in rows:
        column = start
        for block in row:
            gram = library.with_part(gram, block, start, column)
            gram = library.with_part(gram, block.T, column, start)
            column += block.shape[1]
        start += len(row[0])
    return gram
