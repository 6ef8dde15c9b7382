"""What can be stated: outlines, own conditions, integrals, coefficient fields."""

import math
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ellipe

from sklearn_gn.pde import (
    Ball,
    Box,
    Condition,
    Dirichlet,
    Ellipse,
    Field,
    Initial,
    Interval,
    Neumann,
    Piecewise,
    PointCloud,
    Polygon,
    Problem,
    Robin,
    Unknown,
    apply,
    d,
    div,
    grad,
    integral,
    laplacian,
)
from sklearn_gn.pde.domains import measured

pytestmark = pytest.mark.usefixtures("float64")

SPACE_TIME = Box(x=(0, 2), t=(0, 3))
ELLIPSE = Ellipse((0.5, -1.0), (2.0, 0.5), angle=0.4)
ARROW = Polygon([(0, 0), (2, -1), (1, 0), (2, 1)])  # not convex, of area 1
# A notch in a straight side, whose two parts are on one line.
NOTCHED = Polygon([(0, 0), (4, 0), (4, 2), (3, 2), (2, 1), (1, 2), (0, 2)])
LENS = Ball(2) & Ball(2, center=(1.0, 0.0))


def rng(seed=0):
    return np.random.RandomState(seed)


def close(found, expected, tolerance=1e-10):
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def rows(condition, field, domain=SPACE_TIME, n=16, **coefficients):
    """Points and residuals of a condition for one field."""
    x, data = condition.sample(domain, n, rng())

    @jax.jit
    def residuals(x, data):
        return jax.vmap(lambda p, e: condition((field,), p, e, coefficients))(x, data)

    return x[:, 0], residuals(x, data)


# --- geometry ------------------------------------------------------------------------


def area_of(domain):
    """Area by the share of its bounding box."""
    box = Box(**dict(zip(domain.axes, map(tuple, domain.bounds), strict=True)))
    X = box.sample(2**16, rng())
    return np.prod(np.ptp(domain.bounds, axis=1)) * domain.contains(X).mean()


@pytest.mark.parametrize(
    ("domain", "measure", "outline"),
    [
        (ARROW, 1.0, 2 * math.sqrt(5) + 2 * math.sqrt(2)),
        (NOTCHED, 7.0, 10 + 2 * math.sqrt(2)),
        (Polygon([(0, 0), (0, 1), (2, 0)]), 1.0, 3 + math.sqrt(5)),
        (ELLIPSE, math.pi, 8 * ellipe(15 / 16)),
        (Ellipse(radii=(3, 3)), 9 * math.pi, 6 * math.pi),
    ],
)
def test_area_and_length_of_outlines(domain, measure, outline):
    np.testing.assert_allclose(area_of(domain), measure, rtol=3e-3)
    length = measured(domain.boundary(), 2**14, rng())[2]
    np.testing.assert_allclose(length, outline, rtol=3e-3)


@pytest.mark.parametrize("domain", [ARROW, ELLIPSE], ids=["polygon", "ellipse"])
def test_divergence_theorem(domain):
    """The flux of (x^2, y^3) through the outline is the integral of its divergence."""
    n = 2**13
    points, normals = domain.sample_boundary(n, rng())
    length = measured(domain.boundary(), n, rng())[2]
    flux = length * (points ** [2, 3] * normals).sum(axis=1).mean()
    inside = domain.sample(n, rng())
    spread = area_of(domain) * (2 * inside[:, 0] + 3 * inside[:, 1] ** 2).mean()
    np.testing.assert_allclose(flux, spread, rtol=5e-3)


def test_points_are_uniform_in_outlines():
    inside = ARROW.sample(2**14, rng())
    # By hand, for the triangles (0, 0), (1, 0), (2, 1) and its mirror image.
    np.testing.assert_allclose(inside.mean(axis=0), [1.0, 0.0], atol=1e-3)
    np.testing.assert_allclose((inside**2).mean(axis=0), [7 / 6, 1 / 6], rtol=2e-3)
    c, s = math.cos(0.4), math.sin(0.4)
    offset = (ELLIPSE.sample(2**14, rng()) - [0.5, -1]) @ [[c, -s], [s, c]]
    np.testing.assert_allclose((offset**2).mean(axis=0), [1, 1 / 16], rtol=2e-3)


