"""Numbers near the ends of the range of floats: data, weights, and predictions."""

import numpy as np
from scipy import sparse

_LARGEST = np.finfo(np.float64).max
MOST_ROWS = 1e100  # that weights stand for; more would overflow in products


def largest_size(array):
    """Return the largest absolute value: 0 of no numbers, NaN where one is NaN."""
    return max(float(np.max(array, initial=0)), -float(np.min(array, initial=0)))


def check_differences(name, array):
    """Raise a ValueError if numbers are so large that differences may overflow."""
    array = array.data if sparse.issparse(array) else array
    if array.dtype.kind != "f":
        return
    largest = max(np.max(array, initial=0), -np.min(array, initial=0))
    if largest > 1e300:
        raise ValueError(
            f"{name} holds a number of size {largest:.3g}; the largest that can be "
            f"fitted is 1e+300. Give {name} in larger units."
        )


def cast_within_range(values, dtype):
    """Return values in another precision, with room left for products with weights."""
    largest = np.finfo(dtype).max / 1e8
    return np.clip(values, -largest, largest).astype(dtype, copy=False)


def squares_overflow(y):
    """Return whether targets are so large that their squares are no floats."""
    y = np.asarray(y)
    largest = largest_size(y) if y.dtype.kind == "f" else 0.0
    return largest > np.sqrt(_LARGEST) / 1e4


def scaled_back(values, scale, center=0.0):
    """Return ``values * scale + center``, at most the largest float in size."""
    with np.errstate(over="ignore", invalid="ignore"):
        y = values * scale + center
    return np.clip(y, -_LARGEST, _LARGEST)


def numbers(values, network):
    """Return the values of a network; only one of the user's own may give NaN.

    That is a ValueError.
    """
    wrong = np.isnan(values).reshape(len(values), -1).any(axis=1)
    if wrong.any():
        raise ValueError(
            f"network={network!r} gives NaN at {wrong.sum()} of {len(values)} rows, "
            f"the first of which is row {wrong.argmax()}."
        )
    return values


def unbounded(deviations, xp=np):
    """Return deviations or variances, infinite where they are NaN.

    They are NaN where a part of them has left the range of floats: nothing bounds them.
    """
    return xp.where(xp.isnan(deviations), xp.inf, deviations)


def noise_deviation(precision, ratio=1.0):
    """Return the standard deviation of noise, infinite where its precision is zero.

    ``ratio``, a number or (q,), is the variance of the noise of each target relative to
    the mean of all.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return unbounded(np.sqrt(ratio) / np.sqrt(np.float64(precision)))[()]


def interval(y, width):
    """Return ``y - width`` and ``y + width``, within the range of floats."""
    width = np.minimum(width, _LARGEST)
    with np.errstate(over="ignore"):
        lower, upper = y - width, y + width
    return np.maximum(lower, -_LARGEST), np.minimum(upper, _LARGEST)
