"""Steps of both kinds for shallow ReLU networks: in turn, and in both layers together.

The objective, for rows x_k with targets t_k and weights mu_k that sum to one, is

    F(c, r) = 1/2 sum_k mu_k |u(x_k) - t_k|^2 + alpha/2 sum_i |c_i|^2 |w_i|^2 .

**In turn** is the structure-guided Gauss-Newton method (SgGN) of Cai, Ding, Liu, Liu
and Xia, "A structure-guided Gauss-Newton method for shallow ReLU neural network",
Algorithm 1. The output layer c is a linear least-squares problem with the mass matrix
A(r). In the hidden layer r the Gauss-Newton matrix is (D(c) kron I) H(r) (D(c) kron I):
it is singular only through zeros of c, which the active set removes, and through cells
of the partition that hold too few rows, which the truncated solve removes.

**Together**, the output layer is projected out: Golub and Pereyra, "Separable nonlinear
least squares: the variable projection method and its applications" (2003), in Kaufman's
form. With the cross block B of both layers the hidden layer moves by

    K = D(c) (H - B^T A^-1 B) D(c),    (K + shift) delta = -D(c) G,

where the alternating step has H alone. K has a null direction for every neuron, the
length of (b, w) against its coefficient; the shift of Levenberg and Marquardt takes
care of these. It is relative to the largest eigenvalue of K and follows the gain ratio,
or is the ``damping`` that was given; the step is then halved until the loss falls.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from sklearn_gn.arrays.blocks import sum_rows, transposed_product
from sklearn_gn.arrays.collectives import n_devices, total
from sklearn_gn.arrays.trees import select
from sklearn_gn.linalg import factors
from sklearn_gn.linalg.least_squares import least_squares, triangular_factor
from sklearn_gn.optim.globalisation import search_step
from sklearn_gn.optim.line_search import grid_search
from sklearn_gn.optim.trust_region import SpectralModel, damped_coordinates, decrease
from sklearn_gn.shallow_relu.network import (
    ShallowReLU,
    active_set,
    hidden_features,
    joint_design,
    layer_design,
    output_weights,
    preactivations,
    residual,
    unit_normals,
)


class Update(NamedTuple):
    """Result of one iteration."""

    net: ShallowReLU
    memory: Any  # what the next iteration remembers
    decrease: Any  # of the loss; 0 where the step was rejected
    grad_norm: Any
    step_size: Any = 1.0
    damping: Any = math.nan
    gain_ratio: Any = math.nan
    failure: Any = 0  # number of the reason in FAILURES
    loss: Any = math.nan  # of the network, which the loop around the step computes ...
    rounding: Any = False  # ... and whether it is at rounding level


FAILURES = (None, "singular", "line_search")


# --- the objective -------------------------------------------------------------------


def objective(net, rows, alpha):
    """The objective F."""
    penalty = alpha * jnp.sum(output_weights(net) ** 2)
    square = sum_rows(lambda block: jnp.sum(residual(net, block) ** 2), rows)
    return 0.5 * (square + penalty)


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


# --- the output layer ----------------------------------------------------------------


def fit_output_layer(net, rows, options):
    """Solve ``A(r) c = f(r)`` as the least-squares problem that it comes from."""

    def columns(block):
        features = hidden_features(net.hyperplanes, block.x)
        features = jnp.where(net.alive[None, :], features, 0)
        return jnp.concatenate([features, block.y], axis=1)

    # The intercept is eliminated by centring, so that neither the penalty nor the
    # truncation touches it.
    mean = sum_rows(lambda block: block.weight @ columns(block), rows)

    def system(block):
        return jnp.sqrt(block.weight)[:, None] * (columns(block) - mean[None, :])

    kept = {"rank": options.rank, "rank_tol": options.rank_tol}
    n_targets, alpha = rows.y.shape[1], options.alpha
    coef = least_squares(system, rows, n_targets, damping=alpha, **kept)
    coef = jnp.where(net.alive[:, None], coef, 0)
    intercept = mean[len(coef) :] - mean[: len(coef)] @ coef
    return net._replace(coef=coef, intercept=intercept)


# --- one iteration in turn (Algorithm 1) ---------------------------------------------


def direction(net, rows, options):
    """Return the Gauss-Newton direction of the hidden layer, ``p_i = s_i / c_i``.

    Algorithm 1 holds the intercept c_0 in this step, which makes the alternation of
    the two layers converge linearly. Here c_0 moves along, eliminated by centring H,
    and convergence is quadratic where the residual vanishes; without relocation the
    step is the paper's.
    """
    active = active_set(net, options.active_tol)
    size = jnp.where(active, jnp.linalg.norm(net.coef, axis=1), 1)[:, None]
    design = layer_design(net, rows, active)
    error = residual(net, rows).reshape(-1, 1)
    gradient = total(design.T @ error).reshape(net.hyperplanes.shape) * size
    # The constants, one a target, are projected out of the design.
    root = jnp.sqrt(rows.weight)[:, None, None]
    blocks = design.reshape(len(rows.weight), -1, design.shape[1])
    centred = blocks - root * total(jnp.sum(root * blocks, axis=0))[None]
    design = jnp.where(options.relocations > 0, centred.reshape(design.shape), design)
    kept = {"rank": options.rank, "rank_tol": options.rank_tol}
    damping = 0.0 if options.damping is None else options.damping
    columns = jnp.concatenate([design, error], axis=1)
    s = least_squares(lambda block: block, columns, 1, damping=damping, **kept)
    change = design @ s
    decrease = 0.5 * total(jnp.sum(change * (2 * error - change)))
    p = jnp.where(active[:, None], s.reshape(net.hyperplanes.shape) / size, 0)
    return p, gradient, decrease


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


def sggn_update(net, memory, rows, options):
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
    actual = loss_decrease(net, trial, rows, options.alpha)
    accept = actual > 0  # False for a loss that is not a number
    return Update(
        net=select(accept, trial, net),
        memory=memory,
        decrease=jnp.where(accept, actual, 0),
        grad_norm=jnp.linalg.norm(gradient),
        step_size=jnp.where(accept, gamma, 0),
        gain_ratio=jnp.where(accept & (predicted > 0), actual / predicted, 0),
        failure=jnp.where(jnp.isfinite(predicted), 0, 1),
    )


# --- one iteration of both layers together -------------------------------------------


def reduced_model(net, rows, options):
    """Return the quadratic model of the loss in the hidden layer, c optimal."""
    (n, q), layer = net.coef.shape, net.hyperplanes.size
    active = active_set(net, options.active_tol)
    coef = jnp.where(active[:, None], net.coef, 0)
    # (n (1 + d), q): the coefficient of the neuron of every hidden parameter.
    scale = jnp.repeat(coef, net.hyperplanes.shape[1], axis=0)
    cost = n_devices() * rows.x.shape[0] * (1 + n + layer + q) ** 2
    model = _model_by_factor if cost <= factors.QR_LIMIT else _model_by_gram
    return leading(*model(net, rows, options, scale), options)


def _model_by_factor(net, rows, options, scale):
    """By QR, which projects the output layer out, and an SVD."""
    (n, q), layer = net.coef.shape, net.hyperplanes.size
    p = 1 + n
    r = triangular_factor(
        lambda block: jnp.concatenate(joint_design(net, block), axis=1), rows
    )
    # The penalty alpha |c|^2 as further rows.
    root = jnp.sqrt(options.alpha)
    penalty = jnp.zeros((p - 1, r.shape[1]), r.dtype)
    penalty = penalty.at[:, 1:p].set(root * jnp.eye(p - 1, dtype=r.dtype))
    penalty = penalty.at[:, p + layer :].set(root * net.coef)
    r = factors.upper_factor(r, penalty)
    # What is orthogonal to the first p columns, of the output layer.
    u, s, _ = factors.singular_triplets(r[:p, :p])
    free = jnp.where((s <= 1e-12 * s[0])[:, None], u.T @ r[:p], 0)
    r = jnp.concatenate([free, r[p:]])[:, p:]
    hidden = jnp.concatenate([r[:, :layer] * scale[:, k][None, :] for k in range(q)])
    u, s, vt = factors.singular_triplets(hidden)
    return s**2, s * (u.T @ r[:, layer:].T.reshape(-1)), vt.T


def _model_by_gram(net, rows, options, scale):
    """By the Gram matrix, a fifth of the work, where there are many rows."""
    p = 1 + len(net.coef)

    def sums(block):
        mass_columns, columns, error = joint_design(net, block)
        # The largest part of the matrix only steers the step: single precision does,
        # at half the time. The gradient is that of the precision asked for.
        low = columns.astype(jnp.float32)
        return (
            transposed_product(mass_columns, mass_columns),
            transposed_product(mass_columns, columns),
            (low.T @ low).astype(columns.dtype),
            transposed_product(columns, error),
        )

    mass, cross, layer_products, slopes = sum_rows(sums, rows)
    penalty = jnp.where(jnp.arange(p, dtype=jnp.int32) > 0, options.alpha, 0)
    mass = mass + jnp.diag(penalty)
    reduced = layer_products - cross.T @ factors.solve_semidefinite(mass, cross)
    values, basis = factors.eigenpairs(reduced * (scale @ scale.T))
    # Raised by what rounding may have taken, so that no step is longer for that.
    rounding = 8 * float(jnp.finfo(jnp.float32).eps)  # of a Gram matrix
    values = jnp.maximum(values[::-1], 0) + rounding * values[-1]
    basis = basis[:, ::-1]
    return values, basis.T @ jnp.sum(slopes * scale, axis=1), basis


def leading(values, slopes, basis, options):
    """Return the model of the directions with large eigenvalues, which descend."""
    number = jnp.arange(values.shape[0], dtype=jnp.int32)
    kept = (values > options.rank_tol**2 * values[0]) & (number < options.rank)
    return SpectralModel(values, jnp.where(kept, slopes, 0), basis)


def damped_step(net, memory, rows, options, model, moved, unit=1):
    """Try steps of a quadratic model until the loss falls.

    ``moved`` maps a step to the network, ``unit`` is the unit of the shift. If the loss
    has not fallen, the shift is raised by Nielsen's rule, or the step is halved if the
    shift is fixed.
    """

    def trial(shift, count):
        if options.damping is None:
            coordinates = damped_coordinates(model, shift.value * unit)
        else:
            length = jnp.exp2(-count.astype(shift.value.dtype))
            coordinates = length * damped_coordinates(model, options.damping)
        new = moved(model.basis @ coordinates)
        fall = loss_decrease(net, new, rows, options.alpha)
        return new, fall, decrease(model, coordinates)

    found = search_step(trial, net, memory)
    given = options.damping
    return Update(
        net=select(found.accepted, found.candidate, net),
        memory=found.control,
        decrease=jnp.where(found.accepted, found.actual, 0),
        grad_norm=jnp.linalg.norm(model.slopes),
        step_size=jnp.where(found.accepted, 1, 0),
        damping=found.tried.value * unit if given is None else given,
        gain_ratio=jnp.where(found.accepted, found.gain_ratio, 0),
        failure=jnp.where(jnp.isfinite(found.predicted), 0, 1),
    )


def joint_update(net, memory, rows, options):
    """Move the hyperplanes by a damped step with K, and solve for the output layer."""

    def moved(step):
        planes = net.hyperplanes + step.reshape(net.hyperplanes.shape)
        planes = unit_normals(planes, fallback=net.hyperplanes)
        return fit_output_layer(net._replace(hyperplanes=planes), rows, options)

    model = reduced_model(net, rows, options)
    return damped_step(net, memory, rows, options, model, moved, model.values[0])
