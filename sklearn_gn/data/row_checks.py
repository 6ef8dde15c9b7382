"""What the evidence assumes of the rows, and training data may not satisfy.

The evidence takes rows for independent and noise for normal. Copies of rows look like
signal, and residuals of heavy tails make the noise level, and with it all intervals,
follow a few rows. Where residuals of neighbouring rows agree they are not noise: the
model lacks what would fit them.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

_MOST_PAIRS = 2000  # rows whose nearest neighbours are looked for; every k-th of more
_MOST_ROWS = 100_000  # whose residuals are looked at; every k-th of more
_CLEAR = 4.0  # standard errors of a sum of products of neighbouring residuals
_COPIES = 0.05  # share of the rows that is worth mentioning
_FAR = 5.0  # robust standard deviations, beyond which normal noise has no row
NORMAL_MEDIAN = ndtri(0.75)  # of an absolute standard normal variable
_FAR_SQUARES = 0.1  # share of the squares that decides the noise level
_SKEWED = 1.0  # skewness of positive targets whose logarithm may do better
_SEEN = 0.1  # of a target's deviation, below which residuals may be no noise
NAMED = 3  # rows or columns that a message names
ROUNDING = 16 * np.finfo(np.float64).eps  # of numbers that are alike, relative to them
HALF_THE_DIGITS = math.sqrt(np.finfo(np.float64).eps)
_BLOCK_NUMBERS = 2**15  # that are hashed at a time


class RowChecks(NamedTuple):
    """What was seen in the rows of a fit."""

    n_rows: int  # with positive weight
    n_copies: int = 0  # rows that are equal to an earlier one, if these mislead
    n_far: int = 0  # rows with far residuals
    far_squares: float = 0.0  # their share of the sum of squares
    farthest: tuple = ()  # numbers of some of them
    nearly_exact: bool = False  # whether the other residuals are small
    lacking: float = 0.0  # share of the squares on which neighbouring rows agree
    log_helps: bool = False  # whether the logarithm makes targets far less skewed

    def renumbered(self, number):
        """Return the checks of a sample, whose rows have these numbers."""
        return self._replace(farthest=tuple(int(number[k]) for k in self.farthest))


def target_spread(y, sample_weight):
    """Return the standard deviation of each target, zero of one that is constant."""
    y = y if sample_weight is None else y[sample_weight > 0]
    y = y.reshape(len(y), -1).astype(np.float64)
    _, exponent = np.frexp(np.abs(y).max(axis=0))
    y = np.ldexp(y, -exponent)  # of size one, without rounding
    varies = np.ptp(y, axis=0) > ROUNDING
    return np.where(varies, np.ldexp(np.std(y, axis=0), exponent), 0.0)


def checked_rows(X, y, sample_weight, predictions):
    """Return the :class:`RowChecks`; ``predictions`` is None for classes."""
    used = slice(None) if sample_weight is None else np.flatnonzero(sample_weight > 0)
    rows, targets = X[used], y[used]
    if predictions is None:
        targets = np.unique(targets, return_inverse=True)[1]
    targets = targets.reshape(len(rows), -1).astype(np.float64)
    checks = RowChecks(len(rows), n_copies=_n_copies(rows, targets))
    if predictions is None:
        return checks
    numbers = np.arange(len(X))[used]
    weight = None if sample_weight is None else sample_weight[used]
    every = slice(None, None, -(-len(rows) // _MOST_ROWS))
    residuals = targets[every] - predictions(rows[every])
    weight = None if weight is None else weight[every]
    checks = checks._replace(lacking=_lacking(rows[every], targets[every], residuals))
    return with_tails(checks, targets[every], residuals, weight, numbers[every])


def _lacking(X, y, residuals):
    """Share of squared residuals on which nearest rows agree, zero if by chance."""
    _, kept = np.unique(row_codes(X, y), return_index=True)
    kept = np.sort(kept)[:: -(-len(kept) // _MOST_PAIRS)]
    X, residuals = X[kept], residuals[kept]
    size = np.max(np.abs(residuals), axis=0)
    residuals = residuals / np.where(size > 0, size, 1)
    smallest = HALF_THE_DIGITS * np.max(np.abs(y), axis=0)  # below, it is no noise
    if len(X) < 2 or not np.any(size > smallest):
        return 0.0
    span = np.max(np.abs(X), axis=0)
    X = X / np.where(span > 0, span, 1)
    deviation = np.std(X, axis=0)
    x = X / np.where(deviation > ROUNDING, deviation, 1)
    x = x - np.mean(x, axis=0)
    distance = np.sum(x**2, axis=1) - 2 * x @ x.T
    np.fill_diagonal(distance, np.inf)
    nearest = np.argmin(distance, axis=1)
    products = np.sum(residuals * residuals[nearest], axis=1)
    total = np.sum(products)
    if not total > _CLEAR * np.sqrt(np.sum(products**2)):
        return 0.0
    return float(min(total / np.sum(residuals**2), 1.0))


def _n_copies(X, y):
    """Number of rows that are equal to an earlier one, if that is no chance, nor rare.

    Where few values are possible, rows with equal features are common. Then their
    targets differ, or agree as often as any do: rows of a frequent class, or zeros of
    counts.
    """
    n_copies = len(X) - len(np.unique(row_codes(X, y)))
    if n_copies <= _COPIES * len(X):
        return 0
    codes = row_codes(X, np.empty((len(X), 0)))
    sizes = np.unique(codes, return_counts=True)[1]  # of rows with equal features
    # Copies that are expected if targets did not depend on the features.
    targets = row_codes(np.empty((len(y), 0)), y)
    differ = 1 - np.unique(targets, return_counts=True)[1] / len(y)
    several, counts = np.unique(sizes[sizes > 1], return_counts=True)
    distinct = [np.sum(1 - differ**size) for size in several]
    by_chance = counts @ (several - distinct)
    is_chance = 2 * (n_copies - by_chance) <= len(X) - len(sizes) - by_chance
    return 0 if is_chance else n_copies


def with_tails(checks, y, residuals, weight, numbers):
    """Add the rows with far residuals, if they decide the noise level."""
    size = np.abs(residuals)
    if weight is not None:  # rows that count less are meant to be far
        size *= np.sqrt(np.minimum(weight / np.median(weight), 1))[:, None]
    deviation = np.median(size, axis=0) / NORMAL_MEDIAN
    noisy = deviation > HALF_THE_DIGITS * np.abs(y).max(axis=0)
    if not noisy.any():
        return checks
    # Errors of an approximation to exact data have heavy tails, and are small.
    spread = np.std(y[:, noisy], axis=0)
    seen = size[:, noisy] > _SEEN * spread
    size = size[:, noisy] / deviation[noisy]
    far = (size > _FAR) & seen
    if not np.sum(size[far] ** 2) > _FAR_SQUARES * np.sum(size**2):
        return checks
    largest = size.max(axis=1)
    n_far = int(far.any(axis=1).sum())
    order = np.argsort(-largest, kind="stable")[: min(NAMED, n_far)]
    y, log_helps = y[:, noisy], False
    if y.min() > 0:
        skewed, of_logs = _skewness(y / y.max(axis=0)), _skewness(np.log(y))
        unskewed = np.abs(of_logs) < np.minimum(skewed / 2, _SKEWED)
        log_helps = bool(np.all((skewed > _SKEWED) & unskewed))
    return checks._replace(
        n_far=n_far,
        far_squares=float(np.sum(size[far] ** 2) / np.sum(size**2)),
        farthest=tuple(int(number) for number in numbers[order]),
        nearly_exact=bool(np.all(deviation[noisy] < _SEEN * spread)),
        log_helps=log_helps,
    )


def _skewness(y):
    """Skewness of each column, zero of one that is constant but for rounding."""
    deviation = y - np.mean(y, axis=0)
    spread = np.sqrt(np.mean(deviation**2, axis=0))
    varies = spread > HALF_THE_DIGITS * np.abs(y).max(axis=0)
    unit = deviation / np.where(varies, spread, 1)
    return np.where(varies, np.mean(unit**3, axis=0), 0)


# --- hashes of rows -------------------------------------------------------------------


def row_codes(X, y, draw=0):
    """Return a 64-bit hash of each row; equal rows have equal ones in each draw."""
    n_columns = X.shape[1] + y.shape[1]
    factors = np.random.RandomState(draw).randint(2**62, size=n_columns, dtype=np.int64)
    factors = 2 * factors.astype(np.uint64) + np.uint64(1)
    code = np.empty(len(X), dtype=np.uint64)
    # Blocks that stay in the processor's cache, always in the same memory.
    size = max(1, _BLOCK_NUMBERS // n_columns)
    table = np.empty((size, n_columns))
    shifted = np.empty((size, n_columns), dtype=np.uint64)
    for start in range(0, len(X), size):
        part = slice(start, start + size)
        block = np.concatenate([X[part], y[part]], axis=1, out=table[: len(X[part])])
        block += 0.0  # -0.0 becomes 0.0
        bits, mixed = block.view(np.uint64), shifted[: len(block)]
        # Wrap-around is meant; the shift lets the high bits take part.
        np.right_shift(bits, np.uint64(29), out=mixed)
        code[part] = np.bitwise_xor(bits, mixed, out=mixed) @ factors
    return code
