"""Line searches: Newton's method in a bracket, and a grid.

Both take numbers and arrays of NumPy, and of JAX while it compiles.
"""

from sklearn_gn.arrays.libraries import library_of

# Trial steps: a geometric grid that contains the Gauss-Newton step 1 and one
# enlarged step, then an even grid between the neighbours of its best point.
_COARSE = tuple(2.0**k for k in range(1, -15, -1))


def line_minimum(derivatives, slope, *, flat, max_iter):
    """Find the least loss along a direction by Newton's method in a bracket.

    ``derivatives`` maps a step length to the first and second derivative of a convex
    loss, and is called ``max_iter`` times at most; ``slope`` is the first one at zero,
    and ``flat`` the part of it that may be left where the search ends. Returns the last
    length, the longest one at which the loss was seen to fall still, and whether what
    is left of the slope is little enough.
    """
    library = library_of(slope)
    xp = library.xp

    def improve(carry):
        t, lower, upper, _, count = carry
        first, second = derivatives(t)
        lower = xp.where(first < 0, t, lower)
        upper = xp.where(first < 0, upper, t)
        newton = t - first / xp.maximum(second, xp.finfo(t.dtype).tiny)
        inside = (newton > lower) & (newton < xp.minimum(upper, 8 * t))
        # With no lower end but zero, the direction may be far too long.
        between = xp.where(lower > 0, (lower + upper) / 2, upper / 10)
        middle = xp.where(xp.isinf(upper), 4 * t, between)
        found = xp.abs(first) <= flat * xp.abs(slope)
        new = xp.where(found, t, xp.where(inside, newton, middle))
        return new, lower, upper, found, count + 1

    one = xp.ones_like(slope)
    length, lower, _, found, _ = library.while_loop(
        lambda carry: ~carry[3] & (carry[4] < max_iter),
        improve,
        (one, 0 * one, xp.inf * one, xp.bool_(False), xp.int32(0)),
    )
    return length, lower, found


def grid_search(losses, dtype, xp):
    """Minimise a loss over steps ``gamma >= 0`` on a grid, refined once.

    The losses of the networks here are only piecewise smooth along a line, with several
    local minima, which is why the paper asks for the argmin and why sampling beats a
    method that trusts a slope. ``losses`` maps an array of steps to their losses. The
    caller compares the best loss of the grid with the loss of no step.
    """
    coarse = xp.asarray(_COARSE, dtype)
    first = xp.nan_to_num(losses(coarse), nan=xp.inf, posinf=xp.inf)
    best, last = xp.argmin(first), len(_COARSE) - 1
    # Neighbours in the descending grid; past its ends, as far again, or zero.
    upper = xp.where(best > 0, coarse[xp.maximum(best - 1, 0)], 2 * coarse[0])
    lower = xp.where(best < last, coarse[xp.minimum(best + 1, last)], 0.0)
    fraction = xp.arange(1, 10, dtype=dtype) / 10
    fine = lower + (upper - lower) * fraction
    second = xp.nan_to_num(losses(fine), nan=xp.inf, posinf=xp.inf)
    best_fine = xp.argmin(second)
    return xp.where(second[best_fine] < first[best], fine[best_fine], coarse[best])
