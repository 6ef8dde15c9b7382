"""Windows of time."""

import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from benchmarks._gates import practitioners
from sklearn_gn import PINNSolver
from sklearn_gn.pde import (
    Box,
    Condition,
    Dirichlet,
    Initial,
    Interval,
    Problem,
    Unknown,
    d,
    integral,
)
from sklearn_gn.pinn import fitting, windows
from sklearn_gn.pinn.iteration import Sampler
from sklearn_gn.pinn.model import network, start_parameters
from sklearn_gn.pinn.residuals import class_residuals
from sklearn_gn.pinn.windows import Pieces, TimeMarching
from sklearn_gn.solvers import DNGD

TIME = Interval(2, 6)
START = Initial(1.0)
END = Dirichlet(0.0, on="t=max")


def decay(u, x):
    return d(u, "t")(x) + u(x)


def decay_with(u, x, k):
    return d(u, "t")(x) + k * u(x)


def with_memory(u, x):
    return d(u, "t")(x) + integral(u, "t", 2, lambda x: x[0])(x)


def heat(u, x):
    return d(u, "t")(x) - d(u, "x", "x")(x)


def model_of(problem):
    net = start_parameters(
        np.random.RandomState(0),
        (problem.domain.dim, 3, 3, 1),
        problem.unknown.values(),
    )
    (model,) = fitting.models(
        [problem],
        ("tanh", "tanh"),
        None,
        net.extra,
        equation=True,
        observed=None,
        device=None,
    )
    return windows.with_windows(model, False), net


@pytest.mark.parametrize(
    ("possible", "residual", "conditions", "more"),
    [
        (True, decay, [START], {}),
        (True, decay, [START, Dirichlet(0.0, on="t=min")], {}),
        (False, decay, [], {}),
        (False, decay, [Dirichlet(0.0, on=("t=min", "t=max"))], {}),
        (False, decay, [START, Condition(decay, on=[[3.0]])], {}),
        (False, decay, [START], {"transform": lambda x, u: x[0] * u}),
        (False, decay_with, [START], {"coefficients": {"k": Unknown(1.0)}}),
        (False, with_memory, [START], {}),  # takes u at other times
        (True, heat, [START], {"domain": Box(x=(0, 1), t=(2, 6))}),
        (True, heat, [START, Dirichlet(0.0)], {"domain": Box(x=(0, 1), t=(2, 6))}),
        (False, heat, [Dirichlet(0.0)], {"domain": Box(x=(0, 1), t=(2, 6))}),
        (False, heat, [START, END], {"domain": Box(x=(0, 1), t=(2, 6))}),
    ],
)
def test_time_is_cut_where_a_problem_goes_on_from_a_start(
    possible, residual, conditions, more
):
    settings = {"domain": TIME, "conditions": conditions, **more}
    model, _ = model_of(Problem(residual, **settings))
    starts = [isinstance(kind.function, windows.SinceBefore) for kind in model.classes]
    assert any(starts) == possible


@pytest.mark.usefixtures("float64")
def test_a_window_begins_with_the_solution_of_the_one_before():
    problem = Problem(decay, TIME, START)
    model, net = model_of(problem)
    sampler = Sampler(30, 20, "sobol", "float64")
    whole = sampler.draw(model, 0, 0, 0)
    march = TimeMarching(
        0.25, 0.75, done=Pieces(np.array([0.25]), np.array([1e-12]), (net,))
    )
    interior, start = windows.within(model, whole, march)
    assert interior.x.min() > 3
    assert interior.x.max() < 5
    assert np.ptp(interior.x) > 1.8
    assert np.all(start.x == 3.0)
    values = class_residuals(model, model.classes[1], net, start)
    np.testing.assert_allclose(values, 0, atol=1e-12)  # u is u_before
    np.testing.assert_allclose(interior.scale, whole[0].scale / 2)
    assert windows.within(model, whole, TimeMarching()) is whole