def test_points_are_uniform_along_an_ellipse():
    points, _ = Ellipse(radii=(2.0, 0.5)).sample_boundary(2**12, rng())
    t = np.arctan2(points[:, 1] / 0.5, points[:, 0] / 2) % (2 * np.pi)
    edges = np.linspace(0, 2 * np.pi, 17)
    speed = np.hypot(2 * np.sin(edges), 0.5 * np.cos(edges))
    fine = np.linspace(0, 2 * np.pi, 16 * 64 + 1)
    speed = np.hypot(2 * np.sin(fine), 0.5 * np.cos(fine))
    lengths = np.add.reduceat((speed[1:] + speed[:-1]) / 2, np.arange(0, 1024, 64))
    counts, _ = np.histogram(t, edges)
    np.testing.assert_allclose(counts / 2**12, lengths / lengths.sum(), atol=1e-3)


def test_depth_of_a_polygon_is_the_distance():
    found = ARROW.depth(np.array([[0.5, 0.0], [1.5, 0.0], [-1.0, 0.0], [1.0, 0.0]]))
    slope = 1 / math.sqrt(5)
    close(found, np.array([0.5 * slope, -0.5 / math.sqrt(2), -1.0, 0.0]))


def test_intersection_is_the_lens_of_two_disks():
    n = 2**14
    points = LENS.sample(n, rng())
    assert (Ball(2).contains(points) & LENS.second.contains(points)).all()
    area = 2 * math.pi / 3 - math.sqrt(3) / 2
    # The points of the disk that are in the lens, by a count of them.
    share = LENS.contains(Ball(2).sample(n, rng())).mean()
    np.testing.assert_allclose(share, area / math.pi, rtol=2e-3)
    points, normals = LENS.sample_boundary(64, rng())
    centers = np.where(normals[:, :1] > 0, [[0.0, 0.0]], [[1.0, 0.0]])
    close(points, centers + normals)
    close(LENS.bounds, np.array([[0.0, 1.0], [-1.0, 1.0]]))
    assert repr(LENS) == f"{LENS.first} & {LENS.second}"


def test_an_interval_is_a_box_of_one_axis():
    time, space = Interval(0, 2), Interval(-1, 1, axis="x")
    assert (time.axes, time.time, time.faces) == (("t",), "t", ("t=min", "t=max"))
    assert (space.axes, space.time) == (("x",), None)
    close(np.unique(space.sample_boundary(16, rng())[0]), np.array([-1.0, 1.0]))


CLOUD = PointCloud(
    [[0.5, 0.5], [0.2, 0.4]],
    boundary=[[0.0, 0.5], [1.0, 0.3], [0.5, 1.0]],
    normals=[[-2.0, 0.0], [1.0, 0.0], [0.0, 0.1]],
)


def test_point_clouds():
    assert {tuple(x) for x in CLOUD.sample(32, rng())} == {(0.5, 0.5), (0.2, 0.4)}
    points, normals = CLOUD.sample_boundary(64, rng())
    pairs = {(*x, *n) for x, n in zip(points, normals, strict=True)}
    assert pairs == {(0, 0.5, -1, 0), (1, 0.3, 1, 0), (0.5, 1, 0, 1)}
    close(CLOUD.bounds, np.array([[0.0, 1.0], [0.3, 1.0]]))
    other = pickle.loads(pickle.dumps(CLOUD))
    assert other == CLOUD
    assert hash(other) == hash(CLOUD)
    assert PointCloud(CLOUD.points) != CLOUD
    in_time = (CLOUD * Interval(0, 1)).sample(8, rng())
    assert in_time.shape == (8, 3)


@pytest.mark.parametrize(
    ("action", "match"),
    [
        (lambda: Polygon([(0, 0), (1, 1)]), r"vertices must be three or more"),
        (lambda: Polygon([(0, 0), (1, 1), (1, 0), (0, 1)]), r"does not cross itself"),
        (lambda: Polygon([(0, 0), (1, 1), (2, 2)]), r"does not cross itself"),
        (
            lambda: Polygon([(0, 0), (3, 0), (3, 1), (2, 0), (1, 1)]),
            r"does not cross itself",
        ),
        (lambda: Ellipse(radii=(1, 0)), r"radii must be positive, got \(1, 0\)"),
        (lambda: Ellipse(center=1), r"center must be two finite numbers, got 1"),
        (lambda: Ellipse(axes="x"), r"axes must be two different names, got 'x'"),
        (lambda: PointCloud([1.0]), r"points must be.*\(n, d\), got the shape \(1,\)"),
        (lambda: PointCloud([[1.0]], [[1.0, 2.0]]), r"boundary must have the 1 col"),
        (lambda: PointCloud([[1.0]], normals=[[1.0]]), r"normals must have the shape"),
        (lambda: PointCloud([[1.0]], axes=("x", "y")), r"axes must have 1 entries"),
        (lambda: CLOUD - Ball(2), r"a PointCloud cannot be combined"),
        (lambda: Ball(2) & Ball(3), r"different axes"),
    ],
)
def test_mistakes_with_outlines_are_explained(action, match):
    with pytest.raises(ValueError, match=match):
        action()


