"""Global search for shallow ReLU networks: descents, and rounds of relocation.

An iteration, the alternating one of SgGN or the joint one, ends in a local minimum
within some ten steps: neurons that left the data, or crowd together, never come back. A
growing round of relocation adds neurons where the error is, lets everything move and
deletes as many where they matter least; an exchanging round first deletes one or two
neurons. Either result is kept if the loss fell.

Neurons are added by the decrease of the least-squares loss and deleted by its increase,
both exact for the output layer. All starts run side by side. With many rows the search
looks at a sample of them.
"""

import math
from functools import partial, wraps
from inspect import signature
from itertools import count
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.blocks import split, sum_rows
from sklearn_gn.arrays.collectives import AXIS, all_rows, n_devices, total
from sklearn_gn.arrays.devices import by_rows, jitted, put_rows
from sklearn_gn.linalg.factors import singular_triplets
from sklearn_gn.linalg.least_squares import filter_factors, triangular_factor
from sklearn_gn.optim.globalisation import Nielsen
from sklearn_gn.optim.solver import Algorithm, Report, Rows
from sklearn_gn.segmented.search import PATIENCE
from sklearn_gn.shallow_relu import baselines, sggn
from sklearn_gn.shallow_relu.lines import Phase
from sklearn_gn.shallow_relu.network import (
    ShallowReLU,
    hidden_features,
    initial_networks,
    mass_design,
    residual,
    unit_normals,
)
from sklearn_gn.shallow_relu.sggn import fit_output_layer

# Measured on the paper's problems and on random 5-neuron networks: 8 neurons beat 4 and
# 6, and many and few candidates in turn beat either alone; growing rounds alone recover
# 56 % of the networks, with turned neurons and exchanging rounds all of them.
N_SPARE = 8  # neurons that a growing round adds and deletes again; best starts it takes
N_CANDIDATES = 256  # for every neuron added; N_SPARE in rounds left more to chance
ROUND_STEPS = (10, 30)  # Gauss-Newton steps after the additions and the deletions
# Relative decrease at which a round stops its steps. A Python number would be another
# type to JAX than ``tol`` is, and what takes either would be compiled twice.
ROUND_TOL = np.float64(1e-4)
SAMPLE_ROWS = 8192  # on which the search runs where there are more than twice as many
SAMPLE_TOL = 1e-2  # relative decrease at which a descent on the sample ends
SAMPLE_STEPS = 5  # iterations on the sample between two looks at all rows


class Data(NamedTuple):
    """All rows, and the rows that the search looks at."""

    rows: Rows
    sample: Rows


# --- the search ----------------------------------------------------------------------


class Method(NamedTuple):
    """An iteration, and what the first one of a network remembers."""

    start: Any  # from network and rows to a tree of arrays
    update: Any  # from network, memory, rows and options to an Update


# What it remembers is the shift, relative to the largest eigenvalue.
JOINT = Method(
    lambda net, _: Nielsen.start(jnp.ones((), net.coef.dtype)), sggn.joint_update
)


class SearchState(NamedTuple):
    """What a run remembers."""

    net: ShallowReLU  # the best so far
    loss: float  # its loss on all rows
    nets: ShallowReLU  # a stack of networks, all starts
    memory: Any  # of their iterations
    losses: np.ndarray  # (n_starts,) by which the starts are compared
    on_sample: bool  # whether the losses are those of a sample of the rows
    phase: Phase
    round: int = 0  # rounds of relocation done


def prepare(rows, options):
    """Return the rows and a sample of them: all rows unless there are many."""
    mesh = getattr(rows, "mesh", None)
    few = draw_sample(rows, options) if options.relocations > 0 else rows
    if mesh is None:
        return Data(rows, few)
    sample = Rows(*put_rows(few, mesh))
    return Data(sample if few is rows else Rows(*put_rows(rows, mesh)), sample)


