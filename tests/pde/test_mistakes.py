"""Common mistakes, as they are made: the message says what to write instead."""

import math

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
    Problem,
    d,
    integral,
)

DOMAIN = Box(x=(0, 1), t=(0, 1))


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
        r"interior: integral takes a field",
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
}


@pytest.mark.parametrize(
    ("residual", "match"), RESIDUALS.values(), ids=RESIDUALS.keys()
)
def test_mistakes_in_a_residual(residual, match, monkeypatch):
    """They are found by ``fit`` before anything is compiled."""
    monkeypatch.setattr("sklearn_gn.pde.checks._check_finite", None)
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
    "an interval called time": (
        lambda: Box(x=(0, 1), time=(0, 1)),
        r"time must be the name of an axis, got \(0, 1\): write t=\(0, 1\)",
    ),
}


@pytest.mark.parametrize(("state", "match"), STATEMENTS.values(), ids=STATEMENTS.keys())
def test_mistakes_in_a_statement(state, match, monkeypatch):
    monkeypatch.setattr("sklearn_gn.pde.checks._check_finite", None)
    with pytest.raises(ValueError, match=match):
        PINNSolver(state()).fit()
