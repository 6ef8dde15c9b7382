"""What a fitted VarProNetRegressor answers. All of it comes from the fitted state."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, overload

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from sklearn_gn._typing import Array, ArrayLike
from sklearn_gn.arrays import backend, extremes
from sklearn_gn.bayes.laplace import PredictionIntervalMixin
from sklearn_gn.data.rows import validate_data
from sklearn_gn.varpro import committee
from sklearn_gn.varpro.estimator import blockwise

_JACOBIAN_FLOATS = 2**22  # of the derivatives of some rows of a committee


class PredictionsMixin(PredictionIntervalMixin):
    """Predictions and intervals of a fitted network or committee."""

    _fitted: tuple[Any, Any, Any]
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
        """Predict targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        return_std : bool, default=False
            Whether to return standard deviations of the predicted means too. They come
            from the Gauss-Newton matrix; those of a committee also from the spread of
            its members. For a single network of more than 1200 weights they include
            only those of the output layer. They are computed at the first request;
            until then the model keeps the training data.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Predicted values.

        std : ndarray of the same shape
            Their standard deviations, without the noise of single targets. Only if
            ``return_std`` is True.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        y = self._predicted(X)
        y = y[:, 0] if self._single_target else y
        if not return_std:
            return y
        std = self._deviation(X)
        return y, std[:, 0] if self._single_target else std

    def _predicted(self, X):
        """Predictions of validated rows, of shape (n_samples, n_targets)."""
        *_, scaling = self._fitted
        return extremes.scaled_back(self._values(X), scaling.y_scale, scaling.y_center)

    def _deviation(self, X):
        """Standard deviations of the means of validated rows."""
        model, net, scaling = self._fitted
        x = scaling.x(X)
        if model is None:
            with backend.one_blas_thread:
                covariances = [known.get() for known in self._covariances]
            known = partial(committee.variances, net, covariances, self._noise_ratios)
            size = len(scaling.y_center) * max(len(m.net.theta) for m in net)
            n_rows = int(np.clip(_JACOBIAN_FLOATS // size, 32, 4096))
            std = np.sqrt(blockwise(known, x, n_rows))
            values = partial(committee.mean_values, net)
            with np.errstate(over="ignore"):  # what is no float is infinite
                return scaling.deviations(X, std, values) * scaling.y_scale
        bars = self._error_bars
        variance = self._in_batches(bars.variances, x, bars.batch_rows)
        return np.sqrt(variance) * bars.noise * scaling.y_scale

    def to_sklearn(self) -> BaseEstimator:
        """Return a fitted estimator of scikit-learn, which predicts without JAX.

        A single network becomes a pipeline of a ``StandardScaler`` and an
        ``MLPRegressor``, a committee a ``VotingRegressor`` of such pipelines, one for
        each target. Predictions are the same to rounding errors for rows within ten
        times the usual distance from the centre; it extrapolates for farther ones,
        which a committee moves to that distance.

        Returns
        -------
        model : Pipeline, VotingRegressor or MultiOutputRegressor
            It shares no memory with this estimator.

        Raises
        ------
        ValueError
            If scikit-learn does not have such a network: other kinds than "mlp", other
            activations than "relu", "tanh", "sigmoid" and "identity", or several.
        """
        from sklearn_gn.varpro.export import to_sklearn

        check_is_fitted(self)
        return to_sklearn(self, single_target=self._single_target)

    def _noise_std(self):
        if hasattr(self, "noise_std_"):
            return super()._noise_std()
        noise = self._error_bars.noise * self._fitted[2].y_scale
        return float(noise[0]) if self._single_target else noise

    def _noise_freedom(self):
        if hasattr(self, "noise_std_"):
            return super()._noise_freedom()
        return self._error_bars.degrees_of_freedom
