"""Default fits of tables on JAX: those of NumPy, by the same formulas.

A private switch lets JAX compute on a CPU what NumPy computes there. Fits take the same
iterations, and differ by rounding errors only.
"""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone

from sklearn_gn import ShallowReLURegressor, VarProNetClassifier, VarProNetRegressor
from sklearn_gn.bayes import device_rows, evidence, evidence_gn
from sklearn_gn.bayes.layers import Layers
from sklearn_gn.optim.solver import Rows
from tests._libraries import forced_jax
from tests.processes import output, start


def data(n_targets=1, n_rows=150, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 4))
    y = np.abs(X[:, :1]) + X[:, 1:2] * X[:, 2:3] * np.arange(n_targets)
    y = y + np.sin(X[:, :1]) + 0.2 * rng.normal(size=(n_rows, n_targets))
    return X, y[:, 0] if n_targets == 1 else y


# --- one evaluation ------------------------------------------------------------------


def network(sizes, activations, n_values, loss, features=None, m=1100):
    features = tuple(range(sizes[0])) if features is None else features
    model = Layers(sizes, activations, n_values, loss, features)
    rng = np.random.default_rng(1)
    theta = rng.standard_normal(len(model.groups())) / 2
    x, weight = rng.standard_normal((m, sizes[0])), rng.uniform(size=m)
    y = rng.standard_normal((m, n_values))
    if loss == "cross_entropy":
        k = max(n_values, 2)
        y = np.eye(k)[rng.integers(k, size=m)]
    return model, theta, Rows(x, y, weight / weight.sum())


@pytest.mark.parametrize(
    "problem",
    [
        network((5, 6), ("relu",), 1, "squared", features=(0, 3)),
        network((5, 6), ("tanh",), 3, "squared"),
        network((3, 4, 3), ("relu", "silu"), 2, "squared", features=(1, 2)),
        network((3, 4, 3), ("gelu", "softplus"), 4, "squared"),
        network((5, 4), ("sigmoid",), 1, "cross_entropy"),
        network((5, 4), ("relu",), 3, "cross_entropy"),
    ],
)
@pytest.mark.repeats
def test_sums_factor_and_curvature_are_those_of_numpy(problem):
    model, theta, rows = problem
    expected = evidence_gn.sums_at(model, theta, rows)
    with forced_jax():
        on_device = model.rows_on(None, rows)
    found = evidence_gn.sums_at(model, theta, on_device)
    gram, size = found.gram, np.abs(expected.gram).max()
    assert_allclose(gram.numpy(), expected.gram, atol=1e-10 * size)
    assert_allclose(gram.diagonal(), np.diag(expected.gram), rtol=1e-10)
    rhs = expected.negative_gradient
    assert_allclose(found.negative_gradient, rhs, atol=1e-10 * abs(rhs).max())
    assert_allclose(found.error, expected.error, rtol=1e-10)
    error = evidence_gn.error_at(model, theta, on_device)
    assert_allclose(error, expected.error, rtol=1e-10)
    vectors = np.random.default_rng(0).standard_normal((len(theta), 2))
    assert_allclose(gram @ vectors, expected.gram @ vectors, atol=1e-10 * size)
    # A part of rows stays where all are computed with.
    some, share = device_rows.DeviceRows.on("cpu", rows).every(3)
    assert some.device == "cpu"
    assert_allclose(some.weight * share, rows.weight[::3], rtol=1e-12)
    groups, alpha = model.groups(), np.full(model.n_groups, 0.7)
    precision = evidence.prior_precision(groups, alpha)
    steps = [
        evidence_gn._solver(sums.gram, precision, 50.0, None, None)(0.1, rhs)
        for sums in (found, expected)
    ]
    assert_allclose(*steps, atol=1e-10 * np.abs(steps[1]).max())
    net = evidence_gn.RegularisedLayers(theta, alpha, 2.0, None, 0.0, model)
    one, other = (
        evidence_gn.at_penalties(model, net, sums, 25.0)[0]
        for sums in (found, expected)
    )
    assert_allclose(one.gamma, other.gamma, rtol=1e-10, atol=1e-10)
    assert_allclose(one.log_det, other.log_det, rtol=1e-10)
    assert one.n_free == other.n_free


def test_a_matrix_without_a_factor_gives_no_step():
    model, theta, rows = network((5, 6), ("tanh",), 1, "squared")
    with forced_jax():
        sums = evidence_gn.sums_at(model, theta, model.rows_on(None, rows))
    solve = evidence_gn._solver(sums.gram, np.full(len(theta), -1e3), 1.0, None, None)
    assert np.isnan(solve(0.0, sums.negative_gradient)).all()


# --- whole fits ----------------------------------------------------------------------


def classes(k):
    X, y = data()
    return X, np.digitize(y, np.quantile(y, np.arange(1, k) / k))


