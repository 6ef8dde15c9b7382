"""SolutionDisplay: what is drawn is what the solver has found."""

import copy
import itertools

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import LogNorm
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LinearRegression

from sklearn_gn.pde import (
    Ball,
    Box,
    Dirichlet,
    Initial,
    Problem,
    Reference,
    d,
)
from sklearn_gn.plotting import SolutionDisplay


def drift(u, x):
    return d(u, "t")(x) - u(x)


def sum_of_axes(x):
    return jnp.sum(x)


@pytest.fixture(scope="module")
def rod(solved):
    """An axis of space and time, without an exact solution."""
    box = Box(x=(-1.0, 1.0), t=(0.0, 2.0))
    return solved(Problem(drift, box, (Dirichlet(1.0), Initial(1.0))))


@pytest.fixture(scope="module")
def cube(solved):
    """Three axes of space, and time."""
    conditions = Dirichlet(sum_of_axes), Initial(sum_of_axes)
    box = Box.unit(3, time=(0.0, 1.0))
    return solved(Problem(drift, box, conditions, exact=sum_of_axes))


def draw(solver, **words):
    return SolutionDisplay.from_estimator(solver, **{"n_points": 6, **words})


def points_of(ticks):
    """Rows of points over two axes, the first running fastest."""
    return np.column_stack([a.ravel() for a in np.meshgrid(*ticks)])


@pytest.fixture
def changed(plane, plane_problem):
    """Function that states the problem of a solution differently; nothing is fitted."""

    def change(**words):
        solver = copy.copy(plane)
        solver.problem_ = Problem(**{**plane_problem, **words})
        return solver

    return change


@pytest.mark.parametrize("words", [{}, {"axes": "x"}])
def test_given_axes_are_divided(plane, words):
    _, (left, right) = plt.subplots(1, 2, layout="constrained")
    drawn = draw(plane, ax=right, **words)
    drawn.figure_.canvas.draw()
    assert not left.has_data()
    assert plt.get_fignums() == [1]
    assert drawn.ax_.get_position().x0 > left.get_position().x1
    axes = drawn.axes_
    assert drawn.plot(ax=axes).ax_ is axes[0, 0]


def test_estimators_that_are_no_solvers_of_a_problem(solved):
    X = np.linspace(0, 1, 10)[:, None]
    with pytest.raises(ValueError, match="this LinearRegression has none"):
        draw(LinearRegression().fit(X, X[:, 0]))
    with pytest.raises(ValueError, match="this PINNSolver has none"):
        draw(solved(None, X, X[:, 0]))
    assert plt.get_fignums() == []


# -- images ---------------------------------------------------------------------------


def test_images_are_solution_reference_and_error(plane):
    display = draw(plane)
    x, y = display.ticks
    # Cells fill the box: their centres are half a cell away from its edges.
    assert_allclose(x, (np.arange(6) + 0.5) / 6, rtol=1e-12)
    assert_allclose(y, 1.5 * (np.arange(6) + 0.5) / 6, rtol=1e-12)
    X = points_of(display.ticks)
    solution, reference, error = (image.get_array() for image in display.images_)
    predicted = plane.predict(X)[:, 0].reshape(6, 6)
    exact = (X[:, 0] ** 2 + X[:, 1]).reshape(6, 6)
    assert_allclose(solution, predicted, rtol=1e-10)
    assert_allclose(reference, exact, rtol=1e-12)
    assert_allclose(error, np.abs(predicted - exact), rtol=1e-10)
    corners = display.images_[0].get_coordinates()
    assert_allclose(corners.min(axis=(0, 1)), [0, 0], atol=1e-12)
    assert_allclose(corners.max(axis=(0, 1)), [1, 1.5], rtol=1e-12)


def test_solution_and_reference_share_their_colours(plane):
    solution, reference, error = draw(plane).images_
    both = np.stack([solution.get_array(), reference.get_array()])
    for image in (solution, reference):
        assert (image.norm.vmin, image.norm.vmax) == (both.min(), both.max())
    assert isinstance(error.norm, LogNorm)
    assert error.norm.vmax == error.get_array().max()
    assert error.norm.vmin == pytest.approx(1e-3 * error.norm.vmax, rel=1e-12)


