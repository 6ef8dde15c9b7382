"""Descents with given penalties over rows in chunks."""

import jax
import numpy as np
import pytest

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.arrays import backend
from sklearn_gn.data import rows_source
from sklearn_gn.optim.solver import Rows
from sklearn_gn.shallow_relu import chunks as chunked
from sklearn_gn.shallow_relu import fitted, joint, sggn
from sklearn_gn.shallow_relu.network import ShallowReLU
from sklearn_gn.shallow_relu.problem import FitOptions
from sklearn_gn.solvers import JointGN, SgGN

N, D = 600, 2


def problem(q, damping=None):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(N, D))
    y = np.abs(x[:, :1] - 0.3) + np.maximum(x @ [[1.0], [0.5]], 0)
    y = np.concatenate([y, np.abs(x[:, 1:])], axis=1)[:, :q]
    weight = 1.0 + np.arange(N) % 2
    rows = Rows(x, y + 0.1 * rng.normal(size=y.shape), weight / weight.sum())
    hyperplanes = rng.normal(size=(5, 1 + D))
    hyperplanes /= np.linalg.norm(hyperplanes[:, 1:], axis=1, keepdims=True)
    net = ShallowReLU(hyperplanes, np.zeros((5, q)), np.zeros(q), np.ones(5, bool))
    options = FitOptions(
        alpha=np.float64(1e-3),
        damping=damping,
        rank=np.int32(1000),
        rank_tol=np.float64(1e-12),
        active_tol=np.float64(1e-10),
        tol=np.float64(1e-10),
        relocations=np.int32(4),
        max_iter=np.int32(100),
        learning_rate=np.float64(0.01),
        seed=0,
    )
    return rows, net, options


@pytest.mark.parametrize(
    ("name", "q"),
    [
        pytest.param("vpgn", 1, marks=pytest.mark.slow),
        ("vpgn", 2),
        ("sggn", 2),
    ],
)
def test_an_iteration_is_that_of_rows_in_memory(name, q):
    rows, net, options = problem(q, damping=1e-3 if q == 2 else None)
    state = chunked.init_descent(rows, net, options)
    module = {"vpgn": joint, "sggn": sggn}[name]
    with backend.scope("float64", None):
        initialise, iterate = map(jax.jit, (sggn.initialise, module.iterate))
        whole, loss = backend.to_numpy(initialise(net, rows, options))
        found = backend.to_numpy(iterate(whole, module.begin(whole), rows, options))
    for a, b in zip(state.net, whole, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)
    assert state.loss == pytest.approx(loss, rel=1e-10)
    after, report = chunked.STEPS[name](rows, state, options)
    assert after.loss < state.loss
    assert after.loss == pytest.approx(found.loss, rel=1e-9)
    assert report.grad_norm == pytest.approx(found.grad_norm, rel=1e-8)
    assert report.step_size == pytest.approx(found.step_size)
    assert report.gain_ratio == pytest.approx(found.gain_ratio, rel=1e-7)
    np.testing.assert_allclose(after.net.hyperplanes, found.net.hyperplanes, atol=1e-7)


@pytest.fixture
def small_sample(monkeypatch):
    monkeypatch.setattr(rows_source, "_SAMPLE_ROWS", 200)
    monkeypatch.setattr(rows_source, "_PART_ROWS", 64)


@pytest.mark.parametrize("solver", [JointGN, SgGN])
@pytest.mark.repeats
def test_data_without_noise_are_recovered(small_sample, solver):
    rows, _, _ = problem(1)
    y = np.abs(rows.x[:, 0] - 0.3) + np.maximum(rows.x @ [1.0, 0.5], 0)
    chunks = [(rows.x[k : k + 99], y[k : k + 99]) for k in range(0, N, 99)]
    model = ShallowReLURegressor(
        6, alpha=0, solver=solver(relocations=2), random_state=0
    )
    model.fit_chunks(chunks)
    assert model.converged_
    assert np.abs(model.predict(rows.x) - y).max() < 1e-9
    assert model.convergence_log_["n_rows"][-1] == N


def test_attributes_are_those_of_all_rows(small_sample):
    rows, _, options = problem(1)
    weight = N * rows.weight
    arrays = rows.x, rows.y[:, 0], weight
    chunks = [tuple(a[k : k + 99] for a in arrays) for k in range(0, N, 99)]
    model = ShallowReLURegressor(
        6, alpha=1e-3, solver=JointGN(relocations=0), tol=1e-3, random_state=0
    )
    model.fit_chunks(chunks)
    net, scaling = model._network
    scaled = Rows(scaling.x(rows.x), scaling.y(rows.y), rows.weight)
    whole = fitted.fitted_attributes(
        net, scaled, scaling, options, n_effective=weight.sum()
    )
    for name in ("loss_", "noise_std_", "mass_spectrum_"):
        found = np.squeeze(getattr(model, name))
        np.testing.assert_allclose(found, np.squeeze(whole[name]), rtol=1e-8)
    largest = whole["gram_spectrum_"][0]
    np.testing.assert_allclose(
        model.gram_spectrum_, whole["gram_spectrum_"], atol=1e-10 * largest
    )
    _, std = model.predict(rows.x, return_std=True)
    expected = whole["_posterior"].standard_errors(scaled.x)
    expected = np.squeeze(expected * scaling.y_scale)
    np.testing.assert_allclose(np.squeeze(std), expected, rtol=1e-5)
