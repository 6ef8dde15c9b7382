"""Line searches."""

from sklearn_gn.arrays.libraries import namespace

# Trial steps: a geometric grid that contains the Gauss-Newton step 1 and one
# enlarged step, then an even grid between the neighbours of its best point.
_COARSE = tuple(2.0**k for k in range(1, -15, -1))
_FINE = 9


def grid_search(losses, dtype, xp):
    """Minimise a loss over steps ``gamma >= 0`` on a grid, refined once.

    The losses of the networks here are only piecewise smooth along a line, with several
    local minima, which is why the paper asks for the argmin and why sampling beats a
    method that trusts a slope.

    Parameters
    ----------
    losses : callable
        Maps an array of steps to their losses.
    dtype : dtype
        Of the steps.
    xp : module
        numpy or jax.numpy.

    Returns
    -------
    gamma : scalar
        The best step of the grid. The caller compares its loss with that of no step.
    """
    coarse = xp.asarray(_COARSE, dtype)
    first = _finite(losses(coarse))
    best, last = xp.argmin(first), len(_COARSE) - 1
    # Neighbours in the descending grid; past its ends, as far again, or zero.
    upper = xp.where(best > 0, coarse[xp.maximum(best - 1, 0)], 2 * coarse[0])
    lower = xp.where(best < last, coarse[xp.minimum(best + 1, last)], 0.0)
    fraction = xp.arange(1, _FINE + 1, dtype=dtype) / (_FINE + 1)
    fine = lower + (upper - lower) * fraction
    second = _finite(losses(fine))
    best_fine = xp.argmin(second)
    return xp.where(second[best_fine] < first[best], fine[best_fine], coarse[best])


def _finite(losses):
    xp = namespace(losses)
    return xp.where(xp.isfinite(losses), losses, xp.inf)
