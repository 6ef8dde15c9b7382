"""Global search for shallow ReLU networks: relocation around an iteration.

An iteration, the alternating one of SgGN or the joint one of VPGN, ends in a local
minimum within some ten steps: neurons that left the data, or crowd together, never come
back. A growing round of relocation adds neurons where the error is, lets everything
move and deletes as many where they matter least; an exchanging round first deletes one
or two neurons. Either result is kept if the loss fell.

All starts run side by side: every array of the networks has a leading axis of starts.
With many rows all of this looks at a sample of them, and the best network goes on with
all rows.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.core.linear_algebra.blocks import map_rows, sum_rows, triangular_factor
from sklearn_gn.core.linear_algebra.solve import filter_factors
from sklearn_gn.core.solver import Algorithm, Report
from sklearn_gn.shallow_relu import joint as vpgn
from sklearn_gn.shallow_relu import sggn
from sklearn_gn.shallow_relu.network import (
    ShallowReLU,
    hidden_features,
    unit_normals,
)
from sklearn_gn.shallow_relu.sggn import fit_output_layer, mass_design, residual

# Measured on the paper's step and peak problems and on random 5-neuron networks (20
# rounds): 8 neurons beat 4 and 6; many and few candidates in turn beat either alone;
# growing rounds alone recover 56 % of the random networks, with turned neurons and
# exchanging rounds all of them.
N_SPARE = 8  # neurons that a growing round adds, and deletes again
N_CANDIDATES = 256  # random hyperplanes tried for every neuron added
N_FEW = 8  # ... in rounds that leave more to chance
N_KEPT = 8  # best starts that go on to relocation
SAMPLE_ROWS = 8192  # rows on which the search runs where there are ...
MANY_ROWS = 2 * SAMPLE_ROWS  # ... more than this
SAMPLE_TOL = 1e-2  # relative decrease at which a descent on the sample ends
SAMPLE_STEPS = 5  # iterations on the sample between two looks at all rows
ROUND_STEPS = (10, 30)  # steps after the additions and the deletions
ROUND_TOL = 1e-4  # relative decrease at which a round stops its steps


class State(NamedTuple):
    """What a run remembers; the arrays of ``nets`` begin with an axis of starts."""

    net: ShallowReLU  # the best so far
    loss: float
    nets: ShallowReLU
    memory: tuple  # of the iterations
    losses: np.ndarray  # (n_starts,) on the sample or on all rows
    on_sample: bool
    round: int = 0  # relocation rounds done
    descending: bool = True  # False: the next step is a relocation round


class Data(NamedTuple):
    """All rows, and those that the search looks at."""

    rows: sggn.Rows
    sample: sggn.Rows


# --- one network ---------------------------------------------------------------------


def draw_hyperplanes(key, rows, error, n):
    """Random hyperplanes through rows drawn in proportion to their squared residual.

    In one dimension a breakpoint at a row; otherwise a hyperplane of random orientation
    through two rows, which finds a jump along a line as soon as both lie beside it.
    """
    d = rows.x.shape[1]
    dtype = rows.x.dtype
    key_row, key_normal = jax.random.split(key)
    mass = jnp.cumsum(jnp.sum(error**2, axis=1))
    drawn = jax.random.uniform(key_row, (2, n), dtype) * mass[-1]
    index = jnp.searchsorted(mass, drawn, side="right")
    first, second = rows.x[jnp.minimum(index, mass.shape[0] - 1)]
    normal = jax.random.normal(key_normal, (n, d), dtype)
    if d > 1:
        along = second - first
        length2 = jnp.sum(along**2, axis=1, keepdims=True)
        shift = jnp.sum(normal * along, axis=1, keepdims=True)
        normal = normal - along * (shift / jnp.where(length2 > 0, length2, 1))
    bias = -jnp.sum(normal * first, axis=1, keepdims=True)
    hyperplanes = jnp.concatenate([bias, normal], axis=1)
    return unit_normals(hyperplanes, jnp.zeros_like(hyperplanes).at[:, 1].set(1))


def insert(net, rows, options, draw, n_tried):
    """Add the neuron whose column lowers the least-squares loss most.

    Parameters
    ----------
    net, rows, options
        With room for one more neuron in ``net``.
    draw : int
        Number of the random draw.
    n_tried : int
        Random hyperplanes among which the best is taken.
    """
    n, p = N_CANDIDATES, 1 + net.coef.shape[0]
    key = jax.random.fold_in(jax.random.key(options.seed), draw)
    error = map_rows(lambda block: residual(net, block), rows)
    candidates = draw_hyperplanes(key, rows, error, n)

    def columns(block, error):
        new = jnp.sqrt(block.weight)[:, None] * hidden_features(candidates, block.x)
        return new, jnp.concatenate([mass_design(net, block), error], axis=1)

    def products(pair):
        new, old = columns(*pair)
        return jnp.sum(new**2, axis=0), old.T @ new

    norm2, cross = sum_rows(products, (rows, error))
    r = triangular_factor(lambda block: mass_design(net, block), rows)
    # The residual is orthogonal to the columns of the network already, so only the
    # norm of a candidate has to be projected.
    _, s, vt = jnp.linalg.svd(r)
    inverse = jnp.where(s > 1e-10 * s[0], 1 / jnp.where(s > 0, s, 1), 0)
    inside2 = jnp.sum((inverse[:, None] * (vt @ cross[:p])) ** 2, axis=0)
    outside2 = norm2 - inside2
    new = outside2 > 1e-10 * norm2
    drop = jnp.sum(cross[p:] ** 2, axis=0)
    gain = jnp.where(new, drop / jnp.where(new, outside2, 1), -1)
    best = jnp.argmax(jnp.where(jnp.arange(n, dtype=jnp.int32) < n_tried, gain, -1))
    slot = jnp.argmin(net.alive)
    grown = net._replace(
        hyperplanes=net.hyperplanes.at[slot].set(candidates[best]),
        alive=net.alive.at[slot].set(True),
    )
    return fit_output_layer(grown, rows, options)


def delete(net, rows, options, place):
    """Remove a neuron by the cost of its absence, turning another if that helps.

    Without neuron i the squared loss grows by ``|c_i|^2 / (A^-1)_ii``. The model has no
    linear term, so a neuron that points the wrong way, relu(-z) = relu(z) - z, makes
    another carry that linear function; no small move leads out of this. Hence every
    deletion is priced for the network as it is and with each neuron turned round.

    Parameters
    ----------
    net, rows, options
    place : int
        0 removes the neuron that costs least, 1 the next, and so on.
    """
    n, d = net.hyperplanes.shape[0], net.hyperplanes.shape[1] - 1

    def columns(block):
        root, design = jnp.sqrt(block.weight)[:, None], mass_design(net, block)
        parts = [design[:, :1], root * block.x, design[:, 1:], root * block.y]
        return jnp.concatenate(parts, axis=1)

    # One factor of all columns that occur, so that each price is a small problem.
    r = triangular_factor(columns, rows)
    affine, neurons, target = jnp.split(r, [1 + d, 1 + d + n], axis=1)
    turned = neurons - affine @ net.hyperplanes.T
    index = jnp.arange(-1, n, dtype=jnp.int32)  # -1: none is turned

    def price(j):
        mixed = jnp.where((index[1:] == j)[None, :], turned, neurons)
        u, s, vt = jnp.linalg.svd(
            jnp.concatenate([affine[:, :1], mixed], axis=1), full_matrices=False
        )
        factors = filter_factors(s, 0.0, options.rank, options.rank_tol)
        projected = u.T @ target
        coef = (vt.T @ (factors[:, None] * projected))[1:]
        fitted = jnp.sum(jnp.where(factors[:, None] > 0, projected, 0) ** 2)
        # Columns that depend on others get a large inverse, hence a small cost.
        tiny = jnp.finfo(s.dtype).tiny
        floor = jnp.maximum(options.rank_tol * s[0], tiny)
        inverse = jnp.sum((vt / jnp.maximum(s, floor)[:, None]) ** 2, axis=0)[1:]
        cost = jnp.sum(coef**2, axis=1) / jnp.maximum(inverse, tiny) - fitted
        usable = net.alive & ((j < 0) | net.alive[j])
        return jnp.where(usable, cost, jnp.inf)

    prices = jax.vmap(price)(index)
    slot = jnp.argsort(jnp.min(prices, axis=0))[place]
    turn = index[jnp.argmin(prices[:, slot])]  # the first: a tie turns nothing
    sign = jnp.where(index[1:] == turn, -1, 1).astype(r.dtype)
    net = net._replace(hyperplanes=net.hyperplanes * sign[:, None])
    return _without(net, slot, rows, options)


def delete_random(net, rows, options, draw):
    """Remove a neuron at random."""
    key = jax.random.fold_in(jax.random.key(options.seed), draw)
    value = jax.random.uniform(key, net.alive.shape, net.coef.dtype)
    slot = jnp.argmin(jnp.where(net.alive, value, jnp.inf))
    return _without(net, slot, rows, options)


def _without(net, slot, rows, options):
    pruned = net._replace(alive=net.alive.at[slot].set(False))
    return fit_output_layer(pruned, rows, options)


def descend(net, memory, rows, options, n_steps, tol, *, iterate):
    """At most ``n_steps`` iterations, to a relative decrease of ``tol``.

    Returns
    -------
    result : Iterate
        Of the last iteration.
    count : int
        Number of iterations.
    """

    def going(carry):
        result, count = carry
        falling = result.decrease > tol * result.loss
        return falling & ~result.rounding & (count < n_steps)

    def again(carry):
        result, count = carry
        return iterate(result.net, result.memory, rows, options), count + 1

    first = iterate(net, memory, rows, options)
    return lax.while_loop(going, again, (first, jnp.int32(1)))


# --- all starts, side by side --------------------------------------------------------


@jax.jit
def initialise_all(nets, rows, options):
    """Fit the output layers of initial networks; also return the losses."""
    return jax.vmap(lambda net: sggn.initialise(net, rows, options))(nets)


@partial(jax.jit, static_argnames="iterate")
def descend_all(nets, memory, rows, options, n_steps, tol, *, iterate):
    """:func:`descend` for all networks."""

    def run(net, memory):
        return descend(net, memory, rows, options, n_steps, tol, iterate=iterate)

    return jax.vmap(run)(nets, memory)


@jax.jit
def insert_all(nets, rows, options, draws, n_tried):
    """:func:`insert` for all networks, each with a draw of its own."""
    return jax.vmap(lambda net, k: insert(net, rows, options, k, n_tried))(nets, draws)


@jax.jit
def delete_all(nets, rows, options, place):
    """:func:`delete` for all networks."""
    return jax.vmap(lambda net: delete(net, rows, options, place))(nets)


@jax.jit
def delete_random_all(nets, rows, options, draws):
    """:func:`delete_random` for all networks, each with a draw of its own."""
    return jax.vmap(lambda net, k: delete_random(net, rows, options, k))(nets, draws)


# --- rounds --------------------------------------------------------------------------


class Search(NamedTuple):
    """An iteration, what it begins with, and the data."""

    iterate: callable
    begin: callable
    rows: sggn.Rows
    options: sggn.Options

    def descend(self, nets, n_steps):
        """Descend from networks that were changed by hand."""
        memory = jax.vmap(self.begin)(nets)
        tol = np.asarray(ROUND_TOL, self.rows.x.dtype)
        return descend_all(
            nets,
            memory,
            self.rows,
            self.options,
            np.int32(n_steps),
            tol,
            iterate=self.iterate,
        )

    def relocate(self, nets, round_):
        """One round: two kinds of growing and two of exchanging rounds in turn."""
        cycle, kind = divmod(round_, 4)
        n_starts = len(nets.alive)
        first = round_ * N_SPARE * n_starts
        draws = first + np.arange(N_SPARE * n_starts, dtype=np.int32)
        draws = draws.reshape(N_SPARE, n_starts)
        if kind < 2:
            n_tried = np.int32(N_FEW if kind else N_CANDIDATES)
            return self.grow_and_prune(nets, draws, n_tried)
        n_neurons = int(np.asarray(nets.alive[0]).sum())
        n_random = min(kind - 2, n_neurons - 1)
        place = np.int32(cycle % (n_neurons - n_random))
        return self.exchange(nets, draws, place, n_random)

    def grow_and_prune(self, nets, draws, n_tried):
        """Add neurons, descend, delete the cheapest as many, descend."""
        for draw in draws:
            nets = insert_all(nets, self.rows, self.options, draw, n_tried)
        grown, first = self.descend(nets, ROUND_STEPS[0])
        nets = grown.net
        for _ in draws:
            nets = delete_all(nets, self.rows, self.options, np.int32(0))
        result, second = self.descend(nets, ROUND_STEPS[1])
        return result, first + second

    def exchange(self, nets, draws, place, n_random):
        """Delete the neuron at a place of the price list, some at random; add anew."""
        for draw in draws[:n_random]:
            nets = delete_random_all(nets, self.rows, self.options, draw)
        nets = delete_all(nets, self.rows, self.options, place)
        for draw in draws[: n_random + 1]:
            nets = insert_all(
                nets, self.rows, self.options, draw, np.int32(N_CANDIDATES)
            )
        return self.descend(nets, sum(ROUND_STEPS))


# --- sizes ---------------------------------------------------------------------------


class Sizes:
    """Networks of growing or of falling size, for the choice of one."""

    most = 32

    def __init__(self, rows, options):
        d, q = rows.x.shape[1], rows.y.shape[1]
        self.search = Search(vpgn.iterate, vpgn.begin, rows, options)
        hyperplanes = np.zeros((1, self.most, 1 + d), rows.x.dtype)
        hyperplanes[:, :, 1] = 1
        empty = ShallowReLU(
            hyperplanes,
            np.zeros((1, self.most, q), rows.x.dtype),
            np.zeros((1, q), rows.x.dtype),
            np.zeros((1, self.most), bool),
        )
        self.nets, _ = initialise_all(empty, rows, options)
        self.draw = 0
        self._add(1)

    def _add(self, count):
        rows, options = self.search.rows, self.search.options
        for _ in range(count):
            draw = np.array([self.draw], np.int32)
            n_tried = np.int32(N_CANDIDATES)
            self.nets = insert_all(self.nets, rows, options, draw, n_tried)
            self.draw += 1
        self._descend()

    def _descend(self):
        result, _ = self.search.descend(self.nets, ROUND_STEPS[1])
        self.nets, self.loss = result.net, result.loss[0]

    def grow(self):
        """Double the number of neurons."""
        self._add(int(np.sum(self.nets.alive)))

    def prune(self):
        """Delete a neuron."""
        rows, options = self.search.rows, self.search.options
        self.nets = delete_all(self.nets, rows, options, np.int32(0))
        self._descend()

    def candidate(self):
        """Hyperplanes of shape (size, 1 + d), the loss and the number of parameters."""
        alive = np.array(self.nets.alive[0])
        hyperplanes = np.array(self.nets.hyperplanes[0])[alive]
        n, width = hyperplanes.shape
        # A hyperplane has one length less than numbers.
        parameters = n * (width - 1) + self.nets.coef.shape[2] * (1 + n)
        return hyperplanes, float(self.loss), parameters


# --- the solver ----------------------------------------------------------------------


def prepare(rows, options):
    """Draw the sample; all rows unless there are many."""
    weight = np.asarray(rows.weight)
    used = np.flatnonzero(weight > 0)
    if len(used) <= MANY_ROWS:
        return Data(rows, rows)
    rng = np.random.RandomState(int(options.seed))
    drawn = np.sort(rng.choice(used, SAMPLE_ROWS, replace=False))
    x, y, weight = (np.asarray(a)[drawn] for a in rows)
    return Data(rows, sggn.Rows(x, y, weight / weight.sum()))


def init(data, nets, options, *, begin):
    """Start from the hyperplanes of ``nets`` with the optimal output layers."""
    fitted, losses = initialise_all(nets, data.sample, options)
    losses, on_sample = np.array(losses), data.sample is not data.rows
    memory = jax.vmap(begin)(fitted)
    state = State(None, math.inf, fitted, memory, losses, on_sample)
    return _with_best(state, data, options)


def _best(losses):
    return int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))


def _with_best(state, data, options):
    """The state with its best network, if all rows find it better than the last."""
    best = _best(state.losses)
    if state.on_sample:
        one = jax.tree.map(lambda a: a[best : best + 1], state.nets)
        nets, losses = initialise_all(one, data.rows, options)
        net, loss = jax.tree.map(lambda a: a[0], nets), float(losses[0])
    else:
        net, loss = jax.tree.map(lambda a: a[best], state.nets), state.losses[best]
    if loss < state.loss or state.net is None:
        state = state._replace(net=net, loss=float(loss))
    return state


def _on_all_rows(state, data, options, begin):
    """Go on with the best network, and with all rows."""
    nets = jax.tree.map(lambda a: jnp.asarray(a)[None], state.net)
    nets, losses = initialise_all(nets, data.rows, options)
    memory = jax.vmap(begin)(nets)
    return state._replace(
        nets=nets,
        memory=memory,
        losses=np.array(losses),
        on_sample=False,
        descending=True,
    )


def step(data, state, options, *, iterate, begin):
    """An iteration of all, or a round of relocation once the descents have ended."""
    rows = data.sample if state.on_sample else data.rows
    search = Search(iterate, begin, rows, options)
    take = _descent_step if state.descending else _relocation_step
    state, report = take(search, state, data)
    if state.on_sample and report.stop is not None:
        state = _on_all_rows(state, data, options, begin)
        report = report._replace(stop=None)
    return state, report


def _descent_step(search, state, data):
    options = search.options
    last = state.round >= options.relocations
    # Before and between the rounds, the rounds' own tolerance saves time.
    tol = options.tol if last else max(options.tol, ROUND_TOL)
    if state.on_sample:
        tol = max(tol, SAMPLE_TOL)
    n_steps = SAMPLE_STEPS if state.on_sample else 1
    result, counts = descend_all(
        state.nets,
        state.memory,
        search.rows,
        options,
        np.int32(n_steps),
        np.asarray(tol, search.rows.x.dtype),
        iterate=search.iterate,
    )
    losses = np.array(result.loss)
    best = _best(losses)
    settled = not np.any(np.array(result.decrease) > tol * losses)
    stop = None
    if not math.isfinite(losses[best]):
        stop = "non_finite"
    elif not result.solved[best]:
        stop = "singular"
    elif result.rounding[best]:
        stop = "rounding"
    elif settled and last:
        stop = "tol"
    nets, memory = result.net, result.memory
    if settled and len(losses) > N_KEPT:
        kept = np.argsort(losses, kind="stable")[:N_KEPT]
        nets, memory = jax.tree.map(lambda a: a[kept], (nets, memory))
        losses = losses[kept]
    state = state._replace(
        nets=nets, memory=memory, losses=losses, descending=not settled
    )
    state = _with_best(state, data, options)
    inner = int(np.max(counts))
    return state, _report(
        result, best, loss=state.loss, inner_iterations=inner, stop=stop
    )


def _relocation_step(search, state, data):
    before = state.loss
    result, counts = search.relocate(state.nets, state.round)
    losses, done = np.array(result.loss), state.round + 1
    better = losses < state.losses  # False for NaN
    nets, memory = jax.tree.map(
        lambda new, old: jnp.where(
            better.reshape(-1, *(1,) * (new.ndim - 1)), new, old
        ),
        (result.net, result.memory),
        (state.nets, state.memory),
    )
    losses = np.where(better, losses, state.losses)
    best = _best(losses)
    # After the last round the descent goes on to its own tolerance.
    state = state._replace(
        nets=nets,
        memory=memory,
        losses=losses,
        round=done,
        descending=done >= search.options.relocations,
    )
    state = _with_best(state, data, search.options)
    accepted = state.loss < before
    stop = "rounding" if accepted and result.rounding[best] else None
    return state, _report(
        result,
        best,
        loss=state.loss,
        inner_iterations=int(np.max(counts)),
        accepted=accepted,
        stop=stop,
    )


def _report(result, best, **fields):
    return Report(
        grad_norm=float(result.grad_norm[best]),
        step_size=float(result.step_size[best]),
        gain_ratio=float(result.gain_ratio[best]),
        **fields,
    )


def searching(name, method):
    """The solver that relocates around the iteration of a module."""
    return Algorithm(
        name=name,
        prepare=prepare,
        init=partial(init, begin=method.begin),
        step=partial(step, iterate=method.iterate, begin=method.begin),
        n_spare=N_SPARE,
        side_by_side=True,
    )


SGGN = searching("sggn", sggn)
VPGN = searching("vpgn", vpgn)