# --- conditions ----------------------------------------------------------------------


def wave(x):
    return jnp.sin(2 * x[0]) * x[1] ** 3


WAVE = Field(wave, ("x", "t"), "t", ("u",))


def beam_end(u, x):
    return d(u, "x", "x")(x), d(u, "x", "x", "x")(x)


def test_a_condition_has_derivatives_of_any_order():
    x, found = rows(Condition(beam_end, on="x=max"), WAVE)
    s, c = np.sin(2 * x[:, 0]), np.cos(2 * x[:, 0])
    close(found, np.stack([-4 * s, -8 * c], axis=1) * x[:, 1:] ** 3)
    assert (x[:, 0] == 2).all()


def test_a_condition_has_the_normal_over_space_and_coefficients():
    def cooling(u, x, normal, h):
        return grad(u)(x) @ normal + h * u(x)

    x, found = rows(Condition(cooling), WAVE, h=0.5, unused=1.0)
    sign = np.where(x[:, 0] == 2, 1, -1)
    values = sign * 2 * np.cos(2 * x[:, 0]) + 0.5 * np.sin(2 * x[:, 0])
    close(found[:, 0], values * x[:, 1] ** 3)
    assert {0.0, 2.0} == set(x[:, 0])


def test_conditions_at_points_of_ones_own():
    points = rng().uniform(size=(5, 2))
    condition = Condition(lambda u, x: u(x), on=points)
    assert condition.own_number == 5
    x, found = rows(condition, WAVE, n=5)
    close(x, points)
    close(found[:, 0], np.sin(2 * points[:, 0]) * points[:, 1] ** 3)
    x, _ = rows(condition, WAVE, n=3)
    assert len({tuple(p) for p in x} & {tuple(p) for p in points}) == 3
    close(rows(Dirichlet(1.0, on=points), WAVE, n=5)[1], found - 1)


def test_conditions_on_an_interface_and_on_points_with_normals():
    saddle = Field(lambda x: x[0] ** 2 - x[1] ** 2, ("x", "y"), None, ("u",))
    square = Box(x=(-1, 1), y=(-1, 1))
    circle = Ball(2, radius=0.5)
    x, found = rows(Neumann(0.0, on=circle), saddle, square)
    close(found[:, 0], 4 * (x[:, 0] ** 2 - x[:, 1] ** 2))
    nodes, normals = circle.sample_boundary(7, rng())
    own = PointCloud(nodes, boundary=nodes, normals=3 * normals)
    x, found = rows(Neumann(0.0, on=own), saddle, square, n=7)
    close(x, nodes)
    close(found[:, 0], 4 * (x[:, 0] ** 2 - x[:, 1] ** 2))


def test_initial_derivatives():
    x, found = rows(Initial(lambda x: x[0], order=2), WAVE, Box(x=(0, 2), t=(1, 3)))
    close(found[:, 0], 6 * np.sin(2 * x[:, 0]) - x[:, 0])
    assert Initial(0.0, order=1) != Initial(0.0)


@pytest.mark.parametrize(
    ("condition", "shift"),
    [
        (Dirichlet(lambda x, g: g * x[0]), 0.0),
        (Initial(lambda x, g: g * x[0]), 0.0),
        (Neumann(lambda x, g: g), 0.0),
        (Robin(lambda x, g: 1.0, 1.0, lambda x, **all_of_them: all_of_them["g"]), None),
    ],
)
def test_values_take_the_coefficients_that_they_name(condition, shift):
    slope = Field(lambda x: 3 * x[0], ("x", "t"), "t", ("u",))
    domain = Box(x=(0, 2), t=(0, 1))
    x, found = rows(condition, slope, domain, g=3.0)
    if isinstance(condition, Dirichlet | Initial):
        expected = np.zeros(16)
    else:
        sign = np.where(x[:, 0] == 2, 1, -1)
        expected = 3.0 * sign - 3.0
        expected += 3 * x[:, 0] if isinstance(condition, Robin) else 0
    close(found[:, 0], expected)


