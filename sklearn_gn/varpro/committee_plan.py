"""Which networks a committee has, and how they are fitted."""

import math
from functools import partial
from numbers import Real
from typing import NamedTuple

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.bayes.layers import Layers
from sklearn_gn.linalg.large_gram import LARGEST_DENSE, affordable, work_of

ACTIVATIONS = ("relu", "tanh")  # of the members by turns
_NEURONS = {"squared": 10, "cross_entropy": 4}
_NEURONS_PER_TARGET = 2.5  # independent of the others, from the third one on, ...
_ROWS_PER_NEURON = 2  # ... but not more than so many rows can tell apart
_MEMBERS = 6  # at most
_WORK = 8e8  # of an iteration of all members, in products of the matrices' entries
_MOST_WORK_OF_CLASSES = 4e9  # of one member; else deep networks
_MOST_WORK_OF_ALL_ROWS = 5e8  # the same of a default classifier; else mini-batches
_WIDTH = 100  # of the members by mini-batches
_BATCH_MEMBERS = 4
_MOST_MIXED = 4  # members by the evidence beside these


class Plan(NamedTuple):
    """The networks of the members, and how they are fitted."""

    models: list  # of Layers; those by the evidence stand first
    n_evidence: int  # whose penalties the evidence chooses; the others' are fixed


def plan(estimator, n_rows, n_features, n_values, n_independent=1.0):
    """Return the :class:`Plan` of a committee, or None where there is none.

    Penalties are chosen by the evidence, or given, for fully connected networks that
    the default solver fits, where the dense Gauss-Newton matrix is small enough. With
    one number as ``alpha`` and layers of given sizes there is no committee: that is the
    problem of variable projection as it is published. Many classes in many rows want
    wide networks, whose matrix is too large: the default members of a classifier are
    wide there, and fitted by mini-batches. In smaller tables half of them or more are.

    Parameters
    ----------
    estimator : VarProNetRegressor or VarProNetClassifier
        Its constructor parameters are read.
    n_rows, n_features : int
    n_values : int
        Targets, or columns for the classes.
    n_independent : float, default=1.0
        Number of targets that are independent of each other.
    """
    if not (_has_committee(estimator) and estimator._default_solver()):
        return None
    sizes = _sizes(estimator, n_rows, n_features, n_values, n_independent)
    networks = partial(_networks, estimator, n_features, n_values)
    kinds, wide = networks(_names(estimator), sizes), networks(("relu",), (_WIDTH,))
    size = len(kinds[0].groups())
    if _by_batches(estimator, work_of(n_rows, size)):
        return Plan(wide * _n_starts(estimator, _BATCH_MEMBERS), 0)
    if not _is_affordable(kinds[0], n_rows):
        return None
    n = _n_starts(estimator, n_members(n_rows, size))
    members = [kinds[number % len(kinds)] for number in range(n)]
    if not _is_mixed(estimator):
        return Plan(members, n)
    if _continues_committee(estimator):
        n -= _BATCH_MEMBERS
    members = members[: min(n, _MOST_MIXED)]
    return Plan(members + wide * _BATCH_MEMBERS, len(members))


def _sizes(estimator, n_rows, n_features, n_values, n_independent):
    """Sizes of the hidden layers of the members by the evidence."""
    sizes = _checked(estimator)
    if not isinstance(estimator.hidden_layer_sizes, str):
        return sizes
    if _continues_committee(estimator) and estimator._loss == "squared":
        return estimator._fitted[1][0].model.sizes[1:]  # which may have grown
    if n_independent > 1:
        return (_width(n_rows, n_features, n_values, n_independent),)
    return sizes


def _networks(estimator, n_features, n_values, names, sizes):
    """A network for each name of an activation."""
    activation = estimator.activation
    if isinstance(estimator.hidden_layer_sizes, str):
        # Of one layer, and of those that it has grown to.
        given = [_activations(activation, name, sizes[:1]) for name in names]
        activations = [of_one * len(sizes) for of_one in given]
    else:
        activations = [_activations(activation, name, sizes) for name in names]
    return [
        Layers(
            sizes=(n_features, *sizes),
            activations=of_layers,
            n_values=n_values,
            loss=estimator._loss,
            features=tuple(range(n_features)),
        )
        for of_layers in activations
    ]


def _is_affordable(model, n_rows):
    """Whether the evidence of a network is computed, by its Gauss-Newton matrix."""
    size = len(model.groups())
    if model.loss != "squared":
        work = work_of(n_rows, size)
        return size <= LARGEST_DENSE and work <= _MOST_WORK_OF_CLASSES
    # The parameters of the last layer are eliminated where they are most of many.
    eliminated = size > LARGEST_DENSE and 2 * model.n_linear * model.n_values > size
    return affordable(n_rows, size) and not eliminated


