"""The networks of a committee as their user sees them."""

import numpy as np
from scipy.special import softmax

from sklearn_gn.base import all_logits
from sklearn_gn.bayes.laplace import one_or_each


class FittedMember:
    """One network of a committee: it predicts, and says what the evidence chose.

    Attributes
    ----------
    activations_ : tuple of str
        One for each hidden layer.
    coefs_ : list of ndarray
        Weights of the hidden layers, for scaled features; those of features that the
        evidence has switched off are zero.
    intercepts_ : list of ndarray
        Biases of the hidden layers.
    alpha_ : dict
        Penalties of the groups of parameters.
    log_evidence_ : float
        Logarithm of the evidence; only where it chose the penalties, as the next one.
    n_effective_parameters_ : float
        Number of well-determined parameters.
    noise_std_ : float or ndarray of shape (n_targets,)
        Standard deviation of the noise; of regressors only.
    share_ : float
        Its share in the predictions of the committee.
    """

    def __init__(self, estimator, member, scaling, summary, share):
        self._member = member
        self._scaling = scaling
        self._single_target = getattr(estimator, "_single_target", False)
        self._classes = getattr(estimator, "classes_", None)
        model, net = member
        _, layers = model.split(net.theta)
        self.activations_ = model.activations
        self.coefs_ = [layer[:, 1:].T.copy() for layer in layers]
        self.intercepts_ = [layer[:, 0].copy() for layer in layers]
        if layers:
            whole = np.zeros((model.sizes[0], model.sizes[1]))
            whole[list(model.features)] = self.coefs_[0]
            self.coefs_[0] = whole
        self.alpha_ = summary.alpha
        self.share_ = share
        if np.isfinite(summary.log_evidence):
            self.log_evidence_ = summary.log_evidence
            self.n_effective_parameters_ = summary.n_effective_parameters
        if self._classes is None:
            self.noise_std_ = one_or_each(summary.noise_std)

    def predict(self, X):
        """Predict the targets, or the labels.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        y : ndarray
            As the committee returns them.
        """
        if self._classes is not None:
            return self._classes[np.argmax(self.predict_proba(X), axis=1)]
        y = self._values(X) * self._scaling.y_scale + self._scaling.y_center
        return y[:, 0] if self._single_target else y

    def predict_proba(self, X):
        """Probabilities of the classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        p : ndarray of shape (n_samples, n_classes)
            In the order of the committee's ``classes_``.
        """
        return softmax(all_logits(self._values(X)), axis=1)

    def _values(self, X):
        model, net = self._member
        return model.values(net.theta, self._scaling.x(np.asarray(X, np.float64)))
