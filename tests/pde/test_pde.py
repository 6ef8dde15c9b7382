"""Partial differential equations: operators, domains, conditions, problems."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from sklearn.base import BaseEstimator, clone

from sklearn_gn import pde
from sklearn_gn.pde import (
    Ball,
    Box,
    Dirichlet,
    Ellipse,
    Field,
    Initial,
    Interval,
    Neumann,
    Periodic,
    Polygon,
    Problem,
    Reference,
    Robin,
    Unknown,
    apply,
    d,
    div,
    grad,
    hessian,
    laplacian,
)
from sklearn_gn.pde.domains import METHODS

pytestmark = pytest.mark.usefixtures("float64")


AXES = ("x", "y", "t")
POINT = np.array([0.3, -0.7, 1.2])
X, Y, T = POINT


def rng(seed=0):
    return np.random.RandomState(seed)


def at(field, x=POINT):
    """Value of a field, compiled: operations one by one each compile."""
    return jax.jit(lambda x: field(x))(x)


def all_at(fields, x=POINT):
    """Values of several fields, compiled as one program."""
    return jax.jit(lambda x: [field(x) for field in fields])(x)


def close(found, expected):
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)


# --- operators -----------------------------------------------------------------------


def scalar():
    """exp(2 x) sin(y) t^3"""
    return Field(lambda x: jnp.exp(2 * x[0]) * jnp.sin(x[1]) * x[2] ** 3, AXES, "t")


def vector():
    """(x^2 y, x y^3 t)"""
    return Field(
        lambda x: jnp.stack([x[0] ** 2 * x[1], x[0] * x[1] ** 3 * x[2]]),
        AXES,
        "t",
        ("v", "w"),
    )


E, S, C = np.exp(2 * X), np.sin(Y), np.cos(Y)
VECTOR = np.array([X**2 * Y, X * Y**3 * T])
VECTOR_GRADIENT = np.array([[2 * X * Y, X**2], [Y**3 * T, 3 * X * Y**2 * T]])


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (("x",), 2 * E * S * T**3),
        (("t",), 3 * E * S * T**2),
        ((1,), E * C * T**3),
        ((-1,), 3 * E * S * T**2),
        (("x", "x"), 4 * E * S * T**3),
        (("x", "t"), 6 * E * S * T**2),
        (("t", "x"), 6 * E * S * T**2),
        (("x", "y", "t", "t"), 12 * E * C * T),
    ],
)
def test_partial_derivatives(axes, expected):
    close(at(d(scalar(), *axes)), expected)


def test_operators_on_a_scalar_leave_time_out():
    u, factor = scalar(), E * T**3
    found = all_at([grad(u), laplacian(u), hessian(u), div(grad(u))])
    close(found[0], factor * np.array([2 * S, C]))
    close(found[1], factor * 3 * S)
    close(found[2], factor * np.array([[4 * S, 2 * C], [2 * C, -S]]))
    close(found[3], factor * 3 * S)


def test_operators_on_a_vector_act_on_each_component():
    v = vector()
    second = (
        [[2 * Y, 2 * X], [2 * X, 0]],
        [
            [0, 3 * Y**2 * T],
            [3 * Y**2 * T, 6 * X * Y * T],
        ],
    )
    pairs = [
        (v, VECTOR),
        (d(v, "y"), VECTOR_GRADIENT[:, 1]),
        (grad(v), VECTOR_GRADIENT),
        (div(v), 2 * X * Y + 3 * X * Y**2 * T),
        (laplacian(v), np.array([2 * Y, 6 * X * Y * T])),
        (hessian(v), np.array(second)),
        (div(grad(v)), np.array([2 * Y, 6 * X * Y * T])),
    ]
    fields, expected = zip(*pairs, strict=True)
    for found, right in zip(all_at(fields), expected, strict=True):
        close(found, right)


def test_without_time_all_axes_are_space():
    u = Field(scalar().function, AXES)
    close(at(laplacian(u)), E * S * (3 * T**3 + 6 * T))
    assert jax.eval_shape(lambda x: grad(u)(x), POINT).shape == (3,)


@pytest.mark.parametrize(
    "conductivity",
    [
        lambda u: apply(jnp.exp, u.coordinate("x") * u.coordinate("y")),
        lambda u: lambda x: jnp.exp(x[0] * x[1]),
    ],
    ids=["field", "function"],
)
def test_divergence_of_a_flux(conductivity):
    u = scalar()
    k = np.exp(X * Y)
    flux = (Y * 2 * S + X * C) + 3 * S  # grad k . grad u / k + laplacian
    close(at(div(conductivity(u) * grad(u))), k * flux * E * T**3)


def test_convection_and_nonlinear_diffusion():
    v, u = vector(), scalar()
    close(at(grad(v) @ v), VECTOR_GRADIENT @ VECTOR)
    close(at(v @ grad(u)), VECTOR @ (E * T**3 * np.array([2 * S, C])))
    value = E * S * T**3
    gradient = E * T**3 * np.array([2 * S, C])
    expected = 2 * value * gradient @ gradient + value**2 * 3 * value
    close(at(div(u**2 * grad(u))), expected)


def test_more_axes_than_are_differentiated_at_once():
    n = 2 * pde.operators._AXES_AT_ONCE + 5
    weights = np.arange(1.0, n + 1)
    u = Field(lambda x: jnp.sum(weights * x**4), Box.unit(n).axes)
    x = rng().uniform(size=n)
    v = Field(lambda x: jnp.stack([x[0] * x[1], x[-1] ** 2]), u.axes)
    found = all_at([laplacian(u), grad(u), laplacian(v), grad(v)], x)
    np.testing.assert_allclose(found[0], 12 * weights @ x**2, rtol=1e-10)
    close(found[1], 4 * weights * x**3)
    close(found[2], np.array([0.0, 2.0]))
    assert found[3].shape == (2, n)


VALUE = E * S * T**3


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda u: u + 2, VALUE + 2),
        (lambda u: 2 + u, VALUE + 2),
        (lambda u: u - 2.0, VALUE - 2),
        (lambda u: 2.0 - u, 2 - VALUE),
        (lambda u: 3 * u, 3 * VALUE),
        (lambda u: u / 4, VALUE / 4),
        (lambda u: 4 / u, 4 / VALUE),
        (lambda u: u**3, VALUE**3),
        (lambda u: 2.0 ** (-u), 2**-VALUE),
        (lambda u: -u, -VALUE),
        (lambda u: u * u - u / u, VALUE**2 - 1),
        (lambda u: u - np.float64(2.0), VALUE - 2),
        (lambda u: np.float64(2.0) - u, 2 - VALUE),
        (lambda u: np.array([1.0, 2.0]) * u, VALUE * np.array([1.0, 2.0])),
        (lambda u: u * jnp.array([1.0, 2.0]), VALUE * np.array([1.0, 2.0])),
        (lambda u: jnp.array([1.0, 2.0]) * u, VALUE * np.array([1.0, 2.0])),
        (lambda u: u - (lambda x: x[0]), VALUE - X),
        (lambda u: (lambda x: x[0]) - u, X - VALUE),
        (lambda u: np.eye(2) @ (u * np.array([1.0, 3.0])), VALUE * np.array([1.0, 3])),
        (lambda u: apply(jnp.arctan2, u, u.coordinate("x")), np.arctan2(VALUE, X)),
    ],
)
def test_arithmetic_gives_fields(build, expected):
    field = build(scalar())
    assert isinstance(field, Field)
    assert (field.axes, field.time) == (AXES, "t")
    close(at(field), expected)


def test_components():
    v = vector()
    v0, v1 = v
    pairs = [
        (v[0], VECTOR[0]),
        (v[-1], VECTOR[1]),
        (v["w"], VECTOR[1]),
        (v0, VECTOR[0]),
        (v1, VECTOR[1]),
        (v[:1], VECTOR[:1]),
        (v["w", "v"], VECTOR[::-1]),
        (v[[1]], VECTOR[1:]),
        (v["w", "v"]["v"], VECTOR[0]),
        (d(v, "x")["w"], Y**3 * T),
        (laplacian(v)["v"], 2 * Y),
        (v["w"]["w"], VECTOR[1]),
    ]
    fields, expected = zip(*pairs, strict=True)
    for found, right in zip(all_at(fields), expected, strict=True):
        close(found, right)
    assert v[:1].outputs == ("v",)
    assert v["w", "v"].outputs == ("w", "v")
    u = Field(scalar().function, AXES, "t", ("u",))
    close(at(u["u"]), VALUE)
    close(at(u[0]), VALUE)
    close(at(u[:1]), np.array([VALUE]))


def test_the_taylor_polynomial_of_second_order_serves_two_derivatives():
    exact = vector()
    jacobian, second = (at(f(exact.function)) for f in (jax.jacfwd, jax.hessian))

    def polynomial(x):
        h = x - POINT
        return VECTOR + jacobian @ h + 0.5 * (second @ h) @ h

    def residual(u):
        return d(u, "t") - laplacian(u) + grad(u) @ u + hessian(u)[0] @ u

    local = Field(polynomial, AXES, "t", exact.outputs)
    close(at(residual(local)), at(residual(exact)))


def test_operators_compile_and_batch():
    points = rng().uniform(size=(5, 3))
    found = jax.jit(jax.vmap(lambda x: laplacian(scalar())(x)))(points)
    close(
        found, 3 * np.exp(2 * points[:, 0]) * np.sin(points[:, 1]) * points[:, 2] ** 3
    )


def test_single_precision_is_kept():
    with jax.enable_x64(False):
        x = np.asarray(POINT, dtype=np.float32)
        u = 2 * scalar() + np.float64(1.0)
        fields = (u, grad(u), laplacian(u), div(u * grad(u)), hessian(u))
        assert {value.dtype for value in all_at(fields, x)} == {np.dtype(np.float32)}
        np.testing.assert_allclose(at(laplacian(u), x), 6 * VALUE, rtol=1e-5)


@pytest.mark.parametrize(
    ("action", "error", "match"),
    [
        (lambda u, v: d(u, "z"), ValueError, r"axis 'z' is unknown.*'x', 'y', 't'"),
        (lambda u, v: d(u, 3), ValueError, r"axis 3 is unknown.*'x', 'y', 't'"),
        (lambda u, v: d(u), ValueError, r"d needs an axis.*'x', 'y', 't'"),
        (lambda u, v: u.coordinate("s"), ValueError, r"axis 's' is unknown"),
        (lambda u, v: v["p"], ValueError, r"output 'p' is unknown.*'v', 'w'"),
        (lambda u, v: v["v", "p"], ValueError, r"output 'p' is unknown.*'v', 'w'"),
        (lambda u, v: v[2], ValueError, r"output 2 is out of range.*2: \('v', 'w'\)"),
        (lambda u, v: u["u"], ValueError, r"output 'u' is unknown.*None"),
        (lambda u, v: grad(v)[2](POINT), ValueError, r"output 2 is out of range"),
        (lambda u, v: tuple(grad(v)), TypeError, r"without names.*unpacked"),
        (
            lambda u, v: d(u(POINT), "x"),
            TypeError,
            r"d takes a field.*d\(u, 'x'\)\(x\)",
        ),
        (lambda u, v: grad(u(POINT)), TypeError, r"grad takes a field"),
        (lambda u, v: laplacian(1.0), TypeError, r"laplacian takes.*got float"),
        (lambda u, v: hessian(None), TypeError, r"hessian takes a field"),
        (lambda u, v: div(grad), TypeError, r"div takes a field, got function"),
        (lambda u, v: apply(jnp.sin, 1.0), TypeError, r"apply takes a field"),
        (lambda u, v: div(u)(POINT), ValueError, r"div needs.*2 components.*\(\)"),
        (lambda u, v: div(v[:1])(POINT), ValueError, r"div needs.*2 comp.*\(1,\)"),
        (
            lambda u, v: (v + grad(v))(POINT),
            ValueError,
            r"shapes \(2,\) and \(2, 2\) do not combine by \+",
        ),
        (
            lambda u, v: (v[:1] * v)(POINT),
            ValueError,
            r"shapes \(1,\) and \(2,\) do not combine by \*",
        ),
    ],
)
def test_mistakes_with_fields_are_explained(action, error, match):
    with pytest.raises(error, match=match):
        action(scalar(), vector())


# --- domains -------------------------------------------------------------------------

SQUARE = Box(x=(0, 1), y=(0, 1))
L_SHAPE = Box(x=(0, 2), y=(0, 2)) - Box(x=(1, 2), y=(1, 2))
HOLE = Box(x=(-2, 2), y=(-1, 1)) - Ball(2, center=(0.5, 0.0), radius=0.5)
WIDE = Box(x=(0, 2), y=(0, 1)) | Box(x=(1, 3), y=(0, 1))
SNOWMAN = Ball(2, radius=1.0) | Ball(2, center=(0.0, 1.2), radius=0.5)
ARROW = Polygon([(0, 0), (2, -1), (1, 0), (2, 1)])
LENS = Ball(2) & Ball(2, center=(1.0, 0.0))
DOMAINS = {
    "interval": Box(x=(-1, 3)),
    "box": Box(x=(-0.5, 1), y=(2, 2.5), t=(0, 3)),
    "time first": Box(t=(0, 1), x=(-1, 1)),
    "other time": Box(x=(0, 1), tau=(1, 2), time="tau"),
    "no time": Box(x=(0, 1), t=(1, 2), time=None),
    "unit": Box.unit(4, time=(0, 2)),
    "segment": Ball(1, center=(2,), radius=0.5),
    "ball": Ball(3, center=(1, 0, -1), radius=2.0),
    "cylinder": Ball(2) * Box(t=(0, 2)),
    "solid cylinder": Ball(2) * Box(z=(0, 3)),
    "L": L_SHAPE,
    "hole": HOLE,
    "wide": WIDE,
    "snowman": SNOWMAN,
    "polygon": ARROW,
    "prism": Polygon([(0, 0), (0, 1), (2, 0)]) * Box(t=(0, 1)),
    "ellipse": Ellipse((0.5, -1), (2, 0.5), angle=0.4),
    "circle": Ellipse(axes=("a", "b")),
    "lens": LENS,
    "ends": Interval(-1, 2.5, axis="y"),
    "three": (HOLE | Ball(2, center=(2.0, 0.0), radius=0.5)) * Box(t=(1, 2)),
}
each_domain = pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS.keys())
each_method = pytest.mark.parametrize("method", METHODS)


@each_domain
@each_method
def test_points_lie_in_the_domain(domain, method):
    points = domain.sample(300, rng(), method)
    assert points.shape == (300, domain.dim)
    assert domain.contains(points).all()
    low, high = domain.bounds.T
    assert ((points >= low) & (points <= high)).all()
    # They reach into the last tenth at both ends of every axis.
    assert (points.min(axis=0) < low + 0.1 * (high - low)).all()
    assert (points.max(axis=0) > high - 0.1 * (high - low)).all()


@each_domain
@each_method
def test_boundary_points_and_normals(domain, method):
    points, normals = domain.sample_boundary(200, rng(), method)
    assert points.shape == normals.shape == (200, domain.dim)
    assert domain.contains(points).all()
    close(np.linalg.norm(normals, axis=1), np.ones(200))
    assert domain.contains(points - 1e-5 * normals).all()
    assert not domain.contains(points + 1e-5 * normals).any()
    if domain.time is not None:
        assert (normals[:, domain.axes.index(domain.time)] == 0).all()


HIDDEN = {  # faces of which nothing is left
    L_SHAPE: {"x=max (2)", "y=max (2)"},
    WIDE: {"x=max", "x=min (2)"},
}


@each_domain
def test_faces_are_the_boundary(domain):
    for name in domain.faces:
        if name in HIDDEN.get(domain, ()):
            with pytest.raises(ValueError, match=r"None of \d+ sampled points"):
                domain.sample_face(name, 20, rng())
            continue
        points, normals = domain.sample_face(name, 20, rng())
        close(np.linalg.norm(normals, axis=1), np.ones(20))
        assert domain.contains(points).all()
        assert domain.contains(points - 1e-5 * normals).all()
        assert not domain.contains(points + 1e-5 * normals).any()
        axis, _, end = name.partition("=")
        if end in ("min", "max"):
            column, side = domain.axes.index(axis), ("min", "max").index(end)
            assert (normals[:, column] == 2 * side - 1).all()
            if domain is not DOMAINS["three"]:  # its bounds are those of the ball
                assert (points[:, column] == domain.bounds[column, side]).all()


@pytest.mark.parametrize("method", ["sobol", "uniform"])
@pytest.mark.parametrize(
    ("domain", "second_moments"),
    [
        (Box(x=(0, 1), y=(0, 2)), [1 / 3, 4 / 3]),
        (Ball(1), [1 / 3]),
        (Ball(3, radius=2.0), [4 / 5] * 3),
        (Ball(2) * Box(t=(0, 1)), [1 / 4, 1 / 4, 1 / 3]),
        # (4 * 16/12 - area * (0.25 / 4 + 0.25) of the hole) / area of what is left
        (
            HOLE,
            [
                (8 * 16 / 12 - np.pi / 4 * (1 / 16 + 1 / 4)) / (8 - np.pi / 4),
                (8 * 4 / 12 - np.pi / 4 / 16) / (8 - np.pi / 4),
            ],
        ),
        (WIDE, [3.0, 1 / 3]),
        (L_SHAPE, [1.0, 1.0]),
    ],
)
def test_density_is_constant_inside(domain, second_moments, method):
    n = 2**14
    found = (domain.sample(n, rng(), method) ** 2).mean(axis=0)
    tolerance = 2e-3 if method == "sobol" else 6 / np.sqrt(n)
    np.testing.assert_allclose(found, second_moments, rtol=tolerance)


def shares(domain, method="sobol", n=2**14):
    """Share of the boundary points by normal along the axes."""
    _, normals = domain.sample_boundary(n, rng(), method)
    return {
        (axis, sign): np.mean(normals[:, k] * sign > 0.999)
        for k, axis in enumerate(domain.axes)
        for sign in (-1, 1)
    }


@pytest.mark.parametrize("method", ["sobol", "uniform"])
def test_faces_have_points_in_proportion_to_their_area(method):
    box = Box(x=(0, 2), y=(0, 1), z=(0, 0.5), t=(0, 7))
    areas = {"x": 0.5, "y": 1.0, "z": 2.0, "t": 0.0}
    for (axis, _), share in shares(box, method).items():
        assert share == pytest.approx(areas[axis] / 7, abs=0.015)
    found = shares(Ball(2) * Box(z=(0, 3)), method)  # mantle 6 pi, ends pi each
    assert found["z", -1] == pytest.approx(1 / 8, abs=0.015)
    assert found["z", 1] == pytest.approx(1 / 8, abs=0.015)


def test_boundary_of_a_union_has_no_seam_and_no_double_points():
    points, normals = WIDE.sample_boundary(2**14, rng())
    bottom = points[normals[:, 1] == -1]
    assert len(bottom) / 2**14 == pytest.approx(3 / 8, abs=0.005)
    counts, _ = np.histogram(bottom[:, 0], bins=3, range=(0, 3))
    np.testing.assert_allclose(counts, len(bottom) / 3, rtol=0.02)
    ends = np.abs(normals[:, 0]) == 1
    assert set(points[ends, 0]) == {0.0, 3.0}


def test_boundary_of_a_difference_has_the_faces_of_the_notch_once():
    points, normals = L_SHAPE.sample_boundary(2**14, rng())
    for column in (0, 1):
        for value, sign, length in [(0, -1, 2), (2, 1, 1), (1, 1, 1)]:
            on = (points[:, column] == value) & (normals[:, column] == sign)
            assert on.mean() == pytest.approx(length / 8, abs=0.005)


def test_a_domain_taken_from_outside_leaves_the_face_alone():
    beside = SQUARE - Box(x=(1, 2), y=(0, 1))
    points, normals = beside.sample_boundary(2**12, rng())
    right = points[:, 0] == 1
    assert right.mean() == pytest.approx(1 / 4, abs=0.005)
    assert (normals[right, 0] == 1).all()


def test_normals_on_a_hole_point_into_it():
    points, normals = HOLE.sample_face("sphere", 64, rng())
    close(points, np.array([0.5, 0.0]) - 0.5 * normals)


@pytest.mark.parametrize("method", ["sobol", "halton"])
def test_low_discrepancy_is_kept(method):
    n = 256
    points = SQUARE.sample(n, rng(), method)
    if method == "sobol":  # a net: one point in every interval of length 1 / n
        for column in points.T:
            assert len(set(np.floor(n * column))) == n
    error = np.abs(points.mean(axis=0) - 0.5).max()
    assert error < 0.15 * np.abs(SQUARE.sample(n, rng(), "uniform").mean(0) - 0.5).max()


@each_method
def test_sampling_depends_on_the_generator_alone(method):
    for draw in (HOLE.sample, lambda *a: HOLE.sample_boundary(*a)[0]):
        first, same, other = (draw(50, rng(seed), method) for seed in (0, 0, 1))
        np.testing.assert_array_equal(first, same)
        assert not (first == other).all(axis=1).any()
        generator = rng()
        again = draw(50, generator, method), draw(50, generator, method)
        assert not (again[0] == again[1]).all(axis=1).any()


@pytest.mark.parametrize("n", [0, 1, 3, 1000])
def test_any_number_of_points(n):
    assert HOLE.sample(n, rng()).shape == (n, 2)
    assert HOLE.sample_boundary(n, rng())[0].shape == (n, 2)


def test_many_points_come_in_pieces(monkeypatch):
    whole = SQUARE.sample(1000, rng())
    monkeypatch.setattr(pde.domains, "AT_ONCE", 64)
    close(SQUARE.sample(1000, rng()), whole)


def test_hundred_thousand_axes():
    dim = 10**5
    ball = Ball(dim)
    points = ball.sample(3, rng())
    assert ball.contains(points).all()
    assert np.linalg.norm(points, axis=1).min() > 0.99
    points, normals = (ball * Box(t=(0, 1))).sample_boundary(3, rng())
    close(np.linalg.norm(points[:, :-1], axis=1), np.ones(3))
    assert (normals[:, -1] == 0).all()
    assert len(Box.unit(1000).faces) == 2000


def test_contains_is_closed_up_to_rounding():
    inside = [[0, 0], [1, 1], [0.5, 1 + 1e-15]]
    outside = [[-1e-6, 0.5], [0.5, 1 + 1e-6]]
    assert SQUARE.contains(inside).tolist() == [True] * 3
    assert SQUARE.contains(outside).tolist() == [False] * 2
    assert HOLE.contains(
        [[0.5, 0.0], [1.0, 0.0], [0.5, 0.49], [1.01, 0.0]]
    ).tolist() == [
        False,
        True,
        False,
        True,
    ]
    cylinder = DOMAINS["cylinder"]
    assert cylinder.contains([[0, 0, 1], [0, 0, 3], [1, 1, 1]]).tolist() == [
        True,
        False,
        False,
    ]


def test_names():
    box = DOMAINS["time first"]
    assert (box.axes, box.time, box.dim) == (("t", "x"), "t", 2)
    assert box.faces == ("x=min", "x=max", "t=min", "t=max")
    close(box.bounds, np.array([[0.0, 1.0], [-1.0, 1.0]]))
    assert DOMAINS["no time"].time is None
    assert DOMAINS["unit"].axes == ("x1", "x2", "x3", "x4", "t")
    assert DOMAINS["cylinder"].axes == ("x", "y", "t")
    assert DOMAINS["cylinder"].faces == ("sphere", "t=min", "t=max")
    assert Ball(4).axes == ("x1", "x2", "x3", "x4")
    assert SNOWMAN.faces == ("sphere", "sphere (2)")
    close(SNOWMAN.bounds, np.array([[-1.0, 1.0], [-1.0, 1.7]]))
    three = HOLE | SNOWMAN
    assert three.faces[-3:] == ("sphere", "sphere (2)", "sphere (3)")


@pytest.mark.parametrize("on", ["boundary", "x=max", ("x=min", "y=max"), "predicate"])
def test_parts_of_the_boundary(on):
    def low(points):
        return points[:, 1] < 0.25

    patch = SQUARE.boundary(low if on == "predicate" else on)
    points, normals = pde.domains.draw(patch, 64, rng())
    faces = {
        "boundary": {(-1, 0), (1, 0), (0, -1), (0, 1)},
        "x=max": {(1, 0)},
        ("x=min", "y=max"): {(-1, 0), (0, 1)},
        "predicate": {(-1, 0), (1, 0), (0, -1)},
    }[on]
    assert {tuple(normal) for normal in normals.astype(int)} == faces
    if on == "predicate":
        assert low(points).all()


@each_domain
def test_domains_are_values(domain):
    names = {kind.__name__: kind for kind in (Ball, Box, Ellipse, Interval, Polygon)}
    copies = (
        pickle.loads(pickle.dumps(domain)),
        copy.deepcopy(domain),
        eval(repr(domain), names),
    )
    for other in copies:
        assert other == domain
        assert hash(other) == hash(domain)
        np.testing.assert_array_equal(other.sample(5, rng()), domain.sample(5, rng()))
    assert sum(other == domain for other in DOMAINS.values()) == 1


def test_many_axes_are_shown_in_short():
    assert repr(Ball(10**5)) == "Ball(100000, radius=1.0)"
    assert repr(Box.unit(100, time=(0, 2))).count("=") == 8
    assert repr(Box.unit(100, time=(0, 2))).endswith("x100=(0.0, 1.0), t=(0.0, 2.0))")


def test_domains_cannot_be_changed():
    with pytest.raises(AttributeError):
        SQUARE.lower = (1.0, 1.0)
    assert SQUARE != Box(x=(0, 1), y=(0, 1.5))
    assert SQUARE | Ball(2) != SQUARE - Ball(2)
    assert Box(x=(0, 1), t=(1, 2)) != DOMAINS["no time"]


@pytest.mark.parametrize(
    ("action", "match"),
    [
        (lambda: Box(), r"Box needs an interval"),
        (lambda: Box(x=(1, 1)), r"x must be \(low, high\) with low < high.*\(1, 1\)"),
        (lambda: Box(x=(0, np.inf)), r"x must be .*inf"),
        (lambda: Box(x=(0, np.nan)), r"x must be .*nan"),
        (lambda: Box(x=3), r"x must be .*got 3"),
        (lambda: Box(x=(0, 1), time="s"), r"time='s' must be one of.*'x'"),
        (lambda: Ball((0, 0), 2.0), r"dim must be the .*, as in Ball\(2.*got \(0, 0\)"),
        (lambda: Ball(0), r"dim must be the number of axes, .*got 0"),
        (lambda: Ball(2, radius=0), r"radius must be positive, got 0"),
        (lambda: Ball(2, center=(1,)), r"center must have dim=2 entries.*\(1.0,\)"),
        (lambda: Ball(2, axes=("a",)), r"axes must have dim=2 entries.*'a'"),
        (lambda: SQUARE * Ball(2), r"both factors have the axes \('x', 'y'\)"),
        (
            lambda: Box(x=(0, 1), t=(0, 1)) * Box(s=(0, 1), time="s"),
            r"both factors have time: \('t', 's'\)",
        ),
        (lambda: SQUARE | Ball(3), r"different axes: \('x', 'y'\), \('x', 'y', 'z'\)"),
        (
            lambda: DOMAINS["time first"] - DOMAINS["time first"],
            r"multiply by time afterwards",
        ),
        (lambda: SQUARE.sample_face("z=min", 1, rng()), r"'z=min'.*\('x=min', 'x=max'"),
        (lambda: SQUARE.boundary(()), r"on=\(\) names no face"),
        (lambda: Box(t=(0, 1)).sample_boundary(1, rng()), r"has no boundary in space"),
        (lambda: SQUARE.sample(4, rng(), "grid"), r"method='grid'.*'sobol'.*'uniform'"),
        (lambda: SQUARE.contains([[1.0]]), r"columns \('x', 'y'\).*\(1, 1\)"),
        (
            lambda: (SQUARE - SQUARE).sample(1, rng()),
            r"None of \d+ sampled points lie inside",
        ),
    ],
)
def test_mistakes_with_domains_are_explained(action, match):
    with pytest.raises(ValueError, match=match):
        action()


# --- conditions ----------------------------------------------------------------------

SPACE_TIME = Box(x=(0, 2), y=(-1, 1), t=(0, 3))


def rows(condition, field, domain=SPACE_TIME, n=16):
    """Points, data and residuals of a condition for one field."""
    x, data = condition.sample(domain, n, rng())
    return x, data, residuals(condition, (field,) * condition.n_fields, x, data)


def residuals(function, fields, x, data, **coefficients):
    return jax.jit(jax.vmap(lambda p, e: function(fields, p, e, coefficients)))(x, data)


def test_dirichlet_compares_with_values_and_functions():
    v = vector()
    x, data, found = rows(Dirichlet((1.0, -2.0)), v)
    assert x.shape == (16, 1, 3)
    assert data.shape == (16, 0)
    expected = np.array(jax.jit(jax.vmap(v))(x[:, 0]))
    close(found, expected - [1.0, -2.0])
    close(rows(Dirichlet(0.5), v)[2], expected - 0.5)
    close(rows(Dirichlet(lambda p: p[:2]), v)[2], expected - x[:, 0, :2])
    close(
        rows(Dirichlet(lambda p: p[2], outputs="w"), v)[2],
        expected[:, 1:] - x[:, 0, 2:],
    )
    close(rows(Dirichlet(3, outputs=("w", 0)), v)[2], expected[:, ::-1] - 3)
    exact = rows(Dirichlet(scalar().function), scalar())[2]
    close(exact, np.zeros((16, 1)))
    single = rows(
        Dirichlet(lambda p: jnp.sum(p)[None]), scalar()
    )  # (1,) for one output
    x = single[0][:, 0]
    values = np.array(jax.jit(jax.vmap(scalar()))(x))
    close(single[2], (values - x.sum(axis=1))[:, None])


def test_initial_is_at_the_start_of_time():
    x, _, found = rows(
        Initial(lambda p: p[0]), scalar(), Box(x=(0, 1), y=(0, 1), t=(2, 3))
    )
    assert (x[:, 0, 2] == 2).all()
    values = np.array(jax.jit(jax.vmap(scalar()))(x[:, 0]))
    close(found, (values - x[:, 0, 0])[:, None])


def test_neumann_and_robin_take_the_outward_normal():
    domain = HOLE * Box(t=(0, 1))
    x, normals, slope = rows(Neumann(0.0), scalar(), domain)
    both = jax.jit(jax.vmap(jax.value_and_grad(scalar().function)))
    value, gradient = map(np.asarray, both(x[:, 0]))
    close(normals, domain.sample_boundary(16, rng())[1])
    close(slope[:, 0], np.sum(gradient * normals, axis=1))
    assert np.abs(slope).min() > 0
    robin = Robin(2.0, lambda p: p[0], lambda p: p[1])
    expected = 2 * value + x[:, 0, 0] * slope[:, 0] - x[:, 0, 1]
    close(rows(robin, scalar(), domain)[2][:, 0], expected)
    both = rows(Neumann((1.0, 2.0), on="x=max"), vector())
    jacobian = jax.jit(jax.vmap(jax.jacfwd(vector().function)))(both[0][:, 0])
    close(both[2], np.array(jacobian)[:, :, 0] - [1.0, 2.0])


def test_periodic_pairs_lie_opposite():
    condition = Periodic("y")
    x, data, found = rows(condition, vector())
    assert x.shape == (16, 2, 3)
    assert data.shape == (16, 0)
    assert (x[:, 0, 1] == -1).all()
    assert (x[:, 1, 1] == 1).all()
    np.testing.assert_array_equal(x[:, 0, [0, 2]], x[:, 1, [0, 2]])
    px, pt = x[:, 0, 0], x[:, 0, 2]
    zero = np.zeros_like(px)
    close(found, np.stack([-2 * px**2, -2 * px * pt, zero, zero], axis=1))
    values = rows(Periodic("y", "w", derivatives=False), vector())[2]
    close(values, found[:, 1:2])
    wave = Field(lambda p: jnp.sin(jnp.pi * p[1]) * p[0] + p[2], AXES, "t")
    close(rows(condition, wave)[2], np.zeros((16, 2)))
    slope = Field(lambda p: jnp.abs(p[1]), AXES, "t")
    close(rows(condition, slope)[2], np.tile([0.0, -2.0], (16, 1)))


def test_each_field_of_a_pair_stands_for_its_own_point():
    condition, u = Periodic("x"), scalar()
    fields = (u, u + 1)
    points = condition.sample(SPACE_TIME, 1, rng()).x[0]
    low, high = u(points[0]), u(points[1])
    found = condition(fields, points, points[0, :0], {})
    close(found, np.array([low - high - 1, 2 * (low - high)]))


def _inflow(points):
    return points[:, 0] < 0.5


@pytest.mark.parametrize(
    "condition",
    [
        Dirichlet(np.array([1.0, 2.0]), ["x=min", "x=max"], ["u", "v"], weight=2.0),
        Neumann(_inflow, on=_inflow, name="flux"),
        Robin(1, 2, 3, n_points=7),
        Initial(0),
        Periodic("x", derivatives=False),
    ],
)
def test_conditions_are_values(condition):
    for other in (pickle.loads(pickle.dumps(condition)), copy.deepcopy(condition)):
        assert other == condition
        assert hash(other) == hash(condition)
    with pytest.raises(AttributeError):
        condition.weight = 3.0


def test_conditions_differ_by_value():
    assert Dirichlet(1.0) != Neumann(1.0)
    assert Dirichlet(1.0) != Dirichlet(2.0)
    assert Dirichlet(np.ones(2)) == Dirichlet([1.0, 1.0])
    assert Dirichlet(1.0, on=["x=min"]) == Dirichlet(1.0, on=("x=min",))


@pytest.mark.parametrize(
    ("action", "match"),
    [
        (lambda: Dirichlet(0, weight=0), r"weight must be positive, got 0"),
        (lambda: Neumann(0, weight=np.nan), r"weight must be positive, got nan"),
        (lambda: Initial(0, n_points=0), r"n_points must be at least 1, got 0"),
        (lambda: Dirichlet("zero"), r"value must be a finite number.*'zero'"),
        (lambda: Dirichlet(np.nan), r"value must be a finite number.*nan"),
        (lambda: Robin(1, [[2]], 3), r"b must be a finite number.*\[\[2\]\]"),
        (lambda: Initial(0).sample(SQUARE, 1, rng()), r"no time.*'x', 'y'"),
        (lambda: Periodic("z").sample(SQUARE, 1, rng()), r"'z=max' is unknown"),
        (
            lambda: Periodic("x").sample(L_SHAPE, 8, rng()),
            r"x=min and x=max do not lie opposite",
        ),
        (
            lambda: Dirichlet(0, on=lambda X: X[:, 0] > 9).sample(SQUARE, 1, rng()),
            r"sampled points lie inside",
        ),
        (
            lambda: Dirichlet(0, on=lambda X: X > 0).sample(SQUARE, 4, rng()),
            r"one bool for each point, of shape \(4,\), got bool of shape \(4, 2\)",
        ),
        (
            lambda: Dirichlet(0, on=lambda X: X[:, 0]).sample(SQUARE, 4, rng()),
            r"one bool for each point.*got float64",
        ),
    ],
)
def test_mistakes_with_conditions_are_explained(action, match):
    with pytest.raises(ValueError, match=match):
        action()


# --- problems ------------------------------------------------------------------------


def flow(u, x, nu, force=0.0):
    velocity, p = u[:2], u["p"]
    momentum = grad(velocity) @ velocity + grad(p) - nu * laplacian(velocity)
    return momentum - force, div(velocity)


def stagnation(x):
    """A flow without viscous forces: (x, -y) with p = -(x^2 + y^2) / 2."""
    return jnp.stack([x[0], -x[1], -0.5 * (x[0] ** 2 + x[1] ** 2)])


def velocity(x):
    return stagnation(x)[:2]


_ENTRY = lambda x: x[0]  # noqa: E731  (without a name that pickle finds)


def flow_problem(**words):
    defaults = dict(
        residual=flow,
        domain=Box(x=(-1, 1), y=(0, 1)),
        conditions=[
            Dirichlet(velocity, outputs=("u", "v"), weight=10.0),
            Dirichlet(0.0, on="y=min", outputs="v", name="floor", n_points=9),
            Dirichlet(_ENTRY, on=_inflow, outputs=0),
        ],
        outputs=("u", "v", "p"),
        coefficients={"nu": Unknown(0.1, positive=True)},
        exact=stagnation,
    )
    return Problem(**{**defaults, **words})


def heat(u, x, kappa):
    return d(u, "t") - kappa * laplacian(u)


def heat_problem(**words):
    defaults = dict(
        residual=heat,
        domain=Box(x=(0, 1), t=(0, 1)),
        conditions=(Dirichlet(1.0), Initial(1.0), Initial(1.0), Neumann(0.0, "x=max")),
        coefficients={"kappa": 0.25},
    )
    return Problem(**{**defaults, **words})


def test_residual_classes():
    classes = flow_problem().residual_classes()
    assert [c.name for c in classes] == [
        "interior",
        "dirichlet",
        "floor",
        "dirichlet_2",
    ]
    assert [c.n_outputs for c in classes] == [3, 2, 1, 1]
    assert [c.weight for c in classes] == [1.0, 10.0, 1.0, 1.0]
    assert [c.n_points for c in classes] == [1, 1, 1, 1]
    classes = heat_problem(conditions=[Periodic("x"), Initial(0.0)]).residual_classes()
    assert [c.name for c in classes] == ["interior", "periodic", "initial"]
    assert [c.n_points for c in classes] == [1, 2, 1]
    assert [c.n_outputs for c in classes] == [1, 2, 1]


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_residuals_vanish_at_the_solution_and_not_elsewhere(shift):
    problem = flow_problem()
    points = problem.sample(32, 16, rng())
    field = problem.field(lambda x: stagnation(x) + shift * jnp.sin(x[0]))
    for kind in problem.residual_classes():
        x, data = points[kind.name]
        found = residuals(kind.function, (field,), x, data, nu=0.7)
        assert found.shape == (len(x), kind.n_outputs)
        a, y = x[:, 0].T
        s, c = shift * np.sin(a), shift * np.cos(a)
        if kind.name == "interior":
            u, v = a + s, s - y
            momentum = u * (1 + c) - a + c + 0.7 * s, u * c - v - y + 0.7 * s
            expected = np.stack([*momentum, c], axis=1)
        else:
            expected = np.tile(s[:, None], kind.n_outputs)
        close(found, expected)


@pytest.mark.parametrize(
    ("residual", "expected"),
    [
        (lambda u, x: u(x), [5.0]),
        (lambda u, x: u, [5.0]),
        (lambda u, x: [u * grad(u), 2, (x, np.float64(3.0))], [5, 10, 2, 2, 1, 3]),
        (lambda u, x: hessian(u), [0, 1, 1, 0]),
        (lambda u, x: x[0] > 1, [1.0]),
    ],
)
def test_what_a_residual_may_return(residual, expected):
    problem = Problem(residual, Box(x=(0, 3), y=(0, 3)))
    kind = problem.residual_classes()[0]
    field = problem.field(lambda x: (x[0] * x[1] + 3)[None])
    found = kind.function((field,), np.array([[2.0, 1.0]]), np.empty(0), {})
    close(found, np.array(expected, dtype=float))
    assert found.dtype == np.float64
    assert kind.n_outputs == len(expected)


def test_points_are_shared_by_the_conditions():
    points = flow_problem().sample(20, 11, rng())
    assert {n: p.x.shape for n, p in points.items()} == {
        "interior": (20, 1, 2),
        "dirichlet": (6, 1, 2),
        "floor": (9, 1, 2),
        "dirichlet_2": (5, 1, 2),
    }
    assert {n: p.data.shape for n, p in points.items()} == {
        "interior": (20, 0),
        "dirichlet": (6, 0),
        "floor": (9, 0),
        "dirichlet_2": (5, 0),
    }
    points = heat_problem().sample(5, 12, rng(), "uniform")
    assert [len(p.x) for p in points.values()] == [5, 3, 3, 3, 3]
    np.testing.assert_array_equal(points["neumann"].data, [[1.0, 0.0]] * 3)
    assert list(points) == [c.name for c in heat_problem().residual_classes()]


def test_embedding_maps_to_the_cube_and_the_circle():
    problem = Problem(heat, Box(x=(-1, 3), y=(2, 4), t=(0, 1)), periodic="x")
    assert problem.n_inputs == 4
    close(problem.embedding(jnp.array([0.0, 2.5, 1.0])), np.array([-0.5, 1, 0, 1]))
    low, high = jnp.array([-1.0, 2.1, 0.3]), jnp.array([3.0, 2.1, 0.3])
    close(problem.embedding(low), problem.embedding(high))
    slopes, bends = (
        jax.jit(order(problem.embedding)) for order in (jax.jacfwd, jax.hessian)
    )
    close(slopes(low), slopes(high))
    close(bends(low), bends(high))
    angle = 2 * np.pi * 1.7 / 4
    slope = np.array([-np.sin(angle), np.cos(angle)]) * np.pi / 2
    close(slopes(jnp.array([0.7, 2.1, 0.3]))[2:, 0], slope)
    plain = Problem(heat, Box(x=(-1, 3), t=(0, 1)))
    assert plain.n_inputs == 2
    close(plain.embedding(jnp.array([-1.0, 1.0])), np.array([-1.0, 1.0]))


def test_fields_apply_the_transform():
    problem = heat_problem(transform=lambda x, u: x[0] * (1 - x[0]) * u + x[1])
    for network in (lambda x: jnp.exp(x[:1]), lambda x: jnp.exp(x[0])):
        field = problem.field(network)
        close(field(np.array([0.5, 2.0])), 0.25 * np.exp(0.5) + 2)
        assert (field.axes, field.time, field.outputs) == (("x", "t"), "t", ("u",))
        for end in (0.0, 1.0):
            close(field(np.array([end, 0.3])), 0.3)
    two = Problem(flow, SQUARE, outputs=("a", "b"), transform=lambda x, u: u * x)
    field = two.field(lambda x: jnp.ones(2))
    close(field(np.array([0.5, 2.0])), np.array([0.5, 2.0]))
    close(field["b"](np.array([0.5, 2.0])), 2.0)


def test_coefficients():
    given = {
        "k": 2,
        "matrix": [[1, 2], [3, 4]],
        "nu": Unknown(0.5, True),
        "b": Unknown(-1),
    }
    problem = Problem(lambda u, x, k, matrix, nu, b: u, SQUARE, coefficients=given)
    assert list(problem.known) == ["k", "matrix"]
    assert problem.known["k"] == 2.0
    close(problem.known["matrix"], np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert problem.unknown == {"nu": Unknown(0.5, True), "b": Unknown(-1)}
    assert problem.start["nu"] == 0.5
    assert set(problem.start) == set(given)
    with pytest.raises(TypeError):
        problem.coefficients["k"] = 3.0
    assert float(Unknown(0.5, positive=True).decode(jnp.array(-1e3))) >= 0
    for unknown in (Unknown((1.0, 2.0), positive=True), Unknown(-3.0)):
        close(
            unknown.decode(unknown.encode(unknown.initial)), np.array(unknown.initial)
        )


def test_the_order_of_unknown_coefficients_is_part_of_the_problem():
    unknown = {"k": Unknown(1.0), "nu": Unknown(1.0)}
    reverse = dict(reversed(unknown.items()))
    assert flow_problem(coefficients=unknown) == flow_problem(coefficients=unknown)
    assert flow_problem(coefficients=unknown) != flow_problem(coefficients=reverse)


def test_exact_values():
    X = rng().uniform(size=(50, 2))
    expected = np.stack([X[:, 0], -X[:, 1], -0.5 * (X**2).sum(axis=1)], axis=1)
    with jax.enable_x64(False):
        found = flow_problem().exact_values(X)
        assert not jax.config.jax_enable_x64
    close(found, expected)
    assert found.dtype == np.float64
    found[0] = 0.0  # a copy, which may be written to
    scalar_exact = heat_problem(exact=lambda x: x[0] * x[1])
    close(scalar_exact.exact_values(X), (X[:, 0] * X[:, 1])[:, None])
    points, values = scalar_exact.reference(7, rng())
    assert scalar_exact.domain.contains(points).all()
    close(values, points.prod(axis=1)[:, None])


def test_exact_values_are_taken_in_pieces(monkeypatch):
    monkeypatch.setattr(pde.given_values, "AT_ONCE", 16)
    X = rng().uniform(size=(53, 2))
    found = flow_problem(name="pieces").exact_values(X)
    close(found[:, :2], X * [1, -1])


class Lazy:
    """A reference that is computed when it is first wanted."""

    count = 0

    def solve(self):
        Lazy.count += 1
        return np.linspace(0, 1, 8).reshape(4, 2), np.array(
            [[1.0], [2.0], [3.0], [4.0]]
        )

    @property
    def points(self):
        return self.solve()[0]

    @property
    def values(self):
        return self.solve()[1]


@pytest.mark.parametrize("lazy", [True, False])
def test_references(lazy):
    Lazy.count = 0
    source = Lazy()
    reference = source if lazy else Reference(*source.solve(), name="grid")
    problem = heat_problem(exact=reference)
    before = Lazy.count
    problem.check()
    assert Lazy.count == before
    points, values = problem.reference(100, rng())
    np.testing.assert_array_equal(values[:, 0], [1, 2, 3, 4])
    np.testing.assert_array_equal(problem.exact_values(points), values)
    with pytest.raises(ValueError, match="at the points of the reference only"):
        problem.exact_values(points + 1)
    if not lazy:
        assert pickle.loads(pickle.dumps(problem)) == problem
        assert problem != heat_problem(exact=Reference(points, values + 1, "grid"))


def test_problems_are_values():
    problem = flow_problem(conditions=[Dirichlet(velocity, outputs=("u", "v"))])
    again = flow_problem(conditions=(Dirichlet(velocity, outputs=["u", "v"]),))
    problem.residual_classes()
    for other in (again, pickle.loads(pickle.dumps(problem))):
        assert other is not problem
        assert other == problem
        assert hash(other) == hash(problem)
        assert other.residual_classes() == problem.residual_classes()
        assert hash(other.residual_classes()) == hash(problem.residual_classes())
    assert copy.deepcopy(problem) is problem
    for words in (
        {"coefficients": {"nu": Unknown(0.2, positive=True)}},
        {"coefficients": {"nu": 0.1}},
        {"domain": SQUARE},
        {"periodic": ("x",)},
        {"transform": lambda x, u: u},
        {"name": "flow"},
        {"residual": lambda u, x, nu: u},
    ):
        changed = dict(conditions=[Dirichlet(velocity, outputs=("u", "v"))], **words)
        assert flow_problem(**changed) != problem
    with pytest.raises(AttributeError):
        problem.domain = SQUARE


class Holder(BaseEstimator):
    def __init__(self, problem=None):
        self.problem = problem


def test_estimators_that_hold_problems_can_be_cloned():
    problem = flow_problem()  # with a lambda, which does not pickle
    copied = clone(Holder(problem))
    assert copied.problem == problem
    assert "Box" in repr(copied)


def test_equal_problems_share_compiled_functions():
    traces = []

    def evaluate(problem, x):
        traces.append(problem)
        return problem.embedding(x)

    compiled = jax.jit(evaluate, static_argnums=0)
    for _ in range(3):
        problem = heat_problem(conditions=[Dirichlet([0.0])], coefficients={"kappa": 1})
        compiled(problem, jnp.zeros(2))
    assert len(traces) == 1


@pytest.mark.parametrize(
    "problem",
    [
        flow_problem(),
        heat_problem(),
        heat_problem(conditions=[Periodic("x"), Initial(lambda x: jnp.cos(x[0]))]),
        heat_problem(residual=lambda u, x, kappa: apply(jnp.log, u)),
        heat_problem(residual=lambda u, x, kappa: apply(jnp.sqrt, -u)),
        heat_problem(residual=lambda u, x, **coefficients: u * coefficients["kappa"]),
        heat_problem(exact=lambda x: jnp.zeros(1), transform=lambda x, u: u[0]),
        Problem(lambda u, x: u, Ball(1500), Dirichlet(1.0)),
    ],
)
def test_sound_problems_pass(problem):
    with jax.enable_x64(False):
        assert problem.check() is None
        assert not jax.config.jax_enable_x64


def root_of_a_negative_number(u, x, kappa):
    return jnp.sqrt(x[0] - 10) * u(x)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"residual": 3}, r"residual must be a function, got 3"),
        ({"domain": (0, 1)}, r"domain such as Interval\(0, 1\) or Box.*, got \(0, 1\)"),
        ({"conditions": [1.0]}, r"conditions, such as .* or Initial\(1.0\), got 1.0"),
        ({"conditions": [Dirichlet(0.0, name="data")]}, r"cannot have the name 'data'"),
        ({"outputs": ()}, r"outputs must be different names, got \(\)"),
        ({"outputs": ("u", "u")}, r"outputs must be different names, got \('u', 'u'\)"),
        ({"outputs": 2}, r"outputs must hold names, such as 'u', got 2"),
        ({"outputs": (0,)}, r"outputs must be different names, got \(0,\)"),
        ({"periodic": "y"}, r"periodic='y' is unknown; the axes are \('x', 't'\)"),
        ({"coefficients": {"kappa": "1"}}, r"'kappa' must be a finite number"),
        ({"coefficients": {}}, r"residual: .*'kappa' is not declared as a coeff"),
        (
            {"coefficients": {"kappa": 1, "mu": 2}},
            r"the coefficient 'mu' is a.*neither",
        ),
        ({"residual": lambda u: u}, r"residual: it is called with.*too many"),
        (
            {"residual": lambda u, x, kappa: None},
            r"interior: residual must return.*None",
        ),
        ({"residual": lambda u, x, kappa: {"a": 1}}, r"interior: .*got dict"),
        ({"residual": lambda u, x, kappa: jnp.sin}, r"interior: residual must return"),
        (
            {"residual": lambda u, x, kappa: lax.complex(u(x), u(x))},
            r"interior: residual is complex",
        ),
        ({"residual": lambda u, x, kappa: d(u, "y")}, r"interior: axis 'y' is unknown"),
        ({"residual": lambda u, x, kappa: u["p"]}, r"interior: output 'p' is unknown"),
        (
            {"residual": lambda u, x, kappa: 1.0 if u(x) > 0 else 0.0},
            r"interior: Python cannot branch.*jnp.where",
        ),
        ({"residual": lambda u, x, kappa: np.sin(u(x)) / 0}, r"interior: "),
        (
            {"residual": root_of_a_negative_number},
            r"interior: the residual is NaN or infinite at \[",
        ),
        (
            {"residual": lambda u, x, kappa: [u, jnp.log(-1.0 - x[0])]},
            r"interior: the residual is NaN",
        ),
        ({"residual": lambda u, x, kappa: ()}, r"interior: the residual is empty"),
        (
            {"conditions": Dirichlet(lambda x: jnp.log(x[0] - 2))},
            r"dirichlet: the residual is NaN",
        ),
        (
            {"conditions": [Dirichlet(0.0), Dirichlet((1.0, 2.0))]},
            r"dirichlet_2: the value .* of the 1 outputs; its shape is \(2,\)",
        ),
        (
            {"conditions": Dirichlet(lambda x: x, name="inlet")},
            r"inlet: the value .* of the 1 outputs; its shape is \(2,\)",
        ),
        ({"conditions": Initial(0.0, outputs="v")}, r"initial: output 'v' is unknown"),
        (
            {"conditions": Dirichlet(0.0, "y=min")},
            r"dirichlet: face 'y=min' is unknown",
        ),
        ({"conditions": Dirichlet(0.0, "left")}, r"face 'left' is unknown.*'x=min'"),
        (
            {"conditions": Neumann(0.0, on=lambda X: X[:, 0] > 5, name="top")},
            r"top: None of \d+ sampled points lie inside",
        ),
        ({"conditions": Periodic("z")}, r"periodic: axis 'z' is unknown"),
        (
            {"conditions": Initial(0.0), "domain": Box(x=(0, 1), t=(0, 1), time=None)},
            r"initial: the domain has no time",
        ),
        ({"exact": lambda x: x}, r"exact: exact must return.*\('u',\).*shape \(2,\)"),
        ({"exact": 3.0}, r"exact must be a function or a reference, got 3.0"),
        (
            {"transform": lambda x, u: x},
            r"interior: transform must return.*\('u',\).*shape \(2,\)",
        ),
        ({"transform": 1.0}, r"transform must be a function, got 1.0"),
        ({"transform": lambda u: u}, r"interior: .*takes 1 positional"),
    ],
)
def test_mistakes_with_problems_are_explained(words, match):
    with pytest.raises(ValueError, match=match):
        heat_problem(**words).check()


@pytest.mark.parametrize(
    ("action", "match"),
    [
        (
            lambda: heat_problem(coefficients={"kappa": "a"}),
            r"coefficient 'kappa'.*'a'",
        ),
        (lambda: heat_problem(coefficients={"kappa": np.nan}), r"'kappa' must be.*nan"),
        (lambda: Unknown(0.0, positive=True), r"initial must be positive, got 0.0"),
        (lambda: Unknown(np.inf), r"initial must be finite, got inf"),
        (lambda: Reference(np.zeros(3), np.zeros((3, 1))), r"\(N, d\).*\(3,\)"),
        (lambda: Reference(np.zeros((3, 1)), np.zeros((2, 1))), r"\(3, 1\), \(2, 1\)"),
        (lambda: heat_problem().exact_values(np.zeros((1, 2))), r"no exact solution"),
        (
            lambda: heat_problem().sample(5, 3, rng()),
            r"n_boundary=3 is too few.*'initial_2'",
        ),
        (
            lambda: heat_problem().field(lambda x: x)(np.zeros(2)),
            r"the network must return one number for each.*\(2,\)",
        ),
    ],
)
def test_mistakes_with_values_are_explained(action, match):
    with pytest.raises(ValueError, match=match):
        action()
