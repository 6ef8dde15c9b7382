"""Degrees of freedom, from which the variance of the noise is estimated."""

import numpy as np


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
