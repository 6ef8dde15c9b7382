"""The unit in which something is measured changes nothing of its solution.

Twelve problems are stated in units of their own, each a factor for space, time, every
output and equation: as drawn at random, and all one.
"""

import math
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn import PINNSolver
from sklearn_gn.pde import (
    Box,
    Condition,
    Dirichlet,
    Initial,
    Interval,
    Neumann,
    Problem,
    Unknown,
    d,
)
from sklearn_gn.pinn.enrichment import enriched
from sklearn_gn.pinn.units import units

pi = math.pi


class Units:
    """Factors of axes, outputs and rows, by which a statement without units is told."""

    def __init__(self, axes, outputs, seed=None, decades=9):
        rng = np.random.default_rng(seed)

        def factor():
            return 1.0 if seed is None else float(10 ** rng.uniform(-decades, decades))

        self.axes = {name: factor() for name in axes}
        if "y" in self.axes:  # the points of a boundary are in proportion to its area
            self.axes["y"] = self.axes["x"]
        self.outputs = {name: factor() for name in outputs}
        self.factor = factor

    def box(self, **intervals):
        """The domain of these intervals."""
        return Box(
            **{
                name: (low * self.axes[name], high * self.axes[name])
                for name, (low, high) in intervals.items()
            }
        )

    def plain(self, x):
        """A point without units."""
        return x / np.array(list(self.axes.values()))

    def rows(self, function):
        """A residual of ``o(output, *axes)``, the derivatives, and of a point."""
        factors = [self.factor() for _ in range(4)]

        def residual(u, x):
            def o(name, *axes):
                field = u if len(self.outputs) == 1 else u[name]
                value = d(field, *axes)(x) if axes else field(x)
                lengths = math.prod(self.axes[axis] for axis in axes)
                return value * (lengths / self.outputs[name])

            found = function(o, self.plain(x))
            if not isinstance(found, tuple):
                return factors[0] * found
            return tuple(f * r for f, r in zip(factors, found, strict=False))

        return residual

    def value(self, function, names=None, *, per=None):
        """Given values of outputs, or of their derivatives by an axis."""
        names = list(self.outputs) if names is None else [names]
        scale = np.array([self.outputs[name] for name in names])
        scale = scale if per is None else scale / self.axes[per]
        if not callable(function):
            given = scale * np.ravel(function)
            return float(given[0]) if len(given) == 1 else given
        return lambda x: scale * jnp.stack(jnp.atleast_1d(function(self.plain(x))))

    def problem(self, residual, box, conditions):
        """A problem of all outputs."""
        residual = self.rows(residual)
        if len(self.outputs) == 1:
            return Problem(residual, box, conditions)
        return Problem(residual, box, conditions, outputs=tuple(self.outputs))


def string(seed):
    """u'' = -1, held at one end and pulled at the other."""
    unit = Units("x", "u", seed)
    ends = [
        Dirichlet(0.0, on="x=min"),
        Neumann(unit.value(10.0, per="x"), on="x=max"),
    ]
    return (
        unit,
        unit.problem(lambda o, x: o("u", "x", "x") + 1, unit.box(x=(0, 1)), ends),
        lambda X: 11 * X - X**2 / 2,
    )


def bar(seed):
    """A bar that heat expands: the load is told by its strain alone."""
    unit = Units("x", ("T", "u"), seed)

    def residual(o, x):
        T, Tx = o("T"), o("T", "x")
        return (1 + T / 2) * o("T", "x", "x") + Tx**2 / 2, o("u", "x", "x") - Tx

    def load(o, x):
        return o("u", "x") - o("T") - 2

    def exact(X):
        root = np.sqrt(1 + 1.25 * X)
        return np.hstack([2 * root - 2, 16 / 15 * (root**3 - 1)])

    ends = [
        Dirichlet([0.0, 0.0], on="x=min"),
        Dirichlet(unit.value(1.0, "T"), on="x=max", outputs="T"),
        Condition(unit.rows(load), on="x=max"),
    ]
    return unit, unit.problem(residual, unit.box(x=(0, 1)), ends), exact


def membrane(seed):
    """The Laplacian of a smooth function, with its values at the boundary."""
    unit = Units("xy", "u", seed)

    def function(x, lib=jnp):
        return lib.sin(2 * x[..., 0]) * lib.exp(x[..., 1])

    def residual(o, x):
        return o("u", "x", "x") + o("u", "y", "y") + 3 * function(x)

    box = unit.box(x=(0, 1), y=(-1, 1))
    sides = [Dirichlet(unit.value(function))]
    return unit, unit.problem(residual, box, sides), lambda X: function(X, np)


