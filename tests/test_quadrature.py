"""Quadrature rules: exactness, order of convergence, partitions, bad input."""

import itertools

import numpy as np
import pytest
from numpy.polynomial.polynomial import polyval
from scipy.integrate import quad

from sklearn_gn.quadrature import Cells, grid

LINES = np.array([[-0.37, 1.0, 0.0], [0.21, 0.6, -0.8], [-0.5, 0.3, 0.9]])
BREAKPOINTS = np.array([-0.71, 0.1, 0.1 + 1e-9, 0.5, 1.3])


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


def monomial_integral(low, high, degree):
    return (high ** (degree + 1) - low ** (degree + 1)) / (degree + 1)


def met_by_corners(cells, hyperplanes):
    """Which cells have corners on both sides of one of the hyperplanes."""
    corners = [
        np.where(upper, cells.high, cells.low)
        for upper in itertools.product([False, True], repeat=cells.low.shape[1])
    ]
    values = [hyperplanes[:, 0] + x @ hyperplanes[:, 1:].T for x in corners]
    return np.any((np.min(values, axis=0) < 0) & (np.max(values, axis=0) > 0), axis=1)


def overlap(cells):
    """Volume that each two different cells have in common."""
    low = np.maximum(cells.low[:, None], cells.low)
    high = np.minimum(cells.high[:, None], cells.high)
    volume = np.prod(np.maximum(high - low, 0), axis=-1)
    return volume[~np.eye(len(cells), dtype=bool)]


# -- rules on a grid ------------------------------------------------------------------


def midpoint(low, high, n):
    return grid(low, high, n).midpoint()


def gauss(low, high, n, order=2):
    return grid(low, high, n).gauss(order)


@pytest.mark.parametrize(
    ("low", "high", "n", "volume"),
    [
        (-1.5, 1.5, 300, 3),
        ([-1, 0], [1, 0.3], 20, 0.6),
        (0, [2, 3, 0.5], [4, 3, 2], 3),
        (-1, 1, [5, 7], 4),
    ],
)
@pytest.mark.parametrize("rule", [midpoint, gauss, lambda *box: gauss(*box, order=3)])
def test_weights_are_positive_and_sum_to_the_volume(low, high, n, volume, rule):
    points, weights = rule(low, high, n)
    assert points.shape == (len(weights), max(map(np.size, (low, high, n))))
    assert np.all(weights > 0)
    assert np.all((low < points) & (points < high))
    close(weights.sum(), volume)


def test_midpoints_of_the_unit_square():
    points, weights = midpoint(0, 1, [2, 1])
    close(points, [[0.25, 0.5], [0.75, 0.5]])
    close(weights, [0.5, 0.5])
    points, _ = midpoint(0, 2, [2, 2])
    close(points, [[0.5, 0.5], [0.5, 1.5], [1.5, 0.5], [1.5] * 2])


def test_gauss_of_order_one_is_the_midpoint_rule():
    for one, other in zip(
        gauss([0, -1], 1, 7, order=1), midpoint([0, -1], 1, 7), strict=True
    ):
        close(one, other)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 4])
def test_gauss_is_exact_up_to_its_degree(order, n):
    low, high = -1.3, 2.1
    points, weights = gauss(low, high, n, order=order)
    for degree in range(2 * order):
        close(weights @ points[:, 0] ** degree, monomial_integral(low, high, degree))
    beyond = weights @ points[:, 0] ** (2 * order)
    assert abs(beyond / monomial_integral(low, high, 2 * order) - 1) > 1e-10


@pytest.mark.parametrize("order", [1, 2, 3])
def test_gauss_is_exact_along_every_axis(order):
    low, high = np.array([-1.0, 0.5]), np.array([0.7, 2.0])
    points, weights = gauss(low, high, [2, 3], order=order)
    for degrees in itertools.product(range(2 * order), repeat=2):
        exact = np.prod(
            [monomial_integral(*axis) for axis in zip(low, high, degrees, strict=True)]
        )
        close(weights @ np.prod(points**degrees, axis=1), exact)


def test_error_of_the_midpoint_rule_is_of_second_order():
    # h²/24 (f'(high) - f'(low)) + O(h⁴), the first term of the Euler-Maclaurin series.
    for n in (40, 80, 160):
        points, weights = midpoint(0, 2, n)
        error = np.expm1(2) - weights @ np.exp(points[:, 0])
        leading = (2 / n) ** 2 / 24 * np.expm1(2)
        assert abs(error / leading - 1) < 0.2 / n**2


# -- refinement -----------------------------------------------------------------------