@pytest.mark.usefixtures("float64")
def test_a_window_that_is_cut_begins_where_the_one_before_ends():
    model, before = model_of(Problem(decay, TIME, START))
    fresh = Sampler(30, 20, "sobol", "float64").draw(model, 0, 0, 0)
    march = TimeMarching(
        0.25,
        0.75,
        Pieces(np.array([0.25]), np.array([1e-12]), (before,)),
        next_stop=0.5,
    )
    rng = np.random.RandomState(1)
    march, net = windows.moved_on(march, 1.0, model, before, fresh, rng)
    at = jax.jit(lambda net: network(model, net, np.array([3.0])))
    value = np.asarray(at(before))
    np.testing.assert_allclose(at(net), value, rtol=1e-10)
    assert np.abs(net.layers[0] - before.layers[0]).max() > 0.1
    # A constant u has the residual u, over a quarter of the time.
    assert march.unit == pytest.approx(0.5 * (value[0] / 4) ** 2, rel=1e-10)


@pytest.mark.parametrize(
    ("march", "falls", "fresh", "then"),
    [
        (TimeMarching(), (1e-2,) * 11, 1e-2, None),
        (TimeMarching(), (1e-2,) * 12, 1e-2, 0.5),
        (TimeMarching(), (1e-11,) * 12, 1e-11, None),  # solved well: the network grows
        (TimeMarching(0.25, 0.5), (1e-2,) * 12, 1e-2, 0.375),
        (TimeMarching(0.25, 0.5), (1e-13,), 1e-13, 1.0),  # quickly: twice as long
        (TimeMarching(0.25, 0.5), (1e-9,) * 17 + (1e-13,), 1e-13, 0.75),
        (TimeMarching(0.5, 1.0), (1e-11,) * 12, 1e-11, "end"),
        (TimeMarching(0.5, 1.0), (1e-11,) * 12, 2e-12, None),  # it falls
        (TimeMarching(0.5, 1.0), (1e-11,) * 3, 1e-12, "end"),  # as far as asked for
        (TimeMarching(0.5, 1.0), (1e-8,) * 11, 1e-8, None),
        (TimeMarching(0.5, 1.0, unit=1e3), (1e-8,) * 12, 1e-8, "end"),
        (TimeMarching(0.5, 0.5 + 2**-16), (1e-2,) * 12, 1e-2, 0.5 + 2**-15),
    ],
)
def test_windows_go_on_where_they_are_solved_and_are_cut_where_not(
    march, falls, fresh, then
):
    found = windows.observed(march, (*falls, fresh), 1.0, 1e-12, lambda: True)
    assert found.ended == (then == "end")
    assert found.next_stop == (None if then == "end" else then)


def test_windows_that_are_solved_are_kept():
    """Of u' = u^2, whose solution 1 / (1 - t) ends before the time does."""

    def explosion(u, t):
        return d(u, "t")(t) - u(t) ** 2

    problem = Problem(explosion, Interval(0, 2), [Initial(1.0)])
    sizes = {"n_interior": 60, "n_boundary": 1}
    solver = PINNSolver(problem, **sizes, random_state=0, max_iter=80)
    with pytest.warns(ConvergenceWarning, match=r"solved up to t = 0\.[5-9]"):
        solver.fit()
    t = np.linspace(0, 0.5, 11)
    np.testing.assert_allclose(solver.predict(t[:, None]), 1 / (1 - t), rtol=1e-3)
    assert solver.fresh_loss_ == solver.convergence_log_["val_loss"].min()