def init(data, nets, options, *, method):
    """Begin with a stack of initial networks."""
    nets, losses = initialise_all(nets, data.sample, options)
    state = SearchState(
        net=None,
        loss=math.inf,
        nets=nets,
        memory=start_all(nets, data.sample, start=method.start),
        losses=np.array(losses),
        on_sample=data.sample is not data.rows,
        phase=Phase.STARTS if options.relocations > 0 else Phase.END,
    )
    return with_best(data, state, options)


def with_best(data, state, options):
    """Return the state with its best network, if all rows find it better."""
    best = int(np.argmin(np.nan_to_num(state.losses, nan=np.inf)))
    net = jax.tree.map(lambda a: np.asarray(a)[best], state.nets)
    loss = state.losses[best]
    if state.on_sample:
        net, loss = net_on_all_rows(data, net, options)
    if state.net is None or loss < state.loss:
        state = state._replace(net=net, loss=float(loss))
    return state


def net_on_all_rows(data, net, options):
    """Return a network with the best output layer for all rows, and its loss."""
    nets = jax.tree.map(lambda a: a[None], net)
    nets, losses = initialise_all(nets, data.rows, options)
    return jax.tree.map(lambda a: a[0], nets), float(losses[0])


def step(data, state, options, *, method):
    """Take one step of the search."""
    before, relocates = state, state.phase == Phase.ROUNDS
    rows = data.sample if state.on_sample else data.rows
    # 1. All starts descend, or neurons of all are relocated where that is better.
    if relocates:
        result, n_steps = relocate(rows, state, options, method)
        state = state._replace(round=state.round + 1)
    else:
        # Before and between the rounds, the rounds' own tolerance saves time.
        last, most = state.phase == Phase.END, 1
        tol = options.tol if last else max(options.tol, ROUND_TOL)
        if state.on_sample:
            most, tol = SAMPLE_STEPS, max(tol, SAMPLE_TOL)
        nets, memory = backend.on_device((state.nets, state.memory))
        given = rows, options, np.int32(most), np.asarray(tol, rows.x.dtype)
        result, n_steps = descend_all(nets, memory, *given, update=method.update)
    found = jax.tree.map(np.asarray, result._replace(net=(), memory=()))
    if relocates:
        better, settled = found.loss < state.losses, True  # False for NaN
    else:
        settled = not np.any(found.decrease > tol * found.loss)
        better = np.ones(len(state.losses), bool)
    state = state._replace(
        nets=choose(better, result.net, state.nets),
        memory=choose(better, result.memory, state.memory),
        losses=np.where(better, found.loss, state.losses),
    )
    best = int(np.argmin(np.nan_to_num(state.losses, nan=np.inf)))
    # 2. The best few of them stay, once the descent from the starts has ended.
    if settled and len(state.losses) > N_SPARE:
        kept = np.argsort(state.losses, kind="stable")[:N_SPARE]
        few = backend.map_leaves(lambda a: a[kept], (state.nets, state.memory))
        state = state._replace(nets=few[0], memory=few[1], losses=state.losses[kept])
    # 3. The best network is that of all rows.
    if better.any():
        state = with_best(data, state, options)
    accepted = not relocates or state.loss < before.loss
    # 4. The fit stops, or the next phase begins.
    stop, at_rounding = None, bool(found.rounding[best])
    if not relocates and not np.isfinite(found.loss[best]):
        stop = "non_finite"
    elif at_rounding and accepted:
        stop = "rounding"
    elif not relocates and found.failure[best]:
        stop = sggn.FAILURES[int(found.failure[best])]
    elif settled and state.phase == Phase.END:
        stop = "tol"
    if settled and state.phase != Phase.END:
        more = state.round < options.relocations
        state = state._replace(phase=Phase.ROUNDS if more else Phase.END)
    # 5. With many rows it goes on from the best network of a sample to all of them.
    if stop is not None and state.on_sample:
        net, loss = net_on_all_rows(data, state.net, options)
        nets = jax.tree.map(lambda a: a[None], net)
        more, stop = state.round < options.relocations, None
        state = state._replace(
            nets=nets,
            memory=start_all(nets, data.rows, start=method.start),
            losses=np.array([loss]),
            on_sample=False,
            phase=Phase.STARTS if more else Phase.END,
        )
    logged = "grad_norm", "step_size", "damping", "gain_ratio"
    searches = relocates or before.on_sample
    return state, Report(
        state.loss if searches else float(found.loss[best]),  # which Adam may raise
        **{name: float(getattr(found, name)[best]) for name in logged},
        inner_iterations=int(np.max(n_steps)),
        accepted=accepted,
        stop=stop,
    )