def test_labels_of_images(plane):
    display = draw(plane, output="p", name="Mine")
    panels = display.axes_[0]
    titles = [panel.get_title() for panel in panels]
    assert titles == ["Mine p", "Reference p", "|Error|"]
    assert [panel.get_xlabel() for panel in panels] == ["x"] * 3
    assert [panel.get_ylabel() for panel in panels] == ["y", "", ""]
    assert {panel.get_aspect() for panel in panels} == {1}
    assert display.plot(name="Other").ax_.get_title() == "Other p"


def test_output_up_to_a_constant_is_compared_without_its_mean(plane):
    display = draw(plane, output="p")
    X = points_of(display.ticks)
    predicted = plane.predict(X)[:, 1].reshape(6, 6)
    exact = (X[:, 0] * X[:, 1] + 3).reshape(6, 6)
    solution, reference = predicted - predicted.mean(), exact - exact.mean()
    assert_allclose(display.solution, solution, rtol=1e-10, atol=1e-10)
    assert_allclose(display.reference, reference, atol=1e-12)
    assert_allclose(display.error, np.abs(solution - reference), atol=1e-10)


def test_residual_stands_in_for_an_unknown_error(rod):
    display = draw(rod)
    assert display.reference is None
    assert display.axis_names == ("t", "x")  # time is horizontal
    assert display.axes_.shape == (1, 2)
    X = points_of(display.ticks)[:, ::-1]
    solution, residual = (image.get_array() for image in display.images_)
    assert_allclose(solution.ravel(), rod.predict(X), rtol=1e-10)
    assert_allclose(residual.ravel(), np.abs(rod.residual(X)[:, 0]), rtol=1e-8)
    assert [panel.get_title() for panel in display.axes_[0]] == [
        "Solution u",
        "|Residual|",
    ]
    assert display.ax_.get_aspect() == "auto"


def test_order_of_the_axes_can_be_chosen(rod):
    display = draw(rod, axes=("x", "t"))
    assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("x", "t")
    X = points_of(display.ticks)
    assert_allclose(display.solution.ravel(), rod.predict(X), rtol=1e-10)


def test_residual_of_a_system_is_its_norm(changed):
    solver = changed(exact=None)
    display = draw(solver, output="p")
    X = points_of(display.ticks)
    assert_allclose(display.solution.ravel(), solver.predict(X)[:, 1], rtol=1e-10)
    size = np.hypot(*solver.residual(X).T)
    assert_allclose(display.error.ravel(), size, rtol=1e-8)


def test_points_outside_the_domain_are_masked(changed, plane_problem):
    hole = Ball(2, center=(0.5, 0.75), radius=0.3, axes=("x", "y"))
    solver = changed(domain=plane_problem["domain"] - hole)
    display = draw(solver, n_points=11)
    X = points_of(display.ticks)
    inside = np.hypot(*(X - (0.5, 0.75)).T) >= 0.3
    assert 0 < inside.sum() < inside.size
    for image in display.images_:
        mask = np.ma.getmaskarray(image.get_array())
        assert_array_equal(mask.ravel(), ~inside)
    drawn = display.solution.ravel()[inside]
    assert_allclose(drawn, solver.predict(X[inside])[:, 0], rtol=1e-10)
    display.figure_.canvas.draw()
    # The hole is in the middle of a curve, too.
    curve = draw(solver, axes="x", output="u", n_points=11)
    hidden = np.abs(curve.ticks[0] - 0.5) < 0.3 - 1e-12
    assert_array_equal(np.isnan(curve.solution), hidden)
    with pytest.raises(ValueError, match=r"no point of the slice .*: \{'y': 3.0\}"):
        draw(solver, at={"y": 3.0})


def test_labels_of_a_narrow_image_do_not_touch():
    x, y = np.linspace(0, 1, 5), np.linspace(0, 2, 5)
    values = x + y[:, None]
    display = SolutionDisplay(
        ticks=(x, y), solution=values, error=values, axis_names=("x", "y"), equal=True
    ).plot()
    display.figure_.canvas.draw()
    labels = [label for label in display.ax_.get_xticklabels() if label.get_text()]
    boxes = [label.get_window_extent() for label in labels]
    assert len(boxes) > 1
    for left, right in itertools.pairwise(boxes):
        assert left.x1 < right.x0