WEIGHT = np.random.default_rng(2).uniform(0.5, 2, 150)


@pytest.mark.parametrize(
    ("model", "given", "weight"),
    [
        (ShallowReLURegressor(), data(), None),
        (ShallowReLURegressor(), data(2), WEIGHT),
        (ShallowReLURegressor(loss="huber"), data(), None),
        (VarProNetRegressor(max_iter=30), data(), WEIGHT),
        pytest.param(
            VarProNetRegressor(max_iter=30), data(3), None, marks=pytest.mark.slow
        ),
        pytest.param(
            VarProNetClassifier(max_iter=15), classes(2), WEIGHT, marks=pytest.mark.slow
        ),
        (VarProNetClassifier(max_iter=15), classes(3), None),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_default_fits_are_those_of_numpy(model, given, weight):
    X, y = given
    model = model.set_params(random_state=0)
    by_numpy = clone(model).fit(X, y, weight)
    with forced_jax():
        by_jax = clone(model).fit(X, y, weight)
    assert by_jax.n_iter_ == by_numpy.n_iter_
    for name in set(by_numpy.alpha_):
        assert_allclose(by_jax.alpha_[name], by_numpy.alpha_[name], rtol=1e-6)
    assert_allclose(by_jax.log_evidence_, by_numpy.log_evidence_, rtol=1e-8)
    if isinstance(model, VarProNetClassifier):
        found, expected = (m.predict_proba(X) for m in (by_jax, by_numpy))
        assert_allclose(found, expected, atol=1e-8)
        return
    found, expected = (m.predict(X, return_std=True) for m in (by_jax, by_numpy))
    assert_allclose(found[0], expected[0], atol=1e-8)
    assert_allclose(found[1], expected[1], rtol=1e-6)
    assert_allclose(by_jax.noise_std_, by_numpy.noise_std_, rtol=1e-8)
    assert_allclose(by_jax.gram_spectrum_, by_numpy.gram_spectrum_, atol=1e-8)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_tables_of_similar_length_share_compiled_functions(compiled):
    model = VarProNetRegressor(n_init=1, max_iter=2, random_state=0)
    with forced_jax():
        for n_rows in (1000, 900):
            compiled.clear()
            model.fit(*data(n_rows=n_rows))
            assert (compiled == []) == (n_rows < 1000)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_rows_in_chunks_are_summed_on_the_device(chunk_limits):
    chunk_limits(sample=60, part=64)
    X, y = data()
    model = ShallowReLURegressor(4, n_init=1, random_state=0)
    chunks = [(X[:70], y[:70]), (X[70:], y[70:])]
    by_numpy = clone(model).fit_chunks(chunks)
    with forced_jax():
        by_jax = clone(model).fit_chunks(chunks)
    assert_allclose(by_jax.predict(X), by_numpy.predict(X), atol=1e-8)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_does_not_use_the_device_says_so():
    X, y = data()
    message = r"device=\[0\]: NumPy fits a network of .* parameters and 8 rows on the"
    with pytest.warns(UserWarning, match=message):
        ShallowReLURegressor(device=[0], max_iter=2).fit(X[:8], y[:8])
    with pytest.warns(UserWarning, match="NumPy fits one feature on the CPU"):
        ShallowReLURegressor(device=[0], max_iter=2).fit(X[:, :1], y)
    with pytest.warns(UserWarning, match="NumPy fits wide members by mini-batches"):
        VarProNetClassifier(device=[0], max_iter=2).fit(X, y > 0)


SEVERAL = """
import json, warnings
import numpy as np
from sklearn_gn import ShallowReLURegressor, VarProNetClassifier, VarProNetRegressor

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
X = rng.normal(size=(201, 4))
y = np.abs(X[:, 0]) + X[:, 1] * X[:, 2] + 0.2 * rng.normal(size=201)
models = {
    "relu": ShallowReLURegressor(max_iter=20),
    "committee": VarProNetRegressor(max_iter=20),
    "classes": VarProNetClassifier(max_iter=8),
}
answer = {}
for name, model in models.items():
    target = np.digitize(y, [0.5, 1.5]) if name == "classes" else y
    found = []
    for device in (None, [0], [0, 1, 2]):
        model.set_params(device=device, random_state=0).fit(X, target)
        values = model.predict_proba(X) if name == "classes" else model.predict(X)
        found.append(values)
    answer[name] = [float(np.max(np.abs(a - found[0]))) for a in found[1:]]
print(json.dumps(answer))
"""


@pytest.mark.slow
def test_several_devices_give_what_numpy_gives():
    flags = "--xla_force_host_platform_device_count=3"
    answer = json.loads(output(start(SEVERAL, flags=flags)))
    for name, differences in answer.items():
        assert max(differences) < 1e-8, (name, differences)
