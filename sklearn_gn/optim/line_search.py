"""Line searches."""

import jax.numpy as jnp
from jax import lax

# Trial steps: a geometric grid that contains the Gauss-Newton step 1 and one
# enlarged step, then an even grid between the neighbours of its best point.
COARSE = tuple(2.0**k for k in range(1, -15, -1))
FINE = 9


def grid_search(loss, dtype):
    """Minimise ``loss(gamma)`` over ``gamma >= 0`` on a grid, refined once.

    The losses of the networks here are only piecewise smooth along a line, with several
    local minima, which is why the paper asks for the argmin and why sampling beats a
    method that trusts a slope.

    Parameters
    ----------
    loss : callable
        Maps a scalar step to a scalar.
    dtype : dtype
        Of the step.

    Returns
    -------
    gamma : scalar
        The best step of the grid. The caller compares its loss with that of no step.
    """
    coarse = jnp.asarray(COARSE, dtype)
    losses = _finite(lax.map(loss, coarse))
    best = jnp.argmin(losses)
    # Neighbours in the descending grid; past its ends, as far again, or zero.
    upper = jnp.where(best > 0, coarse[jnp.maximum(best - 1, 0)], 2 * coarse[0])
    last = coarse.shape[0] - 1
    lower = jnp.where(best < last, coarse[jnp.minimum(best + 1, last)], 0.0)
    fraction = jnp.arange(1, FINE + 1, dtype=dtype) / (FINE + 1)
    fine = lower + (upper - lower) * fraction
    fine_losses = _finite(lax.map(loss, fine))
    best_fine = jnp.argmin(fine_losses)
    return jnp.where(
        fine_losses[best_fine] < losses[best], fine[best_fine], coarse[best]
    )


def _finite(losses):
    return jnp.where(jnp.isfinite(losses), losses, jnp.inf)
