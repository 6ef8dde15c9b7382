"""Networks and points that find their size."""

import itertools
import time
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn import PINNSolver
from sklearn_gn.pde import Box, Dirichlet, Problem, d
from sklearn_gn.pinn import control, fitting, iteration
from sklearn_gn.pinn.control import Clock, Control, Losses
from sklearn_gn.pinn.model import (
    ClassModel,
    Model,
    n_weights,
    network,
    start_parameters,
    wider,
)
from sklearn_gn.pinn.observation_weight import Observed, Weighing
from sklearn_gn.pinn.points import Sampler

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


def level(falls, before=np.inf):
    return control.Level(control.Sizes(200, 80), falls=tuple(falls), before=before)


@pytest.mark.parametrize(
    ("falls", "before", "loss", "then"),
    [
        (np.geomspace(1e-7, 1e-10, 13), np.inf, 1e-10, None),  # it falls
        (np.full(40, 1e-7), np.inf, 1e-7, None),  # often flat for a while
        (np.full(41, 1e-7), np.inf, 1e-7, "network"),
        (np.full(13, 1e-7), np.inf, 1e-9, "points"),
        (np.full(30, 1e-3), np.inf, 1e-3, None),
        (np.full(31, 1e-3), np.inf, 1e-3, "network"),  # sooner, as nothing is solved
        (np.full(13, 1e-3), np.inf, 1e-5, "points"),  # which does not get better
        (np.full(41, 1e-8), 1e-8, 1e-8, "end"),  # the last growth has not paid
        (np.full(13, 1e-17), np.inf, 1e-17, "end"),  # nothing is left to gain
    ],
)
def test_what_grows_is_what_is_missing(falls, before, loss, then):
    net = start_parameters(np.random.RandomState(0), (1, 20, 20, 1), ())
    rules = control.Rules(network=True, points=True)
    now = Control(level=level(falls[:-1], before), first_fresh=1.0)

    def observed(rules, **seconds):
        found = control.observed(
            now._replace(clock=Clock(**seconds)), rules, loss, falls[-1], net
        )
        return found.next, found.level.ended

    end = then == "end"
    assert observed(rules) == (None if end else then, end)
    assert observed(rules._replace(deadline=0.0)) == (None, end)
    # Thirty iterations at the next size must have room, too.
    tight = rules._replace(deadline=time.perf_counter() + 59)
    assert observed(tight, steady=1.0) == (None, end)
    given = control.Rules(network=False, points=True)
    points = then if then == "points" else None
    assert observed(given) == (points, then in ("end", "network"))


@pytest.mark.parametrize(
    ("width", "lowest", "loss", "then"),
    [
        (30, 0.9e-3, 1e-3, True),
        (30, 0.4e-3, 1e-3, False),  # the larger network has gained
        (
            30,
            0.9e-3,
            1e-5,
            False,
        ),  # small at the points of training: others are missing
        (20, 0.9e-3, 1e-3, False),  # only the points have grown
    ],
)
def test_a_larger_network_that_gains_nothing_is_in_a_false_minimum(
    width, lowest, loss, then
):
    nets = [
        start_parameters(np.random.RandomState(0), (1, n, n, 1), ())
        for n in (20, width)
    ]
    problem = SimpleNamespace(unknown={})
    model = SimpleNamespace(problem=problem, features=None, classes=())
    settings = SimpleNamespace(
        untrained=nets[0],
        models=[model],
        observed=None,
        steps=SimpleNamespace(solver=SimpleNamespace(name="dngd")),
    )
    state = SimpleNamespace(net=nets[1], stage=0)
    step = SimpleNamespace(class_losses=np.array([loss, 0.0]))
    flat = level([lowest], before=1e-3)
    now = Control(level=flat, first_fresh=1.0)
    late = now._replace(level=flat._replace(late=True))
    for found in (now._replace(next="network"), late):
        assert control._begins_anew(found, state, settings, step, None) == then
    assert not control._begins_anew(now, state, settings, step, None)


@pytest.mark.parametrize(
    ("estimate", "changes", "larger"),
    [
        (2e-4, {}, True),
        (5e-5, {}, False),
        (2e-4, {"network": False}, False),
        (2e-4, {"deadline": 0.0}, False),
    ],
)
def test_a_network_that_is_not_accurate_grows_after_all(
    monkeypatch, estimate, changes, larger
):
    net = start_parameters(np.random.RandomState(0), (1, 20, 20, 1), ())
    rules = control.Rules(network=True, points=True)._replace(**changes)
    ended = level([1e-8] * 13)._replace(ended=True)
    monkeypatch.setattr(control, "relative_error_estimate", lambda *_, **__: estimate)
    problem = SimpleNamespace(unknown={})
    settings = SimpleNamespace(
        growth=rules, dtype=np.dtype(float), models=[SimpleNamespace(problem=problem)]
    )
    state = iteration.PINNState(net, 1e-8, ())
    points = iteration.FixedPoints(None, (), None)

    def has_to_grow(stop, lowest=1e-8):
        now = Control(level=ended._replace(falls=(lowest,)), first_fresh=1.0)
        return control.has_to_grow(points, state, settings, now, stop)

    assert has_to_grow("tol") == larger
    # An earlier network has solved the equation, and this one does not.
    assert has_to_grow("stalled") == (changes == {})
    assert not has_to_grow("stalled", lowest=1e-5)
    problem.unknown = {"k": None}
    monkeypatch.setattr(control, "largest_error_estimate", lambda *_: 3 * estimate)
    assert has_to_grow("tol") == (changes == {})


