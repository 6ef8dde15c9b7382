"""Joint Gauss-Newton for shallow ReLU networks, the output layer projected out.

Golub and Pereyra, "Separable nonlinear least squares: the variable projection method
and its applications" (2003), in Kaufman's form: with the mass matrix A, the layer
Gauss-Newton matrix H and the cross block B of both (see
:mod:`sklearn_gn.shallow_relu.sggn`) the hidden layer moves by

    K = D(c) (H - B^T A^-1 B) D(c),    (K + shift) delta = -D(c) G,

where the alternating step of SgGN has H alone. K has a null direction for every neuron,
the length of (b, w) against its coefficient; the shift of Levenberg and Marquardt
takes care of these. It is relative to the largest eigenvalue of K and follows the gain
ratio, or is the ``damping`` that was given; the step is then halved until the loss
falls. With one feature all of this collapses to straight-line fits, see
:mod:`sklearn_gn.shallow_relu.one_feature`.
"""

import jax.numpy as jnp

from sklearn_gn.arrays.blocks import sum_rows, transposed_product
from sklearn_gn.arrays.parts import n_devices
from sklearn_gn.linalg import factors
from sklearn_gn.linalg.least_squares import triangular_factor
from sklearn_gn.optim.globalisation import Nielsen, search_damping
from sklearn_gn.optim.trust_region import SpectralModel, damped_coordinates, decrease
from sklearn_gn.shallow_relu.network import active_set, joint_design, unit_normals
from sklearn_gn.shallow_relu.sggn import (
    Iterate,
    at_rounding_level,
    fit_output_layer,
    loss_decrease,
    objective,
)

FIRST_SHIFT = 1e-3  # relative to the largest eigenvalue
MAX_TRIALS = 20  # steps tried in one iteration


def begin(net):
    """Return what the first iteration remembers: the relative shift."""
    return Nielsen.start(jnp.asarray(FIRST_SHIFT, net.coef.dtype))


def reduced_model(net, rows, options):
    """Return the quadratic model of the loss in the hidden layer, c optimal."""
    p, layer, q = _sizes(net)
    active = active_set(net, options.active_tol)
    coef = jnp.where(active[:, None], net.coef, 0)
    # (n (1 + d), q): the coefficient of the neuron of every hidden parameter.
    scale = jnp.repeat(coef, net.hyperplanes.shape[1], axis=0)
    cost = n_devices() * rows.x.shape[0] * (p + layer + q) ** 2
    model = _model_by_factor if cost <= factors.QR_LIMIT else _model_by_gram
    values, slopes, basis = model(net, rows, options, scale)
    number = jnp.arange(values.shape[0], dtype=jnp.int32)
    kept = (values > options.rank_tol**2 * values[0]) & (number < options.rank)
    return SpectralModel(values, jnp.where(kept, slopes, 0), basis)


def _sizes(net):
    """Numbers of output parameters a target, of hidden parameters and of targets."""
    n, q = net.coef.shape
    return 1 + n, n * net.hyperplanes.shape[1], q


def _model_by_factor(net, rows, options, scale):
    """By QR, which projects the output layer out, and an SVD."""
    p, layer, q = _sizes(net)
    r = triangular_factor(
        lambda block: jnp.concatenate(joint_design(net, block), axis=1), rows
    )
    r = _with_penalty(r, net, options.alpha)
    r = _outside_mass(r, p)
    below = r[:, p : p + layer]
    hidden = jnp.concatenate([below * scale[:, k][None, :] for k in range(q)])
    error = r[:, p + layer :].T.reshape(-1)
    u, s, vt = factors.singular_triplets(hidden)
    return s**2, s * (u.T @ error), vt.T


def _outside_mass(r, p):
    """The part of the factor that is orthogonal to its first p columns."""
    u, s, _ = factors.singular_triplets(r[:p, :p])
    floor = 1e-12 * s[0]
    free = jnp.where((s <= floor)[:, None], u.T @ r[:p], 0)
    return jnp.concatenate([free, r[p:]])


def _with_penalty(r, net, alpha):
    """The factor with the rows of the penalty ``alpha |c|^2``."""
    p, layer, _ = _sizes(net)
    root = jnp.sqrt(alpha)
    penalty = jnp.zeros((p - 1, r.shape[1]), r.dtype)
    penalty = penalty.at[:, 1:p].set(root * jnp.eye(p - 1, dtype=r.dtype))
    penalty = penalty.at[:, p + layer :].set(root * net.coef)
    return factors.upper_factor(r, penalty)


def _model_by_gram(net, rows, options, scale):
    """By the Gram matrix, a fifth of the work, where there are many rows."""
    p, _, _ = _sizes(net)

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


def iterate(net, damping, rows, options):
    """Carry out one iteration.

    1. Form the reduced Gauss-Newton matrix K and its eigenvectors, which serve all
       trial steps.
    2. Solve ``(K + shift) delta = -gradient``, move the hyperplanes by delta, rescale
       them, and solve for the output layer.
    3. If the loss has not fallen, raise the shift by Nielsen's rule, or halve the step
       if the shift is fixed, and try again.
    """
    model = reduced_model(net, rows, options)

    def trial(shift, count):
        if options.damping is None:
            coordinates = damped_coordinates(model, shift * model.values[0])
        else:
            length = jnp.exp2(-count.astype(shift.dtype))
            coordinates = length * damped_coordinates(model, options.damping)
        step = (model.basis @ coordinates).reshape(net.hyperplanes.shape)
        moved = net.hyperplanes + step
        moved = unit_normals(moved, fallback=net.hyperplanes)
        new = fit_output_layer(net._replace(hyperplanes=moved), rows, options)
        fall = loss_decrease(net, new, rows, options.alpha)
        return new, fall, decrease(model, coordinates)

    found = search_damping(trial, net, damping, max_trials=MAX_TRIALS)
    kept = found.accepted_or(net)
    loss = objective(kept, rows, options.alpha)
    return Iterate(
        net=kept,
        memory=found.damping,
        loss=loss,
        decrease=jnp.where(found.accepted, found.actual, 0),
        rounding=at_rounding_level(kept, rows, loss),
        solved=jnp.isfinite(found.predicted),
        grad_norm=jnp.linalg.norm(model.slopes),
        step_size=jnp.where(found.accepted, 1, 0).astype(loss.dtype),
        gain_ratio=jnp.where(found.accepted, found.gain_ratio, 0),
    )
