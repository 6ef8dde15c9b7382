"""Numbers near the ends of the range of floats: data, weights, and predictions."""

import numpy as np

MOST_ROWS = 1e100  # that weights stand for; more would overflow in products


def largest_size(array):
    """Return the largest absolute value: 0 of no numbers, NaN where one is NaN."""
    return max(float(np.max(array, initial=0)), -float(np.min(array, initial=0)))


def scaled_back(values, scale, center=0.0):
    """Return ``values * scale + center``, at most the largest float in size."""
    with np.errstate(over="ignore", invalid="ignore"):
        y = values * scale + center
    largest = np.finfo(np.float64).max
    return np.clip(y, -largest, largest)


def numbers(values, network):
    """Return the values of a network; only one of the user's own may give NaN.

    That is a ValueError.
    """
    wrong = np.isnan(values).reshape(len(values), -1).any(axis=1)
    if wrong.any():
        raise ValueError(
            f"network={network!r} gives NaN at {wrong.sum()} of {len(values)} rows, "
            f"first at row {wrong.argmax()}."
        )
    return values


def unbounded(deviations):
    """Return deviations or variances, infinite where they are NaN.

    They are NaN where a part of them has left the range of floats: nothing bounds them.
    """
    return np.where(np.isnan(deviations), np.inf, deviations)


def noise_deviation(precision, ratio=1.0):
    """Return the standard deviation of noise, infinite where its precision is zero.

    ``ratio``, a number or (q,), is the variance of the noise of each target relative to
    the mean of all.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return unbounded(np.sqrt(ratio) / np.sqrt(np.float64(precision)))[()]