def torsion(seed):
    """A source alone sets the size; the boundary is at zero."""
    unit = Units("xy", "u", seed)

    def residual(o, x):
        source = 5 * pi**2 * jnp.sin(pi * x[0]) * jnp.sin(2 * pi * x[1])
        return o("u", "x", "x") + o("u", "y", "y") + source

    box = unit.box(x=(0, 1), y=(0, 1))
    return (
        unit,
        unit.problem(residual, box, [Dirichlet(0.0)]),
        lambda X: np.sin(pi * X[:, 0]) * np.sin(2 * pi * X[:, 1]),
    )


def rod(seed):
    """Heat in a rod that is insulated at one end."""
    unit = Units("xt", "u", seed)
    box = unit.box(x=(0, 1), t=(0, 1))
    start = unit.value(lambda x: jnp.cos(pi / 2 * x[0]))
    sides = [Initial(start), Dirichlet(0.0, on="x=max"), Neumann(0.0, on="x=min")]
    return (
        unit,
        unit.problem(lambda o, x: o("u", "t") - o("u", "x", "x") / 2, box, sides),
        lambda X: np.cos(pi / 2 * X[:, 0]) * np.exp(-(pi**2) / 8 * X[:, 1]),
    )


def struck_string(seed):
    """A wave that begins with its velocity."""
    unit = Units("xt", "u", seed)
    box = unit.box(x=(0, 1), t=(0, 1.5))
    speed = unit.value(lambda x: pi * jnp.sin(pi * x[0]), per="t")
    sides = [Initial(0.0), Initial(speed, order=1), Dirichlet(0.0)]
    return (
        unit,
        unit.problem(lambda o, x: o("u", "t", "t") - o("u", "x", "x"), box, sides),
        lambda X: np.sin(pi * X[:, 0]) * np.sin(pi * X[:, 1]),
    )


def pendulum(seed):
    """A damped oscillator that begins with its velocity."""
    unit = Units("t", "u", seed)
    start = [Initial(0.0), Initial(unit.value(2.0, per="t"), order=1)]
    interval = Interval(0, 10 * unit.axes["t"])
    return (
        unit,
        unit.problem(
            lambda o, t: o("u", "t", "t") + 0.2 * o("u", "t") + 4.01 * o("u"),
            interval,
            start,
        ),
        lambda X: np.exp(-X / 10) * np.sin(2 * X),
    )


def chain(seed):
    """A decays to B, which decays; B begins with none."""
    unit = Units("t", ("A", "B"), seed)

    def residual(o, t):
        return o("A", "t") + o("A"), o("B", "t") - o("A") + 3 * o("B")

    start = [Initial(unit.value([1.0, 0.0]))]
    interval = Interval(0, 3 * unit.axes["t"])
    return (
        unit,
        unit.problem(residual, interval, start),
        lambda X: np.hstack([np.exp(-X), (np.exp(-X) - np.exp(-3 * X)) / 2]),
    )


def plate(seed):
    """Plane elasticity under a load of the volume; two displacements without values."""
    unit = Units("xy", ("u", "v"), seed)

    def residual(o, x):
        s, c = jnp.sin(pi * x), jnp.cos(pi * x)
        rows = (
            2 * o("u", "x", "x") + o("u", "y", "y") + o("v", "x", "y"),
            o("v", "x", "x") + 2 * o("v", "y", "y") + o("u", "x", "y"),
        )
        load = pi**2 * (3 * s[0] * s[1] - c[0] * c[1])
        return tuple(row + load for row in rows)

    def exact(X):
        shape = np.sin(pi * X[:, :1]) * np.sin(pi * X[:, 1:])
        return np.hstack([shape, shape])

    box = unit.box(x=(0, 1), y=(0, 1))
    return unit, unit.problem(residual, box, [Dirichlet([0.0, 0.0])]), exact


