"""Quadrature rules for continuous least squares: points, and weights for a fit.

An integral over a box becomes a weighted sum over points. Estimators take the points
as samples and the weights as ``sample_weight``, and so fit a function instead of a
table. The rules here are composite: a box is divided into cells, and every cell gets
the same small rule. Where a network breaks it can leave the function between two
points, unseen by the rule; :meth:`Cells.refine` makes the cells there smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sklearn_gn._typing import Array, ArrayLike

__all__ = ["Cells", "grid"]


def grid(low: ArrayLike, high: ArrayLike, n: ArrayLike) -> Cells:
    """Divide a box into equal cells.

    Parameters
    ----------
    low, high : float or array-like of shape (n_features,)
        Corners of the box.
    n : int or array-like of shape (n_features,)
        Number of cells along every axis. ``low``, ``high`` and ``n`` are broadcast: one
        number serves all axes.

    Returns
    -------
    Cells
        Equal boxes; the last axis runs fastest.

    Raises
    ------
    ValueError
        If ``low`` is not less than ``high``, or ``n`` less than one.

    Examples
    --------
    >>> from sklearn_gn.quadrature import grid
    >>> grid([0, 0], 1, [20, 10])
    <200 cells of dimension 2>

    The best approximation of a function in the mean square. ``loss_`` is divided by the
    sum of weights, here 2, and has a factor 1/2:

    >>> import numpy as np
    >>> from sklearn_gn import ShallowReLURegressor
    >>> points, weights = grid(-1, 1, 60).midpoint()
    >>> model = ShallowReLURegressor(n_neurons=3, random_state=0)
    >>> model = model.fit(points, np.abs(points[:, 0]), sample_weight=weights)
    >>> squared_error = 2 * weights.sum() * model.loss_
    >>> bool(squared_error < 1e-20)
    True
    """
    low, high, n = _finite("low", low), _finite("high", high), _count("n", n, least=1)
    shapes = {a.shape for a in (low, high, n)} - {()}
    if len(shapes) > 1 or any(len(shape) > 1 or 0 in shape for shape in shapes):
        raise ValueError(
            "low, high and n must be numbers, or have one entry per axis; got the "
            f"shapes {low.shape}, {high.shape} and {n.shape}."
        )
    low, high, n = map(np.atleast_1d, np.broadcast_arrays(low, high, n))
    _check_below(low, high, "axis")
    edges = [np.linspace(*axis) for axis in zip(low, high, n + 1, strict=True)]
    return Cells(
        _product([values[:-1] for values in edges]),
        _product([values[1:] for values in edges]),
    )


@dataclass(frozen=True, eq=False, repr=False)
class Cells:
    """Boxes that divide a domain, with a rule on each.

    :func:`grid` divides a box; other domains, and graded cells, can be given by their
    corners. Nothing changes a partition: refinement returns another.

    Parameters
    ----------
    low, high : array-like of shape (n_cells, n_features)
        Corners of the cells, which must not overlap. With one feature the shape may be
        (n_cells,).

    Attributes
    ----------
    low, high : ndarray of shape (n_cells, n_features)
        The corners, read-only.

    Examples
    --------
    Cells that grow away from zero:

    >>> import numpy as np
    >>> from sklearn_gn.quadrature import Cells
    >>> edges = np.array([0, 0.1, 0.3, 0.7, 1.5])
    >>> cells = Cells(edges[:-1], edges[1:])
    >>> points, weights = cells.midpoint()
    >>> weights.round(12)
    array([0.1, 0.2, 0.4, 0.8])

    A breakpoint at 0.6, the zero of x - 0.6, makes an edge of its own:

    >>> cells.refine([[-0.6, 1]], levels=0).high[:, 0]
    array([0.1, 0.3, 0.6, 0.7, 1.5])
    """

    low: np.ndarray
    high: np.ndarray

    def __post_init__(self):
        """Check the corners and keep copies that cannot be written to."""
        low, high = _finite("low", self.low), _finite("high", self.high)
        if low.shape != high.shape or low.ndim not in (1, 2) or low.size == 0:
            raise ValueError(
                "low and high must both have the shape (n_cells, n_features), got "
                f"{low.shape} and {high.shape}."
            )
        _check_below(low, high, "cell")
        for name, corner in (("low", low), ("high", high)):
            corner = corner.reshape(len(corner), -1).copy()
            corner.setflags(write=False)
            object.__setattr__(self, name, corner)

    def __len__(self):
        return len(self.low)

    def __repr__(self):
        return f"<{len(self)} cells of dimension {self.low.shape[1]}>"

    @property
    def volumes(self) -> Array:
        """Volumes of the cells, of shape (n_cells,)."""
        return np.prod(self.high - self.low, axis=1)

    def midpoint(self) -> tuple[Array, Array]:
        """Midpoint rule on every cell.

        Its error falls with the square of the cell size where the integrand is smooth.

        Returns
        -------
        points : ndarray of shape (n_cells, n_features)
            The centres.
        weights : ndarray of shape (n_cells,)
            The volumes.
        """
        return self.gauss(order=1)

    def gauss(self, order: int = 2) -> tuple[Array, Array]:
        """Tensor-product Gauss-Legendre rule on every cell.

        It is exact for polynomials of degree ``2 * order - 1`` along every axis of a
        cell. The default is exact for the square of a piecewise-linear function, where
        the pieces are made of cells.

        Parameters
        ----------
        order : int, default=2
            Points in a cell along every axis.

        Returns
        -------
        points : ndarray of shape (n_cells * order**n_features, n_features)
            Cell by cell; the last axis runs fastest.
        weights : ndarray of shape (n_cells * order**n_features,)
            Positive; their sum is the volume of all cells.

        Raises
        ------
        ValueError
            If ``order`` is less than one.
        """
        order = _count("order", order, least=1, scalar=True)
        n_features = self.low.shape[1]
        nodes, shares = np.polynomial.legendre.leggauss(order)
        nodes = _product([nodes] * n_features)
        shares = np.prod(_product([shares / 2] * n_features), axis=1)
        halves = (self.high - self.low) / 2
        centres = (self.low + self.high) / 2
        points = centres[:, None] + halves[:, None] * nodes
        weights = self.volumes[:, None] * shares
        return points.reshape(-1, n_features), weights.ravel()

    def refine(self, hyperplanes: ArrayLike, levels: int = 1) -> Cells:
        """Make the cells smaller that hyperplanes meet.

        A hyperplane meets the cells that it runs through or touches, so that both sides
        of one between cells are refined. These cells are halved along every axis, then
        the parts that it meets, ``levels`` times. With one feature the breakpoints
        become edges of cells in the end, so that :meth:`gauss` is exact for piecewise
        polynomials.

        Parameters
        ----------
        hyperplanes : array-like of shape (n_hyperplanes, 1 + n_features)
            Rows (b, w) of hyperplanes ``w . x + b = 0``, such as ``hyperplanes_`` of
            :class:`~sklearn_gn.ShallowReLURegressor`.
        levels : int, default=1
            How often cells are halved. 0 only places the edges where there is one
            feature.

        Returns
        -------
        Cells
            With the same union. The parts of a cell take its place in the order.

        Raises
        ------
        ValueError
            If ``hyperplanes`` is not a finite array of this shape or has a row with
            ``w = 0``, or if ``levels`` is negative.

        Examples
        --------
        The line x = 0.4 runs through one column of a chessboard, and then through one
        half of it:

        >>> from sklearn_gn.quadrature import grid
        >>> cells = grid([0, 0], 1, 8)
        >>> [len(cells.refine([[-0.4, 1, 0]], levels)) for levels in range(3)]
        [64, 88, 136]
        """
        n_features = self.low.shape[1]
        hyperplanes = _finite("hyperplanes", hyperplanes)
        if hyperplanes.ndim != 2 or hyperplanes.shape[1] != 1 + n_features:
            raise ValueError(
                "hyperplanes must have the shape (n_hyperplanes, 1 + n_features) = "
                f"(n_hyperplanes, {1 + n_features}), got {hyperplanes.shape}."
            )
        is_zero = ~np.any(hyperplanes[:, 1:], axis=1)
        if is_zero.any():
            row = int(np.argmax(is_zero))
            raise ValueError(
                "hyperplanes must have rows (b, w) with w different from zero; row "
                f"{row} is {hyperplanes[row]}."
            )
        cells = self
        for _ in range(_count("levels", levels, least=0, scalar=True)):
            centres = (cells.low + cells.high) / 2
            cells = cells._divide(cells._are_met(hyperplanes), centres)
        if n_features == 1:
            for bias, slope in hyperplanes:
                inside = cells._are_met([(bias, slope)], touching=False)
                if inside.any():
                    cells = cells._divide(inside, -bias / slope)
        return cells

    def _are_met(self, hyperplanes, *, touching=True):
        """Which cells meet a hyperplane; ``touching`` counts those beside it, too."""
        centres, halves = (self.low + self.high) / 2, (self.high - self.low) / 2
        tolerance = 1e-14 if touching else -1e-14  # of a side along a hyperplane
        met = np.full(len(self), False)
        for bias, *normal in hyperplanes:  # one by one, to keep the memory small
            size = np.abs(normal)
            value = np.abs(bias + centres @ normal)
            scale = np.abs(bias) + np.abs(centres) @ size
            met |= value < halves @ size + tolerance * scale
        return met

    def _divide(self, chosen, at):
        """Divide the chosen cells at a point each, along every axis."""
        n_features = self.low.shape[1]
        upper = _product([[False, True]] * n_features)  # which half, for every part
        parts = np.where(chosen, len(upper), 1)
        at = np.broadcast_to(at, self.low.shape)
        low, high, at = (np.repeat(a, parts, axis=0) for a in (self.low, self.high, at))
        new = np.repeat(chosen, parts)
        upper = np.tile(upper, (np.count_nonzero(chosen), 1))
        low[new] = np.where(upper, at[new], low[new])
        high[new] = np.where(upper, high[new], at[new])
        return Cells(low, high)


def _product(axes):
    """Points of the grid with these values along the axes; the last runs fastest."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def _finite(name, value):
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite and numeric, got {value!r}.")
    return array


def _count(name, value, *, least, scalar=False):
    count = np.asarray(value)
    integer = count.dtype.kind in "iu" and (count.ndim == 0 or not scalar)
    if not integer or np.any(count < least):
        raise ValueError(f"{name} must be an integer >= {least}, got {value!r}.")
    return int(count) if scalar else count


def _check_below(low, high, what):
    wrong = np.argwhere(low >= high)
    if len(wrong):
        first = tuple(wrong[0])
        raise ValueError(
            f"low must be less than high, got {low[first]} and {high[first]} on {what} "
            f"{first[0]}."
        )