@pytest.mark.parametrize(
    ("action", "match"),
    [
        (lambda: Dirichlet(Unknown(1.0)), r"value holds an Unknown.*lambda x, g: g"),
        (lambda: Robin(1.0, [Unknown(1.0)], 0), r"b holds an Unknown"),
        (lambda: Initial(0.0, order=-1), r"order must be a non-negative int.*-1"),
        (lambda: rows(Neumann(0.0, on=[[0.0, 1.0]]), WAVE), r"neumann needs normals"),
        (lambda: rows(Condition(wave, on=[[0.0]]), WAVE), r"on has points of the 1"),
    ],
)
def test_mistakes_with_own_conditions_are_explained(action, match):
    with pytest.raises(ValueError, match=match):
        action()


def test_conditions_with_points_and_domains_are_values():
    for on in (np.eye(2), CLOUD, Ball(2), lambda x: x):
        condition = Condition(beam_end, on=on)
        assert condition == Condition(beam_end, on=on)
        assert hash(condition) == hash(Condition(beam_end, on=on))
    copied = pickle.loads(pickle.dumps(Condition(beam_end, on=np.eye(2))))
    assert copied == Condition(beam_end, on=np.eye(2).tolist())
    assert Condition(beam_end, on=np.eye(2)) != Condition(beam_end, on=2 * np.eye(2))


# --- problems ------------------------------------------------------------------------


def balance(u, x, c):
    return d(u, "t") - c * d(u, "x", "x")


def test_coefficients_may_belong_to_conditions_alone():
    problem = Problem(
        balance,
        SPACE_TIME,
        [Dirichlet(lambda x, g: g), Condition(beam_end, on=np.ones((3, 2)))],
        coefficients={"c": 1.0, "g": Unknown(2.0)},
    )
    problem.check()
    points = problem.sample(8, 4, rng())
    assert [len(p.x) for p in points.values()] == [8, 4, 3]
    boundary = problem.residual_classes()[1].function
    close(boundary((WAVE,), np.zeros((1, 2)), None, {"c": 1, "g": 5.0}), [-5.0])
    assert pickle.loads(pickle.dumps(problem.domain)) == problem.domain


def field_balance(u, x):
    return d(u["u"], "t")(x) - div(u["k"] * grad(u["u"]))(x), u["k"](x) * x[1]


COEFFICIENT_FIELD = Problem(
    field_balance,
    SPACE_TIME,
    [Initial([1.0, 2.0])],
    outputs=("u", "k"),
    depends_on={"k": "x"},
)


def both(x):
    return jnp.stack([x[0] ** 2 * x[1], x[0] + 5 * x[1]])


def test_an_output_of_some_axes_does_not_see_the_others():
    field = COEFFICIENT_FIELD.field(both)
    x = np.array([0.5, 2.0])
    fields = field, d(field, "t"), d(field, "x")
    value, in_time, in_space = jax.jit(lambda x: [f(x) for f in fields])(x)
    close(value, np.array([0.5, 0.5 + 5 * 1.5]))  # t in the middle, 1.5
    close(in_time, np.array([0.25, 0.0]))
    close(in_space, np.array([2.0, 1.0]))


def test_residuals_take_it_at_a_second_point():
    """So that the Taylor polynomials about both points have all that is needed."""
    interior, initial = COEFFICIENT_FIELD.residual_classes()
    assert (interior.n_points, initial.n_points) == (2, 2)
    points = COEFFICIENT_FIELD.sample(6, 4, rng())["interior"]
    close(points.x[:, 1], np.column_stack([points.x[:, 0, 0], np.full(6, 1.5)]))
    x = points.x[0]

    def taylor(x0):
        """The polynomial of second order about a point."""
        first, second = jax.jacfwd(both)(x0), jax.hessian(both)(x0)

        def value(x):
            step = x - x0
            return both(x0) + first @ step + step @ second @ step / 2

        return value

    @jax.jit
    def residual(x):
        fields = tuple(COEFFICIENT_FIELD.field(taylor(point)) for point in x)
        return interior.function(fields, x, x[0, :0], {})

    (x0, t0), k = x[0], x[0, 0] + 7.5
    expected = [x0**2 - (2 * x0 * t0 + 2 * k * t0), k * t0]
    close(residual(x), np.array(expected))


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"depends_on": {"q": "x"}}, r"depends_on=\{'q'.*must name one of several"),
        ({"depends_on": {"k": "y"}}, r"depends_on: axis 'y' is unknown"),
        ({"coefficients": {"c": 1.0}}, r"coefficient 'c' is a parameter of neither"),
        (
            {"conditions": Dirichlet(lambda x, g: g)},
            r"dirichlet: its parameters must be the point and.*'g' is not declared as",
        ),
        (
            {"conditions": Condition(lambda u, x, n: n)},
            r"condition: its parameters must be the field and the point.*'n' is not",
        ),
    ],
)
def test_mistakes_with_statements_are_explained(words, match):
    arguments = dict(residual=field_balance, domain=SPACE_TIME, outputs=("u", "k"))
    with pytest.raises(ValueError, match=match):
        Problem(**{**arguments, **words}).check()


