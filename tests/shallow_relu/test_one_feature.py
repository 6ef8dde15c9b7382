"""The engine for one feature against NumPy, SciPy and dense least squares."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.optim.solver import Rows
from sklearn_gn.shallow_relu import broken_line, one_feature, sorted_rows
from sklearn_gn.shallow_relu.fitted import condensed_rows
from sklearn_gn.shallow_relu.network import predict
from sklearn_gn.shallow_relu.sorted_rows import LEFT, RIGHT
from sklearn_gn.solvers import JointGN

moments = sorted_rows.moments
steps = broken_line.gauss_newton_steps


def make_rows(n=200, q=1, seed=0):
    """Sorted rows from -1 to 1 of a kinked function with noise."""
    rng = np.random.RandomState(seed)
    x = np.sort(np.r_[-1, rng.uniform(-1, 1, n - 2), 1])
    y = np.abs(x[:, None] - [0.3, -0.4][:q]) + 0.3 * rng.randn(n, q)
    weight = rng.uniform(0.2, 1, n)
    return Rows(x[:, None], y, weight / weight.sum())


def series_of(rows, n_padded=256):
    return sorted_rows.sort_rows(rows, n_padded)


@pytest.fixture(scope="module", params=[1, 2], ids=["one target", "two targets"])
def rows(request):
    return make_rows(q=request.param)


def row(rows, k):
    return float(rows.x[k, 0])


def between(rows, k, *shares):
    """Positions between rows k and k + 1."""
    a, b = rows.x[k : k + 2, 0]
    return [float(a + s * (b - a)) for s in shares]


def plain(rows):
    return np.array([-0.6, -0.25, 0.1, 0.4, 0.55, 0.8])


# Six breakpoints each, so that they make one stack.
KNOTS = {
    "plain": plain,
    "at the left end": lambda rows: np.array([LEFT, -0.6, -0.1, 0.3, 0.5, 0.9]),
    "not in use": lambda rows: np.array([LEFT, -0.3, 0.4, RIGHT, RIGHT, RIGHT]),
    "none in use": lambda rows: np.full(6, RIGHT),
    "two in a gap": lambda rows: np.array(
        [-0.7, *between(rows, 60, 0.3, 0.6), 0.1, *between(rows, 150, 0.1, 0.9)]
    ),
    "empty intervals": lambda rows: np.array(
        [LEFT, *between(rows, 80, 0.2, 0.5, 0.7), 0.4, RIGHT]
    ),
    "one row": lambda rows: np.array(
        [*between(rows, 70, 0.4), *between(rows, 71, 0.5), 0.3, 0.5, 0.8, RIGHT]
    ),
    "first and last row": lambda rows: np.array(
        [*between(rows, 0, 0.5), -0.5, 0.0, 0.2, *between(rows, 198, 0.5), RIGHT]
    ),
    "at rows": lambda rows: np.array(
        [LEFT, *(row(rows, k) for k in (40, 90, 91, 140, 190))]
    ),
}
cases = pytest.mark.parametrize("case", KNOTS)


def relu_design(knots, x):
    """Columns 1 and relu(x - t) of the breakpoints in use."""
    used = knots[knots < RIGHT]
    return np.c_[np.ones(len(x)), np.maximum(x[:, None] - used, 0)]


def lstsq_loss(knots, rows):
    """Half the weighted squared error of the best function, by dense least squares."""
    root = np.sqrt(rows.weight)[:, None]
    design, target = root * relu_design(knots, rows.x[:, 0]), root * rows.y
    coef, *_ = np.linalg.lstsq(design, target)
    return 0.5 * np.sum((design @ coef - target) ** 2)


def on_rows(knots, fitted, x):
    """The function with given values at the breakpoints, by linear interpolation."""
    knots, values = np.r_[knots, RIGHT], np.asarray(fitted.values)
    return np.column_stack([np.interp(x, knots, v) for v in values.T])


# -- sums -----------------------------------------------------------------------------


def direct_moments(knots, rows):
    """Centred sums over the intervals by masks."""
    bounds = np.r_[-np.inf, knots, np.inf]
    for low, high in pairwise(bounds):
        inside = (rows.x[:, 0] >= low) & (rows.x[:, 0] < high)
        x, y, w = rows.x[inside, 0], rows.y[inside], rows.weight[inside]
        if not inside.any():
            yield 0.0, None, None, 0.0, np.zeros(rows.y.shape[1]), 0.0
            continue
        mean_x, mean_y = w @ x / w.sum(), w @ y / w.sum()
        design = np.sqrt(w)[:, None] * np.c_[np.ones(len(x)), x]
        target = np.sqrt(w)[:, None] * y
        coef, *_ = np.linalg.lstsq(design, target)
        rest = np.sum((target - design @ coef) ** 2)
        xx, xy = w @ (x - mean_x) ** 2, (w * (x - mean_x)) @ (y - mean_y)
        yield w.sum(), mean_x, mean_y, xx, xy, rest


@cases
@pytest.mark.parametrize("kind", ["running", "exact"])
def test_moments_equal_sums_over_masked_rows(rows, case, kind):
    knots = KNOTS[case](rows)
    device, host = series_of(rows)
    if kind == "running":
        found, atol = moments(knots, device), 1e-11
    else:
        found, atol = sorted_rows.exact_moments(knots, host), 1e-12
    for k, expected in enumerate(direct_moments(knots, rows)):
        weight, x, y, *squares = expected
        np.testing.assert_allclose(found.weight[k], weight, atol=atol)
        for a, b in zip((found.xx, found.xy, found.rest), squares, strict=True):
            np.testing.assert_allclose(a[k], b, atol=atol)
        if weight > 0:
            np.testing.assert_allclose(found.x[k], x, atol=atol / weight)
            np.testing.assert_allclose(found.y[k], y, atol=atol / weight)
        else:
            assert found.weight[k] == 0
        low, high = np.r_[LEFT, knots][k], np.r_[knots, RIGHT][k]
        assert low <= found.x[k] <= high


def test_sums_in_blocks_are_those_in_one(rows, monkeypatch):
    whole, _ = series_of(rows)
    monkeypatch.setattr(sorted_rows, "_BLOCK_ROWS", 7)
    blocks, _ = series_of(rows)
    np.testing.assert_allclose(blocks.sums, whole.sums, atol=1e-12)


def test_padding_changes_nothing():
    rows = make_rows(q=2)
    knots = plain(rows)
    short, _ = series_of(rows, 200)
    long, _ = series_of(rows, 512)
    assert np.isinf(long.x[200:]).all()
    a, b = (broken_line.fit_running(knots, s) for s in (short, long))
    np.testing.assert_allclose(a.values, b.values, rtol=1e-10, atol=1e-10)
    assert float(a.loss) == pytest.approx(float(b.loss), rel=1e-10)


# -- the function with given breakpoints ----------------------------------------------


@cases
def test_fit_equals_scikit_learn_on_relu_features(rows, case):
    knots = KNOTS[case](rows)
    device, host = series_of(rows)
    x = rows.x[:, 0]
    design = relu_design(knots, x)[:, 1:]
    expected = np.average(rows.y, axis=0, weights=rows.weight) + np.zeros_like(rows.y)
    if design.shape[1]:
        oracle = LinearRegression().fit(design, rows.y, rows.weight)
        expected = oracle.predict(design).reshape(rows.y.shape)
    loss = 0.5 * rows.weight @ np.sum((expected - rows.y) ** 2, axis=1)
    for fitted in (
        broken_line.fit_running(knots, device),
        broken_line.fit_exact(knots, host),
    ):
        np.testing.assert_allclose(on_rows(knots, fitted, x), expected, atol=1e-9)
        assert float(fitted.loss) == pytest.approx(loss, rel=1e-11)
        length = np.diff(np.r_[knots, RIGHT])[:, None]
        rise = np.diff(fitted.values, axis=0)
        np.testing.assert_allclose(fitted.slopes[1:] * length, rise, atol=1e-10)
        assert np.all(fitted.slopes[0] == 0)


def test_breakpoints_that_coincide_let_the_function_jump(rows):
    """As two at the ends of the gap that they are in."""
    at = between(rows, 60, 0.3)[0]
    knots = np.array([LEFT, -0.5, at, at, 0.6, RIGHT])
    apart = np.sort(np.array([LEFT, -0.5, *rows.x[60:62, 0], 0.6, RIGHT]))
    device, host = series_of(rows)
    expected = lstsq_loss(apart, rows)
    assert expected < 0.999 * lstsq_loss(np.array([LEFT, -0.5, at, 0.6]), rows)
    assert float(broken_line.fit_running(knots, device).loss) == pytest.approx(expected)
    assert float(broken_line.fit_exact(knots, host).loss) == pytest.approx(expected)


@cases
def test_gradient_equals_differences_of_the_dense_loss(rows, case):
    knots = KNOTS[case](rows)
    if case == "at rows":
        pytest.skip("the loss has corners at the rows")
    _, host = series_of(rows)
    found = broken_line.gradient(knots, broken_line.fit_exact(knots, host))
    inner = np.flatnonzero((knots > LEFT) & (knots < RIGHT))
    for i in inner:
        h = 1e-6 * np.eye(len(knots))[i]
        expected = (lstsq_loss(knots + h, rows) - lstsq_loss(knots - h, rows)) / 2e-6
        assert float(found[i]) == pytest.approx(expected, abs=3e-8)
    assert case == "none in use" or len(inner) >= 2


# -- steps ----------------------------------------------------------------------------


def dense_step(knots, rows):
    """Breakpoints' part of the joint Gauss-Newton step in (c_0, c, t), by lstsq."""
    x, root = rows.x[:, 0], np.sqrt(rows.weight)[:, None]
    used = knots[knots < RIGHT]
    design = relu_design(knots, x)
    coef, *_ = np.linalg.lstsq(root * design, root * rows.y)
    error = root * (design @ coef - rows.y)
    free = used > LEFT
    behind = (x[:, None] >= used)[:, free]
    q = rows.y.shape[1]
    jacobian = np.concatenate(
        [
            np.c_[
                np.kron(np.eye(q)[k], root * design),
                -root * behind * coef[1:, k][free],
            ]
            for k in range(q)
        ]
    )
    step, *_ = np.linalg.lstsq(jacobian, -error.T.ravel())
    delta = np.zeros(len(knots))
    delta[: len(used)][free] = step[-free.sum() :]
    return delta