def _n_starts(estimator, default):
    """Number of starts: as given, that of the former fit, or the default one."""
    if estimator.n_init != "auto":
        return estimator.n_init
    if _continues_committee(estimator):
        return len(estimator._fitted[1])
    return default


def n_members(n_rows, size):
    """Return the default number of members of so many parameters each."""
    return 2 * int(min(max(_WORK / work_of(n_rows, size), 2), _MEMBERS) // 2)


def _has_committee(estimator):
    """Whether the parameters ask for one, if the solver can fit it."""
    alpha, network = estimator.alpha, estimator.network
    if not (isinstance(network, str) and network == "mlp"):
        return False
    if isinstance(alpha, Real):
        return alpha < math.inf and isinstance(estimator.hidden_layer_sizes, str)
    return isinstance(alpha, dict) or (isinstance(alpha, str) and alpha == "auto")


def independent_targets(y, weight):
    """Return the number of independent targets: 1 if all are copies of one.

    That is the participation ratio of the eigenvalues of their correlation matrix,
    ``(sum_i l_i)^2 / sum_i l_i^2``.
    """
    y = y - weight @ y
    size = np.max(np.abs(y), axis=0)
    y = np.sqrt(weight)[:, None] * (y / np.where(size > 0, size, 1))
    norm = np.linalg.norm(y, axis=0)
    y = y[:, norm > 0] / norm[norm > 0]
    products = y.T @ y if y.shape[1] < len(y) else y @ y.T
    return max(1.0, y.shape[1] ** 2 / max(1.0, float(np.sum(products**2))))


def _width(n_rows, n_features, n_values, n_independent):
    """Neurons of a default regression of several targets.

    Those of one target serve two, further ones need some of their own, as long as there
    are rows enough and the Gauss-Newton matrix stays dense.
    """
    least = _NEURONS["squared"]
    wanted = least + round(_NEURONS_PER_TARGET * max(0.0, n_independent - 2))
    of_neuron = 1 + n_features + n_values
    most = (LARGEST_DENSE - n_values * (1 + n_features)) // of_neuron
    return max(least, min(wanted, most, n_rows // _ROWS_PER_NEURON))


def _by_batches(estimator, work):
    """Whether the members of a default classifier are fitted by mini-batches."""
    default = isinstance(estimator.hidden_layer_sizes, str)
    if not default or estimator._loss == "squared":
        return False
    if _continues_committee(estimator):  # as the former ones
        return estimator._fitted[1][0].model.sizes[1:] == (_WIDTH,)
    return work > _MOST_WORK_OF_ALL_ROWS


def _is_mixed(estimator):
    """Whether some members of a default classifier are wide networks."""
    default = isinstance(estimator.hidden_layer_sizes, str)
    if not default or estimator._loss == "squared":
        return False
    if _continues_committee(estimator):  # as the former ones
        return estimator._fitted[1][-1].model.sizes[1:] == (_WIDTH,)
    return estimator.n_init == "auto" and switches.on("varpro.wide_members")


def _continues_committee(estimator):
    """Whether the starts are the members of the former fit."""
    warm = estimator.warm_start and hasattr(estimator, "_fitted")
    return warm and estimator._fitted[0] is None


def _names(estimator):
    """Activations of the members by turns, if they are "auto"."""
    if not _continues_committee(estimator) or estimator._loss != "squared":
        return ACTIVATIONS if switches.on("varpro.mixed_activations") else ("relu",)
    models = [member.model for member in estimator._fitted[1]]
    return [model.activations[0] if model.activations else "relu" for model in models]


def _activations(given, name, sizes):
    """Activations of all layers of a member."""
    if isinstance(given, str):
        given = (name if given == "auto" else given,) * len(sizes)
    return tuple(given)


def _checked(estimator):
    """Return the sizes of the hidden layers; a ValueError names what is wrong."""
    sizes, activation = estimator.hidden_layer_sizes, estimator.activation
    if isinstance(sizes, str):
        sizes = (_NEURONS[estimator._loss],)
        if isinstance(activation, str) and activation == "auto":
            return sizes
    # The networks load JAX, which fits with default settings do without.
    from sklearn_gn.networks import MLP
    from sklearn_gn.networks._base import checked_network, checked_sizes

    sizes = checked_sizes("hidden_layer_sizes", sizes)
    checked_network(MLP(sizes, _activations(activation, "tanh", sizes)))
    return sizes
