"""Structure-guided Gauss-Newton (SgGN) for shallow ReLU networks.

Cai, Ding, Liu, Liu and Xia, "A structure-guided Gauss-Newton method for shallow ReLU
neural network", Algorithm 1, and a global search around it (relocation).

The objective, for rows x_k with targets t_k and weights mu_k that sum to one, is

    F(c, r) = 1/2 sum_k mu_k |u(x_k) - t_k|^2 + damping/2 sum_i |c_i|^2 |w_i|^2 .

The output layer c is a linear least-squares problem with the mass matrix A(r). In the
hidden layer r the Gauss-Newton matrix is (D(c) kron I) H(r) (D(c) kron I): it is
singular only through zeros of c, which the active set removes, and through cells of the
partition that hold too few rows, which the truncated solve removes.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.curvature.line_search import grid_search
from sklearn_gn.curvature.solve import filter_factors, gram_spectrum, least_squares
from sklearn_gn.networks.shallow_relu import (
    ShallowReLU,
    heaviside,
    hidden_features,
    output_weights,
    preactivations,
    predict,
    rescale,
    unit_normals,
)
from sklearn_gn.solvers._base import Report, Solver

# Constants of the relocation, measured on the paper's step and peak problems and on
# random 5-neuron networks (20 rounds): 8 neurons beat 4 and 6; many and few candidates
# in turn beat either alone; growing rounds alone recover 56 % of the random networks,
# with turned neurons and exchanging rounds all of them.
N_SPARE = 8  # neurons that a growing round adds, and deletes again
N_CANDIDATES = 256  # random hyperplanes tried for every neuron added
N_FEW = 8  # ... in rounds that leave more to chance
ROUND_STEPS = (10, 30)  # Gauss-Newton steps after the additions and the deletions
ROUND_TOL = 1e-4  # relative decrease at which a round stops its steps


class Rows(NamedTuple):
    """Training rows, padded with rows of weight zero; the weights sum to one."""

    x: jnp.ndarray  # (m, d)
    y: jnp.ndarray  # (m, q)
    weight: jnp.ndarray  # (m,)


class Options(NamedTuple):
    """Settings, all traced but the two that only Python reads."""

    damping: float  # shift of the Gauss-Newton matrices
    rank: int  # most directions kept in a solve
    rank_tol: float  # least relative singular value kept in a solve
    active_tol: float  # least relative |c_i| of an active neuron
    tol: float  # relative decrease of the loss that ends the descent
    relocations: int  # rounds of the global search
    max_iter: int  # iterations the run may take at most
    learning_rate: float  # of first-order solvers
    seed: int  # of the relocation's random draws


class Iterate(NamedTuple):
    """Result of one iteration."""

    net: ShallowReLU
    loss: float
    decrease: float
    rounding: bool  # the loss is at rounding level
    solved: bool  # the Gauss-Newton system gave a finite direction
    grad_norm: float
    step_size: float
    gain_ratio: float


class State(NamedTuple):
    """What a run of SgGN remembers."""

    net: ShallowReLU
    loss: float
    round: int = 0  # relocation rounds done
    descending: bool = True  # False: the next step is a relocation round


# --- the matrices of the paper -------------------------------------------------------


def mass_design(net, rows):
    """Square root of the mass matrix A(r): rows ``sqrt(mu_k) (1, relu(r_i . y_k))``."""
    features = jnp.where(
        net.alive[None, :], hidden_features(net.hyperplanes, rows.x), 0
    )
    ones = jnp.ones_like(features[:, :1])
    return jnp.sqrt(rows.weight)[:, None] * jnp.concatenate([ones, features], axis=1)


def layer_design(net, rows, active):
    """Square root of the layer Gauss-Newton matrix H(r) on the active set.

    With one output its rows are ``sqrt(mu_k) (h_k kron y_k)`` up to the sign of c_i;
    with several, neuron i contributes the direction of row i of the coefficients.

    Returns
    -------
    array of shape (m * q, n * (1 + d))
    """
    m, d = rows.x.shape
    n, q = net.coef.shape
    z = preactivations(net.hyperplanes, rows.x)
    h = jnp.where(active[None, :], heaviside(z), 0)
    direction = net.coef / jnp.where(active, activity(net), 1)[:, None]
    y = jnp.concatenate([jnp.ones((m, 1), rows.x.dtype), rows.x], axis=1)
    y = y * jnp.sqrt(rows.weight)[:, None]
    return jnp.einsum("ki,il,kj->klij", h, direction, y).reshape(m * q, n * (1 + d))


def activity(net):
    """``|c_i|``, the factor that makes the Gauss-Newton matrix singular at zero."""
    return jnp.linalg.norm(net.coef, axis=1)


def active_set(net, active_tol):
    """Neurons whose ``|c_i|`` is at least ``active_tol`` times the largest."""
    size = activity(net)
    return net.alive & (size > 0) & (size >= active_tol * jnp.max(size))


def residual(net, rows):
    """Weighted residual ``sqrt(mu_k) (u(x_k) - t_k)``, of shape (m, q)."""
    return jnp.sqrt(rows.weight)[:, None] * (predict(net, rows.x) - rows.y)


def objective(net, rows, damping):
    """The objective F."""
    penalty = damping * jnp.sum(output_weights(net) ** 2)
    return 0.5 * (jnp.sum(residual(net, rows) ** 2) + penalty)


# --- one iteration (Algorithm 1) -----------------------------------------------------


def fit_output_layer(net, rows, options):
    """Solve ``A(r) c = f(r)`` as the least-squares problem that it comes from."""
    features = jnp.where(
        net.alive[None, :], hidden_features(net.hyperplanes, rows.x), 0
    )
    # The intercept is eliminated by centring, so that neither the damping nor the
    # truncation touches it.
    mean_feature = rows.weight @ features
    mean_target = rows.weight @ rows.y
    root = jnp.sqrt(rows.weight)[:, None]
    coef = least_squares(
        root * (features - mean_feature[None, :]),
        root * (rows.y - mean_target[None, :]),
        damping=options.damping,
        rank=options.rank,
        rank_tol=options.rank_tol,
    )
    coef = jnp.where(net.alive[:, None], coef, 0)
    return net._replace(coef=coef, intercept=mean_target - mean_feature @ coef)


def direction(net, rows, options):
    """Gauss-Newton direction of the hidden layer: ``H s = G``, ``p_i = s_i / c_i``.

    Algorithm 1 holds the intercept c_0 in this step, which makes the alternation of
    the two layers converge linearly. Here c_0 moves along, eliminated by centring H,
    and convergence is quadratic where the residual vanishes; without relocation the
    step is the paper's.

    Returns
    -------
    p : array of shape (n, 1 + d)
        Zero for inactive neurons; the step is ``r - gamma p``.
    gradient : array of shape (n, 1 + d)
        Of the objective in r.
    decrease : scalar
        Decrease that the quadratic model promises for ``gamma = 1``.
    """
    active = active_set(net, options.active_tol)
    size = jnp.where(active, activity(net), 1)[:, None]
    design = layer_design(net, rows, active)
    error = residual(net, rows).reshape(-1, 1)
    gradient = (design.T @ error).reshape(net.hyperplanes.shape) * size
    design = jnp.where(intercept_moves(options), centred(design, rows.weight), design)
    s = least_squares(
        design,
        error,
        damping=options.damping,
        rank=options.rank,
        rank_tol=options.rank_tol,
    )
    change = design @ s
    decrease = 0.5 * jnp.sum(change * (2 * error - change))
    p = jnp.where(active[:, None], s.reshape(net.hyperplanes.shape) / size, 0)
    return p, gradient, decrease


def intercept_moves(options):
    """Whether the hidden-layer step lets the intercept move along."""
    return options.relocations > 0


def centred(design, weight):
    """Project the constants, one a target, out of a design scaled by sqrt(mu)."""
    root = jnp.sqrt(weight)[:, None, None]
    blocks = design.reshape(weight.shape[0], -1, design.shape[1])
    return (blocks - root * jnp.sum(root * blocks, axis=0)[None]).reshape(design.shape)


def line_search(net, rows, p, options):
    """``argmin over gamma >= 0 of F(c, r - gamma p)``, the coefficients held."""
    z = preactivations(net.hyperplanes, rows.x)
    dz = preactivations(p, rows.x)
    target = rows.y - net.intercept[None, :]

    def loss(gamma):
        error = jnp.maximum(z - gamma * dz, 0) @ net.coef - target
        mean = jnp.where(intercept_moves(options), rows.weight @ error, 0)
        error = error - mean[None, :]
        return rows.weight @ jnp.sum(error**2, axis=1)

    return grid_search(loss, z.dtype)


def at_rounding_level(net, rows, loss):
    """Whether the residuals are no larger than the rounding errors of a prediction.

    A few neurons that nearly coincide can have coefficients so large that no residual
    is above their rounding errors; hence the second bound, relative to the targets.
    """
    eps = jnp.finfo(loss.dtype).eps
    terms = hidden_features(net.hyperplanes, rows.x) @ jnp.abs(net.coef)
    size = terms + jnp.abs(net.intercept)[None, :] + jnp.abs(rows.y)
    rounding = 0.5 * (30 * eps) ** 2 * (rows.weight @ jnp.sum(size**2, axis=1))
    target = 0.5 * (rows.weight @ jnp.sum(rows.y**2, axis=1))
    return loss <= jnp.minimum(rounding, eps * target)


@jax.jit
def initialise(net, rows, options):
    """Fit the output layer of an initial network; also return the loss."""
    net = fit_output_layer(net, rows, options)
    return net, objective(net, rows, options.damping)


@jax.jit
def iterate(net, rows, options):
    """One iteration: hidden layer by Gauss-Newton, output layer by least squares."""
    p, gradient, predicted = direction(net, rows, options)
    gamma = line_search(net, rows, p, options)
    moved = unit_normals(net.hyperplanes - gamma * p, fallback=net.hyperplanes)
    trial = fit_output_layer(net._replace(hyperplanes=moved), rows, options)
    decrease = loss_decrease(net, trial, rows, options.damping)
    accept = decrease > 0  # False for a loss that is not a number
    kept = jax.tree.map(lambda a, b: jnp.where(accept, a, b), trial, net)
    loss = objective(kept, rows, options.damping)
    return Iterate(
        net=kept,
        loss=loss,
        decrease=jnp.where(accept, decrease, 0),
        rounding=at_rounding_level(kept, rows, loss),
        solved=jnp.isfinite(predicted),
        grad_norm=jnp.linalg.norm(gradient),
        step_size=jnp.where(accept, gamma, 0),
        gain_ratio=jnp.where(accept & (predicted > 0), decrease / predicted, 0),
    )


def loss_decrease(old, new, rows, damping):
    """``F(old) - F(new)`` without cancellation.

    The difference of two sums of squares loses the small decreases near an optimum;
    the sum of (r0 - r1)(r0 + r1) keeps them.
    """
    r0, r1 = residual(old, rows), residual(new, rows)
    c0, c1 = output_weights(old), output_weights(new)
    ridge = jnp.sum((c0 - c1) * (c0 + c1))
    return 0.5 * (jnp.sum((r0 - r1) * (r0 + r1)) + damping * ridge)


# --- relocation ----------------------------------------------------------------------
#
# The iteration above ends in a local minimum within some ten steps: neurons that left
# the data, or crowd together, never come back. A growing round of relocation adds
# neurons where the error is, lets everything move and deletes as many where they matter
# least; an exchanging round first deletes one or two neurons. Either result is kept if
# the loss fell.


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


def column_space(design):
    """Orthonormal basis of the columns; zero columns where one depends on others."""
    q, r = jnp.linalg.qr(design)
    own = jnp.abs(jnp.diagonal(r))
    norm = jnp.linalg.norm(design[:, : own.shape[0]], axis=0)
    return jnp.where((own > 1e-10 * norm)[None, :], q, 0)


@jax.jit
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
    n = N_CANDIDATES
    key = jax.random.fold_in(jax.random.key(options.seed), draw)
    error = residual(net, rows)
    candidates = draw_hyperplanes(key, rows, error, n)
    root = jnp.sqrt(rows.weight)[:, None]
    q = column_space(mass_design(net, rows))

    def gains(block):
        columns = root * hidden_features(block, rows.x)
        # The residual is orthogonal to the columns of the network already, so only the
        # norm of a candidate has to be projected.
        norm2 = jnp.sum(columns**2, axis=0)
        outside2 = norm2 - jnp.sum((q.T @ columns) ** 2, axis=0)
        new = outside2 > 1e-10 * norm2
        drop = jnp.sum((columns.T @ error) ** 2, axis=1)
        return jnp.where(new, drop / jnp.where(new, outside2, 1), -1)

    # In blocks, for the memory of many rows.
    gain = lax.map(gains, candidates.reshape(-1, 32, candidates.shape[1])).ravel()
    best = jnp.argmax(jnp.where(jnp.arange(n, dtype=jnp.int32) < n_tried, gain, -1))
    slot = jnp.argmin(net.alive)
    grown = net._replace(
        hyperplanes=net.hyperplanes.at[slot].set(candidates[best]),
        alive=net.alive.at[slot].set(True),
    )
    return fit_output_layer(grown, rows, options)


@jax.jit
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
    root = jnp.sqrt(rows.weight)[:, None]
    design = mass_design(net, rows)
    # One factor of all columns that occur, so that each price is a small problem.
    columns = [design[:, :1], root * rows.x, design[:, 1:], root * rows.y]
    r = jnp.linalg.qr(jnp.concatenate(columns, axis=1), mode="r")
    # With fewer rows than columns the SVD has to see the null directions too.
    r = jnp.pad(r, [(0, max(0, 1 + n - r.shape[0])), (0, 0)])
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


@jax.jit
def delete_random(net, rows, options, draw):
    """Remove a neuron at random."""
    key = jax.random.fold_in(jax.random.key(options.seed), draw)
    value = jax.random.uniform(key, net.alive.shape, net.coef.dtype)
    slot = jnp.argmin(jnp.where(net.alive, value, jnp.inf))
    return _without(net, slot, rows, options)


def _without(net, slot, rows, options):
    pruned = net._replace(alive=net.alive.at[slot].set(False))
    return fit_output_layer(pruned, rows, options)


def descend(net, rows, options, n_steps):
    """At most ``n_steps`` iterations, to a relative decrease of ``ROUND_TOL``.

    Returns
    -------
    result : Iterate
        Of the last iteration.
    done : int
        Number of iterations.
    """
    done = 0
    while done < n_steps:
        result = iterate(net, rows, options)
        net = result.net
        done += 1
        if not result.decrease > ROUND_TOL * result.loss or result.rounding:
            break
    return result, done


def grow_and_prune(net, rows, options, draws, n_tried):
    """Add neurons, descend, delete the cheapest as many, descend."""
    for draw in draws:
        net = insert(net, rows, options, draw, n_tried)
    grown, n_first = descend(net, rows, options, ROUND_STEPS[0])
    net = grown.net
    for _ in draws:
        net = delete(net, rows, options, np.int32(0))
    result, n_second = descend(net, rows, options, ROUND_STEPS[1])
    return result, n_first + n_second


def exchange(net, rows, options, draws, place, n_random):
    """Delete the neuron at a place of the price list, some at random, add as many."""
    for draw in draws[:n_random]:
        net = delete_random(net, rows, options, draw)
    net = delete(net, rows, options, place)
    for draw in draws[: n_random + 1]:
        net = insert(net, rows, options, draw, np.int32(N_CANDIDATES))
    return descend(net, rows, options, sum(ROUND_STEPS))


def relocate(net, rows, options, round_):
    """One round: two kinds of growing and two of exchanging rounds in turn."""
    cycle, kind = divmod(round_, 4)
    draws = np.arange(round_ * N_SPARE, (round_ + 1) * N_SPARE, dtype=np.int32)
    if kind < 2:
        n_tried = np.int32(N_FEW if kind else N_CANDIDATES)
        return grow_and_prune(net, rows, options, draws, n_tried)
    n_neurons = int(np.asarray(net.alive).sum())
    n_random = min(kind - 2, n_neurons - 1)
    place = np.int32(cycle % (n_neurons - n_random))
    return exchange(net, rows, options, draws, place, n_random)


# --- the solver ----------------------------------------------------------------------


def init(rows, net, options):
    """Start from the hyperplanes of ``net`` with the optimal output layer."""
    net, loss = initialise(net, rows, options)
    return State(net=net, loss=float(loss))


def step(rows, state, options):
    """A Gauss-Newton iteration, or a relocation round once the descent has ended."""
    if state.descending:
        return _descent_step(rows, state, options)
    return _relocation_step(rows, state, options)


def _descent_step(rows, state, options):
    result = iterate(state.net, rows, options)
    loss = float(result.loss)
    last = state.round >= options.relocations
    # Before and between the rounds, the rounds' own tolerance saves time.
    tol = options.tol if last else max(options.tol, ROUND_TOL)
    settled = not float(result.decrease) > tol * loss
    stop = None
    if not math.isfinite(loss):
        stop = "non_finite"
    elif not result.solved:
        stop = "singular"
    elif result.rounding:
        stop = "rounding"
    elif settled and last:
        stop = "tol"
    state = State(result.net, loss, state.round, descending=not settled)
    return state, _report(result, stop=stop)


def _relocation_step(rows, state, options):
    result, n_steps = relocate(state.net, rows, options, state.round)
    accepted = float(result.loss) < state.loss  # False for NaN
    done = state.round + 1
    net, loss = (
        (result.net, float(result.loss)) if accepted else (state.net, state.loss)
    )
    # After the last round the descent goes on to its own tolerance.
    state = State(net, loss, done, descending=done >= options.relocations)
    stop = "rounding" if accepted and result.rounding else None
    return state, _report(
        result, inner_iterations=n_steps, accepted=accepted, stop=stop
    )


def _report(result, **fields):
    return Report(
        loss=float(result.loss),
        grad_norm=float(result.grad_norm),
        step_size=float(result.step_size),
        gain_ratio=float(result.gain_ratio),
        **fields,
    )


@jax.jit
def spectra(net, rows, active_tol):
    """Eigenvalues of the layer Gauss-Newton matrix and of the mass matrix.

    Returns
    -------
    gram : array of shape (n * (1 + d),)
        Descending; zeros at the end for neurons that are not active.
    mass : array of shape (1 + n,)
        Descending; zeros at the end likewise.
    """
    active = active_set(net, active_tol)
    return (
        gram_spectrum(layer_design(net, rows, active)),
        gram_spectrum(mass_design(net._replace(alive=active), rows)),
    )


@jax.jit
def finish(net):
    """The network as it is returned, ``|w_i| = 1``."""
    return rescale(net)


SGGN = Solver(name="sggn", init=init, step=step, n_spare=N_SPARE)
