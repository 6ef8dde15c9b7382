"""Structure-guided Gauss-Newton (SgGN) for shallow ReLU networks.

Cai, Ding, Liu, Liu and Xia, "A structure-guided Gauss-Newton method for shallow ReLU
neural network", Algorithm 1. The global search around it is in
:mod:`sklearn_gn.shallow_relu.dense`.

The objective, for rows x_k with targets t_k and weights mu_k that sum to one, is

    F(c, r) = 1/2 sum_k mu_k |u(x_k) - t_k|^2 + alpha/2 sum_i |c_i|^2 |w_i|^2 .

The output layer c is a linear least-squares problem with the mass matrix A(r). In the
hidden layer r the Gauss-Newton matrix is (D(c) kron I) H(r) (D(c) kron I): it is
singular only through zeros of c, which the active set removes, and through cells of the
partition that hold too few rows, which the truncated solve removes.
"""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from sklearn_gn.arrays.blocks import sum_rows
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.arrays.parts import total
from sklearn_gn.arrays.trees import select
from sklearn_gn.linalg.least_squares import least_squares, least_squares_of_rows
from sklearn_gn.optim.line_search import grid_search
from sklearn_gn.shallow_relu.network import (
    ShallowReLU,
    active_set,
    activity,
    alive_features,
    hidden_features,
    layer_design,
    output_weights,
    preactivations,
    residual,
    unit_normals,
)


class Iterate(NamedTuple):
    """Result of one iteration."""

    net: ShallowReLU
    memory: tuple  # what the next iteration remembers
    loss: float
    decrease: float
    rounding: bool  # the loss is at rounding level
    solved: bool  # the Gauss-Newton system gave a finite direction
    grad_norm: float
    step_size: float
    gain_ratio: float


# --- the objective -------------------------------------------------------------------


def objective(net, rows, alpha):
    """The objective F."""
    penalty = alpha * jnp.sum(output_weights(net) ** 2)
    square = sum_rows(lambda block: jnp.sum(residual(net, block) ** 2), rows)
    return 0.5 * (square + penalty)


# --- one iteration (Algorithm 1) -----------------------------------------------------


def fit_output_layer(net, rows, options):
    """Solve ``A(r) c = f(r)`` as the least-squares problem that it comes from."""

    def weighted_sums(block):
        return block.weight @ alive_features(net, block.x), block.weight @ block.y

    # The intercept is eliminated by centring, so that neither the penalty nor the
    # truncation touches it.
    mean_feature, mean_target = sum_rows(weighted_sums, rows)

    def system(block):
        features = alive_features(net, block.x) - mean_feature[None, :]
        targets = block.y - mean_target[None, :]
        root = jnp.sqrt(block.weight)[:, None]
        return root * jnp.concatenate([features, targets], axis=1)

    coef = least_squares_of_rows(
        system,
        rows,
        rows.y.shape[1],
        damping=options.alpha,
        rank=options.rank,
        rank_tol=options.rank_tol,
    )
    coef = jnp.where(net.alive[:, None], coef, 0)
    return net._replace(coef=coef, intercept=mean_target - mean_feature @ coef)


def direction(net, rows, options):
    """Return the Gauss-Newton direction of the hidden layer, ``p_i = s_i / c_i``.

    Algorithm 1 holds the intercept c_0 in this step, which makes the alternation of
    the two layers converge linearly. Here c_0 moves along, eliminated by centring H,
    and convergence is quadratic where the residual vanishes; without relocation the
    step is the paper's.
    """
    active = active_set(net, options.active_tol)
    size = jnp.where(active, activity(net), 1)[:, None]
    design = layer_design(net, rows, active)
    error = residual(net, rows).reshape(-1, 1)
    gradient = total(design.T @ error).reshape(net.hyperplanes.shape) * size
    design = jnp.where(options.relocations > 0, centre(design, rows.weight), design)
    s = least_squares(
        design,
        error,
        damping=0.0 if options.damping is None else options.damping,
        rank=options.rank,
        rank_tol=options.rank_tol,
    )
    change = design @ s
    decrease = 0.5 * total(jnp.sum(change * (2 * error - change)))
    p = jnp.where(active[:, None], s.reshape(net.hyperplanes.shape) / size, 0)
    return p, gradient, decrease


