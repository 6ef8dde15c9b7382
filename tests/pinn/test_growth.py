"""Networks and points that find their size."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn import PINNSolver
from sklearn_gn.pde import Box, Dirichlet, Problem, d
from sklearn_gn.pinn import control, fitting
from sklearn_gn.pinn.control import Control
from sklearn_gn.pinn.iteration import Sampler
from sklearn_gn.pinn.model import (
    ClassModel,
    Model,
    n_weights,
    network,
    start_parameters,
    wider,
)

EQUATION = Problem(lambda u, x: d(u, "x", "x") + 1, Box(x=(0, 1)), Dirichlet(0.0))


@pytest.mark.usefixtures("float64")
def test_a_wider_network_is_the_same_function_with_more_directions():
    rng = np.random.RandomState(0)
    net = start_parameters(rng, (1, 4, 3, 2), ())
    more = wider(net, rng)
    assert [matrix.shape for matrix in more.layers] == [(2, 6), (7, 5), (6, 2)]
    model = Model(EQUATION, ("tanh", "tanh"), ())
    x = np.array([0.3])
    value = jax.jit(lambda net: network(model, net, x))
    np.testing.assert_allclose(value(more), value(net), rtol=1e-10)
    slopes = jax.jit(jax.jacrev(lambda net: network(model, net, x)))(more)
    # The new neurons of the last hidden layer answer from the start.
    assert np.all(np.asarray(slopes.layers[-1])[0, 3:-1, 0] != 0)


@pytest.mark.parametrize(
    ("falls", "before", "loss", "then"),
    [
        (np.geomspace(1e-7, 1e-10, 13), np.inf, 1e-10, None),  # it falls
        (np.full(13, 1e-7), np.inf, 1e-9, "points"),
        (np.full(40, 1e-7), np.inf, 1e-7, None),  # often flat for a while
        (np.full(41, 1e-7), np.inf, 1e-7, "network"),
        (np.full(41, 1e-3), np.inf, 1e-3, "network"),
        (np.full(13, 1e-3), np.inf, 1e-5, "points"),  # which does not get better
        (np.full(41, 1e-8), 1e-8, 1e-8, "end"),  # the last growth has not paid
        (np.full(13, 1e-17), np.inf, 1e-17, "end"),  # nothing is left to gain
    ],
)
def test_what_grows_is_what_is_missing(falls, before, loss, then):
    net = start_parameters(np.random.RandomState(0), (1, 20, 20, 1), ())
    level = control.Level(control.Sizes(200, 80), falls=tuple(falls), before=before)
    now = Control(level=level, first_fresh=1.0)

    def missing(network):
        rules = control.Rules(network=network, points=True)
        return control.what_is_missing(now, rules, loss, falls[-1], net)

    assert missing(True) == then
    assert missing(False) == ("end" if then == "network" else then)


def fitted(**settings):
    solver = PINNSolver(EQUATION, random_state=0, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return solver.fit()


def test_a_linear_problem_ends_at_its_minimum():
    solver = fitted()
    assert solver.converged_
    assert solver.n_iter_ < 50
    x = np.linspace(0, 1, 9)[:, None]
    exact = (x * (1 - x))[:, 0] / 2
    np.testing.assert_allclose(solver.predict(x), exact, atol=1e-7)


@pytest.mark.parametrize(
    ("estimate", "settings", "larger"),
    [
        (2e-4, {}, True),
        (5e-5, {}, False),
        (2e-4, {"max_time": 1e-2}, False),  # there is no time
        (2e-4, {"hidden_layer_sizes": (8, 8)}, False),
    ],
)
def test_a_network_that_is_not_accurate_grows_after_all(
    monkeypatch, estimate, settings, larger
):
    monkeypatch.setattr(control, "relative_error_estimate", lambda *_, **__: estimate)
    monkeypatch.setattr(
        control,
        "what_is_missing",
        lambda now, *_: "end" if len(now.level.falls) > 3 else None,
    )
    monkeypatch.setattr(fitting, "FIRST_WIDTHS", (8, 8))
    solver = fitted(max_iter=30, **settings)
    assert (solver.coefs_[0].shape[1] > 8) == larger


@pytest.mark.parametrize(
    ("widths", "sizes"),
    [
        ((5, 5), [(200, 80), (400, 160), (800, 320), (1600, 640), (3200, 1280)]),
        ((60, 60), [(500, 200), (1000, 400), (2000, 800), (2000, 800)]),
    ],
)
def test_points_grow_where_the_layers_are_given(widths, sizes):
    net = start_parameters(np.random.RandomState(0), (1, *widths, 1), ())
    rules, classes = control.Rules(False, True), EQUATION.residual_classes()
    level = control.Level(control.points_for(classes, n_weights(net)))
    for expected, larger in itertools.pairwise(sizes):
        assert level.sizes == expected
        level = level._replace(falls=(1e-3,) * 13)
        now = Control(1.0, level=level)
        found = control.what_is_missing(now, rules, 1e-5, 1e-3, net)
        assert found == ("end" if larger == expected else "points")
        if found == "points":
            level, same = control.grown(level, found, rules, classes, net, None)
            assert same is net


def test_a_default_fit_grows_and_solves_the_equation(monkeypatch):
    # It grows whenever it may.
    monkeypatch.setattr(control, "is_flat", lambda falls, _: len(falls) > 3)
    monkeypatch.setattr(control, "MOST_WEIGHTS", 200)
    monkeypatch.setattr(fitting, "FIRST_WIDTHS", (8, 8))
    solver = PINNSolver(EQUATION, random_state=0, max_iter=24, tol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.fit()
    assert solver.coefs_[1].shape == (12, 12)
    x = np.linspace(0, 1, 9)[:, None]
    np.testing.assert_allclose(solver.predict(x), (x * (1 - x))[:, 0] / 2, atol=1e-5)
    # A warm start begins with the network that was found.
    solver.set_params(warm_start=True, max_iter=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.fit()
    assert solver.coefs_[1].shape == (12, 12)
    assert solver.fresh_loss_ < 1e-8


@pytest.mark.parametrize("in_units", [False, True])
def test_classes_count_in_their_units(in_units):
    sizes = (20.0, 5.0)
    kinds = zip(EQUATION.residual_classes(), sizes, strict=True)
    model = Model(EQUATION, (), tuple(ClassModel(k, None, size) for k, size in kinds))
    drawn = Sampler(8, 2, "sobol", "float64", in_units).draw(model, 0, 0, 0)
    for batch, size in zip(drawn, sizes, strict=True):
        unit = size if in_units else 1.0
        assert np.sum(batch.scale**2) == pytest.approx(1 / unit**2, rel=1e-12)


def test_points_that_are_drawn_twice_are_one_row_of_the_same_weight():
    sampler = Sampler(8, 40, "sobol", "float64")
    kinds = EQUATION.residual_classes()
    model = Model(EQUATION, (), tuple(ClassModel(kind, None) for kind in kinds))
    interior, ends = sampler.draw(model, 0, 0, 0)
    assert len(interior.x) == 8
    np.testing.assert_array_equal(np.sort(ends.x.ravel()), [0, 1])
    assert np.sum(ends.scale**2) == pytest.approx(1, rel=1e-12)


@pytest.mark.usefixtures("float64")
def test_half_of_the_points_are_where_the_residual_is():
    problem = Problem(
        lambda u, x: 0 * u(x) + jnp.maximum(x[0] - 0.5, 0),
        Box(x=(0, 1)),
        Dirichlet(0.0),
    )
    kinds = problem.residual_classes()
    model = Model(problem, ("tanh",), tuple(ClassModel(kind, None) for kind in kinds))
    net = start_parameters(np.random.RandomState(0), (1, 3, 1), ())
    found, even = (
        Sampler(16, 4, method, "float64").draw(model, 0, 0, 1, net)[0].x.ravel()
        for method in ("residual", "sobol")
    )
    np.testing.assert_array_equal(found[:8], even[:8])
    assert len(found) == 16
    assert found[8:].min() > 0.5 > even[8:].min()


@pytest.mark.parametrize(
    ("tol", "dtype"),
    [(1e-1, "float64"), (1e-2, "float32"), (1e-3, "float64"), (1e-5, "float64")],
)
def test_a_fit_ends_at_the_error_that_is_asked_for(tol, dtype):
    problem = Problem(
        lambda u, x: d(u, "x", "x") - 4 * jnp.exp(2 * x[0]),
        Box(x=(0, 1)),
        Dirichlet(lambda x: jnp.exp(2 * x[0])),
        exact=lambda x: jnp.exp(2 * x[0]),
    )
    settings = dict(hidden_layer_sizes=(8, 8), dtype=dtype, random_state=0)
    solver = PINNSolver(problem, tol=tol, **settings).fit()
    assert solver.converged_
    assert solver.stop_reason_ == "tol"
    assert solver.relative_error() < 3 * tol
    errors = solver.convergence_log_["relative_error"]
    # It does not go on for long, as each digit takes a few iterations.
    assert np.count_nonzero(errors < tol / 10) <= 3
