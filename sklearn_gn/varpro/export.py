"""Networks of VarProNetRegressor and VarProNetClassifier as scikit-learn's."""

import numpy as np

from sklearn_gn.runtime import export
from sklearn_gn.runtime.export import DenseNetwork
from sklearn_gn.varpro.members import shares


def to_sklearn(estimator):
    """Return a fitted estimator of scikit-learn with the same predictions."""
    model, net, scaling = estimator._fitted
    classes = getattr(estimator, "classes_", None)
    names = getattr(estimator, "feature_names_in_", None)
    if model is not None:
        network = _single_network(model, net)
        if classes is not None:
            return export.classifier(network, scaling, classes, names)
        return export.regressor(network, scaling, names)
    share, members = shares(net), estimator.estimators_
    if classes is not None:
        encoded, each = np.arange(len(classes)), []
        for member in members:
            if hasattr(member, "length_scales_"):
                net = member._member.net
                each.append(export.process_of_classes(net, scaling, encoded, names))
            else:
                network = _member_network(member)
                each.append(export.classifier(network, scaling, encoded, names))
        return export.mean_of(each, share[:, 0], classes)
    means, n_targets = [], len(scaling.y_center)
    share = np.broadcast_to(share, (len(net), n_targets))
    y_scale = np.broadcast_to(scaling.y_scale, n_targets)
    for k, center in enumerate(scaling.y_center):
        units, each = scaling._replace(y_center=center, y_scale=y_scale[k]), []
        for member in members:
            if hasattr(member, "length_scales_"):
                model, coef = member._member.model, member._member.net.theta[:, k]
                each.append(export.gaussian_process(model, coef, units, names))
                continue
            weights, biases, name = _member_network(member)
            last = weights[-1][:, [k]], biases[-1][[k]]
            network = [*weights[:-1], last[0]], [*biases[:-1], last[1]], name
            each.append(export.regressor(DenseNetwork(*network), units, names))
        means.append(export.mean_of(each, share[:, k]))
    return means[0] if estimator._single_target else export.one_each(means)


def _single_network(model, net):
    """The layers of one network."""
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


def _member_network(member):
    """The layers of a member of a committee, the linear term among them."""
    model, net = member._member.model, member._member.net
    activation, d = export.one_activation(member.activations_), model.sizes[0]
    output, _ = model.split(net.theta)
    if not member.coefs_:
        return DenseNetwork([output[1:]], [output[0]], activation)
    weights, biases = [*member.coefs_, output[1 + d :]], member.intercepts_
    network = DenseNetwork(weights, [*biases, output[0]], activation)
    return export.with_linear_term(network, output[1 : 1 + d])
