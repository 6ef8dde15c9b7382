"""The noise: degrees of freedom to estimate it from, intervals that contain it."""

import numpy as np
from scipy.special import stdtrit

from sklearn_gn.core import extremes


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


def observation_interval(model, X, level):
    """Return lower and upper ends of intervals of new observations.

    They are those of Student's t distribution.

    Parameters
    ----------
    model : estimator
        Its methods ``_noise_std`` and ``_noise_freedom`` return the standard deviation
        of the noise and the degrees of freedom of this estimate.
    X : array-like of shape (n_samples, n_features)
    level : float
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}.")
    y, std = model.predict(X, return_std=True)
    with np.errstate(over="ignore"):
        deviation = np.hypot(std, model._noise_std())
        width = stdtrit(max(model._noise_freedom(), 1), (1 + level) / 2) * deviation
    return extremes.interval(y, width)