def channel(seed):
    """Stokes flow between plates; the pressure is given at the outlet, as zero."""
    unit = Units("xy", ("u", "v", "p"), seed)

    def residual(o, x):
        return (
            o("u", "x", "x") + o("u", "y", "y") - o("p", "x"),
            o("v", "x", "x") + o("v", "y", "y") - o("p", "y"),
            o("u", "x") + o("v", "y"),
        )

    flow = unit.value(lambda x: x[1] * (1 - x[1]), "u")
    box = unit.box(x=(0, 2), y=(0, 1))
    return (
        unit,
        unit.problem(
            residual,
            box,
            [
                Dirichlet(flow, on=("x=min", "x=max", "y=min", "y=max"), outputs="u"),
                Dirichlet(0.0, outputs="v"),
                Dirichlet(0.0, on="x=max", outputs="p"),
            ],
        ),
        lambda X: np.column_stack(
            [X[:, 1] * (1 - X[:, 1]), 0 * X[:, 0], 4 - 2 * X[:, 0]]
        ),
    )


def layers(seed):
    """Heat through two layers, an output each, in the temperatures of a room."""
    unit = Units("x", ("a", "b"), seed)

    def contact(o, x):
        return o("a") - o("b"), o("a", "x") - 40 * o("b", "x")

    joint = np.full((1, 1), unit.axes["x"])
    ends = [
        Dirichlet(unit.value(293.0, "a"), on="x=min", outputs="a"),
        Neumann(unit.value(1.0, "b", per="x"), on="x=max", outputs="b"),
        Condition(unit.rows(contact), on=joint),
    ]
    box = unit.box(x=(0, 2))
    return (
        unit,
        unit.problem(lambda o, x: (o("a", "x", "x"), o("b", "x", "x")), box, ends),
        lambda X: np.hstack([293 + 40 * X, 332 + X]),
    )


def fin(seed):
    """A fin in air of 300 that loses heat at its tip; the axis begins at 5."""
    unit = Units("x", "u", seed)

    def tip(o, x):
        return o("u", "x") + o("u") - 300

    ends = [
        Dirichlet(unit.value(301.0), on="x=min"),
        Condition(unit.rows(tip), on="x=max"),
    ]
    return (
        unit,
        unit.problem(
            lambda o, x: o("u", "x", "x") - (o("u") - 300), unit.box(x=(5, 7)), ends
        ),
        lambda X: 300 + np.exp(5 - X),
    )


PROBLEMS = [
    string, bar, membrane, torsion, rod, struck_string,
    pendulum, chain, plate, channel, layers, fin,
]  # fmt: skip


def of_problem(make, seed):
    """Center and size of the outputs, without the units that they are told in."""
    unit, problem, _ = make(seed)
    return np.array(units(problem)) / list(unit.outputs.values())


@pytest.mark.parametrize("make", [string, bar, struck_string, plate, layers, fin])
def test_units_of_outputs_follow_those_of_the_statement(make):
    center, size = of_problem(make, None)
    found, sizes = of_problem(make, 1)
    np.testing.assert_allclose(found, center, rtol=1e-6)
    np.testing.assert_allclose(sizes, size, rtol=1e-4)


def test_the_level_is_the_center_of_what_varies_little():
    (a, b), sizes = of_problem(layers, None)
    assert (a, b) == pytest.approx((293, 293))  # by the contact with the first layer
    assert (sizes < 30).all()
    assert (of_problem(chain, None)[0] == 0).all()


