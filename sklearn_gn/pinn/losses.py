"""Losses of a network at points of training, and at those that are never trained on."""

import math
from functools import partial

import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays.devices import by_rows, jitted, put_rows
from sklearn_gn.arrays.parts import total
from sklearn_gn.pinn import observation_weight, pieces, windows
from sklearn_gn.pinn.residuals import residuals
from sklearn_gn.pinn.solved import with_class_alone

_BALANCE_POWER = 0.05
_SMALLEST_LOSS = 1e-6  # of a class, relative to the mean


def fresh_loss(points, settings, net, weight=1.0, like=None):
    """Loss at points that are never trained on (NaN without), cut as ``like``."""
    if not points.fresh:
        return math.nan
    fresh = points.fresh
    if weight != 1:
        fresh = observation_weight.reweighted(fresh, weight)
    return windows.total(loss_by(settings, like), settings.models[-1], net, fresh)


def fresh_loss_in(state, points, settings, net):
    """Return the fresh loss of a network at a state of the fit."""
    is_last = state.stage + 1 == len(settings.models)
    like = state.batches if is_last else None
    return fresh_loss(points, settings, net, state.control.weighing.weight, like)


def fresh_misfit(state, points, settings, net):
    """The part of :func:`fresh_loss_in` that observations have."""
    observed = with_class_alone(points, len(points.fresh) - 1)
    return fresh_loss_in(state, observed, settings, net)


def loss_by(settings, like=None):
    """:func:`total_loss` on the devices of a fit."""

    def loss(model, net, batches):
        return total_loss(model, net, on_devices(batches, settings), like)

    return loss


def total_loss(model, net, batches, like=None):
    """Half the sum of squares of all residuals; ``like`` as in ``pieces.cut``."""
    if not pieces.serve(batches):
        return _loss_of_all(model, net, batches)
    r = pieces.residuals(model, net, batches, like)
    with np.errstate(over="ignore"):
        return 0.5 * np.sum(np.square(r))


@partial(by_rows, compiled=jitted(static_argnames="model"), static=("model",))
def _loss_of_all(model, net, batches):
    return 0.5 * total(jnp.sum(residuals(model, net, batches) ** 2))


def on_devices(batches, settings):
    """The batches, with a share of the points of each on every device.

    They are padded by their last points, of weight zero.
    """
    mesh = settings.mesh
    if mesh is None:
        return batches

    def divided(batch):
        n = len(batch.x)
        rows = np.minimum(np.arange(n + -n % (2 * mesh.size)), n - 1)
        scale = np.asarray(batch.scale)
        scale = np.concatenate([scale, np.zeros(len(rows) - n, scale.dtype)])
        x, data = np.asarray(batch.x)[rows], np.asarray(batch.data)[rows]
        x, data, scale = put_rows([x, data, scale], mesh)
        return batch._replace(x=x, data=data, scale=scale)

    return tuple(map(divided, batches))


def rebalanced_weights(losses, balance):
    """Return class weights that slowly even out the classes' shares of the loss."""
    floor = np.maximum(_SMALLEST_LOSS * losses.mean(), np.finfo(float).tiny)
    shares = np.maximum(losses, floor) * balance
    balance = balance * (shares.mean() / shares) ** _BALANCE_POWER
    return (balance / balance.mean()).astype(balance.dtype)
