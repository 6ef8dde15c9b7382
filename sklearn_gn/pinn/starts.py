"""Another start for a fit that is stuck.

Some networks are led by their first steps to where nothing more is to be gained: to a
coefficient that is zero, a solution that is, or a minimum that is no solution. Others
drawn from the same distribution are not.
"""

import math

import jax
import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.pde.coefficients import Unknown
from sklearn_gn.pinn import growth
from sklearn_gn.pinn.model import n_waves, start_parameters
from sklearn_gn.pinn.observation_weight import has_settled
from sklearn_gn.pinn.solved import UNMET_LOSS, has_unmet_condition

_MOST_STARTS = 3  # networks, until one is not stuck
_ASTRAY_LOSS = 1e-4  # relative to that of no solution, of a fit that has gone wrong
VANISHED = 1e-2  # a positive coefficient, relative to its start
_RAISE = 10.0  # of the next start of one that has gone to zero
_UNEXPLAINED = 0.01  # of the variance of the observations, beyond which it is wrong


def with_new_network(state, settings):
    """Return the state at the start, with a newly drawn network."""
    model, old = settings.models[-1], settings.untrained.layers
    rng = np.random.RandomState([settings.seed, state.iteration])
    functions = n_waves(model.problem)
    sizes = [len(old[0]) - 1 - functions, *(matrix.shape[1] for matrix in old)]
    unknown = model.problem.unknown.values()
    net = start_parameters(rng, sizes, unknown, functions)
    raised = state.n_starts * Unknown(1.0, positive=True).encode(_RAISE)
    gone = vanished(model.problem, state.net.extra)
    net = net._replace(extra=net.extra + raised * gone)
    net = jax.tree.map(lambda leaf: leaf.astype(settings.dtype), net)
    level = state.level
    if level is not None:
        level = growth.Level(level.sizes, level.density, seconds=level.seconds)
    return state._replace(
        net=jax.device_put(net),
        level=level,
        memory=None,
        previous_step=None,
        n_stalled=0,
        lowest_loss=math.inf,
        fresh_losses=(),
        equation_losses=(),
        next_observation_weight=state.observation_weight,
        share_of_equation=math.inf,
        n_starts=state.n_starts + 1,
        begins_anew=False,
    )


def has_another(state, settings):
    """Whether a fit may start again: alone, without windows.

    Where the weight of the observations has fallen, coefficients explain them.
    """
    model = settings.models[-1]
    plain = model.features is None and state.march is None and state.stage == 0
    unexplained = state.observation_weight == 1 or state.weight_waits
    few = state.n_starts < _MOST_STARTS
    possible = plain and unexplained and few and settings.solver.name == "dngd"
    return possible and switches.on("pinn.starts")


def is_stuck(model, class_losses, state):
    """Whether a fit that ends has learnt next to nothing at its points of training."""
    unmet = has_unmet_condition(model.classes, class_losses, state.first_classes)
    return unmet or np.sum(class_losses) > UNMET_LOSS * state.first_fresh


def is_in_false_minimum(level, class_losses, state, settings):
    """Whether a fit that is far from a solution has not gained by a larger network."""
    if level is None or not (level.next == "network" or level.late or level.ended):
        return False
    first, now = settings.untrained.layers[0], state.net.layers[0]
    has_grown = now.shape[1] > first.shape[1]
    no_gain = level.falls[-1] > growth.PAYS * level.before
    is_far = np.sum(class_losses) > _ASTRAY_LOSS * state.first_fresh
    return has_grown and no_gain and is_far


def may_be_astray(model, level, class_losses, first_fresh):
    """Whether coefficients are wrong when the first network no longer learns.

    They do not come back in a larger one.
    """
    if level is None or not model.problem.unknown or not math.isinf(level.before):
        return False
    losses = [
        loss
        for known, loss in zip(model.classes, class_losses, strict=True)
        if known.residual.name != "data"
    ]
    flat = level.next == "network" or level.late or level.ended
    return flat and sum(losses) > _ASTRAY_LOSS * first_fresh


def has_vanished(class_losses, state, settings):
    """Whether a fit has settled where a positive coefficient is zero, and not well.

    There the loss hardly depends on its logarithm, and it does not come back.
    """
    problem, spread = settings.models[-1].problem, settings.observed.spread_loss
    poor = class_losses[-1] > _UNEXPLAINED * state.observation_weight * spread
    settled = has_settled(state.fresh_losses, state.equation_losses)
    return poor and settled and vanished(problem, state.net.extra).any()


def vanished(problem, extra):
    """Which of the parameters ``extra`` are positive coefficients that went to zero."""
    raw, found, stop = np.asarray(extra, float), [], 0
    for known in problem.unknown.values():
        first = np.ravel(known.encode(known.initial))
        start, stop = stop, stop + first.size
        fall = raw[start:stop] - first
        found.append(known.positive & (fall < known.encode(VANISHED)))
    return np.concatenate([np.zeros(0, bool), *found])