def choose(better, new, old):
    """Return the new arrays of the starts where they are better, else the old ones."""

    def of_starts(new, old):
        chosen = better.reshape(better.shape + (1,) * (np.ndim(new) - 1))
        return np.where(chosen, np.asarray(new), np.asarray(old))

    return new if better.all() else backend.map_leaves(of_starts, new, old)


def relocate(rows, state, options, method):
    """Carry out a round for all starts: two growing and two exchanging, by turns."""
    nets = backend.on_device(state.nets)
    n_starts, n_neurons = len(state.losses), int(np.sum(state.nets.alive[0]))
    draws = state.round * N_SPARE * n_starts + np.arange(N_SPARE * n_starts)
    draws = draws.astype(np.int32).reshape(N_SPARE, n_starts)
    cycle, kind = divmod(state.round, 4)
    n_random, n_cheapest, n_added = 0, 0, N_SPARE
    if kind >= 2:
        n_random, n_cheapest = min(kind - 2, n_neurons - 1), 1
        n_added = n_random + n_cheapest
    n_tried = np.int32(N_SPARE if kind == 1 else N_CANDIDATES)
    rng = np.random.RandomState([options.seed, state.round])
    places = [*rng.randint(n_neurons, size=n_random), *[cycle] * n_cheapest]
    for k, place in enumerate(places):
        nets = delete_all(nets, rows, options, np.int32(place % (n_neurons - k)))
    for draw in draws[:n_added]:
        nets = insert_all(nets, rows, options, draw, n_tried)
    steps, before = sum(ROUND_STEPS), np.int32(0)
    if not n_cheapest:
        steps = ROUND_STEPS[1]
        result, before = descend_again(nets, rows, options, ROUND_STEPS[0], method)
        nets = result.net
        for _ in range(n_added):
            nets = delete_all(nets, rows, options, np.int32(0))
    result, count = descend_again(nets, rows, options, steps, method)
    return result, before + count


def descend_again(nets, rows, options, n_steps, method):
    """Descend from networks whose neurons have changed."""
    memory = start_all(nets, rows, start=method.start)
    given = rows, options, np.int32(n_steps), np.asarray(ROUND_TOL, rows.x.dtype)
    return descend_all(nets, memory, *given, update=method.update)


def draw_sample(rows, options):
    """Return the rows that the search looks at."""
    weight = np.asarray(rows.weight)
    used = np.flatnonzero(weight > 0)
    if len(used) <= 2 * SAMPLE_ROWS:
        return rows
    rng = np.random.RandomState(int(options.seed))
    drawn = np.sort(rng.choice(used, SAMPLE_ROWS, replace=False))
    x, y, weight = (np.asarray(a)[drawn] for a in rows)
    return Rows(x, y, weight / weight.sum())


# --- one network ---------------------------------------------------------------------


def draw_hyperplanes(key, rows, error, n):
    """Return random hyperplanes through rows drawn by their squared residuals.

    In one dimension a breakpoint at a row; otherwise a hyperplane of random orientation
    through two rows, which finds a jump along a line as soon as both lie beside it.
    """
    d = rows.x.shape[1]
    dtype = rows.x.dtype
    key_row, key_normal = jax.random.split(key)
    mass = jnp.cumsum(jnp.sum(error**2, axis=1))
    drawn = jax.random.uniform(key_row, (2, n), dtype)
    first, second = _rows_at(rows.x, mass, drawn)
    normal = jax.random.normal(key_normal, (n, d), dtype)
    if d > 1:
        along = second - first
        length2 = jnp.sum(along**2, axis=1, keepdims=True)
        shift = jnp.sum(normal * along, axis=1, keepdims=True)
        normal = normal - along * (shift / jnp.where(length2 > 0, length2, 1))
    bias = -jnp.sum(normal * first, axis=1, keepdims=True)
    hyperplanes = jnp.concatenate([bias, normal], axis=1)
    return unit_normals(hyperplanes, jnp.zeros_like(hyperplanes).at[:, 1].set(1))


