r"""Many sparse rows, whose heads are combinations of them.

The optimum of a head with a penalty is ``W = X^T A``: its columns are combinations of
the rows, with one factor for each row and class. Gradients and steps have the same
form, so a fit needs arrays of the size of the logits, however many features there are,
and of the features only the product of their Gram matrix with such an array,

    K A = X (X^T A),

by two sparse products for a few classes at a time. Of a feature that one row alone has,
as half of the word pairs of a text are, the square on the diagonal of K is all that
matters. With an intercept the features are centred, ``x - mean``, which never shows in
the matrix: ``K`` stands between two projections. A head to start from, which need not
be such a combination, is one row more.

This product is what costs, and a new Hessian costs little. A head and a step carry
their logits, so the gradient of a new head, and each iteration of CG, take one product.
It has the precision of the array that is multiplied: single is enough for the rough
minima that choose a penalty.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import sparse

from sklearn_gn.arrays.extremes import largest_size
from sklearn_gn.arrays.libraries import NumPy
from sklearn_gn.arrays.threads import share, side_by_side
from sklearn_gn.arrays.trees import add
from sklearn_gn.linalg.factors import factor
from sklearn_gn.optim.line_search import line_minimum
from sklearn_gn.optim.multinomial import covariance_product, probabilities, to_columns
from sklearn_gn.softmax_head.head import (
    AffineHead,
    Evaluation,
    derivatives_along,
    errors,
    forcing_of,
)

_CLASSES = 32  # of a block: what is dense has a column for each feature and class


class Combination(NamedTuple):
    """A head, or a change of one: ``W = X^T rows + start * (head to start from)``."""

    rows: np.ndarray  # (n, m)
    image: np.ndarray | None  # (n, m) logits of the coefficients, for centred features
    start: float
    bias: np.ndarray  # (m,) for centred features


class Combinations:
    """Heads of sparse features that are combinations of the rows.

    With an intercept the features are centred by the mean of the rows with a weight.
    Only columns that hold something are kept, the most frequent first, since what
    belongs to these is then close together in memory.
    """

    def __init__(self, X, weight, intercept):
        X.sum_duplicates()
        counts = np.bincount(X.indices, minlength=X.shape[1])
        self.columns = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        place = np.zeros(X.shape[1], X.indices.dtype)
        place[self.columns] = np.arange(len(self.columns))
        shape = X.shape[0], max(len(self.columns), 1)
        self.x = sparse.csr_array((X.data, place[X.indices], X.indptr), shape)
        self.n_features, self.weight = X.shape[1], weight
        self.share = intercept * weight
        self.mean = self.x.T @ self.share
        self.start = None

    def begin(self, head):
        """Return a head of the features as a combination, from which a fit starts."""
        shared, x = max(np.count_nonzero(np.bincount(self.x.indices) > 1), 1), self.x
        zeros = np.zeros((x.shape[0], len(head.bias)), head.bias.dtype)
        found = Combination(zeros, zeros, np.float64(0), head.bias)
        if head.weight.any():
            shared = x.shape[1]  # it has a value for every feature
            self.start = head.weight[self.columns]
            image = x @ self.start
            found = found._replace(
                image=image - (self.share @ image)[None, :],
                start=np.float64(1),
                bias=head.bias + self.mean @ self.start,
            )
            self.start_image, self.start_square = found.image, np.sum(self.start**2)
        alone, known = x[:, shared:].tocoo(), x[:, :shared]
        self.factors = {
            np.dtype(kind): (known.astype(kind), sparse.csr_array(known.T, dtype=kind))
            for kind in (x.dtype, np.float32)
        }
        # Of the features of one row alone: sums of squares, and the largest sizes.
        self.squares, self.largest = np.zeros((2, x.shape[0], 1), x.dtype)
        np.add.at(self.squares[:, 0], alone.row, alone.data**2)
        np.maximum.at(self.largest[:, 0], alone.row, np.abs(alone.data))
        return found

    def head(self, net):
        """Return the head of the features as given."""
        weight = np.zeros((self.n_features, len(net.bias)))
        right, used = self._balanced(net.rows), len(self.columns)

        def block(part):
            own = self.x.T @ np.ascontiguousarray(right[:, part])
            if net.start:
                own += net.start * self.start[:, part]
            weight[self.columns, part] = own[:used]
            return self.mean @ own

        shift = np.concatenate(self._by_columns(block, len(net.bias)))
        return AffineHead(weight, net.bias - shift)

    def image(self, rows, start):
        """Return the logits of coefficients, and the largest coefficient."""
        right, kind = self._balanced(rows), rows.dtype
        shared, transposed = self.factors[kind]
        squares, largest = self.squares.astype(kind), self.largest.astype(kind)
        out = np.empty_like(right)

        def block(part):
            own = np.ascontiguousarray(right[:, part])
            weight = transposed @ own
            found = shared @ weight
            out[:, part] = np.add(found, squares * own, out=found)
            if start:
                weight += start * self.start[:, part]
            return max(largest_size(weight), largest_size(largest * own))

        size = max(self._by_columns(block, right.shape[1]))
        out -= (self.share.astype(kind) @ out)[None, :]
        if start:
            out += start * self.start_image
        return out, size

    def inner(self, one, other):
        """Return the inner product of two combinations, one with its logits."""
        if one.image is None:
            one, other = other, one
        found = np.vdot(one.image, other.rows) + one.bias @ other.bias
        if self.start is not None:
            along = np.vdot(self.start_image, one.rows) + one.start * self.start_square
            found += other.start * along
        return float(found)

    def _by_columns(self, block, n_columns):
        """Call a function with slices of the classes, long products in threads."""
        width = min(_CLASSES, -(-n_columns // share()))
        parts = [slice(k, k + width) for k in range(0, n_columns, width)]
        return side_by_side(block, parts, self.x.nnz * width)

    def _balanced(self, values):
        """Return the transpose of the centring of columns, applied to values."""
        share = self.share.astype(values.dtype)[:, None]
        return values - share * values.sum(axis=0)[None, :]


class SparseRows(NamedTuple):
    """Weighted rows of sparse features, and the parts of a Newton step."""

    heads: Combinations
    label: np.ndarray
    weight: np.ndarray
    intercept: np.ndarray

    def in_single(self):
        """Return the rows in single precision, and the largest size of a feature."""
        weight, intercept = map(np.float32, (self.weight, self.intercept))
        largest = np.sqrt(np.max(self.weight @ self.heads.x.power(2)))
        return self._replace(weight=weight, intercept=intercept), float(largest)

    def logits(self, net, numbers):
        """Return the logits of some rows."""
        return net.image[numbers] + net.bias[None, :]

    def evaluate(self, net, alpha, intercept):
        """The objective of a head, its gradient, and the mean traces."""
        logits = net.image + net.bias[None, :]
        rows, means, separated = errors(logits, self.label, self.weight)
        bias = intercept * rows.sum(axis=0)
        rows += alpha * net.rows
        image, largest = self.heads.image(rows, alpha * net.start)
        gradient = Combination(rows, image, alpha * net.start, bias)
        size = np.sqrt(max(self.heads.inner(gradient, gradient), 0.0))
        largest = max(largest, float(np.max(np.abs(bias))))
        flat = net._replace(bias=0 * bias)
        loss = means[0] + alpha / 2 * self.heads.inner(flat, flat)
        return Evaluation(loss, gradient, *means[1:], separated, size, largest)

    def direction(self, state, settings):
        """Solve the Newton system by conjugate gradients.

        The preconditioner is the penalty. Each direction has the best intercepts for
        its coefficients: these hardly differ from the mean of the rows of a class,
        which would need many iterations. The last step is the first direction.
        """
        net, gradient, heads = state.net, state.gradient, self.heads
        p = to_columns(probabilities(net.image + net.bias[None, :]))
        shift = settings.alpha + settings.damping
        of_intercepts = factor(self._of_intercepts(p, gradient.bias, settings.damping))

        def curved(change):
            return self.weight[:, None] * covariance_product(p, change)

        def with_intercepts(rows, image, start):
            gradient = -curved(image).sum(axis=0)
            bias = self.intercept * of_intercepts.solve(gradient)
            return Combination(rows, image, start, bias)

        def take(along):
            """Go to the minimum along a direction conjugate to all before it."""
            nonlocal residual, found
            rows = curved(along.image + along.bias[None, :])
            bias = rows.sum(axis=0) + settings.damping * along.bias
            rows += shift * along.rows
            product = Combination(rows, None, shift * along.start, bias)
            bend = heads.inner(along, product)
            if not bend > 0:
                return []
            length = heads.inner(along, residual) / bend
            residual = add(residual, -length, product)
            found = add(found, length, along)
            return [(along, product, bend)]

        # The size of a residual is that in its rows, for which no logits are needed.
        unit = np.sqrt(heads.weight).astype(p.dtype)[:, None]
        start, bias = -gradient.start, -gradient.bias
        residual = Combination(-gradient.rows, None, start, bias)
        size = np.linalg.norm(residual.rows / unit)
        forcing = forcing_of(np.sqrt(size), settings)
        steepest, image, iterations = residual, -gradient.image, 0
        zero = np.zeros_like(p)
        found = Combination(zero, zero, 0 * start, 0 * bias)
        take(found._replace(bias=self.intercept * of_intercepts.solve(bias)))
        last, scale = state.last_step, shift if shift > 0 else 1
        known = kept = [] if last is None else take(with_intercepts(*last[:3]))
        while iterations < settings.cg_iterations:
            start = steepest.start / scale
            along = with_intercepts(steepest.rows / scale, image / scale, start)
            for other, product, bend in known:
                along = add(along, -heads.inner(along, product) / bend, other)
            taken, iterations = take(along), iterations + 1
            if not taken or np.linalg.norm(residual.rows / unit) <= forcing * size:
                break
            # The first one is not from a residual of what came before: it is kept too.
            kept = known + taken if iterations == 1 else kept
            known = kept if iterations == 1 else kept + taken
            steepest, (image, _) = residual, heads.image(residual.rows, residual.start)
        # Rough directions may be far too long: this one ends where the loss is least.
        slope, own = heads.inner(found, gradient), found._replace(bias=0 * bias)
        bend = settings.alpha * heads.inner(own, own)
        logits = net.image + net.bias[None, :], found.image + found.bias[None, :]
        along = derivatives_along(*logits, self.label, self.weight)
        of_penalty = slope - along(0.0)[0]

        def derivatives(length):
            first, second = along(length)
            return first + of_penalty + length * bend, second + bend

        digits = np.finfo(p.dtype).nmant
        length, *_ = line_minimum(derivatives, slope, flat=forcing, max_iter=digits)
        found = NumPy.tree_map(lambda a: a.dtype.type(length) * a, found)
        return found, length * slope, iterations

    def _of_intercepts(self, p, gradient, damping):
        """The Hessian of the intercepts, and something for what it leaves open.

        Where all rows of a class are surely taken for others, its intercept has no
        curvature: it gets so much that it moves by no more than probabilities can.
        """
        m, root = p.shape[1], math.sqrt(np.finfo(p.dtype).eps)
        if m == 1:
            hessian = (self.weight @ (p * (1 - p)))[:, None]
        else:  # a Laplacian, whose diagonal the others determine
            hessian = -((self.weight[:, None] * p).T @ p)
            np.fill_diagonal(hessian, 0.0)
            np.fill_diagonal(hessian, -hessian.sum(axis=0))
        own = hessian.diagonal().copy()
        largest = own.max() or 1.0
        if m > 1:  # what a shift that all classes share leaves open
            hessian += largest / m
        missing = np.maximum(np.abs(gradient) / -math.log(root) - own, 0)
        return hessian + np.diag(missing + root * largest + damping)