@pytest.mark.parametrize(
    ("estimate", "loss", "changes", "then", "ends"),
    [
        (5e-8, 1e-11, {}, "network", True),
        (5e-8, 1e-11, {}, "points", True),
        (5e-8, 1e-11, {}, None, False),  # it still falls
        (5e-8, 1e-11, {"falls": (1e-11,) * 13}, None, True),
        (5e-8, 1e-11, {"falls": (1e-11,) * 12}, None, False),
        (5e-8, 1e-11, {"falls": (1e-11,) * 13, "promising": 9e-12}, None, False),
        (5e-8, 1e-11, {"promising": 9e-12}, "network", True),
        (5e-8, 1e-11, {"tol": 0.0}, "network", False),  # all digits are wanted
        (5e-8, 1e-9, {}, "network", False),  # too early to compile the estimate
        (2e-7, 1e-11, {}, "network", False),
        (np.nan, 1e-11, {}, "network", False),
    ],
)
def test_a_fit_with_a_small_error_ends(
    monkeypatch, estimate, loss, changes, then, ends
):
    asked = []
    monkeypatch.setattr(
        control, "relative_error_estimate", lambda *_, **__: asked.append(1) or estimate
    )
    changes = dict(changes)
    settings = SimpleNamespace(
        tol=changes.pop("tol", 1e-3),
        dtype=np.dtype(float),
        models=[SimpleNamespace(problem=SimpleNamespace(unknown={}))],
    )
    state = iteration.PINNState(None, loss, ())
    before = level([loss])._replace(**changes)
    now = Control(level=before, next=then, first_fresh=1.0)
    points = iteration.FixedPoints(None, (), None)
    losses = Losses(loss, loss, loss, 0.0, True)
    after, accurate = control.ended_if_accurate(points, state, settings, now, losses)
    assert accurate == ends
    assert (after.next, after.level.ended) == (None if ends else then, ends)
    if not asked or ends:
        assert after.level.promising == before.promising
    elif np.isnan(estimate):
        assert after.level.promising == 0
    else:  # asked again where an error like the root of the loss is small
        assert after.level.promising == pytest.approx(loss * (1e-7 / estimate) ** 2)


@pytest.mark.parametrize(
    ("estimate", "changes", "ends"),
    [
        (5e-6, {}, True),
        (2e-5, {}, False),
        # The observations have noise, or may have some.
        (5e-6, {"weight": 0.1, "next": 0.1}, False),
        (5e-6, {"next": 0.1}, False),
        (5e-6, {"waits": True}, False),
        (5e-6, {"has_functions": True}, False),
        (5e-6, {"observed": None}, False),
    ],
)
def test_a_fit_of_exact_observations_ends_with_few_digits_more(
    monkeypatch, estimate, changes, ends
):
    monkeypatch.setattr(control, "largest_error_estimate", lambda *_: estimate)
    changes = dict(changes)
    settings = SimpleNamespace(
        tol=1e-3,
        dtype=np.dtype(float),
        models=[SimpleNamespace(problem=SimpleNamespace(unknown={"k": None}))],
        observed=changes.pop(
            "observed", Observed(10, 1.0, changes.pop("has_functions", False))
        ),
    )
    state = iteration.PINNState(None, 1e-7, ())
    points = iteration.FixedPoints("observations", (), None)
    weighing = Weighing(**changes)
    now = Control(1.0, level=level([1e-7]), next="network", weighing=weighing)
    losses = Losses(1e-7, 1e-7, 1e-7, 0.0, True)
    after, accurate = control.ended_if_accurate(points, state, settings, now, losses)
    assert (accurate, after.level.ended) == (ends, ends)


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
    now = control.Level(control.points_for(classes, n_weights(net)))
    for expected, larger in itertools.pairwise(sizes):
        assert now.sizes == expected
        now = now._replace(falls=(1e-3,) * 12)
        found = control.observed(Control(1.0, level=now), rules, 1e-5, 1e-3, net)
        now = found.level
        assert now.ended == (larger == expected)
        if not now.ended:
            now, same = control.grown(now, found.next, rules, classes, net, None)
            assert same is net


def test_points_are_as_many_as_the_residuals_that_weights_need():
    classes = EQUATION.residual_classes()
    sizes = control.points_for(classes, 1000, 3.0)
    assert sizes == (2100, 900)
    assert control.points_for(classes[:1], 1000, 3.0).n_interior == 3000
    assert control.points_for(classes, 2_000_000) == (500, 200)


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