def _rows_at(x, mass, drawn):
    """The rows at some shares of a cumulated mass."""
    last = mass.shape[0] - 1
    if n_devices() == 1:
        index = jnp.searchsorted(mass, drawn * mass[-1], side="right")
        return x[jnp.minimum(index, last)]
    ends = jnp.cumsum(all_rows(mass[-1:]))
    place = drawn * ends[-1]
    owner = jnp.searchsorted(ends, place, side="right")
    owner = jnp.minimum(owner, n_devices() - 1)
    here = lax.axis_index(AXIS)
    index = jnp.searchsorted(mass, place - (ends[here] - mass[-1]), side="right")
    found = x[jnp.minimum(index, last)]
    return total(jnp.where((owner == here)[..., None], found, 0))


def insert(net, rows, options, draw, n_tried):
    """Add the neuron whose column lowers the least-squares loss most."""
    n, p = N_CANDIDATES, 1 + net.coef.shape[0]
    key = jax.random.fold_in(jax.random.key(options.seed), draw)
    error = lax.map(lambda block: residual(net, block), split(rows))
    error = error.reshape(-1, error.shape[-1])
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
    _, s, vt = singular_triplets(r)
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
    another carry that linear function; no small move leads out of this. Hence a
    deletion is tried with the network as it is and with one neuron turned round.
    """
    n, d = net.hyperplanes.shape[0], net.hyperplanes.shape[1] - 1

    def columns(block):
        root, design = jnp.sqrt(block.weight)[:, None], mass_design(net, block)
        parts = [design[:, :1], root * block.x, design[:, 1:], root * block.y]
        return jnp.concatenate(parts, axis=1)

    # One factor of all columns that occur, so that each cost is a small problem.
    r = triangular_factor(columns, rows)
    affine, neurons, target = jnp.split(r, [1 + d, 1 + d + n], axis=1)
    turned = neurons - affine @ net.hyperplanes.T
    index = jnp.arange(-1, n, dtype=jnp.int32)  # -1: none is turned

    def costs(j):
        mixed = jnp.where((index[1:] == j)[None, :], turned, neurons)
        u, s, vt = singular_triplets(jnp.concatenate([affine[:, :1], mixed], axis=1))
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

    table = jax.vmap(costs)(index)
    slot = jnp.argsort(jnp.min(table, axis=0))[place]
    turn = index[jnp.argmin(table[:, slot])]  # the first: a tie turns nothing
    sign = jnp.where(index[1:] == turn, -1, 1).astype(r.dtype)
    net = net._replace(hyperplanes=net.hyperplanes * sign[:, None])
    net = net._replace(alive=net.alive.at[slot].set(False))
    return fit_output_layer(net, rows, options)


def descend(net, memory, rows, options, n_steps, tol, *, update):
    """At most ``n_steps`` iterations, to a relative decrease of ``tol``."""

    def going(carry):
        result, count = carry
        falling = result.decrease > tol * result.loss
        return (count == 0) | falling & ~result.rounding & (count < n_steps)

    def iterate(net, memory):
        found = update(net, memory, rows, options)
        loss = sggn.objective(found.net, rows, options.alpha)
        rounding = sggn.at_rounding_level(found.net, rows, loss)
        found = found._replace(loss=loss, rounding=rounding)
        return jax.tree.map(jnp.asarray, found)

    def again(carry):
        result, count = carry
        return iterate(result.net, result.memory), count + 1

    # The first one in the loop, too: it is compiled once.
    first = jax.eval_shape(iterate, net, memory)
    first = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), first)
    first = first._replace(net=net, memory=memory)
    return lax.while_loop(going, again, (first, jnp.int32(0)))


# --- all starts, side by side --------------------------------------------------------


def of_all(function, *own, static=None):
    """Compile a function of one network for a stack of networks; one needs no batch.

    ``own`` names the arguments that each network has for itself.
    """
    parameters = signature(function)

    @wraps(function)
    def run(*args, **kwargs):
        others = dict(parameters.bind(*args, **kwargs).arguments)
        stacks = {name: others.pop(name) for name in own}

        def of_one(arguments):
            return function(**arguments, **others)

        if len(jax.tree.leaves(stacks)[0]) > 1:
            return jax.vmap(of_one)(stacks)
        found = of_one(jax.tree.map(lambda a: a[0], stacks))
        return jax.tree.map(lambda a: jnp.asarray(a)[None], found)

    return by_rows(run, jitted(static_argnames=static))


def initialise(net, rows, options):
    """Fit the output layer of an initial network; also return the loss."""
    net = fit_output_layer(net, rows, options)
    return net, sggn.objective(net, rows, options.alpha)


initialise_all = of_all(initialise, "net")
start_all = of_all(lambda net, rows, *, start: start(net, rows), "net", static="start")
descend_all = of_all(descend, "net", "memory", static="update")
insert_all = of_all(insert, "net", "draw")
delete_all = of_all(delete, "net")


# --- sizes ---------------------------------------------------------------------------


def select_size(rows, options, first, path, is_late):
    """Visit networks of several sizes, which a path compares.

    After Liu, Cai and Chen, "Adaptive two-layer ReLU neural network" (2022), the
    network doubles where the error is until the criterion gets worse; from there the
    neurons that matter least are deleted, a quarter at a time of a network of more than
    twice the best size so far, then one by one. ``first`` are hyperplanes to start
    from, or None.
    """
    q, mesh = rows.y.shape[1], getattr(rows, "mesh", None)
    rows = rows if mesh is None else Rows(*put_rows(rows, mesh))
    first = np.zeros((0, 1 + rows.x.shape[1])) if first is None else first
    most, draws = max(32, len(first)), count()
    nets = initial_networks(first[None], most - len(first), q, rows.x.dtype)
    nets, _ = initialise_all(nets, rows, options)

    def changed(nets, n_added, n_deleted=0):
        for _ in range(n_added):
            draw = np.array([next(draws)], np.int32)
            nets = insert_all(nets, rows, options, draw, np.int32(N_CANDIDATES))
        for _ in range(n_deleted):
            nets = delete_all(nets, rows, options, np.int32(0))
        result, _ = descend_again(nets, rows, options, ROUND_STEPS[1], JOINT)
        net = jax.tree.map(lambda a: np.array(a[0]), result.net)
        hyperplanes = net.hyperplanes[net.alive]
        n, width = hyperplanes.shape
        # A hyperplane has one length less than numbers.
        n_parameters = n * (width - 1) + q * (1 + n)
        loss = float(result.loss[0])
        return result.net, *path.visit(hyperplanes, loss, n_parameters)

    nets, best, n = changed(nets, n_added=0 if len(first) else 1)
    since = 0
    while 2 * n <= most and since < PATIENCE and not is_late():
        nets, worth, grown = changed(nets, n_added=n)
        since = 0 if worth < best else since + 1
        best = min(best, worth)
        if grown <= n:  # no place is left where a neuron lowers the loss
            break
        n = grown
    while n > 1 and not is_late():
        size = path.best_size()
        n_deleted = min(n - 2 * size, n // 4) if n > 2 * size + 1 else 1
        nets, _, pruned = changed(nets, 0, n_deleted)
        if pruned >= n:  # without a loss no neuron matters least
            break
        n = pruned


METHODS = {
    "vpgn": JOINT,
    "sggn": Method(lambda net, rows: (), sggn.sggn_update),
    **{name: Method(*pair) for name, pair in baselines.METHODS.items()},
}
ALGORITHMS = {
    name: Algorithm(
        name,
        partial(init, method=method),
        partial(step, method=method),
        prepare=prepare,
        n_spare=N_SPARE,
    )
    for name, method in METHODS.items()
}