@pytest.mark.slow
def test_a_fit_in_windows(monkeypatch):
    observed = windows.observed

    def cut_at_once(*arguments):
        found = observed(*arguments)
        return found if found.active else found._replace(next_stop=0.5, uncut=1.0)

    monkeypatch.setattr(windows, "observed", cut_at_once)
    monkeypatch.setattr(fitting, "FIRST_WIDTHS", (8, 8))
    problem = Problem(
        lambda u, x: (d(u["a"], "t")(x) - u["b"](x), d(u["b"], "t")(x) + u["a"](x)),
        Interval(0, 6),
        [Initial([0.0, 1.0])],
        outputs=("a", "b"),
        exact=lambda x: jnp.stack([jnp.sin(x[0]), jnp.cos(x[0])]),
    )
    solver = PINNSolver(problem, random_state=0, max_iter=80)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.fit()
    assert len(solver.window_ends_) > 1
    assert solver.window_ends_[-1] == 6
    ends = solver.convergence_log_["window_end"]
    assert ends[0] == ends[-1] == 6  # all time, and the last window
    assert set(solver.window_ends_) <= set(ends)
    assert solver.converged_
    assert solver.stop_reason_ == "tol"
    assert solver.relative_error() < 1e-4
    # The equation is linear, and so is what an error of one window does to the next.
    assert solver.error_estimate_ == pytest.approx(solver.relative_error(), rel=0.1)
    t = np.linspace(0, 6, 25)[:, None]
    np.testing.assert_allclose(
        solver.derivative(t, "t")[:, 0], np.cos(t[:, 0]), atol=1e-3
    )
    assert np.abs(solver.residual(t)).max() < 1e-2
    again = pickle.loads(pickle.dumps(solver._fitted.net))
    np.testing.assert_array_equal(again.ends(problem.domain), solver.window_ends_)
    with pytest.raises(ValueError, match="windows of time"):
        solver.predict(t, return_std=True)
    before = solver.fresh_loss_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.set_params(warm_start=True, max_iter=2).fit()
    assert solver.fresh_loss_ <= before * (1 + 1e-9)
    assert solver.n_iter_ <= 2


def test_a_fit_in_windows_of_space_and_time(monkeypatch):
    observed = windows.observed

    def cut_at_once(*arguments):
        found = observed(*arguments)
        return found if found.active else found._replace(next_stop=0.5, uncut=1.0)

    def exact(x):
        return jnp.exp(-x[1] / 3) * jnp.sin(x[0])

    monkeypatch.setattr(windows, "observed", cut_at_once)
    monkeypatch.setattr(fitting, "FIRST_WIDTHS", (8, 8))
    problem = Problem(
        lambda u, x: d(u, "t")(x) - d(u, "x", "x")(x) / 3,
        Box(x=(0, np.pi), t=(1, 4)),
        [Initial(lambda x: np.exp(-1 / 3) * jnp.sin(x[0])), Dirichlet(0.0)],
        exact=exact,
    )
    sizes = {"n_interior": 200, "n_boundary": 80}
    plain = DNGD(enrichment=None)
    solver = PINNSolver(problem, **sizes, solver=plain, random_state=0, max_iter=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.fit()
    assert solver.window_ends_.tolist() == [2.5, 4]
    assert solver.relative_error() < 1e-3
    assert solver.error_estimate_ == pytest.approx(solver.relative_error(), rel=0.5)
    # The second window goes on from the values of the first.
    x = np.linspace(0, np.pi, 11)
    before, after = (np.column_stack([x, 0 * x + t]) for t in (2.5, 2.5 + 1e-9))
    np.testing.assert_allclose(solver.predict(before), solver.predict(after), atol=1e-3)
    slope = solver.derivative(after, "t")
    np.testing.assert_allclose(slope, -np.sin(x) * np.exp(-2.5 / 3) / 3, atol=1e-2)


@pytest.mark.slow
def test_chaos_is_followed_in_windows_where_one_network_loses_track():
    """The equation of Kuramoto and Sivashinsky, against a spectral solution."""
    demo = practitioners.unstable_flame()
    solver = PINNSolver(demo.problem, random_state=0).fit()
    assert len(solver.window_ends_) > 2
    error = solver.predict(demo.points) - demo.values[:, 0]
    relative = np.linalg.norm(error) / np.linalg.norm(demo.values)
    assert relative < 1e-4
    assert relative / 3 <= solver.error_estimate_ <= 3 * relative