def test_error_of_zero_is_drawn(plane):
    zero = np.zeros((4, 4))
    display = SolutionDisplay(
        ticks=(np.arange(4.0), np.arange(4.0)),
        solution=zero,
        error=zero,
        axis_names=("x", "y"),
    ).plot()
    display.figure_.canvas.draw()
    curve = SolutionDisplay(
        ticks=(np.arange(4.0),), solution=zero[0], error=zero[0], axis_names=("x",)
    ).plot()
    curve.figure_.canvas.draw()
    assert curve.axes_[1, 0].get_yscale() == "linear"


# -- curves ---------------------------------------------------------------------------


def test_curves_of_one_axis(rod, plane):
    display = draw(plane, axes="y", at={"x": 0.25}, output="u", color="black")
    solution, reference, error = display.lines_
    y = np.linspace(0, 1.5, 6)  # to the ends
    X = np.column_stack([np.full(6, 0.25), y])
    assert_array_equal(solution.get_xdata(), y)
    assert_allclose(solution.get_ydata(), plane.predict(X)[:, 0], rtol=1e-10)
    assert_allclose(reference.get_ydata(), 0.0625 + y, rtol=1e-12)
    assert_array_equal(
        error.get_ydata(), np.abs(solution.get_ydata() - reference.get_ydata())
    )
    above, below = display.axes_[:, 0]
    assert (above.get_title(), above.get_ylabel()) == ("x = 0.25", "u")
    assert (below.get_xlabel(), below.get_ylabel()) == ("y", "|Error|")
    assert (above.get_yscale(), below.get_yscale()) == ("linear", "log")
    assert solution.get_color() == "black"
    assert len(draw(rod, at={"t": 0.0}).lines_) == 2  # no reference
    display.figure_.canvas.draw()


def test_a_problem_of_one_axis(solved):
    problem = Problem(growth, Box(t=(0.0, 1.0)), (Initial(1.0),), exact=exponential)
    solver = solved(problem)
    display = draw(solver)
    t = np.linspace(0, 1, 6)
    assert_allclose(display.solution, solver.predict(t[:, None]), rtol=1e-10)
    assert_allclose(display.reference, np.exp(t), rtol=1e-12)
    assert display.ax_.get_title() == ""


def growth(u, x):
    return d(u, "t")(x) - u(x)


def exponential(x):
    return jnp.exp(x[0])


def test_all_outputs_are_curves(plane):
    display = draw(plane, axes="y", at={"x": 0.25})
    X = np.column_stack([np.full(6, 0.25), np.linspace(0, 1.5, 6)])
    assert display.output_name == ("u", "p")
    u, p, *references, u_error, p_error = display.lines_
    exact = np.column_stack([0.0625 + X[:, 1], 0.25 * X[:, 1] + 3])
    exact[:, 1] -= exact[:, 1].mean()  # p is known up to a constant
    found = plane.predict(X)
    found[:, 1] -= found[:, 1].mean()
    for k, (curve, error) in enumerate([(u, u_error), (p, p_error)]):
        assert_allclose(curve.get_ydata(), found[:, k], rtol=1e-10, atol=1e-10)
        difference = np.abs(found[:, k] - exact[:, k])
        assert_allclose(error.get_ydata(), difference, atol=1e-10)
        assert curve.get_color() == error.get_color()
    drawn = {tuple(line.get_ydata().round(12)) for line in references}
    assert drawn == {tuple(column.round(12)) for column in exact.T}
    assert {line.get_label() for line in (u, p)} == {"u", "p"}


def curves(output_name=("a", "b", "c"), **words):
    """Display of three outputs, the middle one a thousandth of the others."""
    t = np.linspace(0, 3, 7)
    y = np.exp(-t)[:, None] * [1.0, 1e-3, 2.0]
    names = {"axis_names": ("t",), "output_name": output_name}
    error = np.full(7, 1e-3)
    return SolutionDisplay(ticks=(t,), solution=y, error=error, **names, **words)