@pytest.mark.parametrize("case", ["plain", "at the left end", "not in use"])
@pytest.mark.parametrize("exact", [False, True])
def test_step_equals_the_dense_joint_gauss_newton_step(rows, case, exact):
    knots = KNOTS[case](rows)
    device, host = series_of(rows)
    fitted = (
        broken_line.fit_exact(knots, host)
        if exact
        else broken_line.fit_running(knots, device)
    )
    expected = dense_step(knots, rows)
    assert np.count_nonzero(expected) >= 2
    np.testing.assert_allclose(steps(knots, fitted)[0], expected, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("case", ["plain", "at the left end", "not in use"])
def test_second_step_goes_to_where_fitted_lines_meet(case):
    rows = make_rows()
    knots = KNOTS[case](rows)
    x, y, w = rows.x[:, 0], rows.y[:, 0], rows.weight
    used = knots[knots < RIGHT]
    bounds = np.r_[-np.inf, used, np.inf]
    lines = [
        # A constant left of all breakpoints; polyfit wants roots of weights.
        np.polyfit(x[inside], y[inside], min(k, 1), w=np.sqrt(w[inside]))
        if inside.any()
        else None
        for k, inside in enumerate((x >= a) & (x < b) for a, b in pairwise(bounds))
    ]
    expected = np.zeros(6)
    for i, (left, right) in enumerate(pairwise(lines)):
        if left is not None:
            expected[i] = np.roots(np.polysub(right, left))[0] - used[i]
    assert np.count_nonzero(expected) >= 2
    found = steps(knots, broken_line.fit_running(knots, series_of(rows)[0]))[1]
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_second_step_with_two_targets_goes_to_where_the_lines_of_both_meet():
    rows = make_rows(q=2)
    truth = np.array([-0.65, -0.2, 0.15, 0.35, 0.6, 0.75])
    coef = np.array([[1, -2, 3, -1, 2, -3], [0.5, 1, -1, 2, -2, 1]]).T
    rows = rows._replace(y=np.maximum(rows.x - truth, 0) @ coef + [1.0, -2.0])
    # Rows beside the breakpoints would bend the lines of the intervals.
    knots = plain(rows)
    low, high = np.minimum(knots, truth), np.maximum(knots, truth)
    clear = ~np.any((rows.x >= low) & (rows.x <= high), axis=1)
    rows = Rows(*(a[clear] for a in rows))
    device, _ = series_of(rows)
    found = steps(knots, broken_line.fit_running(knots, device))[1]
    np.testing.assert_allclose(knots + found, truth, atol=1e-10)


def test_breakpoints_outside_the_data_and_without_slope_do_not_move(rows):
    constant = rows._replace(y=np.zeros_like(rows.y))
    for case in ("plain", "not in use"):
        device, _ = series_of(constant)
        for step in steps(plain(rows), broken_line.fit_running(plain(rows), device)):
            assert np.all(step == 0), case
    knots = KNOTS["not in use"](rows)
    device, _ = series_of(rows)
    for step in steps(knots, broken_line.fit_running(knots, device)):
        assert list(np.flatnonzero(step)) == [1, 2]


def test_jump_covariance_equals_that_of_independent_lines(rows):
    x, w = rows.x[:, 0], rows.weight
    knots = plain(rows)
    bounds = np.r_[-np.inf, knots, np.inf]
    inside = (x[:, None] >= bounds[:-1]) & (x[:, None] < bounds[1:])
    # A constant in the first interval, a line in each of the others.
    design = np.c_[inside, inside[:, 1:] * x[:, None]]
    covariance = np.linalg.inv(design.T @ (w[:, None] * design))
    functional = np.zeros((6, 13))
    for i, t in enumerate(knots):
        functional[i, [i + 1, 7 + i]] = 1, t
        functional[i, i] -= 1
        if i:
            functional[i, 6 + i] -= t
    expected = functional @ covariance @ functional.T
    found = broken_line.jump_covariance(
        knots, sorted_rows.exact_moments(knots, series_of(rows)[1])
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_descent_never_raises_the_loss_and_ends_where_no_step_lowers_it(rows):
    device, _ = series_of(rows)
    knots, losses = plain(rows), [lstsq_loss(plain(rows), rows)]
    for _ in range(8):
        found, loss, count = broken_line.descend(knots[None], device, 5, 0.0)
        knots = found[0]
        losses.append(lstsq_loss(knots, rows))
        assert float(loss[0]) == pytest.approx(losses[-1], rel=1e-10)
    assert np.all(np.diff(losses) <= 1e-9 * losses[0])
    assert losses[-1] < 0.99 * losses[0]
    assert count[0] < 5
    fitted = broken_line.fit_running(knots, device)
    for trial in broken_line.full_steps(knots, fitted):
        assert lstsq_loss(trial, rows) >= losses[-1] * (1 - 1e-9)


# -- thinned sums ----------------------------------------------------------------------


def test_thinned_sums_are_those_at_every_kth_row(rows, monkeypatch):
    monkeypatch.setattr(sorted_rows, "THIN_ROWS", 64)
    host, _ = series_of(rows)
    thin = sorted_rows.thin_sums(host, 200)
    assert thin.n_rows == 50
    knots = rows.x[[4, 40, 80, 100, 160, 196], 0]  # at rows that are kept
    few, all_ = moments(knots, thin), moments(knots, host)
    for a, b in zip(few, all_, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)


def test_starts_on_thinned_sums_end_in_the_optimum_of_all_rows(monkeypatch):
    rng = np.random.RandomState(0)
    x = rng.uniform(-1, 1, 1000)
    y = np.interp(x, [-1, -0.3, 0.4, 1], [0, 1, -1, 2]) + 0.05 * rng.randn(1000)
    model = ShallowReLURegressor(
        3, n_init=10, solver=JointGN(relocations=0), random_state=0, alpha=0.0
    )
    whole = clone(model).fit(x[:, None], y)
    for module in (one_feature, sorted_rows):
        monkeypatch.setattr(module, "THIN_ROWS", 128)
    thinned = clone(model).fit(x[:, None], y)
    np.testing.assert_allclose(thinned.breakpoints_[1:], whole.breakpoints_[1:])
    assert thinned.loss_ == pytest.approx(whole.loss_, rel=1e-9)


# -- several at once ------------------------------------------------------------------


def test_a_singular_system_leaves_the_others_as_they_are():
    diagonal = np.array([[2.0, 3.0, 2.0], [0.0, 0.0, 0.0]])
    beside, target = np.array([[1.0, 1.0], [0.0, 0.0]]), np.ones((2, 3, 1))
    found = broken_line.solve_tridiagonal(diagonal, beside, target)
    dense = np.diag(diagonal[0]) + np.diag(beside[0], 1) + np.diag(beside[0], -1)
    np.testing.assert_allclose(found[0, :, 0], np.linalg.solve(dense, np.ones(3)))
    assert np.isnan(found[1]).all()


# -- networks -------------------------------------------------------------------------


def test_breakpoints_that_nearly_coincide_become_one():
    h = broken_line._CLOSE / 2
    knots = np.array([[0.5, 0.2, 0.2 + h, 0.2 + 2 * h], [RIGHT - h, -3, LEFT + h, 2]])
    found = broken_line.merge_knots(knots)
    np.testing.assert_array_equal(found[0], [*(3 * [0.2 + 2 * h]), 0.5])
    np.testing.assert_array_equal(found[1], [LEFT + h, LEFT + h, RIGHT, RIGHT])
    apart = np.array([LEFT, 0.1, 0.1 + 2 * broken_line._CLOSE, RIGHT])
    np.testing.assert_array_equal(broken_line.merge_knots(apart), apart)


CROWDED = {
    "in the first gap": lambda rows: [LEFT, *between(rows, 0, 0.1, 0.2, 0.9), 0.5],
    "left of the data": lambda rows: [LEFT, LEFT, -0.2, *between(rows, 50, 0.4), 0.5],
    "same position": lambda rows: [LEFT, *(2 * between(rows, 90, 0.3)), 0.3, 0.5],
    "at a row": lambda rows: [LEFT, row(rows, 90), row(rows, 90), 0.3, 0.5],
    "beside a row": lambda rows: [-0.5, *between(rows, 90, 0, 1e-5), 0, 0.5],
    "gaps in a row": lambda rows: [
        *between(rows, 88, 0.99),
        *between(rows, 89, 0.99),
        *between(rows, 90, 0.2, 0.3, 0.4),
    ],
    "right of the data": lambda rows: [LEFT, 0.2, 1.0 + 1e-4, 1.0 + 2e-4, RIGHT],
}


@pytest.mark.parametrize("case", CROWDED)
def test_spreading_keeps_the_function_at_all_rows(rows, case):
    knots = np.sort(np.array(CROWDED[case](rows)))
    _, host = series_of(rows)
    x = rows.x[:, 0]
    found = broken_line.spread_knots(knots, x)
    assert found.shape == knots.shape
    assert np.all(np.diff(found) >= 0)
    before, after = (broken_line.fit_exact(t, host) for t in (knots, found))
    net = one_feature.to_network(found, after, 5)
    np.testing.assert_allclose(
        predict(net, rows.x), on_rows(found, after, x), atol=1e-9
    )
    # The same set of functions on the rows, hence the same best one.
    assert float(after.loss) == pytest.approx(float(before.loss), rel=1e-10)
    # A gap with one of its ends holds one breakpoint, with both ends at most two.
    used = found[found < RIGHT]
    at = np.searchsorted(x, used)
    assert len(np.unique(at)) == len(at)
    inner = used[~np.isin(used, x)]
    assert not np.isin(x[np.searchsorted(x, inner) - 1], used).any()
    np.testing.assert_array_equal(broken_line.spread_knots(found, x), found)


@pytest.mark.parametrize("case", [c for c in KNOTS if c != "empty intervals"])
def test_network_is_the_piecewise_linear_function(rows, case):
    knots = KNOTS[case](rows)
    _, host = series_of(rows)
    fitted = broken_line.fit_exact(knots, host)
    net = one_feature.to_network(knots, fitted, 4)
    np.testing.assert_array_equal(net.alive, [True] * 4 + [False] * 2)
    np.testing.assert_array_equal(net.hyperplanes[:, 1], 1)
    grid = np.linspace(-1, 1, 777)
    expected = on_rows(knots, fitted, grid)
    np.testing.assert_allclose(predict(net, grid[:, None]), expected, atol=1e-8)
    # Outside it goes on: to the left as a line if a breakpoint is at the left end.
    start = np.asarray(fitted.slopes)[1 if knots[0] == LEFT else 0]
    outside = np.asarray(predict(net, np.array([[-2.0]])))[0]
    np.testing.assert_allclose(outside, expected[0] - start, atol=1e-8)


@pytest.mark.parametrize("case", [c for c in KNOTS if c != "empty intervals"])
def test_condensed_rows_have_the_sums_of_all_rows(rows, case):
    knots = broken_line.spread_knots(KNOTS[case](rows), rows.x[:, 0])
    tied = rows._replace(x=np.round(rows.x, 2))
    for data in (rows, tied):
        _, host = series_of(data)
        at = broken_line.spread_knots(knots, host.x)
        net = one_feature.to_network(at, broken_line.fit_exact(at, host), 6)
        ends = np.sort(-net.hyperplanes[:, 0])
        x, y, weight = condensed_rows(ends, host)
        assert len(x) <= 2 * len(np.unique(np.searchsorted(ends, host.x, "right")))
        # Every pair lies inside the rows of its interval.
        interval = np.searchsorted(ends, host.x, side="right")
        for k, point in zip(np.tile(np.unique(interval), 2), x[:, 0], strict=True):
            inside = host.x[interval == k]
            assert inside[0] - 1e-12 <= point <= inside[-1] + 1e-12
        # Weighted sums of 1, x, x^2, y and x y over every interval are the same.
        for k in np.unique(interval):
            mine = np.tile(np.unique(interval), 2) == k
            a = np.c_[np.ones(mine.sum()), x[mine], y[mine]]
            b = np.c_[np.ones(len(host.x)), host.x, host.y][interval == k]
            np.testing.assert_allclose(
                (a[:, :2] * weight[mine, None]).T @ a,
                (b[:, :2] * host.weight[interval == k, None]).T @ b,
                atol=1e-12,
            )
