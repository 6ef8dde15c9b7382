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
    """Loss at points that are never trained on; NaN where there are none.

    It is computed as that of the points ``like``, if given: see ``pieces.cut``.
    """
    if not points.fresh:
        return math.nan
    fresh = points.fresh
    if weight != 1:
        fresh = observation_weight.reweighted(fresh, weight)
    return windows.total(loss_by(settings, like), settings.models[-1], net, fresh)


def fresh_loss_in(state, points, settings, net):
    """Return the fresh loss of a network at a state of the fit.

    Its programs are those of the points of training, if these are of the same problem.
    """
    is_last = state.stage + 1 == len(settings.models)
    like = state.batches if is_last else None
    return fresh_loss(points, settings, net, state.observation_weight, like)


def fresh_misfit(state, points, settings, net):
    """The part of :func:`fresh_loss_in` that observations have, those of validation.

    Without validation they are those of training.
    """
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

    They stand in the memory of the host where there are several devices, and are
    padded by their last points, of weight zero. Gramians take an even number each.
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
    """Return class weights that slowly even out the classes' shares of the loss.

    No loss counts as less than a millionth of their mean: the weight of one that is
    zero would grow until the others were lost next to it.
    """
    floor = np.maximum(_SMALLEST_LOSS * losses.mean(), np.finfo(float).tiny)
    shares = np.maximum(losses, floor) * balance
    balance = balance * (shares.mean() / shares) ** _BALANCE_POWER
    return (balance / balance.mean()).astype(balance.dtype)