def test_outputs_of_one_size_share_a_panel():
    display = curves().plot()
    first, second, below = display.axes_[:, 0]
    assert [panel.get_ylabel() for panel in (first, second)] == ["a, c", "b"]
    assert below.get_ylabel() == "|Residual|"
    labels = [line.get_label() for line in first.lines + second.lines]
    assert labels == ["a", "c", "b"]
    assert len(display.lines_) == 4
    display.error = display.solution
    *outputs, first, second, third = display.plot().lines_
    errors = (first, second, third)
    assert [line.get_label() for line in outputs] == ["a", "b", "c"]
    for k, (output, error) in enumerate(zip(outputs, errors, strict=True)):
        assert output.get_color() == error.get_color()
        assert_array_equal(error.get_ydata(), display.solution[:, k])


def test_long_names_of_outputs_are_left_to_the_legend():
    display = curves(("prey", "ratio", "predators of the second kind")).plot()
    first, second, _ = display.axes_[:, 0]
    assert [panel.get_ylabel() for panel in (first, second)] == ["", "ratio"]
    labels = [text.get_text() for text in first.get_legend().get_texts()]
    assert labels == ["prey", "predators of the second kind"]


def test_a_long_legend_covers_no_curves():
    t = np.linspace(0, 1, 5)
    y = np.exp(-t)[:, None] * np.ones(8)
    names = {"axis_names": ("t",), "output_name": tuple("abcdefgh")}
    display = SolutionDisplay(ticks=(t,), solution=y, error=t, **names).plot()
    display.figure_.draw_without_rendering()
    panel = display.ax_
    legend = panel.get_legend().get_window_extent()
    assert legend.x0 >= panel.get_window_extent().x1
    assert legend.x1 <= display.figure_.bbox.x1


def test_the_part_that_no_window_has_reached_is_marked():
    display = curves(window_ends=np.array([0.5, 2.0])).plot()
    unsolved = display.ticks[0] > 2
    for line in display.lines_:
        assert_array_equal(np.isnan(line.get_ydata()), unsolved)
    assert len(display.windows_) == 2 * 3  # each end, on each panel
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels == ["a", "c", "End of a window", "Not solved"]
    whole = curves(window_ends=np.array([0.5, 3.0])).plot()
    assert not any(np.isnan(line.get_ydata()).any() for line in whole.lines_)
    assert len(whole.windows_) == 3


def test_observations_and_bands(solved):
    def pair(u, x):
        return d(u["a"], "t")(x) + u["b"](x), d(u["b"], "t")(x) - u["a"](x)

    problem = Problem(pair, Box(t=(0.0, 1.0)), Initial(1.0), outputs=("a", "b"))
    X, y = np.array([[0.2], [0.7]]), np.array([[1.0, np.nan], [0.5, 0.3]])
    solver = solved(problem, X, y)
    display = draw(solver)
    for line, band, points, column in zip(
        display.lines_, display.bands_, display.points_, y.T, strict=False
    ):
        assert_array_equal(points.get_xdata(), X[:, 0])
        assert_array_equal(points.get_ydata(), column)
        assert points.get_color() == line.get_color()
        assert band.axes is line.axes
    mean, std = solver.predict(display.ticks[0][:, None], return_std=True)
    assert_allclose(display.solution, mean, rtol=1e-10)
    assert_allclose(display.std, std, rtol=1e-8)
    top = display.bands_[1].get_datalim(display.ax_.transData).ymax
    assert_allclose(top, (mean + 2 * std)[:, 1].max(), rtol=1e-8)
    one = draw(solver, output="b")
    assert_array_equal(one.points_[0].get_ydata(), y[:, 1])
    assert len(one.bands_) == 1


# -- slices ---------------------------------------------------------------------------


def test_slice_of_more_axes(cube):
    display = draw(cube, at={"t": 0.25})
    assert display.axis_names == ("x1", "x2")
    assert display.fixed == {"x3": 0.5, "t": 0.25}
    x, y = points_of(display.ticks).T
    X = np.column_stack([x, y, np.full(36, 0.5), np.full(36, 0.25)])
    assert_allclose(display.solution.ravel(), cube.predict(X), rtol=1e-10)
    assert_allclose(display.reference.ravel(), X.sum(axis=1), rtol=1e-12)
    assert display.ax_.get_title() == "Solution u\nx3 = 0.5, t = 0.25"


