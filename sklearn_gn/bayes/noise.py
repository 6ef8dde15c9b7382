"""The noise: degrees of freedom to estimate it from, intervals that contain it."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from scipy.special import stdtrit

from sklearn_gn._typing import Array, ArrayLike
from sklearn_gn.arrays import extremes


def degrees_of_freedom(n_rows, n_targets, n_parameters, xp=np):
    """Residuals that are left to estimate the noise from; one at least.

    Parameters
    ----------
    n_rows : float
        Sum of the weights of the rows.
    n_targets : int
        Targets that share the parameters.
    n_parameters : float
        Effective number of parameters.
    xp : module, default=numpy
        ``jax.numpy`` inside compiled functions.
    """
    return xp.maximum(n_rows * n_targets - n_parameters, 1.0)


class PredictionIntervalMixin:
    """Intervals of new observations, for regressors that estimate the noise."""

    predict: Any
    noise_std_: Any
    _degrees_of_freedom: float

    def predict_interval(
        self, X: ArrayLike, level: float = 0.95
    ) -> tuple[Array, Array]:
        """Return intervals in which new observations lie with a given probability.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        level : float, default=0.95
            Probability, between 0 and 1.

        Returns
        -------
        lower, upper : ndarrays of shape (n_samples,) or (n_samples, n_targets)
            Prediction minus and plus a quantile of Student's t distribution times the
            standard deviation of an observation, which combines the noise,
            ``noise_std_``, and the standard error of the mean.

        Raises
        ------
        ValueError
            If ``level`` is not between 0 and 1.
        """
        if not (isinstance(level, Real) and 0 < level < 1):
            raise ValueError(f"level must lie between 0 and 1, got {level!r}.")
        y, std = self.predict(X, return_std=True)
        with np.errstate(over="ignore"):
            deviation = np.hypot(std, self._noise_std())
            width = stdtrit(max(self._noise_freedom(), 1), (1 + level) / 2) * deviation
        return extremes.interval(y, width)

    def _noise_std(self):
        """Standard deviation of the noise: one, or one a target."""
        return self.noise_std_

    def _noise_freedom(self):
        """Degrees of freedom that this estimate has."""
        return self._degrees_of_freedom
