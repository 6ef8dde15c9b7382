"""Which networks a committee has, and how they are fitted."""

import math
from numbers import Real
from typing import NamedTuple

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.bayes.layers import Layers
from sklearn_gn.linalg.large_gram import LARGEST_DENSE, affordable, work_of
from sklearn_gn.varpro.members import networks_of

ACTIVATIONS = ("relu", "tanh")  # of the members by turns
_NEURONS = {"squared": 10, "cross_entropy": 4}
_NEURONS_PER_TARGET = 2.5  # independent of the others, from the third one on, ...
_ROWS_PER_NEURON = 2  # ... but not more than so many rows can tell apart
_FIRST_MEMBERS = 2  # to which others are added
_MOST_WORK_OF_CLASSES = 4e9  # of one member; else deep networks
_MOST_WORK_OF_ALL_ROWS = 5e8  # the same of a default classifier; else mini-batches
_WIDTH = 100  # of the members by mini-batches
_WIDE_MEMBERS = 4


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
    wide there, and fitted by mini-batches. In smaller tables four of them are.
    ``n_independent`` is the number of targets that are independent of each other.
    """
    alpha, loss, n_init = estimator.alpha, estimator._loss, estimator.n_init
    default = isinstance(estimator.hidden_layer_sizes, str)
    chosen = isinstance(alpha, dict) or (isinstance(alpha, str) and alpha == "auto")
    given = isinstance(alpha, Real) and alpha < math.inf and default
    is_mlp = isinstance(estimator.network, str) and estimator.network == "mlp"
    if not (is_mlp and (chosen or given) and estimator._default_solver()):
        return None
    former = []  # networks of the former committee, if the fit continues with it
    if estimator.warm_start and getattr(estimator, "_fitted", (0,))[0] is None:
        former = [member.model for member in networks_of(estimator._fitted[1])]
    sizes, names = _checked_sizes(estimator), ACTIVATIONS
    if not switches.on("varpro.mixed_activations"):
        names = ("relu",)
    if loss == "squared" and former:  # whose layers may have grown
        sizes = former[0].sizes[1:] if default else sizes
        names = [(model.activations or ("relu",))[0] for model in former]
    elif default and n_independent > 1:
        sizes = (_width(n_rows, n_features, n_values, n_independent),)

    def network(name, sizes):
        return Layers(
            sizes=(n_features, *sizes),
            activations=_activations(estimator.activation, name, sizes),
            n_values=n_values,
            loss=loss,
            features=tuple(range(n_features)),
        )

    kinds, wide = [network(name, sizes) for name in names], network("relu", (_WIDTH,))
    size = len(kinds[0].groups())
    work = work_of(n_rows, size)
    of_classes = default and loss != "squared"
    all_wide = work > _MOST_WORK_OF_ALL_ROWS
    n = _FIRST_MEMBERS if n_init == "auto" else n_init
    if former:
        all_wide = former[0].sizes[1:] == (_WIDTH,)
        n = len(former) if n_init == "auto" else n_init
    if of_classes and all_wide:
        n = _WIDE_MEMBERS if n_init == "auto" and not former else n
        return Plan([wide] * n, 0)
    # One network is fitted by variable projection where a matrix would be too large,
    # or where the parameters of the last layer, which it eliminates, are most of many.
    is_large = size > LARGEST_DENSE
    too_large = is_large or work > _MOST_WORK_OF_CLASSES
    if loss == "squared":
        of_output = kinds[0].n_linear * n_values
        too_large = not affordable(n_rows, size) or (is_large and 2 * of_output > size)
    if too_large:
        return None
    is_mixed = of_classes and n_init == "auto" and switches.on("varpro.wide_members")
    if former:
        is_mixed = of_classes and former[-1].sizes[1:] == (_WIDTH,)
        n -= _WIDE_MEMBERS * is_mixed
    members = [kinds[number % len(kinds)] for number in range(n)]
    return Plan(members + [wide] * _WIDE_MEMBERS * is_mixed, n)


def _checked_sizes(estimator):
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


def _activations(given, name, sizes):
    """Activations of layers of these sizes: those given, or one name for "auto"."""
    if isinstance(given, str):
        given = (name if given == "auto" else given,) * len(sizes)
    return tuple(given)


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
