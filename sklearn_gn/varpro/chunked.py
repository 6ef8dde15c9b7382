"""Rows that come in chunks: batches of them, and what is summed over all of them.

Batches are drawn from a random sample of the distinct rows. Where its batches are used
up, the next sample is drawn in a pass over the chunks. So they do not depend on the
order of the rows.

The objective on all rows and the output layer that is optimal for them come from sums
over blocks of rows.

-   For the squared loss, the weighted features and targets of all rows are replaced by
    the triangular factor of ``sqrt(w) (z, y)``, to which blocks are joined one by one.
    Its rows have the same least-squares problem, which is solved as that of rows in
    memory.
-   For the cross-entropy a pass gives the loss and its gradient in W. L-BFGS starts at
    the output layer that is optimal for a large batch, with the inverse Hessian there,
    and so takes few passes.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.data.chunks import prefetched
from sklearn_gn.data.rows_source import even_parts, part_length
from sklearn_gn.optim.multinomial import insufficient_decrease
from sklearn_gn.optim.solver import Rows
from sklearn_gn.varpro import inner, problem
from sklearn_gn.varpro.problem import Net, example_losses, features, loss_gradient

_LARGE_BATCH, _LARGE_BATCH_NUMBERS = 2**15, 2**22  # rows, and numbers in them
_ITERATIONS, _MEMORY = 100, 20  # of L-BFGS, and the steps that it remembers
_HALVINGS = 30  # of a step


class ChunkedRows:
    """Rows that are read again and again, in place of :class:`Rows` in memory.

    Parameters
    ----------
    chunks : iterable of tuples (X, y, weight)
        Checked chunks, in the user's units.
    scaled : callable
        Maps X and y to features and targets in the units of the fit.
    found : Survey
        Of the chunks.
    draw_sample : callable
        Maps a number other than 0, that of the first survey, to another one.
    dtype : dtype
        Precision of the fit.
    """

    def __init__(self, chunks, scaled, found, draw_sample, dtype):
        self._chunks, self._scaled, self._found = chunks, scaled, found
        self._draw_sample = draw_sample
        self._sample, self._draw = found.sample, 0
        self._size, self._dtype = len(found.sample.X), np.dtype(dtype)
        self._squares = None, None  # weights of a network, and the factor of its rows
        most = _LARGE_BATCH_NUMBERS // found.sample.X.shape[1]
        # That of later samples would depend on where a fit was resumed.
        self.large_batch = self._of_sample(slice(0, min(_LARGE_BATCH, max(most, 1))))

    # -- rows -------------------------------------------------------------------------

    def batch(self, size, number, seed):
        """Return the batch of a given number, and its share of all rows."""
        sweep, place = divmod(number, -(-self._size // size))
        draw = 0 if self._found.sample.is_complete else sweep
        if draw != self._draw:
            self._sample = (
                self._draw_sample(draw).sample if draw else self._found.sample
            )
            self._draw = draw
        rng = np.random.RandomState((int(seed) + sweep) % 2**32)
        order = rng.permutation(self._size)
        chosen = order[np.arange(place * size, (place + 1) * size) % self._size]
        return self._of_sample(chosen), size / self._found.n_rows

    def blocks(self):
        """Yield all rows, in blocks of equal length whose weights sum to one."""
        length = part_length(self._found.sample.X.shape[1])

        def blocks():
            for X, y, weight in even_parts(self._chunks):
                rows = self._in_units(X, y, weight / self._found.total)
                yield Rows(*(backend.pad_rows(a, length) for a in rows))

        return prefetched(blocks())

    def _of_sample(self, part):
        _, weight, X, y, _ = self._sample
        weight = weight[part]
        return self._in_units(X[part], y[part], weight / weight.sum())

    def _in_units(self, X, y, weight):
        x, t = self._scaled(X, y)
        with np.errstate(over="ignore"):  # large numbers may be infinite
            return Rows(*(a.astype(self._dtype) for a in (x, t, weight)))

    # -- sums over all rows -----------------------------------------------------------

    def least_squares(self, model, theta):
        """Return features and rows with the least-squares problem of all rows.

        Returns
        -------
        z : array of shape (p + q, p)
        rows : Rows
            Targets, and weights of one; ``x`` is None.
        """
        key = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(theta)]
        if key != self._squares[0]:
            x, y, _ = self._of_sample(slice(0, 1))
            p = jax.eval_shape(lambda theta: features(model, theta, x), theta).shape[1]
            factor = jnp.zeros(2 * (p + y.shape[1],), self._dtype)
            for rows in self.blocks():
                # Blocks that wait for a computation would fill the memory.
                factor = joined_factor(model, theta, factor, rows).block_until_ready()
            self._squares = key, (factor[:, :p], factor[:, p:])
        z, y = self._squares[1]
        return z, Rows(None, y, jnp.ones(len(y), y.dtype))

    def cross_entropy(self, model, net, penalties):
        """Return the objective and its gradient in W, in double precision."""
        loss, gradient = 0.0, np.zeros(net.output.shape)
        for rows in self.blocks():
            of_block = entropy_and_gradient(model, net, rows)
            loss += float(of_block[0])
            gradient += np.asarray(of_block[1], np.float64)
        loss += float(problem.total_penalty(model, *net, penalties))
        gradient += float(penalties.output) * np.asarray(net.output, np.float64)
        return loss, gradient


# --- the functions of rows, for rows in memory and in chunks --------------------------


def objective(model, net, rows, penalties):
    """Return the objective at the given output layer."""
    if not isinstance(rows, ChunkedRows):
        return problem.objective(model, net, rows, penalties)
    if model.loss == "squared":
        few = rows.least_squares(model, net.theta)
        return _squared_objective(model, net, *few, penalties)
    return rows.cross_entropy(model, net, penalties)[0]


def with_optimal_output(model, net, rows, penalties):
    """Return the network with its optimal output layer, and the objective."""
    if not isinstance(rows, ChunkedRows):
        return inner.with_optimal_output(model, net, rows, penalties)
    if model.loss == "squared":
        few = rows.least_squares(model, net.theta)
        return _with_least_squares(model, net, *few, penalties)
    return _with_least_cross_entropy(model, net, rows, penalties)


def cross_validated_penalty(model, theta, rows, n_samples):
    """Return the output penalty by generalised cross-validation."""
    if not isinstance(rows, ChunkedRows):
        return inner.cross_validated_penalty(model, theta, rows, n_samples)
    return _cross_validated(*rows.least_squares(model, theta), n_samples)


# --- the squared loss ----------------------------------------------------------------


@partial(jax.jit, static_argnames="model")
def joined_factor(model, theta, factor, rows):
    """Return the triangular factor of the rows of a factor and some more."""
    z = features(model, theta, rows.x)
    new = jnp.sqrt(rows.weight)[:, None] * jnp.concatenate([z, rows.y], axis=1)
    return jnp.linalg.qr(jnp.concatenate([factor, new]), mode="r")


@partial(jax.jit, static_argnames="model")
def _squared_objective(model, net, z, rows, penalties):
    loss = rows.weight @ example_losses(model, z @ net.output, rows.y)
    return loss + problem.total_penalty(model, *net, penalties)


@partial(jax.jit, static_argnames="model")
def _with_least_squares(model, net, z, rows, penalties):
    output, _ = inner.solve_squares(z, rows, penalties.output)
    net = Net(net.theta, output)
    return net, _squared_objective(model, net, z, rows, penalties)


@jax.jit
def _cross_validated(z, rows, n_samples):
    factors = inner.squares_factors(z, rows.weight)
    return inner.generalised_cross_validation(factors, rows, n_samples)


# --- the cross-entropy ---------------------------------------------------------------


@partial(jax.jit, static_argnames="model")
def entropy_and_gradient(model, net, rows):
    """Return the cross-entropy of some rows, and its gradient in W."""
    z = features(model, net.theta, rows.x)
    values = z @ net.output
    error = rows.weight[:, None] * loss_gradient(model, values, rows.y)
    return rows.weight @ example_losses(model, values, rows.y), z.T @ error


@partial(jax.jit, static_argnames="model")
def _optimal_for_sample(model, net, rows, penalties):
    found = inner.solve_inner(model, net.theta, rows, penalties, net.output)
    return found.output, found.factors


@jax.jit
def _hessian_solve(factors, gradient):
    return factors.solve(gradient)


def _with_least_cross_entropy(model, net, rows, penalties):
    """Return the network with its optimal output layer, and the objective.

    The iteration ends as that of :func:`inner.solve_entropy`.
    """
    dtype = net.output.dtype
    eps = float(jnp.finfo(dtype).eps)
    output, factors = _optimal_for_sample(model, net, rows.large_batch, penalties)

    def solve(gradient):
        return np.asarray(_hessian_solve(factors, gradient.astype(dtype)), np.float64)

    def evaluate(output):
        moved = net._replace(output=output.astype(dtype))
        return rows.cross_entropy(model, moved, penalties)

    output, pairs = np.asarray(output, np.float64), []
    loss, gradient = evaluate(output)
    goal = inner.INNER_TOL * max(1.0, np.max(np.abs(gradient)))
    for _ in range(_ITERATIONS):
        if not np.max(np.abs(gradient)) > goal:
            break
        step = -inverse_product(solve, pairs[-_MEMORY:], gradient)
        slope, rounding = float(np.sum(step * gradient)), 4 * eps * abs(loss)
        if not slope < 0:
            break
        new, following = evaluate(output + step)
        for _ in range(_HALVINGS):
            if not insufficient_decrease(new, loss, 1.0, slope, rounding):
                break
            step, slope = step / 2, slope / 2
            new, following = evaluate(output + step)
        stalled = np.max(np.abs(following)) >= np.max(np.abs(gradient)) / 2
        stalled &= -slope <= eps * abs(loss)
        if not new <= loss + rounding:
            break
        pairs.append((step, following - gradient))
        output, loss, gradient = output + step, new, following
        if stalled:  # at rounding the gradient no longer falls
            break
    return Net(net.theta, jnp.asarray(output, dtype)), loss


def inverse_product(solve, pairs, gradient):
    """Return the product of the inverse Hessian of L-BFGS with a gradient.

    Parameters
    ----------
    solve : callable
        Product with the inverse Hessian that the iteration starts from.
    pairs : list of tuples of ndarrays
        Steps and the changes of the gradient along them, the last ones last.
    gradient : ndarray
    """
    pairs = [(s, y, np.sum(s * y)) for s, y in pairs if np.sum(s * y) > 0]
    left, factors = gradient, []
    for s, y, curvature in reversed(pairs):
        factors.append(np.sum(s * left) / curvature)
        left = left - factors[-1] * y
    product = solve(left)
    for (s, y, curvature), factor in zip(pairs, reversed(factors), strict=True):
        product = product + (factor - np.sum(y * product) / curvature) * s
    return product