def centre(design, weight):
    """Project the constants, one a target, out of a design scaled by sqrt(mu)."""
    root = jnp.sqrt(weight)[:, None, None]
    blocks = design.reshape(weight.shape[0], -1, design.shape[1])
    mean = total(jnp.sum(root * blocks, axis=0))
    return (blocks - root * mean[None]).reshape(design.shape)


def line_search(net, rows, p, options):
    """Return ``argmin over gamma >= 0 of F(c, r - gamma p)``, the coefficients held."""
    z = preactivations(net.hyperplanes, rows.x)
    dz = preactivations(p, rows.x)
    target = rows.y - net.intercept[None, :]

    def loss(gamma):
        error = jnp.maximum(z - gamma * dz, 0) @ net.coef - target
        mean = jnp.where(options.relocations > 0, total(rows.weight @ error), 0)
        error = error - mean[None, :]
        return total(rows.weight @ jnp.sum(error**2, axis=1))

    return grid_search(partial(lax.map, loss), z.dtype, jnp)


def at_rounding_level(net, rows, loss):
    """Return whether the residuals are rounding errors of a prediction.

    A few neurons that nearly coincide can have coefficients so large that no residual
    is above their rounding errors; hence the second bound, relative to the targets.
    """
    eps = jnp.finfo(loss.dtype).eps

    def squares(block):
        terms = hidden_features(net.hyperplanes, block.x) @ jnp.abs(net.coef)
        size = terms + jnp.abs(net.intercept)[None, :] + jnp.abs(block.y)
        of_terms, of_targets = jnp.sum(size**2, axis=1), jnp.sum(block.y**2, axis=1)
        return block.weight @ of_terms, block.weight @ of_targets

    of_terms, of_targets = sum_rows(squares, rows)
    return loss <= 0.5 * jnp.minimum((30 * eps) ** 2 * of_terms, eps * of_targets)


@jit_by_size
def initialise(net, rows, options):
    """Return the network with the optimal output layer, and its loss."""
    net = fit_output_layer(net, rows, options)
    return net, objective(net, rows, options.alpha)


def begin(net):
    """Return what the first iteration remembers: nothing."""
    del net
    return ()


def iterate(net, memory, rows, options):
    """Carry out one iteration of Algorithm 1.

    1. Take the active neurons and solve the Gauss-Newton system of their hyperplanes,
       ``H(r) s = G``; the direction is ``p_i = s_i / c_i``.
    2. Search along it for the step size ``gamma``, the coefficients held.
    3. Move the hyperplanes, ``r - gamma p``, and rescale them to ``|w_i| = 1``.
    4. Solve ``A(r) c = f(r)`` for the output layer.
    5. Keep the result if the loss has fallen, else the network as it was.
    """
    p, gradient, predicted = direction(net, rows, options)
    gamma = line_search(net, rows, p, options)
    moved = unit_normals(net.hyperplanes - gamma * p, fallback=net.hyperplanes)
    trial = fit_output_layer(net._replace(hyperplanes=moved), rows, options)
    decrease = loss_decrease(net, trial, rows, options.alpha)
    accept = decrease > 0  # False for a loss that is not a number
    kept = select(accept, trial, net)
    loss = objective(kept, rows, options.alpha)
    return Iterate(
        net=kept,
        memory=memory,
        loss=loss,
        decrease=jnp.where(accept, decrease, 0),
        rounding=at_rounding_level(kept, rows, loss),
        solved=jnp.isfinite(predicted),
        grad_norm=jnp.linalg.norm(gradient),
        step_size=jnp.where(accept, gamma, 0),
        gain_ratio=jnp.where(accept & (predicted > 0), decrease / predicted, 0),
    )


def loss_decrease(old, new, rows, alpha):
    """Return ``F(old) - F(new)`` without cancellation.

    The difference of two sums of squares loses the small decreases near an optimum;
    the sum of (r0 - r1)(r0 + r1) keeps them.
    """

    def difference(block):
        r0, r1 = residual(old, block), residual(new, block)
        return jnp.sum((r0 - r1) * (r0 + r1))

    c0, c1 = output_weights(old), output_weights(new)
    ridge = jnp.sum((c0 - c1) * (c0 + c1))
    return 0.5 * (sum_rows(difference, rows) + alpha * ridge)