@pytest.mark.parametrize("levels", [0, 1, 4])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_refined_rule_is_exact_for_piecewise_polynomials(levels, order):
    lengths = np.array([1, -1, 2, 0.3, 1])  # of normals, which make no difference
    hyperplanes = np.column_stack([-BREAKPOINTS, np.ones(5)]) * lengths[:, None]
    coef = np.random.RandomState(0).randn(2 * order, len(BREAKPOINTS) + 1)

    points, weights = grid(-1, 2, 7).refine(hyperplanes, levels).gauss(order)
    piece = np.searchsorted(BREAKPOINTS, points[:, 0])
    values = polyval(points[:, 0], coef[:, piece], tensor=False)
    exact = [
        quad(polyval, *ends, args=(c,), epsabs=1e-13)[0]
        for c, ends in zip(
            coef.T, itertools.pairwise([-1, *BREAKPOINTS, 2]), strict=True
        )
    ]
    close(weights @ values, sum(exact))


def test_square_of_a_network_is_integrated_exactly_by_the_default_order():
    points, weights = grid(-1, 1, 3).refine([[0.1, 1], [-0.4, 1]], levels=0).gauss()
    network = 1 - 2 * np.maximum(0, points + 0.1) + 3 * np.maximum(0, points - 0.4)
    # Linear from 1 to 1, to 0, to 0.6 at the ends of the pieces.
    a, b = np.array([1, 1, 0]), np.array([1, 0, 0.6])
    exact = np.array([0.9, 0.5, 0.6]) @ (a * a + a * b + b * b) / 3
    close(weights @ network[:, 0] ** 2, exact)


def test_one_dimensional_cells_are_halved_and_end_at_the_breakpoint():
    cells = grid(0, 4, 4).refine([[-1.375, 1]], levels=1)
    edges = [0, 1, 1.375, 1.5, 2, 3, 4]
    close(cells.low[:, 0], edges[:-1])
    close(cells.high[:, 0], edges[1:])


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize(
    ("low", "high", "n", "hyperplanes"),
    [
        (-1, 1, 5, [[0.31, 1], [-0.32, 1]]),
        ([-1, -0.5], 1, [5, 4], LINES),
        ([0, 0, -1], 1, 2, [[-0.4, 1, 1, 1], [0.1, 1, -0.5, 0.2]]),
    ],
)
def test_refined_cells_tile_the_box(low, high, n, hyperplanes, levels):
    coarse = grid(low, high, n)
    fine = coarse.refine(hyperplanes, levels)
    assert len(fine) > len(coarse)
    assert not overlap(fine).any()
    close(fine.volumes.sum(), coarse.volumes.sum())
    np.testing.assert_array_equal(fine.low.min(axis=0), coarse.low.min(axis=0))
    np.testing.assert_array_equal(fine.high.max(axis=0), coarse.high.max(axis=0))


def test_met_cells_give_way_to_their_parts_and_others_stay():
    coarse = grid([-1, -0.5], 1, [5, 4])
    met = met_by_corners(coarse, LINES)
    assert 0 < met.sum() < len(met)
    fine = coarse.refine(LINES)

    first = np.cumsum(np.where(met, 4, 1)) - np.where(met, 4, 1)
    np.testing.assert_array_equal(fine.low[first], coarse.low)
    np.testing.assert_array_equal(fine.high[first[~met]], coarse.high[~met])
    last = first[met] + 3
    np.testing.assert_array_equal(fine.high[last], coarse.high[met])
    centres = (coarse.low + coarse.high)[met] / 2
    close(fine.high[first[met]], centres)
    close(fine.low[last], centres)
    assert len(fine) == len(coarse) + 3 * met.sum()


def test_levels_are_repeated_refinement():
    coarse = grid([-1, -0.5], 1, [5, 4])
    at_once, by_steps = coarse.refine(LINES, 3), coarse
    for _ in range(3):
        by_steps = by_steps.refine(LINES)
    close(at_once.low, by_steps.low)
    close(at_once.high, by_steps.high)

    smallest = coarse.volumes.min() / 4**3
    met = met_by_corners(at_once, LINES)
    close(at_once.volumes[met], smallest)


# Multiples of 0.1 as they are written and as the grid computes them differ by rounding.
@pytest.mark.parametrize("position", [0.1, 0.3, 0.6, 0.7, 0.9])
def test_both_sides_of_a_hyperplane_between_cells_are_refined(position):
    line = grid(0, 1, 10)
    assert len(line.refine([[position, -1]], levels=0)) == 10
    assert len(line.refine([[position, -1]])) == 12
    plane = grid([0, 0], 1, 10)
    fine = plane.refine([[position, 0, -1]])
    assert len(fine) == 100 + 2 * 10 * 3
    small = fine.volumes < 0.009
    assert np.all(np.abs((fine.low + fine.high)[small, 1] / 2 - position) < 0.1)


