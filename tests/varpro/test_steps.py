"""Single steps of Gauss-Newton against a dense oracle, by attributes only."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge

from sklearn_gn import VarProNetClassifier, VarProNetRegressor
from sklearn_gn.networks import MLP, NeuralODE
from sklearn_gn.solvers import FullGN, GNvpro

pytestmark = pytest.mark.usefixtures("float64")

ALPHA, ALPHA_OUT = 1e-3, 3e-3
NETWORKS = {
    "mlp": MLP((4,)),
    "wide": MLP((12,)),
    "ode": NeuralODE(width=3, n_cells=2, n_levels=1, input_gain=1.0),
}


def data(kind, m, q, seed=0):
    """Features, and targets or labels, that a few steps do not fit."""
    rng = np.random.RandomState(seed)
    X = rng.randn(m, 3)
    if kind == "squared":
        return X, np.sin(X @ rng.randn(3, q)) + 0.3 * rng.randn(m, q)
    return X, np.argmax(X @ rng.randn(3, q) + rng.randn(m, q), axis=1)


def estimator(kind, network, **words):
    cls = VarProNetRegressor if kind == "squared" else VarProNetClassifier
    return cls(
        network=network,
        scale=False,
        alpha=(ALPHA, ALPHA_OUT),
        tol=0.0,
        random_state=0,
        **words,
    )


def fit(model, X, y, **words):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.set_params(**words).fit(X, y[:, 0] if y.shape[1:] == (1,) else y)


def weights(model):
    """The hidden weights, as the network takes them, and the output layer."""
    coefs, intercepts = model.coefs_, model.intercepts_
    output = np.vstack([model.output_coef_.T, model.output_intercept_])
    if isinstance(model.network, MLP):
        return tuple(zip(coefs, intercepts, strict=True)), output
    opening = coefs[0] * np.sqrt(len(coefs[0]))
    names = "opening_weight", "triangle", "opening_bias", "bias"
    return dict(zip(names, (opening, coefs[1], *intercepts), strict=True)), output


class Oracle:
    """The objective as a function of all weights, and Gauss-Newton matrices of it."""

    def __init__(self, model, kind, X, y):
        self.network, self.kind, self.X = model.network, kind, X
        self.y = y if kind == "squared" else np.eye(len(model.classes_))[y]
        self.theta, self.output = weights(model)
        self.flat, self.unravel = ravel_pytree(self.theta)

    def features(self, flat):
        z = self.network.apply(self.unravel(flat), self.X)
        return jnp.concatenate([z, jnp.ones((len(z), 1))], axis=1)

    def mean_loss(self, values):
        if self.kind == "squared":
            return 0.5 * jnp.mean(jnp.sum((values - self.y) ** 2, axis=1))
        if values.shape[1] == 1:
            values = jnp.concatenate([jnp.zeros_like(values), values], axis=1)
        return -jnp.mean(jnp.sum(self.y * jax.nn.log_softmax(values, axis=1), axis=1))

    def penalty(self, flat, output):
        roughness = getattr(self.network, "roughness", lambda theta: theta)
        rough = roughness(self.unravel(flat))
        rough = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(rough))
        return 0.5 * (ALPHA * rough + ALPHA_OUT * jnp.sum(output**2))

    def objective(self, flat, output):
        return self.mean_loss(self.features(flat) @ output) + self.penalty(flat, output)

    def best_output(self, flat):
        """One Newton step from the optimum has the derivative of the optimum."""
        by_output = jax.grad(self.objective, argnums=1)
        size = self.output.size
        hessian = jax.jacobian(by_output, argnums=1)(self.flat, self.output)
        step = jnp.linalg.solve(
            hessian.reshape(size, size), by_output(flat, self.output).ravel()
        )
        return self.output - step.reshape(self.output.shape)

    def matrix_and_gradient(self, projected):
        flat, output = self.flat, jnp.asarray(self.output)

        def parts(parameters):
            if projected:
                return parameters, self.best_output(parameters)
            return parameters[: flat.size], parameters[flat.size :].reshape(
                output.shape
            )

        def values(parameters):
            theta, output = parts(parameters)
            return self.features(theta) @ output

        @jax.jit
        def found(here):
            jacobian = jax.jacobian(values)(here).reshape(-1, len(here))
            curvature = jax.hessian(self.mean_loss)(values(here))
            curvature = curvature.reshape(len(jacobian), -1)
            change = jax.jacobian(parts)(here)
            change = [a.reshape(-1, len(here)) for a in change]
            at = parts(here)
            bent = jax.hessian(self.penalty, (0, 1))(*at)
            matrix = jacobian.T @ curvature @ jacobian
            for k, a in enumerate(change):
                matrix += a.T @ bent[k][k].reshape(len(a), len(a)) @ a
            return matrix, jax.grad(lambda p: self.objective(*parts(p)))(here)

        here = flat if projected else jnp.concatenate([flat, output.ravel()])
        return map(np.asarray, found(here))


CASES = {  # kind of loss, rows, columns, network
    "primal": ("squared", 40, 2, "mlp"),
    "many targets": ("squared", 40, 6, "mlp"),
    "penalty of changes": ("squared", 40, 2, "ode"),
    "dual": ("squared", 5, 1, "wide"),
    "two classes": ("cross_entropy", 40, 2, "mlp"),
    "four classes": ("cross_entropy", 40, 4, "mlp"),
    "dual of classes": ("cross_entropy", 6, 2, "wide"),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if n % 6 else ())
        for n, case in enumerate(CASES)
    ],
)
def test_a_dense_step_is_that_of_the_reduced_gauss_newton_matrix(case):
    kind, m, q, network = CASES[case]
    X, y = data(kind, m, q)
    model = fit(estimator(kind, NETWORKS[network], max_iter=2), X, y)
    oracle = Oracle(model, kind, X, y)
    matrix, gradient = oracle.matrix_and_gradient(True)
    damping = 0.1 * np.linalg.eigvalsh(matrix)[-1]
    again = {"solver": GNvpro(curvature="dense"), "damping": damping}
    fit(model, X, y, warm_start=True, max_iter=1, **again)
    spectrum = np.linalg.eigvalsh(matrix)[::-1]
    count = min(len(spectrum), len(model.gram_spectrum_))
    np.testing.assert_allclose(
        model.gram_spectrum_[:count], spectrum[:count], atol=1e-7 * spectrum[0]
    )
    (size,) = model.convergence_log_["grad_norm"]
    assert size == pytest.approx(np.linalg.norm(gradient), rel=1e-6)
    step = ravel_pytree(weights(model)[0])[0] - oracle.flat
    expected = -np.linalg.solve(matrix + damping * np.eye(len(matrix)), gradient)
    np.testing.assert_allclose(step, expected, atol=1e-6 * np.linalg.norm(expected))


@pytest.mark.parametrize(
    ("kind", "q", "projected"),
    [
        ("squared", 2, True),
        pytest.param("cross_entropy", 4, True, marks=pytest.mark.slow),
        ("squared", 2, False),
        pytest.param("cross_entropy", 2, False, marks=pytest.mark.slow),
    ],
)
def test_a_step_in_a_krylov_space_nearly_solves_the_same_system(kind, q, projected):
    X, y = data(kind, 40, q)
    solver = GNvpro(curvature="krylov") if projected else FullGN()
    model = fit(estimator(kind, NETWORKS["mlp"], max_iter=2), X, y)
    oracle = Oracle(model, kind, X, y)
    matrix, gradient = oracle.matrix_and_gradient(projected)
    damping = 0.1 * np.linalg.eigvalsh(matrix)[-1]
    again = {"solver": solver, "damping": damping, "rank": 1000}
    fit(model, X, y, warm_start=True, max_iter=1, **again)
    (size,) = model.convergence_log_["grad_norm"]
    assert size == pytest.approx(np.linalg.norm(gradient), rel=1e-6)
    largest = np.linalg.eigvalsh(matrix)[-1]
    assert model.gram_spectrum_[0] == pytest.approx(largest, rel=1e-3)
    theta, output = weights(model)
    step = ravel_pytree(theta)[0] - oracle.flat
    if not projected:
        step = np.concatenate([step, (output - oracle.output).ravel()])
    expected = -np.linalg.solve(matrix + damping * np.eye(len(matrix)), gradient)
    assert np.linalg.norm(step - expected) <= 1e-2 * np.linalg.norm(expected)


@pytest.mark.parametrize("m", [40, 3])
def test_the_output_layer_is_ridge_regression_of_the_features(m):
    X, y = data("squared", m, 2)
    weight = np.random.RandomState(1).rand(m)
    model = estimator("squared", NETWORKS["mlp"], max_iter=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y, weight)
    Z = np.c_[model.transform(X), np.ones(m)]
    ridge = Ridge(alpha=ALPHA_OUT, fit_intercept=False)
    ridge.fit(Z, y, weight / weight.sum())
    np.testing.assert_allclose(weights(model)[1], ridge.coef_.T, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_output_layer_is_logistic_regression_of_the_features(n_classes):
    X, y = data("cross_entropy", 60, n_classes)
    model = fit(estimator("cross_entropy", NETWORKS["mlp"], max_iter=2), X, y)
    Z, output = np.c_[model.transform(X), np.ones(60)], weights(model)[1]
    error = (model.predict_proba(X) - np.eye(n_classes)[y]) / 60
    gradient = Z.T @ error[:, -output.shape[1] :] + ALPHA_OUT * output
    np.testing.assert_allclose(gradient, 0, atol=2e-10)
