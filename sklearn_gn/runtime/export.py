"""Fitted heads and networks as scikit-learn's own estimators, which need no JAX.

They hold copies of the fitted numbers and are ready to predict. A network becomes a
pipeline of a ``StandardScaler`` and an ``MLPRegressor`` or ``MLPClassifier``, in which
units of the hidden layers carry the linear term, and a committee the average that
scikit-learn has.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag

# scikit-learn's names of the activations that it has.
ACTIVATIONS = {
    "identity": "identity",
    "relu": "relu",
    "sigmoid": "logistic",
    "tanh": "tanh",
}


class DenseNetwork(NamedTuple):
    """Layers of a network, the last one linear, in scaled units."""

    weights: list  # (inputs, outputs) of each layer
    biases: list
    activation: str


def one_activation(names):
    """Return the activation of all layers, by scikit-learn's name."""
    names = set(names) or {"identity"}
    if len(names) > 1 or not names <= set(ACTIVATIONS):
        raise ValueError(
            "to_sklearn: the networks of scikit-learn have one activation of "
            f"{sorted(ACTIVATIONS)}; this one has {sorted(names)}."
        )
    return ACTIVATIONS[names.pop()]


def with_linear_term(network, slope):
    """Return a network with the slopes of a linear term, of shape (d, k), added.

    Further units of the hidden layers hand the inputs on: of "relu" a pair for each,
    ``x = relu(x) - relu(-x)``, of "tanh" one that is so small that its activation is
    the identity in floating-point numbers. Other activations are a ValueError.
    """
    weights, biases, activation = network
    if len(weights) == 1:
        return DenseNetwork([weights[0] + slope], biases, activation)
    eye = np.eye(len(slope))
    small = 2.0**-40  # of what is so small, tanh is the identity to the last digit
    known = {
        "identity": (eye, slope),
        "relu": (np.hstack([eye, -eye]), np.vstack([slope, -slope])),
        "tanh": (small * eye, slope / small),
    }
    if activation not in known:
        raise ValueError(
            "to_sklearn: the linear term of a network needs the activation 'relu', "
            f"'tanh' or 'identity', got {activation!r}."
        )
    enter, leave = known[activation]
    n = enter.shape[1]
    through = [block_diag(weight, np.eye(n)) for weight in weights[1:-1]]
    return DenseNetwork(
        [np.hstack([weights[0], enter]), *through, np.vstack([weights[-1], leave])],
        [*(np.append(bias, np.zeros(n)) for bias in biases[:-1]), biases[-1]],
        activation,
    )


def regressor(network, scaling, names=None):
    """Return a pipeline that scales the features and predicts the targets."""
    from sklearn.neural_network import MLPRegressor

    weights = [*network.weights[:-1], network.weights[-1] * scaling.y_scale]
    last = network.biases[-1] * scaling.y_scale + scaling.y_center
    network = network._replace(weights=weights, biases=[*network.biases[:-1], last])
    model = _filled(MLPRegressor, network, "identity")
    return _scaled(model, scaling, names)


def classifier(network, scaling, classes, names=None):
    """Return a pipeline that scales the features and predicts the classes."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import LabelBinarizer

    two = network.weights[-1].shape[1] == 1
    model = _filled(MLPClassifier, network, "logistic" if two else "softmax")
    model._label_binarizer = LabelBinarizer().fit(classes)
    model.classes_ = model._label_binarizer.classes_
    return _scaled(model, scaling, names)


def gaussian_process(process, coef, scaling, names=None):
    """Return a pipeline that scales the features and predicts one target."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

    kernel, scale = process.kernel, process.scale
    slope = ConstantKernel(scale * kernel.slope) * DotProduct(1.0)
    smooth = ConstantKernel(scale) * RBF(1 / np.sqrt(kernel.rho))
    for j in range(len(kernel.rho) * (kernel.additive > 0)):
        length = np.full(len(kernel.rho), np.inf)  # of features that do not count
        length[j] = 1 / np.sqrt(kernel.nu)
        smooth = smooth + ConstantKernel(scale * kernel.additive) * RBF(length)
    noise = scale * kernel.noise / process.counts
    model = GaussianProcessRegressor(smooth + slope, alpha=noise, optimizer=None)
    model.kernel_ = model.kernel
    model.X_train_ = process.x.copy()
    model.alpha_ = coef / scale
    model.L_ = np.sqrt(scale) * np.tril(process.root().root)
    model._y_train_mean = np.float64(scaling.y_center)
    model._y_train_std = np.float64(scaling.y_scale)
    model.n_features_in_ = process.x.shape[1]
    return _scaled(model, scaling, names, process.columns)


