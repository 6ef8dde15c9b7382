"""Coordinates in which Newton's method fits a head, and its systems there.

Features are centred where there is an intercept, and scaled where the penalty is
chosen, so that the units of a column do not matter. Of these features, x, the method
takes coordinates ``z = x basis``, uncorrelated and of variance one; a head V of
z is the head ``basis V`` of x. The basis comes from one eigendecomposition, of the
smaller Gram matrix, of the rows or of the features; of few rows, heads are
combinations, and so they are of sparse rows. It is a diagonal where rows and features
are very many, and where features are of very different size. Gradient and loss have the
precision of the fit; for the direction of a step, and the least loss along it, single
precision is enough here.

The preconditioner of the Newton systems is the curvature of a class plus the penalty.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.linalg import norm
from scipy import sparse
from scipy.special import softmax

from sklearn_gn import _switches as switches
from sklearn_gn._typing import Array
from sklearn_gn.arrays.backend import views
from sklearn_gn.arrays.collectives import all_rows, own_rows, total
from sklearn_gn.arrays.libraries import NumPy, in_either_library, library_of
from sklearn_gn.arrays.trees import add, dot
from sklearn_gn.data.units import moments
from sklearn_gn.linalg import factors
from sklearn_gn.linalg.krylov import conjugate_gradient
from sklearn_gn.optim.multinomial import hessian_product, probabilities, to_columns
from sklearn_gn.softmax_head.head import (
    AffineHead,
    BatchedRows,
    evaluate,
    forcing_of,
    gradient_norms,
    in_basis,
    over_blocks,
    times,
    values,
    values_transposed,
)
from sklearn_gn.softmax_head.penalty import DECADES, JUDGES

_ONE_UNIT = 6.0  # log odds that sizes of features say what matters, before the rows
ROTATED = 2048  # rows or features, at most, of which principal axes are computed


# --- the coordinates -----------------------------------------------------------------


class Units(NamedTuple):
    """Features ``x = (X - center) / size`` from the given X."""

    center: np.ndarray
    size: np.ndarray
    # Of x, whose Gram matrix has the principal axes: 0 of the rows, 1 of the features;
    # None where none are taken.
    axis: int | None

    @classmethod
    def of(cls, X, label, weight, intercept, scaled):
        """Put dense features into units, in their memory, and return these.

        With an intercept they are centred. They may be ``scaled`` by their standard
        deviations, which the kurtosis raises. Small features may be unimportant, so one
        unit for all features, and the geometric mean of both, have a share in the
        logarithm of the unit, by the evidence of a linear regression on the classes.
        Before these, one unit is likelier.
        """
        mean, size = moments(X, weight)
        eps = np.finfo(X.dtype).eps
        center = mean if intercept else np.zeros_like(mean)
        if not intercept:
            size = np.hypot(mean, size)
        X -= center
        X[:, np.abs(X).max(axis=0) <= 16 * eps * np.abs(center)] = 0  # constants
        unit = np.ones_like(size)
        if scaled:
            X /= size
            far = (np.maximum(weight @ X**4, 1) / 3) ** 0.25
            X /= far
            size = size * far
            largest = size[X.any(axis=0)].max(initial=size.min())
            shares, x = np.array([0.0, 0.5, 1.0]), X[:JUDGES]
            judged = [
                evidence(x * (size / largest) ** k, label[:JUDGES], weight[:JUDGES])
                for k in shares
            ]
            share = softmax(np.add(judged, _ONE_UNIT * shares)) @ shares
            unit = size ** (1 - share) * largest**share
            X *= size / unit
        # Axes of features of different size would be those of the largest.
        left = size / unit
        alike = left.min() > np.sqrt(64 * eps) * left.max()
        rotated = alike and min(X.shape) <= ROTATED and switches.on("heads.whitening")
        return cls(center, unit, int(len(X) >= X.shape[1]) if rotated else None)


def evidence(x, label, weight):
    """Log evidence of a ridge regression on the classes, at its best penalty.

    Less that of the same labels in random order, which say only how many rows of each
    class there are.
    """
    root = np.sqrt(weight)[:, None]
    targets = np.equal.outer(label, np.unique(label)).astype(x.dtype)
    targets = root * (targets - weight @ targets / weight.sum())
    x = root * (x - weight @ x / weight.sum())
    variance, axes = factors.eigenpairs_of_rows(x)
    largest, eps = variance.max(initial=0), np.finfo(x.dtype).eps
    kept = variance > len(x) * eps * largest
    variance, axes = variance[kept], axes[:, kept]
    square = np.sum(targets**2)
    along = np.sum((axes.T @ (x.T @ targets)) ** 2, axis=1) / variance
    along = np.stack([along, np.full(len(along), square / max(len(x) - 1, 1))])
    rest = np.maximum(square - np.sum(along, axis=1), eps**2)
    ratio = 1 + variance / (largest * 10.0 ** -np.arange(-1, DECADES)[:, None])
    noise = rest + (1 / ratio) @ along.T
    lost = np.sum(np.log(ratio), axis=1)[:, None] + len(x) * np.log(noise)
    return (targets.shape[1] - 1) / 2 * np.subtract(*lost.min(axis=0)[::-1])


class Whitened(NamedTuple):
    """Weighted rows in whitened coordinates, and what heads there are of x."""

    x: Array  # (L, r)  z
    label: Array  # (L,)
    weight: Array  # (L,)
    single: Array  # (L, r)  z in single precision
    squares: Array  # (r, 1)  |basis e_j|^2
    # (d, r), or (d,) of a diagonal, or (L, r): the basis is then the centred rows
    # transposed times this, and the dual, its inverse transposed, that of other axes.
    # None where heads lead nowhere else.
    basis: Array | None
    dual: Array | None
    counted: None = None  # as weights are those of the rows

    def in_single(self):
        """Return the rows in single precision, and the largest standard deviation."""
        dual = np.asarray(self.dual)
        largest = np.max(norm(dual, axis=1) if dual.ndim == 2 else dual)
        weight, dual = single((self.weight, self.dual))
        rows = self._replace(x=self.single, weight=weight, basis=None, dual=dual)
        return rows, float(largest)

    def logits(self, net, numbers):
        """Return the logits of some rows."""
        return values_of(net, self.x, numbers)

    def evaluate(self, net, alpha, intercept):
        """The objective of a head, its gradient, and the mean traces."""
        return evaluate(net, self, alpha, intercept, self.squares, self.dual)

    def direction(self, state, settings):
        """A Newton step, its slope, and the iterations that it took."""
        last = state.last_step if settings.damping else None  # which makes steps short
        return newton_direction(state.net, state.gradient, self, settings, last)


class Coordinates(NamedTuple):
    """What leads from heads of the given features to heads of z, and back."""

    units: Units
    space: Whitened
    few: BatchedRows | None  # rows of x of which the heads are combinations
    intercept: np.ndarray

    def begin(self, net):
        """Return a head of the features as given for the coordinates."""
        basis, dual = views((self.space.basis, self.space.dual))
        bias = net.bias + self.units.center @ net.weight
        weight = net.weight * self.units.size[:, None]
        if self.few is not None:
            weight = self.few.x @ weight
            weight = weight - self.intercept * (self.few.weight @ weight)
            weight = dual[:, None] * (basis.T @ weight)
        weight = in_basis(dual.T, weight)
        return AffineHead(*(a.astype(net.bias.dtype) for a in (weight, bias)))

    def head(self, net):
        """Return the head of the features as given."""
        weight = in_basis(views(self.space.basis), net.weight)
        if self.few is not None:
            mean = self.intercept * weight.sum(axis=0)
            weight = self.few.x.T @ (weight - self.few.weight[:, None] * mean)
        weight = weight / self.units.size[:, None]
        return AffineHead(weight, net.bias - self.units.center @ weight)


@partial(in_either_library, rows_out=True)
def values_of(head, x, numbers):
    """Values of some rows, or of all if there are no numbers."""
    return values(head, x if numbers is None else x[numbers])


@partial(
    in_either_library,
    rows_out=(True, True, False, False, False),
    static_argnames="axis",
)
def whiten(rows, intercept, axis):
    """Principal axes of the features, each scaled to unit variance; all of `Whitened`.

    Axes that differ from zero by rounding alone are left out.
    """
    library, x, weight, null = library_of(rows), rows.x, rows.weight, 0
    xp, product = library.xp, library.symmetric_product
    if axis is None:
        variance = total(weight @ x**2)
    elif axis == 1:
        covariance = total(product((x * xp.sqrt(weight)[:, None]).T))
        variance, axes = factors.eigenpairs(covariance)
    else:
        sparse_x = sparse.issparse(x)
        gram = (x @ x.T).toarray() if sparse_x else product(all_rows(x))
        mean = intercept * total(weight @ own_rows(gram))
        gram = gram - mean[:, None] - mean[None]
        gram = gram + total(weight @ own_rows(mean[:, None]))[None]
        root = xp.sqrt(all_rows(weight))
        variance, axes = factors.eigenpairs(gram * root[:, None] * root[None])
    if axis is not None:
        null = 8 * xp.finfo(x.dtype).eps * xp.max(variance)
    keep = variance > null
    size = xp.sqrt(xp.where(keep, variance, 1))
    inverse, size = xp.where(keep, 1 / size, 0), xp.where(keep, size, 0)
    basis, dual = inverse, size
    if axis == 0:
        axes = root[:, None] * axes * inverse[None]
    if axis is not None:
        basis = axes * inverse[None]
    if axis == 1:
        dual = axes * size[None]
    # Before single precision: features of any size come down to size one.
    z = in_coordinates(own_rows(gram) if axis == 0 else x, basis)
    return z, z.astype(np.float32), inverse[:, None] ** 2, basis, dual


def in_coordinates(x, basis):
    """``x basis``, of NumPy in the memory of x."""
    if basis.ndim == 1:
        return x * basis[None]
    if library_of(x) is not NumPy or x.shape[1] != basis.shape[1]:
        return x @ basis
    for k in range(0, len(x), len(basis)):
        part = slice(k, k + len(basis))
        x[part] = x[part] @ basis
    return x


# --- the Newton system ---------------------------------------------------------------


@in_either_library
def newton_direction(net, gradient, data, settings, last=None):
    """Inexact Newton step in single precision, its slope, and the iterations.

    Where ``last``, the step before, is given, the direction has the least undamped
    model over both: damping alone would make it a gradient step.
    """
    library, x = library_of(data.single), data.single
    xp = library.xp
    size, _ = gradient_norms(gradient)
    size = xp.where(size > 0, size, 1)
    right = single(library.tree_map(lambda g: -g / size, gradient))
    given = data.weight, settings.damping, settings.intercept
    weight, damping, intercept = single(given)
    penalty = single(times(settings.alpha, data.squares))
    shift = single(times(settings.alpha + settings.damping, data.squares))
    p = all_probabilities(single(net), x)
    curvature = over_blocks(
        lambda found, p, weight: found + weight @ (p * (1 - p)),
        xp.zeros(p.shape[1], p.dtype),
        (p, weight),
        p.shape[1],
    )
    curvature = total(curvature)
    least = xp.finfo(p.dtype).eps * xp.max(curvature)
    curvature = to_columns(xp.maximum(curvature, least))
    # The bias of a class without probability has a gradient and no curvature: it goes
    # no farther than probabilities of single precision do.
    farthest = -np.log(xp.finfo(p.dtype).eps)
    lacking = xp.abs(right.bias) * size.astype(x.dtype) / farthest - curvature
    damping = damping + xp.maximum(lacking, 0)

    def product(v, shift=shift, damping=damping):
        def add_block(found, x, p, weight):
            forward = partial(values, x=x), partial(values_transposed, x)
            return add(found, 1, hessian_product(*forward, p, weight, v))

        start = library.tree_map(xp.zeros_like, v)
        image = total(over_blocks(add_block, start, (x, p, weight), p.shape[1]))
        bias = intercept * (image.bias + damping * v.bias)
        return AffineHead(image.weight + shift * v.weight, bias)

    # Beside the coefficients of the features stands a last row, the biases.
    m, last_row = len(curvature), intercept / (curvature + damping)
    bends = xp.concatenate([1 / (curvature[None] + shift), last_row[None]], axis=0)
    alike = xp.append(1 / (shift + xp.sum(curvature) / m), 0 * damping[:1])

    def precondition(r):
        r = xp.concatenate([r.weight, r.bias[None]])
        # What moves all classes alike changes no probability.
        common = xp.sum(r, axis=1, keepdims=True) / m if m > 1 else 0 * r
        solved = (r - common) * bends
        if m > 1:
            moved = xp.sum(solved, axis=1, keepdims=True) / m
            solved = solved - moved + common * alike[:, None]
        return AffineHead(solved[:-1], solved[-1])

    step, iterations, _ = conjugate_gradient(
        product,
        right,
        precondition=precondition,
        tol=forcing_of(size, settings),
        max_iter=settings.cg_iterations,
    )
    if last is not None:
        without = partial(product, shift=penalty, damping=0 * damping)
        step = least_of_both(without, right, step, single(last))
    direction = library.tree_map(lambda d: d.astype(size.dtype) * size, step)
    return direction, dot(direction, gradient), iterations


def all_probabilities(head, x):
    """Probabilities of all rows, with logits of a block of them at a time."""
    library, n_classes = library_of((head, x)), max(len(head.bias), 2)

    def write(carry, x):
        found, n_rows = carry
        part = probabilities(values(head, x))
        return library.with_part(found, part, n_rows, 0), n_rows + x.shape[0]

    empty = library.xp.zeros((x.shape[0], n_classes), head.bias.dtype)
    return over_blocks(write, (empty, 0), (x,), n_classes)[0]


def least_of_both(product, right, step, last):
    """Minimum of a quadratic model over two directions."""
    library, pair = library_of(right), (step, last)
    xp, images = library.xp, [product(v) for v in pair]
    matrix = xp.stack([xp.stack([dot(v, image) for image in images]) for v in pair])
    size = xp.sqrt(matrix.diagonal())
    size = xp.where(size > 0, size, 1)
    slopes = xp.stack([dot(v, right) for v in pair]) / size
    share = factors.solve_semidefinite(
        matrix / size[None] / size[:, None], slopes[:, None]
    )
    share = share[:, 0] / size
    return library.tree_map(lambda a, b: share[0] * a + share[1] * b, step, last)


def single(tree):
    """The arrays of a tree in single precision."""
    library = library_of(tree)
    return library.tree_map(lambda a: library.xp.asarray(a).astype(np.float32), tree)
