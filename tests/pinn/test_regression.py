"""Plain regression whose penalties the evidence chooses, against dense formulas."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import t as student
from sklearn.base import clone

from sklearn_gn import PINNSolver
from sklearn_gn.callbacks import Checkpoint

EPS = 1e-30


def smooth(q=1, m=60):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (m, 2))
    y = np.sin(3 * X[:, :1]) + X[:, 1:] ** np.arange(1, 1 + q)
    return X, y + 0.1 * rng.standard_normal(y.shape)


@pytest.fixture(scope="module", params=[1, 2])
def fitted(request):
    X, y = smooth(q=request.param)
    X = (X - X.mean(axis=0)) / X.std(axis=0)  # the units of the fit
    y = (y - y.mean(axis=0)) / np.sqrt(np.mean(y.var(axis=0)))
    model = PINNSolver(hidden_layer_sizes=(3, 2), random_state=0).fit(X, y)
    return model, X, y


def network(layers, x):
    """The network, written once more, of a list of (weights, biases)."""
    for k, (coef, intercept) in enumerate(layers):
        x = x @ coef + intercept
        x = np.tanh(x) if k + 1 < len(layers) else x
    return x


def jacobian(layers, x):
    """Complex steps in the weights and biases, which are exact; of shape (m, q, P)."""
    columns = []
    for k, pair in enumerate(layers):
        for part in range(2):
            for index in np.ndindex(pair[part].shape):
                moved = [[a.astype(complex) for a in old] for old in layers]
                moved[k][part][index] += 1j * EPS
                columns.append(network(moved, x).imag / EPS)
    return np.stack(columns, axis=-1)


def prior(model):
    """Penalty of each weight and bias, in the order of the Jacobian; 0 if free."""
    alpha, found = model.alpha_, []
    last = len(model.coefs_) - 1
    for k, coef in enumerate(model.coefs_):
        own = alpha["weights"][:, None] if k == 0 else alpha["layers"][k - 1 : k]
        own = alpha["output"] if k == last else own
        found.append(np.ravel(np.broadcast_to(own, coef.shape)))
        found.append(np.full(coef.shape[1], 0.0 if k == last else alpha["bias"]))
    return np.concatenate(found)


def test_evidence_is_that_of_a_dense_computation(fitted):
    model, X, y = fitted
    layers = list(zip(model.coefs_, model.intercepts_, strict=True))
    theta = np.concatenate([np.ravel(a) for pair in layers for a in pair])
    n, q = y.shape
    beta = model.noise_std_**-2
    penalty = beta * n * prior(model)
    J = jacobian(layers, X)
    hessian = beta * np.einsum("iqp,iqr->pr", J, J) + np.diag(penalty)
    inverse = np.linalg.inv(hessian)
    gamma = len(theta) - np.sum(penalty * np.diag(inverse))
    # The matrix is factored with a shift of 1e-13 times its trace.
    assert model.n_effective_parameters_ == pytest.approx(gamma, rel=1e-5)
    misfit = np.sum((y - network(layers, X)) ** 2)
    energy = beta / 2 * misfit + penalty @ theta**2 / 2
    value = -energy - np.linalg.slogdet(hessian)[1] / 2
    value += np.sum(np.log(penalty[penalty > 0])) / 2
    value += n * q / 2 * np.log(beta / (2 * np.pi))
    assert model.log_evidence_ == pytest.approx(value, rel=1e-5)
    assert model.loss_ == pytest.approx(energy / beta / n, rel=1e-9)
    at, std = model.predict(X[:5], return_std=True)
    assert_allclose(at, network(layers, X[:5]), rtol=1e-9)
    variance = np.einsum("iqp,pr,iqr->iq", J[:5], inverse, J[:5])
    assert_allclose(std, np.sqrt(variance), rtol=1e-5)


def test_penalties_and_noise_are_at_the_fixed_point_of_the_evidence(fitted):
    model, X, y = fitted
    model = clone(model).set_params(tol=1e-12).fit(X, y)
    n, q = y.shape
    misfit = np.sum((y - model.predict(X)) ** 2)
    freedom = n * q - model.n_effective_parameters_
    assert model.noise_std_ == pytest.approx(np.sqrt(misfit / freedom), rel=0.02)
    mean, std = model.predict(X[:5], return_std=True)
    lower, upper = model.predict_interval(X[:5])
    width = student.ppf(0.975, freedom) * np.hypot(std, model.noise_std_)
    assert_allclose((mean - lower, upper - mean), (width, width), rtol=1e-9)
    assert model.noise_std_ == pytest.approx(
        np.sqrt(np.mean((0.1 / smooth(q=q)[1].std(axis=0)) ** 2)), rel=0.3
    )


def test_a_number_for_the_weight_is_plain_least_squares(fitted):
    model, X, y = fitted
    plain = clone(model).set_params(observation_weight=1.0, max_iter=1)
    with pytest.warns(UserWarning, match="max_iter"):
        plain.fit(X, y)
    assert plain.alpha_ == {}
    assert np.isnan(plain.log_evidence_)
    assert "log_evidence" in model.convergence_log_
    assert "log_evidence" not in plain.convergence_log_


def test_saved_models_keep_their_error_bars(fitted):
    model, X, _ = fitted
    loaded = pickle.loads(pickle.dumps(model))
    for a, b in zip(*(m.predict(X, True) for m in (model, loaded)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_row_of_more_features_determines_a_line():
    model = PINNSolver(hidden_layer_sizes=()).fit([[1.0, 2.0, 3.0]], [4.0])
    np.testing.assert_allclose(model.predict([[1.0, 2.0, 3.0]]), 4.0)


def test_far_rows_of_hardly_any_weight_stay_in_single_precision():
    X, y = np.arange(3.0)[:, None], np.array([1.0, 2.0, 1e150])
    model = PINNSolver(hidden_layer_sizes=(), dtype="float32")
    model.fit(X, y, sample_weight=[1.0, 1.0, 1e-300])
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.filterwarnings("ignore:.*max_iter:sklearn.exceptions.ConvergenceWarning")
def test_rows_set_aside_do_not_depend_on_their_order():
    X, y = smooth()
    words = {"early_stopping": True, "max_iter": 4, "random_state": 0}
    solver = PINNSolver(hidden_layer_sizes=(3, 2), **words)
    order = np.random.default_rng(1).permutation(len(X))
    first, second = (
        clone(solver).fit(X[rows], y[rows]) for rows in (np.arange(len(X)), order)
    )
    assert np.isfinite(first.convergence_log_["val_loss"]).all()
    assert_allclose(second.predict(X), first.predict(X), rtol=1e-8)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_is_resumed_bit_for_bit(tmp_path):
    X, y = smooth()
    model = PINNSolver(hidden_layer_sizes=(3, 2), random_state=0, max_iter=8)
    whole, file = clone(model).fit(X, y), Checkpoint(tmp_path / "fit.ckpt")
    first = clone(model).set_callbacks(file).set_params(max_iter=4).fit(X, y)
    resumed = clone(model).set_callbacks(file).fit(X, y)
    np.testing.assert_array_equal(resumed.predict(X), whole.predict(X))
    times = [fit.convergence_log_["time"][:4] for fit in (first, resumed)]
    np.testing.assert_array_equal(*times)