def process_of_classes(net, scaling, classes, names=None):
    """Return a pipeline that scales the features and predicts the classes.

    A logistic regression takes the smooth part of the logits, which kernel PCA with
    given coefficients computes, beside the features of the linear part.
    """
    from sklearn.decomposition import KernelPCA
    from sklearn.pipeline import FeatureUnion, make_pipeline
    from sklearn.preprocessing import FunctionTransformer, KernelCenterer

    process, coef = net.model, net.theta
    kernel, x = process.kernel, process.x
    d, n_values = x.shape[1], coef.shape[1]
    # Kernel PCA subtracts the mean over its rows. Where coefficients sum to zero it
    # does not count, so a row beyond all others takes up their sum.
    coef_of_rows = np.vstack([coef, -np.sum(coef, axis=0)])

    def smooth(root_rho):
        """Return the part of the logits that decays with the distance."""
        far = np.max(np.abs(x * root_rho)) + np.full(d, 1e3)
        pca = KernelPCA(n_values, kernel="rbf", gamma=0.5)
        pca.X_fit_, pca.gamma_ = np.vstack([x * root_rho, far]), 0.5
        pca.eigenvalues_, pca.eigenvectors_ = np.ones(n_values), coef_of_rows
        pca._centerer = KernelCenterer()
        pca._centerer.K_fit_rows_ = np.zeros(len(coef_of_rows))
        pca._centerer.K_fit_all_ = 0.0
        pca._centerer.n_features_in_ = len(coef_of_rows)
        pca.n_features_in_ = d
        with np.errstate(divide="ignore"):
            return make_pipeline(_scaler(np.zeros(d), 1 / root_rho), pca)

    singles, root_rho = range(d * (kernel.additive > 0)), np.sqrt(kernel.rho)
    parts = [("smooth", smooth(root_rho)), ("linear", FunctionTransformer())]
    parts += [
        (f"single{j}", smooth(np.sqrt(kernel.nu) * (np.arange(d) == j)))
        for j in singles
    ]
    weights = np.eye(n_values), kernel.slope * coef.T @ x
    weights += (kernel.additive * np.eye(n_values),) * len(singles)
    constant = kernel.slope * np.sum(coef, axis=0) + process.center
    model = logistic_regression(np.hstack(weights), constant, classes, True, None)
    model = make_pipeline(FeatureUnion(parts), model)
    return _scaled(model, scaling, names, process.columns)


def _filled(cls, network, out_activation):
    weights = [np.array(weight, np.float64) for weight in network.weights]
    widths = tuple(w.shape[1] for w in weights[:-1])
    model = cls(hidden_layer_sizes=widths, activation=network.activation)
    model.coefs_ = weights
    model.intercepts_ = [np.array(bias, np.float64) for bias in network.biases]
    model.out_activation_ = out_activation
    model.n_layers_ = len(weights) + 1
    model.n_outputs_ = weights[-1].shape[1]
    model.n_features_in_ = weights[0].shape[0]
    return model


def _scaled(model, scaling, names, columns=None):
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    scaler = _scaler(scaling.x_center, scaling.x_scale)
    if names is not None:
        scaler.feature_names_in_ = np.array(names, dtype=object)
    steps, kept = [scaler], slice(None)
    if columns is not None:
        # A projection on axes: skl2onnx knows no other choice of columns in a part.
        kept, picked = list(columns), PCA()
        picked.n_components_ = len(kept)
        picked.n_features_in_ = len(scaling.x_center)
        picked.components_ = np.eye(picked.n_features_in_)[kept]
        picked.mean_ = np.zeros(picked.n_features_in_)
        picked.explained_variance_ = np.ones(picked.n_components_)
        steps.append(picked)
    if scaling.has_limits:
        low, high = (np.array(limit)[kept] for limit in scaling.limits)
        words = {"a_min": low, "a_max": high}
        steps.append(FunctionTransformer(np.clip, kw_args=words))
    return make_pipeline(*steps, model)


def _scaler(center, scale):
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    scaler.mean_, scaler.scale_ = (np.array(a, np.float64) for a in (center, scale))
    with np.errstate(over="ignore"):
        scaler.var_ = scaler.scale_**2
    scaler.n_features_in_ = len(scaler.mean_)
    return scaler


def mean_of(members, shares, classes=None):
    """Return the weighted mean of regressors, or of classifiers' probabilities."""
    from sklearn.ensemble import VotingClassifier, VotingRegressor
    from sklearn.preprocessing import LabelEncoder
    from sklearn.utils import Bunch

    named = [(f"member{number}", member) for number, member in enumerate(members)]
    weights = np.array(shares, np.float64)
    if classes is None:
        model = VotingRegressor(named, weights=weights)
    else:
        words = {"voting": "soft", "flatten_transform": False}
        model = VotingClassifier(named, weights=weights, **words)
        model.le_ = LabelEncoder().fit(classes)
        model.classes_ = model.le_.classes_
    model.estimators_ = list(members)
    model.named_estimators_ = Bunch(**dict(named))
    return model


def one_each(regressors):
    """Return the regressor of several targets, one estimator for each."""
    from sklearn.multioutput import MultiOutputRegressor

    model = MultiOutputRegressor(regressors[0])
    model.estimators_ = regressors
    model.n_features_in_ = regressors[0].n_features_in_
    return model


def logistic_regression(coef, intercept, classes, fit_intercept, names):
    """Return a logistic regression with these coefficients."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(fit_intercept=fit_intercept)
    model.coef_ = np.array(coef, np.float64)
    model.intercept_ = np.array(intercept, np.float64)
    model.classes_ = np.array(classes)
    model.n_features_in_ = model.coef_.shape[1]
    if names is not None:
        model.feature_names_in_ = np.array(names, dtype=object)
    return model