# --- integrals and pieces ------------------------------------------------------------


def test_integrals():
    u = Field(
        lambda x: jnp.stack([x[0] ** 2 * x[1], x[1]]), ("x", "t"), "t", ("a", "b")
    )
    upto = integral(u["a"], "t", 0, lambda x: x[1])
    fields = (
        integral(u, "x", 0, 3, order=2),
        upto,
        d(upto, "t"),  # the integrand at the end
        d(upto, "x"),
        integral(integral(u["a"], "x", 0, 1), "t", 0, 2),
    )
    found = jax.jit(lambda x: [f(x) for f in fields])(np.array([0.3, 2.0]))
    expected = (np.array([18.0, 6.0]), 0.18, 0.18, 1.2, 2 / 3)
    for value, wanted in zip(found, expected, strict=True):
        close(value, wanted)


def test_volterra_equation_with_a_kernel():
    """u' + u = int_0^t exp(s - t) u(s) ds has the solution exp(-t) cosh t."""
    u = Field(lambda x: jnp.exp(-x[0]) * jnp.cosh(x[0]), ("t",), "t", ("u",))
    memory = integral(
        u, "t", 0, lambda x: x[0], kernel=lambda x, y: jnp.exp(y[0] - x[0])
    )
    residual = jax.jit(jax.vmap(d(u, "t") + u - memory))
    close(residual(np.array([[0.0], [1.0], [5.0]])), np.zeros(3))


JUMPING = {
    "where": lambda x: jnp.where(x[0] < 0.5, 1.0, 10.0),
    "floor": lambda x: 1 + 0.02 * jnp.floor(7 * x[0]),
    "table": lambda x: jnp.array([1.0, 3.0, 2.0])[(3 * x[0]).astype(int)],
}
STEEP = {
    "pieces": Piecewise(1.0, (Interval(0.5, 1, axis="x"), lambda x: 1 / x[0])),
    "sigmoid": lambda x: 1 + 9 * jax.nn.sigmoid((x[0] - 0.5) / 1e-3),
    "kink": lambda x: 1 + jnp.abs(x[0] - 0.3),
    "pole": lambda x: 1 / x[0],
}


@pytest.mark.parametrize("name", [*JUMPING, *STEEP])
@pytest.mark.repeats
def test_fluxes_that_jump_are_refused(name):
    """The slope of k u' misses the jump of k, unless its places are known."""
    k = (JUMPING | STEEP)[name]

    def rod(u, x):
        return d(k * d(u, "x"), "x")(x) + 1

    def plate(u, x):
        return div(k * grad(u))(x) + 1

    def plain(u, x):
        return k(x) * d(u, "x", "x")(x) + 1

    def of_the_solution(u, x):
        return d(apply(lambda u: jnp.where(u > 3.5, 2 * u, u), u), "x")(x)

    def two_sides(u, x):
        return jnp.where(x[0] < 0.5, rod(u["left"], x), rod(u["right"], x))

    def joined(u, x):
        return u["left"](x) - u["right"](x)

    ends, line = Dirichlet(0.0), Interval(0, 1, axis="x")
    sides = [ends, Condition(joined, on=[[0.5]])]
    Problem(two_sides, line, sides, outputs=("left", "right")).check()
    Problem(plain, line, [ends]).check()
    Problem(of_the_solution, line, [ends]).check()
    for residual, domain in [(rod, line), (plate, Box(x=(0, 1), y=(0, 2)))]:
        problem = Problem(residual, domain, [ends])
        if name in STEEP:
            problem.check()
            continue
        for _ in range(2):  # what is compiled is kept
            with pytest.raises(ValueError, match=r"'x'.*jumps at x = .*Two materials"):
                problem.check()


def thin(x):
    return jnp.where((x[0] > 0.4) & (x[0] < 0.405), 0.01, 1.0)