def test_axes_shown_by_default_are_those_left(cube):
    assert draw(cube).axis_names == ("x1", "x2")
    assert draw(cube, at={"x1": 0, "x2": 1}).axis_names == ("t", "x3")
    assert draw(cube, axes=("x3", "x1")).axis_names == ("x3", "x1")


def test_title_abbreviates_many_axes_of_one_value(cube):
    display = draw(cube)
    display.fixed = {f"x{k}": 0.5 for k in range(3, 11)} | {"t": 0.5, "z": 1e-5}
    title = "Solution u\nx3, ..., x10 = 0.5, t = 0.5, z = 1e-05"
    assert display.plot().ax_.get_title() == title


# -- references that are known at some points -----------------------------------------


def grid_reference(values, *ticks):
    mesh = np.meshgrid(*ticks, indexing="ij")
    points = np.column_stack([a.ravel() for a in mesh])
    return Reference(points, values(*points.T))


def test_reference_on_a_grid_is_drawn_there(changed):
    x, y = np.linspace(0, 1, 11) ** 2, np.linspace(0, 1.5, 4)
    reference = grid_reference(
        lambda x, y: np.column_stack([x + 10 * y, np.full(len(x), np.nan)]), x, y
    )
    solver = changed(exact=reference)
    display = draw(solver)
    # 11 ticks are thinned to 6, both ends kept; 4 stay.
    assert_array_equal(display.ticks[0], x[::2])
    assert_array_equal(display.ticks[1], y)
    drawn_x, drawn_y = points_of(display.ticks).T
    assert_allclose(display.reference.ravel(), drawn_x + 10 * drawn_y)
    predicted = solver.predict(points_of(display.ticks))[:, 0]
    assert_allclose(display.solution.ravel(), predicted, rtol=1e-10)
    # Transposed, and as a curve along the tick next to the value wanted.
    turned = draw(solver, axes=("y", "x"))
    assert_array_equal(turned.reference, display.reference.T)
    assert_allclose(turned.solution, display.solution.T, rtol=1e-10)
    curve = draw(solver, axes="y", at={"x": 0.5}, output="u")
    assert curve.fixed == {"x": x[7]}
    assert_allclose(curve.reference, x[7] + 10 * y)
    # The other output is not known.
    other = draw(solver, output="p")
    assert other.reference is None
    assert_array_equal(other.ticks[0], x[::2])


def test_points_that_are_no_grid_are_not_compared(changed):
    points = np.random.default_rng(0).uniform(size=(30, 2))
    solver = changed(exact=Reference(points, points))
    display = draw(solver)
    assert display.reference is None
    assert display.axes_[0, 1].get_title() == "|Residual|"


# -- mistakes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"output": "q"}, r"output='q' is unknown; the outputs are \('u', 'p'\)"),
        ({"axes": "z"}, r"axes='z' is unknown; the axes are \('x', 'y'\)"),
        ({"axes": ("x", "x")}, "axes must be one or two different names, got .*'x'"),
        ({"axes": ("x", "y", "z")}, "axes must be one or two different names"),
        ({"axes": ()}, "axes must be one or two different names"),
        ({"at": {"z": 1}}, r"at: axis 'z' is unknown; the axes are \('x', 'y'\)"),
        ({"axes": "x", "at": {"x": 1}}, "at: axis 'x' is one of those shown"),
        ({"at": {"x": np.nan}}, "at: 'x' must be a finite number, got nan"),
        ({"at": {"x": "1"}}, "at: 'x' must be a finite number, got '1'"),
        ({"at": {"x": 0, "y": 0}}, "axes must be one or two different names"),
        ({"n_points": 1}, "n_points must be an integer above 1, got 1"),
        ({"n_points": 10.0}, "n_points must be an integer above 1, got 10.0"),
    ],
)
def test_words_that_do_not_fit(plane, words, message):
    with pytest.raises(ValueError, match=message):
        draw(plane, **words)
    assert plt.get_fignums() == []


def test_solver_that_was_fitted_to_a_frame(plane):
    solver = copy.copy(plane)
    solver.feature_names_in_ = np.array(["x", "y"], dtype=object)
    with pytest.warns(UserWarning, match="feature names"):
        predicted = solver.predict(points_of(draw(solver).ticks))
    assert_allclose(draw(solver).solution.ravel(), predicted[:, 0], rtol=1e-10)
