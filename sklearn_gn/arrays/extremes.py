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
    """Return the values of a network; NaN, of a user's own network, is an error."""
    wrong = np.isnan(values).reshape(len(values), -1).any(axis=1)
    if wrong.any():
        raise ValueError(
            f"network={network!r} gives NaN at {wrong.sum()} of {len(values)} rows, "
            f"first at row {wrong.argmax()}."
        )
    return values


def unbounded(deviations):
    """Return deviations, infinite where they are NaN: out of the range of floats."""
    return np.where(np.isnan(deviations), np.inf, deviations)


def noise_deviation(precision, ratio=1.0):
    """Deviations of noise: ``ratio`` is its variance relative to the mean of all."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return unbounded(np.sqrt(ratio) / np.sqrt(np.float64(precision)))[()]
