"""Where an equation does not hold, if that is a small part of the domain."""

import numpy as np

_N_POINTS, _MOST_AXES = 4096, 6
_SMALL = 0.05  # part of the domain; of normal residuals, 0.12 has half of the squares
_NARROW = 0.5  # of an axis, in which most of that part lies
_MOST = 0.1, 0.9  # quantiles


def concentration(solver):
    """Where half of the squared residuals are; "" if that is no small part."""
    domain = solver.problem_.domain
    if domain.dim > _MOST_AXES:
        return ""
    X = domain.sample(_N_POINTS, np.random.RandomState(0), "sobol")
    squares = np.sum(np.reshape(solver.residual(X), (len(X), -1)) ** 2, axis=1)
    order = np.argsort(-squares, kind="stable")
    if not (np.isfinite(squares).all() and squares.any()):
        return ""
    count = 1 + int(np.searchsorted(np.cumsum(squares[order]), squares.sum() / 2))
    if count > _SMALL * len(X):
        return ""
    return (
        f"Half of the remaining residual is on {100 * count / len(X):.2g} % of "
        f"the domain, {_place(domain, X[order[:count]])}: the solution is steep or "
        "singular there, or jumps. What is steep needs more neurons "
        "(hidden_layer_sizes); a jump needs a little diffusion, or a domain that ends "
        "before it."
    )


def _place(domain, X):
    """The narrow ranges of points along the axes, or the first of them."""
    low, high = np.quantile(X, _MOST, axis=0)
    narrow = high - low < _NARROW * np.ptp(domain.bounds, axis=1)
    if not narrow.any():
        first = zip(domain.axes, X[0], strict=True)
        return "most at " + ", ".join(f"{axis} = {c:.3g}" for axis, c in first)
    ranges = zip(domain.axes, low, high, narrow, strict=True)
    return "at " + ", ".join(
        f"{axis} = {a:.3g} to {b:.3g}" for axis, a, b, small in ranges if small
    )