def weak(x):
    return jnp.where(x[0] > 0.405, 1.02, 1.0)


@pytest.mark.parametrize(
    ("k", "more"),
    [
        (thin, {}),
        (weak, {"conditions": [Condition(lambda u, x: u(x) - 0.1, on=[[0.5]])]}),
        (thin, {"transform": lambda x, u: x[0] * (1 - x[0]) * u}),
        # The values on the two sides begin as the same.
        (None, {"coefficients": {"k": Unknown(1.0, positive=True)}}),
    ],
    ids=["thin", "beside_a_condition", "transform", "unknown"],
)
def test_jumps_of_fluxes_are_found_in_all_statements(k, more):
    def wall(u, x):
        return d(k * d(u, "x"), "x")(x) + 1

    def of_unknown(u, x, k):
        return d((lambda x: jnp.where(x[0] > 0.405, k, 1.0)) * d(u, "x"), "x")(x) + 1

    problem = Problem(wall if k else of_unknown, Interval(0, 1, axis="x"), **more)
    with pytest.raises(ValueError, match=r"'x'.*jumps at x = 0\.40?5?, .*Piecewise"):
        problem.check()


@pytest.mark.parametrize(
    ("load", "warns"),
    [
        (lambda x: jnp.where(x[0] + x[1] > 1.2, 1.0, 0.0), True),
        (lambda x: jnp.heaviside(0.09 - (x - 0.5) @ (x - 0.5), 1.0), True),
        (lambda x: jnp.where(x[0] > 0.3, 1.0, 0.0), False),  # which makes regions
        (Piecewise(0.0, (Ball(2, center=(0.5, 0.5), radius=0.3), 1.0)), False),
        (lambda x: jnp.abs(x[0] + x[1] - 1.2), False),
    ],
    ids=["slanted", "round", "across_an_axis", "pieces", "kink"],
)
def test_loads_that_jump_across_no_axis_are_named(load, warns):
    def plate(u, x):
        return laplacian(u)(x) + load(x)

    problem = Problem(plate, Box(x=(0, 1), y=(0, 1)), [Dirichlet(0.0)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        problem.check()
    assert ["Piecewise" in str(w.message) for w in caught] == [True] * warns
    assert not any("derivative of a jump" in str(w.message) for w in caught)


def _in_lens(x):
    return jnp.where((x - 0.5) @ (x - 0.5) < 0.09, 10.0, 1.0)


@pytest.mark.parametrize(
    "equation",
    [
        lambda u, x: _in_lens(x) * laplacian(u)(x) + jax.grad(_in_lens)(x) @ grad(u)(x),
        lambda u, x: jnp.trace(jax.jacfwd(lambda y: _in_lens(y) * jax.grad(u)(y))(x)),
    ],
    ids=["written_out", "by_jax"],
)
def test_factors_of_derivatives_that_jump_are_named(equation):
    """No operator sees that the slope of the factor is missing."""
    problem = Problem(equation, Box(x=(0, 1), y=(0, 1)), [Dirichlet(0.0)])
    with pytest.warns(UserWarning, match=r"jumps at .*derivative of a jump is left"):
        problem.check()


def test_exponentials_that_overflow_give_no_warning():
    def reactor(u, t):
        return d(u, "t")(t) + jnp.exp(-8750 / u(t)) * u(t)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Problem(reactor, Interval(0, 10), [Initial(350.0)]).check()


def test_coefficients_in_pieces():
    k = Piecewise(
        1.0,
        (Ball(2, radius=0.5), 10.0),
        (Polygon([(0, 0), (2, 0), (0, 2)]), lambda x: 2 + x[0]),
        (Ellipse(radii=(3, 1)) & Box(x=(0, 5), y=(-1, 0)), 7.0),
    )
    points = np.array([[0.1, 0.1], [0.6, 0.6], [2.0, -0.1], [-2.0, 0.1]])
    close(jax.jit(jax.vmap(k))(points), np.array([10.0, 2.6, 7.0, 1.0]))
    u = Field(lambda x: x[0] ** 2, ("x", "y", "t"), "t")
    flux = jax.jit(div(k * grad(u)))
    close(flux(np.array([0.1, 0.1, 3.0])), 20.0)  # with time as the last axis
    constant = Piecewise(1.0, (LENS, 2.0))
    assert pickle.loads(pickle.dumps(constant)) == constant
    with pytest.raises(ValueError, match=r"pieces must be pairs \(Domain, value\)"):
        Piecewise(1.0, 2.0)