def relative_errors(make, seed):
    """Of each output, relative to its variation about the mean."""
    unit, problem, exact = make(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = PINNSolver(problem, max_time=60, random_state=0).fit()
    low, high = problem.domain.bounds.T
    X = np.random.default_rng(5).random((400, len(low)))
    found = np.reshape(model.predict(low + (high - low) * X), (400, -1))
    X = unit.plain(low + (high - low) * X)
    expected = np.reshape(exact(X), (400, -1))
    error = found / list(unit.outputs.values()) - expected
    if make is layers:  # each in its own layer alone
        error[np.column_stack([X > 1, X < 1])] = 0
    return np.linalg.norm(error, axis=0) / np.linalg.norm(
        expected - expected.mean(axis=0), axis=0
    ).clip(1)


def test_iterates_are_the_same_in_all_units():
    """Of powers of two, which are rounded alike."""

    def losses(length, size):
        problem = Problem(
            lambda u, x: length**2 / size * d(u, "x", "x")(x) - jnp.exp(u(x) / size),
            Interval(0, length, axis="x"),
            [Dirichlet(size, on="x=min"), Neumann(3 * size / length, on="x=max")],
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = PINNSolver(problem, max_iter=5, random_state=0).fit()
        return model.convergence_log_["loss"]

    expected = losses(1.0, 1.0)
    np.testing.assert_allclose(losses(2.0**-12, 2.0**20), expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("make", PROBLEMS)
def test_units_do_not_change_the_error(make):
    plain = relative_errors(make, None)
    assert (plain < 1e-5).all()
    assert (relative_errors(make, 1) <= 2 * np.maximum(plain, 1e-6)).all()


@pytest.mark.parametrize(
    ("start", "positive"),  # the term of the last start is lost by rounding
    [(1.0, True), (1e17, True), (-3.0, False), (0.0, False), (1e-9, True)],
)
def test_an_unknown_begins_where_its_term_is_seen(start, positive):
    """As 1e-15 k counts, k is near 1e9; a start of 1e8 is kept."""

    def problem(start):
        return Problem(
            lambda u, t, k: d(u, "t")(t) + 1e-15 * k * u(t) ** 2,
            Interval(0, 2000),
            [Initial(1000.0)],
            coefficients={"k": Unknown(start, positive=positive)},
        )

    y = np.linspace(1000, 300, 20)[:, None]
    stated, _ = enriched(problem(start), [], y, (0,))
    assert 1e8 < abs(stated.unknown["k"].initial) < 1e10
    assert np.sign(stated.unknown["k"].initial) == (np.sign(start) or 1)
    kept, _ = enriched(problem(1e8), [], y, (0,))
    assert kept.unknown["k"].initial == 1e8


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_what_multiplies_another_output_alone_has_a_unit(factor):
    """Its answer is nothing where the other one is zero, as its mean here."""
    problem = Problem(
        lambda u, x: (
            0.1 * d(u["u"], "x", "x")(x)
            - u["u"](x) * u["k"](x) / factor
            - jnp.sin(2 * pi * x[0])
        ),
        Interval(0, 1, axis="x"),
        [Dirichlet(0.0, outputs="u")],
        outputs=("u", "k"),
    )
    y = np.sin(2 * pi * np.linspace(0, 1, 100))[:, None]
    _, (_, size) = units(problem, y, (0,))
    assert 0.1 < size / factor < 10


@pytest.mark.parametrize("condition", [Dirichlet, Neumann])
def test_what_an_unknown_gives_is_no_unit_of_observed_outputs(condition):
    """Neither as a value nor as a flux: it begins where the observations are."""
    problem = Problem(
        lambda u, x: d(u, "x", "x")(x) - u(x),
        Interval(0, 1, axis="x"),
        [Dirichlet(1.0, on="x=min"), condition(lambda x, c: 1e9 * c, on="x=max")],
        coefficients={"c": Unknown(1.0)},
    )
    y = np.linspace(1, 2, 20)[:, None]
    stated, _ = enriched(problem, [], y, (0,))
    assert 0.1 < stated.scale[0] < 10
    assert 1e-10 < stated.unknown["c"].initial < 1e-8


@pytest.mark.parametrize("ratio", [0.9, 0.999999, 1.0, 1.1])
def test_an_output_has_a_unit_where_a_wave_is_in_resonance(ratio):
    """The slowest wave of the domain may have no term in the equation."""
    k = ratio * pi

    def swing(u, x):
        return d(u, "x", "x")(x) + k**2 * u(x) - 1

    def membrane(u, x):
        return d(u, "x", "x")(x) + d(u, "y", "y")(x) + 2 * k**2 * u(x) - 1

    def string(u, x):
        return d(u, "t", "t")(x) - ratio * d(u, "x", "x")(x) - 1

    def flow(u, x):
        return d(u, "t")(x) - ratio * d(u, "x")(x) - 1

    ends = [Dirichlet(0.0, on="x=min"), Neumann(0.0, on="x=max")]
    start = [Initial(0.0), Initial(0.0, order=1)]
    square, time = Box(x=(0, 1), y=(0, 1)), Box(x=(0, 1), t=(0, 1))
    for problem in (
        Problem(swing, Interval(0, 1, axis="x"), ends),
        Problem(membrane, square, ends),
        Problem(string, time, [*ends, *start]),
        Problem(flow, time, [Dirichlet(0.0, on="x=max"), Initial(0.0)]),
    ):
        _, (size,) = units(problem)
        assert 1 / 40 < size < 4
