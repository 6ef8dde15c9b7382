"""Common mistakes, as they are made: the message says what to write instead."""

import math
import re
import warnings
from contextlib import nullcontext

import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn import PINNSolver
from sklearn_gn.pde import (
    Ball,
    Box,
    Condition,
    Dirichlet,
    Initial,
    Interval,
    Neumann,
    Polygon,
    Problem,
    Unknown,
    d,
    grad,
    integral,
    laplacian,
)
from sklearn_gn.pde.checks import warn_of_missing_equations
from sklearn_gn.pinn.data import problem_sequence

DOMAIN = Box(x=(0, 1), t=(0, 1))


def warnings_of(*problems):
    """Messages of the warnings that checks of problems raise."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for problem in problems:
            problem.check()
    return [str(one.message) for one in caught]


def swapped(x, u):
    return d(u, "t")(x) - d(u, "x", "x")(x)


RESIDUALS = {
    "numpy on the point": (
        lambda u, x: d(u, "t")(x) - np.sin(x[0]),
        r"interior: numpy does not take traced values: write jax.numpy",
    ),
    "numpy on a value": (
        lambda u, x: np.exp(u(x)),
        r"interior: numpy does not take traced values: write jax.numpy",
    ),
    "math": (lambda u, x: math.sin(x[0]), r"interior: math, float and int do not"),
    "branch": (
        lambda u, x: u(x) if x[0] > 0.5 else 0.0,
        r"interior: Python cannot branch.*jnp.where\(x\[0\] > 0, a, b\)",
    ),
    "jax.numpy on a field": (
        lambda u, x: d(u, "t")(x) - jnp.sin(u),
        r"interior: functions take the values.*jnp.sin\(u\(x\)\), or apply\(jnp.sin, u",
    ),
    "an unknown that the problem does not declare": (
        lambda u, x: u(x) - Unknown(1.0) * x[0],
        r"interior: an Unknown has no value.*coefficients=\{'k': Unknown\(1.0\)\}",
    ),
    "coordinates as attributes": (
        lambda u, x: jnp.sin(x.t),
        r"interior: fields and points have no attribute 't': write x\[0\]",
    ),
    "derivatives as attributes": (
        lambda u, x: u.dx(x),
        r"interior: fields and points have no attribute 'dx': .*d\(u, 'x'\)\(x\)",
    ),
    "numpy on a field": (
        lambda u, x: np.sin(u),
        r"interior: functions take the values of a field, not the field",
    ),
    "math on a field": (
        lambda u, x: math.sin(u),
        r"interior: functions take the values of a field, not the field",
    ),
    "columns of a point": (
        lambda u, x: x[:, 0:1] * u(x),
        r"interior: x is one point.*x\[0\], not x\[:, 0:1\]",
    ),
    "columns of values": (
        lambda u, x: u(x)[:, 0:1],
        r"interior: x is one point, of shape \(d,\), and u\(x\) its value",
    ),
    "columns of a field": (
        lambda u, x: u[:, 0:1](x),
        r"interior: a field is indexed by its outputs alone: write u\[0\]",
    ),
    "point as an axis": (
        lambda u, x: d(u, x)(x),
        r"interior: an axis is given by its name: write d\(u, 'x'\)\(x\), not d\(u, x",
    ),
    "coordinate as an axis": (
        lambda u, x: d(u, x[0])(x),
        r"interior: an axis is given by its name",
    ),
    "derivative of a value": (
        lambda u, x: d(u(x), "x"),
        r"interior: d takes a field.*write d\(u, 'x'\)\(x\)",
    ),
    "integral of a value": (
        lambda u, x: integral(u(x), "x", 0, 1),
        r"interior: integral takes a field.* not integral\(u\(x\)",
    ),
    "integral of a function": (
        lambda u, x: integral(lambda y: y[0] * u(y), "x", 0, 1)(x),
        r"interior: integral takes a field, got function; .*kernel=lambda x, y: y\[0\]",
    ),
    "swapped": (
        swapped,
        r"interior: the arguments are swapped.*Write def swapped\(u, x\)",
    ),
    "swapped, with more names": (
        lambda y, f: d(f, "x")(y) + y[0],
        r"interior: the arguments are swapped.*Write def residual\(u, x\)",
    ),
    "no such axis": (
        lambda u, x: d(u, "z")(x),
        r"interior: axis 'z' is unknown; the axes are \('x', 't'\)",
    ),
    "a coordinate beyond the last": (  # JAX would take the last one
        lambda u, x: d(u, "t")(x) - jnp.where(x[0] > 0.5, x[2], 0.0),
        r"interior: index 2 is out of range.*axes \('x', 't'\), x\[0\] the first",
    ),
    "a coordinate before the first": (
        lambda u, x: d(u, "t")(x) - x[-3],
        r"interior: index -3 is out of range",
    ),
    "a system of one output": (
        lambda u, x: (d(u, "t")(x), u(x)[1]),
        r"interior: a single number is indexed.*outputs=\('u', 'v'\)",
    ),
    "one value for two": (
        lambda u, x: (lambda a, b: a - b)(*u(x)),
        r"interior: a single number is indexed or unpacked",
    ),
    "no such output": (
        lambda u, x: u["v"](x),
        r"interior: output 'v' is unknown.*Name all of them: outputs=",
    ),
}


def test_indices_in_range_and_unknown_ones_are_no_mistakes():
    def residual(u, x):
        table = jnp.interp(x[1], jnp.linspace(0, 1, 5), jnp.arange(5.0))
        return d(u, "t")(x) - table - x[-2] + x[jnp.argmax(x)]

    (found,) = Problem(residual, DOMAIN).residual_classes()
    assert found.n_outputs == 1


@pytest.mark.parametrize(
    ("residual", "match"), RESIDUALS.values(), ids=RESIDUALS.keys()
)
def test_mistakes_in_a_residual(residual, match):
    """They are found by ``fit`` before it begins."""
    with pytest.raises(ValueError, match=match):
        PINNSolver(Problem(residual, DOMAIN)).fit()
    condition = match.replace("interior", "condition")
    with pytest.raises(ValueError, match=condition):
        PINNSolver(Problem(lambda u, x: u(x), DOMAIN, Condition(residual))).fit()


def decay(u, x):
    return d(u, "t")(x) + u(x)


STATEMENTS = {
    "two arguments of on": (
        lambda: Problem(decay, DOMAIN, Dirichlet(0.0, on=lambda x, on_boundary: True)),
        r"dirichlet: on must be a function of points.*There is no second argument",
    ),
    "a number for on": (
        lambda: Problem(decay, DOMAIN, Dirichlet(0.0, on=0)),
        r"on must be 'boundary', faces such as.*got 0",
    ),
    "values by name": (
        lambda: Problem(decay, DOMAIN, Initial({"u": 1.0})),
        r"value must be a finite number, a list of one for each output.*\{'u': 1.0\}",
    ),
    "on for one point": (
        lambda: Problem(decay, DOMAIN, Dirichlet(0.0, on=lambda x: x[0] < 0.5)),
        r"dirichlet: .*one bool for each point.*write X\[:, 0\]",
    ),
    "values by numpy": (
        lambda: Problem(decay, DOMAIN, Initial(lambda x: np.sin(x[0]))),
        r"initial: numpy does not take traced values",
    ),
    "values of columns": (
        lambda: Problem(decay, DOMAIN, Initial(lambda x: jnp.sin(x[:, 0:1]))),
        r"initial: x is one point",
    ),
    "exact by numpy": (
        lambda: Problem(decay, DOMAIN, exact=lambda x: np.exp(-x[0])),
        r"exact: numpy does not take traced values",
    ),
    "time of another name": (
        lambda: Problem(decay, Box(x=(0, 1), tau=(0, 1))),
        r"interior: axis 't' is unknown.*'tau'.*That of time is called so",
    ),
    "initial without time": (
        lambda: Problem(lambda u, x: u(x), Interval(0, 1, axis="s"), Initial(0.0)),
        r"initial: the domain has no time.*\('s',\).*time='tau'",
    ),
    "a coefficient that is not declared": (
        lambda: Problem(lambda u, x, k: k * u(x), DOMAIN),
        r"residual: .*'k' is not declared as a coefficient; the problem has none. Decl",
    ),
    "coordinates one by one": (
        lambda: Problem(decay, DOMAIN, Initial(lambda x, t: x)),
        r"initial: .*'t' is not declared as a coeff.*are all in the point, x\[0\]",
    ),
    "unknown functions one by one": (
        lambda: Problem(lambda u, v, x: (u(x), v(x)), DOMAIN),
        r"residual: .*several unknown functions in the field.*outputs=\('u', 'v'\)",
    ),
    "outputs without names": (
        lambda: Problem(lambda u, x: u[1](x), DOMAIN),
        r"interior: output 1 is out of range; there are 1: \('u',\). Name all of them",
    ),
    "a boundary of time": (
        lambda: Problem(decay, Interval(0, 1), Dirichlet(1.0)),
        r"dirichlet: .*no boundary in space.*Use Initial\(value\).*on='t=min'",
    ),
    "a Laplacian in time": (
        lambda: Problem(lambda u, t: laplacian(u)(t) + u(t), Interval(0, 1)),
        r"interior: laplacian .*axes of space.*the only axis 't' is time",
    ),
    "an interval called time": (
        lambda: Box(x=(0, 1), time=(0, 1)),
        r"time must be the name of an axis, got \(0, 1\): write t=\(0, 1\)",
    ),
}


@pytest.mark.parametrize(("state", "match"), STATEMENTS.values(), ids=STATEMENTS.keys())
def test_mistakes_in_a_statement(state, match):
    with pytest.raises(ValueError, match=match):
        PINNSolver(state()).fit()


SQUARE = Box(x=(0, 1), y=(0, 1))


@pytest.mark.parametrize(
    ("residual", "match"),
    [
        (
            lambda u, x: laplacian(u)(x) - jnp.sin(x),
            r"equations 1 and 2 of 2 contradict.*x\[0\] is 'x', x\[1\] is 'y'",
        ),
        (
            lambda u, x: (laplacian(u)(x), d(u, "x")(x), laplacian(u)(x) - 1e-6),
            r"interior: the equations 1 and 3 of 3 contradict each other",
        ),
    ],
)
def test_equations_that_contradict_each_other(residual, match):
    with pytest.raises(ValueError, match=match):
        Problem(residual, SQUARE).check()


@pytest.mark.parametrize(
    ("residual", "coefficients", "match"),
    [
        # A field given by its gradient: overdetermined, and right.
        (lambda u, x: grad(u)(x) - 2 * x, {}, "2 equations for the one output 'u'"),
        # The same equation twice.
        (lambda u, x: (d(u, "x")(x), d(u, "x")(x)), {}, "2 equations for the one"),
        # A number that is to be found may make up for the difference.
        (
            lambda u, x, k: (d(u, "x")(x) - k, d(u, "x")(x) - 1.0),
            {"k": Unknown(2.0)},
            "2 equations for the one output",
        ),
    ],
)
def test_more_equations_than_outputs(residual, coefficients, match):
    with pytest.warns(UserWarning, match=match) as caught:
        Problem(residual, SQUARE, coefficients=coefficients).check()
    assert caught[0].filename == __file__  # the line of the user, not of the package


@pytest.mark.parametrize(
    ("residual", "match"),
    [
        (lambda u, x, k: 1.0, "interior: the residual does not depend on the field u"),
        (lambda u, x, k: 0 * u(x) + x[0], r"Is u\(x\) or d\(u, ...\)\(x\) missing"),
        (lambda u, x, k: (d(u, "x")(x), x[1]), "of its 2 residuals, number 2 does not"),
        (lambda u, x, k: u(x) - k, None),
        (lambda u, x, k: d(u, "x", "y")(x) - 1e9, None),
        (lambda u, x, k: jnp.maximum(u(x) - x[0], 0.0), None),
        (lambda u, x, k: 0.0, None),  # observations alone
        (lambda u, x, k: (d(u, "x")(x), k - 3.0), None),
    ],
)
def test_residuals_that_the_field_cannot_change(residual, match):
    fixed = Condition(lambda u, x, k: k - 2.0, on=[[0.5, 0.5]])  # of k alone
    coefficients = {"k": Unknown(1.0)}
    given = SQUARE, fixed, ("u", "v"), coefficients
    problem = Problem(lambda u, x, k: residual(u["u"], x, k), *given)
    if match is None:
        problem.check()
    else:
        with pytest.raises(ValueError, match=match):
            problem.check()


def test_conditions_that_the_field_cannot_change():
    def residual(u, x):
        return laplacian(u)(x)

    numbers = Condition(lambda u, x: x[0] + 1.0, on="x=min", name="wall")
    with pytest.raises(ValueError, match="wall: the residual does not depend on the"):
        Problem(residual, SQUARE, numbers).check()

    def lifted(x, u):  # fulfils its condition but for rounding errors
        return jnp.sin(x[0]) + x[0] * (1 - x[0]) * u

    sides = Dirichlet(lambda x: 1 / (1 / jnp.sin(x[0])), on=("x=max",))
    Problem(residual, Box(x=(0, 1), y=(0, 1)), sides, transform=lifted).check()


def test_fewer_equations_than_outputs():
    def first(u, x):
        return d(u["a"], "x")(x) + u["b"](x)

    short = {"residual": first, "domain": SQUARE, "outputs": ("a", "b")}
    with pytest.warns(UserWarning, match=r"1 equation for the 2 outputs \('a', 'b'\)"):
        warn_of_missing_equations(Problem(**short))
    inside = Condition(lambda u, x: u["b"](x), on=[[0.5, 0.5]])
    warn_of_missing_equations(Problem(**short, conditions=inside))
    warn_of_missing_equations(Problem(**short, depends_on={"b": "x"}))


STRIP = Box(x=(1, 2), y=(0, 1), t=(3, 4))


@pytest.mark.parametrize(
    ("side", "start", "match"),
    [
        (Dirichlet(1.0), Initial(0.0), r"'u' is 1 and 0 at x = .*, t = 3"),
        (
            Dirichlet(0.0, on=("x=min", "x=max")),
            Initial(lambda x: (x[0] - 1) * x[1]),
            r"'u' is 0 and 0\.9.* at x = 2, y = 0\.9",
        ),
        (
            Dirichlet(lambda x: x[2], on=lambda X: X[:, 1] == 0),
            Initial(2.0),
            r"'u' is 3 and 2 at x = .*, y = 0, t = 3",
        ),
        (Dirichlet(0.0, on="x=min"), Initial(lambda x: (x[0] - 1) * x[1]), None),
        (Dirichlet(0.0), Initial(1.0, order=1), None),
        (Dirichlet(lambda x, k: k), Initial(0.0), None),
    ],
)
def test_values_that_contradict_each_other_at_the_start(side, start, match):
    def residual(u, x, k):
        return k * d(u, "t")(x) - laplacian(u)(x)

    problem = Problem(residual, STRIP, [side, start], coefficients={"k": Unknown(1.0)})
    found = warnings_of(problem)
    assert len(found) == (match is not None)
    assert match is None or re.search(match, found[0])


L_SHAPE = Polygon([(0, 0), (2, 0), (2, 1), (1, 1), (1, 2), (0, 2)])


@pytest.mark.parametrize(
    ("domain", "conditions", "match"),
    [
        # A lid that moves, and one that rests at its ends.
        (
            SQUARE,
            [Dirichlet(1.0, on="y=max"), Dirichlet(0.0, on=("x=min", "x=max"))],
            r"'dirichlet' and 'dirichlet_2' contra.*their parts.* 1 and 0 at .* y = 1",
        ),
        (
            SQUARE,
            [
                Dirichlet(lambda x: x[0] * (1 - x[0]), on=lambda X: X[:, 1] == 1),
                Dirichlet(0.0, on=lambda X: X[:, 1] < 1),
            ],
            None,
        ),
        (
            SQUARE,
            [Dirichlet(1.0, on="x=max"), Dirichlet(0.0, on=lambda X: X[:, 0] < 1)],
            r"1 and 0 at x = 1, y = [01]\.",
        ),
        # Opposite sides, and values of an edge where its line meets another edge.
        (SQUARE, [Dirichlet(1.0, on="y=max"), Dirichlet(0.0, on="y=min")], None),
        (
            L_SHAPE,
            [
                Dirichlet(lambda x: x[1] - 1, on="edge 4"),
                Dirichlet(0.0, on=("edge 1", "edge 3")),
            ],
            None,
        ),
        (
            L_SHAPE,
            [Dirichlet(lambda x: x[1], on="edge 4"), Dirichlet(0.0, on="edge 3")],
            "1 and 0 at x = 1, y = 1",
        ),
    ],
)
def test_values_that_contradict_each_other_at_a_corner(domain, conditions, match):
    problem = Problem(lambda u, x: laplacian(u)(x), domain, conditions)
    found = warnings_of(problem)
    assert len(found) == (match is not None)
    assert match is None or re.search(match, found[0])


ON_TOP = Dirichlet(1.0, on="y=max")


@pytest.mark.parametrize(
    ("domain", "conditions", "match"),
    [
        (
            SQUARE,
            [Dirichlet(0.0), ON_TOP],
            "_2' hold.* 0 and 1 at x = .*, y = 1",
        ),
        (SQUARE, [Dirichlet(lambda x: x[1]), ON_TOP], None),
        (SQUARE, [Dirichlet(0.0), Dirichlet(1.0, on=lambda X: X[:, 1] == 1)], "y = 1"),
        (Ball(2), [Dirichlet(0.0), Dirichlet(2.0)], "'u' is 0 and 2"),
        (
            Interval(0, 1, axis="x"),
            [Dirichlet(0.0), Dirichlet(1.0, on="x=max")],
            "0 and 1 at x = 1",
        ),
        (STRIP, [Initial(0.0), Initial(1.0)], "'initial' and 'initial_2' hold"),
        (STRIP, [Initial(0.0), Initial(1.0, order=1)], None),
        (STRIP, [Initial(1.0), Dirichlet(0.0, on="t=min")], "contradict"),
    ],
)
def test_values_that_contradict_each_other_everywhere(domain, conditions, match):
    problem = Problem(lambda u, x: u(x), domain, conditions)
    expected = (
        nullcontext() if match is None else pytest.raises(ValueError, match=match)
    )
    with expected:
        problem.check()


def _front(place):
    return lambda x: jnp.where(x[0] > place, 5.0, 2.0)


def _bar(x):
    return jnp.where(jnp.abs(x[0] - 1.31) < 0.01, 1.0, 0.0)


def _steep(x):
    return jnp.tanh(1e4 * (x[0] - 1.5)) + jnp.sqrt(jnp.abs(x[0] - 1.3))


@pytest.mark.parametrize(
    ("domain", "condition", "match"),
    [
        (STRIP, Initial(_front(1.25)), r"'u' is 2 and 5 on .* x = 1\.25, .*t = 3"),
        (STRIP, Initial(_bar), r"'u' is \d and \d on .* sides of x = 1\.3.*t = 3"),
        (STRIP, Initial(_steep), None),
        (STRIP, Initial(_front(1.25), order=1), None),  # a velocity
        (STRIP, Initial(lambda x, k: jnp.where(x[0] > 1.5, k, 0.0)), None),
        # Heated until a time, at one end.
        (
            STRIP,
            Dirichlet(lambda x: jnp.where(x[2] < 3.5, 7.0, 0.0), on="x=min"),
            r"'dirichlet' jump.* 'u' is . and . on .* x = 1, y = .*, t = 3\.5\.",
        ),
        (SQUARE, Dirichlet(_front(0.5), on=lambda X: X[:, 1] == 1), "x = 0.5, y = 1"),
        (SQUARE, Dirichlet(_front(0.5), on="x=max"), None),
        # A lid and walls in one condition, and only the walls.
        (
            SQUARE,
            Dirichlet(lambda x: jnp.where(x[1] == 1, 1.0, 0.0)),
            r"'dirichlet' jump where edges meet: .* at x = [01], y = 1",
        ),
        (
            SQUARE,
            Dirichlet(
                lambda x: jnp.where(x[1] == 1, 1.0, 0.0),
                on=("x=min", "x=max", "y=min"),
            ),
            None,
        ),
        (Ball(2), Dirichlet(_front(0.25)), r"is \d and \d on .* x = 0\.25, y = -?0\.9"),
        (
            Box(x=(-2, 2), y=(-2, 2)) - Ball(2),
            Dirichlet(lambda x: jnp.where(x[0] ** 2 + x[1] ** 2 < 1.1, 1.0, 0.0)),
            None,
        ),
        (Interval(0, 1, axis="x"), Dirichlet(_front(0.5)), None),
    ],
)
def test_values_of_a_condition_that_jump(domain, condition, match):
    def residual(u, x, k):
        return k * laplacian(u)(x)

    problem = Problem(residual, domain, [condition], coefficients={"k": Unknown(1.0)})
    found = warnings_of(problem)
    assert len(found) == (match is not None)
    assert match is None or re.search(match, found[0])


def _heat(u, x):
    return d(u, "t")(x) - d(u, "x", "x")(x)


def _wave(u, x):
    return d(u, "t", "t")(x) - d(u, "x", "x")(x)


def _half_insulated(u, x):
    return d(u, "t")(x) - jnp.where(x[0] < 0.5, 0.0, 1.0) * d(u, "x", "x")(x)


@pytest.mark.parametrize(
    ("residual", "place"),
    [(_heat, None), (_wave, "x = [01]"), (_half_insulated, "x = 0")],
)
@pytest.mark.repeats
def test_only_jumps_without_functions_at_the_start_are_named(residual, place):
    sides = Dirichlet(0.0, on=("x=min", "x=max"))
    problem = Problem(residual, Box(x=(0, 1), t=(0, 1)), [sides, Initial(1.0)])
    found = warnings_of(problem)
    assert len(found) == (place is not None)
    assert place is None or re.search(f"is 0 and 1 at {place}, t = 0", found[0])


@pytest.mark.parametrize("default_network", [True, False])
def test_fits_warn_of_jumps_that_their_network_does_not_follow(default_network):
    sides = Dirichlet(0.0, on=("x=min", "x=max"))
    problem = Problem(_heat, Box(x=(0, 1), t=(0, 1)), [sides, Initial(1.0)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        problem_sequence(problem, default_network)
    assert len(caught) == (not default_network)


def test_outputs_are_compared_by_name_at_the_start():
    both = {"domain": STRIP, "outputs": ("a", "b")}
    sides = [Dirichlet([1.0, 2.0]), Initial([2.0, 1.0], outputs=["b", "a"])]
    equations = lambda u, x: u(x)  # noqa: E731
    assert warnings_of(Problem(equations, conditions=sides, **both)) == []
    sides[1] = Initial(2.5, outputs="b")
    with pytest.warns(UserWarning, match="'b' is 2 and 2.5"):
        Problem(equations, conditions=sides, **both).check()


@pytest.mark.parametrize(
    ("source", "slope", "domain", "match"),
    [
        # Of area 1 with an outline of 4, and of area pi with one of 2 pi.
        (1.0, 0.0, SQUARE, r"No solution.*is -3, and the slopes.* contribute 0"),
        (1.0, 0.25, SQUARE, None),
        (1.0, 0.5, Ball(2), None),
        (1.0, -0.5, Ball(2), r"is -9\.42, and the slopes.* contribute -9\.42"),
    ],
)
def test_slopes_that_contradict_the_source(source, slope, domain, match):
    def residual(u, x):
        return 3 * (laplacian(u)(x) - source)

    def reaction(u, x):  # makes up for any difference
        return residual(u, x) - u(x)

    def anisotropic(u, x):  # has fluxes of its own
        return residual(u, x) + d(u, domain.axes[0], domain.axes[0])(x)

    others = (reaction, anisotropic) if slope == 0 else ()
    stated = (Problem(f, domain, Neumann(slope)) for f in (residual, *others))
    found = warnings_of(*stated)
    assert len(found) == (match is not None)
    assert match is None or re.search(match, found[0])


@pytest.mark.parametrize(
    ("on", "match"),
    [
        ("boundary", None),
        ([[1.0, 0.5], [0.3, 0.3]], None),
        ([[2.0, 0.5], [0.5, 0.5]], r"1 of 2 points.* such as \[2\.0, 0\.5\].*'y'\)"),
        (Box(x=(3, 4), y=(0, 1)), r"(\d+) of \1 points"),
    ],
)
def test_conditions_at_points_outside_of_the_domain(on, match):
    problem = Problem(lambda u, x: laplacian(u)(x), SQUARE, Dirichlet(0.0, on=on))
    found = warnings_of(problem)
    assert len(found) == (match is not None)
    assert match is None or re.search(match, found[0])
