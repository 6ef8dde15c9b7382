"""What a fitted ShallowReLURegressor answers. All of it comes from the fitted state."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, overload

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_is_fitted

from sklearn_gn._caller import warn_user
from sklearn_gn._typing import Array, ArrayLike
from sklearn_gn.arrays import backend, extremes
from sklearn_gn.bayes.laplace import PredictionIntervalMixin
from sklearn_gn.data.rows import validate_data
from sklearn_gn.shallow_relu import evidence_fitted, evidence_gn
from sklearn_gn.shallow_relu.fitted import predict_scaled, prediction_errors
from sklearn_gn.shallow_relu.network import hidden_features


class PredictionsMixin(
    PredictionIntervalMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
):
    """Predictions, intervals and hidden features of a fitted network."""

    _network: tuple[Any, Any]  # in scaled units, and these
    _active_slots: Any
    _posterior: Any
    _single_target: bool

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> Array: ...

    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[True]
    ) -> tuple[Array, Array]: ...

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> Array | tuple[Array, Array]:
        """Predict the targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        return_std : bool, default=False
            Whether to return standard deviations too.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Predicted values.

        y_std : ndarray of the same shape
            Standard errors of the predicted means by the delta method, with the
            breaking hyperplanes uncertain too; the noise of a new observation is not
            included (:meth:`predict_interval` adds it). A weight of two counts as two
            rows. Only with ``return_std``.

        Warns
        -----
        UserWarning
            If ``return_std`` is set and the weights of the rows sum to no more than the
            number of parameters: the noise cannot be estimated then.
        """
        check_is_fitted(self, "_network")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        y = self._predicted(X)
        if not return_std:
            return y[:, 0] if self._single_target else y
        std = self._deviation(X)
        return (y[:, 0], std[:, 0]) if self._single_target else (y, std)

    def _predicted(self, X):
        """Predictions of validated rows, of shape (n_samples, n_targets)."""
        net, scaling = self._network
        # Under one thread of BLAS no bit depends on the number of cores.
        with np.errstate(over="ignore", invalid="ignore"), backend.one_blas_thread:
            y = predict_scaled(net, scaling.x(X))
        return extremes.scaled_back(y, scaling.y_scale, scaling.y_center)

    def to_sklearn(self) -> BaseEstimator:
        """Return a fitted pipeline of scikit-learn, which predicts without JAX.

        Predictions are the same to rounding errors for rows within ten times the usual
        distance from the centre; this model extrapolates for farther ones, which the
        estimator moves to that distance.

        Returns
        -------
        model : Pipeline
            A ``StandardScaler`` and an ``MLPRegressor``. It shares no memory with this
            estimator.
        """
        from sklearn_gn.runtime import export

        check_is_fitted(self, "_network")
        net, scaling = self._network
        weights = [net.hyperplanes[:, 1:].T, np.asarray(net.coef, np.float64)]
        network = export.DenseNetwork(
            weights, [net.hyperplanes[:, 0], np.asarray(net.intercept)], "relu"
        )
        if hasattr(net, "slope"):
            network = export.with_linear_term(network, net.slope)
        names = getattr(self, "feature_names_in_", None)
        return export.regressor(network, scaling, names)

    def _deviation(self, X):
        net, scaling = self._network
        if isinstance(self._posterior, evidence_fitted.EvidencePosterior):
            with backend.one_blas_thread:
                std = evidence_fitted.prediction_errors(self._posterior, scaling.x(X))
                std = scaling.deviations(X, std, partial(evidence_gn.values, net))
            with np.errstate(over="ignore"):  # what is no float is infinite
                return std * scaling.y_scale
        freedom = self._degrees_of_freedom
        if freedom <= 0:
            n_rows, q = self._posterior.n_effective, net.coef.shape[1]
            warn_user(
                f"The weights of the rows sum to {n_rows:.4g}, and the network has "
                f"{n_rows * q - freedom:.0f} parameters: the noise cannot be "
                "estimated, and the standard deviations mean nothing. Lower n_neurons.",
            )
        std = prediction_errors(self._posterior, net, self._active_slots, scaling.x(X))
        with np.errstate(over="ignore"):  # what is no float is infinite
            return std * scaling.y_scale

    def transform(self, X: ArrayLike) -> Array:
        """Return the hidden features ``max(0, w_i . x + b_i)`` of the active neurons.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        features : ndarray of shape (n_samples, n_active)
            In the order of ``hyperplanes_``; ``features @ output_coef_ + X @
            linear_coef_ + output_intercept_`` is the prediction for rows that need not
            be moved (see Notes).
        """
        check_is_fitted(self, "_network")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        net, scaling = self._network
        _, factor = scaling.hyperplanes_to_user(net.hyperplanes[self._active_slots])
        features = hidden_features(net.hyperplanes[self._active_slots], scaling.x(X))
        return features / factor
