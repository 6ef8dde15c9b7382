"""Networks of VarProNetRegressor and VarProNetClassifier as those of scikit-learn."""

import numpy as np

from sklearn_gn.runtime import export
from sklearn_gn.runtime.export import DenseNetwork
from sklearn_gn.varpro import committee


def to_sklearn(estimator, classes=None, single_target=False):
    """Return a fitted estimator of scikit-learn with the same predictions.

    Parameters
    ----------
    estimator : VarProNetRegressor or VarProNetClassifier
        A fitted one.
    classes : ndarray, default=None
        Of a classifier.
    single_target : bool, default=False
        Whether predictions of a regressor have one dimension.
    """
    model, net, scaling = estimator._fitted
    names = getattr(estimator, "feature_names_in_", None)
    if model is not None:
        network = single_network(model, net)
        if classes is not None:
            return export.classifier(network, scaling, classes, names)
        return export.regressor(network, scaling, names)
    networks = [member_network(member) for member in net]
    if classes is not None:
        encoded = np.arange(len(classes))
        members = [
            export.classifier(network, scaling, encoded, names) for network in networks
        ]
        return export.mean_of_classifiers(members, committee.shares(net), classes)
    each = []
    y_scale = np.broadcast_to(scaling.y_scale, scaling.y_center.shape)
    for k in range(len(scaling.y_center)):
        units = scaling.scaling._replace(
            y_center=scaling.y_center[k], y_scale=y_scale[k]
        )
        members = [
            export.regressor(one_output(network, k), units, names)
            for network in networks
        ]
        each.append(export.mean_of_regressors(members, committee.shares(net)))
    return each[0] if single_target else export.one_each(each)


def single_network(model, net):
    """Return the layers of one network."""
    from sklearn_gn.networks import MLP

    if not isinstance(model.network, MLP):
        raise ValueError(
            "to_sklearn: scikit-learn has fully connected networks only, this one is "
            f"{model.network!r}."
        )
    activation = export.one_activation(model.network._activations())
    weights, biases = model.network.split(net.theta)
    output = np.asarray(net.output, np.float64)
    return DenseNetwork([*weights, output[:-1]], [*biases, output[-1]], activation)


def member_network(member):
    """Return the layers of a member of a committee, the linear term among them."""
    model, net = member
    activation = export.one_activation(model.activations)
    output, layers = model.split(net.theta)
    d = model.sizes[0]
    weights = [layer[:, 1:].T for layer in layers]
    if not layers:
        return DenseNetwork([output[1:]], [output[0]], activation)
    first = np.zeros((d, model.sizes[1]))
    first[list(model.features)] = weights[0]
    network = DenseNetwork(
        [first, *weights[1:], output[1 + d :]],
        [*(layer[:, 0] for layer in layers), output[0]],
        activation,
    )
    return export.with_linear_term(network, output[1 : 1 + d])


def one_output(network, k):
    """Return the network with one of its outputs."""
    weights, biases, activation = network
    return DenseNetwork(
        [*weights[:-1], weights[-1][:, [k]]],
        [*biases[:-1], biases[-1][[k]]],
        activation,
    )