def test_cells_at_a_breakpoint_in_the_middle_become_as_small_as_elsewhere():
    # A fit may well break at a sample, which is the centre of its cell.
    fine = grid(0, 3, 3).refine([[-1.5, 1]], levels=3)
    beside = (fine.low == 1.5) | (fine.high == 1.5)
    close(fine.volumes[beside[:, 0]], 1 / 8)


@pytest.mark.parametrize("position", [-0.2, 1.1])
def test_hyperplanes_outside_meet_nothing(position):
    assert len(grid(0, 1, 10).refine([[position, -1]], levels=2)) == 10


def test_no_hyperplanes_change_nothing():
    cells = grid([0, 0], 1, 3)
    assert len(cells.refine(np.empty((0, 3)), levels=2)) == 9


def test_slopes_near_zero_are_no_breakpoints():
    assert len(grid(0, 1, 3).refine([[1.0, 1e-310]])) == 3


# -- partitions -----------------------------------------------------------------------


def test_partitions_do_not_change():
    edges = np.linspace(0, 1, 4)
    cells = Cells(edges[:-1], edges[1:])
    cells.refine([[-0.5, 1]], levels=2)
    edges[:] = 7
    assert len(cells) == 3
    close(cells.low[:, 0], [0, 1 / 3, 2 / 3])
    assert repr(cells) == "<3 cells of dimension 1>"
    with pytest.raises(ValueError, match="read-only"):
        cells.low[0] = 1
    with pytest.raises(AttributeError):
        cells.low = edges[:-1]


def test_cells_of_another_domain():
    # An L of two boxes.
    points, weights = Cells([[0, 0], [0, 1]], [[2, 1], [1, 3]]).gauss(order=2)
    x, y = points.T
    close(weights.sum(), 4)
    close(weights @ (x**2 * y**3), 8 / 3 / 4 + 80 / 4 / 3)


# -- bad input ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ((1, 1, 5), r"low must be less than high, got 1\.0 and 1\.0 on axis 0"),
        (([0, 2], [1, 1], 5), r"low must be less than high, got 2\.0 .* on axis 1"),
        ((np.nan, 1, 5), "low must be finite and numeric, got nan"),
        ((0, [1, np.inf], 5), "high must be finite and numeric, got .*inf"),
        ((0, "one", 5), "high must be finite and numeric, got 'one'"),
        ((0, 1, 0), "n must be an integer >= 1, got 0"),
        ((0, 1, [3, -1]), r"n must be an integer >= 1, got \[3, -1\]"),
        ((0, 1, 10.0), r"n must be an integer >= 1, got 10\.0"),
        ((0, 1, True), "n must be an integer >= 1, got True"),
        (([0, 0], [1, 1, 1], 5), r"low, high and n .* got the shapes \(2,\), \(3,\)"),
        ((0, [[1, 1]], 5), r"one entry per axis; got the shapes \(\), \(1, 2\)"),
        (([], 1, 5), "one entry per axis"),
    ],
)
def test_bad_boxes_are_named(box, message):
    for function in (grid, midpoint, gauss):
        with pytest.raises(ValueError, match=message):
            function(*box)


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        ([0, 2], [1, 2], r"low must be less than high, got 2\.0 and 2\.0 on cell 1"),
        ([[0, 0]], [1, 1], r"low and high must both have .* got \(1, 2\) and \(2,\)"),
        (0, 1, r"the shape \(n_cells, n_features\), got \(\) and \(\)"),
        ([], [], r"the shape \(n_cells, n_features\), got \(0,\) and \(0,\)"),
        ([np.nan], [1], "low must be finite"),
    ],
)
def test_bad_cells_are_named(low, high, message):
    with pytest.raises(ValueError, match=message):
        Cells(low, high)


@pytest.mark.parametrize("order", [0, 2.5, [2], None])
def test_bad_orders_are_named(order):
    with pytest.raises(ValueError, match=r"order must be an integer >= 1, got"):
        gauss(0, 1, 3, order=order)


@pytest.mark.parametrize(
    ("hyperplanes", "levels", "message"),
    [
        ([[1, 2]], 1, r"shape .* = \(n_hyperplanes, 3\), got \(1, 2\)"),
        ([1, 2, 3], 1, r"= \(n_hyperplanes, 3\), got \(3,\)"),
        ([[1, np.inf, 0]], 1, "hyperplanes must be finite"),
        ([[1, 0, 1], [1, 0, 0]], 1, r"w different from zero; row 1 is \[1\. 0\. 0\.\]"),
        ([[1, 0, 1]], -1, "levels must be an integer >= 0, got -1"),
        ([[1, 0, 1]], 1.5, r"levels must be an integer >= 0, got 1\.5"),
    ],
)
def test_bad_refinements_are_named(hyperplanes, levels, message):
    with pytest.raises(ValueError, match=message):
        grid([0, 0], 1, 2).refine(hyperplanes, levels)
