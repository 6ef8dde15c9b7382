"""The bound by a parabola of the cross-entropy of a margin.

Jaakkola and Jordan, "Bayesian parameter estimation via variational methods" (2000). The
least curvature of a parabola that touches ``log(1 + exp(f))`` at f, and lies nowhere
below it, is ``tanh(f / 2) / (2 f)``. A Gauss-Newton step with it in place of the second
derivative is never too long for margins that are linear in the parameters.
"""

import numpy as np

_FLAT = 1e-3  # margins at which it is that of zero


def bounding_curvature(margin, xp=np):
    """Return the curvature of the parabola that bounds the loss of a margin.

    Parameters
    ----------
    margin : array
        Of either sign, which makes no difference.
    xp : module, default=numpy
        Or ``jax.numpy``.

    Returns
    -------
    array
        1/4 at zero; it falls like ``1 / (2 |margin|)``.
    """
    size = xp.maximum(xp.abs(margin), _FLAT)
    return xp.tanh(size / 2) / (2 * size)
